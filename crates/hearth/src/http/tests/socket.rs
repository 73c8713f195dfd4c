//! The universal endpoint on a WebSocket, whose frames are spoken by hand.

use super::metering::Fixture;
use super::providers::{asking, before};
use super::*;
use serde_json::json;

const PATH: &str = "/v1/default/default";

/// A socket that is open.
pub(super) struct Socket(Wire);

impl Socket {
    pub(super) async fn open(server: &Server, headers: &[&str]) -> (Self, Vec<(String, String)>) {
        let mut wire = server.connect().await;
        let mut all = vec![
            "connection: Upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        ];
        all.extend(headers);
        wire.request("GET", PATH, &all, b"").await;
        let (status, headers) = wire.head().await;
        assert_eq!(status, 101, "{headers:?}");
        (Self(wire), headers)
    }

    /// Sends a text, under a mask of zeros.
    pub(super) async fn send(&mut self, text: &str) {
        let mut frame = vec![0x81, 0x80 | 126];
        frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        self.0.write(&frame).await;
    }

    pub(super) async fn create(&mut self, event: &str, body: &str) {
        let message = format!(
            r#"{{"type":"universal.create","request":{{"eventId":"{event}","provider":"hearth","endpoint":"v1/chat/completions","query":{body}}}}}"#
        );
        self.send(&message).await;
    }

    /// The next message.
    pub(super) async fn next(&mut self) -> Value {
        loop {
            let mut head = [0; 2];
            self.0.0.read_exact(&mut head).await.unwrap();
            let length = match head[1] {
                126 => u64::from(self.0.0.read_u16().await.unwrap()),
                127 => self.0.0.read_u64().await.unwrap(),
                short => short.into(),
            };
            let mut data = vec![0; usize::try_from(length).unwrap()];
            self.0.0.read_exact(&mut data).await.unwrap();
            if head[0] == 0x81 {
                return serde_json::from_slice(&data).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_whole_answer_comes_with_the_message_that_it_was_made() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let (mut socket, _) = Socket::open(&server, &[]).await;
    socket.create("e1", &chat("a b", "")).await;
    let created = socket.next().await;
    assert_eq!(
        (&created["type"], &created["metadata"]["eventId"]),
        (&"universal.created".into(), &"e1".into())
    );
    assert_eq!(created["response"]["choices"][0]["message"]["content"], "a b");
    assert_eq!(
        (&created["metadata"]["step"], &created["metadata"]["contentType"]),
        (&"0".into(), &"application/json".into())
    );
    assert_eq!(socket.next().await["type"], "universal.done");
}

#[tokio::test]
async fn streams_run_beside_one_another_and_are_told_apart_by_their_events() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let (mut socket, _) = Socket::open(&server, &[]).await;
    let told = upstream.tell();
    socket.create("slow", &chat("told", r#","stream":true"#)).await;
    told.send(Ok(STARTED)).await.unwrap();
    told.send(Ok(text(0, "one"))).await.unwrap();
    let mut texts = std::collections::BTreeMap::<String, String>::new();
    let mut done = Vec::new();
    let mut quick = false;
    while done.len() < 2 {
        let message = socket.next().await;
        let event = message["metadata"]["eventId"].as_str().unwrap().to_owned();
        match message["type"].as_str().unwrap() {
            "universal.created" => {
                assert!(
                    message["metadata"]["contentType"].as_str().unwrap().starts_with("text/event-stream")
                );
                if !quick {
                    // The first one still runs, and is heard, while the second is asked.
                    quick = true;
                    socket.create("quick", &chat("x y", r#","stream":true"#)).await;
                }
            }
            "universal.stream" => {
                let content =
                    message["response"]["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
                texts.entry(event).or_default().push_str(content);
            }
            "universal.done" => {
                if event == "quick" {
                    told.send(Ok(text(0, " two"))).await.unwrap();
                    let end = Delta::Finish { choice: 0, reason: FinishReason::Stop, stop_text: None };
                    told.send(Ok(end)).await.unwrap();
                    told.send(Ok(usage(1, 2))).await.unwrap();
                }
                done.push(event);
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(done, ["quick", "slow"]);
    assert_eq!((texts["quick"].as_str(), texts["slow"].as_str()), ("x y", "one two"));
}

#[tokio::test]
async fn what_fails_is_told_by_its_event_and_the_socket_goes_on() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let (mut socket, _) = Socket::open(&server, &[]).await;
    socket.create("none", &asking("nobody", "a", "")).await;
    let error = socket.next().await;
    assert_eq!((&error["type"], &error["metadata"]["eventId"]), (&"universal.error".into(), &"none".into()));
    assert_eq!(
        (&error["metadata"]["status"], &error["error"]["error"]["code"]),
        (&404.into(), &"model_not_found".into())
    );
    for (message, code) in [
        (
            r#"{"type":"universal.create","request":{"eventId":"p","provider":"nowhere","endpoint":"x","query":{}}}"#,
            2008,
        ),
        (r#"{"type":"other","request":{"eventId":"p"}}"#, 5006),
        ("no JSON", 3003),
    ] {
        socket.send(message).await;
        let error = socket.next().await;
        assert_eq!(
            (&error["type"], &error["error"]["errors"][0]["code"]),
            (&"universal.error".into(), &code.into()),
            "{error}"
        );
    }
    socket.create("good", &chat("a", "")).await;
    assert_eq!(socket.next().await["type"], "universal.created");
}

/// Row 16 of the public faults on this surface.
#[tokio::test]
async fn a_client_that_leaves_ends_all_that_it_asked_for() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let (mut socket, _) = Socket::open(&server, &[]).await;
    for event in ["a", "b"] {
        socket.create(event, &chat("hang", r#","stream":true"#)).await;
        loop {
            let message = socket.next().await;
            let content = &message["response"]["choices"][0]["delta"]["content"];
            if message["metadata"]["eventId"] == event && *content == "one" {
                break;
            }
        }
    }
    drop(socket);
    while upstream.fake.dropped.load(Ordering::SeqCst) < 2 {
        upstream.fake.drop_seen.notified().await;
    }
    // And the server can stop: no socket is left.
    server.stop().await;
}

#[tokio::test]
async fn a_key_may_be_shown_by_the_protocol_and_without_one_there_is_no_socket() {
    let fixture = Fixture::start(Config { api_key: Some("root".to_owned()), ..Config::default() }).await;
    let protocol = "cf-aig-authorization.root";
    let (_socket, headers) =
        Socket::open(&fixture.server, &[&format!("sec-websocket-protocol: {protocol}")]).await;
    assert!(headers.contains(&("sec-websocket-protocol".to_owned(), protocol.to_owned())), "{headers:?}");
    let upgrade = [
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    let reply = fixture.server.send("GET", PATH, &upgrade, b"").await;
    assert_eq!((reply.status, &reply.json()["internalCode"]), (401, &json!(2009)));
    let reply = fixture.server.send("GET", PATH, &["authorization: Bearer root"], b"").await;
    assert_eq!(reply.status, 400, "it is no upgrade");
}

#[tokio::test]
async fn a_key_is_looked_at_before_each_message_and_limited_by_them() {
    let upstream = Server::start().await;
    let config = Config { proxy: Some(super::runs::server_proxy(&upstream)), ..Config::default() };
    let fixture = Fixture::start(config).await;
    let (mut open, _) = Socket::open(&fixture.server, &[]).await;
    let limits = gateway::Limits { requests_per_minute: Some(2), ..Default::default() };
    let (_, limited) = fixture.key("default", "inference", limits).await;
    let (key, revoked) = fixture.key("default", "inference", gateway::Limits::default()).await;
    let bearer = |secret: &gateway::Secret| format!("authorization: Bearer {}", secret.0);
    let (mut limited, _) = Socket::open(&fixture.server, &[&bearer(&limited)]).await;
    let (mut revoked, _) = Socket::open(&fixture.server, &[&bearer(&revoked)]).await;
    let ask = async |socket: &mut Socket| {
        socket.create("e", &chat("a", "")).await;
        let told = socket.next().await;
        if told["type"] == "universal.created" {
            socket.next().await;
        }
        told["metadata"]["status"].as_u64()
    };
    assert_eq!(ask(&mut open).await, Some(401), "it was opened without a key");
    // Opening it was the first request of two; a minute may end between them.
    assert_eq!(ask(&mut limited).await, None);
    let later = [ask(&mut limited).await, ask(&mut limited).await, ask(&mut limited).await];
    assert!(later.contains(&Some(429)), "{later:?}");
    // Whoever manages the gateway sees it.
    let query = gateway::log::Query::new("default", "default");
    let is_limit = |log: &gateway::log::Record| log.status == 429 && log.path == "v1/chat/completions";
    while !fixture.gateway.list_logs(&query, 0, 1000).await.unwrap().iter().any(is_limit) {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(&mut revoked).await, None);
    fixture.gateway.revoke_key(&key.id.0).await.unwrap();
    assert_eq!(ask(&mut revoked).await, Some(401));
}
