// What the Vercel `ai` package is judged by, whichever provider brings its requests here.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { APICallError, generateObject, generateText, jsonSchema, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { AGENT, City, CODER, failure, INVENT, LOOP_END, MARKUP, ODD, PARIS, Person, start, Weather } from "./server.js";

// What is old in `ai` is used by many, and so it is here.
globalThis.AI_SDK_LOG_WARNINGS = false;
const PROMPT = "What is the weather in Paris?";

/**
 * Declares the tests. `model(server, fetch)` gives a function from a model's name to the provider's model, whose requests go
 * through `fetch`. `status` is what the provider makes of a refusal. Returns what the file's own tests need.
 */
export function judge(name, model, { status = 400 } = {}) {
  const here = {};
  const sent = [];
  const recording = (url, init) => {
    const request = new Request(url, init);
    sent.push({ url: request.url, headers: request.headers });
    return fetch(url, init);
  };

  before(async () => {
    here.server = await start(CODER, AGENT, ODD);
    here.sent = sent;
    here.model = model(here.server, recording);
  });
  after(() => here.server.stop());

  const loop = (seen) => ({
    model: here.model(AGENT), prompt: PROMPT, maxRetries: 0, stopWhen: stepCountIs(5),
    tools: { get_weather: tool({ description: "Weather", inputSchema: City, execute: ({ city }) => { seen.push(city); return { degrees: 18 }; } }) },
  });
  const judged = (seen, steps, text) => {
    assert.deepEqual(seen, ["Paris"]);
    assert.equal(text, LOOP_END);
    assert.deepEqual(steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
    assert.deepEqual(steps[0].toolCalls.map((call) => [call.toolName, call.input]), [["get_weather", { city: "Paris" }]]);
    assert.equal(steps[0].text, "Let me look.");
    const { cacheReadTokens } = steps[1].usage.inputTokenDetails;
    assert.ok(cacheReadTokens > 0 && cacheReadTokens < steps[1].usage.inputTokens, `${cacheReadTokens} of ${steps[1].usage.inputTokens}`);
    assert.ok(steps.every((step) => step.usage.outputTokens > 0));
  };

  test(`${name}: generateText goes round a tool loop`, async () => {
    const seen = [];
    const result = await generateText(loop(seen));
    judged(seen, result.steps, result.text);
  });

  test(`${name}: streamText goes round a tool loop`, async () => {
    const seen = [], kinds = new Set(), faults = [];
    const result = streamText({ ...loop(seen), onError: ({ error }) => faults.push(error) });
    let streamed = "";
    for await (const part of result.fullStream) {
      kinds.add(part.type);
      if (part.type === "text-delta") streamed += part.text;
    }
    assert.deepEqual(faults, []);
    judged(seen, await result.steps, (await result.steps).at(-1).text);
    assert.equal(streamed, `Let me look.${LOOP_END}`);
    for (const kind of ["text-delta", "tool-input-start", "tool-input-delta", "tool-call", "tool-result", "finish-step"]) assert.ok(kinds.has(kind), kind);
  });

  test(`${name}: a real model must call, and its input obeys the schema`, async () => {
    const asked = {
      model: here.model(CODER), prompt: PARIS, temperature: 0, maxOutputTokens: 200, maxRetries: 0,
      tools: { get_weather: tool({ description: "Weather", inputSchema: Weather }) },
    };
    for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
      const whole = await generateText({ ...asked, toolChoice });
      const streamed = streamText({ ...asked, toolChoice });
      const calls = await streamed.toolCalls;
      for (const call of [...whole.toolCalls, ...calls]) {
        assert.ok(!call.invalid, String(call.error));
        Weather.parse(call.input);
      }
      assert.ok(whole.toolCalls.length > 0);
      assert.deepEqual(calls.map((c) => c.input), whole.toolCalls.map((c) => c.input));
      assert.equal(await streamed.finishReason, whole.finishReason);
    }
  });

  test(`${name}: objects obey their schema`, async () => {
    const asked = { model: here.model(CODER), prompt: INVENT, temperature: 0, maxOutputTokens: 300, maxRetries: 0 };
    Person.parse((await generateObject({ ...asked, schema: Person })).object);
    Person.parse((await generateText({ ...asked, output: Output.object({ schema: Person }) })).output);
    const streamed = streamObject({ ...asked, schema: Person });
    let partial = 0;
    for await (const _ of streamed.partialObjectStream) partial++;
    Person.parse(await streamed.object);
    assert.ok(partial > 1, "objects grow as they are made");
  });

  test(`${name}: a model's faults reach the caller, who bears them`, async () => {
    for (const word of ["EMOJI", "MALFORMED", "UNCLOSED", "UNKNOWN", "BARE", "FENCED", "AROUND", "TWO"]) {
      const asked = { model: here.model(ODD), prompt: word, maxRetries: 0, tools: { get_weather: tool({ description: "Weather", inputSchema: City }) } };
      const whole = await generateText(asked);
      const streamed = streamText(asked);
      const inputs = (calls) => calls.map((call) => [call.toolName, call.input]);
      assert.equal(await streamed.text, whole.text, word);
      assert.deepEqual(inputs(await streamed.toolCalls), inputs(whole.toolCalls), word);
      assert.equal(await streamed.finishReason, whole.finishReason, word);
      assert.equal(whole.finishReason, whole.toolCalls.length ? "tool-calls" : "stop", word);
      if (["BARE", "FENCED", "AROUND", "TWO"].includes(word)) {
        assert.equal(whole.toolCalls.length, word === "TWO" ? 2 : 1, word);
        assert.doesNotMatch(whole.text, MARKUP, word);
      }
    }
  });

  test(`${name}: an aborted stream stops the work`, async () => {
    const stop = new AbortController();
    const result = streamText({ model: here.model(ODD), prompt: "LONG", abortSignal: stop.signal, maxRetries: 0, onError: () => {} });
    let parts = 0;
    for await (const part of result.fullStream) {
      if (part.type === "text-delta" && parts++ === 2) stop.abort();
    }
    assert.ok(parts > 2 && parts < 60, `${parts} parts`);
    await here.server.idle(ODD);
  });

  test(`${name}: errors carry the status and say what is wrong`, async () => {
    const unknown = await failure(generateText({ model: here.model("nope"), prompt: "hi", maxRetries: 0 }));
    assert.ok(APICallError.isInstance(unknown), String(unknown));
    assert.match(unknown.message, /nope/);
    const nowhere = { type: "object", properties: { x: { $ref: "#/nowhere" } } };
    const refused = await failure(generateText({
      model: here.model(CODER), prompt: "hi", maxRetries: 0, toolChoice: "required", tools: { odd: tool({ inputSchema: jsonSchema(nowhere) }) } }));
    assert.ok(APICallError.isInstance(refused), String(refused));
    assert.equal(refused.statusCode ?? null, status);
    assert.equal(refused.isRetryable, false);
    assert.match(refused.message, /nowhere/);
    assert.match(refused.responseBody, /tools[.[]0/);
  });

  return here;
}
