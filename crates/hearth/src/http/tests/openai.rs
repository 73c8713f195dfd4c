//! OpenAI's routes.

use super::*;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_chat_completion_has_openais_shape() {
    let server = Server::start().await;
    let reply = server.post(CHAT, chat("hello big world", "")).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.header("x-request-id").unwrap().starts_with("req_"));
    let mut body = reply.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    for field in ["id", "created", "system_fingerprint"] {
        body.as_object_mut().unwrap().remove(field).unwrap();
    }
    assert_eq!(
        body,
        json!({
            "object": "chat.completion",
            "model": "echo",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "hello big world", "refusal": null},
                "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 3,
                "total_tokens": 6,
                "prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 0},
                "completion_tokens_details": {
                    "reasoning_tokens": 0,
                    "audio_tokens": 0,
                    "accepted_prediction_tokens": 0,
                    "rejected_prediction_tokens": 0,
                },
            },
            "service_tier": "default",
        })
    );
    server.stop().await;
}

#[tokio::test]
async fn a_chat_stream_has_openais_chunks() {
    let server = Server::start().await;
    let reply = server.post(CHAT, chat("hello world", r#","stream":true,"n":2"#)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = reply.events();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk.get("usage").is_none()));
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    let of = |index: u32, delta: Value, finish: Value| json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish});
    let role = json!({"role": "assistant", "content": "", "refusal": null});
    assert_eq!(
        choices,
        [
            &of(0, role.clone(), json!(null)),
            &of(1, role, json!(null)),
            &of(0, json!({"content": "hello"}), json!(null)),
            &of(0, json!({"content": " world"}), json!(null)),
            &of(0, json!({}), json!("stop")),
            &of(1, json!({"content": "hello"}), json!(null)),
            &of(1, json!({"content": " world"}), json!(null)),
            &of(1, json!({}), json!("stop")),
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn usage_comes_in_a_last_chunk_when_asked_for() {
    let server = Server::start().await;
    let body = chat("hello world", r#","stream":true,"stream_options":{"include_usage":true}"#);
    let reply = server.post(CHAT, body).await;
    let events = reply.events();
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (last, others) = chunks.split_last().unwrap();
    assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], 4);
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
    server.stop().await;
}

#[tokio::test]
async fn an_error_in_mid_stream_is_the_last_event() {
    let server = Server::start().await;
    for (prompt, code) in
        [("fail later", "service_unavailable"), ("cut", "service_unavailable"), ("panic later", "")]
    {
        let reply = server.post(CHAT, chat(prompt, r#","stream":true"#)).await;
        assert_eq!(reply.status, 200);
        let events = reply.events();
        assert!(!events.contains(&"[DONE]"), "{prompt}");
        let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
        assert_eq!(error["error"]["type"], "server_error", "{prompt}");
        assert_eq!(error["error"]["code"].as_str().unwrap_or(""), code, "{prompt}");
    }
    server.stop().await;
}

#[tokio::test]
async fn without_a_stream_a_failure_has_its_status() {
    let server = Server::start().await;
    for (prompt, status) in [
        ("fail later", 503),
        ("cut", 503),
        ("panic", 500),
        ("panic later", 500),
        ("full", 429),
        ("long", 400),
    ] {
        let reply = server.post(CHAT, chat(prompt, "")).await;
        assert_eq!(reply.status, status, "{prompt}");
        assert!(reply.json()["error"]["message"].is_string(), "{prompt}");
    }
    let reply = server.post(CHAT, chat("long", "")).await;
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(reply.json()["error"]["param"], "messages");
    // The server goes on.
    assert_eq!(server.post(CHAT, chat("hello", "")).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let server = Server::start().await;
    let reply = server.post(CHAT, chat("full", r#","stream":true"#)).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("retry-after"), Some("2"));
    assert_eq!(reply.header("retry-after-ms"), Some("1500"));
    assert_eq!(reply.json()["error"]["code"], "rate_limit_exceeded");
    server.stop().await;
}

#[tokio::test]
async fn bad_bodies_are_400_and_name_the_field() {
    let server = Server::start().await;
    let deep = format!(r#"{{"model":"echo","messages":{}{}}}"#, "[".repeat(1000), "]".repeat(1000));
    for (body, param, code) in [
        (b"" as &[u8], Value::Null, "invalid_json"),
        (b"[]", Value::Null, "invalid_json"),
        (b"{\"model\":\"\xff\"}", json!("model"), "invalid_json"),
        (br#"{"model":"echo","temperature":NaN}"#, json!("temperature"), "invalid_json"),
        (deep.as_bytes(), json!("messages[0][0][0][0][0][0][0][0]"), "invalid_json"),
        (br#"{"messages":[]}"#, json!("model"), "invalid_value"),
        (br#"{"model":"echo","messages":[]}"#, json!("messages"), "invalid_value"),
        (chat("a", r#","n":1000000"#).as_bytes(), json!("n"), "invalid_value"),
        (chat("a", r#","max_tokens":1e30"#).as_bytes(), json!("max_tokens"), "invalid_value"),
        (chat("a", r#","audio":{}"#).as_bytes(), json!("audio"), "unsupported_parameter"),
        (
            br#"{"model":"nope","messages":[{"role":"user","content":"a"}]}"#,
            json!("model"),
            "model_not_found",
        ),
    ] {
        let reply = server.post(CHAT, body).await;
        assert_eq!(reply.status, if code == "model_not_found" { 404 } else { 400 }, "{reply:?}");
        assert_eq!(reply.json()["error"]["param"], param, "{reply:?}");
        assert_eq!(reply.json()["error"]["code"], code, "{reply:?}");
    }
    assert_eq!(server.post(CHAT, chat("hello", "")).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn completions_of_many_prompts_are_numbered_through() {
    let server = Server::start().await;
    let body = r#"{"model":"echo","prompt":["a b","c"],"n":2,"echo":true,"logprobs":0}"#;
    let reply = server.post("/v1/completions", body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let body = reply.json();
    let texts: Vec<_> = body["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| (&choice["index"], &choice["text"]))
        .collect();
    assert_eq!(
        texts,
        [
            (&json!(0), &json!("a ba b")),
            (&json!(1), &json!("a ba b")),
            (&json!(2), &json!("cc")),
            (&json!(3), &json!("cc")),
        ]
    );
    assert_eq!(body["choices"][0]["logprobs"]["tokens"], json!(["a", " b", "a", " b"]));
    assert_eq!(body["choices"][0]["logprobs"]["text_offset"], json!([0, 1, 3, 4]));
    assert_eq!(body["usage"]["prompt_tokens"], 3);
    assert_eq!(body["usage"]["completion_tokens"], 6);

    let body = r#"{"model":"echo","prompt":["a b","c"],"stream":true,"echo":true}"#;
    let reply = server.post("/v1/completions", body).await;
    let mut texts = ["".to_owned(), "".to_owned()];
    for event in reply.events().iter().filter(|event| **event != "[DONE]") {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let choice = &chunk["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize].push_str(choice["text"].as_str().unwrap());
    }
    assert_eq!(texts, ["a ba b", "cc"]);
    server.stop().await;
}

#[tokio::test]
async fn embeddings_come_as_floats_or_base64() {
    let server = Server::start().await;
    let path = "/v1/embeddings";
    let reply = server.post(path, r#"{"model":"vectors","input":["ab",  "c"]}"#).await;
    assert_eq!(reply.json()["data"][0]["embedding"], json!([2.0, 0.5]));
    assert_eq!(reply.json()["data"][1]["index"], 1);
    let reply = server
        .post(path, r#"{"model":"vectors","input":[1,2],"encoding_format":"base64","dimensions":2}"#)
        .await;
    assert_eq!(reply.json()["data"][0]["embedding"], "AAAAQAAAAL8=");
    let reply = server.post(path, r#"{"model":"vectors","input":"a","dimensions":3}"#).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("dimensions")));
    let reply = server.post(path, r#"{"model":"echo","input":"a"}"#).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("model")));
    let reply = server.post(path, r#"{"model":"nope","input":"a"}"#).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    server.stop().await;
}

#[tokio::test]
async fn models_are_listed_and_found_by_any_name() {
    let server = Server::start().await;
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "echo");
    for path in ["/v1/models/echo", "/v1/models/@cf/test/echo", "/v1/models/%40cf%2Ftest%2Fecho"] {
        let reply = server.get(path).await;
        assert_eq!((reply.status, &reply.json()["id"]), (200, &json!("echo")), "{path}");
    }
    let reply = server.get("/v1/models/nope").await;
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, r#"there is no model "nope"; models here: echo, vectors, ranker"#);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    server.stop().await;
}

#[tokio::test]
async fn headers_name_the_session_before_the_body_does() {
    let server = Server::start().await;
    let body = chat("a", r#","prompt_cache_key":"body""#);
    for (headers, session) in [
        (&["x-session-affinity: one", "x-session-id: two"] as &[&str], "one"),
        (&["x-session-id: two"], "two"),
        (&[], "body"),
    ] {
        assert_eq!(server.send("POST", CHAT, headers, body.as_bytes()).await.status, 200);
        assert_eq!(server.seen().session.as_deref(), Some(session));
    }
    server.stop().await;
}
