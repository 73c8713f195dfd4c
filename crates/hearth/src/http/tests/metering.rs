//! Keys before the routes, and the ledger behind them.

use super::*;
use crate::kept::Limits as Room;
use crate::state;
use gateway::ledger::{Group, Line, Question};
use gateway::price::Book;
use gateway::{DEFAULT, Limits, NewKey, Scopes, Secret};
use serde_json::json;
use tempfile::TempDir;

/// A server with keys, kept responses and a ledger.
pub(super) struct Fixture {
    folder: TempDir,
    pub(super) gateway: Gateway,
    pub(super) server: Server,
}

impl Fixture {
    pub(super) async fn start(config: Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = store::Store::open(folder.path(), &state::parts()).unwrap();
        let room = Room { retention: Duration::from_secs(86_400), size: base::Bytes(1 << 30) };
        let kept = Kept::new(store.clone(), room, Arc::new(base::SystemClock::default()));
        let gateway = state::gateway(store, Book::default()).await.unwrap();
        gateway.ledger().start(&folder.path().join("processes")).await.unwrap();
        let allowed = gateway::log::Allowed { reach: gateway::custom::Reach::Private, ..Default::default() };
        gateway.logs().start(gateway::log::Defaults::default(), allowed);
        let server = Server::behind(config, kept, Some(gateway.clone())).await;
        Self { folder, gateway, server }
    }

    pub(super) fn folder(&self) -> std::path::PathBuf {
        self.folder.path().to_owned()
    }

    pub(super) async fn key(&self, account: &str, scopes: &str, limits: Limits) -> (gateway::Key, Secret) {
        let new = NewKey {
            account: account.to_owned(),
            name: "n".to_owned(),
            scopes: Scopes::parse(scopes).unwrap(),
            limits,
            expires: None,
        };
        self.gateway.create_key(new).await.unwrap()
    }

    async fn ask(&self, path: &str, headers: &[&str], body: &str) -> Reply {
        self.server.send("POST", path, headers, body.as_bytes()).await
    }

    pub(super) async fn lines(&self, group: &str) -> Vec<Line> {
        let groups = vec![Group::parse(group).unwrap()];
        self.gateway.usage(Question { groups, ..Question::default() }).await.unwrap()
    }

    async fn total(&self) -> Line {
        self.gateway.usage(Question::default()).await.unwrap().remove(0)
    }
}

fn bearer(secret: &Secret) -> String {
    format!("authorization: Bearer {}", secret.0)
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_server_without_keys_asks_for_none_and_meters_its_answers() {
    let fixture = Fixture::start(Config::default()).await;
    assert_eq!(fixture.server.post(CHAT, chat("one two", "")).await.status, 200);
    let line = fixture.total().await;
    // The backend has no price for it.
    assert_eq!((line.requests, line.open, line.unpriced), (1, 0, 1));
    assert_eq!((line.input, line.cached_input, line.output), (2, 1, 2));
}

#[tokio::test]
async fn from_the_first_key_on_one_is_needed_and_a_revoked_one_ends_at_once() {
    let fixture = Fixture::start(Config::default()).await;
    let (key, secret) = fixture.key(DEFAULT, "inference", Limits::default()).await;
    assert_eq!(fixture.server.post(CHAT, chat("a", "")).await.status, 401);
    assert_eq!(fixture.server.get("/healthz").await.status, 200);
    for header in [
        bearer(&secret),
        format!("x-api-key: {}", secret.0),
        format!("api-key: {}", secret.0),
        format!("cf-aig-authorization: Bearer {}", secret.0),
    ] {
        // A key decides, and the name of the server does not.
        assert_eq!(
            fixture.ask(CHAT, &[&header, "host: example.com"], &chat("a", "")).await.status,
            200,
            "{header}"
        );
    }
    let wrong = format!("authorization: Bearer {}x", secret.0);
    assert_eq!(fixture.ask(CHAT, &[&wrong], &chat("a", "")).await.status, 401);
    assert_eq!(fixture.lines("key").await[0].groups, [json!(*key.id.0)]);
    fixture.gateway.revoke_key(&key.id.0).await.unwrap();
    assert_eq!(fixture.ask(CHAT, &[&bearer(&secret)], &chat("a", "")).await.status, 401);
    assert_eq!(fixture.server.post(CHAT, chat("a", "")).await.status, 401, "the server does not open again");
}

#[tokio::test]
async fn a_key_is_held_to_its_account_its_scopes_and_its_rate() {
    let fixture = Fixture::start(Config { api_key: Some("root".to_owned()), ..Config::default() }).await;
    fixture.gateway.create_account("acme", "Acme").await.unwrap();
    let limits = Limits { requests_per_minute: Some(2), ..Limits::default() };
    let (_, secret) = fixture.key("acme", "inference", limits).await;
    let (_, manager) = fixture.key("acme", "admin", Limits::default()).await;
    let path = |account: &str| format!("/client/v4/accounts/{account}/ai/v1/chat/completions");
    let control = "/client/v4/accounts/acme/ai-gateway/gateways";
    let (secret, manager) = (bearer(&secret), bearer(&manager));
    assert_eq!(fixture.ask(&path(DEFAULT), &[&secret], &chat("a", "")).await.status, 403);
    assert_eq!(fixture.ask(CHAT, &[&manager], &chat("a", "")).await.status, 403);
    assert_eq!(fixture.server.send("GET", control, &[&secret], b"").await.status, 403);
    assert_eq!(fixture.server.send("GET", control, &[&manager], b"").await.status, 200);
    assert_eq!(fixture.ask(&path("acme"), &[&secret], &chat("a", "")).await.status, 200);
    assert_eq!(fixture.ask(CHAT, &[&secret], &chat("a", "")).await.status, 200);
    let refused = fixture.ask(CHAT, &[&secret], &chat("a", "")).await;
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some());
    // The server's own key does everything, in the account that the path names.
    for (path, account) in [(path("acme"), "acme"), (CHAT.to_owned(), DEFAULT)] {
        let before = requests(&fixture, account).await;
        assert_eq!(
            fixture.ask(&path, &["authorization: Bearer root"], &chat("a", "")).await.status,
            200,
            "{path}"
        );
        assert_eq!(requests(&fixture, account).await, before + 1, "{path}");
    }
}

#[tokio::test]
async fn the_servers_own_key_asks_for_no_account_that_is_not_there() {
    let fixture = Fixture::start(Config { api_key: Some("root".to_owned()), ..Config::default() }).await;
    for path in [
        "/client/v4/accounts/ghost/ai/v1/chat/completions",
        "/client/v4/accounts/ghost/ai/run/@cf/test/echo",
        "/v1/ghost/default/workers-ai/v1/chat/completions",
        "/v1/ghost/default/openai/chat/completions",
    ] {
        let reply = fixture.ask(path, &["authorization: Bearer root"], &chat("a", "")).await;
        assert_eq!(reply.status, 404, "{path}: {reply:?}");
        assert!(reply.body.contains("There is no account 'ghost'"), "{reply:?}");
    }
    assert_eq!(requests(&fixture, DEFAULT).await, 0);
}

#[tokio::test]
async fn a_route_that_is_not_there_is_told_so_whatever_a_key_may_do() {
    let fixture = Fixture::start(Config::default()).await;
    for scopes in ["admin", "inference"] {
        let (_, secret) = fixture.key(DEFAULT, scopes, Limits::default()).await;
        for path in ["/client/v4/accounts/default/ai-gateway/datasets", "/v1/nothing"] {
            let reply = fixture.server.send("GET", path, &[&bearer(&secret)], b"").await;
            assert_eq!(reply.status, 404, "{scopes} {path}: {reply:?}");
        }
    }
    assert_eq!(fixture.server.get("/v1/nothing").await.status, 401);
}

#[tokio::test]
async fn what_all_accounts_did_is_told_to_managers_of_the_default_one_alone() {
    let fixture = Fixture::start(Config { api_key: Some("root".to_owned()), ..Config::default() }).await;
    fixture.gateway.create_account("acme", "Acme").await.unwrap();
    let mut keys = vec![("authorization: Bearer root".to_owned(), 200)];
    for (account, scopes, status) in [
        ("acme", "admin", 403),
        ("acme", "inference", 403),
        (DEFAULT, "inference", 403),
        (DEFAULT, "admin", 200),
    ] {
        let (_, secret) = fixture.key(account, scopes, Limits::default()).await;
        keys.push((bearer(&secret), status));
    }
    for (key, status) in keys {
        assert_eq!(fixture.server.send("GET", "/metrics", &[&key], b"").await.status, status, "{key}");
    }
}

async fn requests(fixture: &Fixture, account: &str) -> u64 {
    let lines = fixture.lines("account").await;
    lines.iter().find(|line| line.groups[0] == account).map_or(0, |line| line.requests)
}

#[tokio::test]
async fn streamed_and_whole_answers_of_every_dialect_are_metered_alike() {
    let fixture = Fixture::start(Config::default()).await;
    let workers = "/client/v4/accounts/default/ai/run/echo";
    let messages =
        r#"{"model":"echo","max_tokens":100,"messages":[{"role":"user","content":"one two three"}]"#;
    for (path, body) in [
        (CHAT, chat("one two three", "")),
        ("/v1/completions", r#"{"model":"echo","prompt":"one two three"}"#.to_owned()),
        ("/v1/messages", format!("{messages}}}")),
        ("/v1/responses", r#"{"model":"echo","input":"one two three"}"#.to_owned()),
        (workers, r#"{"prompt":"one two three"}"#.to_owned()),
    ] {
        for stream in [false, true] {
            let before = fixture.total().await;
            let body = body.replacen('{', &format!("{{\"stream\":{stream},"), 1);
            let reply = fixture.ask(path, &[], &body).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.body);
            let after = fixture.total().await;
            assert_eq!(
                (after.requests - before.requests, after.input - before.input, after.output - before.output),
                (1, 3, 3),
                "{path}, stream: {stream}"
            );
            assert_eq!((after.open, after.interrupted, after.failed), (0, 0, 0), "{path}");
        }
    }
    let before = fixture.total().await;
    assert_eq!(fixture.server.post("/v1/embeddings", r#"{"model":"vectors","input":"a"}"#).await.status, 200);
    let rerank = r#"{"model":"ranker","query":"q","documents":["a"]}"#;
    assert_eq!(fixture.server.post("/v1/rerank", rerank).await.status, 200);
    let after = fixture.total().await;
    assert_eq!((after.requests - before.requests, after.input - before.input), (2, 10));
}

#[tokio::test]
async fn a_client_that_leaves_is_metered_up_to_there_and_a_failure_owes_nothing() {
    let fixture = Fixture::start(Config::default()).await;
    let mut wire = fixture.server.connect().await;
    wire.request("POST", CHAT, &[], chat("hang", r#","stream":true"#).as_bytes()).await;
    let (status, _) = wire.head().await;
    assert_eq!(status, 200);
    while !wire.chunk().await.contains("one") {}
    drop(wire);
    fixture.server.fake.drop_seen.notified().await;
    let line = loop {
        let line = fixture.total().await;
        if line.open == 0 {
            break line;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((line.requests, line.interrupted, line.input, line.output), (1, 1, 1, 1));
    for prompt in ["full", "fail later", "cut"] {
        let failed = fixture.total().await.failed;
        assert_ne!(fixture.server.post(CHAT, chat(prompt, "")).await.status, 200, "{prompt}");
        let line = fixture.total().await;
        assert_eq!((line.failed, line.open, line.cost), (failed + 1, 0, base::NanoUsd(0)), "{prompt}");
    }
}

#[tokio::test]
async fn metadata_gateway_and_a_named_cost_stand_in_the_entry() {
    let fixture = Fixture::start(Config::default()).await;
    fixture.gateway.create_gateway(DEFAULT, "prod", &serde_json::Map::new()).await.unwrap();
    let headers = [
        "cf-aig-gateway-id: prod",
        r#"cf-aig-metadata: {"team":"red","cf.x":1}"#,
        r#"cf-aig-custom-cost: {"per_token_in":1e-6,"per_token_out":2e-6,"per_cache_read_token":5e-7}"#,
    ];
    assert_eq!(fixture.ask(CHAT, &headers, &chat("one two", "")).await.status, 200);
    let line = &fixture.lines("metadata.team").await[0];
    assert_eq!(line.groups, [json!("red")]);
    // One of two tokens was cached.
    assert_eq!((line.cost, line.saved), (base::NanoUsd(1000 + 500 + 2 * 2000), base::NanoUsd(500)));
    assert_eq!(fixture.lines("gateway").await[0].groups, [json!("prod")]);
    for headers in [["cf-aig-gateway-id: none"], ["cf-aig-custom-cost: {}"]] {
        assert_eq!(fixture.ask(CHAT, &headers, &chat("a", "")).await.status, 400, "{headers:?}");
    }
    assert_eq!(fixture.total().await.requests, 1, "what is refused is not entered");
}

#[tokio::test]
async fn accounts_share_neither_prefixes_nor_kept_responses() {
    let fixture = Fixture::start(Config::default()).await;
    fixture.gateway.create_account("acme", "Acme").await.unwrap();
    let (_, ours) = fixture.key(DEFAULT, "inference", Limits::default()).await;
    let (_, theirs) = fixture.key("acme", "inference", Limits::default()).await;
    let (ours, theirs) = (bearer(&ours), bearer(&theirs));
    let body = r#"{"model":"echo","input":"one two"}"#;
    let reply = fixture.ask("/v1/responses", &[&theirs], body).await;
    let salt = fixture.server.seen().cache_salt;
    assert!(salt.is_some());
    let id = reply.json()["id"].as_str().unwrap().to_owned();
    fixture.ask("/v1/responses", &[&ours], body).await;
    assert_eq!(fixture.server.seen().cache_salt, None);
    // A salt that is written like the other account's does not reach it.
    let forged = format!(r#"{{"model":"echo","input":"one two","cache_salt":{}}}"#, json!(salt));
    fixture.ask("/v1/responses", &[&ours], &forged).await;
    assert_ne!(fixture.server.seen().cache_salt, salt);

    let path = format!("/v1/responses/{id}");
    assert_eq!(fixture.server.send("GET", &path, &[&ours], b"").await.status, 404);
    assert_eq!(fixture.server.send("DELETE", &path, &[&ours], b"").await.status, 404);
    let follow = format!(r#"{{"model":"echo","input":"more","previous_response_id":"{id}"}}"#);
    assert_eq!(fixture.ask("/v1/responses", &[&ours], &follow).await.status, 400);
    assert_eq!(fixture.ask("/v1/responses", &[&theirs], &follow).await.status, 200);
    assert_eq!(fixture.server.send("GET", &path, &[&theirs], b"").await.status, 200);
}
