"""Tools and structured answers through the `openai` Python client, unmodified, with a model that calls tools."""
import json
import re
from typing import Literal, Optional

import openai
import pytest
from pydantic import BaseModel, Field

from conftest import CODER

GREEDY = {"model": CODER, "temperature": 0, "max_tokens": 200}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
# A small model that must call, and may call again, goes on for ever.
ONCE = {"parallel_tool_calls": False}
ASK = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]
MARKUP = ("<tool_call>", "</tool_call>", "<|im_end|>")


@pytest.fixture(scope="module")
def client(coder):
    return openai.OpenAI(base_url=f"{coder.base}/v1", api_key="unused", max_retries=0)


def create(client, **more):
    return client.chat.completions.create(**(GREEDY | more))


def check_call(call):
    assert call.id and call.type == "function" and call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("celsius", "fahrenheit")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_demanded_call_is_made_and_its_arguments_obey_the_schema(client, choice):
    for temperature in (0, 1.5):
        answer = create(client, messages=ASK, tools=[WEATHER], tool_choice=choice, temperature=temperature, seed=3, **ONCE).choices[0]
        assert answer.finish_reason == "tool_calls" and answer.message.content is None
        (call,) = answer.message.tool_calls
        check_call(call)


def test_calls_stream_as_they_are_made_and_are_those_of_the_whole_answer(client):
    asked = {"messages": ASK, "tools": [WEATHER], "tool_choice": "required"} | ONCE
    whole = create(client, **asked).choices[0]
    chunks = [c.choices[0] for c in create(client, stream=True, **asked)]
    calls = [d for c in chunks for d in c.delta.tool_calls or []]
    assert calls[0].id and calls[0].function.name == "get_weather" and calls[0].function.arguments == ""
    assert len(calls) > 3, "arguments come in pieces"
    assert "".join(c.function.arguments for c in calls if c.index == 0) == whole.message.tool_calls[0].function.arguments
    assert [c.finish_reason for c in chunks if c.finish_reason] == ["tool_calls"]


def test_a_tool_loop_goes_round(client):
    first = create(client, messages=ASK, tools=[WEATHER], tool_choice="required", **ONCE).choices[0].message
    history = ASK + [
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": json.dumps({"temperature": 21, "sky": "clear"})},
    ]
    second = create(client, messages=history, tools=[WEATHER], tool_choice="none").choices[0]
    assert second.finish_reason == "stop" and second.message.tool_calls is None
    assert "21" in second.message.content
    assert not any(mark in second.message.content for mark in MARKUP)


def test_no_tools_are_called_where_none_may_be(client):
    answer = create(client, messages=ASK, tools=[WEATHER], tool_choice="none", max_tokens=60).choices[0]
    assert answer.message.tool_calls is None and answer.finish_reason in ("stop", "length")


@pytest.mark.parametrize("most", [1, 3, 8, 15, 20, 30])
def test_the_finish_reason_is_the_same_streamed_and_not_for_every_limit(client, most):
    asked = {"messages": ASK, "tools": [WEATHER, CLOCK], "tool_choice": "required", "max_tokens": most}
    whole = create(client, **asked).choices[0]
    chunks = [c.choices[0] for c in create(client, stream=True, **asked)]
    assert [c.finish_reason for c in chunks if c.finish_reason] == [whole.finish_reason]
    text = "".join(c.delta.content or "" for c in chunks)
    assert text == (whole.message.content or "")
    # The head of a call that was cut before its name comes back as text, and says so.
    flagged = (whole.message.model_extra or {}).get("malformed_tool_calls")
    assert flagged or not any(mark in text for mark in MARKUP)
    assert sum(bool(d.id) for c in chunks for d in c.delta.tool_calls or []) == len(whole.message.tool_calls or [])


def test_one_call_at_most_where_the_caller_says_so(client):
    messages = [{"role": "user", "content": "Weather in Paris, and in Rome, and in Oslo? All in celsius."}]
    asked = {"messages": messages, "tools": [WEATHER], "tool_choice": "required"}
    several = create(client, **asked, parallel_tool_calls=True).choices[0].message.tool_calls
    assert len(several) > 1 and len({call.id for call in several}) == len(several)
    for limits in ({}, ONCE):
        assert len(create(client, **asked, **limits).choices[0].message.tool_calls) == 1


class Address(BaseModel):
    street: str
    number: int = Field(ge=1, le=9999)


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int
    kind: Literal["friend", "colleague"]
    address: Optional[Address]
    tags: list[str] = Field(max_length=3)


INVENT = [{"role": "user", "content": "Invent a person who lives at Main Street 5. Answer in JSON."}]


def test_the_parse_helper_gives_a_typed_object(client):
    parsed = client.chat.completions.parse(messages=INVENT, response_format=Person, **GREEDY)
    person = parsed.choices[0].message.parsed
    assert isinstance(person, Person) and person.kind in ("friend", "colleague")


def test_the_parse_helper_gives_typed_arguments(client):
    class get_weather(BaseModel):
        city: str

    parsed = client.chat.completions.parse(
        messages=ASK, tools=[openai.pydantic_function_tool(get_weather)], tool_choice="required",
        **GREEDY, **ONCE,
    )
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, get_weather)


def test_the_stream_helper_gives_typed_objects_and_events(client):
    with client.chat.completions.stream(messages=INVENT, response_format=Person, **GREEDY) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Person)
    with client.chat.completions.stream(messages=ASK, tools=[WEATHER], tool_choice="required", **GREEDY, **ONCE) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    check_call(final.choices[0].message.tool_calls[0])


def test_a_cut_document_says_so(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(messages=INVENT, response_format=Person, **(GREEDY | {"max_tokens": 5}))
    answer = create(client, messages=INVENT, response_format={"type": "json_object"}, max_tokens=5).choices[0]
    assert answer.finish_reason == "length" and answer.message.content.startswith("{")


def test_json_objects_expressions_and_grammars(client):
    answer = create(client, messages=INVENT, response_format={"type": "json_object"}, n=2, temperature=1.2, seed=1)
    assert all(isinstance(json.loads(c.message.content), dict) for c in answer.choices if c.finish_reason == "stop")
    pattern = r"[A-Z]{3}-[0-9]{4}"
    for extra in ({"response_format": {"type": "regex", "regex": pattern}}, {"guided_regex": pattern}):
        text = create(client, messages=[{"role": "user", "content": "A part number?"}], extra_body=extra).choices[0].message.content
        assert re.fullmatch(pattern, text), text
    grammar = 'start: "yes" | "no"'
    answer = create(client, messages=[{"role": "user", "content": "Is water wet?"}], logprobs=True,
                    extra_body={"response_format": {"type": "lark", "grammar": grammar}}).choices[0]
    assert answer.message.content in ("yes", "no")
    assert "".join(e.token for e in answer.logprobs.content) == answer.message.content


@pytest.mark.parametrize("change, param", [
    ({"tools": [WEATHER | {"function": WEATHER["function"] | {"parameters": {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}}}}],
      "tool_choice": "required"}, "tools[0].function.parameters"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"x": {"type": "nothing"}}}}}},
     "response_format.json_schema.schema"),
    ({"extra_body": {"guided_json": {"type": "object", "properties": {"x": {"type": "nothing"}}}}}, "guided_json"),
    ({"extra_body": {"response_format": {"type": "regex", "regex": "("}}}, "response_format.regex"),
    ({"extra_body": {"guided_grammar": "start: ("}}, "guided_grammar"),
    ({"messages": ASK + [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"}], "tools": [WEATHER]}, "messages[1].tool_calls[0].function.arguments"),
    ({"messages": ASK + [{"role": "tool", "tool_call_id": "nobody", "content": "x"}], "tools": [WEATHER]}, "messages[1].tool_call_id"),
])
def test_what_cannot_be_had_is_a_400_that_names_the_place(client, change, param):
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, **({"messages": ASK} | change))
    assert caught.value.param.startswith(param), caught.value


def test_tokens_go_there_and_back(client):
    text = "Hello, wörld 🦀"
    tokens = client.post("/tokenize", cast_to=object, body={"model": CODER, "prompt": text})
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] > 0
    back = client.post("/detokenize", cast_to=object, body={"model": CODER, "tokens": tokens["tokens"]})
    assert back == {"prompt": text}
    prompt = client.post("/tokenize", cast_to=object, body={
        "model": CODER, "messages": ASK, "tools": [WEATHER], "return_token_strs": True})
    assert "".join(prompt["token_strs"]).endswith("<|im_start|>assistant\n") and "get_weather" in "".join(prompt["token_strs"])
    answer = create(client, messages=ASK, tools=[WEATHER], max_tokens=1)
    assert answer.usage.prompt_tokens == prompt["count"]
