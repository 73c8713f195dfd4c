// Vercel's `ai` through `workers-ai-provider`, unmodified, over REST: its host is fixed, so its `fetch` setting leads here.
import assert from "node:assert/strict";
import { test } from "node:test";
import { embed } from "ai";
import { createWorkersAI } from "workers-ai-provider";
import { EMBED, start } from "./server.js";
import { judge } from "./vercel.js";

const led = (base, fetch) => (url, init) => fetch(String(url).replace("https://api.cloudflare.com", base), init);
const here = judge("workers-ai", (server, fetch) => {
  const provider = createWorkersAI({ accountId: "acc", apiKey: "unused", fetch: led(server.base, fetch) });
  return (name) => provider(name, { sessionAffinity: "ses_2" });
});

test("the session's header was sent with each request", () => {
  assert.ok(here.sent.length > 0 && here.sent.every(({ headers }) => headers.get("x-session-affinity") === "ses_2"));
});

test("embeddings", async () => {
  const server = await start(EMBED);
  try {
    const provider = createWorkersAI({ accountId: "acc", apiKey: "unused", fetch: led(server.base, fetch) });
    const { embedding } = await embed({ model: provider.textEmbedding(EMBED), value: "one" });
    assert.equal(embedding.length, 384);
  } finally {
    await server.stop();
  }
});
