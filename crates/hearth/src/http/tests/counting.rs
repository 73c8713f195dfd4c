//! Tokens of models that providers have, counted where the provider does so.

use super::providers::before;
use super::*;
use gateway::call::Proxy;
use gateway::provider::{ProviderKey, Providers, Wishes};
use gateway::upstream::Upstream;
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PATH: &str = "/v1/messages/count_tokens";

fn counting(model: &str) -> String {
    format!(r#"{{"model":"{model}","system":"Be brief.","messages":[{{"role":"user","content":"a b"}}]}}"#)
}

/// A provider that answers one request with this; what it was asked, as path and body.
async fn one_answer(listener: &TcpListener, answer: &str) -> (String, Value) {
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut seen = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let read = connection.read(&mut piece).await.unwrap();
        seen.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&seen).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let Ok(body) = serde_json::from_str(body) else { continue };
        let length = answer.len();
        let reply = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}"
        );
        connection.write_all(reply.as_bytes()).await.unwrap();
        return (head.split(' ').nth(1).unwrap().to_owned(), body);
    }
}

#[tokio::test]
async fn a_provider_of_anthropics_dialect_counts_with_the_clients_bytes() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("hearth", &[]), ("custom-anthropic", &["far"])]).await;
    let here = upstream.post(PATH, counting("echo")).await.json()["input_tokens"].clone();
    assert!(here.is_u64());
    for model in ["hearth/echo", "custom-anthropic/echo"] {
        let reply = server.post(PATH, counting(model)).await;
        assert_eq!((reply.status, &reply.json()["input_tokens"]), (200, &here), "{reply:?}");
        let beta = server
            .send(
                "POST",
                "/client/v4/accounts/default/ai/v1/messages/count_tokens",
                &[],
                counting(model).as_bytes(),
            )
            .await;
        assert_eq!(beta.json()["input_tokens"], here, "{beta:?}");
    }
    // Its refusal comes back.
    let reply = server.post(PATH, counting("far")).await;
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (404, &"not_found_error".into()), "{reply:?}");
}

#[tokio::test]
async fn others_count_in_their_own_words() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let wishes = ["google-ai-studio", "openai", "aws-bedrock"].map(|slug| {
        let base_url = Some(format!("http://{address}"));
        let keys = vec![ProviderKey { secret: "k:s".to_owned(), weight: 1 }];
        (slug.to_owned(), Wishes { base_url, keys, ..Wishes::default() })
    });
    let providers = Providers::new(BTreeMap::from(wishes)).unwrap();
    let proxy = Proxy::new(providers, Upstream::new().unwrap(), Arc::new(base::SystemClock::default()));
    let server = Server::with(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await;
    for (model, answer, path, place) in [
        (
            "google-ai-studio/gemini-2.5-flash",
            r#"{"totalTokens":7}"#,
            "/v1beta/models/gemini-2.5-flash:countTokens",
            "/generateContentRequest/contents/0/parts/0/text",
        ),
        (
            "openai/gpt-5",
            r#"{"object":"response.input_tokens","input_tokens":7}"#,
            "/responses/input_tokens",
            "/input/1/content/0/text",
        ),
        (
            "aws-bedrock/anthropic.claude-x",
            r#"{"inputTokens":7}"#,
            "/model/anthropic.claude-x/count-tokens",
            "/input/converse/messages/0/content/0/text",
        ),
    ] {
        let (reply, (asked, body)) =
            tokio::join!(server.post(PATH, counting(model)), one_answer(&listener, answer));
        assert_eq!((reply.status, reply.body.as_str()), (200, r#"{"input_tokens":7}"#), "{model} {reply:?}");
        assert_eq!(asked, path);
        assert_eq!(body.pointer(place), Some(&"a b".into()), "{body}");
    }
}

#[tokio::test]
async fn who_does_not_count_is_named() {
    let upstream = Server::start().await;
    let server = before(&upstream, &[("vllm", &[])]).await;
    let reply = server.post(PATH, counting("vllm/echo")).await;
    assert_eq!(reply.status, 400, "{reply:?}");
    let error = &reply.json()["error"];
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["message"].as_str().unwrap().contains("vllm does not count tokens"), "{reply:?}");
}
