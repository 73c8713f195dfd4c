// @google/genai, unmodified, before a Hearth whose provider is a Gemini that answers from this script.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { FunctionCallingConfigMode, GoogleGenAI, Type } from "@google/genai";
import { failure, start } from "./server.js";

const KEY = "of-the-provider";
const MODEL = "gemini-2.5-flash";
const USAGE = { promptTokenCount: 10, cachedContentTokenCount: 4, candidatesTokenCount: 3, thoughtsTokenCount: 2, totalTokenCount: 15 };
const CALL = { functionCall: { name: "weather", args: { city: "Zürich 語🦀" } }, thoughtSignature: "c2ln" };

const chunk = (parts, more) => ({
  candidates: [{ content: { parts, role: "model" }, index: 0, ...more }],
  usageMetadata: USAGE,
  responseId: "r1",
  modelVersion: MODEL,
});

/** What the provider was sent, the newest last. */
const seen = [];
let provider, server, client;

/** Answers with a call where tools are offered, else with the words of the last part, in two chunks. */
function answered(path, asked) {
  if (path.includes(":countTokens")) return { totalTokens: 7 };
  const vector = { values: [0.5, 0.25] };
  if (path.includes("mbedContent")) return { embeddings: [vector], embedding: vector };
  const last = asked.contents.at(-1).parts.at(-1);
  if (asked.tools && !last.functionResponse) {
    return [chunk([{ text: "I look." }]), chunk([CALL], { finishReason: "STOP" })];
  }
  const words = last.text ?? JSON.stringify(last.functionResponse.response);
  return [chunk([{ text: words.slice(0, 1) }]), chunk([{ text: words.slice(1) }], { finishReason: "STOP" })];
}

before(async () => {
  provider = createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const asked = JSON.parse(Buffer.concat(pieces).toString());
    seen.push({ path: request.url, key: request.headers["x-goog-api-key"], asked });
    const refused = asked.contents?.at(-1).parts?.at(-1).text === "refuse";
    const answer = refused ? { error: { code: 429, message: "Quota.", status: "RESOURCE_EXHAUSTED" } } : answered(request.url, asked);
    const streamed = request.url.includes(":streamGenerateContent") && !refused;
    const whole = Array.isArray(answer)
      ? chunk(answer.flatMap((each) => each.candidates[0].content.parts), { finishReason: "STOP" })
      : answer;
    response.writeHead(refused ? 429 : 200, { "content-type": streamed ? "text/event-stream" : "application/json" });
    response.end(streamed ? answer.map((each) => `data: ${JSON.stringify(each)}\r\n\r\n`).join("") : JSON.stringify(whole));
  });
  await new Promise((resolve) => provider.listen(0, "127.0.0.1", resolve));
  const config = `
[providers.google-ai-studio]
base-url = "http://127.0.0.1:${provider.address().port}"
keys = [{ key = "${KEY}" }]
`;
  server = await start({ config });
  const baseUrl = `${server.base}/v1/default/default/google-ai-studio`;
  client = new GoogleGenAI({ apiKey: "unused", httpOptions: { baseUrl } });
});

after(async () => {
  await server?.stop();
  provider?.close();
});

test("an answer and its usage come back, and the provider's key goes there", async () => {
  const answer = await client.models.generateContent({ model: MODEL, contents: "語🦀 hello" });
  assert.equal(answer.text, "語🦀 hello");
  assert.equal(answer.usageMetadata.cachedContentTokenCount, 4);
  assert.equal(answer.usageMetadata.totalTokenCount, 15);
  assert.match(seen.at(-1).path, /^\/v1(beta)?\/models\/gemini-2\.5-flash:generateContent/);
  assert.equal(seen.at(-1).key, KEY);
});

test("a stream comes event by event", async () => {
  const chunks = [];
  for await (const each of await client.models.generateContentStream({ model: MODEL, contents: "語🦀 hello" })) {
    chunks.push(each);
  }
  assert.equal(chunks.length, 2);
  assert.equal(chunks.map((each) => each.text).join(""), "語🦀 hello");
  assert.equal(chunks.at(-1).usageMetadata.totalTokenCount, 15);
});

test("a call and its result go round in a chat, the proof of the thoughts included", async () => {
  const weather = { name: "weather", parameters: { type: Type.OBJECT, properties: { city: { type: Type.STRING } } } };
  const config = {
    tools: [{ functionDeclarations: [weather] }],
    toolConfig: { functionCallingConfig: { mode: FunctionCallingConfigMode.AUTO } },
  };
  const chat = client.chats.create({ model: MODEL, config });
  const first = await chat.sendMessage({ message: "How is it?" });
  assert.deepEqual(first.functionCalls.map(({ name, args }) => ({ name, args })), [CALL.functionCall]);
  const result = { functionResponse: { name: "weather", response: { sky: "rain" } } };
  let text = "";
  for await (const each of await chat.sendMessageStream({ message: [result] })) text += each.text ?? "";
  assert.deepEqual(JSON.parse(text), { sky: "rain" });
  const parts = seen.at(-1).asked.contents.flatMap((content) => content.parts);
  assert.ok(parts.some((part) => part.thoughtSignature === CALL.thoughtSignature));
});

test("counting and embedding pass", async () => {
  const counted = await client.models.countTokens({ model: MODEL, contents: "a" });
  assert.equal(counted.totalTokens, 7);
  const embedded = await client.models.embedContent({ model: "gemini-embedding-001", contents: "a" });
  assert.deepEqual(embedded.embeddings[0].values, [0.5, 0.25]);
});

test("a refusal is the SDK's error with the provider's status", async () => {
  const error = await failure(client.models.generateContent({ model: MODEL, contents: "refuse" }));
  assert.equal(error.name, "ApiError");
  assert.equal(error.status, 429);
  assert.match(error.message, /RESOURCE_EXHAUSTED/);
});
