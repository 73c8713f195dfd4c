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
    assert_eq!(ask(&["cf-aig-no-wholesale: true"]).await, 401, "the settings' key is not the caller's own");
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
    for (field, value) in [("rate_limit", json!(5)), ("secret_id", json!("s")), ("colour", json!("red"))] {
        let mut wish = json!({"provider_slug": "openai", "secret": "s"});
        wish[field] = value;
        let reply = fixture.server.post(&path, wish.to_string()).await;
        assert_eq!(reply.status, 400);
        assert!(reply.body.contains(field), "{reply:?}");
    }
    assert_eq!(fixture.server.get(&path.replace("default/p", "nowhere/p")).await.status, 404);
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
