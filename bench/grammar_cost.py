"""What grammars cost: decode throughput of 16 sessions that are bound by JSON schemas over that of 16 free ones, in one run of Hearth.

    python bench/grammar_cost.py --hearth target/release/hearth --model MODEL.gguf

Needs no packages. Bound and free rounds alternate on one server with the same prompts, and every answer has the same number of
tokens: a free one goes on past the model's end token (`ignore_eos`), a bound one has a schema that cannot end before.
Each session has a schema of its own, so each row of a batch has its own grammar. Two kinds are measured:
  strings   an array of short strings: next to nothing is forced, so each token costs a mask. The figure that counts.
  objects   an array of objects with long keys: keys and punctuation are forced, which may skip the model and so be faster than free.
A round before the first is not counted: it compiles the grammars and fills the prefix cache.

Throughput is all tokens after each session's first, over the time from the first token of any to the last token of all.
Prints it for each round, and the median of the ratios of neighbouring rounds. Exit status 1 when a kind's median is under 0.95.
"""
import argparse
import http.client
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import servers

WANTED = 0.95
TOPICS = ["rivers", "birds", "kitchens", "trains", "gardens", "planets", "islands", "poems",
          "bridges", "markets", "winters", "lamps", "forests", "letters", "clocks", "ships"]


def strings(session, tokens):
    # Each item takes a token or more, so the array outlasts the answer.
    return {"type": "array", "minItems": tokens, "maxItems": tokens, "items": {"type": "string", "maxLength": 40 + session}}


def objects(session, tokens):
    topic = TOPICS[session % len(TOPICS)]
    item = {"type": "object", "additionalProperties": False,
            "properties": {f"name_of_the_{topic}": {"type": "string", "maxLength": 24},
                           f"number_of_{topic}_{session}": {"type": "integer"},
                           "state": {"enum": ["new", "used", session, None]}}}
    item["required"] = list(item["properties"])
    return {"type": "array", "minItems": tokens, "maxItems": tokens, "items": item}


KINDS = {"strings": strings, "objects": objects}


def body(session, tokens, schema):
    topic = TOPICS[session % len(TOPICS)]
    request = {"model": "m", "messages": [{"role": "user", "content": f"Tell me about {topic}, as JSON, number {session}."}],
               "temperature": 0, "max_tokens": tokens, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    if schema is not None:
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    return json.dumps(request)


def session(base, text, gate, result):
    """Sends one request when the gate opens; leaves the times of its first and last piece and its usage in `result`."""
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
    connection.connect()
    gate.wait()
    connection.request("POST", "/v1/chat/completions", text, {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        result["error"] = f"HTTP {response.status}: {response.read().decode(errors='replace')[:500]}"
        return
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        now = time.perf_counter()
        # Parsing costs the machine that is measured: only what comes before the first text, and what may be the usage.
        if "first" not in result or b'"completion_tokens"' in line or b'"error"' in line:
            event = json.loads(line[6:])
            if "error" in event:
                result["error"] = json.dumps(event["error"])
                return
            if event.get("usage"):
                result["tokens"] = event["usage"]["completion_tokens"]
            if any((c.get("delta") or {}).get("content") for c in event.get("choices", [])):
                result.setdefault("first", now)
        # The event of the usage comes after the last text, at the same time.
        result["last"] = now


def round_of(base, texts, tokens):
    """Tokens per second of one round of all sessions at a time."""
    gate, results = threading.Barrier(len(texts), timeout=60), [{} for _ in texts]
    threads = [threading.Thread(target=session, args=(base, t, gate, r)) for t, r in zip(texts, results)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in enumerate(results):
        if result.get("error") or result.get("tokens") != tokens or "first" not in result:
            raise SystemExit(f"session {number}: {result.get('error') or f'wanted {tokens} tokens: {result}'}")
    spent = max(r["last"] for r in results) - min(r["first"] for r in results)
    return len(texts) * (tokens - 1) / spent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hearth", help="Hearth's binary")
    parser.add_argument("--model", help="the GGUF file to serve")
    parser.add_argument("--url", help="a running Hearth that serves a model under the name m, instead")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each sort")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    options = parser.parse_args()
    if not options.url and not (options.hearth and options.model):
        parser.error("give --hearth and --model, or --url")

    server = None if options.url else servers.Hearth(options.hearth, options.model, options.threads)
    base = options.url.rstrip("/").removesuffix("/v1") if options.url else server.base
    numbers = range(options.sessions)
    free = [body(n, options.tokens, None) for n in numbers]
    outcome = {}
    try:
        for kind in options.kinds.split(","):
            bound = [body(n, options.tokens, KINDS[kind](n, options.tokens)) for n in numbers]
            round_of(base, free, options.tokens)
            round_of(base, bound, options.tokens)
            rows = []
            for number in range(options.rounds):
                pair = {}
                # Which goes first changes from round to round, so that a drift of the machine's speed evens out.
                for sort, texts in sorted({"free": free, "bound": bound}.items(), reverse=number % 2 == 0):
                    pair[sort] = round_of(base, texts, options.tokens)
                rows.append(pair)
                print(f"{kind:9} round {number + 1}: free {pair['free']:8.1f} tok/s, bound {pair['bound']:8.1f} tok/s, "
                      f"ratio {pair['bound'] / pair['free']:.3f}", flush=True)
            ratios = [r["bound"] / r["free"] for r in rows]
            outcome[kind] = {"ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios), "rounds": rows}
    finally:
        if server:
            server.close()
    for kind, row in outcome.items():
        print(f"{kind:9} {options.sessions} sessions, {options.tokens} tokens: median ratio {row['ratio']:.3f} "
              f"({row['least']:.3f} to {row['greatest']:.3f}), wanted {WANTED}")
    passed = all(row["ratio"] >= WANTED for row in outcome.values())
    if options.out:
        options.out.write_text(json.dumps({"model": options.model and Path(options.model).name, "sessions": options.sessions, "tokens": options.tokens,
                                           "threads": options.threads, "wanted": WANTED, "passed": passed, "kinds": outcome}, indent=1) + "\n")
    sys.exit(0 if passed else 1)


main()
