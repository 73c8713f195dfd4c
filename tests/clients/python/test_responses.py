"""OpenAI's Responses API with the `openai` client: answers, streams, structured output, tools, and what is kept."""
import json

import httpx
import openai
import pytest
from conftest import CHAT, CODER, MODELS, Server
from openai.types.responses import Response
from pydantic import BaseModel, ConfigDict

QUESTION = "Name three rivers."

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class River(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    length_km: int


@pytest.fixture
def coder_client(coder):
    """A client of a model that knows tools."""
    return openai.OpenAI(base_url=f"{coder.base}/v1", api_key="unused", max_retries=0)


def checked(response):
    """The response, held to the client's own types: the client itself builds them unchecked."""
    Response.model_validate(json.loads(response.model_dump_json(exclude_unset=True)), strict=False)
    return response


def test_a_response_has_every_field_that_the_client_requires(openai_client):
    response = checked(openai_client.responses.create(model=CHAT, input=QUESTION, max_output_tokens=16, temperature=0))
    assert response.output_text
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 16
    assert response.usage.total_tokens == response.usage.input_tokens + 16
    assert [item.type for item in response.output] == ["message"]


def test_raw_events_rebuild_the_response(openai_client):
    asked = dict(model=CHAT, input=QUESTION, max_output_tokens=12, temperature=0, store=False)
    whole = openai_client.responses.create(**asked)
    events = list(openai_client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == "response.incomplete"
    assert text == events[-1].response.output_text == whole.output_text
    checked(events[-1].response)


def test_the_streaming_helper_follows_to_the_end(openai_client):
    with openai_client.responses.stream(model=CHAT, input="Say OK.", temperature=0, max_output_tokens=200) as stream:
        snapshot = ""
        for event in stream:
            if event.type == "response.output_text.delta":
                snapshot += event.delta
                assert event.snapshot == snapshot
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text == snapshot


def test_log_probabilities_come_with_the_text(openai_client):
    response = openai_client.responses.create(
        model=CHAT, input=QUESTION, max_output_tokens=4, temperature=0, top_logprobs=2,
        include=["message.output_text.logprobs"],
    )
    entries = response.output[0].content[0].logprobs
    assert len(entries) == 4 and all(len(entry.top_logprobs) == 2 for entry in entries)
    assert "".join(entry.token for entry in entries) == response.output_text


def test_a_conversation_goes_on_from_a_kept_response_and_its_prefix_is_cached(openai_client):
    first = openai_client.responses.create(model=CHAT, input=QUESTION, max_output_tokens=24, temperature=0)
    second = openai_client.responses.create(
        model=CHAT, input="And three more.", previous_response_id=first.id, max_output_tokens=8, temperature=0
    )
    by_hand = openai_client.responses.create(
        model=CHAT,
        input=[{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "And three more."}],
        max_output_tokens=8, temperature=0, store=False,
    )
    assert second.output_text == by_hand.output_text
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    items = list(openai_client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert items[1].id == first.output[0].id


def test_an_unknown_response_is_told_as_openai_tells_it(openai_client):
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.responses.create(model=CHAT, input="x", previous_response_id="resp_0")
    assert caught.value.param == "previous_response_id"
    assert "Previous response with id 'resp_0' not found." in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve("resp_0")


def test_a_response_can_be_retrieved_and_deleted(openai_client):
    made = openai_client.responses.create(model=CHAT, input=QUESTION, max_output_tokens=4, metadata={"a": "b"})
    kept = openai_client.responses.retrieve(made.id)
    assert kept.model_dump() == made.model_dump() and kept.metadata == {"a": "b"}
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        openai_client.responses.cancel(made.id)
    openai_client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(made.id)


def test_fields_that_cannot_be_had_are_refused_by_name(openai_client):
    for field, value in [("background", True), ("truncation", "auto"), ("tools", [{"type": "web_search"}])]:
        with pytest.raises(openai.BadRequestError) as caught:
            openai_client.responses.create(model=CHAT, input="x", **{field: value})
        assert caught.value.param.startswith(field)


def test_a_response_seen_completed_survives_kill_9(tmp_path):
    model = [(CHAT, MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf")]
    server = Server(tmp_path, models=model)
    client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="unused", max_retries=0)
    stream = client.responses.create(model=CHAT, input=QUESTION, max_output_tokens=6, stream=True)
    *_, last = stream
    server.process.kill()
    server.process.wait()
    server = Server(tmp_path, models=model)
    try:
        client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="unused", max_retries=0)
        assert client.responses.retrieve(last.response.id).output_text == last.response.output_text
        client.responses.create(
            model=CHAT, input="Go on.", previous_response_id=last.response.id, max_output_tokens=4
        )
    finally:
        server.stop()


def test_a_server_that_keeps_no_responses_answers_what_needs_none(tmp_path):
    (tmp_path / "hearth.toml").write_text("responses-retention = 0\n")
    model = (CHAT, MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf")
    server = Server(tmp_path, "--config", str(tmp_path / "hearth.toml"), models=[model])
    try:
        client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="unused", max_retries=0)
        response = client.responses.create(model=CHAT, input="x", max_output_tokens=2)
        assert response.model_extra["store"] is False
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=CHAT, input="x", store=True)
        assert caught.value.param == "store"
    finally:
        server.stop()


def test_structured_output_parses_into_its_model(coder_client):
    parsed = coder_client.responses.parse(
        model=CODER, input="Give the river Rhine.", text_format=River, temperature=0, max_output_tokens=200
    )
    assert isinstance(parsed.output_parsed, River)
    with coder_client.responses.stream(
        model=CODER, input="Give the river Rhine.", text_format=River, temperature=0, max_output_tokens=200
    ) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == parsed.output_parsed


def test_a_schema_that_cannot_be_had_is_named_by_its_pointer(coder_client):
    schema = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        coder_client.responses.create(
            model=CODER, input="x", text={"format": {"type": "json_schema", "name": "n", "schema": schema}}
        )
    assert caught.value.param == "text.format.schema/properties/a/type"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop_ends_with_words(coder_client, streamed):
    def ask(**more):
        asked = dict(model=CODER, tools=[WEATHER], temperature=0, max_output_tokens=200, **more)
        if not streamed:
            return checked(coder_client.responses.create(**asked))
        with coder_client.responses.stream(**asked) as stream:
            return stream.get_final_response()

    first = ask(input="What is the weather in Paris?", tool_choice="required", parallel_tool_calls=False)
    call = first.output[-1]
    assert call.type == "function_call" and call.name == "get_weather" and first.status == "completed"
    assert set(json.loads(call.arguments)) == {"city"}
    second = ask(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "clear"}'}],
        previous_response_id=first.id,
        tool_choice="none",
    )
    assert second.output_text


def test_a_tool_that_is_named_is_called_and_the_events_rebuild_its_arguments(coder_client):
    events = list(
        coder_client.responses.create(
            model=CODER, input="Weather in Rome?", tools=[WEATHER], temperature=0, stream=True,
            tool_choice={"type": "function", "name": "get_weather"}, max_output_tokens=200,
        )
    )
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert json.loads(arguments)
    assert [item.type for item in events[-1].response.output] == ["function_call"]
    assert events[-1].response.output[0].arguments == arguments


def test_the_same_routes_stand_under_workers_ai(server):
    client = openai.OpenAI(base_url=f"{server.base}/client/v4/accounts/a/ai/v1", api_key="unused", max_retries=0)
    made = client.responses.create(model=CHAT, input=QUESTION, max_output_tokens=4)
    assert client.responses.retrieve(made.id).output_text == made.output_text


def test_events_on_the_wire_have_names(server):
    body = {"model": CHAT, "input": "Hi", "max_output_tokens": 3, "stream": True, "store": False}
    with httpx.stream("POST", f"{server.base}/v1/responses", json=body, timeout=60) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[0] == "event: response.created"
    assert all(
        name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
        for name, data in zip(lines[::2], lines[1::2], strict=True)
    )
