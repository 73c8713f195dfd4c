"""Speculation on against off, in turn, on one model: files that are written again with a change, and fresh text.

    python bench/rewrite.py --hearth target/release/hearth --model MODEL.gguf [--pairs 9] [--threads 2] [--only rewrite|fresh]

Starts two Hearths on the same file, one with `--speculation on` and one with `off`, and asks one at a time, first one then the other, the order changing from pair to pair.
  rewrite      "here is a file, rename a function, print the whole file": each pair another file and another change
  fresh        an essay at temperature 0.9, each pair another subject; nothing to repeat
Speed is that of the tokens after the first, from the token count of the usage and the times of the stream's first and last piece. Greedy answers (rewrite) and seeded ones (fresh) must be the same on both.
Prints the ratio of each pair and their median, and fails if a median is under its limit (2 for rewrite, 0.97 for fresh). Writes JSON with --out, after each pair.
Needs nothing but Python's own library. bench/peers.py has the same as its part `speculation`.
"""
import argparse
import contextlib
import json
import random
import statistics
import sys
import time
import urllib.request
from pathlib import Path

from servers import ANSWER_LIMIT, Hearth

LIMITS = {"rewrite": 2.0, "fresh": 0.97}

NOUNS = ["order", "invoice", "parcel", "ticket", "sensor", "player", "recipe", "ledger", "route", "member", "voucher", "sample"]
VERBS = ["load", "merge", "count", "check", "rank", "split", "pack", "store"]
FIELDS = ["weight", "total", "status", "created", "owner", "score", "label", "limit"]
SUBJECTS = ["lighthouses", "the history of bread", "why cities have parks", "learning to sail", "rivers in winter", "old maps", "the first telescopes", "mountain railways", "how bees choose a home", "tea", "paper money", "desert nights"]


def source(rng):
    """A Python file of about 200 tokens, and two of its names."""
    noun, other = rng.sample(NOUNS, 2)
    a, b, c = rng.sample(FIELDS, 3)
    first, second, third = rng.sample(VERBS, 3)
    name = f"{first}_{noun}s"
    text = f'''import json
from pathlib import Path


def {name}(path, {a}=None):
    """Reads all {noun}s of a file."""
    rows = json.loads(Path(path).read_text())
    if {a} is not None:
        rows = [row for row in rows if row["{a}"] == {a}]
    return rows


def {second}_{other}(rows, {b}):
    result = {{}}
    for row in rows:
        key = row.get("{b}", "{other}")
        result.setdefault(key, []).append(row["{c}"])
    return {{key: sum(values) for key, values in result.items()}}


def {third}_report(path):
    rows = {name}(path)
    for key, value in {second}_{other}(rows, "{b}").items():
        print(f"{{key}}: {{value}}")
'''
    return text, name, f"read_{noun}_rows"


def rewrite(rng):
    text, old, new = source(rng)
    wish = f"Rename the function `{old}` to `{new}` everywhere and print the whole file, with no explanation.\n\n```python\n{text}```"
    return {"messages": [{"role": "user", "content": wish}], "temperature": 0}


def fresh(rng):
    wish = f"Write a thoughtful essay about {rng.choice(SUBJECTS)}, in long sentences of continuous prose."
    return {"messages": [{"role": "user", "content": wish}], "temperature": 0.9, "seed": rng.randrange(1 << 30)}


def ask(server, body, max_tokens):
    """The answer's text, its tokens, and tokens per second after the first."""
    body = {**body, "model": "m", "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(f"{server.base}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    text, times, tokens = "", [], 0
    with urllib.request.urlopen(request, timeout=ANSWER_LIMIT) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                piece = choice["delta"].get("content")
                if piece:
                    times.append(time.perf_counter())
                    text += piece
    return text, tokens, (tokens - 1) / (times[-1] - times[0])


def drafts(server):
    """Drafted and accepted tokens so far."""
    text = urllib.request.urlopen(server.base + "/metrics").read().decode()
    value = lambda name: sum(int(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))
    return value("hearth_drafted_tokens_total"), value("hearth_accepted_draft_tokens_total")


WORKLOADS = {"rewrite": rewrite, "fresh": fresh}


@contextlib.contextmanager
def both(binary, model, threads):
    """A Hearth with speculation and one without, by mode, which have answered something."""
    with contextlib.ExitStack() as stack:
        servers = {}
        for mode in ("on", "off"):
            servers[mode] = Hearth(binary, model, threads, extra=["--speculation", mode])
            stack.callback(servers[mode].close)
            ask(servers[mode], fresh(random.Random(0)), 8)
        yield servers


def pairs(servers, name, count, max_tokens, seed):
    """Yields each pair of answers when it is there: its tokens, tokens per second with and without, and what was drafted."""
    before = drafts(servers["on"])
    for i in range(count):
        body = WORKLOADS[name](random.Random(f"{seed} {name} {i}"))
        answers = {mode: ask(servers[mode], body, max_tokens) for mode in (("on", "off"), ("off", "on"))[i % 2]}
        if answers["on"][:2] != answers["off"][:2]:
            raise ValueError(f"{name} {i}: speculation changed the answer:\n{answers['on'][0]}\n---\n{answers['off'][0]}")
        after = drafts(servers["on"])
        drafted, accepted = (now - then for now, then in zip(after, before))
        before = after
        (_, tokens, on), (_, _, off) = answers["on"], answers["off"]
        yield {"tokens": tokens, "on": on, "off": off, "ratio": on / off, "drafted": drafted, "accepted": accepted}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--max-tokens", type=int, default=260)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=LIMITS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    result, failed = {"arguments": arguments}, False
    with both(args.hearth, args.model, args.threads) as servers:
        for name in LIMITS:
            if args.only not in (None, name):
                continue
            done = []
            for pair in pairs(servers, name, args.pairs, args.max_tokens, args.seed):
                done.append(pair)
                print(f"{name} {len(done)} of {args.pairs}: {pair['tokens']} tokens, on {pair['on']:.1f} tok/s, off {pair['off']:.1f} tok/s, {pair['ratio']:.2f}", flush=True)
                drafted, accepted = (sum(pair[count] for pair in done) for count in ("drafted", "accepted"))
                median = statistics.median(pair["ratio"] for pair in done)
                result[name] = {"pairs": done, "median": median, "drafted": drafted, "accepted": accepted}
                if args.out:
                    args.out.write_text(json.dumps(result, indent=1) + "\n")
            failed |= median < LIMITS[name]
            print(f"{name}: median {median:.2f} (at least {LIMITS[name]}), {accepted} of {drafted} drafted tokens accepted", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
