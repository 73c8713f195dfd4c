//! Workers AI's routes.

use super::*;
use serde_json::json;

const ACCOUNT: &str = "/client/v4/accounts/0123abc/ai";

#[tokio::test]
async fn a_model_is_run_by_every_spelling_of_its_name() {
    let server = Server::start().await;
    for model in ["@cf/test/echo", "@cf%2Ftest%2Fecho", "%40cf%2Ftest%2Fecho", "echo"] {
        let reply = server.post(&format!("{ACCOUNT}/run/{model}"), r#"{"prompt":"hello world"}"#).await;
        assert_eq!(reply.status, 200, "{model}");
        assert!(reply.header("cf-ai-req-id").is_some());
        let body = reply.json();
        assert_eq!(body["success"], true);
        assert_eq!(body["errors"], json!([]));
        assert_eq!(body["messages"], json!([]));
        assert_eq!(body["result"]["response"], "hello world");
        assert_eq!(body["result"]["usage"]["total_tokens"], 4);
    }
    assert_eq!(server.seen().max_tokens, Some(256));
    let body = r#"{"model":"@cf/test/echo","input":{"messages":[{"role":"user","content":"hi"}]}}"#;
    let reply = server.post(&format!("{ACCOUNT}/run"), body).await;
    assert_eq!(reply.json()["result"]["response"], "hi");
    server.stop().await;
}

#[tokio::test]
async fn a_native_stream_has_native_frames() {
    let server = Server::start().await;
    let reply = server
        .post(&format!("{ACCOUNT}/run/@cf/test/echo"), r#"{"prompt":"hello world","stream":true}"#)
        .await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = reply.events();
    assert_eq!(events[..2], [r#"{"response":"hello"}"#, r#"{"response":" world"}"#]);
    let last: Value = serde_json::from_str(events[2]).unwrap();
    assert_eq!((&last["response"], &last["usage"]["completion_tokens"]), (&json!(""), &json!(2)));
    assert_eq!(events[3], "[DONE]");
    server.stop().await;
}

#[tokio::test]
async fn embeddings_have_a_shape() {
    let server = Server::start().await;
    let reply = server.post(&format!("{ACCOUNT}/run/@cf/test/vectors"), r#"{"text":["ab","c","d"]}"#).await;
    assert_eq!(reply.json()["result"]["shape"], json!([3, 2]));
    assert_eq!(reply.json()["result"]["data"][0], json!([2.0, 0.5]));
    server.stop().await;
}

#[tokio::test]
async fn errors_have_codes_and_envelopes() {
    let server = Server::start().await;
    for (path, body, status, code) in [
        ("run/@cf/none/such", r#"{"prompt":"a"}"#, 400, 5007),
        ("run/@cf/test/echo", r#"{"prompt":3}"#, 400, 5006),
        ("run/@cf/test/echo", r#"{"prompt":"#, 400, 3003),
        ("run/@cf/test/echo", r#"{"prompt":"full"}"#, 429, 3040),
        ("run/@cf/test/echo", r#"{"prompt":"long"}"#, 400, 5021),
        ("run/@cf/test/echo?queueRequest=true", r#"{"requests":[]}"#, 400, 5006),
        ("run", r#"{"model":"@cf/test/echo","input":{"prompt":3}}"#, 400, 5006),
        ("nowhere", "{}", 404, 7000),
        ("models/search", "{}", 405, 7001),
    ] {
        let reply = server.post(&format!("{ACCOUNT}/{path}"), body).await;
        assert_eq!(reply.status, status, "{path} {body} {reply:?}");
        let envelope = reply.json();
        assert_eq!(envelope["errors"][0]["code"], code, "{path} {body}");
        assert_eq!((&envelope["success"], &envelope["result"]), (&json!(false), &Value::Null));
        assert!(envelope.get("error").is_none());
    }
    let reply = server.post(&format!("{ACCOUNT}/run/echo"), r#"{"prompt":"full"}"#).await;
    assert_eq!(reply.header("retry-after-ms"), Some("1500"));
    server.stop().await;
}

#[tokio::test]
async fn a_field_that_the_backend_refuses_is_named_by_its_place_in_the_body() {
    let server = Server::start().await;
    let message = |reply: &Reply| reply.json()["errors"][0]["message"].as_str().unwrap().to_owned();
    for (prompt, path) in [("toolless", "tools"), ("long", "prompt")] {
        let input = format!(r#"{{"prompt":"{prompt}"}}"#);
        let reply = server.post(&format!("{ACCOUNT}/run/echo"), &input).await;
        assert!(message(&reply).ends_with(&format!("(at '{path}')")), "{reply:?}");
        let named = format!(r#"{{"model":"echo","input":{input}}}"#);
        let reply = server.post(&format!("{ACCOUNT}/run"), named).await;
        assert!(message(&reply).ends_with(&format!("(at 'input.{path}')")), "{reply:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn openais_routes_answer_bare_and_fail_in_both_shapes() {
    let server = Server::start().await;
    let path = format!("{ACCOUNT}/v1/chat/completions");
    let reply = server.post(&path, chat("hello", "")).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "hello");
    assert!(reply.header("cf-ai-req-id").is_some());
    assert_eq!(server.get(&format!("{ACCOUNT}/v1/models")).await.json()["object"], "list");
    let reply = server.post(&path, chat("hello", r#","n":0"#)).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["errors"][0]["code"], 5006);
    assert_eq!(reply.json()["error"]["param"], "n");
    let reply = server.post(&format!("{ACCOUNT}/v1/nothing"), "{}").await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("unknown_url")));
    server.stop().await;
}

#[tokio::test]
async fn an_error_in_mid_stream_has_both_shapes() {
    let server = Server::start().await;
    for (path, body) in [
        ("run/echo", r#"{"prompt":"fail later","stream":true}"#.to_owned()),
        ("v1/chat/completions", chat("fail later", r#","stream":true"#)),
        ("v1/completions", r#"{"model":"echo","prompt":"fail later","stream":true}"#.to_owned()),
    ] {
        let reply = server.post(&format!("{ACCOUNT}/{path}"), body).await;
        assert_eq!(reply.status, 200, "{path}");
        let error: Value = serde_json::from_str(reply.events().last().unwrap()).unwrap();
        assert_eq!((&error["success"], &error["errors"][0]["code"]), (&json!(false), &json!(5001)), "{path}");
        assert_eq!(error["error"]["code"], "service_unavailable", "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn paging_ends_with_an_empty_page() {
    let server = Server::start().await;
    let page = async |query: &str| server.get(&format!("{ACCOUNT}/models/search{query}")).await.json();
    let first = page("").await;
    assert_eq!(first["result"].as_array().unwrap().len(), 3);
    assert_eq!(
        first["result_info"],
        json!({"page": 1, "per_page": 50, "count": 3, "total_count": 3, "total_pages": 1})
    );
    assert_eq!(first["result"][0]["task"]["name"], "Text Generation");
    assert_eq!(first["result"][0]["created_at"], "2026-02-02 10:00:00.000");
    assert_eq!(page("?page=2").await["result"], json!([]));
    assert_eq!(page("?page=2&per_page=1").await["result"][0]["name"], "vectors");
    assert_eq!(page("?task=Text+Embeddings").await["result_info"]["total_count"], 1);
    assert_eq!(page("?search=%40cf%2Ftest%2Fecho").await["result"][0]["name"], "echo");
    assert_eq!(server.get(&format!("{ACCOUNT}/models/search?page=0")).await.status, 400);
    server.stop().await;
}
