"""What a gateway allows, set, read back and held to by the unmodified `cloudflare` Python client."""
import cloudflare
import httpx
import pytest

from conftest import CHAT

RULE = {
    "id": "team", "enabled": True, "limit": 1.25, "limit_type": "cost", "window": 86400, "technique": "sliding",
    "metadata": {"team": {"mode": "partition"}}, "model": {"mode": "filter", "values": [CHAT]},
}


@pytest.fixture
def held(cloudflare_client):
    gateways = cloudflare_client.ai_gateway
    made = gateways.create(
        id="held", account_id="default", cache_invalidate_on_update=True, cache_ttl=300, collect_logs=True,
        rate_limiting_interval=3600, rate_limiting_limit=3, rate_limiting_technique="fixed",
    )
    assert (made.cache_ttl, made.rate_limiting_limit, made.rate_limiting_interval) == (300, 3, 3600)
    yield "held"
    gateways.delete("held", account_id="default")


def ask(server, gateway, prompt="Name a river."):
    return httpx.post(
        f"{server.base}/v1/chat/completions", timeout=60, headers={"cf-aig-gateway-id": gateway},
        json={"model": CHAT, "max_tokens": 4, "messages": [{"role": "user", "content": prompt}]},
    )


def test_answers_are_given_again_and_requests_are_limited(held, server):
    first, again = ask(server, held), ask(server, held)
    assert [reply.headers["cf-aig-cache-status"] for reply in (first, again)] == ["MISS", "HIT"]
    assert again.json() == first.json()
    assert ask(server, held, "Name a hill.").headers["cf-aig-cache-status"] == "MISS"
    refused = ask(server, held)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
    assert refused.headers["x-ratelimit-limit-requests"] == "3"


def test_spend_limits_guardrails_and_zero_retention_come_back_as_they_were_set(held, cloudflare_client):
    gateways = cloudflare_client.ai_gateway
    gateways.update(
        held, account_id="default", cache_invalidate_on_update=True, cache_ttl=0, collect_logs=True,
        rate_limiting_interval=0, rate_limiting_limit=0, zdr=True, spend_limits={"enabled": True, "rules": [RULE]},
        guardrails={"prompt": {"s1": "BLOCK", "p1": "FLAG"}, "response": {"s2": "FLAG"}},
    )
    found = gateways.get(held, account_id="default")
    assert (found.zdr, found.cache_ttl, found.rate_limiting_limit) == (True, 0, 0)
    rule = found.spend_limits.rules[0]
    assert (rule.limit, rule.window, rule.technique, rule.limit_type) == (1.25, 86400, "sliding", "cost")
    assert rule.model.values == [CHAT] and rule.metadata["team"].mode == "partition"
    assert (found.guardrails.prompt.s1, found.guardrails.prompt.p1, found.guardrails.response.s2) == ("BLOCK", "FLAG", "FLAG")
    with pytest.raises(cloudflare.BadRequestError):
        gateways.update(
            held, account_id="default", cache_invalidate_on_update=True, cache_ttl=1, collect_logs=True,
            rate_limiting_interval=0, rate_limiting_limit=0,
        )


def test_billing_answers_the_client(cloudflare_client):
    billing = cloudflare_client.ai_gateway.billing
    assert billing.credit_balance(account_id="default").balance == 0
    assert isinstance(billing.usage_history(account_id="default", value_grouping_window="day").history, list)
    billing.spending_limit.create(account_id="default", amount=100_000, duration="monthly", strategy="fixed")
    limit = billing.spending_limit.get(account_id="default")
    assert limit.enabled and (limit.config.amount, limit.config.duration) == (100_000, "monthly")
    billing.spending_limit.delete(account_id="default")
    assert not billing.spending_limit.get(account_id="default").enabled
