//! The AI binding, as workerd calls it and as Miniflare does.

use super::*;
use serde_json::json;

const ECHO: &str = "cf-consn-model-id: @cf/test/echo";

fn inputs(inputs: &Value) -> String {
    json!({"inputs": inputs, "options": {}}).to_string()
}

impl Server {
    async fn bind(&self, path: &str, headers: &[&str], body: impl AsRef<[u8]>) -> Reply {
        self.send("POST", path, headers, body.as_ref()).await
    }
}

#[tokio::test]
async fn a_run_answers_bare_and_of_the_exact_type() {
    let server = Server::start().await;
    let body = inputs(&json!({"prompt": "hello world"}));
    for (path, model) in [
        ("/run?version=3", "@cf/test/echo"),
        ("/run?version=3", "canary:@cf/test/echo"),
        ("/run", "echo"),
        ("/ai-gateway/run?version=3", "@cf/test/echo"),
    ] {
        let header = format!("cf-consn-model-id: {model}");
        let reply = server.bind(path, &[&header, "cf-consn-sdk-version: 2.0.0"], &body).await;
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, Some("application/json")),
            "{reply:?}"
        );
        assert!(reply.header("cf-ai-req-id").is_some());
        let mut result = reply.json();
        assert_eq!(result["usage"].take()["total_tokens"], 4);
        assert_eq!(result, json!({"response": "hello world", "usage": null, "finish_reason": "stop"}));
    }
    let gateway = json!({"inputs": {"prompt": "hi"}, "options": {"gateway": {"id": "g", "skipCache": true}}});
    let reply = server.bind("/ai-gateway/run?version=3", &[ECHO], gateway.to_string()).await;
    assert_eq!(reply.json()["response"], "hi");
    server.stop().await;
}

#[tokio::test]
async fn the_session_and_other_tasks_work_as_by_rest() {
    let server = Server::start().await;
    let body = inputs(&json!({"prompt": "hi"}));
    server.bind("/run?version=3", &[ECHO, "x-session-affinity: s1"], body).await;
    assert_eq!(server.seen().session.as_deref(), Some("s1"));
    let vectors = "cf-consn-model-id: @cf/test/vectors";
    let reply = server.bind("/run?version=3", &[vectors], inputs(&json!({"text": ["ab", "c"]}))).await;
    assert_eq!(
        (&reply.json()["shape"], reply.header("content-type")),
        (&json!([2, 2]), Some("application/json"))
    );
    let reply = server.get("/ai-api/models/search?task=Text+Embeddings").await;
    assert_eq!(reply.json()["result"][0]["name"], "vectors");
    server.stop().await;
}

#[tokio::test]
async fn a_stream_is_one_of_events() {
    let server = Server::start().await;
    let body = inputs(&json!({"messages": [{"role": "user", "content": "hello world"}], "stream": true}));
    let reply = server.bind("/run?version=3", &[ECHO], body).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = reply.events();
    assert_eq!(events[..2], [r#"{"response":"hello"}"#, r#"{"response":" world"}"#]);
    assert_eq!(events.last(), Some(&"[DONE]"));
    server.stop().await;
}

#[tokio::test]
async fn errors_have_the_form_the_binding_throws() {
    let server = Server::start().await;
    for (path, header, body, status, code, description) in [
        ("/run?version=3", ECHO, inputs(&json!({"prompt": 3})), 400, 5006, "'prompt'"),
        (
            "/run?version=3",
            ECHO,
            inputs(&json!({"prompt": "schema", "tools": [{"name": "f"}]})),
            400,
            5006,
            "(at 'tools[0].parameters/properties/x')",
        ),
        (
            "/run?version=3",
            ECHO,
            inputs(&json!({"prompt": "full"})),
            429,
            3040,
            "Capacity temporarily exceeded, please try again.",
        ),
        (
            "/run?version=3",
            ECHO,
            inputs(&json!({"prompt": "long"})),
            400,
            5021,
            "10 tokens, at most 5 (at 'prompt')",
        ),
        ("/run?version=3", ECHO, "{".to_owned(), 400, 3003, ""),
        ("/run?version=3", ECHO, "{}".to_owned(), 400, 5006, "'inputs'"),
        (
            "/run?version=3",
            ECHO,
            json!({"inputs": {"prompt": "a"}, "options": {"queueRequest": true}}).to_string(),
            400,
            5006,
            "options.queueRequest",
        ),
        ("/run?version=3", "x: y", inputs(&json!({"prompt": "a"})), 400, 3003, "cf-consn-model-id"),
        (
            "/run?version=3",
            "cf-consn-model-id: @cf/no/such",
            inputs(&json!({"prompt": "a"})),
            400,
            5007,
            "No such model @cf/no/such or task",
        ),
        ("/run?version=2", ECHO, inputs(&json!({"prompt": "a"})), 400, 5006, "version 3"),
        ("/run?version=3&userInputs=%7B%7D", ECHO, "raw".to_owned(), 400, 5006, "streams"),
        ("/to-everything/markdown/transformer", ECHO, "{}".to_owned(), 400, 5006, "toMarkdown"),
        ("/ai-gateway/nothing", ECHO, "[]".to_owned(), 400, 5006, "AI.gateway"),
        ("/ai-api/nothing", ECHO, "{}".to_owned(), 404, 7000, "No route"),
    ] {
        let reply = server.bind(path, &[header], &body).await;
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (status, Some("application/json")),
            "{path} {body} {reply:?}"
        );
        let error = reply.json();
        assert_eq!(error["internalCode"], code, "{path} {body} {error}");
        assert!(error["description"].as_str().unwrap().contains(description), "{path} {body} {error}");
        assert_eq!(error["errors"][0]["code"], code);
        assert!(error.get("success").is_none());
    }
    let reply = server.send("GET", "/run?version=3&body=%7B%7D", &[ECHO], b"").await;
    assert_eq!((reply.status, &reply.json()["internalCode"]), (400, &json!(5006)));
    let body = inputs(&json!({"prompt": "fail later", "stream": true}));
    let reply = server.bind("/run?version=3", &[ECHO], body).await;
    let error: Value = serde_json::from_str(reply.events().last().unwrap()).unwrap();
    assert_eq!((&error["internalCode"], &error["description"]), (&json!(5001), &json!("the engine failed")));
    server.stop().await;
}

const MINIFLARE: &[&str] = &[
    "MF-Binding: AI",
    "MF-URL: https://workers-binding.ai/run?version=3",
    "MF-Header-cf-consn-model-id: @cf/test/echo",
    "MF-Header-host: workers-binding.ai",
    "MF-Header-content-type: application/json",
];

#[tokio::test]
async fn miniflares_form_is_taken_for_what_it_wraps() {
    let server = Server::start().await;
    let reply = server.bind("/", MINIFLARE, inputs(&json!({"prompt": "hello"}))).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")), "{reply:?}");
    assert_eq!(reply.json()["response"], "hello");
    let search = ["MF-Binding: AI", "MF-URL: https://workers-binding.ai/ai-api/models/search?search=vec"];
    let reply = server.send("GET", "/", &search, b"").await;
    assert_eq!(reply.json()["result"][0]["name"], "vectors");
    let reply = server.bind("/", MINIFLARE, inputs(&json!({"prompt": "full"}))).await;
    assert_eq!((reply.status, &reply.json()["internalCode"]), (429, &json!(3040)));
    // A WebSocket is tried beside the calls, and refused.
    let reply = server.get("/?MF-Binding=AI").await;
    assert_eq!((reply.status, &reply.json()["internalCode"]), (400, &json!(5006)));
    let reply = server.get("/").await;
    assert!(reply.body.starts_with("Hearth "), "{reply:?}");
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrapped_passes_the_same_front() {
    let server = Server::start().await;
    let body = inputs(&json!({"prompt": "hello"}));
    let foreign = [MINIFLARE, &["origin: https://evil.example"]].concat();
    let reply = server.bind("/", &foreign, &body).await;
    assert_eq!((reply.status, &reply.json()["internalCode"]), (403, &json!(9109)));
    let foreign = [MINIFLARE, &["host: evil.example", "MF-Header-origin: http://localhost"]].concat();
    assert_eq!(server.bind("/", &foreign, &body).await.status, 403);
    server.stop().await;

    let server = Server::with(Config { api_key: Some("s3cret".to_owned()), ..Config::default() }).await;
    for path in ["/", "/run?version=3"] {
        let reply = server.bind(path, &[MINIFLARE, &[ECHO]].concat(), &body).await;
        assert_eq!((reply.status, &reply.json()["internalCode"]), (401, &json!(10000)), "{path}");
    }
    // A Worker can send the key as an extra header.
    let inner = [MINIFLARE, &["MF-Header-authorization: Bearer s3cret"]].concat();
    assert_eq!(server.bind("/", &inner, &body).await.status, 200);
    let wrong = [&inner[..], &["authorization: Bearer wrong"]].concat();
    assert_eq!(server.bind("/", &wrong, &body).await.status, 401);
    server.stop().await;
}
