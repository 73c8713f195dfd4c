// Vercel's `ai` through `@ai-sdk/anthropic`, unmodified.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { once } from "node:events";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { AGENT, City, LOOP_END, start } from "./server.js";
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

// The package asks for an object by a forced call, one at a time, which Gemini has no word for.
test("an object comes from a model of another dialect", async () => {
  const asked = [];
  const provider = createServer(async (request, response) => {
    const body = [];
    for await (const piece of request) body.push(piece);
    asked.push(JSON.parse(Buffer.concat(body)));
    const [{ functionDeclarations: [{ name }] }] = asked.at(-1).tools;
    const parts = [{ functionCall: { name, args: { city: "Oslo" } } }];
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({
      candidates: [{ content: { role: "model", parts }, finishReason: "STOP" }],
      usageMetadata: { promptTokenCount: 9, candidatesTokenCount: 5, totalTokenCount: 14 },
    }));
  });
  provider.listen(0, "127.0.0.1");
  await once(provider, "listening");
  const config = `
[providers.google-ai-studio]
base-url = "http://127.0.0.1:${provider.address().port}"
keys = [{ key = "of-the-provider" }]
`;
  const server = await start({ config });
  try {
    const anthropic = createAnthropic({ baseURL: `${server.base}/v1`, apiKey: "unused" });
    const model = anthropic("google-ai-studio/gemini-2.5-flash");
    const { object } = await generateObject({ model, schema: City, prompt: "Where?", maxRetries: 0 });
    assert.deepEqual(object, { city: "Oslo" });
    assert.equal(asked[0].toolConfig.functionCallingConfig.mode, "ANY");
  } finally {
    await server.stop();
    provider.close();
  }
});
