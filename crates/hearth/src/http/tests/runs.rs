//! Streams that are read on after the client lost them.

use super::providers::{asking, before};
use super::*;

const WANTED: &str = "cf-aig-resumable: true";

fn finish() -> Delta {
    Delta::Finish { choice: 0, reason: FinishReason::Stop, stop_text: None }
}

/// Begins a stream whose deltas the test tells; reads until its first word.
async fn begun(server: &Server, told: &mpsc::Sender<Result<Delta, Error>>) -> (Wire, String, String) {
    let mut wire = server.connect().await;
    let body = asking("hearth/echo", "told", r#","stream":true"#);
    wire.request("POST", "/v1/chat/completions", &[WANTED], body.as_bytes()).await;
    told.send(Ok(STARTED)).await.unwrap();
    told.send(Ok(text(0, "one"))).await.unwrap();
    let (status, headers) = wire.head().await;
    assert_eq!(status, 200);
    let run = headers.iter().find(|(name, _)| name == "cf-aig-run-id").unwrap().1.clone();
    let mut seen = String::new();
    while !seen.contains("one") {
        seen.push_str(&wire.chunk().await);
    }
    (wire, run, seen)
}

#[tokio::test]
async fn a_client_that_lost_its_stream_reads_on_without_a_second_inference() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let told = upstream.tell();
    let (wire, run, seen) = begun(&server, &told).await;
    drop(wire);
    // It goes on though nobody listens.
    for delta in [text(0, " two"), text(0, " three"), finish(), usage(1, 3)] {
        told.send(Ok(delta)).await.unwrap();
    }
    drop(told);
    let n = seen.matches("\n\n").count();
    for path in [
        format!("/ai-gateway/gateways/default/run/{run}/resume?from={n}"),
        format!("/ai-gateway/run/{run}/resume?from={n}"),
        format!("/client/v4/accounts/default/ai/runs/{run}/resume?from={n}"),
        format!("/v1/runs/{run}/resume?from={n}"),
    ] {
        let reply = server.get(&path).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")), "{path}");
        assert!(!reply.body.contains("\"one\"") && reply.body.contains(" two"), "{reply:?}");
        assert!(reply.body.ends_with("data: [DONE]\n\n"), "{reply:?}");
    }
    let all = server.get(&format!("/v1/runs/{run}/resume")).await;
    assert!(all.body.starts_with(&seen));
    assert_eq!(upstream.fake.requests.lock().unwrap().len(), 1);
    assert_eq!(server.get("/v1/runs/nothing/resume?from=0").await.status, 404);
    assert_eq!(server.get(&format!("/v1/runs/{run}/resume?from=x")).await.status, 400);
}

#[tokio::test]
async fn an_explicit_end_stops_the_work_and_the_stream_is_gone() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let told = upstream.tell();
    let (wire, run, _) = begun(&server, &told).await;
    drop(wire);
    assert_eq!(server.send("DELETE", &format!("/v1/runs/{run}"), &[], b"").await.status, 204);
    upstream.fake.drop_seen.notified().await;
    assert_eq!(server.get(&format!("/v1/runs/{run}/resume?from=0")).await.status, 404);
    assert_eq!(server.send("DELETE", &format!("/v1/runs/{run}"), &[], b"").await.status, 404);
}

#[tokio::test]
async fn who_reads_a_stream_that_is_ended_gets_an_error_as_its_last_event() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    for (path, more, told_as) in [
        ("/v1/chat/completions", "", "data: {\"error\":"),
        ("/v1/responses", "", "event: response.failed\ndata: {"),
        ("/v1/messages", r#","max_tokens":9"#, "event: error\ndata: {\"type\":\"error\""),
    ] {
        let told = upstream.tell();
        let mut wire = server.connect().await;
        let body = asking("hearth/echo", "told", &format!(r#","stream":true{more}"#));
        let body = if path.ends_with("responses") { body.replace("\"messages\"", "\"input\"") } else { body };
        wire.request("POST", path, &[WANTED], body.as_bytes()).await;
        told.send(Ok(STARTED)).await.unwrap();
        told.send(Ok(text(0, "one"))).await.unwrap();
        let (status, headers) = wire.head().await;
        assert_eq!(status, 200, "{path}");
        let run = headers.iter().find(|(name, _)| name == "cf-aig-run-id").unwrap().1.clone();
        let mut seen = String::new();
        while !seen.contains("one") {
            seen.push_str(&wire.chunk().await);
        }
        assert_eq!(server.send("DELETE", &format!("/v1/runs/{run}"), &[], b"").await.status, 204);
        // To the last chunk, which is empty: the body is whole.
        loop {
            let chunk = wire.chunk().await;
            if chunk.is_empty() {
                break;
            }
            seen.push_str(&chunk);
        }
        let last = seen.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.starts_with(told_as) && last.contains("was ended"), "{path}: {seen}");
        drop(told);
    }
}

#[tokio::test]
async fn a_stream_that_nobody_comes_back_for_ends() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    // The same server, which forgets at once.
    let proxy = server_proxy(&upstream);
    let config = Config { resume: Duration::from_millis(1), proxy: Some(proxy), ..Config::default() };
    let forgetful = Server::with(config).await;
    drop(server);
    let told = upstream.tell();
    let (wire, run, _) = begun(&forgetful, &told).await;
    drop(wire);
    upstream.fake.drop_seen.notified().await;
    while forgetful.get(&format!("/v1/runs/{run}/resume?from=0")).await.status != 404 {}
}

pub(super) fn server_proxy(upstream: &Server) -> Arc<gateway::call::Proxy> {
    let base_url = Some(format!("http://{}/v1", upstream.address));
    let wishes = [("hearth".to_owned(), gateway::provider::Wishes { base_url, ..Default::default() })];
    let providers = gateway::provider::Providers::new(wishes.into()).unwrap();
    let upstream = gateway::upstream::Upstream::new().unwrap();
    Arc::new(gateway::call::Proxy::new(providers, upstream, Arc::new(base::SystemClock::default())))
}

#[tokio::test]
async fn only_who_asks_for_it_gets_such_a_stream() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let body = asking("hearth/echo", "a", r#","stream":true"#);
    assert_eq!(server.post("/v1/chat/completions", &body).await.header("cf-aig-run-id"), None);
    let whole = asking("hearth/echo", "a", "");
    let reply = server.send("POST", "/v1/chat/completions", &[WANTED], whole.as_bytes()).await;
    assert_eq!((reply.status, reply.header("cf-aig-run-id")), (200, None));
    let body = format!(
        r#"[{{"provider":"hearth","endpoint":"v1/chat/completions","query":{}}}]"#,
        chat("a", r#","stream":true"#)
    );
    let reply = server.send("POST", "/v1/default/default", &[WANTED], body.as_bytes()).await;
    let run = reply.header("cf-aig-run-id").unwrap();
    assert_eq!(server.get(&format!("/v1/runs/{run}/resume")).await.body, reply.body);
}

#[tokio::test]
async fn where_nothing_may_be_kept_there_is_no_stream_to_read_on() {
    let fixture = super::metering::Fixture::start(Config::default()).await;
    let run = async |headers: &[&str], path: &str, body: &str| {
        let reply = fixture.server.send("POST", path, headers, body.as_bytes()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.body.ends_with("data: [DONE]\n\n"), "{reply:?}");
        reply.header("cf-aig-run-id").is_some()
    };
    let body = chat("a", r#","stream":true"#);
    let entry = format!(
        r#"[{{"provider":"compat","endpoint":"chat/completions","headers":{{"cf-aig-zdr":"true"}},"query":{body}}}]"#
    );
    assert!(run(&[WANTED], "/v1/chat/completions", &body).await);
    assert!(!run(&[WANTED, "cf-aig-zdr: true"], "/v1/chat/completions", &body).await);
    assert!(!run(&[WANTED], "/v1/default/default", &entry).await);
    let zdr = serde_json::json!({"zdr": true});
    fixture.gateway.update_gateway("default", "default", zdr.as_object().unwrap()).await.unwrap();
    assert!(!run(&[WANTED], "/v1/chat/completions", &body).await);
}
