"""One stream at a time: Hearth and llama.cpp in turn on the same file, over HTTP, on the same machine.

    python -m venv venv && venv/bin/pip install -r bench/requirements.txt
    venv/bin/python bench/single.py --hearth target/release/hearth --model MODEL.gguf [--runs 5] [--threads 2]

Each run starts a server, waits until it answers, and measures from outside, with a fresh prompt each time (no cache):
  start        process start to the first token of a 1-word prompt; not the first start, which packs the weights
  ttft         first token of a 32-token prompt
  prefill      tokens per second of a 512-token prompt, by its time to first token
  decode       tokens per second of 128 tokens after the first, from an empty context
  rss          resident memory afterwards
Beside each pair of runs stands a probe of the machine (memory read, float32 matrix product), since a shared machine's speed drifts.
Prints medians and the ratio, and writes them as JSON with --out.
"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy

from servers import Hearth, LlamaCpp


def probe():
    """Memory read in GB/s and float32 product in GFLOP/s, each the best of five."""
    block = numpy.ones(64 << 20, dtype=numpy.float32)
    a = numpy.ones((1024, 1024), dtype=numpy.float32)
    read, product = [], []
    for _ in range(5):
        t = time.perf_counter()
        block.max()
        read.append(block.nbytes / (time.perf_counter() - t) / 1e9)
        t = time.perf_counter()
        a @ a
        product.append(2 * 1024**3 / (time.perf_counter() - t) / 1e9)
    return {"read_gb_s": max(read), "product_gflop_s": max(product)}


def stream(base, prompt, max_tokens):
    """Times of the events of one streamed completion, in seconds from sending it."""
    body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    start, times = time.perf_counter(), []
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                choices = json.loads(line[6:]).get("choices")
                if choices and choices[0].get("finish_reason") is None:
                    times.append(time.perf_counter() - start)
    return times


def rss_mib(pid):
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def measure(start_server, rng):
    ids = lambda n: [rng.randrange(1000, 40000) for _ in range(n)]
    started = time.perf_counter()
    server = start_server()
    try:
        stream(server.base, ids(1), 1)
        start = time.perf_counter() - started
        stream(server.base, ids(64), 8)
        ttft = stream(server.base, ids(32), 1)[0]
        prefill = 512 / stream(server.base, ids(512), 1)[0]
        times = stream(server.base, ids(4), 129)
        # A piece of text may hold several tokens (bytes of one character): the count asked for is what ran.
        decode = 128 / (times[-1] - times[0])
        return {"start_s": start, "ttft_s": ttft, "prefill_tok_s": prefill, "decode_tok_s": decode, "rss_mib": rss_mib(server.process.pid)}
    finally:
        server.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    rng = random.Random(1)
    rows, probes = {Hearth.name: [], LlamaCpp.name: []}, []
    data = tempfile.TemporaryDirectory()
    ours = lambda: Hearth(options.hearth, options.model, options.threads, data=data.name)
    # Closing waits for what is written.
    ours().close()
    for run in range(options.runs):
        probes.append(probe())
        rows[Hearth.name].append(measure(ours, rng))
        rows[LlamaCpp.name].append(measure(lambda: LlamaCpp(options.model, options.threads), rng))
        print(f"run {run + 1} of {options.runs}", file=sys.stderr)
    summary = {}
    print(f"{Path(options.model).name}, {options.threads} threads, {options.runs} runs in turn, medians")
    print(f"{'':16}{'hearth':>12}{'llama.cpp':>12}{'ratio':>8}")
    for key in rows[Hearth.name][0]:
        mine, theirs = (statistics.median(r[key] for r in rows[name]) for name in rows)
        ratio = mine / theirs if key.endswith("tok_s") else theirs / mine
        summary[key] = {"hearth": mine, "llama.cpp": theirs, "times_better": ratio}
        print(f"{key:16}{mine:12.3f}{theirs:12.3f}{ratio:7.2f}x")
    for key in probes[0]:
        values = sorted(p[key] for p in probes)
        print(f"probe {key}: median {statistics.median(values):.1f}, from {values[0]:.1f} to {values[-1]:.1f}")
    if options.out:
        Path(options.out).write_text(json.dumps({
            "model": Path(options.model).name, "threads": options.threads, "runs": rows, "probes": probes, "summary": summary,
        }, indent=1) + "\n")


main()
