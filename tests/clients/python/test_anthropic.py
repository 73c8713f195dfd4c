"""The anthropic SDK, unmodified: messages, streams, tools, counts, errors as its exception classes."""
import json
from pathlib import Path

import anthropic
import pytest
from pydantic import BaseModel

from conftest import ACCOUNT, CHAT, Server

SCRIPTS = Path(__file__).parents[3] / "fixtures" / "scripts"
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city, now",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "A city's name"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "cache_control": {"type": "ephemeral"},
}
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def client(server):
    return anthropic.Anthropic(base_url=server.base, api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    """A server whose models say what scripts tell, through the real parsers and streams."""
    server = Server(
        tmp_path_factory.mktemp("scripts"),
        models=[
            ("agent", f"script:{SCRIPTS / 'tool-loop.json'}"),
            ("odd", f"script:{SCRIPTS / 'odd-answers.json'}"),
        ],
    )
    yield server
    server.stop()


@pytest.fixture
def scripted_client(scripted):
    return anthropic.Anthropic(base_url=scripted.base, api_key="unused", max_retries=0)


def same(streamed, whole):
    """A stream adds up to the whole message, but for ids and what depends on the order of requests."""
    def bare(message):
        fields = json.loads(message.to_json())
        # The SDK keeps no fields of ours when it adds up a stream.
        for name in ("id", "usage", "malformed_calls"):
            fields.pop(name, None)
        for block in fields["content"]:
            block.pop("signature", None)
            block.pop("parsed_output", None)
            if block["type"] == "tool_use":
                block.pop("id")
        return fields
    assert bare(streamed) == bare(whole)
    total = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert total(streamed.usage) == total(whole.usage)
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def both(client, **asked):
    """The answer, after the stream was seen to say the same."""
    asked["extra_body"] = {"temperature": 0}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        same(stream.get_final_message(), whole)
    return whole


def test_a_message(client):
    message = client.messages.create(
        model=CHAT, max_tokens=20, messages=HELLO, system="Be brief.", extra_body={"temperature": 0},
    )
    assert message.id.startswith("msg_") and message.type == "message" and message.role == "assistant"
    assert message.model == CHAT and message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens") and message.stop_sequence is None
    assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0
    assert message._request_id.startswith("req_")


def test_a_stream_adds_up_to_the_whole_for_every_length(client):
    for max_tokens in (1, 2, 3, 17):
        message = both(client, model=CHAT, max_tokens=max_tokens, messages=HELLO)
        assert message.usage.output_tokens <= max_tokens


def test_raw_events_come_in_order(client):
    kinds = [event.type for event in client.messages.create(model=CHAT, max_tokens=5, messages=HELLO, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_text_stream(client):
    with client.messages.stream(model=CHAT, max_tokens=12, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        assert text == stream.get_final_text()


def test_stop_sequences(client):
    asked = dict(model=CHAT, max_tokens=60, messages=[{"role": "user", "content": "Count: one, two, three"}],
                 extra_body={"temperature": 0})
    whole = client.messages.create(**asked)
    word = whole.content[0].text.split()[1]
    message = both(client, **asked, stop_sequences=["not said", word])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == word
    assert word not in message.content[0].text


def test_a_repeated_prefix_is_read_from_the_cache(client):
    system = [{"type": "text", "text": "You are a helpful clerk. " * 40, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    asked = dict(model=CHAT, max_tokens=4, system=system, messages=HELLO)
    first = client.messages.create(**asked).usage
    again = client.messages.create(**asked).usage
    assert again.cache_read_input_tokens > 200 and again.cache_creation_input_tokens == 0
    assert again.input_tokens + again.cache_read_input_tokens == first.input_tokens + first.cache_read_input_tokens
    with client.messages.stream(**asked) as stream:
        start = next(event for event in stream if event.type == "message_start")
    assert start.message.usage.cache_read_input_tokens == again.cache_read_input_tokens


def test_count_tokens_is_what_a_message_uses(client):
    asked = dict(model=CHAT, system="Be brief.", messages=HELLO)
    count = client.messages.count_tokens(**asked)
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_system_as_a_message_and_turns_of_blocks(client):
    message = client.messages.create(model=CHAT, max_tokens=8, messages=[
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "user", "content": "And"}, {"role": "user", "content": "now?"},
    ])
    assert message.usage.output_tokens > 0


def test_thinking_on_a_model_that_does_not_think_is_no_error(client):
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"}):
        message = client.messages.create(model=CHAT, max_tokens=4, messages=HELLO, thinking=thinking)
        assert all(block.type == "text" for block in message.content)


def test_what_claude_code_sends_through_the_beta_client(client):
    message = client.beta.messages.create(
        model=CHAT, max_tokens=8, messages=HELLO,
        system=[{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00000;"},
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        thinking={"type": "enabled", "budget_tokens": 4000},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "user_x_account__session_y"},
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
    )
    assert message.usage.output_tokens > 0


def test_models(client):
    models = list(client.models.list())
    assert CHAT in [model.id for model in models]
    assert [model.id for model in client.models.list(limit=1)] == [model.id for model in models]
    one = client.models.retrieve(CHAT)
    assert one.type == "model" and one.max_input_tokens > 0 and one.created_at.year >= 2026


def test_under_workers_ais_prefix(server):
    client = anthropic.Anthropic(
        base_url=f"{server.base}/client/v4/accounts/{ACCOUNT}/ai", auth_token="unused", api_key=None, max_retries=0,
    )
    assert client.messages.create(model=CHAT, max_tokens=4, messages=HELLO).content
    assert client.messages.count_tokens(model=CHAT, messages=HELLO).input_tokens > 0


def test_errors_are_the_sdks_own(client, tmp_path):
    with pytest.raises(anthropic.NotFoundError) as told:
        client.messages.create(model="nobody", max_tokens=4, messages=HELLO)
    assert told.value.body["error"]["type"] == "not_found_error" and told.value.request_id.startswith("req_")
    for more, words in [
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content: "),
        ({"extra_body": {"temprature": 1}}, "temprature: Extra inputs are not permitted"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type: "),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": "aGk="}}]}]}, "messages.0.content.0: "),
        ({"messages": HELLO + [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]}, *HELLO]}, "messages.1.content.0: "),
        ({"messages": [{"role": "user", "content": "x " * 40_000}]}, "prompt is too long"),
    ]:
        with pytest.raises(anthropic.BadRequestError) as told:
            client.messages.create(**{"model": CHAT, "max_tokens": 4, "messages": HELLO, **more})
        body = told.value.body
        assert body["error"]["type"] == "invalid_request_error" and body["error"]["message"].startswith(words), body
    server = Server(tmp_path, "--api-key", "correct-horse")
    try:
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=server.base, api_key="wrong", max_retries=0).models.list()
        assert list(anthropic.Anthropic(base_url=server.base, api_key="correct-horse").models.list()) == []
    finally:
        server.stop()


def test_a_client_that_leaves_a_stream_stops_its_work(server, client):
    running = lambda: server.metrics()[f'hearth_requests_running{{model="{CHAT}"}}']
    with client.messages.stream(model=CHAT, max_tokens=4000, messages=HELLO, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream.text_stream))
    for _ in range(10_000):
        if running() == 0:
            break
    assert running() == 0


# What follows needs a model that calls tools.


def test_a_tool_loop(scripted_client):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked = dict(model="agent", max_tokens=200, tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 1024})
    first = both(scripted_client, **asked, messages=messages)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert first.content[0].thinking == "The user wants the weather, so I ask the tool."
    assert first.content[0].signature and first.content[1].text == "Let me look."
    call = first.content[2]
    assert call.id.startswith("toolu_") and call.name == "get_weather" and call.input == {"city": "Paris"}
    assert first.stop_reason == "tool_use" and first.usage.output_tokens_details.thinking_tokens > 0
    messages += [first.to_param(), {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "18 degrees"}]}]}]
    second = both(scripted_client, **asked, messages=messages)
    assert second.content[-1].text == "It is 18 degrees in Paris." and second.stop_reason == "end_turn"
    assert second.usage.cache_read_input_tokens >= first.usage.input_tokens + first.usage.cache_read_input_tokens
    failed = messages[:-1] + [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "is_error": True, "content": "error: timed out"}]}]
    told = scripted_client.messages.create(**asked, messages=failed).content[-1].text
    assert told == "The weather service does not answer; try again later."


def test_without_thinking_no_thought_comes(scripted_client):
    asked = dict(model="agent", max_tokens=200, tools=[WEATHER], messages=[{"role": "user", "content": "Weather in Paris?"}])
    for thinking in ({}, {"thinking": {"type": "disabled"}}):
        message = both(scripted_client, **asked, **thinking)
        assert [block.type for block in message.content] == ["text", "tool_use"]
    hidden = both(scripted_client, **asked, thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"})
    assert hidden.content[0].type == "thinking" and hidden.content[0].thinking == "" and hidden.content[0].signature


def test_a_tool_that_is_asked_for_is_called(scripted_client):
    asked = dict(model="agent", max_tokens=300, tools=[WEATHER], messages=[{"role": "user", "content": "Weather in Paris?"}])
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        message = both(scripted_client, **asked, tool_choice=choice)
        calls = [block for block in message.content if block.type == "tool_use"]
        assert calls and all(call.name == "get_weather" for call in calls) and message.stop_reason == "tool_use"
    message = both(scripted_client, **asked, tool_choice={"type": "none"})
    assert all(block.type != "tool_use" for block in message.content)


def test_calls_cut_at_every_length_are_the_same_both_ways(scripted_client):
    asked = dict(model="odd", tools=[WEATHER], messages=[{"role": "user", "content": "TWO"}])
    whole = both(scripted_client, **asked, max_tokens=400)
    calls = [block.input for block in whole.content if block.type == "tool_use"]
    assert calls == [{"city": 'Paris {"not": "JSON"} "}]'}, {"city": "東京 🗼"}]
    for max_tokens in range(1, whole.usage.output_tokens, 3):
        cut = both(scripted_client, **asked, max_tokens=max_tokens)
        assert cut.stop_reason in ("max_tokens", "tool_use")


@pytest.mark.parametrize("word", ["EMPTY", "THOUGHT", "EMOJI", "MALFORMED", "UNCLOSED", "UNKNOWN", "BARE", "FENCED", "AROUND"])
def test_odd_answers_arrive_the_same_both_ways(scripted_client, word):
    message = both(scripted_client, model="odd", max_tokens=400, tools=[WEATHER], thinking={"type": "adaptive"},
                   messages=[{"role": "user", "content": word}])
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = [block for block in message.content if block.type == "tool_use"]
    assert (message.stop_reason == "tool_use") == bool(calls)
    if word == "MALFORMED":
        assert "Par" in text and not calls and message.malformed_calls
    if word == "EMOJI":
        assert text.startswith("👩‍👩‍👧‍👦 family") and text.endswith("漢字")
    if word == "AROUND":
        assert calls and "Before it." in text and "After it." in text and "<tool_call>" not in text
    if word in ("BARE", "FENCED"):
        assert calls[0].input == {"city": "Paris"}


def test_the_sdks_tool_runner_runs_the_loop(scripted_client):
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city, now.

        Args:
            city: A city's name
        """
        asked.append(city)
        return "18 degrees"

    asked = []
    runner = scripted_client.beta.messages.tool_runner(
        model="agent", max_tokens=200, tools=[get_weather], messages=[{"role": "user", "content": "Weather in Paris?"}],
    )
    assert runner.until_done().content[-1].text == "It is 18 degrees in Paris."
    assert asked == ["Paris"]


class City(BaseModel):
    name: str
    people: int


def test_structured_output_parses(client):
    asked = dict(model=CHAT, max_tokens=400, messages=[{"role": "user", "content": "A city as JSON: name and people."}])
    parsed = client.messages.parse(**asked, output_format=City, extra_body={"temperature": 0})
    if parsed.stop_reason == "end_turn":
        assert isinstance(parsed.parsed_output, City)
    schema = {"type": "object", "properties": {"a": {"enum": [1, "x"]}}, "required": ["a"], "additionalProperties": False}
    message = client.messages.create(
        **asked, output_config={"format": {"type": "json_schema", "schema": schema}}, extra_body={"temperature": 0})
    assert json.loads(message.content[0].text)["a"] in (1, "x") and message.stop_reason == "end_turn"
    with pytest.raises(anthropic.BadRequestError) as told:
        client.messages.create(**asked, output_config={"format": {"type": "json_schema", "schema": {"type": "nothing"}}})
    assert told.value.body["error"]["message"].startswith("output_config.format.schema")
    with pytest.raises(anthropic.BadRequestError) as told:
        client.messages.create(**asked, tools=[{"name": "f", "input_schema": {"type": "nothing"}}], tool_choice={"type": "any"})
    assert told.value.body["error"]["message"].startswith("tools.0.input_schema")
