"""The `cloudflare` Python client, unmodified, against the built binary's Workers AI routes."""
import cloudflare
import httpx
import openai
import pytest

from conftest import ACCOUNT, CHAT, EMBED

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
