// Vercel's `ai` through `@ai-sdk/anthropic`, unmodified.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { AGENT, City, LOOP_END } from "./server.js";
import { judge } from "./vercel.js";

const here = judge("anthropic", (server, fetch) => createAnthropic({ baseURL: `${server.base}/v1`, apiKey: "unused", fetch }));

test("thoughts go round a tool loop, streamed and not", async () => {
  const asked = {
    model: here.model(AGENT), prompt: "What is the weather in Paris?", stopWhen: stepCountIs(3), maxOutputTokens: 2048,
    tools: { get_weather: tool({ description: "Weather", inputSchema: City, execute: () => "18 degrees" }) },
    providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
  };
  const whole = await generateText(asked);
  const streamed = streamText(asked);
  for (const result of [whole, streamed]) {
    const steps = await result.steps;
    assert.equal(steps[0].reasoningText, "The user wants the weather, so I ask the tool.");
    assert.equal(steps.at(-1).text, LOOP_END);
  }
});
