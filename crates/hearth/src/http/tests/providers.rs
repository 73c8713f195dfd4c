//! Requests that go to a provider, which is here a second server of the same kind.

use super::*;
use gateway::call::Proxy;
use gateway::dialect::Dialect;
use gateway::provider::{Providers, Wishes};
use gateway::upstream::Upstream;
use std::collections::BTreeMap;

const PASS: &str = "/v1/default/default/hearth/v1/chat/completions";

/// A server with these providers, each with this server behind. A name that ends with `-anthropic` is one that speaks
/// Anthropic's dialect.
pub(super) async fn before(upstream: &Server, wishes: &[(&str, &[&str])]) -> Server {
    let wishes = wishes.iter().map(|(slug, models)| {
        let base_url = Some(format!("http://{}/v1", upstream.address));
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        let dialect = slug.ends_with("-anthropic").then_some(Dialect::Anthropic);
        ((*slug).to_owned(), Wishes { base_url, models, dialect, ..Wishes::default() })
    });
    let providers = Providers::new(wishes.collect::<BTreeMap<_, _>>()).unwrap();
    let clock = Arc::new(base::SystemClock::default());
    let proxy = Proxy::new(providers, Upstream::new().unwrap(), clock);
    Server::with(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await
}

pub(super) fn asking(model: &str, prompt: &str, more: &str) -> String {
    chat(prompt, more).replace("\"echo\"", &format!("\"{model}\""))
}

#[tokio::test]
async fn a_model_named_with_its_provider_is_answered_there() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let reply = server.post("/v1/chat/completions", asking("hearth/echo", "a b", "")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "a b");
    assert_eq!(reply.header("cf-aig-step"), Some("0"));
    assert_eq!(upstream.seen().model, "echo");
    assert!(server.fake.requests.lock().unwrap().is_empty());
    let body = r#"{"model":"hearth/vectors","input":"abc"}"#;
    assert_eq!(server.post("/v1/embeddings", body).await.json()["data"][0]["embedding"][0], 3.0);
    let body = r#"{"model":"hearth/echo","prompt":"c d"}"#;
    assert_eq!(server.post("/v1/completions", body).await.json()["choices"][0]["text"], "c d");
    let body = r#"{"model":"hearth/echo","input":"e","store":false}"#;
    assert_eq!(server.post("/v1/responses", body).await.json()["output"][0]["content"][0]["text"], "e");
    let body = r#"{"model":"hearth/echo","max_tokens":9,"messages":[{"role":"user","content":"f"}]}"#;
    assert_eq!(server.post("/v1/messages", body).await.json()["content"][0]["text"], "f");
}

#[tokio::test]
async fn a_stream_hides_the_usage_that_the_client_did_not_ask_for() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let streamed = async |server: &Server, model: &str, more: &str| {
        let reply = server.post("/v1/chat/completions", asking(model, "a b", more)).await;
        let chunks: Vec<Value> =
            reply.events().iter().filter_map(|data| serde_json::from_str(data).ok()).collect();
        let usage = chunks.iter().filter(|chunk| chunk["usage"].is_object()).count();
        assert_eq!(reply.events().last(), Some(&"[DONE]"));
        (chunks.len(), usage)
    };
    let plain = r#","stream":true"#;
    assert_eq!(streamed(&server, "hearth/echo", plain).await, streamed(&upstream, "echo", plain).await);
    let asked = r#","stream":true,"stream_options":{"include_usage":true}"#;
    let (chunks, usage) = streamed(&server, "hearth/echo", asked).await;
    assert_eq!((chunks, usage), streamed(&upstream, "echo", asked).await);
    assert_eq!(usage, 1);
}

#[tokio::test]
async fn what_an_engine_here_has_is_answered_here() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &["echo", "far"])]).await;
    assert_eq!(server.post("/v1/chat/completions", chat("a", "")).await.status, 200);
    assert!(upstream.fake.requests.lock().unwrap().is_empty());
    // One that is listed for a provider goes there by its bare name; there it is not known.
    let reply = server.post("/v1/chat/completions", asking("far", "a", "")).await;
    assert_eq!((reply.status, upstream.seen().model.as_str()), (404, "far"));
    // What no provider has is refused here.
    let reply = server.post("/v1/chat/completions", asking("nowhere/echo", "a", "")).await;
    assert_eq!((reply.status, reply.header("cf-aig-step")), (404, None));
}

#[tokio::test]
async fn ai_gateways_path_leads_to_the_provider() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let reply = server.post(PASS, chat("a b", "")).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "a b");
    let short = server.post(&PASS.replace("/v1/chat", "/chat"), chat("a b", "")).await;
    assert_eq!(short.status, 200);
    let models = server.get("/v1/default/default/hearth/v1/models").await;
    assert_eq!(models.json()["data"][0]["id"], "echo");
    // What the provider refuses comes back in its words.
    let reply = server.post(PASS, asking("other", "a", "")).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &"model_not_found".into()));
}

#[tokio::test]
async fn a_task_is_read_for_its_model_whatever_the_type_of_its_body_says() {
    let upstream = Server::start().await;
    let fixture = metering::Fixture::start(Config {
        proxy: Some(super::runs::server_proxy(&upstream)),
        ..Config::default()
    })
    .await;
    let types = [
        "Application/JSON",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/octet-stream",
        "image/png",
    ];
    for (before, kind) in types.iter().enumerate() {
        let header = format!("content-type: {kind}");
        let send = async |body: &str| fixture.server.send("POST", PASS, &[&header], body.as_bytes()).await;
        let reply = send(&chat("a b", r#","stream":true"#)).await;
        assert_eq!(reply.status, 200, "{kind}: {reply:?}");
        let lines = fixture.lines("model").await;
        let line = lines.iter().find(|line| line.groups[0] == "echo").expect("the model is known");
        let count = before as u64 + 1;
        assert_eq!((line.requests, line.output), (count, 2 * count), "{kind}");
        for body in ["", "model=echo", "--x", "[]", "{"] {
            assert_eq!(send(body).await.status, 400, "{kind} {body:?}");
        }
    }
}

#[tokio::test]
async fn compat_serves_providers_and_the_models_here() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let path = "/v1/default/default/compat/chat/completions";
    let reply = server.post(path, asking("hearth/echo", "far", "")).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "far");
    let reply = server.post(path, asking("workers-ai/@cf/test/echo", "near", "")).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "near");
    assert_eq!(server.seen().model, "@cf/test/echo");
}

#[tokio::test]
async fn errors_of_ai_gateways_paths_are_in_its_words() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let reply = server.post("/v1/default/default/nobody/v1/x", "{}").await;
    assert_eq!(reply.status, 400);
    for key in ["error", "errors"] {
        assert_eq!(reply.json()[key][0]["code"], 2008, "{reply:?}");
    }
    let reply = server.post(PASS, r#"{"model":"a","model":"b"}"#).await;
    assert_eq!(reply.status, 400);
    assert_eq!(
        reply.json()["errors"][0]["message"],
        "model is given twice, which readers understand differently"
    );
    let reply = server.post(PASS, r#"{"model":"a""#).await;
    let message = "the body is not valid JSON: a comma or } is expected at byte 12, where the body ends";
    assert_eq!(reply.json()["errors"][0]["message"], message);
    // A provider that wants a key, and there is none.
    let reply = server.post("/v1/default/default/openai/chat/completions", "{}").await;
    assert_eq!((reply.status, &reply.json()["internalCode"]), (401, &2009.into()));
}

/// Row 16 of the public faults, on each surface: the upstream went on for a client that had left.
#[tokio::test]
async fn a_client_that_leaves_ends_the_work_at_the_provider() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[])]).await;
    let messages = r#""messages":[{"role":"user","content":"hang"}]"#;
    for (path, body) in [
        ("/v1/chat/completions", asking("hearth/echo", "hang", r#","stream":true"#)),
        ("/v1/chat/completions", asking("hearth/echo", "hang", "")),
        ("/v1/responses", r#"{"model":"hearth/echo","input":"hang","store":false,"stream":true}"#.to_owned()),
        ("/v1/messages", format!(r#"{{"model":"hearth/echo","max_tokens":9,"stream":true,{messages}}}"#)),
        (PASS, chat("hang", r#","stream":true"#)),
    ] {
        let mut wire = server.connect().await;
        wire.request("POST", path, &[], body.as_bytes()).await;
        if body.contains("stream") {
            assert_eq!(wire.head().await.0, 200, "{path}");
            wire.chunk().await;
        } else {
            while upstream.fake.requests.lock().unwrap().len() < 2 {
                tokio::task::yield_now().await;
            }
        }
        drop(wire);
        upstream.fake.drop_seen.notified().await;
    }
}

#[tokio::test]
async fn no_key_of_ours_goes_to_a_provider_wherever_and_however_often_it_is_shown() {
    let provider = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = Some(format!("http://{}/v1", provider.local_addr().unwrap()));
    let wishes = [("hearth".to_owned(), Wishes { base_url, ..Wishes::default() })];
    let clock = Arc::new(base::SystemClock::default());
    let proxy = Proxy::new(Providers::new(wishes.into()).unwrap(), Upstream::new().unwrap(), clock);
    let config =
        Config { api_key: Some("s3cret".to_owned()), proxy: Some(Arc::new(proxy)), ..Config::default() };
    let fixture = super::metering::Fixture::start(config).await;
    let (_, kept) = fixture.key("default", "inference", gateway::Limits::default()).await;
    let bearer = format!("authorization: Bearer {}", kept.0);
    let headers = [
        "cf-aig-authorization: Bearer s3cret",
        &bearer,
        "x-api-key: theirs",
        "x-api-key: s3cret",
        "api-key: s3cret",
        "x-goog-api-key: theirs",
        "mf-header-authorization: Bearer s3cret",
    ];
    let body = chat("a", "");
    let asking = fixture.server.send("POST", PASS, &headers, body.as_bytes());
    let answering = async {
        let mut wire = Wire(BufReader::new(provider.accept().await.unwrap().0));
        let mut head = Vec::new();
        loop {
            match wire.line().await {
                line if line.is_empty() => break,
                line => head.push(line),
            }
        }
        wire.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        head.join("\n")
    };
    let (reply, head) = tokio::join!(asking, answering);
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(!head.contains("s3cret") && !head.contains(&kept.0), "{head}");
    assert!(head.contains("x-goog-api-key: theirs"), "{head}");
}
