"""The openai SDK, unmodified, with a provider that proves its thoughts: what it gave comes back in the next turn."""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest

from conftest import Server

SIGNATURE, SEALED = "SIG+abc/==", "SEALED/=="
THINKING = {"type": "thinking", "thinking": "I think.", "signature": SIGNATURE}
HIDDEN = {"type": "redacted_thinking", "data": SEALED}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"city": "Oslo"}}
TOOL = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


def events(message):
    """The events of a message of Anthropic's."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        begun, deltas = dict(block), []
        if block["type"] == "thinking":
            begun.update(thinking="", signature="")
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        elif block["type"] == "tool_use":
            begun["input"] = {}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, "usage": message["usage"]}
    yield {"type": "message_stop"}


class Provider(BaseHTTPRequestHandler):
    """Answers as Anthropic's API would: a thoughtful call, and behind the call's result a text."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked)
        answered = any(
            block["type"] == "tool_result"
            for turn in asked["messages"]
            for block in turn["content"]
            if isinstance(block, dict)
        )
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [{"type": "text", "text": "4 degrees."}] if answered else [THINKING, HIDDEN, CALL],
            "stop_reason": "end_turn" if answered else "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 9, "output_tokens": 5, "cache_creation_input_tokens": 20},
        }
        if asked.get("stream"):
            frames = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events(message))
            body, kind = "".join(frames).encode(), "text/event-stream"
        else:
            body, kind = json.dumps(message).encode(), "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def provider():
    provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    provider.asked = []
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    yield provider
    provider.shutdown()


@pytest.fixture(scope="module")
def client(provider, tmp_path_factory):
    folder = tmp_path_factory.mktemp("proofs")
    settings = folder / "hearth.toml"
    settings.write_text(
        f"""
[providers.custom-claude]
base-url = "http://127.0.0.1:{provider.server_port}/v1"
dialect = "anthropic"
"""
    )
    server = Server(folder, "--config", str(settings))
    yield openai.OpenAI(base_url=f"{server.base}/v1", api_key="unused", max_retries=0)
    server.stop()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_the_responses_api_brings_proofs_back_to_the_provider(client, provider, stream, kept):
    asking = {"model": "custom-claude/claude", "tools": [TOOL], "reasoning": {"effort": "low"}}
    if not kept:
        asking |= {"store": False, "include": ["reasoning.encrypted_content"]}

    def ask(**more):
        if not stream:
            return client.responses.create(**asking, **more)
        with client.responses.stream(**asking, **more) as streamed:
            return streamed.get_final_response()

    question = {"role": "user", "content": "How warm is Oslo?"}
    first = ask(input=[question])
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    assert first.output[0].content[0].text == "I think."
    assert bool(first.output[0].encrypted_content) != kept
    assert first.usage.input_tokens_details.model_dump()["cache_write_tokens"] == 20
    result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "4"}
    if kept:
        second = ask(input=[result], previous_response_id=first.id)
    else:
        second = ask(input=[question, *(item.model_dump(exclude_none=True) for item in first.output), result])
    assert second.output_text == "4 degrees."
    asked = provider.asked[-1]
    assert asked["thinking"]["type"] == "enabled"
    assert asked["messages"][1]["content"] == [THINKING, HIDDEN, CALL]
