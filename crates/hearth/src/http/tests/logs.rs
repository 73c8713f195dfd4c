//! Logs of requests on every surface, what people ask of them, and where spans go.

use super::metering::Fixture;
use super::*;
use axum::Router;
use axum::routing::post;
use gateway::call::Proxy;
use gateway::log::{Finder, Finding, Query, Record};
use gateway::provider::{Providers, Wishes};
use gateway::upstream::Upstream;
use gateway::{Action, DEFAULT, Limits};
use serde_json::json;
use std::collections::BTreeMap;

const CHAT: &str = "/v1/chat/completions";
const LOGS: &str = "/client/v4/accounts/default/ai-gateway/gateways/default/logs";

/// A server that asks this one as the provider `hearth`, and one that nobody answers at as `vllm`.
async fn before(upstream: &Server) -> Fixture {
    let wishes = |base_url: String| {
        let models = vec!["far".to_owned()];
        Wishes { base_url: Some(base_url), models, ..Wishes::default() }
    };
    let unbound = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let providers = BTreeMap::from([
        ("custom-down".to_owned(), wishes(format!("http://{unbound}/v1"))),
        ("hearth".to_owned(), wishes(format!("http://{}/v1", upstream.address))),
    ]);
    let clock = Arc::new(base::SystemClock::default());
    let proxy = Proxy::new(Providers::new(providers).unwrap(), Upstream::new().unwrap(), clock);
    Fixture::start(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await
}

impl Fixture {
    /// All logs, the oldest first, when there are so many.
    async fn logs(&self, count: usize) -> Vec<Record> {
        loop {
            let mut query = Query::new(DEFAULT, DEFAULT);
            query.order("created_at", gateway::log::Direction::Ascending).unwrap();
            let found = self.gateway.list_logs(&query, 0, 1000).await.unwrap();
            assert!(found.len() <= count, "{found:?}");
            if found.len() == count {
                return found;
            }
            tokio::task::yield_now().await;
        }
    }

    /// How many logs there are when all that wait are written.
    async fn logs_now(&self) -> usize {
        while self.gateway.logs().waiting() > 0 {
            tokio::task::yield_now().await;
        }
        self.gateway.list_logs(&Query::new(DEFAULT, DEFAULT), 0, 1000).await.unwrap().len()
    }

    async fn set(&self, settings: serde_json::Value) {
        let fields = settings.as_object().unwrap();
        self.gateway.update_gateway(DEFAULT, DEFAULT, fields).await.unwrap();
    }
}

#[tokio::test]
async fn every_surface_and_both_kinds_of_answers_are_logged_once_with_the_ledgers_id() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    let chat_of = |model: &str| chat("one two", "").replace("\"echo\"", &format!("\"{model}\""));
    let messages = r#"{"model":"MODEL","max_tokens":100,"messages":[{"role":"user","content":"one two"}]}"#;
    let mut count = 0;
    for (path, body, kind, provider) in [
        (CHAT, chat_of("echo"), "chat", "local"),
        (CHAT, chat_of("hearth/echo"), "chat", "hearth"),
        ("/v1/completions", r#"{"model":"echo","prompt":"one two"}"#.to_owned(), "completions", "local"),
        ("/v1/messages", messages.replace("MODEL", "echo"), "messages", "local"),
        ("/v1/messages", messages.replace("MODEL", "hearth/echo"), "messages", "hearth"),
        ("/v1/responses", r#"{"model":"echo","input":"one two"}"#.to_owned(), "responses", "local"),
        ("/client/v4/accounts/default/ai/run/echo", r#"{"prompt":"one two"}"#.to_owned(), "run", "local"),
        ("/client/v4/accounts/default/ai/v1/chat/completions", chat_of("echo"), "chat", "local"),
        ("/v1/default/default/hearth/v1/chat/completions", chat_of("echo"), "chat", "hearth"),
        ("/v1/default/default/compat/chat/completions", chat_of("hearth/echo"), "chat", "hearth"),
    ] {
        for stream in [false, true] {
            let body = body.replacen('{', &format!("{{\"stream\":{stream},"), 1);
            let headers = ["cf-aig-event-id: mine", "user-agent: test", "content-type: application/json"];
            let reply = fixture.server.send("POST", path, &headers, body.as_bytes()).await;
            assert_eq!(reply.status, 200, "{path}: {reply:?}");
            assert_eq!(reply.header("cf-aig-event-id"), Some("mine"), "{path}");
            count += 1;
            let log = fixture.logs(count).await.pop().unwrap();
            assert_eq!(reply.header("cf-aig-log-id"), Some(log.id.as_str()), "{path}");
            assert_eq!((log.provider.as_str(), log.model.as_str()), (provider, "echo"), "{path}");
            assert_eq!((log.request_type.as_str(), log.status, log.step), (kind, 200, 0), "{path}");
            assert_eq!(
                (log.tokens_in, log.tokens_cached, log.tokens_out),
                (Some(2), Some(1), Some(2)),
                "{path}"
            );
            assert_eq!(log.request_size, body.len() as u64, "{path}");
            assert_eq!(log.response_size, reply.body.len() as u64, "{path} {stream}");
            assert!(log.first_byte.is_some() && log.user_agent.as_deref() == Some("test"), "{path}");
            let kind = if stream { "text/event-stream" } else { "application/json" };
            assert!(log.response_content_type.unwrap().starts_with(kind), "{path}");
            assert_eq!((log.event_id.as_deref(), log.compatibility), (Some("mine"), path.contains("compat")));
            assert_eq!((log.request_head.text, log.response_head.text), (None, None), "{path}");
        }
    }
    assert_eq!(fixture.server.post("/v1/embeddings", r#"{"model":"vectors","input":"a"}"#).await.status, 200);
    let log = fixture.logs(count + 1).await.pop().unwrap();
    assert_eq!((log.request_type.as_str(), log.model_type.as_str()), ("embeddings", "text-embeddings"));
}

#[tokio::test]
async fn failed_providers_and_refused_requests_are_logged_too() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    fixture.set(json!({"retry_max_attempts": 1})).await;
    // The first in the order of names cannot be reached; the second has no model `far` and says so.
    let reply = fixture.server.post(CHAT, chat("a", "").replace("\"echo\"", "\"far\"")).await;
    assert_eq!(reply.status, 404);
    let logs = fixture.logs(2).await;
    let shown: Vec<_> = logs.iter().map(|log| (log.provider.as_str(), log.step, log.status)).collect();
    assert_eq!(shown, [("custom-down", 0, 502), ("hearth", 1, 404)]);
    for (body, status) in [("{", 400), (r#"{"model":"none","messages":[]}"#, 400)] {
        assert_eq!(fixture.server.post(CHAT, body).await.status, status);
    }
    let logs = fixture.logs(4).await;
    assert!(logs[2..].iter().all(|log| log.status == 400 && log.error.is_some() && log.provider.is_empty()));
    let reply = fixture.server.post("/v1/default/default/nobody/x", "{}").await;
    assert_eq!(reply.status, 400);
    let log = fixture.logs(5).await.pop().unwrap();
    assert_eq!((log.provider.as_str(), log.path.as_str()), ("nobody", "x"));
}

#[tokio::test]
async fn what_a_guardrail_flags_is_in_the_log_and_found_by_it() {
    let fixture = Fixture::start(Config { judge: Some("echo".to_owned()), ..Config::default() }).await;
    fixture
        .set(json!({"guardrails": {"prompt": {"S1": "BLOCK", "S2": "FLAG"}, "response": {"S3": "FLAG"}}}))
        .await;
    let finding = |by, action, name: &str| Finding { by, action, names: vec![name.to_owned()] };
    for (number, (said, status, expected)) in [
        ("safe", 200, vec![]),
        ("unsafe\\nS2", 200, vec![finding(Finder::Prompt, Action::Flag, "S2")]),
        ("unsafe\\nS3", 200, vec![finding(Finder::Response, Action::Flag, "S3")]),
        ("unsafe\\nS1", 400, vec![finding(Finder::Prompt, Action::Block, "S1")]),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(fixture.server.post(CHAT, chat(said, "")).await.status, status, "{said}");
        assert_eq!(fixture.logs(number + 1).await.pop().unwrap().findings, expected, "{said}");
    }
    let path = format!("{LOGS}?filters.key=findings&filters.operator=contains&filters.value=S2");
    let found = fixture.server.get(&path).await.json();
    let flagged = json!([{"by": "guardrail.prompt", "action": "FLAG", "names": ["S2"]}]);
    assert_eq!(
        (found["result"].as_array().unwrap().len(), &found["result"][0]["findings"]),
        (1, &flagged),
        "{found}"
    );
}

#[tokio::test]
async fn limits_that_only_report_let_every_request_pass_and_mark_its_log() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    let year = json!({"rate_limiting_interval": 366 * 86_400, "rate_limiting_limit": 1, "rate_limiting_shadow": true});
    fixture.set(year).await;
    let limits = Limits { requests_per_minute: Some(1), shadow: true, ..Limits::default() };
    let (_, secret) = fixture.key(DEFAULT, "inference,admin", limits).await;
    let bearer = format!("authorization: Bearer {}", secret.0);
    for _ in 0..3 {
        let reply = fixture.server.send("POST", CHAT, &[&bearer], chat("a", "").as_bytes()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let logs = fixture.logs(3).await;
    let by = |finder: Finder| {
        logs.iter().filter(|log| log.findings.iter().any(|found| found.by == finder)).count()
    };
    assert_eq!(by(Finder::Gateway), 2);
    // A minute may end between two of them.
    assert!((1..=2).contains(&by(Finder::Key)), "{logs:?}");
    let metrics = fixture.server.send("GET", "/metrics", &[&bearer], b"").await.body;
    assert!(metrics.contains("hearth_gateway_shadow_refusals_total{limit=\"gateway\"} 2\n"), "{metrics}");
}

/// Without them an operator would not see why a key's requests fail.
#[tokio::test]
async fn what_a_keys_limit_or_its_scope_refuses_is_logged_and_what_shows_no_key_is_counted_alone() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    let limits = Limits { requests_per_minute: Some(1), ..Limits::default() };
    let (key, secret) = fixture.key(DEFAULT, "inference", limits).await;
    let (manager, theirs) = fixture.key(DEFAULT, "admin", Limits::default()).await;
    let (bearer, theirs) =
        (format!("authorization: Bearer {}", secret.0), format!("authorization: Bearer {}", theirs.0));
    let body = chat("a", "");
    let ask = async |path: &str, headers: &[&str]| {
        fixture.server.send("POST", path, headers, body.as_bytes()).await.status
    };
    assert_eq!(ask(CHAT, &[]).await, 401);
    assert_eq!(ask(CHAT, &["authorization: Bearer hearth_unknown"]).await, 401);
    assert_eq!(ask(CHAT, &[&bearer]).await, 200);
    for (headers, path, status, whose, why) in [
        (vec![bearer.as_str(), "cf-aig-metadata: {\"team\":\"a\"}"], CHAT, 429, &key, "may ask 1 times"),
        (vec![&bearer], "/v1/default/default", 429, &key, "may ask 1 times"),
        (vec![&theirs], CHAT, 403, &manager, "no scope 'inference'"),
        (vec![&bearer, "cf-aig-gateway-id: none"], CHAT, 400, &key, "none"),
        (vec![&bearer, "cf-aig-custom-cost: 1"], CHAT, 400, &key, "cf-aig-custom-cost"),
    ] {
        let before = fixture.logs_now().await;
        assert_eq!(ask(path, &headers).await, status, "{path} {headers:?}");
        let log = fixture.logs(before + 1).await.pop().unwrap();
        assert_eq!((log.status, log.key.as_ref()), (status, Some(&whose.id)), "{log:?}");
        assert!(log.error.as_deref().is_some_and(|error| error.contains(why)), "{log:?}");
        assert_eq!((log.gateway.as_str(), log.path.as_str()), (DEFAULT, path), "{log:?}");
        assert_eq!(log.metadata.len(), usize::from(headers.len() > 1 && status == 429));
    }
    // What leads nowhere is asked of no model.
    assert_eq!(ask("/v1/nowhere", &[&bearer]).await, 429);
    assert_eq!(fixture.logs_now().await, 6);
    let metrics = fixture.server.send("GET", "/metrics", &[&theirs], b"").await.body;
    assert!(metrics.contains("hearth_http_keyless_total 2\n"), "{metrics}");
}

/// Row 16 of the public faults: status 499, with what was used until the client left.
#[tokio::test]
async fn a_client_that_leaves_is_logged_with_499_and_partial_usage() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    let mut count = 0;
    for model in ["echo", "hearth/echo"] {
        for stream in [true, false] {
            let mut wire = fixture.server.connect().await;
            let body =
                chat("hang", &format!(r#","stream":{stream}"#)).replace("\"echo\"", &format!("\"{model}\""));
            wire.request("POST", CHAT, &[], body.as_bytes()).await;
            let seen = if model == "echo" { &fixture.server.fake } else { &upstream.fake };
            if stream {
                assert_eq!(wire.head().await.0, 200);
                while !wire.chunk().await.contains("one") {}
            } else {
                while seen.requests.lock().unwrap().len() < 2 {
                    tokio::task::yield_now().await;
                }
            }
            drop(wire);
            seen.drop_seen.notified().await;
            count += 1;
            let log = fixture.logs(count).await.pop().unwrap();
            assert_eq!((log.status, log.model.as_str()), (499, "echo"), "{model} {stream}");
            if model == "echo" && stream {
                assert_eq!((log.tokens_in, log.tokens_out), (Some(1), Some(1)));
            }
        }
    }
}

#[tokio::test]
async fn cloudflares_routes_list_filter_judge_and_delete_logs() {
    let fixture = Fixture::start(Config::default()).await;
    let ask = async |prompt: &str, team: &str| {
        let metadata = format!("cf-aig-metadata: {{\"team\":\"{team}\"}}");
        let headers =
            [metadata.as_str(), "cf-aig-collect-log-payload: true", "content-type: application/json"];
        let reply = fixture.server.send("POST", CHAT, &headers, chat(prompt, "").as_bytes()).await;
        reply.header("cf-aig-log-id").unwrap().to_owned()
    };
    let red = ask("mail ada@example.com", "red").await;
    let blue = ask("two words", "blue").await;
    let quiet =
        fixture.server.send("POST", CHAT, &["cf-aig-collect-log: false"], chat("a", "").as_bytes()).await;
    assert_eq!(quiet.status, 200);
    fixture.logs(2).await;
    let ids = async |query: &str| {
        let list = fixture.server.get(&format!("{LOGS}{query}")).await.json();
        let ids: Vec<String> = list["result"]
            .as_array()
            .unwrap()
            .iter()
            .map(|log| log["id"].as_str().unwrap().to_owned())
            .collect();
        (ids, list["result_info"].clone())
    };
    assert_eq!(ids("").await.0, [blue.clone(), red.clone()]);
    assert_eq!(
        ids("?order_by=created_at&order_by_direction=asc&per_page=1&page=2").await.0,
        std::slice::from_ref(&blue)
    );
    let (none, info) = ids("?page=2&meta_info=true").await;
    assert_eq!((none.len(), &info["total_count"], &info["max_tokens_in"]), (0, &json!(2), &json!(2)));
    let filter = "?filters.key=metadata.key&filters.operator=eq&filters.value=team\
                  &filters.key=metadata.value&filters.operator=eq&filters.value=red&filters.value=green";
    assert_eq!(ids(filter).await.0, std::slice::from_ref(&red));
    // As Python's client sends several: keys together, then operators, then values.
    let filter = "?filters.key=metadata.key&filters.key=metadata.value&filters.operator=eq&filters.operator=eq\
                  &filters.value=team&filters.value=red";
    assert_eq!(ids(filter).await.0, std::slice::from_ref(&red));
    assert_eq!(fixture.server.get(&format!("{LOGS}{filter}&filters.value=green")).await.status, 400);
    assert_eq!(
        ids("?success=true&min_tokens_in=2&max_total_tokens=4&start_date=2026-01-01T00:00:00%2B00:00")
            .await
            .0
            .len(),
        2
    );
    assert_eq!(ids("?end_date=2026-01-01").await.0.len(), 0);
    assert_eq!(ids("?search=BLUE").await.0, std::slice::from_ref(&blue));
    for query in
        ["?colour=1", "?filters.key=colour&filters.operator=eq&filters.value=1", "?order_by=x", "?page=0"]
    {
        assert_eq!(fixture.server.get(&format!("{LOGS}{query}")).await.status, 400, "{query}");
    }
    for (name, value) in [("start_date", "x"), ("min_cost", "a"), ("success", "maybe")] {
        let reply = fixture.server.get(&format!("{LOGS}?{name}={value}")).await;
        assert!(
            reply.body.contains(&format!("Invalid value for '{name}'")),
            "the parameter is named: {reply:?}"
        );
    }
    // Payloads, without what is nobody's business; what the model saw is another matter.
    let one = format!("{LOGS}/{red}");
    let request = fixture.server.get(&format!("{one}/request")).await.json();
    assert_eq!(request["messages"][0]["content"], "mail [email]");
    assert!(
        fixture.server.fake.requests.lock().unwrap().iter().any(|seen| format!("{seen:?}").contains("ada@"))
    );
    let response = fixture.server.get(&format!("{one}/response")).await.json();
    assert_eq!(response["choices"][0]["message"]["content"], "mail [email]");
    // Judgements, by the control plane and by the binding.
    let judged = fixture.server.send("PATCH", &one, &[], br#"{"feedback":1,"score":80}"#).await.json();
    assert_eq!((&judged["result"]["feedback"], &judged["result"]["score"]), (&json!(1), &json!(80.0)));
    let bound = format!("/ai-gateway/gateways/default/logs/{red}");
    let patched = fixture.server.send("PATCH", &bound, &[], br#"{"metadata":{"seen":true}}"#).await;
    assert_eq!(patched.status, 200, "{patched:?}");
    let log = fixture.server.get(&bound).await.json();
    assert_eq!(
        (&log["result"]["feedback"], &log["result"]["metadata"]),
        (&json!(1), &json!(r#"{"seen":true}"#))
    );
    for path in
        [format!("{LOGS}/none"), "/client/v4/accounts/default/ai-gateway/gateways/x/logs/none".to_owned()]
    {
        let missing = fixture.server.get(&path).await;
        assert_eq!((missing.status, &missing.json()["errors"][0]["code"]), (404, &json!(7002)), "{path}");
    }
    assert_eq!(fixture.server.get("/ai-gateway/gateways/default/logs/none").await.status, 404);
    // A part, then the rest.
    let some = format!("{LOGS}?filters.key=id&filters.operator=eq&filters.value={red}");
    assert_eq!(fixture.server.send("DELETE", &some, &[], b"").await.json()["success"], true);
    assert_eq!(ids("").await.0, [blue]);
    assert_eq!(fixture.server.get(&format!("{one}/request")).await.status, 404);
    fixture.server.send("DELETE", LOGS, &[], b"").await;
    assert!(ids("").await.0.is_empty());
}

#[tokio::test]
async fn the_binding_shows_a_key_the_logs_of_its_own_requests_alone() {
    let fixture = Fixture::start(Config::default()).await;
    let (_, mine) = fixture.key(DEFAULT, "inference", Limits::default()).await;
    let (_, other) = fixture.key(DEFAULT, "inference", Limits::default()).await;
    let bearer = |secret: &gateway::Secret| format!("authorization: Bearer {}", secret.0);
    let reply = fixture.server.send("POST", CHAT, &[&bearer(&mine)], chat("a", "").as_bytes()).await;
    let log = fixture.logs(1).await.pop().unwrap();
    assert!(log.authentication && log.key.is_some());
    let path = format!("/ai-gateway/gateways/default/logs/{}", reply.header("cf-aig-log-id").unwrap());
    assert_eq!(fixture.server.send("GET", &path, &[&bearer(&mine)], b"").await.status, 200);
    assert_eq!(fixture.server.send("GET", &path, &[&bearer(&other)], b"").await.status, 404);
    assert_eq!(fixture.server.send("GET", LOGS, &[&bearer(&mine)], b"").await.status, 403);
}

/// A collector that hands on what it is sent.
async fn collector() -> (SocketAddr, mpsc::Receiver<(Option<String>, Value)>) {
    let (sender, receiver) = mpsc::channel(16);
    let handler = post(move |headers: axum::http::HeaderMap, body: String| {
        let sender = sender.clone();
        async move {
            let token = headers.get("x-token").map(|value| value.to_str().unwrap().to_owned());
            sender.send((token, serde_json::from_str(&body).unwrap())).await.unwrap();
            "{}"
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router: Router = Router::new().route("/v1/traces", handler);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(hyper_util::rt::TokioIo::new(stream), service),
            );
        }
    });
    (address, receiver)
}

#[tokio::test]
async fn spans_go_to_the_collectors_of_the_gateway_with_genai_names() {
    let fixture = Fixture::start(Config::default()).await;
    let (address, mut spans) = collector().await;
    let url = format!("http://{address}/v1/traces");
    fixture.set(json!({"otel": [{"url": url, "headers": {"x-token": "t"}, "content_type": "json"}]})).await;
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    fixture.server.send("POST", CHAT, &[parent], chat("one two", "").as_bytes()).await;
    let (token, sent) = spans.recv().await.unwrap();
    assert_eq!(token.as_deref(), Some("t"));
    let span = &sent["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!((&span["name"], &span["kind"]), (&json!("chat echo"), &json!(3)));
    assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(span["parentSpanId"], "b7ad6b7169203331");
    let attribute = |name: &str| {
        let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == name);
        found.map_or(Value::Null, |attribute| attribute["value"].clone())
    };
    for (name, value) in [
        ("gen_ai.operation.name", json!({"stringValue": "chat"})),
        ("gen_ai.provider.name", json!({"stringValue": "hearth"})),
        ("gen_ai.request.model", json!({"stringValue": "echo"})),
        ("gen_ai.usage.input_tokens", json!({"intValue": "2"})),
        ("gen_ai.usage.cache_read.input_tokens", json!({"intValue": "1"})),
        ("gen_ai.usage.output_tokens", json!({"intValue": "2"})),
        ("http.response.status_code", json!({"intValue": "200"})),
    ] {
        assert_eq!(attribute(name), value, "{name}");
    }
    // A collector that is away makes no difference to answers, and is counted.
    fixture.set(json!({"otel": [{"url": "http://127.0.0.1:1/v1/traces"}]})).await;
    assert_eq!(fixture.server.post(CHAT, chat("a", "")).await.status, 200);
    while fixture.gateway.logs().spans() != (1, 1) {
        tokio::task::yield_now().await;
    }
    for (setting, named) in [
        (json!([{"url": "x", "content_type": "json"}]), "otel[0].url"),
        (json!([{"url": url, "content_type": "yaml"}]), "otel[0].content_type"),
        (json!([{"url": url, "headers": {"a b": "c"}}]), "otel[0].headers"),
        (json!([{"url": url, "colour": 1}]), "otel[0].colour"),
    ] {
        let fields = json!({"otel": setting});
        let refused = fixture.gateway.update_gateway(DEFAULT, DEFAULT, fields.as_object().unwrap()).await;
        assert_eq!(refused.unwrap_err().param.as_deref(), Some(named));
    }
}

#[tokio::test]
async fn metrics_count_requests_tokens_times_and_what_was_let_go() {
    let upstream = Server::start().await;
    let fixture = before(&upstream).await;
    fixture.server.post(CHAT, chat("one two", "")).await;
    fixture.server.post(CHAT, chat("full", "")).await;
    fixture.server.post(CHAT, chat("one two", "").replace("\"echo\"", "\"hearth/echo\"")).await;
    fixture.logs(3).await;
    let metrics = fixture.server.get("/metrics").await.body;
    for line in [
        "hearth_gateway_requests_total{provider=\"local\",model=\"echo\",status=\"200\"} 1",
        "hearth_gateway_requests_total{provider=\"local\",model=\"echo\",status=\"429\"} 1",
        "hearth_gateway_requests_total{provider=\"hearth\",model=\"echo\",status=\"200\"} 1",
        "hearth_gateway_tokens_total{provider=\"hearth\",model=\"echo\",kind=\"cached_input\"} 1",
        "hearth_gateway_unpriced_total{provider=\"local\",model=\"echo\"} 1",
        "hearth_gateway_duration_seconds_count 3",
        "hearth_gateway_first_byte_seconds_bucket{le=\"+Inf\"} 3",
        "hearth_gateway_logs_dropped_total 0",
        "hearth_gateway_ledger_waiting 0",
        "hearth_gateway_retries_total 0",
        "hearth_gateway_breakers_open 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
}
