//! Rerank in every form: the shorter a document, the better its score.

use super::*;
use serde_json::json;

const NATIVE: &str = "/client/v4/accounts/0123abc/ai";

#[tokio::test]
async fn results_come_best_first_on_every_route_of_the_common_form() {
    let server = Server::start().await;
    let body = r#"{"model":"@cf/test/ranker","query":"q","documents":["four",{"text":"a"},"bc"]}"#;
    for path in ["/v1/rerank", "/v2/rerank", "/rerank", &format!("{NATIVE}/v1/rerank")] {
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, 200, "{path}");
        let answer = reply.json();
        assert!(answer["id"].as_str().unwrap().starts_with("rerank-"));
        assert_eq!(answer["model"], "ranker");
        assert_eq!(answer["usage"], json!({"prompt_tokens": 5, "total_tokens": 5}));
        let results = answer["results"].as_array().unwrap();
        let order: Vec<u64> = results.iter().map(|result| result["index"].as_u64().unwrap()).collect();
        assert_eq!(order, [1, 2, 0], "{path}");
        assert_eq!(results[0], json!({"index": 1, "relevance_score": 0.5}));
    }
    let body = r#"{"model":"ranker","query":"q","documents":["four","a"],"top_n":1,"return_documents":true}"#;
    let results = server.post("/v1/rerank", body).await.json()["results"].take();
    assert_eq!(results, json!([{"index": 1, "relevance_score": 0.5, "document": {"text": "a"}}]));
    server.stop().await;
}

#[tokio::test]
async fn faults_of_a_rerank_are_named_by_field() {
    let server = Server::start().await;
    for (body, status, param) in [
        (json!({"model": "none", "query": "q", "documents": ["a"]}), 404, "model"),
        (json!({"model": "echo", "query": "q", "documents": ["a"]}), 400, "model"),
        (json!({"model": "vectors", "query": "q", "documents": ["a"]}), 400, "model"),
        (json!({"model": "ranker", "documents": ["a"]}), 400, "query"),
        (json!({"model": "ranker", "query": "long", "documents": ["a"]}), 400, "query"),
        (json!({"model": "ranker", "query": "q", "documents": ["a", 3]}), 400, "documents[1]"),
        (json!({"model": "ranker", "query": "q", "documents": ["a", "odd"]}), 400, "documents[1]"),
        (json!({"model": "ranker", "query": "q", "documents": ["a"], "top_n": 0}), 400, "top_n"),
    ] {
        let reply = server.post("/v1/rerank", body.to_string()).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (status, &json!(param)), "{body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn workers_ai_ranks_contexts_by_path_by_name_and_by_the_binding() {
    let server = Server::start().await;
    let input = json!({"query": "q", "contexts": [{"text": "four"}, {"text": "a"}], "top_k": 1});
    let expected = json!([{"id": 1, "score": 0.5}]);
    let by_path = server.post(&format!("{NATIVE}/run/@cf/test/ranker"), input.to_string()).await.json();
    assert_eq!((&by_path["success"], &by_path["result"]["response"]), (&json!(true), &expected));
    let named = json!({"model": "@cf/test/ranker", "input": input});
    let named = server.post(&format!("{NATIVE}/run"), named.to_string()).await.json();
    assert_eq!(named["result"]["response"], expected);
    let bound = json!({"inputs": input, "options": {}}).to_string();
    let header = "cf-consn-model-id: @cf/test/ranker";
    let reply = server.send("POST", "/run?version=3", &[header], bound.as_bytes()).await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.json()["response"], expected);
    server.stop().await;
}

#[tokio::test]
async fn workers_ai_tells_which_context_is_at_fault() {
    let server = Server::start().await;
    for (input, place) in [
        (json!({"query": "q", "contexts": ["a"]}), "'contexts[0]'"),
        (json!({"query": "q", "contexts": [{"text": "a"}, {"text": "odd"}]}), "contexts[1] is odd"),
        (json!({"query": "long", "contexts": [{"text": "a"}]}), "(at 'query')"),
        (json!({"query": "q", "contexts": [{"text": "a"}], "top_k": 0}), "'top_k'"),
    ] {
        let reply = server.post(&format!("{NATIVE}/run/ranker"), input.to_string()).await;
        let message = reply.json()["errors"][0]["message"].as_str().unwrap().to_owned();
        assert!(reply.status == 400 && message.contains(place), "{input}: {message}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_reranker_is_listed_as_one_and_does_nothing_else() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/models/ranker").await.json()["task"], "rerank");
    let page = server.get(&format!("{NATIVE}/models/search?task=Text+Classification")).await.json();
    assert_eq!(page["result"][0]["name"], "ranker");
    let reply = server.post("/v1/embeddings", r#"{"model":"ranker","input":"a"}"#).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("model")));
    server.stop().await;
}
