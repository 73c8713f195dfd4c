// The `openai` and `cloudflare` JavaScript clients, unmodified, against the built binary.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Cloudflare from "cloudflare";
import OpenAI from "openai";
import { ACCOUNT, CHAT, EMBED, start } from "./server.js";

const messages = [{ role: "user", content: "What is the capital of France? Answer in one short sentence." }];
const greedy = { model: CHAT, messages, temperature: 0, max_tokens: 32 };
let server, openai, cloudflare;

before(async () => {
  server = await start();
  openai = new OpenAI({ baseURL: `${server.base}/v1`, apiKey: "unused", maxRetries: 0 });
  cloudflare = new Cloudflare({ baseURL: `${server.base}/client/v4`, apiToken: "unused", maxRetries: 0 });
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
  for (let tries = 0; (await server.running()) > 0; tries++) {
    assert.ok(tries < 600, "the request still runs");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
});

test("errors name the field", async () => {
  await assert.rejects(openai.chat.completions.create({ ...greedy, temperature: 7 }), (e) => {
    assert.ok(e instanceof OpenAI.BadRequestError);
    assert.equal(e.param, "temperature");
    return true;
  });
  await assert.rejects(openai.chat.completions.create({ ...greedy, model: "nope" }), OpenAI.NotFoundError);
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
  assert.ok(ids.includes(CHAT) && ids.includes(EMBED));
});

test("cloudflare: run answers with the native shape", async () => {
  const result = await cloudflare.ai.run(CHAT, { account_id: ACCOUNT, messages, temperature: 0, max_tokens: 32 });
  assert.match(result.response, /Paris/);
  assert.equal(result.usage.total_tokens, result.usage.prompt_tokens + result.usage.completion_tokens);
});

test("cloudflare: embeddings", async () => {
  const result = await cloudflare.ai.run(EMBED, { account_id: ACCOUNT, text: ["one", "two"] });
  assert.deepEqual(result.shape, [2, 384]);
});

test("cloudflare: model search pages to its end", async () => {
  const names = [];
  for await (const model of cloudflare.ai.models.list({ account_id: ACCOUNT })) names.push(model.name);
  assert.deepEqual(names.sort(), [CHAT, EMBED].sort());
});

test("cloudflare: errors carry codes", async () => {
  await assert.rejects(cloudflare.ai.run("@cf/no/such-model", { account_id: ACCOUNT, prompt: "hi" }), (e) => {
    assert.equal(e.errors[0].code, 5007);
    return true;
  });
});
