//! The universal endpoint, the paths of Workers AI under a gateway, and what the AI binding has of gateways.

use super::providers::{asking, before};
use super::*;

const PATH: &str = "/v1/default/default";

fn entry(provider: &str, endpoint: &str, query: &str, more: &str) -> String {
    format!(r#"{{"provider":"{provider}","endpoint":"{endpoint}","query":{query}{more}}}"#)
}

async fn servers() -> (Server, Server) {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[]), ("vllm", &[])]).await;
    (upstream, server)
}

#[tokio::test]
async fn a_member_that_an_entry_does_not_have_is_refused_by_name() {
    let fixture = super::metering::Fixture::start(Config::default()).await;
    let entry = format!(
        r#"[{{"provider":"compat","endpoint":"chat/completions","cnfig":{{"maxAttempts":2}},"query":{}}}]"#,
        chat("a", "")
    );
    let reply = fixture.server.post("/v1/default/default", entry).await;
    assert!(reply.status == 400 && reply.body.contains("cnfig"), "{reply:?}");
}

#[tokio::test]
async fn entries_are_tried_in_order_and_the_header_says_which_answered() {
    let (upstream, server) = servers().await;
    let missing = entry("hearth", "v1/chat/completions", &asking("nobody", "a", ""), "");
    let good = entry("vllm", "chat/completions", &chat("far", ""), "");
    let reply = server.post(PATH, format!("[{missing},{good},{missing}]")).await;
    assert_eq!((reply.status, reply.header("cf-aig-step")), (200, Some("1")), "{reply:?}");
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "far");
    assert!(reply.header("cf-aig-log-id").is_none(), "without a ledger there is no entry");
    let seen: Vec<_> = upstream.fake.requests.lock().unwrap().iter().map(|seen| seen.model.clone()).collect();
    assert_eq!(seen, ["nobody", "echo"]);
    // One object is a list of one.
    let reply = server.post(PATH, &good).await;
    assert_eq!((reply.status, reply.header("cf-aig-step")), (200, Some("0")));
}

#[tokio::test]
async fn compat_and_workers_ai_are_entries_too() {
    let (_upstream, server) = servers().await;
    for (provider, endpoint, query, at, expected) in [
        ("compat", "chat/completions", asking("hearth/echo", "far", ""), "/choices/0/message/content", "far"),
        (
            "compat",
            "v1/chat/completions",
            asking("workers-ai/@cf/test/echo", "near", ""),
            "/choices/0/message/content",
            "near",
        ),
        ("workers-ai", "@cf/test/echo", r#"{"prompt":"bare"}"#.to_owned(), "/result/response", "bare"),
        ("workers-ai", "run/@cf/test/echo", r#"{"prompt":"run"}"#.to_owned(), "/result/response", "run"),
        ("workers-ai", "v1/chat/completions", chat("v1", ""), "/choices/0/message/content", "v1"),
    ] {
        let reply = server.post(PATH, format!("[{}]", entry(provider, endpoint, &query, ""))).await;
        assert_eq!(reply.status, 200, "{provider}/{endpoint}: {reply:?}");
        assert_eq!(reply.json().pointer(at).unwrap(), expected, "{provider}/{endpoint}");
    }
}

#[tokio::test]
async fn when_all_fail_the_last_ones_words_are_the_answer() {
    let (_upstream, server) = servers().await;
    let missing = entry("hearth", "v1/chat/completions", &asking("nobody", "a", ""), "");
    let reply = server.post(PATH, format!("[{missing},{missing}]")).await;
    assert_eq!((reply.status, reply.header("cf-aig-step")), (404, Some("1")));
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
    // What the gateway itself refuses is in its own words.
    let unknown = entry("nothing", "v1/chat/completions", "{}", "");
    let reply = server.post(PATH, format!("[{missing},{unknown}]")).await;
    assert_eq!(reply.status, 400);
    for key in ["error", "errors"] {
        assert_eq!(reply.json()[key][0]["code"], 2008, "{reply:?}");
    }
    let reply = server.post(PATH, r#"[{"provider":"hearth"}]"#).await;
    assert_eq!((reply.status, &reply.json()["name"]), (400, &"AiGatewayError".into()), "{reply:?}");
}

#[tokio::test]
async fn an_entrys_headers_go_before_the_requests() {
    let (upstream, server) = servers().await;
    let sessions = async |more: &str, headers: &[&str]| {
        let body = format!("[{}]", entry("workers-ai", "v1/chat/completions", &chat("a", ""), more));
        assert_eq!(server.send("POST", PATH, headers, body.as_bytes()).await.status, 200);
        server.seen().session
    };
    assert_eq!(sessions("", &["x-session-id: outer"]).await.as_deref(), Some("outer"));
    let own = r#","headers":{"x-session-id":"inner"}"#;
    assert_eq!(sessions(own, &["x-session-id: outer"]).await.as_deref(), Some("inner"));
    // A setting of retries that cannot be is refused, and named.
    let body = entry("hearth", "v1/chat/completions", &chat("a", ""), r#","config":{"maxAttempts":9}"#);
    let reply = server.post(PATH, body).await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("cf-aig-max-attempts must be"), "{reply:?}");
    assert!(upstream.fake.requests.lock().unwrap().is_empty());
}

/// Row 16 of the public faults on this surface.
#[tokio::test]
async fn a_client_that_leaves_ends_the_work_of_the_entry_that_answers() {
    let (upstream, server) = servers().await;
    let missing = entry("hearth", "v1/chat/completions", &asking("nobody", "a", ""), "");
    let hanging = entry("hearth", "v1/chat/completions", &chat("hang", r#","stream":true"#), "");
    let mut wire = server.connect().await;
    wire.request("POST", PATH, &[], format!("[{missing},{hanging}]").as_bytes()).await;
    let (status, headers) = wire.head().await;
    assert_eq!(status, 200);
    assert!(headers.contains(&("cf-aig-step".to_owned(), "1".to_owned())));
    wire.chunk().await;
    drop(wire);
    upstream.fake.drop_seen.notified().await;
}

/// Row 25 of the public faults on this surface: after its first byte a stream is never asked for elsewhere.
#[tokio::test]
async fn an_entry_that_breaks_after_its_first_byte_is_not_followed_by_another() {
    let (upstream, server) = servers().await;
    let breaking = entry("hearth", "v1/chat/completions", &chat("fail later", r#","stream":true"#), "");
    let other = entry("vllm", "chat/completions", &chat("other", r#","stream":true"#), "");
    let reply = server.post(PATH, format!("[{breaking},{other}]")).await;
    assert_eq!((reply.status, reply.header("cf-aig-step")), (200, Some("0")));
    assert!(reply.body.contains("error") && !reply.body.contains("other"), "{reply:?}");
    assert_eq!(upstream.fake.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn the_bindings_gateway_asks_and_tells_its_address() {
    let (_upstream, server) = servers().await;
    let body = format!("[{}]", entry("compat", "chat/completions", &asking("hearth/echo", "far", ""), ""));
    let reply = server.post("/ai-gateway/universal/run/default", &body).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")), "{reply:?}");
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "far");
    let url = async |provider: &str| {
        server.get(&format!("/ai-gateway/gateways/default/url/{provider}")).await.json()["result"]["url"]
            .clone()
    };
    assert_eq!(url("universal").await, "http://localhost/v1/default/default");
    assert_eq!(url("openai").await, "http://localhost/v1/default/default/openai");
}

#[tokio::test]
async fn workers_ais_routes_are_under_a_gateway_too() {
    let (_upstream, server) = servers().await;
    let run =
        server.post("/v1/default/default/workers-ai/run/%40cf%2Ftest%2Fecho", r#"{"prompt":"a b"}"#).await;
    assert_eq!(run.json()["result"]["response"], "a b");
    let body = r#"{"model":"@cf/test/vectors","input":"abc"}"#;
    for path in ["workers-ai/v1/embeddings", "compat/embeddings", "compat/v1/embeddings"] {
        let reply = server.post(&format!("{PATH}/{path}"), body).await;
        assert_eq!(reply.json()["data"][0]["embedding"][0], 3.0, "{path}: {reply:?}");
    }
    // Its errors are Workers AI's.
    let reply = server.post("/v1/default/default/workers-ai/run/@cf/none", "{}").await;
    assert_eq!((reply.status, &reply.json()["errors"][0]["code"]), (400, &5007.into()), "{reply:?}");
    assert_eq!(server.post("/v1/default/default/workers-ai/v1/nothing", "{}").await.status, 404);
}

#[tokio::test]
async fn what_openais_clients_ask_for_and_is_not_built_is_no_gateway() {
    let (_upstream, server) = servers().await;
    for path in ["/v1/audio/speech", "/v1/files/f", "/v1/batches/b/cancel/x", "/v1/threads/t/runs/r"] {
        let reply = server.post(path, "{}").await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["type"]),
            (404, &"invalid_request_error".into()),
            "{reply:?}"
        );
    }
    // A key belongs to an account, which is not what the first segment names.
    let fixture = super::metering::Fixture::start(Config::default()).await;
    let (_, key) = fixture.key("default", "inference", gateway::Limits::default()).await;
    let bearer = format!("authorization: Bearer {}", key.0);
    for path in ["/v1/files/f", "/v1/files/f/content/x"] {
        let reply = fixture.server.send("GET", path, &[&bearer], b"").await;
        assert_eq!(reply.status, 404, "{reply:?}");
        assert_eq!(fixture.server.get(path).await.status, 401);
    }
}
