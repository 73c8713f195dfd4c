//! Dynamic routes over the wire: on every surface, with what fails, and their control plane.

use super::providers::asking;
use super::*;
use gateway::call::Proxy;
use gateway::price::Book;
use gateway::provider::{Providers, Wishes};
use gateway::upstream::Upstream;
use serde_json::json;
use std::collections::BTreeMap;

const ROUTES: &str = "/client/v4/accounts/default/ai-gateway/gateways/default/routes";

/// A server with a store, and providers `hearth` and `vllm` that are the other one, and `gone`, where nobody is.
struct Routed {
    upstream: Server,
    server: Server,
    gateway: Gateway,
    _folder: tempfile::TempDir,
}

impl Routed {
    async fn new() -> Self {
        let upstream = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        let store = store::Store::open(folder.path(), &crate::state::parts()).unwrap();
        let clock: Arc<dyn base::Clock> = Arc::new(base::SystemClock::default());
        let gateway = Gateway::open(store, Arc::clone(&clock), Book::default()).await.unwrap();
        gateway.ledger().start(&folder.path().join("processes")).await.unwrap();
        let there = format!("http://{}/v1", upstream.address);
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let wishes =
            [("hearth", there.clone()), ("vllm", there), ("custom-gone", format!("http://{nobody}/v1"))];
        let wishes = wishes.map(|(slug, base_url)| {
            (slug.to_owned(), Wishes { base_url: Some(base_url), ..Wishes::default() })
        });
        let providers = Providers::new(BTreeMap::from(wishes)).unwrap();
        let proxy = Proxy::new(providers, Upstream::new().unwrap(), Arc::clone(&clock));
        let config = Config { proxy: Some(Arc::new(proxy)), ..Config::default() };
        let server =
            Server::behind(config, Kept::nothing("it is a test", clock), Some(gateway.clone())).await;
        Self { upstream, server, gateway, _folder: folder }
    }

    async fn route(&self, name: &str, elements: Value) {
        self.gateway.create_route("default", "default", name, &elements).await.unwrap();
    }
}

fn to(id: &str) -> Value {
    json!({"elementId": id})
}

fn start(next: &str) -> Value {
    json!({"id": "start", "type": "start", "outputs": {"next": to(next)}})
}

fn model(id: &str, provider: &str, model: &str, fallback: Option<&str>) -> Value {
    let mut outputs = json!({"success": to("end")});
    if let Some(fallback) = fallback {
        outputs["fallback"] = to(fallback);
    }
    let properties = json!({"provider": provider, "model": model, "retries": 0, "timeout": 20_000});
    json!({"id": id, "type": "model", "properties": properties, "outputs": outputs})
}

/// A model that is not there, then one that is.
fn falls_back(provider: &str, name: &str) -> Value {
    json!([
        start("a"), model("a", "custom-gone", "none", Some("b")), model("b", provider, name, None),
        {"id": "end", "type": "end", "outputs": {}},
    ])
}

#[tokio::test]
async fn a_route_is_a_model_on_every_surface() {
    let routed = Routed::new().await;
    routed.route("far", falls_back("hearth", "echo")).await;
    routed.route("near", falls_back("workers-ai", "echo")).await;
    let messages = r#""max_tokens":9,"messages":[{"role":"user","content":"a b"}]"#;
    let universal = |name: &str| {
        let query = asking(&format!("dynamic/{name}"), "a b", "");
        format!(r#"[{{"provider":"compat","endpoint":"chat/completions","query":{query}}}]"#)
    };
    for (name, provider) in [("far", "hearth"), ("near", "workers-ai")] {
        let dynamic = format!("dynamic/{name}");
        let native = r#"{"prompt":"a b"}"#.to_owned();
        let native_run = format!("/client/v4/accounts/default/ai/run/{dynamic}");
        let gateway_run = format!("/v1/default/default/workers-ai/run/{dynamic}");
        let header = format!("cf-consn-model-id: {dynamic}");
        let mut surfaces = vec![
            ("/v1/chat/completions", asking(&dynamic, "a b", ""), "/choices/0/message/content"),
            ("/v1/completions", format!(r#"{{"model":"{dynamic}","prompt":"a b"}}"#), "/choices/0/text"),
            (
                "/v1/responses",
                format!(r#"{{"model":"{dynamic}","input":"a b","store":false}}"#),
                "/output/0/content/0/text",
            ),
            ("/v1/messages", format!(r#"{{"model":"{dynamic}",{messages}}}"#), "/content/0/text"),
            (
                "/v1/default/default/compat/chat/completions",
                asking(&dynamic, "a b", ""),
                "/choices/0/message/content",
            ),
            ("/v1/default/default", universal(name), "/choices/0/message/content"),
        ];
        if name == "near" {
            surfaces.push((&native_run, native.clone(), "/result/response"));
            surfaces.push((&gateway_run, native, "/result/response"));
            surfaces.push(("/run?version=3", r#"{"inputs":{"prompt":"a b"}}"#.to_owned(), "/response"));
        }
        surfaces.push(("/v1/messages", surfaces[3].1.replace("dynamic/", "dynamic\\/"), "/content/0/text"));
        for (path, body, at) in surfaces {
            let headers: &[&str] = if path.starts_with("/run") { &[header.as_str()] } else { &[] };
            let reply = routed.server.send("POST", path, headers, body.as_bytes()).await;
            assert_eq!(reply.status, 200, "{path} {dynamic}: {reply:?}");
            assert_eq!(reply.json().pointer(at).unwrap(), "a b", "{path} {dynamic}: {reply:?}");
            let told = ["cf-aig-model", "cf-aig-provider"].map(|name| reply.header(name).unwrap().to_owned());
            assert_eq!(told, ["echo", provider], "{path}");
            let step = if path == "/v1/default/default" { "0" } else { "1" };
            assert_eq!(reply.header("cf-aig-step"), Some(step), "{path}");
        }
    }
}

#[tokio::test]
async fn conditions_look_at_metadata_and_shares_at_the_session() {
    let routed = Routed::new().await;
    let elements = json!([
        start("c"),
        {"id": "c", "type": "conditional", "properties": {"conditions": {"metadata.plan": "paid"}},
         "outputs": {"true": to("p"), "false": to("free")}},
        {"id": "p", "type": "percentage", "outputs": {"50%": to("x"), "else": to("y")}},
        model("free", "workers-ai", "echo", None), model("x", "hearth", "echo", None), model("y", "vllm", "echo", None),
        {"id": "end", "type": "end", "outputs": {}},
    ]);
    routed.route("plans", elements).await;
    let provider = async |headers: &[&str]| {
        let body = asking("dynamic/plans", "a", "");
        let reply = routed.server.send("POST", "/v1/chat/completions", headers, body.as_bytes()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.header("cf-aig-provider").unwrap().to_owned()
    };
    assert_eq!(provider(&[]).await, "workers-ai");
    let paid = r#"cf-aig-metadata: {"plan":"paid"}"#;
    let mut seen = std::collections::BTreeSet::new();
    for session in 0..16 {
        let header = format!("x-session-id: s{session}");
        let first = provider(&[paid, &header]).await;
        assert_eq!(provider(&[paid, &header]).await, first, "a session stays where it was");
        seen.insert(first);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["hearth", "vllm"]);
}

#[tokio::test]
async fn a_rate_leads_to_its_fallback_and_without_one_to_429() {
    let routed = Routed::new().await;
    let rate = |fallback: Option<&str>| {
        let mut outputs = json!({"success": to("a")});
        if let Some(fallback) = fallback {
            outputs["fallback"] = to(fallback);
        }
        let properties = json!({"key": "metadata.user", "limit": 1, "limitType": "count", "window": 86_400});
        json!({"id": "r", "type": "rate", "properties": properties, "outputs": outputs})
    };
    let end = json!({"id": "end", "type": "end", "outputs": {}});
    let a = model("a", "hearth", "echo", None);
    routed
        .route("soft", json!([start("r"), rate(Some("b")), a, model("b", "vllm", "echo", None), end]))
        .await;
    routed.route("hard", json!([start("r"), rate(None), a, end])).await;
    let ask = async |name: &str, user: &str| {
        let header = format!(r#"cf-aig-metadata: {{"user":"{user}"}}"#);
        let body = asking(&format!("dynamic/{name}"), "a", "");
        routed.server.send("POST", "/v1/chat/completions", &[&header], body.as_bytes()).await
    };
    for (user, provider) in [("u", "hearth"), ("u", "vllm"), ("v", "hearth")] {
        assert_eq!(ask("soft", user).await.header("cf-aig-provider"), Some(provider));
    }
    assert_eq!(ask("hard", "u").await.status, 200);
    let reply = ask("hard", "u").await;
    assert_eq!(reply.status, 429);
    let after: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&after), "{after}");
    assert!(reply.body.contains("1 of 1 requests passed"), "{reply:?}");
}

/// Rows 12 and 25 of the public faults on this path: deltas pass as they come, and what has begun is never asked again.
#[tokio::test]
async fn a_stream_that_breaks_after_its_first_byte_takes_no_fallback() {
    let routed = Routed::new().await;
    let elements = json!([
        start("a"), model("a", "hearth", "echo", Some("b")), model("b", "vllm", "echo", None),
        {"id": "end", "type": "end", "outputs": {}},
    ]);
    routed.route("two", elements).await;
    let body = asking("dynamic/two", "fail later", r#","stream":true"#);
    let reply = routed.server.post("/v1/chat/completions", body).await;
    assert_eq!((reply.status, reply.header("cf-aig-step")), (200, Some("0")));
    assert!(reply.body.contains("error"), "{reply:?}");
    assert_eq!(routed.upstream.fake.requests.lock().unwrap().len(), 1);
    // Each delta comes when it is made, though nothing follows it.
    let told = routed.upstream.tell();
    told.send(Ok(STARTED)).await.unwrap();
    let mut wire = routed.server.connect().await;
    let body = asking("dynamic/two", "told", r#","stream":true"#);
    wire.request("POST", "/v1/chat/completions", &[], body.as_bytes()).await;
    for word in ["one", "two"] {
        told.send(Ok(text(0, word))).await.unwrap();
        if word == "one" {
            assert_eq!(wire.head().await.0, 200);
        }
        while !wire.chunk().await.contains(word) {}
    }
    drop(wire);
    routed.upstream.fake.drop_seen.notified().await;
}

#[tokio::test]
async fn when_every_model_fails_the_last_ones_words_are_the_answer() {
    let routed = Routed::new().await;
    let elements = json!([
        start("a"), model("a", "custom-gone", "none", Some("b")), model("b", "hearth", "nobody", None),
        {"id": "end", "type": "end", "outputs": {}},
    ]);
    routed.route("bad", elements).await;
    let reply = routed.server.post("/v1/chat/completions", asking("dynamic/bad", "a", "")).await;
    assert_eq!((reply.status, reply.header("cf-aig-step")), (404, Some("1")));
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
    let reply = routed.server.post("/v1/chat/completions", asking("dynamic/unknown", "a", "")).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (404, &"model".into()), "{reply:?}");
}

#[tokio::test]
async fn the_control_plane_makes_deploys_and_explains() {
    let routed = Routed::new().await;
    let server = &routed.server;
    let json = |reply: Reply| {
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    let body = json!({"name": "r", "elements": falls_back("hearth", "echo")}).to_string();
    let made = json(server.post(ROUTES, &body).await);
    let id = made["result"]["id"].as_str().unwrap().to_owned();
    assert_eq!(made["result"]["version"]["active"], "true");
    let listed = json(server.get(ROUTES).await);
    assert_eq!(listed["data"]["routes"][0]["name"], "r");
    assert_eq!(json(server.get(&format!("{ROUTES}?page=2")).await)["data"]["routes"], json!([]));
    let version = json!({"elements": falls_back("vllm", "echo")}).to_string();
    let version = json(server.post(&format!("{ROUTES}/{id}/versions"), &version).await);
    let version = version["result"]["version_id"].as_str().unwrap().to_owned();
    let explain = async |more: Value| {
        json(server.post(&format!("{ROUTES}/{id}/explain"), more.to_string()).await)["result"].clone()
    };
    assert_eq!(explain(json!({"failing": ["a"]})).await["provider"], "hearth");
    assert_eq!(explain(json!({"failing": ["a"], "version_id": version})).await["provider"], "vllm");
    let body = json!({"version_id": version}).to_string();
    json(server.post(&format!("{ROUTES}/{id}/deployments"), body).await);
    assert_eq!(explain(json!({"failing": ["a"]})).await["provider"], "vllm");
    assert_eq!(
        json(server.get(&format!("{ROUTES}/{id}/deployments")).await)["data"]["deployments"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let renamed = json(server.send("PATCH", &format!("{ROUTES}/{id}"), &[], br#"{"name":"s"}"#).await);
    assert_eq!(renamed["route"]["name"], "s");
    let reply = server.post(ROUTES, r#"{"name":"x","elements":[{"id":"a","type":"start"}]}"#).await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("elements[0].outputs.next"), "{reply:?}");
    json(server.send("DELETE", &format!("{ROUTES}/{id}"), &[], b"").await);
    assert_eq!(server.get(&format!("{ROUTES}/{id}")).await.status, 404);
}

/// A server that asked itself without end would be gone.
#[tokio::test]
async fn a_step_that_leads_to_a_route_again_fails_and_the_server_goes_on() {
    let routed = Routed::new().await;
    let end = json!({"id": "end", "type": "end", "outputs": {}});
    routed.route("loop", json!([start("a"), model("a", "nowhere", "x:dynamic/loop", None), end])).await;
    // A model whose own name has a colon stays one.
    routed.route("colon", json!([start("a"), model("a", "hearth", "x:dynamic/loop", None), end])).await;
    let run = async |name: &str| {
        let header = format!("cf-consn-model-id: dynamic/{name}");
        let body = br#"{"inputs":{"prompt":"a"}}"#;
        routed.server.send("POST", "/run?version=3", &[&header], body).await
    };
    let reply = run("loop").await;
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.body.contains("names a route again"), "{reply:?}");
    run("colon").await;
    assert_eq!(routed.upstream.seen().model, "x:dynamic/loop");
}
