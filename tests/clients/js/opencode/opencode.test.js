// The coding agent `opencode-ai`, unmodified and headless: with a script it reads and edits a file by its own tools; with
// HEARTH_PEERS a real model of coding sits behind it. Its provider is the bundled `@ai-sdk/openai-compatible`.
// The package is the one that `opencode-ai` installs for this platform: the whole agent, for any x86-64, and no other platform's.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { start } from "../server.js";

const agent = join(import.meta.dirname, "node_modules", "opencode-linux-x64-baseline", "bin", "opencode");
const root = process.env.HEARTH_ROOT ?? join(import.meta.dirname, "..", "..", "..", "..");

/** A proxy that lets nothing out and remembers what wanted to get there. */
const wall = () =>
  new Promise((resolve) => {
    const wanted = [];
    const server = createServer((request, response) => {
      wanted.push(request.url);
      response.writeHead(403).end();
    });
    server.on("connect", (request, socket) => {
      wanted.push(request.url);
      socket.on("error", () => {});
      socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
    });
    server.listen(0, "127.0.0.1", () => resolve({ url: `http://127.0.0.1:${server.address().port}`, wanted, close: () => server.close() }));
  });

/** Runs the agent once in a project with this file, a new one where no home is given; gives what it did. */
async function work(server, model, ask, name, content, home = mkdtempSync(join(tmpdir(), "hearth-opencode-"))) {
  const project = join(home, "project");
  mkdirSync(project, { recursive: true });
  writeFileSync(join(project, name), content);
  const config = {
    autoupdate: false,
    share: "disabled",
    model: `hearth/${model}`,
    small_model: `hearth/${model}`,
    permission: { edit: "allow", bash: "deny", webfetch: "deny", websearch: "deny" },
    provider: {
      hearth: {
        npm: "@ai-sdk/openai-compatible",
        name: "Hearth",
        options: { baseURL: `${server.base}/v1`, apiKey: "" },
        models: { [model]: { name: model, limit: { context: 32768, output: 1024 } } },
      },
    },
  };
  writeFileSync(join(project, "opencode.json"), JSON.stringify(config));
  const outside = await wall();
  const child = spawn(agent, ["run", "--format", "json", ask], {
    cwd: project,
    stdio: ["ignore", "pipe", "pipe"],
    env: {
      PATH: process.env.PATH, HOME: home, TMPDIR: tmpdir(),
      XDG_DATA_HOME: join(home, "data"), XDG_CONFIG_HOME: join(home, "config"), XDG_CACHE_HOME: join(home, "cache"), XDG_STATE_HOME: join(home, "state"),
      OPENCODE_DISABLE_AUTOUPDATE: "1", OPENCODE_DISABLE_MODELS_FETCH: "1", OPENCODE_DISABLE_DEFAULT_PLUGINS: "1",
      OPENCODE_DISABLE_SHARE: "1", OPENCODE_DISABLE_CLAUDE_CODE: "1", OPENCODE_DISABLE_EXTERNAL_SKILLS: "1",
      HTTP_PROXY: outside.url, HTTPS_PROXY: outside.url, http_proxy: outside.url, https_proxy: outside.url,
      NO_PROXY: "127.0.0.1,localhost", no_proxy: "127.0.0.1,localhost",
    },
  });
  let output = "", faults = "";
  child.stdout.on("data", (data) => (output += data));
  child.stderr.on("data", (data) => (faults += data));
  const code = await new Promise((resolve) => child.on("exit", resolve));
  outside.close();
  const events = output.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  assert.equal(code, 0, faults + output);
  assert.deepEqual(events.filter((event) => event.type === "error"), []);
  const parts = (type) => events.filter((event) => event.type === type).map((event) => event.part);
  return {
    home, wanted: outside.wanted, tools: parts("tool_use"), texts: parts("text").map((part) => part.text), steps: parts("step_finish"),
    file: readFileSync(join(project, name), "utf8"),
  };
}

test("a script's agent reads and edits a file by opencode's own tools", async () => {
  const server = await start(["agent", `script:${join(root, "fixtures", "scripts", "edit-a-file.json")}`]);
  try {
    const done = await work(server, "agent", "Mend the greeting in greeting.txt", "greeting.txt", "Hello, wrold!\n");
    assert.equal(done.file, "Hello, world!\n");
    assert.deepEqual(done.tools.map((part) => [part.tool, part.state.status]), [["read", "completed"], ["edit", "completed"]]);
    assert.match(done.tools[0].state.output, /Hello, wrold!/);
    assert.deepEqual(done.texts, ["I read the file first.", "Done: greeting.txt now says Hello, world!"]);
    assert.deepEqual(done.steps.map((step) => step.reason), ["tool-calls", "tool-calls", "stop"]);
    // Each step's prompt is the one before and a little more: nearly all of it was in the cache, and opencode shows that.
    for (const { tokens } of done.steps.slice(1)) assert.ok(tokens.cache.read > 10 * tokens.input, JSON.stringify(tokens));
    // In the background opencode asks the package registry for the types of plugins; here that is refused, and nothing waits for it.
    assert.deepEqual(done.wanted.filter((host) => !host.startsWith("registry.")), [], "nothing else beside the server was asked");
  } finally {
    await server.stop();
  }
});

test("a real model of coding: no protocol error, calls are executed, cached tokens are shown", { skip: !process.env.HEARTH_PEERS }, async () => {
  const file = join(process.env.HEARTH_TEST_MODELS, "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf");
  const server = await start(["coder", file]);
  try {
    const ask = "Use the read tool on greeting.txt, then say in one sentence what it says.";
    const first = await work(server, "coder", ask, "greeting.txt", "Hello, world!\n");
    const second = await work(server, "coder", ask, "greeting.txt", "Hello, moon!\n", first.home);
    for (const done of [first, second]) {
      console.log(JSON.stringify({ tools: done.tools.map((part) => [part.tool, part.state.status]), texts: done.texts, steps: done.steps.map((step) => [step.reason, step.tokens]) }));
      assert.ok(done.steps.length > 0);
      assert.ok(done.steps.every((step) => ["tool-calls", "stop", "length"].includes(step.reason)), JSON.stringify(done.steps));
      // A step that ended with calls has them carried out, whatever came of it.
      assert.equal(done.steps.some((step) => step.reason === "tool-calls"), done.tools.length > 0);
      for (const part of done.tools) assert.ok(["completed", "error"].includes(part.state.status), JSON.stringify(part));
    }
    // The long prompt of the same project, and of each further step, is in the cache, and opencode shows that.
    for (const { tokens } of [...first.steps.slice(1), ...second.steps]) assert.ok(tokens.cache.read > 1000, JSON.stringify(tokens));
  } finally {
    await server.stop();
  }
});
