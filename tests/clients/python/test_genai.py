"""google-genai, unmodified, before a Hearth whose provider is a Gemini that answers from a script; and the openai SDK, whose
requests are translated to the same."""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from conftest import Server

KEY = "of-the-provider"
USAGE = {"promptTokenCount": 10, "cachedContentTokenCount": 4, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 15}
CALL = {"functionCall": {"name": "weather", "args": {"city": "Zürich 語🦀"}}, "thoughtSignature": "c2ln"}


def chunk(parts, **more):
    candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **more}
    return {"candidates": [candidate], "usageMetadata": USAGE, "responseId": "r1", "modelVersion": "gemini-2.5-flash"}


class Gemini(BaseHTTPRequestHandler):
    """Answers with a call where tools are offered, else with the words of the last part."""

    seen = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        Gemini.seen.append((self.path, dict(self.headers.items()), body))
        asked = json.loads(body)
        if ":countTokens" in self.path:
            return self.answer("application/json", json.dumps({"totalTokens": 7}).encode())
        if ":batchEmbedContents" in self.path or ":embedContent" in self.path:
            vector = {"values": [0.5, 0.25]}
            return self.answer("application/json", json.dumps({"embeddings": [vector], "embedding": vector}).encode())
        last = asked["contents"][-1]["parts"][-1]
        if last.get("text") == "refuse":
            error = {"error": {"code": 429, "message": "Quota.", "status": "RESOURCE_EXHAUSTED"}}
            return self.answer("application/json", json.dumps(error).encode(), status=429)
        if asked.get("tools") and "functionResponse" not in last:
            chunks = [chunk([{"text": "I look."}]), chunk([CALL], finishReason="STOP")]
        else:
            words = last["text"] if "text" in last else json.dumps(last["functionResponse"]["response"])
            chunks = [chunk([{"text": word}]) for word in (words[:2], words[2:])]
            chunks[-1]["candidates"][0]["finishReason"] = "STOP"
        if ":streamGenerateContent" in self.path:
            events = "".join(f"data: {json.dumps(each, ensure_ascii=False)}\r\n\r\n" for each in chunks)
            return self.answer("text/event-stream", events.encode())
        parts = [part for each in chunks for part in each["candidates"][0]["content"]["parts"]]
        self.answer("application/json; charset=UTF-8", json.dumps(chunk(parts, finishReason="STOP")).encode())

    def answer(self, kind, body, status=200):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def gemini():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gemini)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def front(gemini, tmp_path_factory):
    folder = tmp_path_factory.mktemp("genai")
    settings = folder / "hearth.toml"
    settings.write_text(
        f"""
[providers.google-ai-studio]
base-url = "http://127.0.0.1:{gemini.server_port}"
keys = [{{ key = "{KEY}" }}]
"""
    )
    front = Server(folder, "--config", str(settings))
    yield front
    front.stop()


@pytest.fixture
def client(front):
    base = f"{front.base}/v1/default/default/google-ai-studio"
    return genai.Client(api_key="unused", http_options=types.HttpOptions(base_url=base))


def weather(city: str) -> str:
    """Tells the weather of a city."""
    return "rain"


MODEL = "gemini-2.5-flash"


def test_an_answer_and_its_usage_come_back(client):
    answer = client.models.generate_content(model=MODEL, contents="語🦀 hello")
    assert answer.text == "語🦀 hello"
    assert (answer.usage_metadata.cached_content_token_count, answer.usage_metadata.total_token_count) == (4, 15)
    path, headers, _ = Gemini.seen[-1]
    assert path in [f"/{version}/models/gemini-2.5-flash:generateContent" for version in ("v1", "v1beta")]
    assert headers.get("x-goog-api-key", headers.get("X-Goog-Api-Key")) == KEY


def test_a_stream_comes_event_by_event(client):
    chunks = list(client.models.generate_content_stream(model=MODEL, contents="語🦀 hello"))
    assert "".join(each.text for each in chunks) == "語🦀 hello"
    assert len(chunks) == 2 and chunks[-1].usage_metadata.total_token_count == 15


def test_the_sdks_own_loop_of_calls_ends(client):
    config = types.GenerateContentConfig(tools=[weather])
    answer = client.models.generate_content(model=MODEL, contents="How is it?", config=config)
    assert json.loads(answer.text) == {"result": "rain"}
    # What the SDK sent goes on byte for byte, the proof of the thoughts included.
    assert any(part.get("thoughtSignature") == "c2ln" for turn in json.loads(Gemini.seen[-1][2])["contents"] for part in turn["parts"])


def test_counting_and_embedding_pass(client):
    assert client.models.count_tokens(model=MODEL, contents="a").total_tokens == 7
    assert client.models.embed_content(model="gemini-embedding-001", contents="a").embeddings[0].values == [0.5, 0.25]


def test_anthropics_sdk_counts_there(front):
    client = anthropic.Anthropic(base_url=front.base, api_key="unused", max_retries=0)
    counted = client.messages.count_tokens(model=f"google-ai-studio/{MODEL}", messages=[{"role": "user", "content": "a"}])
    assert counted.input_tokens == 7
    asked = json.loads(Gemini.seen[-1][2])["generateContentRequest"]
    assert asked["contents"] == [{"role": "user", "parts": [{"text": "a"}]}]


def test_a_refusal_is_the_sdks_exception(client):
    with pytest.raises(genai.errors.ClientError) as error:
        client.models.generate_content(model=MODEL, contents="refuse")
    assert (error.value.code, error.value.status) == (429, "RESOURCE_EXHAUSTED")


def test_openais_sdk_gets_the_same_translated(front):
    client = openai.OpenAI(base_url=f"{front.base}/v1", api_key="unused", max_retries=0)
    model = f"google-ai-studio/{MODEL}"
    ask = [{"role": "user", "content": "How is it?"}]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
    answer = client.chat.completions.create(model=model, messages=ask, tools=tools)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    call = choice.message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Zürich 語🦀"}
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens) == (10, 5, 4)
    # The next turn, streamed.
    ask += [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    stream = client.chat.completions.create(model=model, messages=ask, tools=tools, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert json.loads(text) == {"result": "rain"}
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "stop"
    assert chunks[-1].usage.total_tokens == 15
