// The `cloudflare` JavaScript client, unmodified: the native form of Workers AI with tools, JSON mode and errors.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Cloudflare from "cloudflare";
import { ACCOUNT, AGENT, CHAT, CODER, EMBED, failure, INVENT, LOOP_END, ODD, PARIS, Person, start, WEATHER_SCHEMA, Weather } from "./server.js";
import { z } from "zod";

const messages = [{ role: "user", content: "What is the capital of France? Answer in one short sentence." }];
const flat = { name: "get_weather", description: "The weather of a city", parameters: WEATHER_SCHEMA };
const nested = { type: "function", function: flat };
let server, cloudflare, run;

before(async () => {
  server = await start(CHAT, EMBED, CODER, AGENT, ODD);
  cloudflare = new Cloudflare({ baseURL: `${server.base}/client/v4`, apiToken: "unused", maxRetries: 0 });
  run = (model, asked) => cloudflare.ai.run(model, { account_id: ACCOUNT, ...asked });
});
after(() => server.stop());

test("run answers with the native shape", async () => {
  const result = await run(CHAT, { messages, temperature: 0, max_tokens: 32 });
  assert.match(result.response, /Paris/);
  assert.equal(result.usage.total_tokens, result.usage.prompt_tokens + result.usage.completion_tokens);
});

test("embeddings", async () => {
  const result = await run(EMBED, { text: ["one", "two"] });
  assert.deepEqual(result.shape, [2, 384]);
});

test("model search pages to its end", async () => {
  const names = [];
  for await (const model of cloudflare.ai.models.list({ account_id: ACCOUNT })) names.push(model.name);
  assert.deepEqual(names.sort(), [AGENT, CHAT, CODER, EMBED, ODD].sort());
});

for (const [form, tool] of Object.entries({ flat, nested })) {
  test(`a real model must call a ${form} tool, and its arguments obey`, async () => {
    const result = await run(CODER, {
      messages: [{ role: "user", content: PARIS }], tools: [tool], tool_choice: "required", parallel_tool_calls: false, temperature: 0, max_tokens: 200 });
    assert.equal(result.tool_calls.length, 1);
    const [call] = result.tool_calls;
    const { name, arguments: given } = call.function ?? call;
    assert.equal(name, "get_weather");
    Weather.parse(typeof given === "string" ? JSON.parse(given) : given);
  });

  test(`a tool loop goes round with a ${form} tool`, async () => {
    const tools = [form === "flat" ? { ...flat, parameters: { type: "object" } } : { type: "function", function: { ...flat, parameters: { type: "object" } } }];
    const asked = [{ role: "user", content: "What is the weather in Paris?" }];
    const first = await run(AGENT, { messages: asked, tools });
    const [call] = first.tool_calls;
    const { name, arguments: given } = call.function ?? call;
    assert.equal(name, "get_weather");
    const city = (typeof given === "string" ? JSON.parse(given) : given).city;
    assert.equal(city, "Paris");
    const history = [
      ...asked,
      { role: "assistant", content: first.response ?? "", tool_calls: first.tool_calls },
      { role: "tool", name, tool_call_id: call.id, content: "18 degrees" },
    ];
    const second = await run(AGENT, { messages: history, tools });
    assert.equal(second.response, LOOP_END);
    assert.ok(second.usage.prompt_tokens_details.cached_tokens > 0);
  });
}

test("JSON mode gives an object, by the bare schema and by OpenAI's envelope", async () => {
  const { $schema, ...schema } = z.toJSONSchema(Person);
  const asked = { messages: [{ role: "user", content: INVENT }], temperature: 0, max_tokens: 300 };
  for (const json_schema of [schema, { name: "person", schema, strict: true }]) {
    const result = await run(CODER, { ...asked, response_format: { type: "json_schema", json_schema } });
    Person.parse(result.response);
  }
  const any = await run(CODER, { ...asked, response_format: { type: "json_object" } });
  assert.equal(typeof any.response, "object");
});

test("errors carry codes and say what is wrong", async () => {
  const unknown = await failure(run("@cf/no/such-model", { prompt: "hi" }));
  assert.equal(unknown.errors[0].code, 5007);
  const schema = { type: "object", properties: { x: { type: "nothing" } } };
  const unsupported = await failure(run(CODER, { messages, response_format: { type: "json_schema", json_schema: schema } }));
  assert.ok(unsupported instanceof Cloudflare.BadRequestError, unsupported);
  assert.match(unsupported.errors[0].message, /json_schema/);
  const half = [...messages, { role: "assistant", content: "", tool_calls: [{ id: "a", type: "function", function: { name: "get_weather", arguments: "{" } }] },
    { role: "tool", tool_call_id: "a", content: "x" }];
  const faulty = await failure(run(CODER, { messages: half, tools: [nested] }));
  assert.ok(faulty instanceof Cloudflare.BadRequestError, faulty);
  assert.match(faulty.errors[0].message, /messages\[1\]\.tool_calls\[0\]/);
});

test("logs are found by filters, judged and deleted", async () => {
  const where = { account_id: "default" };
  const { logs } = cloudflare.aiGateway;
  const all = async (asked) => {
    const found = [];
    for await (const log of logs.list("default", { ...where, ...asked })) found.push(log);
    return found;
  };
  await fetch(`${server.base}/v1/chat/completions`, {
    method: "POST", headers: { "cf-aig-metadata": '{"judge":"js"}', "cf-aig-collect-log-payload": "true" },
    body: JSON.stringify({ model: CHAT, messages, max_tokens: 4 }) });
  const filters = [{ key: "metadata.key", operator: "eq", value: ["judge"] }, { key: "metadata.value", operator: "eq", value: ["js"] }];
  let found;
  do found = await all({ filters }); while (found.length === 0);
  const [log] = found;
  assert.equal(log.model, CHAT);
  assert.equal(log.tokens_out, 4);
  await logs.edit(log.id, { ...where, gateway_id: "default", feedback: -1 });
  assert.equal((await all({ filters: [{ key: "feedback", operator: "eq", value: [-1] }] }))[0].id, log.id);
  assert.equal((await logs.request(log.id, { ...where, gateway_id: "default" })).max_tokens, 4);
  assert.ok((await logs.delete("default", { ...where, filters })).success);
  const gone = await failure(logs.get(log.id, { ...where, gateway_id: "default" }));
  assert.equal(gone.errors[0].code, 7002);
});
