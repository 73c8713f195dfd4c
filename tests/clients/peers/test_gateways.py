"""Hearth before a LiteLLM proxy and a llama.cpp server, and LiteLLM as a client of Hearth."""
import json
import subprocess

import anthropic
import litellm
import openai
import pytest

from conftest import servers

ASK = [{"role": "user", "content": "Write the word river three times."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
BEHIND = ["llamacpp/coder", "hearth/coder", "custom-litellm/coder"]


@pytest.fixture
def client(front):
    return openai.OpenAI(base_url=f"{front.base}/v1", api_key="unused", max_retries=0)


@pytest.mark.parametrize("model", BEHIND)
def test_a_stream_is_the_answer_and_tells_the_same_usage(client, model):
    asked = {"model": model, "messages": ASK, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content != ""
    usage = [chunk.usage for chunk in chunks if chunk.usage][-1]
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


@pytest.mark.parametrize("model", BEHIND)
def test_a_stream_that_did_not_ask_for_usage_has_none(client, model):
    chunks = list(client.chat.completions.create(model=model, messages=ASK, max_tokens=8, temperature=0, stream=True))
    assert all(chunk.usage is None for chunk in chunks)


# llama.cpp's server gives this model's calls back as text.
@pytest.mark.parametrize("model", ["hearth/coder", "custom-litellm/coder", "custom-litellm-messages/coder"])
def test_a_forced_tool_is_called(client, model):
    choice = {"type": "function", "function": {"name": "weather"}}
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    answer = client.chat.completions.create(model=model, messages=messages, tools=[TOOL], tool_choice=choice, max_tokens=256, temperature=0)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "weather"
    assert "city" in json.loads(call.function.arguments)


@pytest.mark.parametrize("model", ["llamacpp/coder", "custom-litellm/coder", "custom-litellm-messages/coder"])
def test_anthropics_client_reaches_them_all(front, model):
    client = anthropic.Anthropic(base_url=front.base, api_key="unused", max_retries=0)
    asked = {"model": model, "messages": ASK, "max_tokens": 16, "extra_body": {"temperature": 0}}
    message = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == message.content[0].text != ""
    assert last.usage.output_tokens == message.usage.output_tokens > 0
    assert last.stop_reason == message.stop_reason


def test_openais_client_reaches_a_provider_of_messages(client):
    answer = client.chat.completions.create(model="custom-litellm-messages/coder", messages=ASK, max_tokens=16, temperature=0)
    assert answer.choices[0].message.content and answer.usage.completion_tokens > 0


@pytest.mark.parametrize("model", ["openai/llamacpp/coder", "openai/custom-litellm/coder"])
def test_litellm_is_a_client_of_openais_dialect(front, model):
    asked = {"model": model, "messages": ASK, "max_tokens": 16, "temperature": 0, "api_base": f"{front.base}/v1", "api_key": "unused"}
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content != ""
    usage = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)][-1]
    assert usage.completion_tokens == whole.usage.completion_tokens > 0


def test_litellm_is_a_client_of_anthropics_dialect(front):
    asked = {"model": "anthropic/hearth/coder", "messages": ASK, "max_tokens": 16, "temperature": 0, "api_base": front.base, "api_key": "unused"}
    whole = litellm.completion(**asked)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True) if chunk.choices)
    assert text == whole.choices[0].message.content != ""


def test_an_error_of_an_upstream_comes_back_as_it_was_said(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="hearth/coder", messages=ASK, max_tokens=-1)
    assert "max_tokens" in str(refused.value)


def test_each_request_has_one_entry_with_the_usage_that_was_told(front, client):
    def entries():
        command = [servers.BIN, "--data-dir", front.log.name.rsplit("/", 1)[0], "usage", "--by", "provider", "--format", "json"]
        lines = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return {line["provider"]: line for line in lines}

    before = entries()
    usage = client.chat.completions.create(model="llamacpp/coder", messages=ASK, max_tokens=8, temperature=0).usage
    after = entries()["llamacpp"]
    had = before.get("llamacpp", {"requests": 0, "output_tokens": 0})
    assert after["requests"] == had["requests"] + 1
    assert after["output_tokens"] == had["output_tokens"] + usage.completion_tokens
