// Vercel's `ai` through `ai-gateway-provider` and `workers-ai-provider` with a gateway, unmodified: their host is fixed,
// so `fetch` leads here.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { generateText, streamText } from "ai";
import { createAiGateway } from "ai-gateway-provider";
import { createUnified } from "ai-gateway-provider/providers/unified";
import { createWorkersAI } from "workers-ai-provider";
import { CHAT, failure, start } from "./server.js";

const led = globalThis.fetch;
let server;
let sent;

before(async () => {
  server = await start(CHAT);
  globalThis.fetch = async (url, init) => {
    const answer = await led(String(url).replace("https://gateway.ai.cloudflare.com", server.base), init);
    sent = { url: String(url), answer };
    return answer;
  };
});
after(async () => {
  globalThis.fetch = led;
  await server.stop();
});

const gateway = () => createAiGateway({ accountId: "default", gateway: "default", apiKey: "unused" });
const unified = () => createUnified({ apiKey: "unused", includeUsage: true });
const here = `workers-ai/${CHAT}`;

test("the first model that answers is the one that is read", async () => {
  const { text, usage } = await generateText({
    model: gateway()([unified()("nowhere/none"), unified()(here)]),
    prompt: "Say hello.",
    maxOutputTokens: 8,
    maxRetries: 0,
  });
  assert.ok(text.length > 0 && usage.outputTokens === 8);
  assert.match(sent.url, /\/v1\/default\/default$/);
  assert.equal(sent.answer.headers.get("cf-aig-step"), "1");
});

test("streams pass", async () => {
  const stream = streamText({ model: gateway()(unified()(here)), prompt: "Say hello.", maxOutputTokens: 8, maxRetries: 0 });
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.ok(text.length > 0);
  assert.equal((await stream.usage).outputTokens, 8);
});

test("a gateway that is not there is the provider's own error", async () => {
  const model = createAiGateway({ accountId: "default", gateway: "nothing", apiKey: "unused" })(unified()(here));
  const error = await failure(generateText({ model, prompt: "x", maxRetries: 0 }));
  assert.match(String(error), /does not exist/);
});

test("workers-ai-provider with a gateway", async () => {
  const provider = createWorkersAI({ accountId: "default", apiKey: "unused", gateway: { id: "default" }, fetch: globalThis.fetch });
  const { text } = await generateText({ model: provider(CHAT), prompt: "Say hello.", maxOutputTokens: 8, maxRetries: 0 });
  assert.ok(text.length > 0);
  assert.match(sent.url, /\/v1\/default\/default\/workers-ai\/run\//);
});
