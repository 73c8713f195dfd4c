// An unmodified Worker in Miniflare (workerd): the real `env.AI`, whose calls come here.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Miniflare } from "miniflare";
import { AGENT, CHAT, EMBED, LOOP_END, start } from "../server.js";

const WORKER = `
export default {
  async fetch(request, env) {
    const { model, inputs, options, log, judgement } = await request.json();
    try {
      if (log) {
        const gateway = env.AI.gateway("default");
        if (judgement) await gateway.patchLog(log, judgement);
        return Response.json(await gateway.getLog(log));
      }
      const result = await env.AI.run(model, inputs, options);
      if (result instanceof ReadableStream) return new Response(result, { headers: { "x-kind": "stream" } });
      return Response.json({ result, id: env.AI.lastRequestId ?? null, log: env.AI.aiGatewayLogId ?? null });
    } catch (error) {
      return Response.json({ error: { name: error.name, message: error.message } }, { status: 500 });
    }
  },
};`;
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const tools = [{ name: "get_weather", description: "Weather", parameters: { type: "object" } }];
let server, worker, run;

before(async () => {
  server = await start(CHAT, EMBED, AGENT);
  worker = new Miniflare({
    modules: true, script: WORKER, compatibilityDate: "2026-01-01",
    ai: { binding: "AI", remoteProxyConnectionString: new URL(`${server.base}/`) },
  });
  await worker.ready;
  run = (model, inputs, options) => worker.dispatchFetch("http://worker.test/", { method: "POST", body: JSON.stringify({ model, inputs, options }) });
});
after(async () => {
  await worker.dispose();
  await server.stop();
});

test("env.AI.run answers with a value", async () => {
  const { result, id } = await (await run(CHAT, { prompt: "Say hello.", max_tokens: 8, temperature: 0 })).json();
  assert.equal(typeof result.response, "string");
  assert.ok(result.usage.completion_tokens > 0 && id);
});

test("env.AI.run streams", async () => {
  const response = await run(CHAT, { prompt: "Say hello.", max_tokens: 8, stream: true });
  assert.equal(response.headers.get("x-kind"), "stream");
  assert.ok((await response.text()).endsWith("data: [DONE]\n\n"));
});

test("a tool loop goes round", async () => {
  const { result } = await (await run(AGENT, { messages, tools }, { extraHeaders: { "x-session-affinity": "ses_4" } })).json();
  const [call] = result.tool_calls;
  const history = [...messages, { role: "assistant", content: result.response ?? "", tool_calls: result.tool_calls },
    { role: "tool", name: "get_weather", tool_call_id: call.id, content: "18 degrees" }];
  const again = await (await run(AGENT, { messages: history, tools })).json();
  assert.equal(again.result.response, LOOP_END);
  assert.ok(again.result.usage.prompt_tokens_details.cached_tokens > 0);
});

test("embeddings", async () => {
  const { result } = await (await run(EMBED, { text: ["one", "two"] })).json();
  assert.deepEqual(result.shape, [2, 384]);
});

test("errors are thrown by the binding with their code", async () => {
  const unknown = await (await run("@cf/no/such-model", { prompt: "x" })).json();
  // The binding's own class takes its name from the answer.
  assert.equal(unknown.error.name, "AiError");
  assert.match(unknown.error.message, /^5007: /);
});

test("a Worker finds the log of its own request and judges it", async () => {
  const { log } = await (await run(CHAT, { prompt: "Say hello.", max_tokens: 8 })).json();
  assert.ok(log);
  const ask = async (asked) => (await worker.dispatchFetch("http://worker.test/", { method: "POST", body: JSON.stringify(asked) })).json();
  // A log is there a moment after its answer.
  let found;
  do found = await ask({ log }); while (found.error);
  assert.equal(found.id, log);
  assert.equal(found.tokens_out, 8);
  const judged = await ask({ log, judgement: { feedback: 1, score: 90, metadata: { seen: true } } });
  assert.equal(judged.feedback, 1);
  const missing = await ask({ log: "none" });
  assert.equal(missing.error.name, "AiGatewayLogNotFound");
});
