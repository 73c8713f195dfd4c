"""Clients that vanish, servers with keys, full bodies: nothing is lost or leaked."""
import concurrent.futures
import os
import random
import socket
import time

import httpx
import openai
import pytest

from conftest import CHAT, MODELS, Server

CHAT_MODEL = [(CHAT, MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf")]


def until(condition, seconds=30):
    """Polls: what is waited for has no event a client could see."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)


def pages(server):
    samples = server.metrics()
    return {state: samples[f'hearth_kv_pages{{model="{CHAT}",state="{state}"}}'] for state in ("free", "cached", "held")}


def running(server):
    samples = server.metrics()
    return samples[f'hearth_requests_running{{model="{CHAT}"}}'] + samples[f'hearth_requests_queued{{model="{CHAT}"}}']


def test_a_client_that_leaves_stops_its_work(server):
    stream = openai.OpenAI(base_url=f"{server.base}/v1", api_key="unused").chat.completions.create(
        model=CHAT, messages=[{"role": "user", "content": "Count as far as you can."}],
        stream=True, max_tokens=4000, extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    until(lambda: running(server) >= 1)
    stream.close()
    until(lambda: running(server) == 0 and pages(server)["held"] == 0)


def test_a_thousand_requests_with_random_cancellations_leak_nothing(server):
    rng = random.Random(7)
    plans = [(i, rng.random(), rng.randrange(1, 24), rng.randrange(0, 12)) for i in range(1000)]
    rss_kb = lambda: int(open(f"/proc/{server.process.pid}/status").read().split("VmRSS:")[1].split()[0])
    sockets = lambda: sum(1 for fd in os.listdir(f"/proc/{server.process.pid}/fd")
                          if os.readlink(f"/proc/{server.process.pid}/fd/{fd}").startswith("socket:"))
    sockets_before = sockets()

    def one(plan):
        i, chance, max_tokens, leave_after = plan
        body = {"model": CHAT, "messages": [{"role": "user", "content": f"Item {i % 50}: say a few words."}],
                "stream": True, "max_tokens": max_tokens, "seed": i}
        with httpx.Client(timeout=60) as client, client.stream("POST", f"{server.base}/v1/chat/completions", json=body) as r:
            assert r.status_code == 200
            for n, _ in enumerate(r.iter_lines()):
                if chance < 0.5 and n >= leave_after:
                    return

    def batch(plans):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(one, plans))
        until(lambda: running(server) == 0)

    batch(plans[:200])
    settled = rss_kb()
    batch(plans[200:])
    until(lambda: pages(server)["held"] == 0)
    until(lambda: sockets() <= sockets_before + 2)
    # What may still grow is the prefix cache, up to its budget: take that out.
    samples = server.metrics()
    page_kb = samples[f'hearth_kv_page_bytes{{model="{CHAT}"}}'] / 1024
    assert rss_kb() - settled < 50_000 + pages(server)["cached"] * page_kb


def test_raw_bad_bytes_are_refused_and_the_server_goes_on(server):
    url = f"{server.base}/v1/chat/completions"
    bodies = [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "\xff"}', b'{"a":' * 1000 + b"1" + b"}" * 1000,
        b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
        b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"max_tokens":1e99}',
        b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"max_tokens":"four"}',
        b'{"model":"smollm2","messages":"hi"}', b'{"model":"smollm2","messages":[{"role":"user"}]}',
        b'{"model":7,"messages":[{"role":"user","content":"hi"}]}', b'{"messages":[{"role":"user","content":"hi"}]}',
    ]
    for body in bodies:
        answer = httpx.post(url, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, body[:80]
        assert answer.json()["error"]["message"], body[:80]
    assert httpx.get(f"{server.base}/healthz").status_code == 200


def test_a_body_past_the_limit_is_413(server):
    answer = httpx.post(f"{server.base}/v1/chat/completions", content=b" " * (65 << 20), timeout=60)
    assert answer.status_code == 413 and answer.json()["error"]["message"]


def test_foreign_hosts_and_origins_are_refused_without_a_key(server):
    url = f"{server.base}/v1/models"
    assert httpx.get(url).status_code == 200
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 403
    assert httpx.get(url, headers={"origin": "https://evil.example"}).status_code == 403
    allowed = httpx.get(url, headers={"origin": f"http://127.0.0.1:{server.port}"})
    assert allowed.status_code == 200 and "access-control-allow-origin" not in allowed.headers


def test_a_key_is_asked_for_when_one_is_set(tmp_path):
    server = Server(tmp_path, "--api-key", "correct-horse")
    try:
        bad = openai.OpenAI(base_url=f"{server.base}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            bad.models.list()
        good = openai.OpenAI(base_url=f"{server.base}/v1", api_key="correct-horse", max_retries=0)
        assert list(good.models.list()) == []
    finally:
        server.stop()


def test_a_full_queue_is_429_with_retry_after(tmp_path):
    server = Server(tmp_path, "--queue", "1", models=CHAT_MODEL)
    try:
        def ask(i):
            return httpx.post(f"{server.base}/v1/chat/completions", timeout=120, json={
                "model": CHAT, "messages": [{"role": "user", "content": f"{i}"}], "max_tokens": 8})
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(ask, range(200)))
        codes = {a.status_code for a in answers}
        assert codes == {200, 429}, codes
        full = next(a for a in answers if a.status_code == 429)
        assert int(full.headers["retry-after"]) >= 1 and full.json()["error"]["code"]
        def run(i):
            return httpx.post(f"{server.base}/client/v4/accounts/acc/ai/run/{CHAT}", timeout=120, json={"prompt": f"{i}", "max_tokens": 8})
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            full = next(a for a in pool.map(run, range(200)) if a.status_code == 429)
        assert full.json()["errors"][0]["code"] == 3040 and int(full.headers["retry-after"]) >= 1
    finally:
        server.stop()


def test_many_small_requests_with_a_tiny_kv_memory_all_end(tmp_path):
    server = Server(tmp_path, "--kv-memory", "64MiB", models=CHAT_MODEL)
    try:
        def ask(i):
            answer = httpx.post(f"{server.base}/v1/chat/completions", timeout=300, json={
                "model": CHAT, "messages": [{"role": "user", "content": f"Write a long story about the number {i}."}],
                "max_tokens": 200, "temperature": 0, "ignore_eos": True})
            return answer.json()["choices"][0]["message"]["content"]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            crowd = list(pool.map(ask, range(16)))
        assert all(crowd) and len(set(crowd)) == 16
        # Preemption and eviction change nothing: the same answer comes alone.
        assert ask(3) == crowd[3] and ask(12) == crowd[12]
        until(lambda: pages(server)["held"] == 0)
    finally:
        server.stop()


def test_a_stopping_server_finishes_or_ends_its_streams(tmp_path):
    server = Server(tmp_path, models=CHAT_MODEL)
    stream = httpx.stream("POST", f"{server.base}/v1/chat/completions", timeout=60, json={
        "model": CHAT, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "stream": True, "ignore_eos": True})
    with stream as response:
        lines = response.iter_lines()
        next(lines)
        server.process.terminate()
        rest = [l for l in lines if l]
    assert rest[-1] == "data: [DONE]"
    server.process.wait(30)
    assert server.process.returncode == 0
