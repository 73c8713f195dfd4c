"""Hearth and other gateways in turn before the same upstream, each on one core: what a request costs.

    python -m venv litellm && litellm/bin/pip install 'litellm[proxy]==1.106.12'
    python -m venv sglang && sglang/bin/pip install sglang-router==0.3.2
    mkdir portkey && cd portkey && npm init -y && npm pkg set 'overrides.@hono/node-server=1.14.1' && npm install @portkey-ai/gateway@1.15.2
    cargo build --release && cargo build --release -p gateway --example traffic
    python bench/gateway.py --traffic target/release/examples/traffic --hearth target/release/hearth \\
        --litellm litellm/bin/litellm --portkey portkey/node_modules/@portkey-ai/gateway --sglang sglang/bin/python --out bench/results/gateway.json

The upstream and the client (one program, `crates/gateway/examples/traffic.rs`, one thread each) share core 0, the gateway has core 1, so figures are per
core. Before each row the upstream is asked directly, in the same minute. Rows: `small` (closed, 64 connections), `calm` (50 a second: what is added to a
request), `stream` (35 events, closed, 64 connections), `paced` (5 ms between events, 25 a second), `large` (257 KB, 16 connections).
CPU is user and system time of the gateway's processes for 1,000 requests; memory is their resident size at the end.

Hearth runs with a key that has a budget, a request limit and a token limit, with the ledger and a log of every request. `hearth (power-loss)` is the same with
`--durability power-loss`, `hearth (payloads)` the same with payloads in the logs, redacted, but for `large`. Peers run with their defaults and without keys, limits or a database.
"""
import argparse
import contextlib
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROWS = {
    # what, connections, rate
    "small": ("small", 64, 0),
    "calm": ("small", 4, 50),
    "stream": ("stream", 64, 0),
    "paced": ("paced", 8, 25),
    "large": ("large", 16, 0),
}
CLIENT, GATEWAY = 0, 1
TICK = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tree(pid):
    """A process and all its children."""
    pids, found = [pid], []
    while pids:
        pid = pids.pop()
        with contextlib.suppress(OSError):
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid):
    total = 0
    for pid in tree(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total / TICK


def rss_mb(pid):
    total = 0
    for pid in tree(pid):
        with contextlib.suppress(OSError, AttributeError):
            total += int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1))
    return total / 1000


class Gateway:
    """A gateway that runs on its core. `address`, `path`, `model` and `headers` are what the client asks with."""
    path, headers = "/v1/chat/completions", []

    def start(self, command, env=None, cwd=None):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["taskset", "-c", str(GATEWAY), *map(str, command)], stdout=self.log, stderr=self.log, env={**os.environ, **(env or {})}, cwd=cwd)
        begun = time.monotonic()
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() - begun > 120:
                self.log.seek(0)
                said = self.log.read().decode(errors="replace")[-1500:]
                self.close()
                raise ChildProcessError(f"{self.name} does not come up: {said}")
            time.sleep(0.1)

    def answers(self):
        body = json.dumps({"model": self.model, "messages": [{"role": "user", "content": "a"}]}).encode()
        headers = dict(header.split(": ", 1) for header in self.headers)
        request = urllib.request.Request(f"http://{self.address}{self.path}", body, {"content-type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Hearth(Gateway):
    name, model = "hearth", "custom-mock/mock"

    def __init__(self, options, upstream, bodies):
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        (folder / "prices.json").write_text(json.dumps(
            {"mock": {"litellm_provider": "custom-mock", "input_cost_per_token": 1e-9, "output_cost_per_token": 1e-9}}))
        (folder / "hearth.toml").write_text(f"""
prices = ["{folder}/prices.json"]
durability = "{self.durability}"
[providers.custom-mock]
base-url = "http://{upstream}/v1"
keys = [{{ key = "sk-mock" }}]
[logs]
payloads = {self.payloads}
""")
        config = ["--config", folder / "hearth.toml", "--data-dir", folder]
        limits = ["--budget", "1000000", "--requests-per-minute", "100000000", "--tokens-per-minute", "2000000000"]
        made = subprocess.run([options.hearth, *config, "keys", "create", "bench", *limits], capture_output=True, text=True, check=True)
        key = re.search(r"hearth_\w{43}", made.stdout).group(0)
        if not bodies:
            off = ["cf-aig-collect-log-payload: false"]
        else:
            off = []
        self.headers = [f"Authorization: Bearer {key}", 'cf-aig-metadata: {"team":"bench"}', *off]
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.start([options.hearth, *config, "serve", "--listen", self.address])

    durability, payloads = "process", "false"


class HearthPowerLoss(Hearth):
    name, durability = "hearth (power-loss)", "power-loss"


class HearthPayloads(Hearth):
    name, payloads = "hearth (payloads)", "true"


class LiteLlm(Gateway):
    name, model = "litellm", "mock"

    def __init__(self, options, upstream, bodies):
        self.folder = tempfile.TemporaryDirectory()
        config = Path(self.folder.name) / "config.yaml"
        config.write_text(json.dumps({"model_list": [
            {"model_name": "mock", "litellm_params": {"model": "openai/mock", "api_base": f"http://{upstream}/v1", "api_key": "sk-mock"}}]}))
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.start([options.litellm, "--config", config, "--host", "127.0.0.1", "--port", port, "--num_workers", "1"],
                   {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
                    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"})


class Portkey(Gateway):
    name, model = "portkey", "mock"

    def __init__(self, options, upstream, bodies):
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.headers = ["x-portkey-provider: openai", f"x-portkey-custom-host: http://{upstream}/v1", "Authorization: Bearer sk-mock"]
        self.start(["node", Path(options.portkey) / "build/start-server.js", f"--port={port}", "--headless"],
                   {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "localhost,127.0.0.1"})


class SglangRouter(Gateway):
    name, model = "sglang-router", "mock"

    def __init__(self, options, upstream, bodies):
        port, metrics = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.start([options.sglang, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", port, "--worker-urls", f"http://{upstream}",
                    "--policy", "cache_aware", "--prometheus-port", metrics])


GATEWAYS = {gateway.name: gateway for gateway in (Hearth, HearthPowerLoss, HearthPayloads, LiteLlm, Portkey, SglangRouter)}


def drive(options, address, path, model, row, headers, seconds):
    what, connections, rate = ROWS[row]
    command = ["taskset", "-c", str(CLIENT), options.traffic, "drive", address, path, model, what, connections, seconds, rate, *headers]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds + 120)
    if done.returncode:
        raise ChildProcessError(done.stderr.strip())
    return json.loads(done.stdout)


def measure(options, gateway, upstream, row, seconds):
    direct = drive(options, upstream, "/v1/chat/completions", "mock", row, [], min(seconds, 2))
    drive(options, gateway.address, gateway.path, gateway.model, row, gateway.headers, 1)
    before = cpu_seconds(gateway.process.pid)
    through = drive(options, gateway.address, gateway.path, gateway.model, row, gateway.headers, seconds)
    used = cpu_seconds(gateway.process.pid) - before
    through["cpu_per_1k"] = round(used / max(through["requests"], 1) * 1000, 4)
    through["rss_mb"] = round(rss_mb(gateway.process.pid), 1)
    return {"direct": direct, "through": through}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traffic", required=True, help="the program that is upstream and client")
    parser.add_argument("--hearth", help="the binary")
    parser.add_argument("--litellm", help="LiteLLM's command")
    parser.add_argument("--portkey", help="the folder of @portkey-ai/gateway")
    parser.add_argument("--sglang", help="the python that has sglang-router")
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS), help="rows")
    parser.add_argument("--rounds", type=int, default=3, help="how often each gateway is measured, in turn [default: 3]")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement [default: 4]")
    parser.add_argument("--out", help="JSON to write")
    options = parser.parse_args()
    have = {"hearth": options.hearth, "hearth (power-loss)": options.hearth, "hearth (payloads)": options.hearth, "litellm": options.litellm, "portkey": options.portkey,
            "sglang-router": options.sglang}
    names = [name for name, given in have.items() if given]
    port = free_port()
    address = f"127.0.0.1:{port}"
    upstream = subprocess.Popen(["taskset", "-c", str(CLIENT), options.traffic, "upstream", str(port)])
    results = {}
    try:
        for turn in range(options.rounds):
            for name in names:
                try:
                    begun = time.monotonic()
                    gateway = GATEWAYS[name](options, address, True)
                    started = round(time.monotonic() - begun, 1)
                except ChildProcessError as error:
                    print(error, file=sys.stderr)
                    continue
                try:
                    for row in options.only:
                        bodies = row != "large"
                        if name.startswith("hearth"):
                            gateway.headers = [h for h in gateway.headers if "payload" not in h] + ([] if bodies else ["cf-aig-collect-log-payload: false"])
                        result = measure(options, gateway, address, row, options.seconds)
                        results.setdefault(row, {}).setdefault(name, []).append({"start_s": started, **result})
                        through = result["through"]
                        print(f"{turn + 1} {row:7} {name:20} {through['rate']:9.0f}/s (direct {result['direct']['rate']:.0f})  {through['cpu_per_1k']:8.3f} CPU s/1k  "
                              f"p50 {through['whole_p50']:.2f} ms (direct {result['direct']['whole_p50']:.2f})  p99 {through['whole_p99']:.2f}  first {through['first_p50']:.2f}  "
                              f"{through['rss_mb']:.0f} MB  failed {through['failed']} {through['why']}", file=sys.stderr, flush=True)
                        if options.out:
                            save(options, results)
                finally:
                    gateway.close()
    finally:
        upstream.kill()
        upstream.wait()
    table(results)


def save(options, results):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
    Path(options.out).write_text(json.dumps(
        {"commit": commit, "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "machine": platform.machine(), "rows": results}, indent=1) + "\n")


def table(results):
    def median(runs, *path):
        def at(value):
            for name in path:
                value = value[name]
            return value
        return statistics.median(at(run) for run in runs)

    print("| row | gateway | requests/s | CPU s per 1,000 | p50 ms (direct) | p99 ms | first byte p50 ms (direct) | MB |\n|---|---|---|---|---|---|---|---|")
    for row, gateways in results.items():
        for name, runs in gateways.items():
            through = [median(runs, "through", field) for field in ("rate", "cpu_per_1k", "whole_p50", "whole_p99", "first_p50", "rss_mb")]
            direct = [median(runs, "direct", field) for field in ("whole_p50", "first_p50")]
            print(f"| {row} | {name} | {through[0]:,.0f} | {through[1]:.3f} | {through[2]:.2f} ({direct[0]:.2f}) | {through[3]:.2f} | {through[4]:.2f} ({direct[1]:.2f}) | {through[5]:.0f} |")


if __name__ == "__main__":
    main()
