//! Providers that send half of an answer, or something else, before a client of their own dialect.

use super::metering::Fixture;
use super::socket::Socket;
use super::*;
use axum::Router;
use axum::http::header;
use gateway::call::Proxy;
use gateway::dialect::Dialect;
use gateway::log::{Query, Record};
use gateway::provider::{ProviderKey, Providers, Wishes};
use gateway::upstream::Upstream;
use gateway::{DEFAULT, eventstream};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

/// A server whose provider of this name answers every request with these bytes.
async fn before(slug: &str, kind: &'static str, body: &[u8]) -> Fixture {
    let body = body.to_vec();
    let said = move || std::future::ready(([(header::CONTENT_TYPE, kind)], body.clone()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = Some(format!("http://{}/v1", listener.local_addr().unwrap()));
    tokio::spawn(async { axum::serve(listener, Router::new().fallback(said)).await });
    let keys = vec![ProviderKey { secret: "AK:SK".to_owned(), weight: 1 }];
    let dialect = slug.ends_with("-anthropic").then_some(Dialect::Anthropic);
    let wishes = Wishes { base_url, keys, dialect, ..Wishes::default() };
    let providers = Providers::new([(slug.to_owned(), wishes)].into()).unwrap();
    let clock = Arc::new(base::SystemClock::default());
    let proxy = Proxy::new(providers, Upstream::new().unwrap(), clock);
    Fixture::start(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await
}

impl Fixture {
    async fn records(&self, count: usize) -> Vec<Record> {
        loop {
            let found = self.gateway.list_logs(&Query::new(DEFAULT, DEFAULT), 0, 1000).await.unwrap();
            if found.len() >= count {
                return found;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn setting(&self, settings: Value) {
        let fields = settings.as_object().unwrap();
        self.gateway.update_gateway(DEFAULT, DEFAULT, fields).await.unwrap();
    }
}

#[tokio::test]
async fn an_answer_that_was_cut_or_is_none_is_logged_as_failed_and_not_kept() {
    let stream = chat("a", r#","stream":true"#).replace("\"echo\"", "\"custom-cut/m\"");
    let whole = chat("a", "").replace("\"echo\"", "\"custom-cut/m\"");
    for (kind, said, body, status, logged, why) in [
        ("text/event-stream", TEXT, stream, 200, 502, "its stream ended before the answer did"),
        ("application/json", "{}", whole, 502, 502, "its answer is JSON, but no answer to this request: {}"),
    ] {
        let fixture = before("custom-cut", kind, said.as_bytes()).await;
        fixture.setting(json!({"cache_ttl": 60})).await;
        for _ in 0..2 {
            let headers = ["cf-aig-max-attempts: 1"];
            let reply = fixture.server.send("POST", CHAT, &headers, body.as_bytes()).await;
            assert_eq!(reply.status, status, "{reply:?}");
            assert_ne!(reply.header("cf-aig-cache-status"), Some("HIT"));
            assert!(reply.body.contains(&format!("custom-cut: {why}")), "{reply:?}");
        }
        for record in fixture.records(2).await {
            assert!(!record.success(), "{record:?}");
            assert_eq!((record.status, record.error.as_deref()), (logged, Some(why)));
        }
    }
}

#[tokio::test]
async fn a_stream_that_was_cut_ends_on_a_socket_with_an_error() {
    let fixture = before("hearth", "text/event-stream", TEXT.as_bytes()).await;
    let (mut socket, _) = Socket::open(&fixture.server, &[]).await;
    socket.create("e", &chat("a", r#","stream":true"#)).await;
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "universal.error" && kind != "universal.done") {
        kinds.push(socket.next().await["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(kinds, ["universal.created", "universal.stream", "universal.stream", "universal.error"]);
}

#[tokio::test]
async fn amazons_events_go_over_a_socket_as_their_clients_show_them() {
    let event = |name: &str, payload: &str| {
        eventstream::encode(&[(":event-type", name), (":message-type", "event")], payload.as_bytes())
    };
    let said = [event("messageStart", "{\"role\":\"assistant\"}"), event("messageStop", "{}")].concat();
    let fixture = before("aws-bedrock", "application/vnd.amazon.eventstream", &said).await;
    let (mut socket, _) = Socket::open(&fixture.server, &[]).await;
    let asked = json!({"type": "universal.create", "request": {"eventId": "e", "provider": "aws-bedrock",
        "endpoint": "bedrock-runtime/us-east-1/model/m/converse-stream", "query": {"messages": []}}});
    socket.send(&asked.to_string()).await;
    assert_eq!(socket.next().await["type"], "universal.created");
    assert_eq!(socket.next().await["response"], json!({"messageStart": {"role": "assistant"}}));
    assert_eq!(socket.next().await["response"], json!({"messageStop": {}}));
    assert_eq!(socket.next().await["type"], "universal.done");
}
