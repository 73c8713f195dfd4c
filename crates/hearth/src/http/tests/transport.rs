//! What lies beneath the dialects: frames, disconnects, limits, keys, health, shutdown.

use super::*;
use base::Bytes;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn each_event_arrives_alone_and_before_the_next_is_made() {
    let server = Server::start().await;
    let tell = server.tell();
    let mut wire = server.connect().await;
    wire.request("POST", CHAT, &[], chat("told", r#","stream":true"#).as_bytes()).await;
    assert_eq!(wire.head().await.0, 200);
    // Nothing is said before what came earlier has arrived.
    tell.send(Ok(STARTED)).await.unwrap();
    assert!(wire.chunk().await.contains(r#""role":"assistant""#));
    for word in ["one", " zwei", " três", " 四"] {
        tell.send(Ok(text(0, word))).await.unwrap();
        let chunk = wire.chunk().await;
        assert!(chunk.starts_with("data: {") && chunk.ends_with("}\n\n"), "{chunk:?}");
        assert!(chunk.contains(&format!(r#""content":"{word}""#)), "{chunk:?}");
    }
    tell.send(Ok(Delta::Finish { choice: 0, reason: FinishReason::Stop, stop_text: None })).await.unwrap();
    assert!(wire.chunk().await.contains(r#""finish_reason":"stop""#));
    tell.send(Ok(usage(1, 4))).await.unwrap();
    assert_eq!(wire.chunk().await, "data: [DONE]\n\n");
    assert_eq!(wire.chunk().await, "");
    // The connection is there for the next request.
    wire.request("GET", "/v1/models", &[], b"").await;
    assert_eq!(wire.reply().await.status, 200);
    drop(wire);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_work() {
    let server = Server::start().await;
    for (count, stream) in [(1, r#","stream":true"#), (2, "")] {
        let mut wire = server.connect().await;
        wire.request("POST", CHAT, &[], chat("hang", stream).as_bytes()).await;
        if stream.is_empty() {
            while server.fake.requests.lock().unwrap().len() < count {
                tokio::task::yield_now().await;
            }
        } else {
            assert_eq!(wire.head().await.0, 200);
            wire.chunk().await;
        }
        drop(wire);
        server.fake.drop_seen.notified().await;
        assert_eq!(server.fake.dropped.load(Ordering::SeqCst), count);
    }
    let metrics = server.get("/metrics").await;
    assert!(metrics.body.contains("hearth_http_streams_abandoned_total 1"), "{}", metrics.body);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_never_reads_loses_its_stream() {
    let config = Config { write_idle: Duration::from_millis(50), ..Config::default() };
    let server = Server::with(config).await;
    let tell = server.tell();
    let mut wire = server.connect().await;
    wire.request("POST", CHAT, &[], chat("told", r#","stream":true"#).as_bytes()).await;
    // More than the machine's buffers hold; the backend's stream is dropped when it is given up.
    let long = "x".repeat(1 << 20);
    while tell.send(Ok(text(0, &long))).await.is_ok() {}
    server.fake.drop_seen.notified().await;
    drop(wire);
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_asks_nothing_is_closed_and_one_that_has_asked_is_kept() {
    let config = Config { first_request: Duration::from_millis(500), ..Config::default() };
    let server = Server::with(config).await;
    let mut wire = server.connect().await;
    wire.request("GET", "/v1/models", &[], b"").await;
    assert_eq!(wire.reply().await.status, 200);
    let silent = |begun: &'static str| async {
        let mut silent = server.connect().await;
        silent.write(begun.as_bytes()).await;
        let mut rest = Vec::new();
        // An end or a reset, which the unread bytes make of it.
        let _ = silent.0.read_to_end(&mut rest).await;
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    };
    tokio::join!(silent(""), silent("GET /v1/models HTTP/1.1\r\nhost: local"));
    wire.request("GET", "/v1/models", &[], b"").await;
    assert_eq!(wire.reply().await.status, 200);
    drop(wire);
    server.stop().await;
}

#[tokio::test]
async fn a_silent_stream_is_kept_alive_by_comments() {
    let server = Server::with(Config { stream_silence: Duration::from_millis(5), ..Config::default() }).await;
    let _tell = server.tell();
    let mut wire = server.connect().await;
    wire.request("POST", CHAT, &[], chat("told", r#","stream":true"#).as_bytes()).await;
    assert_eq!(wire.head().await.0, 200);
    for _ in 0..3 {
        assert_eq!(wire.chunk().await, ": keep-alive\n\n");
    }
    drop(wire);
    server.stop().await;
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_413_in_the_dialect() {
    let server = Server::with(Config { body_limit: Bytes(1000), ..Config::default() }).await;
    let body = chat(&"a".repeat(2000), "");
    let reply = server.post(CHAT, &body).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (413, &json!("request_too_large")));
    let reply = server.post("/client/v4/accounts/a/ai/run/echo", &body).await;
    assert_eq!((reply.status, &reply.json()["errors"][0]["code"]), (413, &json!(3006)));
    // In chunks, the length unknown.
    let mut wire = server.connect().await;
    wire.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
    )
    .await;
    for _ in 0..11 {
        wire.write(format!("64\r\n{}\r\n", "x".repeat(100)).as_bytes()).await;
    }
    wire.write(b"0\r\n\r\n").await;
    assert_eq!(wire.reply().await.status, 413);
    // A client that asks before it sends gets its answer at once.
    let mut wire = server.connect().await;
    wire.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 99999\r\n\r\n").await;
    assert_eq!(wire.reply().await.status, 413);
    server.stop().await;
}

#[tokio::test]
async fn a_body_for_which_there_is_no_room_is_429_until_there_is() {
    let config =
        Config { body_budget: Bytes(1000), body_wait: Duration::from_millis(20), ..Config::default() };
    let server = Server::with(config).await;
    let large = chat(&"a".repeat(700), "");
    let mut first = server.connect().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue";
    first.write(format!("{head}\r\ncontent-length: {}\r\n\r\n", large.len()).as_bytes()).await;
    // It is told to go on once it has its room.
    assert_eq!(first.head().await.0, 100);
    let body = chat(&"a".repeat(300), "");
    let reply = server.post(CHAT, &body).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert_eq!(reply.header("retry-after"), Some("1"));
    let reply = server.post("/client/v4/accounts/a/ai/run/echo", &body).await;
    assert_eq!((reply.status, &reply.json()["errors"][0]["code"]), (429, &json!(3040)));
    assert!(reply.header("retry-after").is_some());
    // Small ones fit beside it.
    assert_eq!(server.post(CHAT, chat("hello", "")).await.status, 200);
    first.write(large.as_bytes()).await;
    assert_eq!(first.reply().await.status, 200);
    assert_eq!(server.post(CHAT, &body).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn chunked_bodies_and_any_content_type_are_read() {
    let server = Server::start().await;
    let body = chat("hello", "");
    let (one, two) = body.split_at(20);
    let mut wire = server.connect().await;
    wire.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain;charset=UTF-8\r\ntransfer-encoding: chunked\r\n\r\n").await;
    wire.write(format!("{:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n", one.len(), two.len()).as_bytes()).await;
    let reply = wire.reply().await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "hello");
    server.stop().await;
}

#[tokio::test]
async fn compressed_bodies_are_415() {
    let server = Server::start().await;
    let reply = server.send("POST", CHAT, &["content-encoding: gzip"], b"\x1f\x8b").await;
    assert_eq!(reply.status, 415);
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_408() {
    let server = Server::with(Config { body_idle: Duration::from_millis(20), ..Config::default() }).await;
    let mut wire = server.connect().await;
    wire.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        .await;
    assert_eq!(wire.reply().await.status, 408);
    server.stop().await;
}

#[tokio::test]
async fn a_broken_request_does_not_end_the_server() {
    let server = Server::start().await;
    for bytes in [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n" as &[u8],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut wire = server.connect().await;
        wire.write(bytes).await;
        let mut rest = Vec::new();
        // The answer is a bare 400 or an end of the connection.
        let _ = wire.0.read_to_end(&mut rest).await;
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&rest));
    }
    // A body shorter than it was said to be.
    let mut wire = server.connect().await;
    wire.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{}")
        .await;
    drop(wire);
    assert_eq!(server.post(CHAT, chat("hello", "")).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told_in_the_dialect() {
    let server = Server::start().await;
    let reply = server.get("/v1/nothing").await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("unknown_url")));
    let reply = server.get(CHAT).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (405, &json!("method_not_supported")));
    assert_eq!(reply.header("allow"), Some("POST"));
    let reply = server.send("OPTIONS", CHAT, &[], b"").await;
    assert_eq!((reply.status, reply.header("allow")), (204, Some("POST")));
    assert!(reply.headers.iter().all(|(name, _)| !name.starts_with("access-control")));
    let mut wire = server.connect().await;
    wire.request("HEAD", "/v1/models", &[], b"").await;
    assert_eq!(wire.head().await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_403_without_a_key() {
    let server = Server::start().await;
    for header in ["host: evil.example", "origin: https://evil.example", "origin: null"] {
        let reply = server.send("POST", CHAT, &[header], chat("hello", "").as_bytes()).await;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (403, &json!("forbidden")), "{header}");
    }
    let reply =
        server.send("GET", "/client/v4/accounts/a/ai/models/search", &["host: evil.example"], b"").await;
    assert_eq!((reply.status, &reply.json()["errors"][0]["code"]), (403, &json!(9109)));
    assert!(server.fake.requests.lock().unwrap().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_key_opens_all_routes_and_without_it_only_health_is_told() {
    let server = Server::with(Config { api_key: Some("s3cret".to_owned()), ..Config::default() }).await;
    let with = ["authorization: Bearer s3cret", "host: server.example"];
    assert_eq!(server.send("GET", "/v1/models", &with, b"").await.status, 200);
    assert_eq!(server.send("GET", "/metrics", &["x-api-key: s3cret"], b"").await.status, 200);
    for path in ["/v1/models", "/metrics", "/v1/nothing"] {
        let reply = server.get(path).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (401, &json!("invalid_api_key")),
            "{path}"
        );
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    let reply =
        server.send("POST", "/client/v4/accounts/a/ai/run/echo", &["authorization: Bearer no"], b"{}").await;
    assert_eq!((reply.status, &reply.json()["errors"][0]["code"]), (401, &json!(10000)));
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(server.get("/").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn the_page_of_routes_keeps_methods_paths_and_purposes_apart() {
    let page = Server::start().await.get("/").await.body;
    for line in page.lines().skip(2) {
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        assert!(["GET", "POST", "DELETE", "ANY"].contains(&words[0]) && words[1].starts_with('/'), "{line}");
        assert!(line.contains(&format!(" {}  ", words[1])), "{line}");
    }
}

#[tokio::test]
async fn health_is_good_only_while_a_model_can_answer() {
    let server = Server::start().await;
    let reply = server.get("/healthz").await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json(), json!({"status": "ok", "models": [{"id": "echo", "state": "ready"}]}));
    server.fake.ready.store(false, Ordering::SeqCst);
    let reply = server.get("/healthz").await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()["models"][0]["state"], "loading");
    server.stop().await;
}

#[tokio::test]
async fn metrics_and_the_first_page_are_plain_text() {
    let server = Server::start().await;
    server.post(CHAT, chat("hello", "")).await;
    let reply = server.get("/metrics").await;
    assert!(reply.header("content-type").unwrap().starts_with("text/plain"));
    assert!(reply.body.starts_with("fake_metric 1\n"));
    assert!(
        reply.body.contains(r#"hearth_http_requests_total{route="/v1/chat/completions",status="200"} 1"#),
        "{}",
        reply.body
    );
    let reply = server.get("/").await;
    assert!(reply.body.contains("POST    /v1/chat/completions "), "{}", reply.body);
    server.stop().await;
}

#[tokio::test]
async fn shutdown_lets_running_requests_end_and_then_cuts_the_rest() {
    let server = Server::with(Config { grace: Duration::from_millis(20), ..Config::default() }).await;
    let mut idle = server.connect().await;
    idle.request("GET", "/v1/models", &[], b"").await;
    assert_eq!(idle.reply().await.status, 200);
    let mut wire = server.connect().await;
    wire.request("POST", CHAT, &[], chat("hang", r#","stream":true"#).as_bytes()).await;
    assert_eq!(wire.head().await.0, 200);
    let fake = Arc::clone(&server.fake);
    server.stop().await;
    assert_eq!(fake.dropped.load(Ordering::SeqCst), 1);

    let server = Server::start().await;
    let tell = server.tell();
    let mut wire = server.connect().await;
    wire.request("POST", CHAT, &[], chat("told", "").as_bytes()).await;
    // The second is taken in only after the first was read: the request runs.
    tell.send(Ok(STARTED)).await.unwrap();
    tell.send(Ok(text(0, "late"))).await.unwrap();
    server.stop.send(()).unwrap();
    tell.send(Ok(usage(1, 1))).await.unwrap();
    assert_eq!(wire.reply().await.json()["choices"][0]["message"]["content"], "late");
    server.running.await.unwrap().unwrap();
}
