// The `@anthropic-ai/sdk` client, unmodified: messages, streams, tools, thoughts, counts, errors.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { AGENT, City, CODER, failure, INVENT, LOOP_END, MARKUP, ODD, PARIS, Person, start, WEATHER_SCHEMA, Weather } from "./server.js";

const weather = { name: "get_weather", description: "The weather of a city", input_schema: WEATHER_SCHEMA };
const loose = { ...weather, input_schema: { type: "object" } };
const forced = {
  model: CODER, max_tokens: 200, messages: [{ role: "user", content: PARIS }], tools: [weather],
  tool_choice: { type: "any", disable_parallel_tool_use: true }, top_k: 1,
};
let server, anthropic;

before(async () => {
  server = await start(CODER, AGENT, ODD);
  anthropic = new Anthropic({ baseURL: server.base, apiKey: "unused", maxRetries: 0 });
});
after(() => server.stop());

/** A message without what differs between two answers to the same question. */
const bare = ({ content, stop_reason, usage }) => ({
  content: content.map(({ id, signature, parsed_output, parsed, ...block }) => block), stop_reason,
  input: usage.input_tokens + usage.cache_read_input_tokens, output: usage.output_tokens,
});

test("a message, streamed and not, for every length", async () => {
  for (const max_tokens of [1, 2, 5, 20]) {
    const asked = { model: CODER, max_tokens, top_k: 1, system: "Be brief.", messages: [{ role: "user", content: "Say hello." }] };
    const whole = await anthropic.messages.create(asked);
    assert.equal(whole.role, "assistant");
    assert.ok(whole.usage.output_tokens <= max_tokens);
    const stream = anthropic.messages.stream(asked);
    let text = "";
    stream.on("text", (delta) => (text += delta));
    const final = await stream.finalMessage();
    assert.deepEqual(bare(final), bare(whole));
    assert.equal(text, whole.content.map((block) => block.text).join(""));
  }
});

test("events come in the order of the event grammar", async () => {
  const kinds = [];
  const open = new Set();
  for await (const event of await anthropic.messages.create({
    model: AGENT, max_tokens: 2048, messages: [{ role: "user", content: "What is the weather in Paris?" }], tools: [loose], stream: true,
    thinking: { type: "enabled", budget_tokens: 1024 } })) {
    kinds.push(event.type);
    if (event.type === "content_block_start") {
      assert.equal(open.size, 0);
      open.add(event.index);
    } else if (event.type === "content_block_delta") assert.ok(open.has(event.index));
    else if (event.type === "content_block_stop") assert.ok(open.delete(event.index));
  }
  assert.equal(kinds[0], "message_start");
  assert.deepEqual(kinds.slice(-2), ["message_delta", "message_stop"]);
  assert.equal(kinds.filter((kind) => kind === "content_block_start").length, 3);
});

test("a tool loop goes round by blocks, and its prompt is found in the cache", async () => {
  const messages = [{ role: "user", content: "What is the weather in Paris?" }];
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const asked = { model: AGENT, max_tokens: 2048, tools: [{ ...loose, cache_control: { type: "ephemeral" } }], thinking };
  const first = await anthropic.messages.create({ ...asked, messages });
  assert.equal(first.stop_reason, "tool_use");
  assert.deepEqual(first.content.map((block) => block.type), ["thinking", "text", "tool_use"]);
  const streamed = await anthropic.messages.stream({ ...asked, messages }).finalMessage();
  assert.deepEqual(bare(streamed), bare(first));
  messages.push({ role: "assistant", content: first.content }, {
    role: "user", content: [{ type: "tool_result", tool_use_id: first.content[2].id, content: [{ type: "text", text: "18 degrees" }] }] });
  const second = await anthropic.messages.create({ ...asked, messages });
  assert.equal(second.content.at(-1).text, LOOP_END);
  assert.equal(second.stop_reason, "end_turn");
  assert.ok(second.usage.cache_read_input_tokens > 0);
});

test("the client's tool runner goes round", async () => {
  for (const stream of [false, true]) {
    const seen = [];
    const runner = anthropic.beta.messages.toolRunner({
      model: AGENT, max_tokens: 500, stream, messages: [{ role: "user", content: "What is the weather in Paris?" }],
      tools: [betaZodTool({ name: "get_weather", description: "Weather", inputSchema: City, run: ({ city }) => { seen.push(city); return "18 degrees"; } })],
    });
    const final = await runner.runUntilDone();
    assert.equal(final.content.at(-1).text, LOOP_END);
    assert.deepEqual(seen, ["Paris"]);
  }
});

test("a real model's forced call obeys its schema, streamed and not", async () => {
  for (const tool_choice of [forced.tool_choice, { type: "tool", name: "get_weather", disable_parallel_tool_use: true }]) {
    const whole = await anthropic.messages.create({ ...forced, tool_choice });
    assert.equal(whole.stop_reason, "tool_use");
    Weather.parse(whole.content[0].input);
    let pieces = 0;
    const stream = anthropic.messages.stream({ ...forced, tool_choice }).on("inputJson", () => pieces++);
    assert.deepEqual(bare(await stream.finalMessage()), bare(whole));
    assert.ok(pieces > 3, `arguments come in pieces, not ${pieces}`);
  }
});

test("the parse helper gives a typed object", async () => {
  const message = await anthropic.messages.parse({
    model: CODER, max_tokens: 300, top_k: 1, messages: [{ role: "user", content: INVENT }], output_config: { format: zodOutputFormat(Person) } });
  Person.parse(message.parsed_output);
});

test("stop sequences are told", async () => {
  const asked = { model: ODD, max_tokens: 500, messages: [{ role: "user", content: "LONG" }], stop_sequences: ["never", "answer."] };
  const whole = await anthropic.messages.create(asked);
  assert.deepEqual([whole.stop_reason, whole.stop_sequence], ["stop_sequence", "answer."]);
  const streamed = await anthropic.messages.stream(asked).finalMessage();
  assert.deepEqual(bare(streamed), bare(whole));
});

test("a model's faults reach the client, which bears them", async () => {
  for (const word of ["EMPTY", "THOUGHT", "EMOJI", "MALFORMED", "UNCLOSED", "UNKNOWN", "BARE", "FENCED", "AROUND", "TWO"]) {
    const asked = { model: ODD, max_tokens: 500, messages: [{ role: "user", content: word }], tools: [loose] };
    const whole = await anthropic.messages.create(asked);
    const streamed = await anthropic.messages.stream(asked).finalMessage();
    assert.deepEqual(bare(streamed), bare(whole), word);
    const called = whole.content.some((block) => block.type === "tool_use");
    assert.equal(whole.stop_reason, called ? "tool_use" : "end_turn", word);
    if (!whole.malformed_calls) {
      assert.doesNotMatch(whole.content.map((block) => block.text ?? "").join(""), MARKUP, word);
    }
  }
});

test("tokens are counted as the prompt is", async () => {
  const { max_tokens, top_k, ...asked } = forced;
  const { input_tokens } = await anthropic.messages.countTokens(asked);
  const { usage } = await anthropic.messages.create(forced);
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens);
});

test("leaving a stream stops the work", async () => {
  const stream = anthropic.messages.stream({ model: ODD, max_tokens: 4000, messages: [{ role: "user", content: "LONG" }] });
  for await (const event of stream) if (event.type === "content_block_delta") break;
  stream.abort();
  await server.idle(ODD);
});

test("models are listed", async () => {
  const ids = [];
  for await (const model of anthropic.models.list()) ids.push(model.id);
  assert.deepEqual(ids.sort(), [AGENT, CODER, ODD].sort());
});

test("errors are the client's own classes and name the place", async () => {
  const refused = (more) => failure(anthropic.messages.create({ model: CODER, max_tokens: 10, messages: [{ role: "user", content: "hi" }], ...more }));
  assert.ok((await refused({ model: "nope" })) instanceof Anthropic.NotFoundError);
  const places = {
    temperature: { temperature: 7 },
    "tools.0.input_schema": { tools: [{ name: "x", input_schema: { type: "object", properties: { x: { $ref: "#/no" } } } }], tool_choice: { type: "any" } },
    "messages.1": { messages: [{ role: "user", content: "hi" }, { role: "user", content: [{ type: "tool_result", tool_use_id: "nobody", content: "x" }] }] },
  };
  for (const [place, more] of Object.entries(places)) {
    const error = await refused(more);
    assert.ok(error instanceof Anthropic.BadRequestError, `${place}: ${error}`);
    assert.equal(error.error.error.type, "invalid_request_error");
    assert.ok(error.error.error.message.includes(place), error.error.error.message);
  }
});
