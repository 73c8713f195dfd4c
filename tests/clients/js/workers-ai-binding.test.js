// Vercel's `ai` through `workers-ai-provider`, unmodified, over a Worker's AI binding.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createWorkersAI } from "workers-ai-provider";
import { binding } from "./binding.js";
import { CODER, failure } from "./server.js";
import { judge } from "./vercel.js";

const here = judge("binding", (server, fetch) => {
  const provider = createWorkersAI({ binding: binding(server.base, fetch) });
  return (name) => provider(name, { sessionAffinity: "ses_3" });
  // The binding gives a code alone, and the provider knows no status for 5006.
}, { status: null });

test("the session's header was sent with each request", () => {
  assert.ok(here.sent.length > 0 && here.sent.every(({ headers }) => headers.get("x-session-affinity") === "ses_3"));
});

test("results, streams and errors have the types that the binding reads", async () => {
  const ai = binding(here.server.base);
  const result = await ai.run(CODER, { prompt: "Say hello.", max_tokens: 8 });
  assert.equal(typeof result.response, "string");
  assert.ok(ai.lastRequestId);
  const stream = await ai.run(CODER, { prompt: "Say hello.", max_tokens: 8, stream: true });
  const text = await new Response(stream).text();
  assert.ok(text.endsWith("data: [DONE]\n\n"));
  const raw = await ai.run(CODER, { prompt: "x", temperature: 7 }, { returnRawResponse: true });
  assert.equal(raw.status, 400);
  assert.match((await failure(ai.run("nope", { prompt: "x" }))).message, /^5007: /);
});
