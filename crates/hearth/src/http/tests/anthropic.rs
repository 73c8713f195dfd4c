//! Anthropic's routes.

use super::*;
use serde_json::json;

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const VERSION: &str = "anthropic-version: 2023-06-01";

fn asking(prompt: &str, more: &str) -> String {
    format!(r#"{{"model":"echo","max_tokens":50,"messages":[{{"role":"user","content":"{prompt}"}}]{more}}}"#)
}

/// Names and data of the events of a stream.
fn named(reply: &Reply) -> Vec<(String, Value)> {
    let events = reply.body.split("\n\n").filter(|event| !event.is_empty());
    events
        .map(|event| {
            let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("no name: {event}"));
            let name = name.strip_prefix("event: ").unwrap_or_else(|| panic!("no name: {event}"));
            let data = data.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {event}"));
            (name.to_owned(), serde_json::from_str(data).unwrap())
        })
        .collect()
}

#[track_caller]
fn check(reply: &Reply, status: u16, kind: &str, message: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let body = reply.json();
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], kind);
    assert!(body["error"]["message"].as_str().unwrap().contains(message), "{body}");
    let id = reply.header("request-id").unwrap();
    assert_eq!((body["request_id"].as_str(), reply.header("x-request-id")), (Some(id), Some(id)));
}

#[tokio::test]
async fn a_message_has_anthropics_shape() {
    let server = Server::start().await;
    let reply = server.post(MESSAGES, asking("hello big world", "")).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.header("request-id").unwrap().starts_with("req_"));
    let body = reply.json();
    assert!(body["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(body["content"], json!([{"type": "text", "text": "hello big world", "citations": null}]));
    assert_eq!(
        (&body["type"], &body["role"], &body["model"]),
        (&json!("message"), &json!("assistant"), &json!("echo"))
    );
    assert_eq!((&body["stop_reason"], &body["stop_sequence"]), (&json!("end_turn"), &json!(null)));
    let usage = &body["usage"];
    assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(2), &json!(1)));
    assert_eq!(usage["output_tokens"], 3);
    let cut = server.post(MESSAGES, asking("hello big world", "").replace(":50", ":2")).await.json();
    assert_eq!(
        (&cut["content"][0]["text"], &cut["stop_reason"]),
        (&json!("hello big"), &json!("max_tokens"))
    );
    server.stop().await;
}

#[tokio::test]
async fn a_stream_has_anthropics_events() {
    let server = Server::start().await;
    let reply = server.post(MESSAGES, asking("hello world", r#","stream":true"#)).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = named(&reply);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 1);
    assert_eq!(
        events[4].1,
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " world"}})
    );
    assert_eq!(events[6].1["usage"]["output_tokens"], 2);
    server.stop().await;
}

#[tokio::test]
async fn calls_thoughts_and_stop_texts_go_both_ways() {
    let server = Server::start().await;
    let deltas = || {
        vec![
            STARTED,
            Delta::Reasoning { choice: 0, text: "Hm.".into() },
            text(0, "Now."),
            Delta::ToolCallStart { choice: 0, index: 0, id: "call_7".into(), name: "f".into() },
            Delta::ToolCallArguments { choice: 0, index: 0, arguments: "{\"a\"".into() },
            Delta::ToolCallArguments { choice: 0, index: 0, arguments: ": 1}".into() },
            Delta::Finish { choice: 0, reason: FinishReason::ToolCalls, stop_text: None },
            usage(4, 5),
        ]
    };
    let asked = asking("told", r#","tools":[{"name":"f","input_schema":{}}]"#);
    let tell = server.tell();
    let telling = tokio::spawn(async move {
        for delta in deltas() {
            tell.send(Ok(delta)).await.unwrap();
        }
    });
    let body = server.post(MESSAGES, &asked).await.json();
    telling.await.unwrap();
    assert_eq!(body["content"][0]["thinking"], "Hm.");
    assert!(!body["content"][0]["signature"].as_str().unwrap().is_empty());
    assert_eq!(body["content"][1]["text"], "Now.");
    assert_eq!(
        body["content"][2],
        json!({"type": "tool_use", "id": "toolu_7", "name": "f", "input": {"a": 1}})
    );
    assert_eq!(body["stop_reason"], "tool_use");

    // The next turn: what the client got, sent back as it was.
    let next = json!({"model": "echo", "max_tokens": 5, "messages": [
        {"role": "user", "content": "told"},
        {"role": "assistant", "content": body["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_7", "content": "fine"}]},
    ]});
    assert_eq!(server.post(MESSAGES, next.to_string()).await.status, 200);
    let Input::Chat(messages) = server.seen().input else { panic!("a conversation") };
    assert_eq!(messages[1].reasoning.as_deref(), Some("Hm."));
    assert_eq!(messages[1].tool_calls[0].id, "call_7");
    assert_eq!(messages[2].tool_call_id.as_deref(), Some("call_7"));

    let tell = server.tell();
    let stopped = tokio::spawn(async move {
        let end = Delta::Finish { choice: 0, reason: FinishReason::Stop, stop_text: Some("END".into()) };
        for delta in [STARTED, text(0, "x"), end, usage(1, 1)] {
            tell.send(Ok(delta)).await.unwrap();
        }
    });
    let body = server.post(MESSAGES, asking("told", r#","stop_sequences":["END"]"#)).await.json();
    stopped.await.unwrap();
    assert_eq!((&body["stop_reason"], &body["stop_sequence"]), (&json!("stop_sequence"), &json!("END")));
    assert_eq!(server.seen().stop, ["END"]);
    server.stop().await;
}

#[tokio::test]
async fn errors_have_anthropics_types() {
    let server = Server::start().await;
    let post = async |body: String| server.post(MESSAGES, body).await;
    check(
        &post(asking("hi", r#","n":2"#)).await,
        400,
        "invalid_request_error",
        "n: Extra inputs are not permitted",
    );
    check(&post("{".into()).await, 400, "invalid_request_error", "not valid JSON");
    let wrong = asking("hi", "").replace("echo", "nobody");
    check(&post(wrong).await, 404, "not_found_error", "model: there is no model");
    check(&post(asking("toolless", "")).await, 400, "invalid_request_error", "tools: no tools here");
    check(&post(asking("long", "")).await, 400, "invalid_request_error", "prompt is too long: 10 tokens");
    check(&post(asking("panic", "")).await, 500, "api_error", "");
    let full = post(asking("full", "")).await;
    check(&full, 429, "rate_limit_error", "the queue is full");
    assert_eq!(full.header("retry-after"), Some("2"));
    check(&post(asking("cut", "")).await, 529, "overloaded_error", "cut short");
    check(&post(asking("fail later", "")).await, 529, "overloaded_error", "the engine failed");
    check(&server.get(MESSAGES).await, 405, "invalid_request_error", "GET");
    check(&server.post("/v1/messages/batches", "{}").await, 404, "not_found_error", "No route");
    check(&server.send("GET", "/v1/nothing", &[VERSION], b"").await, 404, "not_found_error", "No route");
    let foreign = server.send("POST", MESSAGES, &["host: example.com"], b"{}").await;
    check(&foreign, 403, "permission_error", "Host");
    server.stop().await;
}

#[tokio::test]
async fn an_error_in_mid_stream_is_an_event_of_its_name() {
    let server = Server::start().await;
    for (prompt, kind) in
        [("fail later", "overloaded_error"), ("cut", "overloaded_error"), ("panic later", "api_error")]
    {
        let reply = server.post(MESSAGES, asking(prompt, r#","stream":true"#)).await;
        assert_eq!(reply.status, 200);
        let events = named(&reply);
        let (name, data) = events.last().unwrap();
        assert_eq!((name.as_str(), &data["error"]["type"]), ("error", &json!(kind)), "{prompt}");
        assert!(events.iter().all(|(name, _)| name != "message_stop"));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_key_is_taken_from_anthropics_header_and_missed_in_its_words() {
    let server = Server::with(Config { api_key: Some("s3cret".into()), ..Config::default() }).await;
    check(&server.post(MESSAGES, asking("hi", "")).await, 401, "authentication_error", "API key");
    check(&server.send("GET", "/v1/models", &[VERSION], b"").await, 401, "authentication_error", "API key");
    let reply = server.send("POST", MESSAGES, &["x-api-key: s3cret"], asking("hi", "").as_bytes()).await;
    assert_eq!(reply.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_body_past_the_limit_is_request_too_large() {
    let server = Server::with(Config { body_limit: base::Bytes(100), ..Config::default() }).await;
    let reply = server.post(MESSAGES, asking(&"x".repeat(200), "")).await;
    check(&reply, 413, "request_too_large", "larger");
    server.stop().await;
}

#[tokio::test]
async fn tokens_are_counted_without_an_answer() {
    let server = Server::start().await;
    let body =
        r#"{"model":"echo","system":"be brief","messages":[{"role":"user","content":"hello big world"}]}"#;
    let reply = server.post(COUNT, body).await;
    assert_eq!(reply.json(), json!({"input_tokens": 5}));
    assert!(server.fake.requests.lock().unwrap().is_empty(), "nothing was generated");
    check(&server.post(COUNT, "{}").await, 400, "invalid_request_error", "model: Field required");
    server.stop().await;
}

#[tokio::test]
async fn models_are_listed_for_the_client_that_asks() {
    let server = Server::start().await;
    let list = server.send("GET", "/v1/models?limit=5", &[VERSION], b"").await.json();
    assert_eq!(
        (&list["first_id"], &list["last_id"], &list["has_more"]),
        (&json!("echo"), &json!("echo"), &json!(false))
    );
    assert_eq!(list["data"][0]["type"], "model");
    let one = server.send("GET", "/v1/models/@cf/test/echo", &[VERSION], b"").await.json();
    assert_eq!((&one["id"], &one["created_at"]), (&json!("echo"), &json!("2026-02-02T10:00:00Z")));
    check(&server.send("GET", "/v1/models/nobody", &[VERSION], b"").await, 404, "not_found_error", "nobody");
    check(
        &server.send("GET", "/v1/models?limit=0", &[VERSION], b"").await,
        400,
        "invalid_request_error",
        "limit:",
    );
    // Others get OpenAI's shape.
    assert_eq!(server.get("/v1/models").await.json()["object"], "list");
    assert_eq!(server.get("/v1/models/echo").await.json()["object"], "model");
    server.stop().await;
}

#[tokio::test]
async fn the_same_routes_are_under_workers_ais_prefix() {
    let server = Server::start().await;
    let prefix = "/client/v4/accounts/a/ai";
    let reply = server
        .post(&format!("{prefix}{MESSAGES}"), asking("hi you", "").replace("\"echo\"", "\"@cf/test/echo\""))
        .await;
    assert_eq!(reply.json()["content"][0]["text"], "hi you");
    assert_eq!(reply.header("cf-ai-req-id"), reply.header("request-id"));
    assert_eq!(
        server.post(&format!("{prefix}{COUNT}"), asking("hi you", "")).await.json()["input_tokens"],
        2
    );
    check(
        &server.post(&format!("{prefix}{MESSAGES}"), "{}").await,
        400,
        "invalid_request_error",
        "model: Field required",
    );
    let list = server.send("GET", &format!("{prefix}/v1/models"), &[VERSION], b"").await.json();
    assert_eq!(list["first_id"], "echo");
    server.stop().await;
}

#[tokio::test]
async fn headers_name_the_session_before_the_body_does() {
    let server = Server::start().await;
    let body = asking("hi", r#","metadata":{"user_id":"body"}"#);
    for (header, session) in [
        ("x-other: a", "body"),
        ("x-claude-code-session-id: code", "code"),
        ("x-session-affinity: own", "own"),
    ] {
        let reply = server.send("POST", MESSAGES, &[header], body.as_bytes()).await;
        assert_eq!(reply.status, 200);
        assert_eq!(server.seen().session.as_deref(), Some(session));
    }
    server.stop().await;
}
