"""The `cloudflare` Python client, unmodified, against the built binary's Workers AI routes."""
import cloudflare
import httpx
import openai
import pytest

from conftest import ACCOUNT, CHAT, CODER, EMBED

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


def run(client, model, **inputs):
    return client.ai.run(model, account_id=ACCOUNT, **inputs)


def test_run_answers_with_the_native_shape(cloudflare_client):
    result = run(cloudflare_client, CHAT, messages=QUESTION, temperature=0, max_tokens=32)
    assert "Paris" in result["response"]
    assert result["usage"]["total_tokens"] == result["usage"]["prompt_tokens"] + result["usage"]["completion_tokens"]


def test_run_takes_a_prompt(cloudflare_client):
    result = run(cloudflare_client, CHAT, prompt="The capital of France is", temperature=0, max_tokens=16)
    assert result["response"]


def test_run_gives_embeddings(cloudflare_client):
    result = run(cloudflare_client, EMBED, text=["one", "two"])
    assert result["shape"] == [2, 384] and len(result["data"][1]) == 384


def test_model_search_pages_to_its_end(cloudflare_client):
    names = [m["name"] for m in cloudflare_client.ai.models.list(account_id=ACCOUNT)]
    assert sorted(names) == sorted([CHAT, EMBED])
    assert [m["name"] for m in cloudflare_client.ai.models.list(account_id=ACCOUNT, per_page=1)] == names
    assert [m["name"] for m in cloudflare_client.ai.models.list(account_id=ACCOUNT, search="mini")] == [EMBED]


def test_unknown_models_and_bad_input_have_workers_ai_codes(cloudflare_client):
    with pytest.raises((cloudflare.NotFoundError, cloudflare.BadRequestError)) as caught:
        run(cloudflare_client, "@cf/no/such-model", prompt="hi")
    assert caught.value.errors[0].code == 5007
    with pytest.raises(cloudflare.BadRequestError) as caught:
        run(cloudflare_client, CHAT, messages=QUESTION, temperature=17)
    assert "temperature" in str(caught.value)


def test_native_streaming_ends_with_usage_and_done(server):
    url = f"{server.base}/client/v4/accounts/{ACCOUNT}/ai/run/{CHAT}"
    body = {"messages": QUESTION, "stream": True, "temperature": 0, "max_tokens": 32}
    with httpx.stream("POST", url, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [l[len("data: "):] for l in response.iter_lines() if l.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    import json

    frames = [json.loads(l) for l in lines[:-1]]
    assert "Paris" in "".join(f["response"] for f in frames)
    assert frames[-1]["response"] == "" and frames[-1]["usage"]["completion_tokens"] > 0


def test_openai_client_works_on_the_account_route(server):
    client = openai.OpenAI(base_url=f"{server.base}/client/v4/accounts/{ACCOUNT}/ai/v1", api_key="unused", max_retries=0)
    answer = client.chat.completions.create(model=CHAT, messages=QUESTION, temperature=0, max_tokens=32)
    assert "Paris" in answer.choices[0].message.content
    vectors = client.embeddings.create(model=EMBED, input="hi")
    assert len(vectors.data[0].embedding) == 384
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=QUESTION)
    assert caught.value.body["message"]


FLAT = {"name": "get_weather", "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
ANY = {"tool_choice": "any", "parallel_tool_calls": False}
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def coder_client(coder):
    return cloudflare.Cloudflare(base_url=f"{coder.base}/client/v4", api_token="unused", max_retries=0)


def coded(client, **inputs):
    return run(client, CODER, temperature=0, max_tokens=200, **inputs)


def test_run_calls_tools_in_the_native_form(coder_client):
    for tools in ([FLAT], [{"type": "function", "function": FLAT}]):
        result = coded(coder_client, messages=PARIS, tools=tools, extra_body=ANY)
        (call,) = result["tool_calls"]
        assert call["name"] == "get_weather" and isinstance(call["arguments"]["city"], str)
        assert result["finish_reason"] == "tool_calls" and result["response"] == ""


def test_run_goes_round_a_tool_loop_without_ids(coder_client):
    first = coded(coder_client, messages=PARIS, tools=[FLAT], extra_body=ANY)
    calls = [{"name": c["name"], "arguments": c["arguments"]} for c in first["tool_calls"]]
    history = PARIS + [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "name": "get_weather", "content": '{"temperature": 21}'},
    ]
    second = coded(coder_client, messages=history, tools=[FLAT], extra_body={"tool_choice": "none"})
    assert second["response"] and "tool_calls" not in second and second["finish_reason"] == "stop"
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]


def test_json_mode_gives_an_object_or_its_error(coder_client):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "capital": {"type": "string", "maxLength": 20}},
              "required": ["name", "capital"], "additionalProperties": False}
    asked = {"messages": [{"role": "user", "content": "Tell me about India."}]}
    for given in (schema, {"name": "country", "schema": schema, "strict": True}):
        result = coded(coder_client, response_format={"type": "json_schema", "json_schema": given}, **asked)
        assert set(result["response"]) == {"name", "capital"}
    with pytest.raises(cloudflare.BadRequestError) as caught:
        run(coder_client, CODER, temperature=0, max_tokens=3, response_format={"type": "json_schema", "json_schema": schema}, **asked)
    assert caught.value.errors[0].code == 5024 and "JSON Mode couldn't be met" in caught.value.errors[0].message
    with pytest.raises(cloudflare.BadRequestError) as caught:
        coded(coder_client, response_format={"type": "json_schema", "json_schema": {"type": "nothing"}}, **asked)
    assert "response_format.json_schema" in str(caught.value)


def test_newer_fields_get_openais_shape(coder_client):
    result = coded(coder_client, messages=PARIS, extra_body={"logprobs": True, "n": 2})
    assert result["object"] == "chat.completion" and len(result["choices"]) == 2
    assert result["choices"][0]["logprobs"]["content"]


def test_the_binding_gives_the_bare_result(coder):
    headers = {"cf-consn-model-id": CODER, "cf-consn-sdk-version": "2.0.0"}
    body = {"inputs": {"messages": PARIS, "tools": [FLAT], "temperature": 0} | ANY, "options": {}}
    answer = httpx.post(f"{coder.base}/run?version=3", headers=headers, json=body, timeout=60)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["tool_calls"][0]["name"] == "get_weather"
    wrapped = {"MF-Binding": "AI", "MF-URL": "https://workers-binding.ai/run?version=3"}
    wrapped |= {f"MF-Header-{name}": value for name, value in headers.items()}
    again = httpx.post(f"{coder.base}/", headers=wrapped, json=body, timeout=60)
    assert again.json()["tool_calls"][0]["arguments"] == answer.json()["tool_calls"][0]["arguments"]
    error = httpx.post(f"{coder.base}/run?version=3", headers=headers | {"cf-consn-model-id": "@cf/no/such"}, json=body)
    assert error.status_code == 400 and error.json()["internalCode"] == 5007


def test_gateways_are_made_listed_changed_and_removed(cloudflare_client):
    gateways = cloudflare_client.ai_gateway
    wish = {"account_id": "default", "cache_invalidate_on_update": True, "cache_ttl": 0, "collect_logs": True,
            "rate_limiting_interval": 0, "rate_limiting_limit": 0}
    for id in ("prod", "test"):
        made = gateways.create(id=id, retry_max_attempts=3, **wish)
        assert made.id == id and made.retry_max_attempts == 3 and made.created_at.year >= 2026
    # The client asks for pages until one is empty.
    assert [g.id for g in gateways.list(account_id="default", per_page=1)] == ["default", "prod", "test"]
    assert gateways.update(id="prod", retry_backoff="linear", **wish).retry_max_attempts == 3
    assert gateways.get(id="prod", account_id="default").retry_backoff == "linear"
    with pytest.raises(cloudflare.BadRequestError) as caught:
        gateways.update(id="prod", extra_body={"dlp": {"enabled": True, "action": "BLOCK", "profiles": ["p"]}}, **wish)
    assert "dlp" in str(caught.value)
    for id in ("prod", "test"):
        assert gateways.delete(id=id, account_id="default").id == id
    with pytest.raises(cloudflare.NotFoundError):
        gateways.get(id="prod", account_id="default")
