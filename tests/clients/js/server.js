// What the judges share: the built binary (HEARTH_BIN) over real models (HEARTH_TEST_MODELS) and scripts, and the
// tools and schemas that every client is asked with. A server is ended by its own process id.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { mkdtempSync, openSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { z } from "zod";

export const CHAT = "smollm2";
export const EMBED = "minilm";
export const CODER = "coder";
export const AGENT = "agent";
export const ODD = "odd";
export const ACCOUNT = "acc";

const models = process.env.HEARTH_TEST_MODELS;
const scripts = join(process.env.HEARTH_ROOT ?? join(import.meta.dirname, "..", "..", ".."), "fixtures", "scripts");
const FILES = {
  [CHAT]: () => join(models, "SmolLM2-135M-Instruct.Q4_1.gguf"),
  [EMBED]: () => join(models, "all-MiniLM-L6-v2"),
  [CODER]: () => join(models, "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
  [AGENT]: () => `script:${join(scripts, "tool-loop.json")}`,
  [ODD]: () => `script:${join(scripts, "odd-answers.json")}`,
};

export const PARIS = "What is the weather in Paris in celsius?";
/** A tool's arguments, as zod has them and as JSON Schema. */
export const City = z.object({ city: z.string() }).strict();
export const Weather = z.object({ city: z.string(), unit: z.enum(["celsius", "fahrenheit"]) }).strict();
export const WEATHER_SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, unit: { enum: ["celsius", "fahrenheit"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};
/** A schema with nesting, alternatives, null, bounds, enums and lists. */
export const Person = z.object({
  name: z.string().max(40),
  age: z.number().int().min(1).max(120),
  kind: z.enum(["friend", "colleague"]),
  address: z.object({ street: z.string().max(40), number: z.number().int() }).nullable(),
  contact: z.union([z.object({ phone: z.string().max(20) }), z.object({ mail: z.string().max(30) })]),
  tags: z.array(z.string().max(12)).max(3),
});
export const INVENT = "Invent a person who lives at Main Street 5. Answer in JSON.";
/** What no client may ever see in a text. */
export const MARKUP = /<\/?tool_call>|<\/?think>|<\|im_(start|end)\|>/;
/** What fixtures/scripts/tool-loop.json ends with. */
export const LOOP_END = "It is 18 degrees in Paris.";

const freePort = () =>
  new Promise((resolve, reject) => {
    const server = createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Starts a server with these models: the names above, or [name, file]; {config} is the text of its settings. */
export async function start(...wanted) {
  const names = wanted.filter((one) => typeof one === "string" || Array.isArray(one));
  const settings = wanted.find((one) => !names.includes(one))?.config;
  const port = await freePort();
  const data = mkdtempSync(join(tmpdir(), "hearth-js-"));
  const configured = [];
  if (settings !== undefined) {
    configured.push("--config", join(data, "hearth.toml"));
    writeFileSync(configured[1], settings);
  }
  const log = openSync(join(data, "server.log"), "w");
  const loaded = names.map((name) => (Array.isArray(name) ? name : [name, FILES[name]()]));
  const child = spawn(
    process.env.HEARTH_BIN,
    [
      "serve", "--listen", `127.0.0.1:${port}`, "--data-dir", data, ...configured,
      ...loaded.flatMap(([name, file]) => ["--model", `${name}=${file}`]),
    ],
    { stdio: ["ignore", log, log] },
  );
  const base = `http://127.0.0.1:${port}`;
  for (let tries = 0; ; tries++) {
    if (child.exitCode !== null || tries > 2400) {
      throw new Error(`the server did not start: ${readFileSync(join(data, "server.log"))}`);
    }
    // A server without models answers, and says that it is not ready.
    const healthy = await fetch(`${base}/healthz`).then((r) => r.ok || names.length === 0, () => false);
    if (healthy) break;
    await pause(50);
  }
  const stop = () =>
    new Promise((resolve) => {
      child.on("exit", resolve);
      child.kill("SIGTERM");
    });
  const sample = async (name, model) => {
    const text = await fetch(`${base}/metrics`).then((r) => r.text());
    return Number(text.match(new RegExp(`^${name}\\{model="${model}"\\} (\\S+)`, "m"))[1]);
  };
  /** Waits until the model works on nothing: what is waited for has no event that a client could see. */
  const idle = async (model) => {
    for (let tries = 0; (await sample("hearth_requests_running", model)) > 0; tries++) {
      if (tries > 1500) throw new Error("the request still runs");
      await pause(20);
    }
  };
  return { base, stop, sample, idle };
}

/** The native form of a call's outcome: the error that it was refused with. */
export const failure = async (promise) => {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it was not refused");
};
