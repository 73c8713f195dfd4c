//! Requests whose provider speaks another dialect than the client; the provider is a second server of the same kind, asked
//! on the routes of one dialect alone.

use super::providers::before;
use super::*;
use gateway::call::Proxy;
use gateway::dialect::Dialect;
use gateway::provider::{ProviderKey, Providers, Wishes};
use gateway::upstream::Upstream;

const OPENAI: &str = "vllm";
const ANTHROPIC: &str = "custom-anthropic";

async fn servers() -> (Server, Server) {
    let upstream = Server::start().await;
    let server = before(&upstream, &[(OPENAI, &[]), (ANTHROPIC, &[])]).await;
    (upstream, server)
}

/// The bodies that ask for these words on every surface, and how the answer's text is found.
fn asks(provider: &str, words: &str) -> Vec<(&'static str, String, &'static str)> {
    let model = format!("{provider}/echo");
    let messages = format!(r#""messages":[{{"role":"user","content":"{words}"}}]"#);
    vec![
        (
            "/v1/chat/completions",
            format!(r#"{{"model":"{model}",{messages}}}"#),
            "/choices/0/message/content",
        ),
        ("/v1/messages", format!(r#"{{"model":"{model}","max_tokens":9,{messages}}}"#), "/content/0/text"),
        ("/v1/responses", format!(r#"{{"model":"{model}","input":"{words}"}}"#), "/output/0/content/0/text"),
        (
            "/client/v4/accounts/default/ai/run",
            format!(r#"{{"model":"{model}","input":{{{messages}}}}}"#),
            "/result/response",
        ),
        (
            "/client/v4/accounts/default/ai/v1/chat/completions",
            format!(r#"{{"model":"{model}",{messages}}}"#),
            "/choices/0/message/content",
        ),
        (
            "/v1/default/default/compat/chat/completions",
            format!(r#"{{"model":"{model}",{messages}}}"#),
            "/choices/0/message/content",
        ),
    ]
}

#[tokio::test]
async fn every_surface_reaches_a_provider_of_either_dialect() {
    let (upstream, server) = servers().await;
    for provider in [OPENAI, ANTHROPIC] {
        for (path, body, place) in asks(provider, "a b 語🦀") {
            let reply = server.post(path, body).await;
            assert_eq!(reply.status, 200, "{provider} {path} {reply:?}");
            let text = reply.json().pointer(place).and_then(Value::as_str).map(str::to_owned);
            assert_eq!(text.as_deref(), Some("a b 語🦀"), "{provider} {path} {reply:?}");
            assert_eq!(upstream.seen().model, "echo", "{provider} {path}");
            assert_eq!(reply.header("cf-aig-step"), Some("0"), "{provider} {path}");
        }
    }
    assert!(server.fake.requests.lock().unwrap().is_empty(), "nothing is answered here");
}

#[tokio::test]
async fn every_surface_streams_from_a_provider_of_either_dialect() {
    let (_upstream, server) = servers().await;
    for provider in [OPENAI, ANTHROPIC] {
        for (path, body, _) in asks(provider, "one two") {
            let body = if path.ends_with("/run") {
                body.replace(r#""messages""#, r#""stream":true,"messages""#)
            } else {
                body.replacen('{', r#"{"stream":true,"#, 1)
            };
            let reply = server.post(path, body).await;
            assert_eq!(reply.status, 200, "{provider} {path} {reply:?}");
            assert!(reply.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
            for word in ["one", " two"] {
                assert!(reply.body.contains(&format!(":\"{word}\"")), "{provider} {path} {reply:?}");
            }
            let last = reply.body.trim_end().rsplit("\n\n").next().unwrap_or_default().to_owned();
            let ends = ["[DONE]", "message_stop", "response.completed"];
            assert!(ends.iter().any(|end| last.contains(end)), "{provider} {path} {last}");
        }
    }
}

#[tokio::test]
async fn the_binding_reaches_providers() {
    let (_upstream, server) = servers().await;
    for provider in [OPENAI, ANTHROPIC] {
        let model = format!("cf-consn-model-id: {provider}/echo");
        let body = r#"{"inputs":{"prompt":"a b"},"options":{}}"#;
        let reply = server.send("POST", "/run?version=3", &[&model], body.as_bytes()).await;
        assert_eq!((reply.status, &reply.json()["response"]), (200, &"a b".into()), "{provider} {reply:?}");
    }
    let reply = server
        .post("/client/v4/accounts/default/ai/run", r#"{"model":"vllm/vectors","input":{"text":"abc"}}"#)
        .await;
    assert_eq!(reply.json()["result"]["data"][0][0], 3.0, "{reply:?}");
}

#[tokio::test]
async fn a_providers_refusal_comes_back_with_its_status_in_the_clients_dialect() {
    let (_upstream, server) = servers().await;
    let body = r#"{"model":"vllm/none","max_tokens":9,"messages":[{"role":"user","content":"f"}]}"#;
    let reply = server.post("/v1/messages", body).await;
    assert_eq!(reply.status, 404, "{reply:?}");
    assert_eq!(reply.json()["error"]["type"], "not_found_error");
    assert!(reply.body.contains("vllm: there is no model"), "{reply:?}");
    let body = r#"{"model":"custom-anthropic/echo","messages":[{"role":"user","content":"full"}]}"#;
    let reply =
        server.send("POST", "/v1/chat/completions", &["cf-aig-max-attempts: 1"], body.as_bytes()).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (429, &"rate_limit_exceeded".into()),
        "{reply:?}"
    );
    assert_eq!(reply.header("retry-after-ms"), Some("1500"), "{reply:?}");
}

#[tokio::test]
async fn what_a_dialect_has_no_words_for_is_refused_by_name() {
    let (upstream, server) = servers().await;
    for (field, more) in [
        ("n", r#","n":2"#),
        ("logprobs", r#","logprobs":true"#),
        ("frequency_penalty", r#","frequency_penalty":1"#),
        ("response_format", r#","response_format":{"type":"json_object"}"#),
        ("temperature", r#","temperature":1.5"#),
    ] {
        let body = chat("a", more).replace("\"echo\"", "\"custom-anthropic/echo\"");
        let reply = server.post("/v1/chat/completions", body).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &field.into()), "{reply:?}");
    }
    assert!(upstream.fake.requests.lock().unwrap().is_empty());
}

/// Row 16 of the public faults, where an answer is translated.
#[tokio::test]
async fn a_client_that_leaves_a_translated_answer_ends_the_work_at_the_provider() {
    let (upstream, server) = servers().await;
    for provider in [OPENAI, ANTHROPIC] {
        for (path, body, _) in asks(provider, "hang") {
            let spoken = (provider == OPENAI) != path.contains("messages") && !path.contains("/run");
            if spoken && !path.contains("responses") || path.contains("responses") {
                continue;
            }
            let body = if path.ends_with("/run") {
                body.replace(r#""messages""#, r#""stream":true,"messages""#)
            } else {
                body.replacen('{', r#"{"stream":true,"#, 1)
            };
            let mut wire = server.connect().await;
            wire.request("POST", path, &[], body.as_bytes()).await;
            assert_eq!(wire.head().await.0, 200, "{path}");
            wire.chunk().await;
            drop(wire);
            upstream.fake.drop_seen.notified().await;
        }
    }
}

#[tokio::test]
async fn providers_that_speak_the_clients_dialect_are_asked_first_and_the_others_next() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("custom-anthropic", &["far"]), ("vllm", &["far"])]).await;
    // Both say that they have no such model, which is the client's fault: the first one's word holds.
    let body = r#"{"model":"far","max_tokens":9,"messages":[{"role":"user","content":"f"}]}"#;
    let reply = server.post("/v1/messages", body).await;
    assert_eq!((reply.status, reply.header("cf-aig-step")), (404, Some("0")), "{reply:?}");
    assert_eq!(upstream.fake.requests.lock().unwrap().len(), 1);
}

/// A provider that answers every request with this status and a body that names it, and tells the bodies it got.
async fn refusing(status: u16) -> (String, mpsc::UnboundedReceiver<String>) {
    let (tell, told) = mpsc::unbounded_channel();
    let provider = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = provider.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let mut wire = Wire(BufReader::new(provider.accept().await.unwrap().0));
            let mut length = 0;
            loop {
                let line = wire.line().await;
                if let Some(told) = line.strip_prefix("content-length: ") {
                    length = told.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut asked = vec![0; length];
            wire.0.read_exact(&mut asked).await.unwrap();
            tell.send(String::from_utf8(asked).unwrap()).unwrap();
            let body = format!(r#"{{"error":{{"message":"the provider said {status}","code":"theirs"}}}}"#);
            let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n");
            let rest = format!("connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            wire.write(format!("{head}{rest}").as_bytes()).await;
        }
    });
    (format!("http://{address}/v1"), told)
}

/// Of two who have a model the one that speaks the client's dialect fails, and the request cannot be said to the other.
#[tokio::test]
async fn a_failure_of_a_provider_is_not_hidden_by_what_the_next_cannot_be_asked() {
    let upstream = Server::start().await;
    let (failing, _told) = refusing(503).await;
    let of = |base_url: String, dialect| Wishes {
        base_url: Some(base_url),
        models: vec!["far".to_owned()],
        dialect,
        ..Wishes::default()
    };
    let theirs = format!("http://{}/v1", upstream.address);
    let wishes = [
        ("custom-anthropic".to_owned(), of(theirs, Some(Dialect::Anthropic))),
        ("vllm".to_owned(), of(failing, None)),
    ];
    let clock = Arc::new(base::SystemClock::default());
    let proxy = Proxy::new(Providers::new(wishes.into()).unwrap(), Upstream::new().unwrap(), clock);
    let server = Server::with(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await;
    let ask = async |path: &str, body: &str| {
        server.send("POST", path, &["cf-aig-max-attempts: 1"], body.as_bytes()).await
    };
    let messages = r#""messages":[{"role":"user","content":"f"}]"#;
    for (path, body) in [
        // One that nobody reads so.
        ("/v1/chat/completions", format!(r#"{{"model":"far",{messages},"temperature":"hot"}}"#)),
        // One that the other dialect has no words for.
        (
            "/v1/chat/completions",
            format!(r#"{{"model":"far",{messages},"response_format":{{"type":"json_object"}}}}"#),
        ),
        ("/v1/default/default/compat/chat/completions", format!(r#"{{"model":"far",{messages},"n":2}}"#)),
    ] {
        let reply = ask(path, &body).await;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &"theirs".into()), "{reply:?}");
        assert_eq!(reply.header("cf-aig-step"), Some("0"), "{reply:?}");
    }
    assert!(upstream.fake.requests.lock().unwrap().is_empty());
    // Where the other can be asked, its word holds.
    let reply = ask("/v1/chat/completions", &format!(r#"{{"model":"far",{messages}}}"#)).await;
    assert_eq!(reply.status, 404, "{reply:?}");
    assert!(reply.body.contains("custom-anthropic: "), "{reply:?}");
}

#[tokio::test]
async fn thoughts_that_were_made_here_do_not_go_to_anthropics_api_on_either_path() {
    let (theirs, mut told) = refusing(400).await;
    let wishes = Wishes { base_url: Some(theirs), dialect: Some(Dialect::Anthropic), ..Wishes::default() };
    let providers = Providers::new([("custom-anthropic".to_owned(), wishes)].into()).unwrap();
    let clock = Arc::new(base::SystemClock::default());
    let proxy = Proxy::new(providers, Upstream::new().unwrap(), clock);
    let server = Server::with(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await;
    let body = |model: &str, thought: &str| {
        format!(
            r#"{{"model":"{model}", "new":1.0,"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":[{thought}{{"type":"text","text":"a"}}]}},{{"role":"user","content":"r"}}]}}"#
        )
    };
    let thought = r#"{"type":"thinking","thinking":"Hm.","signature":"bXNnXzE6MA=="},"#;
    for (path, model) in [
        ("/v1/default/default/custom-anthropic/v1/messages", "claude"),
        ("/v1/messages", "custom-anthropic/claude"),
    ] {
        assert_eq!(server.post(path, body(model, thought)).await.status, 400, "{path}");
        assert_eq!(told.recv().await, Some(body("claude", "")), "{path}");
    }
}

#[tokio::test]
async fn thoughts_that_were_carried_here_do_not_go_to_openais_api_on_either_path() {
    let (theirs, mut told) = refusing(400).await;
    let key = ProviderKey { secret: "k".to_owned(), weight: 1 };
    let wishes = Wishes { base_url: Some(theirs), keys: vec![key], ..Wishes::default() };
    let providers = Providers::new([("openai".to_owned(), wishes)].into()).unwrap();
    let clock = Arc::new(base::SystemClock::default());
    let proxy = Proxy::new(providers, Upstream::new().unwrap(), clock);
    let server = Server::with(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await;
    let body = |model: &str, thought: &str| {
        format!(
            r#"{{"model":"{model}", "new":1.0,"input":[{{"role":"user","content":"q"}},{thought}{{"role":"user","content":"r"}}]}}"#
        )
    };
    let thought = r#"{"type":"reasoning","summary":[],"encrypted_content":"aGVhcnRoLTE6eA"},"#;
    for (path, model) in [("/v1/default/default/openai/v1/responses", "gpt"), ("/v1/responses", "openai/gpt")]
    {
        assert_eq!(server.post(path, body(model, thought)).await.status, 400, "{path}");
        assert_eq!(told.recv().await, Some(body("gpt", "")), "{path}");
    }
}

#[tokio::test]
async fn the_list_of_models_names_those_that_settings_list_for_providers() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("vllm", &["far", "echo"])]).await;
    let list = server.get("/v1/models").await.json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["echo", "vectors", "ranker", "far"]);
    let one = server.get("/v1/models/far").await.json();
    assert_eq!(one["owned_by"], "vllm");
}
