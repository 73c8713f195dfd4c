//! The control plane of gateways and the report of usage.

use super::metering::Fixture;
use super::*;
use serde_json::json;

const PATH: &str = "/client/v4/accounts/default/ai-gateway/gateways";

#[tokio::test]
async fn gateways_are_made_changed_listed_and_removed() {
    let Fixture { server, .. } = &Fixture::start(Config::default()).await;
    let wish = r#"{"id":"prod","cache_ttl":0,"cache_invalidate_on_update":true,"collect_logs":true,
        "rate_limiting_interval":0,"rate_limiting_limit":0,"retry_max_attempts":2}"#;
    let made = server.post(PATH, wish).await.json();
    assert_eq!((&made["success"], &made["result"]["retry_max_attempts"]), (&json!(true), &json!(2)));
    assert_eq!(server.post(PATH, wish).await.status, 400, "it is there");
    let one = format!("{PATH}/prod");
    assert_eq!(server.send("PUT", &one, &[], br#"{"retry_backoff":"linear"}"#).await.status, 200);
    let found = server.get(&one).await.json();
    assert_eq!(found["result"]["retry_backoff"], "linear");
    assert_eq!(found["result"]["retry_max_attempts"], 2);
    let refused = server.send("PUT", &one, &[], br#"{"cache_ttl":59}"#).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["errors"][0]["message"].as_str().unwrap().contains("cache_ttl"));
    let removed = server.send("DELETE", &one, &[], b"").await.json();
    assert_eq!(removed["result"]["id"], "prod");
    assert_eq!(server.get(&one).await.status, 404);
    assert_eq!(server.get("/client/v4/accounts/nobody/ai-gateway/gateways").await.status, 404);
}

#[tokio::test]
async fn a_page_past_the_end_is_empty() {
    let Fixture { server, gateway, .. } = &Fixture::start(Config::default()).await;
    for id in ["a", "b"] {
        gateway.create_gateway("default", id, &serde_json::Map::new()).await.unwrap();
    }
    let ids = async |query: &str| {
        let list = server.get(&format!("{PATH}{query}")).await.json();
        let ids = list["result"]
            .as_array()
            .unwrap()
            .iter()
            .map(|gateway| gateway["id"].as_str().unwrap().to_owned());
        (ids.collect::<Vec<_>>().join(" "), list["result_info"]["total_count"].as_u64().unwrap())
    };
    assert_eq!(ids("").await, ("a b default".to_owned(), 3));
    assert_eq!(ids("?per_page=2&page=2").await, ("default".to_owned(), 3));
    assert_eq!(ids("?page=2").await, (String::new(), 3));
    assert_eq!(ids("?search=def").await, ("default".to_owned(), 1));
    assert_eq!(server.get(&format!("{PATH}?page=0")).await.status, 400);
}

#[tokio::test]
async fn what_is_not_there_is_refused_and_named_where_gateways_are_managed() {
    let Fixture { server, gateway, .. } = &Fixture::start(Config::default()).await;
    gateway.create_gateway("default", "g1", &serde_json::Map::new()).await.unwrap();
    let one = format!("{PATH}/g1");
    let routes = format!("{one}/routes");
    let elements =
        r#"[{"id":"s","type":"start","outputs":{"next":{"elementId":"e"}}},{"id":"e","type":"end"}]"#;
    let route = |more: &str| format!(r#"{{"name":"r"{more},"elements":{elements}}}"#);
    for (method, path, body, named) in [
        ("GET", format!("{PATH}?colour=red"), String::new(), "'colour'"),
        ("PUT", one.clone(), r#"{"id":"g2"}"#.to_owned(), "id of a gateway"),
        ("POST", routes.clone(), route(r#","elemnts":[]"#), "'elemnts'"),
        (
            "POST",
            routes.clone(),
            route("").replace(r#""type":"end""#, r#""type":"end","tmeout":1"#),
            "'elements[1].tmeout'",
        ),
    ] {
        let reply = server.send(method, &path, &[], body.as_bytes()).await;
        let message = reply.json()["errors"][0]["message"].as_str().unwrap().to_owned();
        assert_eq!(reply.status, 400, "{method} {path}");
        assert!(message.contains(named) && !message.contains("AiError"), "{message}");
    }
    assert_eq!(server.send("PUT", &one, &[], br#"{"id":"g1"}"#).await.status, 200, "as it was given");
    assert_eq!(server.post(&routes, route("")).await.status, 200);
    let reply = server.post(&format!("{routes}/r/explain"), r#"{"failing":["nobody"]}"#).await;
    assert!(reply.status == 400 && reply.body.contains("no element 'nobody'"), "{reply:?}");
}

#[tokio::test]
async fn usage_comes_as_json_and_as_a_table() {
    let Fixture { server, .. } = &Fixture::start(Config::default()).await;
    for prompt in ["one two", "three"] {
        assert_eq!(server.post("/v1/chat/completions", chat(prompt, "")).await.status, 200);
    }
    let path = "/client/v4/accounts/default/ai-gateway/usage";
    let lines = server.get(&format!("{path}?group_by=model,provider&from=2026-01-01")).await.json();
    let line = &lines["result"][0];
    assert_eq!(
        (&line["model"], &line["provider"], &line["requests"]),
        (&json!("echo"), &json!("local"), &json!(2))
    );
    assert_eq!(
        (&line["input_tokens"], &line["unpriced"], &line["cost_nano_usd"]),
        (&json!(3), &json!(2), &json!(0))
    );
    let table = server.get(&format!("{path}?group_by=model&format=csv")).await;
    assert_eq!(table.header("content-type"), Some("text/csv; charset=utf-8"));
    let row = "echo,2,0,0,0,2,3,2,0,3,0,0.000000000,0.000000000";
    assert_eq!(table.body.split("\r\n").nth(1), Some(row), "{}", table.body);
    assert_eq!(server.get(&format!("{path}?to=1")).await.json()["result"][0]["requests"], 0);
    for query in ["?group_by=colour", "?from=soon", "?format=xml", "?colour=red"] {
        assert_eq!(server.get(&format!("{path}{query}")).await.status, 400, "{query}");
    }
}
