//! What a client and an operator learn of a request that fails.

use super::metering::Fixture;
use super::*;
use gateway::DEFAULT;
use gateway::call::Proxy;
use gateway::log::{Query, Record};
use gateway::provider::{Providers, Wishes};
use gateway::upstream::Upstream;
use serde_json::json;
use std::collections::BTreeMap;

const CHAT: &str = "/v1/chat/completions";

/// A server that asks this one as `hearth`, nobody as `custom-down`, and has no key for `groq`.
async fn before(upstream: &Server) -> Fixture {
    let of = |base_url: String| Wishes { base_url: Some(base_url), ..Wishes::default() };
    let unbound = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let providers = BTreeMap::from([
        ("custom-down".to_owned(), of(format!("http://{unbound}/v1"))),
        ("groq".to_owned(), Wishes::default()),
        ("hearth".to_owned(), of(format!("http://{}/v1", upstream.address))),
    ]);
    let clock = Arc::new(base::SystemClock::default());
    let proxy = Proxy::new(Providers::new(providers).unwrap(), Upstream::new().unwrap(), clock);
    Fixture::start(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await
}

async fn logged(fixture: &Fixture, gateway: &str, id: &str) -> Record {
    loop {
        let found = fixture.gateway.list_logs(&Query::new(DEFAULT, gateway), 0, 1000).await.unwrap();
        if let Some(record) = found.into_iter().find(|record| record.id == id) {
            return record;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn every_failing_answer_carries_the_id_of_a_log_that_says_why_and_who_was_asked() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    let chat = |model: &str, more: &str| chat("a", more).replace("\"echo\"", &format!("\"{model}\""));
    let messages = |model: &str| {
        format!(r#"{{"model":"{model}","max_tokens":9,"messages":[{{"role":"user","content":"a"}}]}}"#)
    };
    let run = "/client/v4/accounts/default/ai/run/custom-down/x";
    for (path, body, status, provider, model, why) in [
        (CHAT, chat("hearth/none", ""), 404, "hearth", "none", "none"),
        (CHAT, chat("custom-down/x", ""), 502, "custom-down", "x", "connect"),
        ("/v1/messages", messages("custom-down/x"), 502, "custom-down", "x", "connect"),
        (run, r#"{"prompt":"a"}"#.to_owned(), 502, "custom-down", "x", "connect"),
        (CHAT, chat("groq/llama", ""), 401, "groq", "llama", "No key for groq"),
        (CHAT, chat("echo", r#","functions":[]"#), 400, "local", "echo", "functions"),
        (CHAT, chat("none/x", ""), 404, "", "none/x", "none/x"),
        ("/v1/default/default/nobody/x", r#"{"model":"m"}"#.to_owned(), 400, "nobody", "m", "nobody"),
    ] {
        let headers = ["cf-aig-max-attempts: 1"];
        let reply = fixture.server.send("POST", path, &headers, body.as_bytes()).await;
        assert_eq!(reply.status, status, "{path} {body}: {reply:?}");
        let id = reply.header("cf-aig-log-id").unwrap_or_else(|| panic!("{path} {body}: {reply:?}"));
        let log = logged(&fixture, DEFAULT, id).await;
        assert_eq!((log.provider.as_str(), log.model.as_str()), (provider, model), "{log:?}");
        assert_eq!((log.status, log.success()), (status, false), "{log:?}");
        assert!(log.error.as_deref().is_some_and(|error| error.contains(why)), "{log:?}");
    }
}

#[tokio::test]
async fn why_a_provider_failed_is_said_without_what_is_nobodys_business() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    let body = chat("a", "").replace("\"echo\"", "\"hearth/ada@example.com\"");
    let reply = fixture.server.post(CHAT, &body).await;
    assert!(reply.status == 404 && reply.body.contains("ada@example.com"), "{reply:?}");
    let log = logged(&fixture, DEFAULT, reply.header("cf-aig-log-id").unwrap()).await;
    assert!(log.error.as_deref().is_some_and(|error| error.contains("[email]")), "{log:?}");
    // Where nothing that was said may be kept, a provider's words are not either.
    let quiet = fixture
        .server
        .send("POST", "/v1/default/default/hearth/chat/completions", &["cf-aig-zdr: true"], body.as_bytes())
        .await;
    let log = logged(&fixture, DEFAULT, quiet.header("cf-aig-log-id").unwrap()).await;
    assert!(
        log.status >= 400 && log.error.as_deref().is_none_or(|error| !error.contains("[email]")),
        "{log:?}"
    );
}

#[tokio::test]
async fn the_gateway_in_a_workers_options_holds_for_its_call() {
    let fixture = Fixture::start(Config::default()).await;
    let made = json!({"id": "cached", "cache_ttl": 60, "cache_invalidate_on_update": true, "collect_logs": true,
        "rate_limiting_interval": 0, "rate_limiting_limit": 0, "rate_limiting_technique": "fixed"});
    let path = "/client/v4/accounts/default/ai-gateway/gateways";
    assert_eq!(fixture.server.post(path, made.to_string()).await.status, 200);
    let run = async |path: &str, gateway: Value| {
        let body = json!({"inputs": {"prompt": "a"}, "options": {"gateway": gateway}});
        let headers = ["cf-consn-model-id: echo"];
        fixture.server.send("POST", path, &headers, body.to_string().as_bytes()).await
    };
    let options = json!({"id": "cached", "metadata": {"team": "é"}, "eventId": "e1"});
    for path in ["/ai-gateway/run?version=3", "/run?version=3"] {
        let reply = run(path, options.clone()).await;
        assert_eq!((reply.status, reply.header("cf-aig-event-id")), (200, Some("e1")), "{reply:?}");
        assert_eq!(reply.header("cf-aig-cache-status"), Some("MISS"), "{reply:?}");
        let log = logged(&fixture, "cached", reply.header("cf-aig-log-id").unwrap()).await;
        assert_eq!(log.metadata, [("team".to_owned(), json!("é"))]);
        assert_eq!(run(path, options.clone()).await.header("cf-aig-cache-status"), Some("HIT"));
    }
    let skips = json!({"id": "cached", "skipCache": true});
    assert_eq!(run("/ai-gateway/run", skips).await.header("cf-aig-cache-status"), None);
    let unknown = run("/ai-gateway/run", json!({"id": "nope"})).await;
    assert_eq!(unknown.status, 400, "{unknown:?}");
    assert!(unknown.body.contains("nope"), "{unknown:?}");
    let wrong = run("/ai-gateway/run", json!({"id": "cached", "colour": 1})).await;
    assert!(wrong.status == 400 && wrong.body.contains("options.gateway.colour"), "{wrong:?}");
}

#[tokio::test]
async fn a_member_that_counts_and_stands_twice_is_refused_by_name() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    for (twice, named) in [
        (r#"{"model":"hearth/echo","model":"hearth/other","messages":[]}"#, "model"),
        (r#"{"model":"hearth/echo","max_tokens":3,"max_tokens":5,"messages":[]}"#, "max_tokens"),
    ] {
        let reply = fixture.server.post(CHAT, twice).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(named)), "{reply:?}");
        let reply = fixture.server.post("/v1/messages", twice).await;
        assert!(reply.status == 400 && reply.body.contains(named), "{reply:?}");
    }
    assert!(upstream.fake.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn metadata_that_is_no_json_object_is_refused_like_other_headers() {
    let fixture = Fixture::start(Config::default()).await;
    let ask = async |value: &str| {
        let header = format!("cf-aig-metadata: {value}");
        fixture.server.send("POST", CHAT, &[&header], chat("a", "").as_bytes()).await
    };
    assert_eq!(ask(r#"{"team":"a"}"#).await.status, 200);
    for wrong in ["team=a", "[1]", "{"] {
        let reply = ask(wrong).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!("cf-aig-metadata")),
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn lists_of_models_name_those_that_providers_list_too_and_one_is_known_by_its_provider() {
    let upstream = Server::start().await;
    let server = super::providers::before(&upstream, &[("hearth", &["far"])]).await;
    for (path, body) in [
        (CHAT, r#"{"model":"none","messages":[{"role":"user","content":"a"}]}"#),
        ("/v1/messages", r#"{"model":"none","max_tokens":9,"messages":[{"role":"user","content":"a"}]}"#),
        ("/v1/embeddings", r#"{"model":"none","input":"a"}"#),
    ] {
        let reply = server.post(path, body).await;
        assert!(reply.body.contains("models here: echo, vectors, ranker, far"), "{path}: {reply:?}");
    }
    let one = server.get("/v1/models/hearth/gpt-5").await;
    assert_eq!((one.status, &one.json()["id"]), (200, &json!("hearth/gpt-5")), "{one:?}");
    assert_eq!(one.json()["owned_by"], "hearth");
    assert_eq!(server.get("/v1/models/nobody/gpt-5").await.status, 404);
}

#[tokio::test]
async fn a_route_to_a_provider_that_is_nobody_is_refused_by_name() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    let path = "/client/v4/accounts/default/ai-gateway/gateways/default/routes";
    let made = |provider: &str| {
        let model = json!({"id": "m", "type": "model", "properties": {"provider": provider, "model": "x"},
            "outputs": {"success": {"elementId": "e"}}});
        let start = json!({"id": "s", "type": "start", "outputs": {"next": {"elementId": "m"}}});
        let end = json!({"id": "e", "type": "end", "outputs": {}});
        json!({"name": format!("to-{provider}"), "elements": [start, model, end]}).to_string()
    };
    let refused = fixture.server.post(path, made("opnai")).await;
    assert!(refused.status == 400 && refused.body.contains("elements[1].properties.provider"), "{refused:?}");
    for provider in ["openai", "hearth", "workers-ai", "custom-later"] {
        let reply = fixture.server.post(path, made(provider)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}
