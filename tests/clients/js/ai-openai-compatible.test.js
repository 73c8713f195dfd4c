// Vercel's `ai` through `@ai-sdk/openai-compatible`, unmodified.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, streamText } from "ai";
import { AGENT, CODER, INVENT, LOOP_END } from "./server.js";
import { judge } from "./vercel.js";

const here = judge("openai-compatible", (server, fetch) => createOpenAICompatible({
  name: "hearth", baseURL: `${server.base}/v1`, fetch, includeUsage: true, supportsStructuredOutputs: true, headers: { "x-session-affinity": "ses_1" },
}));

test("thoughts are told apart from text, streamed and not", async () => {
  const asked = { model: here.model(AGENT), prompt: "What is the weather in Paris?" };
  const whole = await generateText(asked);
  assert.equal(whole.reasoningText, "The user wants the weather, so I ask the tool.");
  const streamed = streamText(asked);
  assert.equal(await streamed.reasoningText, whole.reasoningText);
  assert.equal(await streamed.text, whole.text);
  assert.equal((await streamed.usage).outputTokenDetails.reasoningTokens, whole.usage.outputTokenDetails.reasoningTokens);
});

test("the session's header was sent with each request", () => {
  assert.ok(here.sent.length > 0 && here.sent.every(({ headers }) => headers.get("x-session-affinity") === "ses_1"));
});

test("a provider that asks for any JSON gets JSON", async () => {
  const plain = createOpenAICompatible({ name: "hearth", baseURL: `${here.server.base}/v1` });
  const { output } = await generateText({ model: plain(CODER), prompt: INVENT, temperature: 0, maxOutputTokens: 300, output: Output.json() });
  assert.equal(typeof output, "object");
});

test("Workers AI's base URL serves it too", async () => {
  const cloud = createOpenAICompatible({ name: "cloud", baseURL: `${here.server.base}/client/v4/accounts/any/ai/v1` });
  const { text } = await generateText({ model: cloud(AGENT), messages: [
    { role: "user", content: "What is the weather in Paris?" }, { role: "assistant", content: "Let me see." }, { role: "user", content: "Well?" }] });
  assert.equal(text, LOOP_END);
});
