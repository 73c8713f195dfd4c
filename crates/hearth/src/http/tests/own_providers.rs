//! What accounts keep of providers: keys, and addresses of their own.

use super::metering::Fixture;
use super::*;
use gateway::byok::SecretPlace;
use gateway::call::Proxy;
use gateway::custom::Reach;
use gateway::provider::{ProviderKey, Providers, Wishes};
use gateway::upstream::Upstream;
use serde_json::json;

const ACCOUNT: &str = "/client/v4/accounts/default/ai-gateway";
const CHAT: &str = "/v1/chat/completions";

/// A server that wants this key, as providers do.
async fn provider(key: &str) -> Server {
    Server::with(Config { api_key: Some(key.to_owned()), ..Config::default() }).await
}

/// A server with a store, which asks `hearth` there, with this key where one is set.
async fn before(upstream: &Server, key: Option<&str>, reach: Reach) -> Fixture {
    let keys = key.map(|key| ProviderKey { secret: key.to_owned(), weight: 1 }).into_iter().collect();
    let base_url = Some(format!("http://{}/v1", upstream.address));
    let wishes = [("hearth".to_owned(), Wishes { base_url, keys, ..Wishes::default() })];
    let proxy = Proxy::new(
        Providers::new(wishes.into()).unwrap(),
        Upstream::new().unwrap(),
        Arc::new(base::SystemClock::default()),
    );
    let fixture = Fixture::start(Config { proxy: Some(Arc::new(proxy)), reach, ..Config::default() }).await;
    let place = SecretPlace { folder: fixture.folder(), environment: None };
    fixture.gateway.seal_with(place);
    fixture
}

fn far() -> String {
    chat("a b", "").replace("\"echo\"", "\"hearth/echo\"")
}

async fn keep(server: &Server, wish: Value) -> Value {
    let reply = server.post(&format!("{ACCOUNT}/gateways/default/provider_configs"), wish.to_string()).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["result"].clone()
}

#[tokio::test]
async fn a_kept_key_goes_to_the_provider_and_never_back_to_a_client() {
    let upstream = provider("sk-right-0123456789").await;
    let fixture = before(&upstream, Some("sk-of-settings"), Reach::Public).await;
    let server = &fixture.server;
    assert_eq!(server.post(CHAT, far()).await.status, 401);
    let wish = json!({"alias": "default", "default_config": false, "provider_slug": "hearth",
        "secret": "sk-right-0123456789"});
    let kept = keep(server, wish).await;
    assert_eq!((&kept["secret_preview"], &kept["alias"]), (&json!("…6789"), &json!("default")));
    assert_eq!(server.post(CHAT, far()).await.status, 200);
    let path = format!("{ACCOUNT}/gateways/default/provider_configs");
    let list = server.get(&path).await;
    assert!(!list.body.contains("sk-right") && list.json()["result"][0]["id"] == kept["id"], "{list:?}");
    assert_eq!(server.get(&format!("{path}?page=2")).await.json()["result"], json!([]));
    // AI Gateway's own path takes it too.
    let passed = server.post("/v1/default/default/hearth/chat/completions", chat("a", "")).await;
    assert_eq!(passed.status, 200);
    let id = kept["id"].as_str().unwrap();
    assert_eq!(server.send("DELETE", &format!("{path}/{id}"), &[], b"").await.status, 200);
    assert_eq!(server.post(CHAT, far()).await.status, 401);
    assert_eq!(server.send("DELETE", &format!("{path}/{id}"), &[], b"").await.status, 404);
}

#[tokio::test]
async fn a_request_names_its_key_by_the_alias_and_can_refuse_the_settings_key() {
    let upstream = provider("sk-b").await;
    let fixture = before(&upstream, Some("sk-b"), Reach::Public).await;
    let server = &fixture.server;
    let ask = async |headers: &[&str]| server.send("POST", CHAT, headers, far().as_bytes()).await.status;
    assert_eq!(ask(&[]).await, 200);
    assert_eq!(ask(&["cf-aig-no-wholesale: true"]).await, 403, "the settings' key is not the caller's own");
    for (alias, secret) in [("default", "sk-wrong"), ("team", "sk-b")] {
        keep(server, json!({"alias": alias, "provider_slug": "hearth", "secret": secret})).await;
    }
    assert_eq!(ask(&[]).await, 401);
    assert_eq!(ask(&["cf-aig-byok-alias: team"]).await, 200);
    assert_eq!(ask(&["cf-aig-byok-alias: team", "cf-aig-no-wholesale: true"]).await, 200);
    assert_eq!(ask(&["cf-aig-byok-alias: nobody"]).await, 400);
}

#[tokio::test]
async fn a_field_that_does_nothing_here_is_refused_by_name() {
    let upstream = provider("k").await;
    let fixture = before(&upstream, None, Reach::Public).await;
    let path = format!("{ACCOUNT}/gateways/default/provider_configs");
    for (field, value) in [
        ("rate_limit", json!(0)),
        ("rate_limit", json!(0.5)),
        ("rate_limit_period", json!(60)),
        ("secret_id", json!("s")),
        ("colour", json!("red")),
    ] {
        let mut wish = json!({"provider_slug": "openai", "secret": "s"});
        wish[field] = value;
        let reply = fixture.server.post(&path, wish.to_string()).await;
        assert_eq!(reply.status, 400);
        assert!(reply.body.contains(field), "{reply:?}");
    }
    assert_eq!(fixture.server.get(&path.replace("default/p", "nowhere/p")).await.status, 404);
}

#[tokio::test]
async fn a_gateway_for_own_keys_only_never_uses_the_servers() {
    let upstream = provider("sk-of-settings").await;
    let fixture = before(&upstream, Some("sk-of-settings"), Reach::Public).await;
    let server = &fixture.server;
    let ask = async |headers: &[&str]| server.send("POST", CHAT, headers, far().as_bytes()).await;
    assert_eq!(ask(&[]).await.status, 200);
    let path = format!("{ACCOUNT}/gateways/default");
    let set = server.send("PUT", &path, &[], br#"{"byok_only":true}"#).await;
    assert_eq!((set.status, &set.json()["result"]["byok_only"]), (200, &json!(true)));
    let translated =
        json!({"model": "hearth/echo", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]});
    let (passed, chat) = ("/v1/default/default/hearth/chat/completions", chat("a", ""));
    for (path, body) in [(CHAT, far()), ("/v1/messages", translated.to_string()), (passed, chat)] {
        let refused = server.post(path, body).await;
        assert_eq!(refused.status, 403, "{path} {refused:?}");
        assert!(
            refused.body.contains("byok_only") && refused.body.contains("provider_configs"),
            "{refused:?}"
        );
    }
    // The request's own key, and then one that the account keeps.
    assert_eq!(ask(&["authorization: Bearer sk-of-settings"]).await.status, 200);
    assert_eq!(ask(&["authorization: Bearer wrong"]).await.status, 401, "it goes to the provider as it is");
    keep(server, json!({"provider_slug": "hearth", "secret": "sk-of-settings"})).await;
    assert_eq!(ask(&[]).await.status, 200);
}

#[tokio::test]
async fn a_key_over_its_limit_leaves_the_request_to_the_next_and_then_refuses_it() {
    let upstream = provider("sk-good").await;
    let fixture = before(&upstream, None, Reach::Public).await;
    let server = &fixture.server;
    let limited = |secret: &str, limit: u32| json!({"provider_slug": "hearth", "secret": secret, "rate_limit": limit, "rate_limit_period": 3600.0});
    let kept = keep(server, limited("sk-bad", 2)).await;
    assert_eq!((&kept["rate_limit"], &kept["rate_limit_period"]), (&json!(2), &json!(3600)));
    keep(server, limited("sk-good", 3)).await;
    let ask = async |headers: &[&str]| server.send("POST", CHAT, headers, far().as_bytes()).await;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(ask(&[]).await.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 401, 401], "each as often as it may be");
    let refused = ask(&[]).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (429, &json!("rate_limit_error")),
        "{refused:?}"
    );
    assert!(refused.header("retry-after").is_some() && refused.body.contains("rate_limit"), "{refused:?}");
    let messages =
        json!({"model": "hearth/echo", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]});
    assert_eq!(server.post("/v1/messages", messages.to_string()).await.json()["type"], "error");
    // A client's own key has no limit here.
    assert_eq!(
        ask(&["authorization: Bearer sk-good"]).await.status,
        429,
        "on an open server the kept one goes first"
    );
    // A change of the key is a change of its limit.
    let path = format!("{ACCOUNT}/gateways/default/provider_configs/{}", kept["id"].as_str().unwrap());
    let mut back = server.get(&path).await.json()["result"].clone();
    back["rate_limit"] = Value::Null;
    back["rate_limit_period"] = Value::Null;
    back["secret"] = json!("sk-good");
    let changed = server.send("PUT", &path, &[], back.to_string().as_bytes()).await;
    assert_eq!((changed.status, &changed.json()["result"]["rate_limit"]), (200, &Value::Null), "{changed:?}");
    for _ in 0..4 {
        assert_eq!(ask(&[]).await.status, 200);
    }
}

#[tokio::test]
async fn an_accounts_own_provider_is_sent_its_headers_and_shows_their_ends_only() {
    let upstream = provider("k-0123456789abcdef").await;
    let fixture = before(&upstream, None, Reach::Private).await;
    let server = &fixture.server;
    let path = format!("{ACCOUNT}/custom-providers");
    let headers = json!({"Authorization": "Bearer k-0123456789abcdef", "x-team": "search"}).to_string();
    let wish = json!({"name": "Lab", "slug": "lab", "base_url": format!("http://{}/v1", upstream.address),
        "headers": headers});
    let made = server.post(&path, wish.to_string()).await;
    assert!(made.status == 200 && !made.body.contains("0123456789"), "{made:?}");
    let made = made.json()["result"].clone();
    let body = || chat("a b", "").replace("\"echo\"", "\"custom-lab/echo\"");
    assert_eq!(server.post(CHAT, body()).await.status, 200, "its key is the header");
    assert_eq!(server.send("POST", CHAT, &["authorization: Bearer x"], body().as_bytes()).await.status, 200);

    // What was shown can be sent back.
    let one = format!("{path}/{}", made["id"].as_str().unwrap());
    let shown = server.get(&one).await.json()["result"].clone();
    assert_eq!(shown["headers"], json!({"authorization": "…cdef", "x-team": "…"}).to_string());
    let back = server.send("PUT", &one, &[], shown.to_string().as_bytes()).await;
    assert_eq!(back.status, 200, "{back:?}");
    assert_eq!(server.post(CHAT, body()).await.status, 200);
    let none = server.send("PATCH", &one, &[], br#"{"headers":null}"#).await;
    assert_eq!(none.json()["result"]["headers"], Value::Null);
    assert_eq!(server.post(CHAT, body()).await.status, 401);
    let refused = server.send("PATCH", &one, &[], br#"{"headers":"{\"host\":\"x\"}"}"#).await;
    assert!(refused.status == 400 && refused.body.contains("host"), "{refused:?}");
}

#[tokio::test]
async fn an_edit_of_an_accounts_own_provider_empties_what_was_kept_of_its_answers() {
    let (one, two) = (Server::start().await, Server::start().await);
    let fixture = before(&one, None, Reach::Private).await;
    let server = &fixture.server;
    let gateway = format!("{ACCOUNT}/gateways/default");
    assert_eq!(server.send("PUT", &gateway, &[], br#"{"cache_ttl":60}"#).await.status, 200);
    let path = format!("{ACCOUNT}/custom-providers");
    let wish = json!({"name": "Lab", "slug": "lab", "base_url": format!("http://{}/v1", one.address)});
    let id = server.post(&path, wish.to_string()).await.json()["result"]["id"].clone();
    let by_name = chat("a b", "").replace("\"echo\"", "\"custom-lab/echo\"");
    let ask = async || {
        let mut found = Vec::new();
        for (path, body) in
            [(CHAT, by_name.clone()), ("/v1/default/default/custom-lab/chat/completions", chat("a b", ""))]
        {
            found.push(server.post(path, body).await.header("cf-aig-cache-status").map(str::to_owned));
        }
        found.into_iter().flatten().collect::<Vec<_>>()
    };
    assert_eq!(ask().await, ["MISS", "MISS"]);
    assert_eq!(ask().await, ["HIT", "HIT"]);
    let moved = json!({"base_url": format!("http://{}/v1", two.address)}).to_string();
    let one_path = format!("{path}/{}", id.as_str().unwrap());
    assert_eq!(server.send("PATCH", &one_path, &[], moved.as_bytes()).await.status, 200);
    assert_eq!(ask().await, ["MISS", "MISS"]);
}

#[tokio::test]
async fn an_accounts_own_provider_is_called_by_its_slug_and_follows_each_change() {
    let (one, two) = (Server::start().await, Server::start().await);
    let fixture = before(&one, None, Reach::Private).await;
    let server = &fixture.server;
    let path = format!("{ACCOUNT}/custom-providers");
    let wish = json!({"name": "Lab", "slug": "lab", "base_url": format!("http://{}/v1", one.address),
        "description": "d", "link": "https://example.com", "enable": true, "beta": true,
        "curl_example": "curl", "js_example": "fetch"});
    let made = server.post(&path, wish.to_string()).await.json()["result"].clone();
    for (name, value) in wish.as_object().unwrap() {
        assert_eq!(&made[name], value, "{name}");
    }
    let ask = async || {
        let body = chat("a b", "").replace("\"echo\"", "\"custom-lab/echo\"");
        server.post(CHAT, body).await.status
    };
    assert_eq!(ask().await, 200);
    assert_eq!(one.seen().model, "echo");
    let passed = server.post("/v1/default/default/custom-lab/chat/completions", chat("a", "")).await;
    assert_eq!(passed.status, 200);
    let url = server.get(&format!("{ACCOUNT}/gateways/default/url/custom-lab")).await.json();
    assert_eq!(
        url["result"], "http://localhost/v1/default/default/custom-lab",
        "by the name it was asked by"
    );
    assert_eq!(server.get(&format!("{ACCOUNT}/gateways/default/url/nobody")).await.status, 400);

    let one_path = format!("{path}/{}", made["id"].as_str().unwrap());
    let moved = json!({"base_url": format!("http://{}/v1", two.address)}).to_string();
    assert_eq!(server.send("PATCH", &one_path, &[], moved.as_bytes()).await.status, 200);
    assert_eq!(ask().await, 200);
    assert_eq!(two.seen().model, "echo");
    assert_eq!(server.send("PUT", &one_path, &[], br#"{"enable":false}"#).await.status, 200);
    assert_eq!(ask().await, 404);
    assert_eq!(server.get(&path).await.json()["result_info"]["total_count"], 1);
    assert_eq!(server.send("DELETE", &one_path, &[], b"").await.status, 200);
    assert_eq!(server.get(&one_path).await.status, 404);
}

#[tokio::test]
async fn an_account_cannot_reach_into_the_servers_network() {
    let upstream = Server::start().await;
    let fixture = before(&upstream, None, Reach::Public).await;
    let path = format!("{ACCOUNT}/custom-providers");
    for url in [
        format!("http://{}/v1", upstream.address),
        "https://169.254.169.254/latest".to_owned(),
        "https://metadata.google.internal".to_owned(),
    ] {
        let wish = json!({"name": "Lab", "slug": "lab", "base_url": url}).to_string();
        let reply = fixture.server.post(&path, wish).await;
        assert_eq!(reply.status, 400);
        assert!(reply.body.contains("base_url"), "{reply:?}");
    }
}

#[tokio::test]
async fn what_ai_gateway_has_and_this_server_has_not_is_not_found() {
    let upstream = Server::start().await;
    let fixture = before(&upstream, None, Reach::Public).await;
    for path in ["gateways/default/datasets", "gateways/default/evaluations", "evaluation-types"] {
        let reply = fixture.server.get(&format!("{ACCOUNT}/{path}")).await;
        assert_eq!((reply.status, &reply.json()["errors"][0]["code"]), (404, &json!(7000)), "{reply:?}");
    }
}

/// Somebody who answers everything alike, and the heads of what was asked.
async fn answering() -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            tell.send(String::from_utf8(head).unwrap()).unwrap();
            let said = r#"{"candidates":[{"content":{"parts":[{"text":"a"}],"role":"model"},"finishReason":"STOP"}]}"#;
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{said}",
                said.len()
            );
            client.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (address, told)
}

#[tokio::test]
async fn a_key_in_a_query_of_googles_is_taken_and_neither_it_nor_a_second_one_goes_to_the_provider() {
    let (address, mut told) = answering().await;
    let key = ProviderKey { secret: "sk-of-settings".to_owned(), weight: 1 };
    let base_url = Some(format!("http://{address}"));
    let wishes = [("google-ai-studio".to_owned(), Wishes { base_url, keys: vec![key], ..Wishes::default() })];
    let proxy = Proxy::new(
        Providers::new(wishes.into()).unwrap(),
        Upstream::new().unwrap(),
        Arc::new(base::SystemClock::default()),
    );
    let fixture = Fixture::start(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await;
    let (_, secret) = fixture.key("default", "inference", gateway::Limits::default()).await;
    let ours = secret.0;
    let bearer = format!("authorization: Bearer {ours}");
    let mut ask = async |query: &str, headers: &[&str]| {
        let path = format!("/v1/default/default/google-ai-studio/v1beta/models/g:generateContent{query}");
        let reply = fixture.server.send("POST", &path, headers, br#"{"contents":[]}"#).await;
        let head =
            if reply.status == 200 { told.recv().await.unwrap().to_lowercase() } else { String::new() };
        assert!(!head.contains(&ours.to_lowercase()) && !head.contains("key="), "{head}");
        (reply.status, head)
    };
    for (query, headers) in [
        (format!("?key={ours}"), vec![]),
        (format!("?alt=json&key={ours}"), vec![]),
        (format!("?key={ours}"), vec![bearer.as_str()]),
    ] {
        let (status, head) = ask(&query, &headers).await;
        assert_eq!((status, head.contains("x-goog-api-key: sk-of-settings")), (200, true), "{head}");
        assert_eq!(head.contains("?alt=json"), query.contains("alt"), "{head}");
    }
    // The client's own goes before that of the settings, and alone.
    let (status, head) = ask("?key=AIza-own", &[&bearer]).await;
    assert_eq!(
        (status, head.contains("x-goog-api-key: aiza-own"), head.contains("sk-of")),
        (200, true, false)
    );
    assert_eq!(ask("?key=AIza-own", &[]).await.0, 401);
    assert_eq!(ask(&format!("?key={ours}x"), &[]).await.0, 401);
}

#[tokio::test]
async fn a_provider_of_the_servers_cannot_be_made_anew_by_an_account() {
    let upstream = provider("sk-right").await;
    let base_url = Some(format!("http://{}/v1", upstream.address));
    let wishes = [("custom-lab".to_owned(), Wishes { base_url, ..Wishes::default() })];
    let proxy = Proxy::new(
        Providers::new(wishes.into()).unwrap(),
        Upstream::new().unwrap(),
        Arc::new(base::SystemClock::default()),
    );
    let fixture = Fixture::start(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await;
    let path = format!("{ACCOUNT}/custom-providers");
    let wish =
        |slug: &str| json!({"name": "x", "slug": slug, "base_url": "https://lab.example/v1"}).to_string();
    let refused = fixture.server.post(&path, wish("lab")).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body.contains("slug") || refused.body.contains("custom-lab"), "{refused:?}");
    assert_eq!(fixture.server.post(&path, wish("other")).await.status, 200);
}
