"""Hearth and llama.cpp in turn on the same files, on the same machine: one command, one table of ratios.

    python -m venv venv && venv/bin/pip install -r bench/requirements.txt
    cargo build --release && bench/llamacpp.sh
    venv/bin/python bench/synthetic.py --tokenizer SmolLM2-135M-Instruct.Q4_1.gguf --quantize LLAMACPP/llama-quantize --to MODELS
    venv/bin/python bench/peers.py --hearth target/release/hearth --llamacpp LLAMACPP --models MODELS --out peers.json

LLAMACPP is the folder that bench/llamacpp.sh prints. Four parts, `--only` takes some of them:
  engine       prefill, decode, depth and batches: `hearth bench model` against llama-bench and llama-batched-bench
  agents       8 sessions of 6 turns: `hearth bench load` against both servers
  start        process start to the first token, once the machine has seen the file
  speculation  bench/rewrite.py: Hearth with speculation against Hearth without

llama.cpp's flags are chosen for each row, by one run each: `-fa on` or `off`, and where a prompt is computed then the width of a step. The best run in turn
with Hearth. Each pair of runs stands beside a probe of the machine by `hearth bench`; a pair whose memory probe is more than 15 % under the best of its model
is run again, `--repeats` times at most. The table has medians, and the ratio of the medians (for speculation: the median of the pairs' ratios too).

--out is written after each pair of runs, so that a run can be ended at any time; rows that a run does not measure stay as they are in the file. What fails
is told and left out, and the exit status is 1.
"""
import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rewrite
from peer_results import Results, line
from servers import Hearth, LlamaServer, first_token, rss_mib

SMOLLM2 = "SmolLM2-135M-Instruct"
QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m"
# File, depths, batches.
ENGINE = [
    (f"{SMOLLM2}.Q4_1", [2048], [8, 16]),
    (f"{SMOLLM2}.Q4_0", [], [8, 16]),
    (f"{SMOLLM2}.Q8_0", [], []),
    (QWEN, [1024], [8, 16]),
    ("qwen2.5-coder-0.5b-instruct-q4_k_m", [], []),
    ("gemma-3-270m-q4_k_m", [], []),
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
# Seconds after which a measuring program is taken for stuck.
STUCK = 600
BEGUN = time.monotonic()


def say(text):
    seconds = int(time.monotonic() - BEGUN)
    print(f"{seconds // 60:3}:{seconds % 60:02}  {text}", file=sys.stderr, flush=True)


def call(command, check=True):
    """Runs a measuring program; its standard output. What it said is told when it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=STUCK)
    if check and done.returncode:
        raise ChildProcessError(f"{Path(command[0]).name} ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


class LlamaCpp:
    """llama.cpp's own measuring programs; every row has its best flags."""

    def __init__(self, folder, path, threads):
        self.folder, self.path, self.threads = folder, path, threads
        self.best, self.tried = {}, {}

    def run(self, row, flags):
        kind, count, depth = row
        common = ["-m", self.path, "-t", self.threads, *flags]
        if kind == "batch":
            tool, more = "llama-batched-bench", ["-npp", "32", "-ntg", "32", "-npl", count, "-c", "2048", "--output-format", "jsonl"]
        else:
            tool, more = "llama-bench", ["-r", "1", "-d", depth, "-o", "jsonl"]
            more += ["-p", count, "-n", "0"] if kind == "prefill" else ["-p", "0", "-n", count]
        lines = [line for line in call([self.folder / tool, *common, *more]).splitlines() if line.startswith("{")]
        result = json.loads(lines[-1])
        return result["speed_tg"] if kind == "batch" else result["avg_ts"]

    def choose(self, row):
        """One run with each choice of attention, then one with the better of them and a narrower step, where a step's width matters."""
        tried = {}

        def measure(*flags):
            tried[flags] = self.run(row, flags)
            say(f"{self.path.stem}, {name_of(row)}: llama.cpp {' '.join(flags)}: {tried[flags]:.1f} tok/s")

        for attention in ("on", "off"):
            measure("-fa", attention)
        if row[0] == "prefill":
            measure(*max(tried, key=tried.get), "-ub", "128")
        self.best[row] = max(tried, key=tried.get)
        self.tried[row] = {" ".join(flags): value for flags, value in tried.items()}


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
        # Pairs are repeated here, both of them.
        call([options.hearth, "bench", "model", "--model", path, "--threads", options.threads, "--runs", "1", "--repeats", "0", "--prompt", "512",
              "--tokens", "128", "--depth", ",".join(map(str, depths)), "--batch", ",".join(map(str, batches)), "--json", out])
        report = json.loads(out.read_text())
    values = {row["name"]: row["value"] for row in report["rows"]}
    return {row: values[name_of(row)] for row in rows}, report["probe"]


def engine(options, results, attempt):
    for stem, depths, batches in ENGINE:
        rows = [("prefill", 512, 0), ("decode", 128, 0)]
        rows += [("decode", 128, depth) for depth in depths] + [("batch", count, 0) for count in batches]
        path = model_path(options, stem)
        if path:
            with attempt(stem):
                engine_model(options, results, path, rows)


def engine_model(options, results, path, rows):
    stem, theirs = path.stem, LlamaCpp(options.llamacpp, path, options.threads)
    for row in rows:
        theirs.choose(row)
    pairs, probes, again = [], [], 0
    while len(pairs) < options.runs:
        ours, probe = hearth_model(options, path, rows)
        pair = {row: (ours[row], theirs.run(row, theirs.best[row])) for row in rows}
        best = max([probe["read_gb_s"], *(p["read_gb_s"] for p in probes)])
        if probe["read_gb_s"] < (1 - OFF) * best and again < options.repeats:
            again += 1
            say(f"{stem}: memory read at {probe['read_gb_s']:.1f} GB/s, against {best:.1f} before: once more")
            continue
        pairs.append(pair)
        probes.append(probe)
        figures = ", ".join(f"{name_of(row)} {a:.1f} / {b:.1f} = {a / b:.2f}" for row, (a, b) in pair.items())
        say(f"{stem}, pair {len(pairs)} of {options.runs}, memory read at {probe['read_gb_s']:.1f} GB/s: {figures}")
        done = len(pairs) == options.runs
        for row in rows:
            kept = results.put("engine", stem, name_of(row), "tok/s", [p[row] for p in pairs], done,
                               flags=" ".join(theirs.best[row]), tried=theirs.tried[row], probes=probes, repeated=again)
            if done:
                print(line(kept), flush=True)


def load(options, server, limit):
    """The agents of `hearth bench load` against a server: value and unit by row."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        # Its status says whether any turn ended well, which the rows do too.
        call([options.hearth, "bench", "load", "--url", server.base, "--scenario", "agents", "--repeats", "0", "--time-limit", limit, "--json", out], check=False)
        report = json.loads(out.read_text())
    values = {row["name"]: (row.get("value"), row["unit"]) for row in report["rows"]}
    values["resident memory"] = (rss_mib(server), "MiB")
    return values, report["probe"]


def told(values):
    """A load run in words."""
    late, failed = values["turns not ended in time"][0], values["failed turns"][0]
    return f"{values['turns that ended well'][0]:.0f} turns ended well in {values['wall'][0]:.1f} s" + (f", {late:.0f} not ended" if late else "") + (f", {failed:.0f} failed" if failed else "")


def agents(options, results, attempt):
    path = model_path(options, AGENTS)
    if not path:
        return
    limit = options.agents_limit
    with tempfile.TemporaryDirectory() as data, attempt("agents"):
        def ours():
            server = Hearth(options.hearth, path, options.threads, data=data)
            with contextlib.closing(server):
                return load(options, server, limit)

        def theirs(flags):
            server = LlamaServer(options.llamacpp, path, options.threads, flags)
            with contextlib.closing(server):
                return load(options, server, limit)

        tried = []
        for flags in AGENT_FLAGS:
            values, _ = theirs(flags)
            tried.append((values["turns that ended well"][0], -values["wall"][0], flags))
            say(f"agents: llama-server {' '.join(flags)}: {told(values)}")
        flags = max(tried)[2]
        pairs, probes = [], []
        for run in range(1, options.runs + 1):
            (a, probe), (b, _) = ours(), theirs(flags)
            pairs.append((a, b))
            probes.append(probe)
            say(f"agents, pair {run} of {options.runs}: Hearth {told(a)}; llama-server {told(b)}")
            put_agents(results, pairs, probes, limit, run == options.runs, " ".join(flags))


def put_agents(results, pairs, probes, limit, done, flags):
    ended = all(b["turns not ended in time"][0] == 0 for _, b in pairs)
    for name, (_, unit) in pairs[0][0].items():
        values = [(a[name][0], b[name][0]) for a, b in pairs]
        if any(value is None for pair in values for value in pair):
            continue
        more = {"flags": flags, "probes": probes}
        if not ended and name == "wall":
            more |= {"at_least": True, "note": f"llama-server had not ended after {limit:g} s"}
        elif not ended:
            # Those of the turns that ended are no measure of the others.
            more |= {"compared": False, "note": "llama.cpp: of what had ended"}
        kept = results.put("agents", AGENTS, f"agents: {name}", unit, values, done, **more)
        if done:
            print(line(kept), flush=True)


def start(options, results, attempt):
    for stem in START:
        path = model_path(options, stem)
        if path:
            with tempfile.TemporaryDirectory() as data, attempt(f"start of {stem}"):
                start_model(options, results, path, data)


def start_model(options, results, path, data):
    def timed(make):
        begun = time.perf_counter()
        with contextlib.closing(make()) as server:
            first_token(server.base)
            return time.perf_counter() - begun

    pairs = []
    for run in range(options.runs + 1):
        ours = timed(lambda: Hearth(options.hearth, path, options.threads, data=data))
        theirs = timed(lambda: LlamaServer(options.llamacpp, path, options.threads, ["-c", "8192"]))
        # The first start of each writes or reads files for the ones after it.
        if run:
            pairs.append((ours, theirs))
            say(f"start of {path.stem}, pair {run} of {options.runs}: {ours:.2f} s, {theirs:.2f} s")
            kept = results.put("start", path.stem, "second start to first token", "s", pairs, run == options.runs)
    print(line(kept), flush=True)


def speculation(options, results, attempt):
    path = model_path(options, QWEN)
    if not path:
        return
    with attempt("speculation"), rewrite.both(options.hearth, path, options.threads) as servers:
        for name in rewrite.WORKLOADS:
            pairs = []
            for pair in rewrite.pairs(servers, name, options.speculation_pairs, max_tokens=260, seed=1):
                pairs.append(pair)
                say(f"{name}, pair {len(pairs)} of {options.speculation_pairs}: on {pair['on']:.1f} tok/s, off {pair['off']:.1f} tok/s, {pair['ratio']:.2f}")
                drafted, accepted = (sum(pair[count] for pair in pairs) for count in ("drafted", "accepted"))
                kept = results.put("speculation", path.stem, name, "tok/s", [(pair["on"], pair["off"]) for pair in pairs],
                                   len(pairs) == options.speculation_pairs, names=("on", "off"), drafted=drafted, accepted=accepted)
            print(f"{line(kept)}  median of the pairs' ratios {kept['ratio']:.2f}", flush=True)


def model_path(options, stem):
    path = options.models / f"{stem}.gguf"
    if options.model and options.model not in stem:
        return None
    if not path.exists():
        say(f"skipped {stem}: {path} is not there")
        return None
    return path


PARTS = {"engine": engine, "agents": agents, "start": start, "speculation": speculation}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", required=True, type=Path, help="a release build")
    parser.add_argument("--llamacpp", required=True, type=Path, help="the folder that bench/llamacpp.sh prints")
    parser.add_argument("--models", required=True, type=Path, help="the folder with the model files")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs")
    parser.add_argument("--speculation-pairs", type=int, default=9, help="pairs of answers of each kind, with speculation and without")
    parser.add_argument("--repeats", type=int, default=2, help="most pairs of a model that are run again because the machine was off")
    parser.add_argument("--agents-limit", type=float, default=90, help="seconds after which a run of the agents is ended, answered or not")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (several: repeat it)")
    parser.add_argument("--model", help="only files whose name holds this")
    parser.add_argument("--commit", default="", help="the commit that was built, for the record")
    parser.add_argument("--out", type=Path, help="JSON file to merge the rows into")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results = Results(options.out, {"commit": options.commit, "threads": options.threads})
    failed = []

    @contextlib.contextmanager
    def attempt(what):
        """One model's fault does not cost the others."""
        try:
            yield
        except Exception as error:
            say(f"failed: {what}: {error!r}")
            failed.append(what)

    for part in options.only or PARTS:
        PARTS[part](options, results, attempt)
    say("all is done" if not failed else f"failed: {', '.join(failed)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
