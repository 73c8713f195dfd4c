"""The openai and anthropic SDKs, unmodified, before a Hearth that asks another Hearth as its provider."""
import json

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

[providers.custom-messages]
base-url = "{server.base}/v1"
dialect = "anthropic"
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


TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_the_anthropic_sdk_talks_to_a_provider_of_openais_dialect(front):
    client = anthropic.Anthropic(base_url=front.base, api_key="unused", max_retries=0)
    model = f"llamacpp/{CHAT}"
    # The client has no name for it any more.
    cold = {"extra_body": {"temperature": 0}}
    message = client.messages.create(model=model, messages=ASK, max_tokens=8, **cold)
    assert (message.usage.output_tokens, message.stop_reason) == (8, "max_tokens")
    with client.messages.stream(model=model, messages=ASK, max_tokens=8, **cold) as stream:
        assert "".join(stream.text_stream) == message.content[0].text
        assert stream.get_final_message().usage.output_tokens == 8
    tools = [{"name": "get_weather", "description": "The weather of a city.", "input_schema": TOOL}]
    asked = {"model": model, "max_tokens": 200, "tools": tools, "tool_choice": {"type": "any"}, **cold}
    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    with client.messages.stream(messages=question, **asked) as stream:
        answer = stream.get_final_message()
    assert answer.stop_reason == "tool_use"
    call = next(block for block in answer.content if block.type == "tool_use")
    assert isinstance(call.input["city"], str)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    turns = question + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    again = client.messages.create(messages=turns, **(asked | {"max_tokens": 8, "tool_choice": {"type": "none"}}))
    assert again.usage.output_tokens
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="llamacpp/none", messages=ASK, max_tokens=8)


def test_the_openai_sdk_talks_to_a_provider_of_anthropics_dialect(client):
    model = f"custom-messages/{CHAT}"
    answer = client.chat.completions.create(model=model, messages=ASK, max_tokens=8, temperature=0)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (8, "length")
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model=model, messages=ASK, max_tokens=8, temperature=0, **asked))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert (text, chunks[-1].usage.completion_tokens) == (answer.choices[0].message.content, 8)
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": TOOL}}]
    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    asked = {"model": model, "max_tokens": 200, "temperature": 0, "tools": tools}
    with client.chat.completions.stream(messages=question, tool_choice="required", **asked) as stream:
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
    said = {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": call.function.arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [said]}
    again = client.chat.completions.create(messages=question + [said, result], **(asked | {"max_tokens": 8}))
    assert again.usage.completion_tokens
    response = client.responses.create(model=model, input="Say hello.", max_output_tokens=8)
    assert response.usage.output_tokens == 8
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=ASK, n=2)
    assert error.value.param == "n"
