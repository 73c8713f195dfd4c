"""The openai and anthropic SDKs, unmodified, before a Hearth that asks another Hearth as its provider."""
import anthropic
import openai
import pytest

from conftest import CHAT, EMBED, Server

MODEL = f"hearth/{CHAT}"
ASK = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def front(server, tmp_path_factory):
    """A server without models, whose providers are the one with models under two names."""
    folder = tmp_path_factory.mktemp("front")
    settings = folder / "hearth.toml"
    settings.write_text(
        f"""
[providers.hearth]
base-url = "{server.base}/v1"

[providers.llamacpp]
base-url = "{server.base}/v1"
models = ["{CHAT}"]
"""
    )
    front = Server(folder, "--config", str(settings))
    yield front
    front.stop()


@pytest.fixture
def client(front):
    return openai.OpenAI(base_url=f"{front.base}/v1", api_key="unused", max_retries=0)


def test_a_chat_through_the_gateway_is_the_chat_behind_it(client, openai_client):
    def text(client, model):
        answer = client.chat.completions.create(model=model, messages=ASK, max_tokens=12, temperature=0)
        assert answer.usage.prompt_tokens_details.cached_tokens is not None
        return answer.choices[0].message.content, answer.usage.prompt_tokens, answer.usage.completion_tokens

    direct = text(openai_client, CHAT)
    assert text(client, MODEL) == direct
    # By the bare name too, since a provider lists it.
    assert text(client, CHAT) == direct


def test_a_stream_has_usage_only_for_who_asked(client):
    def stream(**more):
        return list(client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, stream=True, temperature=0, **more))

    plain, asked = stream(), stream(stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in plain)
    assert [chunk.usage for chunk in asked if chunk.usage][-1].completion_tokens == 8

    def text(chunks):
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    assert text(plain) == text(asked) != ""


def test_the_other_routes_of_openai_pass(client):
    assert client.completions.create(model=MODEL, prompt="One, two,", max_tokens=4).choices[0].text
    assert client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=8).output_text
    assert len(client.embeddings.create(model=f"hearth/{EMBED}", input="a").data[0].embedding) == 384
    with client.responses.stream(model=MODEL, input="Say hello.", max_output_tokens=8) as stream:
        last = list(stream)[-1]
    assert (last.type, last.response.usage.output_tokens) == ("response.incomplete", 8)


def test_messages_pass(front):
    client = anthropic.Anthropic(base_url=front.base, api_key="unused", max_retries=0)
    message = client.messages.create(model=MODEL, messages=ASK, max_tokens=8)
    assert message.usage.output_tokens == 8
    with client.messages.stream(model=MODEL, messages=ASK, max_tokens=8) as stream:
        assert "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens == 8


def test_ai_gateways_addresses_work_as_base_urls(front):
    base = f"{front.base}/v1/default/default"
    for url, model in [(f"{base}/hearth", CHAT), (f"{base}/hearth/v1", CHAT), (f"{base}/compat", MODEL)]:
        client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
        answer = client.chat.completions.with_raw_response.create(model=model, messages=ASK, max_tokens=4)
        assert answer.headers["cf-aig-step"] == "0"
        assert answer.parse().usage.completion_tokens == 4
    client = anthropic.Anthropic(base_url=f"{base}/hearth", api_key="unused", max_retries=0)
    assert client.messages.create(model=CHAT, messages=ASK, max_tokens=4).usage.output_tokens == 4


def test_errors_of_the_provider_are_the_sdks_exceptions(client, front):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="hearth/none", messages=ASK)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=ASK, extra_body={"n": 0})
    assert error.value.param == "n"
    gateway = openai.OpenAI(base_url=f"{front.base}/v1/default/default/nobody", api_key="unused", max_retries=0)
    with pytest.raises(openai.BadRequestError) as error:
        gateway.chat.completions.create(model=CHAT, messages=ASK)
    assert [fault["code"] for fault in error.value.body] == [2008]
