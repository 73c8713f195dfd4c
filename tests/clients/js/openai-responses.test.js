// OpenAI's Responses through the `openai` JavaScript client, unmodified: items, events, kept conversations, typed answers.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { ResponsesToolRunner, runnerFunction } from "openai/helpers/responses-tool-runner";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { AGENT, City, CODER, failure, INVENT, LOOP_END, MARKUP, ODD, PARIS, Person, start, WEATHER_SCHEMA, Weather } from "./server.js";

const weather = { type: "function", name: "get_weather", description: "Weather", strict: true, parameters: WEATHER_SCHEMA };
const loose = { ...weather, strict: false, parameters: { type: "object" } };
const greedy = { model: CODER, temperature: 0, max_output_tokens: 300 };
let server, openai;

before(async () => {
  server = await start(CODER, AGENT, ODD);
  openai = new OpenAI({ baseURL: `${server.base}/v1`, apiKey: "unused", maxRetries: 0 });
});
after(() => server.stop());

const calls = (response) => response.output.filter((item) => item.type === "function_call");

test("a conversation goes on from a kept response", async () => {
  const first = await openai.responses.create({ model: AGENT, input: "What is the weather in Paris?", tools: [loose], store: true });
  assert.equal(first.status, "completed");
  assert.equal(first.output_text, "Let me look.");
  assert.deepEqual(first.output.map((item) => item.type), ["reasoning", "message", "function_call"]);
  const [call] = calls(first);
  assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
  const second = await openai.responses.create({
    model: AGENT, previous_response_id: first.id, tools: [loose],
    input: [{ type: "function_call_output", call_id: call.call_id, output: "18 degrees" }],
  });
  assert.equal(second.output_text, LOOP_END);
  assert.ok(second.usage.input_tokens_details.cached_tokens > 0);
  assert.equal((await openai.responses.retrieve(second.id)).output_text, LOOP_END);
  const kept = [];
  for await (const item of openai.responses.inputItems.list(second.id, { order: "asc" })) kept.push(item.type);
  assert.ok(kept.includes("function_call_output"), String(kept));
  await openai.responses.delete(first.id);
  await assert.rejects(openai.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("a conversation goes round by items that the client sends back", async () => {
  const input = [{ role: "user", content: "What is the weather in Paris?" }];
  const first = await openai.responses.create({ model: AGENT, input, tools: [loose], store: false });
  input.push(...first.output, { type: "function_call_output", call_id: calls(first)[0].call_id, output: "18 degrees" });
  const second = await openai.responses.create({ model: AGENT, input, tools: [loose], store: false });
  assert.equal(second.output_text, LOOP_END);
});

test("events come in order and add up to the whole", async () => {
  const events = [];
  const asked = { model: AGENT, input: "What is the weather in Paris?", tools: [loose] };
  const stream = openai.responses.stream(asked);
  stream.on("event", (event) => events.push(event));
  const final = await stream.finalResponse();
  assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
  const kinds = events.map((e) => e.type);
  assert.deepEqual(kinds.slice(0, 2), ["response.created", "response.in_progress"]);
  assert.equal(kinds.at(-1), "response.completed");
  const joined = (kind) => events.filter((e) => e.type === kind).map((e) => e.delta).join("");
  const whole = await openai.responses.create(asked);
  assert.equal(joined("response.output_text.delta"), whole.output_text);
  assert.equal(joined("response.function_call_arguments.delta"), calls(whole)[0].arguments);
  assert.equal(joined("response.reasoning_text.delta"), whole.output[0].content[0].text);
  assert.deepEqual(final.output.map((item) => item.type), whole.output.map((item) => item.type));
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test("a real model's forced call obeys its schema, streamed and not", async () => {
  const asked = { ...greedy, input: PARIS, tools: [weather], tool_choice: "required", parallel_tool_calls: false };
  const whole = await openai.responses.create(asked);
  const streamed = await openai.responses.stream(asked).finalResponse();
  for (const response of [whole, streamed]) {
    assert.deepEqual(response.output.map((item) => item.type), ["function_call"]);
    Weather.parse(JSON.parse(calls(response)[0].arguments));
  }
  assert.equal(calls(streamed)[0].arguments, calls(whole)[0].arguments);
});

test("parse gives typed answers and typed arguments", async () => {
  const asked = { ...greedy, input: INVENT, text: { format: zodTextFormat(Person, "person") } };
  const whole = await openai.responses.parse(asked);
  Person.parse(whole.output_parsed);
  const streamed = await openai.responses.stream(asked).finalResponse();
  assert.deepEqual(streamed.output_parsed, whole.output_parsed);
  const call = await openai.responses.parse({
    ...greedy, input: PARIS, tools: [zodResponsesFunction({ name: "get_weather", parameters: Weather })], tool_choice: "required", parallel_tool_calls: false });
  Weather.parse(calls(call)[0].parsed_arguments);
});

test("a cut answer is incomplete, streamed and not", async () => {
  const asked = { ...greedy, input: INVENT, max_output_tokens: 5, text: { format: zodTextFormat(Person, "person") } };
  const { text: { format }, ...rest } = asked;
  const plain = { ...rest, text: { format: { type: "json_schema", name: "person", schema: format.schema, strict: true } } };
  const whole = await openai.responses.create(plain);
  let last;
  for await (const event of await openai.responses.create({ ...plain, stream: true })) last = event;
  assert.equal(last.type, "response.incomplete");
  for (const response of [whole, last.response]) {
    assert.equal(response.status, "incomplete");
    assert.equal(response.incomplete_details.reason, "max_output_tokens");
  }
});

test("a model's faults reach the client, which bears them", async () => {
  for (const word of ["EMPTY", "THOUGHT", "EMOJI", "MALFORMED", "UNCLOSED", "UNKNOWN", "BARE", "FENCED", "AROUND", "TWO"]) {
    const asked = { model: ODD, input: word, tools: [loose] };
    const whole = await openai.responses.create(asked);
    const streamed = await openai.responses.stream(asked).finalResponse();
    assert.deepEqual(streamed.output.map((item) => item.type), whole.output.map((item) => item.type), word);
    assert.deepEqual(calls(streamed).map((c) => [c.name, c.arguments]), calls(whole).map((c) => [c.name, c.arguments]), word);
    assert.equal(streamed.output_text, whole.output_text, word);
    const flagged = whole.output.some((item) => item.malformed_calls);
    if (!flagged) assert.doesNotMatch(whole.output_text, MARKUP, word);
  }
});

test("the client's tool runner goes round a loop, streamed and not", async () => {
  for (const stream of [false, true]) {
    const seen = [];
    const runner = new ResponsesToolRunner({
      functions: [runnerFunction(zodResponsesFunction({ name: "get_weather", parameters: City, function: ({ city }) => { seen.push(city); return "18 degrees"; } }))],
    });
    const final = await runner.run(openai, { model: AGENT, input: "What is the weather in Paris?" }, { stream });
    assert.equal(final.output_text, LOOP_END);
    assert.deepEqual(seen, ["Paris"]);
  }
});

test("errors name the place in the caller's words", async () => {
  const refused = async (more) => {
    const error = await failure(openai.responses.create({ ...greedy, input: "hi", ...more }));
    assert.ok(error instanceof OpenAI.BadRequestError, String(error));
    return error.param;
  };
  assert.equal(await refused({ temperature: 7 }), "temperature");
  assert.ok((await refused({ tools: [{ ...loose, parameters: { type: "object", properties: { x: { $ref: "#/no" } } } }], tool_choice: "required" })).startsWith("tools[0].parameters"));
  assert.ok((await refused({ text: { format: { type: "json_schema", name: "x", schema: { type: "nothing" } } } })).startsWith("text.format.schema"));
  assert.equal(await refused({ input: [{ type: "function_call_output", call_id: "nobody", output: "x" }] }), "input[0].call_id");
  assert.equal(await refused({ input: [{ type: "function_call", call_id: "a", name: "get_weather", arguments: "{" }, { type: "function_call_output", call_id: "a", output: "x" }], tools: [loose] }), "input[0].arguments");
  const gone = await failure(openai.responses.create({ ...greedy, input: "hi", previous_response_id: "resp_nothing" }));
  assert.equal(gone.param, "previous_response_id");
});
