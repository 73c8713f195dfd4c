// The `openai` JavaScript client, unmodified: chat, streams, tools, structured answers, embeddings, errors.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { AGENT, CHAT, City, CODER, EMBED, failure, INVENT, LOOP_END, MARKUP, ODD, PARIS, Person, start, WEATHER_SCHEMA, Weather } from "./server.js";

const messages = [{ role: "user", content: "What is the capital of France? Answer in one short sentence." }];
const greedy = { model: CHAT, messages, temperature: 0, max_tokens: 32 };
const weather = { type: "function", function: { name: "get_weather", parameters: WEATHER_SCHEMA, strict: true } };
const paris = {
  model: CODER, temperature: 0, max_tokens: 200, messages: [{ role: "user", content: PARIS }], tools: [weather], parallel_tool_calls: false,
};
const invent = { model: CODER, temperature: 0, max_tokens: 300, messages: [{ role: "user", content: INVENT }] };
let server, openai;

before(async () => {
  server = await start(CHAT, EMBED, CODER, AGENT, ODD);
  openai = new OpenAI({ baseURL: `${server.base}/v1`, apiKey: "unused", maxRetries: 0 });
});
after(() => server.stop());

test("an answer is sensible and counted", async () => {
  const answer = await openai.chat.completions.create(greedy);
  assert.match(answer.choices[0].message.content, /Paris/);
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.equal(typeof answer.usage.prompt_tokens_details.cached_tokens, "number");
});

test("streaming gives the same text as not streaming", async () => {
  const whole = await openai.chat.completions.create(greedy);
  let text = "", usage = null;
  for await (const chunk of await openai.chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the client's stream helper assembles the final message", async () => {
  const stream = openai.chat.completions.stream(greedy);
  const final = await stream.finalChatCompletion();
  assert.match(final.choices[0].message.content, /Paris/);
});

test("leaving a stream stops the work", async () => {
  const stream = await openai.chat.completions.create({ ...greedy, max_tokens: 4000, ignore_eos: true, stream: true });
  for await (const _ of stream) break;
  stream.controller.abort();
  await server.idle(CHAT);
});

test("errors name the field", async () => {
  const bad = await failure(openai.chat.completions.create({ ...greedy, temperature: 7 }));
  assert.ok(bad instanceof OpenAI.BadRequestError);
  assert.equal(bad.param, "temperature");
  await assert.rejects(openai.chat.completions.create({ ...greedy, model: "nope" }), OpenAI.NotFoundError);
  const schema = { type: "object", properties: { x: { type: "nothing" } } };
  const unsupported = await failure(openai.chat.completions.create({
    ...greedy, response_format: { type: "json_schema", json_schema: { name: "s", schema } } }));
  assert.ok(unsupported instanceof OpenAI.BadRequestError);
  assert.ok(unsupported.param.startsWith("response_format.json_schema.schema"), unsupported.param);
});

test("sixteen sessions at once all get an answer", async () => {
  const answers = await Promise.all(
    Array.from({ length: 16 }, (_, i) =>
      openai.chat.completions.create({ model: CHAT, messages: [{ role: "user", content: `Say the number ${i}.` }], max_tokens: 16, seed: i })),
  );
  assert.ok(answers.every((a) => a.choices[0].message.content.length > 0));
});

test("embeddings come through the client's base64 default", async () => {
  const answer = await openai.embeddings.create({ model: EMBED, input: ["one", "two"] });
  assert.deepEqual(answer.data.map((d) => d.embedding.length), [384, 384]);
  const floats = await openai.embeddings.create({ model: EMBED, input: "one", encoding_format: "float" });
  answer.data[0].embedding.forEach((x, i) => assert.ok(Math.abs(x - floats.data[0].embedding[i]) < 1e-6));
});

test("models are listed", async () => {
  const ids = [];
  for await (const model of openai.models.list()) ids.push(model.id);
  assert.deepEqual(ids.sort(), [AGENT, CHAT, CODER, EMBED, ODD].sort());
});

for (const choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
  test(`a real model's call obeys its schema, choice ${JSON.stringify(choice)}`, async () => {
    for (const temperature of [0, 1.5]) {
      const { choices: [answer] } = await openai.chat.completions.create({ ...paris, tool_choice: choice, temperature, seed: 5 });
      assert.equal(answer.finish_reason, "tool_calls");
      assert.equal(answer.message.content, null);
      assert.equal(answer.message.tool_calls.length, 1);
      Weather.parse(JSON.parse(answer.message.tool_calls[0].function.arguments));
    }
  });
}

test("the stream helper tells a call's arguments as they are made", async () => {
  const stream = openai.chat.completions.stream({ ...paris, tool_choice: "required" });
  let deltas = 0, done = null;
  stream.on("tool_calls.function.arguments.delta", () => deltas++);
  stream.on("tool_calls.function.arguments.done", (call) => (done = call));
  const { choices: [answer] } = await stream.finalChatCompletion();
  const { choices: [whole] } = await openai.chat.completions.create({ ...paris, tool_choice: "required" });
  assert.ok(deltas > 3, `arguments come in pieces, not ${deltas}`);
  assert.equal(answer.finish_reason, "tool_calls");
  assert.equal(done.arguments, whole.message.tool_calls[0].function.arguments);
  assert.equal(answer.message.tool_calls[0].function.arguments, done.arguments);
});

for (const stream of [false, true]) {
  test(`runTools goes round a loop, ${stream ? "streamed" : "whole"}`, async () => {
    const seen = [];
    const runner = openai.chat.completions.runTools({
      model: AGENT, stream, messages: [{ role: "user", content: "What is the weather in Paris?" }],
      tools: [zodFunction({ name: "get_weather", parameters: City, function: ({ city }) => { seen.push(city); return { degrees: 18 }; } })],
    });
    assert.equal(await runner.finalContent(), LOOP_END);
    assert.deepEqual(seen, ["Paris"]);
    const [, call, result] = runner.messages;
    assert.equal(call.content, "Let me look.");
    assert.equal(call.tool_calls[0].id, result.tool_call_id);
    const usage = await runner.totalUsage();
    assert.ok(usage.completion_tokens > 0 || stream);
  });
}

test("runTools with a real model that must call", async () => {
  const seen = [];
  const runner = openai.chat.completions.runTools({
    ...paris, tool_choice: { type: "function", function: { name: "get_weather" } },
    tools: [zodFunction({ name: "get_weather", parameters: Weather, function: (given) => { seen.push(Weather.parse(given)); return "21 degrees, clear"; } })],
  }, { maxChatCompletions: 2 });
  await runner.done();
  assert.equal(seen.length, 1);
});

test("the next step's prompt is found in the cache", async () => {
  const ask = { model: AGENT, messages: [{ role: "user", content: "What is the weather in Paris, then?" }], tools: [weather] };
  const first = await openai.chat.completions.create(ask);
  const [{ message }] = first.choices;
  const second = await openai.chat.completions.create({
    ...ask, messages: [...ask.messages, message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "18 degrees" }] });
  assert.equal(second.choices[0].message.content, LOOP_END);
  const cached = second.usage.prompt_tokens_details.cached_tokens;
  assert.ok(cached >= first.usage.prompt_tokens - 1, `${cached} of ${first.usage.prompt_tokens}`);
});

test("parallel calls have their own indexes, ids and texts", async () => {
  const ask = { model: ODD, messages: [{ role: "user", content: "TWO" }], tools: [{ ...weather, function: { ...weather.function, parameters: { type: "object" } } }] };
  const { choices: [whole] } = await openai.chat.completions.create(ask);
  const { choices: [streamed] } = await openai.chat.completions.stream(ask).finalChatCompletion();
  const cities = (choice) => choice.message.tool_calls.map((call) => JSON.parse(call.function.arguments).city);
  assert.deepEqual(cities(whole), ['Paris {"not": "JSON"} "}]', "東京 🗼"]);
  assert.deepEqual(cities(streamed), cities(whole));
  assert.equal(new Set(streamed.message.tool_calls.map((call) => call.id)).size, 2);
  assert.equal(streamed.finish_reason, "tool_calls");
});

test("a model's faults reach the client as text, and the client bears them", async () => {
  for (const word of ["EMPTY", "THOUGHT", "EMOJI", "MALFORMED", "UNCLOSED", "UNKNOWN", "BARE", "FENCED", "AROUND"]) {
    const ask = { model: ODD, messages: [{ role: "user", content: word }], tools: [{ type: "function", function: { name: "get_weather", parameters: { type: "object" } } }] };
    const { choices: [whole] } = await openai.chat.completions.create(ask);
    const { choices: [streamed] } = await openai.chat.completions.stream(ask).finalChatCompletion();
    assert.equal(streamed.finish_reason, whole.finish_reason, word);
    assert.equal(streamed.message.content ?? "", whole.message.content ?? "", word);
    const calls = ({ message }) => (message.tool_calls ?? []).map((call) => call.function);
    assert.deepEqual(calls(streamed).map((f) => [f.name, f.arguments]), calls(whole).map((f) => [f.name, f.arguments]), word);
    assert.equal(whole.finish_reason, calls(whole).length ? "tool_calls" : "stop", word);
    if (!whole.message.malformed_tool_calls) assert.doesNotMatch(whole.message.content ?? "", MARKUP, word);
  }
});

test("parse gives a typed object, streamed and not", async () => {
  const asked = { ...invent, response_format: zodResponseFormat(Person, "person") };
  const whole = await openai.chat.completions.parse(asked);
  Person.parse(whole.choices[0].message.parsed);
  const streamed = await openai.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, whole.choices[0].message.parsed);
});

test("parse gives typed arguments", async () => {
  const answer = await openai.chat.completions.parse({ ...paris, tool_choice: "required", tools: [zodFunction({ name: "get_weather", parameters: Weather })] });
  Weather.parse(answer.choices[0].message.tool_calls[0].function.parsed_arguments);
});

test("a cut document is told by the client's own error", async () => {
  const asked = { ...invent, max_tokens: 5, response_format: zodResponseFormat(Person, "person") };
  await assert.rejects(openai.chat.completions.parse(asked), OpenAI.LengthFinishReasonError ?? /length/);
});
