// Starts the built binary (HEARTH_BIN) on real models (HEARTH_TEST_MODELS); ended by its own process id.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { mkdtempSync, openSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const CHAT = "smollm2";
export const EMBED = "minilm";
export const ACCOUNT = "acc";

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

export async function start() {
  const models = process.env.HEARTH_TEST_MODELS;
  const port = await freePort();
  const data = mkdtempSync(join(tmpdir(), "hearth-js-"));
  const log = openSync(join(data, "server.log"), "w");
  const child = spawn(
    process.env.HEARTH_BIN,
    [
      "serve", "--listen", `127.0.0.1:${port}`, "--data-dir", data,
      "--model", `${CHAT}=${join(models, "SmolLM2-135M-Instruct.Q4_1.gguf")}`,
      "--model", `${EMBED}=${join(models, "all-MiniLM-L6-v2")}`,
    ],
    { stdio: ["ignore", log, log] },
  );
  const base = `http://127.0.0.1:${port}`;
  for (let tries = 0; ; tries++) {
    if (child.exitCode !== null || tries > 2400) {
      throw new Error(`the server did not start: ${readFileSync(join(data, "server.log"))}`);
    }
    const healthy = await fetch(`${base}/healthz`).then((r) => r.ok, () => false);
    if (healthy) break;
    await pause(50);
  }
  const stop = () =>
    new Promise((resolve) => {
      child.on("exit", resolve);
      child.kill("SIGTERM");
    });
  const running = async () => {
    const text = await fetch(`${base}/metrics`).then((r) => r.text());
    return Number(text.match(new RegExp(`hearth_requests_running\\{model="${CHAT}"\\} (\\d+)`))[1]);
  };
  return { base, stop, running };
}
