"""Logs of a gateway, read, judged and deleted by the unmodified `cloudflare` Python client."""
import time

import cloudflare
import httpx
import pytest

from conftest import CHAT

WHERE = {"account_id": "default", "gateway_id": "logged"}


@pytest.fixture
def logs(cloudflare_client, server):
    """A gateway of its own with two logged requests and one that failed."""
    cloudflare_client.ai_gateway.create(
        id="logged", account_id="default", cache_invalidate_on_update=True, cache_ttl=0, collect_logs=True,
        rate_limiting_interval=0, rate_limiting_limit=0, log_management=10_000,
        log_management_strategy="DELETE_OLDEST",
    )
    for team, model in [("red", CHAT), ("blue", CHAT), ("blue", "no-such-model")]:
        httpx.post(
            f"{server.base}/v1/chat/completions", timeout=60,
            json={"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "I am ada@example.com"}]},
            headers={"cf-aig-gateway-id": "logged", "cf-aig-metadata": f'{{"team":"{team}"}}',
                     "cf-aig-collect-log-payload": "true", "cf-aig-event-id": f"event-{team}"},
        )
    deadline = time.monotonic() + 30
    while len(list(cloudflare_client.ai_gateway.logs.list("logged", account_id="default"))) < 3:
        assert time.monotonic() < deadline, "three requests leave three logs"
    yield cloudflare_client.ai_gateway.logs
    cloudflare_client.ai_gateway.delete("logged", account_id="default")


def test_logs_are_listed_filtered_judged_and_deleted(logs):
    found = list(logs.list("logged", account_id="default", per_page=1, order_by="created_at", order_by_direction="asc"))
    assert [(log.model, log.success) for log in found] == [(CHAT, True), (CHAT, True), ("no-such-model", False)]
    first = found[0]
    assert first.provider == "local" and first.tokens_out == 4 and first.metadata == '{"team":"red"}'
    assert first.created_at.year >= 2026 and first.duration >= 0 and first.status_code == 200

    red = [{"key": "metadata.key", "operator": "eq", "value": ["team"]},
           {"key": "metadata.value", "operator": "eq", "value": ["red"]}]
    assert [log.id for log in logs.list("logged", account_id="default", filters=red)] == [first.id]
    slow = [{"key": "duration", "operator": "gt", "value": [3_600_000]}]
    assert list(logs.list("logged", account_id="default", filters=slow)) == []
    assert len(list(logs.list("logged", account_id="default", success=False))) == 1
    assert len(list(logs.list("logged", account_id="default", search="BLUE", start_date="2026-01-01T00:00:00Z"))) == 2

    logs.edit(first.id, feedback=-1, score=0.25, metadata={"team": "red", "seen": True}, **WHERE)
    assert logs.get(first.id, **WHERE).metadata == '{"seen":true,"team":"red"}'
    disliked = [{"key": "feedback", "operator": "eq", "value": [-1]}]
    assert [log.id for log in logs.list("logged", account_id="default", filters=disliked)] == [first.id]

    assert logs.request(first.id, **WHERE)["messages"][0]["content"] == "I am [email]"
    assert logs.response(first.id, **WHERE)["choices"][0]["message"]["role"] == "assistant"
    one = logs.get(first.id, **WHERE)
    assert one.request_head_complete and "[email]" in one.request_head and one.request_size > 50

    assert logs.delete("logged", account_id="default", filters=red).success
    assert len(list(logs.list("logged", account_id="default"))) == 2
    with pytest.raises(cloudflare.NotFoundError) as caught:
        logs.get(first.id, **WHERE)
    assert "7002" in str(caught.value)
    assert logs.delete("logged", account_id="default").success
    assert list(logs.list("logged", account_id="default")) == []
