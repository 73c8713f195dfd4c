"""AI Gateway's further settings through the unmodified `cloudflare` Python client: a gateway sent back as it was read, data
loss prevention, providers' keys and headers, invoices; and spans as protobuf, read by OpenTelemetry's own messages."""
import http.server
import json
import queue
import threading

import cloudflare
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from conftest import CHAT

ACCOUNT = "default"
REQUIRED = dict(
    account_id=ACCOUNT, cache_invalidate_on_update=True, cache_ttl=0, collect_logs=True, rate_limiting_interval=0,
    rate_limiting_limit=0,
)


@pytest.fixture
def gateways(cloudflare_client):
    return cloudflare_client.ai_gateway


@pytest.fixture
def gateway(gateways):
    gateways.create(id="settings", **REQUIRED)
    yield "settings"
    gateways.delete("settings", account_id=ACCOUNT)


def ask(server, gateway, prompt, **fields):
    return httpx.post(
        f"{server.base}/v1/chat/completions", timeout=60, headers={"cf-aig-gateway-id": gateway},
        json={"model": CHAT, "max_tokens": 4, "messages": [{"role": "user", "content": prompt}], **fields},
    )


def whole(found):
    """All members of a gateway as the client read it, by the names of the wire."""
    return {name: value for name, value in found.to_dict(mode="json").items()}


def test_a_gateway_is_taken_back_as_it_was_read(gateway, gateways):
    gateways.update(
        gateway, **REQUIRED, byok_only=True, zdr=True, retry_max_attempts=3, retry_delay=100, retry_backoff="linear",
        log_management=1000, log_management_strategy="DELETE_OLDEST", rate_limiting_technique="sliding",
        dlp={"enabled": True, "policies": [
            {"id": "p", "enabled": True, "action": "FLAG", "check": ["REQUEST"], "profiles": ["contact"]}]},
        guardrails={"prompt": {"s1": "FLAG"}, "response": {}},
        spend_limits={"enabled": True, "rules": [{"limit": 1.5, "limit_type": "cost", "window": 3600}]},
        otel=[{"url": "https://collector.example.com/v1/traces", "headers": {"x-token": "t"},
               "content_type": "protobuf"}],
        log_classification=False, logpush=False, logpush_public_key=None, store_id=None, stripe=None,
        workers_ai_billing_mode="postpaid", authentication=True,
    )
    before = whole(gateways.get(gateway, account_id=ACCOUNT))
    assert before["byok_only"] and before["otel"][0]["content_type"] == "protobuf"
    # The whole object, with what only the server sets.
    gateways.update(gateway, **REQUIRED, extra_body=before)
    after = whole(gateways.get(gateway, account_id=ACCOUNT))
    assert {**after, "modified_at": None} == {**before, "modified_at": None}


@pytest.mark.parametrize("setting", [
    {"logpush": True}, {"store_id": "s"}, {"stripe": {"authorization": "a", "usage_events": [{"payload": "p"}]}},
    {"log_classification": True}, {"workers_ai_billing_mode": "unified"},
])
def test_what_is_not_built_is_refused_by_name(gateway, gateways, setting):
    with pytest.raises(cloudflare.BadRequestError, match=next(iter(setting))):
        gateways.update(gateway, **REQUIRED, **setting)


def test_data_that_may_not_pass_is_flagged_or_blocked(gateway, gateways, server):
    gateways.update(gateway, **REQUIRED, dlp={"enabled": True, "action": "BLOCK", "profiles": ["financial"]})
    assert gateways.get(gateway, account_id=ACCOUNT).dlp.profiles == ["financial"]
    blocked = ask(server, gateway, "My card is 4111 1111 1111 1111.")
    found = json.loads(blocked.headers["cf-aig-dlp"])
    assert (blocked.status_code, found["action"]) == (400, "BLOCK")
    assert found["findings"][0]["profile"]["entry_ids"] == ["card"]
    assert ask(server, gateway, "My number is 4111 1111 1111 1112.").status_code == 200
    gateways.update(gateway, **REQUIRED, dlp={"enabled": True, "policies": [
        {"id": "p", "enabled": True, "action": "FLAG", "check": ["REQUEST"], "profiles": ["contact"]}]})
    flagged = ask(server, gateway, "Write to ada@example.com.")
    assert flagged.status_code == 200 and "email" in flagged.headers["cf-aig-dlp"]


def test_keys_of_providers_have_limits(gateway, gateways):
    made = gateways.provider_configs.create(
        gateway, account_id=ACCOUNT, alias="team", default_config=False, provider_slug="openai",
        secret="sk-0123456789abcdef", rate_limit=10, rate_limit_period=60,
    )
    assert (made.rate_limit, made.rate_limit_period, made.secret_preview) == (10, 60, "…cdef")
    assert [config.id for config in gateways.provider_configs.list(gateway, account_id=ACCOUNT)] == [made.id]
    with pytest.raises(cloudflare.BadRequestError, match="secret_id"):
        gateways.provider_configs.create(
            gateway, account_id=ACCOUNT, alias="x", default_config=False, provider_slug="openai", secret_id="s",
        )


def test_headers_of_an_own_provider_are_kept_and_shown_by_their_ends(gateways):
    made = gateways.custom_providers.create(
        account_id=ACCOUNT, name="Lab", slug="settings-lab", base_url="https://llm.example.com/v1",
        headers=json.dumps({"X-Key": "k-0123456789abcdef"}),
    )
    try:
        assert json.loads(gateways.custom_providers.get(made.id, account_id=ACCOUNT).headers) == {"x-key": "…cdef"}
    finally:
        gateways.custom_providers.delete(made.id, account_id=ACCOUNT)


def test_invoices_are_read_and_no_card_is_asked_for(gateways):
    billing = gateways.billing
    preview = billing.invoice_preview(account_id=ACCOUNT)
    assert (preview.status, preview.currency) == ("draft", "usd") and preview.period_end > preview.period_start
    assert billing.invoice_history(account_id=ACCOUNT, type="all").pagination.has_more is False
    assert billing.topup.config.get(account_id=ACCOUNT).amount is None
    with pytest.raises(cloudflare.BadRequestError, match="card"):
        billing.topup.config.create(account_id=ACCOUNT, amount=1000, threshold=500)
    with pytest.raises(cloudflare.NotFoundError):
        billing.topup.status(account_id=ACCOUNT, payment_intent_id="pi_1")


@pytest.fixture
def collector():
    """An address, and what is posted there."""
    posted = queue.Queue()

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            posted.put((self.headers["content-type"], body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", posted
    server.shutdown()
    server.server_close()


def test_spans_in_protobuf_are_read_by_opentelemetrys_messages(tmp_path, collector):
    from conftest import MODELS, Server

    url, posted = collector
    (tmp_path / "hearth.toml").write_text(f'[logs]\ncollectors = ["{url}"]\n')
    server = Server(tmp_path, "--config", str(tmp_path / "hearth.toml"), models=[(CHAT, MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf")])
    try:
        client = cloudflare.Cloudflare(base_url=f"{server.base}/client/v4", api_token="unused", max_retries=0)
        client.ai_gateway.create(
            id="spans", **REQUIRED, extra_body={"otel": [{"url": url, "headers": {}, "content_type": "protobuf"}]}
        )
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        reply = httpx.post(
            f"{server.base}/v1/chat/completions", timeout=60,
            headers={"cf-aig-gateway-id": "spans", "traceparent": parent, "cf-aig-metadata": '{"team":"search"}'},
            json={"model": CHAT, "max_tokens": 4, "messages": [{"role": "user", "content": "Name a river."}]},
        )
        assert reply.status_code == 200
        kind, body = posted.get(timeout=30)
    finally:
        server.stop()
    assert kind == "application/x-protobuf"
    request = ExportTraceServiceRequest.FromString(body)
    # Nothing that these messages do not know, and nothing in another form than theirs.
    assert ExportTraceServiceRequest.FromString(request.SerializeToString()) == request
    resource = request.resource_spans[0]
    assert resource.resource.attributes[0].value.string_value == "hearth"
    span = resource.scope_spans[0].spans[0]
    assert span.trace_id.hex() == parent.split("-")[1] and span.parent_span_id.hex() == parent.split("-")[2]
    assert len(span.span_id) == 8 and span.end_time_unix_nano >= span.start_time_unix_nano > 0
    found = {attribute.key: attribute.value for attribute in span.attributes}
    assert found["gen_ai.request.model"].string_value == CHAT
    assert found["gen_ai.usage.output_tokens"].int_value == reply.json()["usage"]["completion_tokens"]
    assert found["hearth.metadata.team"].string_value == "search" and found["hearth.cached"].HasField("bool_value")
