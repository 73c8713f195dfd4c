"""Hearth and llama.cpp in turn on the same files, on the same machine: one command, one table of ratios.

    python -m venv venv && venv/bin/pip install -r bench/requirements.txt
    cargo build --release && bench/llamacpp.sh
    venv/bin/python bench/synthetic.py --tokenizer SmolLM2-135M-Instruct.Q4_1.gguf --quantize LLAMACPP/llama-quantize --to MODELS
    venv/bin/python bench/peers.py --hearth target/release/hearth --llamacpp LLAMACPP --models MODELS

LLAMACPP is the folder that bench/llamacpp.sh prints. Three parts, `--only` takes some of them:
  engine   prefill, decode, depth and batches: `hearth bench model` against llama-bench and llama-batched-bench
  agents   8 sessions of 6 turns: `hearth bench load` against both servers
  start    process start to the first token, once the machine has seen the file

llama.cpp's flags are chosen for each row: all of them are tried once, and the best of them runs in turn with Hearth.
Each pair of runs stands beside a probe of the machine by `hearth bench`; a pair whose memory probe is more than 15 % under the best
of the measurement is run again, up to as many times as there are runs. The table has medians, and the ratio of the medians.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from servers import Hearth, LlamaServer, first_token, rss_mib

SMOLLM2 = "SmolLM2-135M-Instruct"
QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m"
# File, depths, batches.
ENGINE = [
    (f"{SMOLLM2}.Q4_1", [2048], [8, 16]),
    (f"{SMOLLM2}.Q4_0", [], [8, 16]),
    (f"{SMOLLM2}.Q8_0", [], []),
    ("qwen2.5-coder-0.5b-instruct-q4_k_m", [], []),
    ("gemma-3-270m-q4_k_m", [], []),
    (QWEN, [1024], [8, 16]),
    ("llama-1b-random.Q8_0", [], []),
    ("llama-3b-random.Q4_0", [], []),
]
AGENTS = f"{SMOLLM2}.Q4_0"
START = [f"{SMOLLM2}.Q4_1", QWEN]
# The best that were found for llama-server under this load, and its defaults.
AGENT_FLAGS = [
    ["-np", "8", "-c", "32768", "-no-kvu", "-cram", "4096", "-fa", "off", "-b", "256", "-ub", "256"],
    ["-np", "8", "-c", "32768", "-no-kvu", "-cram", "4096", "-fa", "on"],
]
OFF = 0.15


def say(text):
    print(text, file=sys.stderr, flush=True)


class LlamaCpp:
    """llama.cpp's own measuring programs; every row has its best flags."""

    def __init__(self, folder, path, threads):
        self.folder, self.path, self.threads = folder, path, threads
        self.best = {}

    def run(self, row, flags):
        kind, count, depth = row
        common = ["-m", str(self.path), "-t", str(self.threads)]
        for name, value in flags:
            common += [name, value]
        if kind == "batch":
            tool, more = "llama-batched-bench", ["-npp", "32", "-ntg", "32", "-npl", str(count), "-c", "2048", "--output-format", "jsonl"]
        else:
            tool, more = "llama-bench", ["-r", "1", "-d", str(depth), "-o", "jsonl"]
            more += ["-p", str(count), "-n", "0"] if kind == "prefill" else ["-p", "0", "-n", str(count)]
        done = subprocess.run([self.folder / tool, *common, *more], capture_output=True, text=True, check=True)
        result = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
        return result["speed_tg"] if kind == "batch" else result["avg_ts"]

    def choices(self, row):
        attention = [("-fa", "on"), ("-fa", "off")]
        if row[0] == "decode" and not row[2]:
            return [[fa] for fa in attention]
        # The width of a step matters to whatever computes several rows at a time.
        widths = ["512", "128"] if row[0] == "prefill" else ["512"]
        return [[fa, ("-ub", width)] for fa in attention for width in widths]

    def choose(self, row):
        tried = {tuple(flags): self.run(row, flags) for flags in map(tuple, self.choices(row))}
        self.best[row] = max(tried, key=tried.get)
        return tried


def name_of(row):
    kind, count, depth = row
    if kind == "batch":
        return f"decode 32+32, batch {count}"
    return f"{kind} {count}" + (f" at depth {depth}" if depth else "")


def hearth_model(options, path, rows):
    """One run of all rows; figures by row, and the probe beside them."""
    depths = sorted({row[2] for row in rows if row[0] == "decode"})
    batches = sorted({row[1] for row in rows if row[0] == "batch"}) or [1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        subprocess.run(
            [options.hearth, "bench", "model", "--model", path, "--threads", str(options.threads), "--runs", "1",
             "--prompt", "512", "--tokens", "128", "--depth", ",".join(map(str, depths)), "--batch", ",".join(map(str, batches)), "--json", out],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        report = json.loads(out.read_text())
    values = {row["name"]: row["value"] for row in report["rows"]}
    return {row: values[name_of(row)] for row in rows}, report["probe"]


def engine(options):
    results = []
    for stem, depths, batches in ENGINE:
        path = options.models / f"{stem}.gguf"
        if not path.exists() or (options.model and options.model not in stem):
            say(f"skipped {stem}")
            continue
        rows = [("prefill", 512, 0), ("decode", 128, 0)]
        rows += [("decode", 128, depth) for depth in depths] + [("batch", count, 0) for count in batches]
        theirs = LlamaCpp(options.llamacpp, path, options.threads)
        tried = {row: theirs.choose(row) for row in rows}
        pairs, probes, again = [], [], 0
        while len(pairs) < options.runs:
            ours, probe = hearth_model(options, path, rows)
            pair = {row: (ours[row], theirs.run(row, theirs.best[row])) for row in rows}
            probes.append(probe)
            best = max(p["read_gb_s"] for p in probes)
            if probe["read_gb_s"] < (1 - OFF) * best and again < options.runs:
                again += 1
                say(f"{stem}: memory read at {probe['read_gb_s']:.1f} GB/s, against {best:.1f} before: once more")
                continue
            pairs.append(pair)
            say(f"{stem}: pair {len(pairs)} of {options.runs}")
        for row in rows:
            flags = " ".join(word for flag in theirs.best[row] for word in flag)
            results.append(result(stem, name_of(row), "tok/s", [p[row] for p in pairs], flags))
            results[-1]["tried"] = {" ".join(w for f in flags for w in f): value for flags, value in tried[row].items()}
        results[-1]["probes"] = probes
        results[-1]["repeated"] = again
    return results


def result(model, row, unit, pairs, flags=""):
    ours, theirs = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    ratio = ours / theirs if unit in ("tok/s", "%") else theirs / ours
    this = {"model": model, "row": row, "unit": unit, "hearth": ours, "llama.cpp": theirs, "times_better": ratio, "flags": flags, "pairs": pairs}
    print(f"{model:36} {row:34} {ours:9.2f} {theirs:9.2f} {unit:6} {ratio:6.2f}x  {flags}", flush=True)
    return this


def load(options, server):
    """The agents of `hearth bench load` against a server: its rows by name."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        subprocess.run([options.hearth, "bench", "load", "--url", server.base, "--scenario", "agents", "--json", out],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        report = json.loads(out.read_text())
    values = {row["name"]: (row["value"], row["unit"]) for row in report["rows"]}
    values["resident memory"] = (rss_mib(server), "MiB")
    return values


def agents(options):
    path = options.models / f"{AGENTS}.gguf"
    data = tempfile.TemporaryDirectory()

    def ours():
        server = Hearth(options.hearth, path, options.threads, data=data.name)
        try:
            return load(options, server)
        finally:
            server.close()

    def theirs(flags):
        server = LlamaServer(options.llamacpp, path, options.threads, flags)
        try:
            return load(options, server)
        finally:
            server.close()

    walls = [(theirs(flags), flags) for flags in AGENT_FLAGS]
    wall = next(name for name in walls[0][0] if name.startswith("wall"))
    for values, flags in walls:
        say(f"llama-server {' '.join(flags)}: {values[wall][0]:.1f} s")
    flags = min(walls, key=lambda tried: tried[0][wall][0])[1]
    pairs = []
    for run in range(options.runs):
        pairs.append((ours(), theirs(flags)))
        say(f"agents: pair {run + 1} of {options.runs}")
    results = []
    for name, (_, unit) in pairs[0][0].items():
        values = [(a[name][0], b[name][0]) for a, b in pairs if a[name][0] is not None and b.get(name, (None,))[0] is not None]
        if values and all(v[0] and v[1] for v in values):
            results.append(result(AGENTS, f"agents: {name}", unit, values, " ".join(flags)))
    return results


def start(options):
    results = []
    for stem in START:
        path = options.models / f"{stem}.gguf"
        pairs = []
        with tempfile.TemporaryDirectory() as data:
            for run in range(options.runs + 1):
                begun = time.perf_counter()
                server = Hearth(options.hearth, path, options.threads, data=data)
                first_token(server.base)
                ours = time.perf_counter() - begun
                server.close()
                begun = time.perf_counter()
                server = LlamaServer(options.llamacpp, path, options.threads, ["-c", "8192"])
                first_token(server.base)
                theirs = time.perf_counter() - begun
                server.close()
                # The first start of each writes or reads files for the ones after it.
                if run:
                    pairs.append((ours, theirs))
        results.append(result(stem, "second start to first token", "s", pairs))
    return results


PARTS = {"engine": engine, "agents": agents, "start": start}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", required=True, type=Path, help="a release build")
    parser.add_argument("--llamacpp", required=True, type=Path, help="the folder that bench/llamacpp.sh prints")
    parser.add_argument("--models", required=True, type=Path, help="the folder with the model files")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (several: repeat it)")
    parser.add_argument("--model", help="in `engine`, only files whose name holds this")
    parser.add_argument("--commit", default="", help="the commit that was built, for the record")
    parser.add_argument("--out", type=Path, help="write all of it as JSON; parts that were not run are kept")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    kept = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for part in options.only or PARTS:
        kept[part] = {"commit": options.commit, "threads": options.threads, "runs": options.runs, "rows": PARTS[part](options)}
        if options.out:
            options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
