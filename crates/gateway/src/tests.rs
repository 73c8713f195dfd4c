//! Accounts, keys and gateways over a real store, one process or two.

use super::*;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that stands until it is told to go on.
#[derive(Default)]
pub(crate) struct Hand(AtomicU64);

impl Hand {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_800_000_000_000)))
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn unix_seconds(&self) -> u64 {
        self.now().as_secs()
    }
}

/// A gateway as a process has it.
pub(crate) async fn gateway(folder: &Path, clock: &Arc<Hand>) -> Gateway {
    let store = Store::open(folder, &PARTS).unwrap();
    Gateway::open(store, Arc::clone(clock) as Arc<dyn Clock>, Book::default()).await.unwrap()
}

pub(crate) fn new_key(limits: Limits) -> NewKey {
    NewKey {
        account: DEFAULT.to_owned(),
        name: "n".to_owned(),
        scopes: Scopes { inference: true, admin: false },
        limits,
        expires: None,
    }
}

async fn valid(gateway: &Gateway, secret: &Secret) -> bool {
    gateway.authenticate(secret.0.as_bytes()).await.unwrap().is_some()
}

#[tokio::test]
async fn a_key_is_known_by_its_hash_alone_and_nothing_else_opens() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path(), &Hand::new()).await;
    assert!(!gateway.has_keys().await.unwrap());
    let (key, secret) = gateway.create_key(new_key(Limits::default())).await.unwrap();
    assert!(gateway.has_keys().await.unwrap());
    assert!(secret.0.starts_with(&key.shown) && key.shown.len() < 16);
    let found = gateway.authenticate(secret.0.as_bytes()).await.unwrap().unwrap();
    assert_eq!(*found, key);
    for other in ["", "hearth_", &key.shown, &key.id.0, &secret.0[..secret.0.len() - 1]] {
        assert!(gateway.authenticate(other.as_bytes()).await.unwrap().is_none(), "{other}");
    }
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let secret = &secret.0.as_bytes()[key.shown.len()..];
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "the key stands in the store");
    }
}

#[tokio::test]
async fn a_revoked_key_ends_at_once_here_and_within_a_second_in_another_process() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let here = gateway(folder.path(), &clock).await;
    let there = gateway(folder.path(), &clock).await;
    let (key, secret) = here.create_key(new_key(Limits::default())).await.unwrap();
    assert!(valid(&here, &secret).await && valid(&there, &secret).await);
    here.revoke_key(&key.id.0).await.unwrap();
    assert!(!valid(&here, &secret).await);
    clock.advance(Duration::from_millis(999));
    assert!(!valid(&there, &secret).await);
    assert!(there.has_keys().await.unwrap(), "a revoked key does not open the server");
}

#[tokio::test]
async fn a_rotated_key_keeps_its_id_and_the_old_secret_ends_when_it_was_said() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let gateway = gateway(folder.path(), &clock).await;
    let (key, first) = gateway.create_key(new_key(Limits::default())).await.unwrap();
    let (rotated, second) = gateway.rotate_key(&key.shown, Duration::from_secs(60)).await.unwrap();
    assert_eq!(rotated.id, key.id);
    assert!(valid(&gateway, &first).await && valid(&gateway, &second).await);
    clock.advance(Duration::from_secs(60));
    assert!(!valid(&gateway, &first).await && valid(&gateway, &second).await);
    let (_, third) = gateway.rotate_key(&key.id.0, Duration::ZERO).await.unwrap();
    assert!(!valid(&gateway, &second).await && valid(&gateway, &third).await);
}

#[tokio::test]
async fn a_name_or_the_first_characters_find_the_key_that_is_taken_before_those_that_ended() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let gateway = gateway(folder.path(), &clock).await;
    let named = |name: &str| NewKey { name: name.to_owned(), ..new_key(Limits::default()) };
    let (first, _) = gateway.create_key(named("st")).await.unwrap();
    gateway.revoke_key("st").await.unwrap();
    let expires = Some(clock.unix_seconds() + 1);
    gateway.create_key(NewKey { expires, ..named("st") }).await.unwrap();
    clock.advance(Duration::from_secs(1));
    let (third, secret) = gateway.create_key(named("st")).await.unwrap();
    assert_eq!(gateway.revoke_key("st").await.unwrap().id, third.id);
    // Nothing but ended ones: which is meant?
    let error = gateway.revoke_key("st").await.unwrap_err();
    assert!(error.message.contains(&*first.id.0) && error.message.contains(&*third.id.0), "{error}");
    let (living, other) = gateway.create_key(named("living")).await.unwrap();
    for name in [&living.id.0[..], &living.id.0[..31], &living.shown, &living.shown[..10], &other.0] {
        assert_eq!(gateway.revoke_key(name).await.map(|key| key.id), Ok(living.id.clone()), "{name}");
    }
    let wrong = format!("{}x", &secret.0[..40]);
    for name in ["", "hearth_", "s", &living.id.0[..4], &wrong] {
        let error = gateway.revoke_key(name).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound, "{name}");
        assert!(!error.message.contains(&secret.0[..20]), "{error}");
    }
}

#[tokio::test]
async fn a_wish_for_a_key_that_could_never_be_used_is_refused_by_its_field() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let gateway = gateway(folder.path(), &clock).await;
    let wish = || new_key(Limits::default());
    let limits = |requests, tokens| Limits {
        requests_per_minute: requests,
        tokens_per_minute: tokens,
        ..Limits::default()
    };
    for (field, wish) in [
        ("name", NewKey { name: String::new(), ..wish() }),
        ("name", NewKey { name: "  ".to_owned(), ..wish() }),
        ("name", NewKey { name: "x".repeat(500), ..wish() }),
        ("name", NewKey { name: "a\nb".to_owned(), ..wish() }),
        ("expires", NewKey { expires: Some(clock.unix_seconds()), ..wish() }),
        ("expires", NewKey { expires: Some(1), ..wish() }),
        ("expires", NewKey { expires: Some(u64::MAX), ..wish() }),
        ("requests_per_minute", new_key(limits(Some(0), None))),
        ("tokens_per_minute", new_key(limits(None, Some(0)))),
    ] {
        let error = gateway.create_key(wish.clone()).await.unwrap_err();
        assert_eq!(error.param.as_deref(), Some(field), "{wish:?}");
    }
    gateway.create_key(NewKey { name: "Zoë's laptop".to_owned(), ..wish() }).await.unwrap();
}

#[tokio::test]
async fn a_key_ends_when_it_expires() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let gateway = gateway(folder.path(), &clock).await;
    let expires = Some(clock.unix_seconds() + 10);
    let (_, secret) = gateway.create_key(NewKey { expires, ..new_key(Limits::default()) }).await.unwrap();
    clock.advance(Duration::from_secs(9));
    assert!(valid(&gateway, &secret).await);
    clock.advance(Duration::from_secs(1));
    assert!(!valid(&gateway, &secret).await);
}

#[tokio::test]
async fn limits_and_scopes_come_back_as_they_were_given() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path(), &Hand::new()).await;
    let budget = Budget { amount: base::NanoUsd(5), period: Some(86_400) };
    let limits = Limits {
        requests_per_minute: Some(7),
        tokens_per_minute: Some(9),
        budget: Some(budget),
        shadow: true,
    };
    let (key, _) = gateway.create_key(new_key(limits)).await.unwrap();
    assert_eq!(gateway.keys(Some(DEFAULT)).await.unwrap(), [key]);
    assert_eq!(gateway.keys(Some("other")).await.unwrap(), []);
    let nobody = NewKey { account: "nobody".to_owned(), ..new_key(limits) };
    assert_eq!(gateway.create_key(nobody).await.unwrap_err().param.as_deref(), Some("account"));
}

#[tokio::test]
async fn accounts_have_gateways_of_their_own_and_a_default_one() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path(), &Hand::new()).await;
    gateway.create_account("acme", "Acme").await.unwrap();
    assert_eq!(gateway.create_account("acme", "x").await.unwrap_err().param.as_deref(), Some("id"));
    for id in ["", ".", "a/b", "models", &"x".repeat(65)] {
        assert!(gateway.create_account(id, "x").await.is_err(), "{id}");
    }
    let fields = serde_json::Map::from_iter([("retry_max_attempts".to_owned(), 3.into())]);
    gateway.create_gateway("acme", "prod", &fields).await.unwrap();
    assert_eq!(gateway.gateway("acme", "prod").await.unwrap().settings.retry.retry_max_attempts, Some(3));
    assert!(gateway.create_gateway("acme", "prod", &fields).await.is_err());
    assert_eq!(gateway.gateway(DEFAULT, "prod").await.unwrap_err().kind, ErrorKind::NotFound);
    let error = gateway.gateway("nog", DEFAULT).await.unwrap_err();
    assert_eq!(error.message, "There is no account 'nog'", "what is missing is named");
    let ids = |gateways: Vec<Arc<Named>>| gateways.iter().map(|named| named.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(gateway.gateways("acme").await.unwrap()), ["default", "prod"]);
    assert_eq!(ids(gateway.gateways(DEFAULT).await.unwrap()), ["default"]);
    assert!(gateway.delete_gateway("acme", DEFAULT).await.is_err());
    gateway.delete_gateway("acme", "prod").await.unwrap();
    assert_eq!(ids(gateway.gateways("acme").await.unwrap()), ["default"]);
}

#[tokio::test]
async fn a_change_leaves_what_another_process_changed_a_moment_ago() {
    let object = |json: serde_json::Value| json.as_object().unwrap().clone();
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let (here, there) = (gateway(folder.path(), &clock).await, gateway(folder.path(), &clock).await);
    for process in [&here, &there] {
        process.seal_with(byok::SecretPlace { folder: folder.path().to_owned(), environment: None });
    }
    let lab = serde_json::json!({"name": "lab", "slug": "lab", "base_url": "https://lab.example/v1"});
    here.create_custom(DEFAULT, &object(lab), custom::Reach::Public).await.unwrap();
    let kept = |weight, secret: &str| byok::NewKept {
        account: DEFAULT.to_owned(),
        gateway: DEFAULT.to_owned(),
        provider: "openai".to_owned(),
        alias: "a".to_owned(),
        is_default: false,
        weight,
        limit: None,
        secret: secret.to_owned().into(),
    };
    let key = here.keep_key(kept(1, "sk-of-more-than-16-letters")).await.unwrap();
    // What it knows now it takes to be so for half a second, and no time goes by.
    assert!(!there.gateway(DEFAULT, DEFAULT).await.unwrap().settings.guard.zdr);

    here.update_gateway(DEFAULT, DEFAULT, &object(serde_json::json!({"zdr": true}))).await.unwrap();
    let new =
        there.update_gateway(DEFAULT, DEFAULT, &object(serde_json::json!({"cache_ttl": 0}))).await.unwrap();
    assert!(new.settings.guard.zdr && here.gateway(DEFAULT, DEFAULT).await.unwrap().settings.guard.zdr);

    let beta = object(serde_json::json!({"enable": false}));
    here.update_custom(DEFAULT, "lab", &beta, custom::Reach::Public).await.unwrap();
    let link = object(serde_json::json!({"link": "https://lab.example"}));
    let new = there.update_custom(DEFAULT, "lab", &link, custom::Reach::Public).await.unwrap();
    assert!(!new.enabled && !here.custom(DEFAULT, "lab").await.unwrap().enabled);

    here.change_key(DEFAULT, DEFAULT, &key.id, move |_| Ok(kept(7, "sk-of-another-provider-0000")))
        .await
        .unwrap();
    let alias =
        move |old: &byok::KeptKey| Ok(byok::NewKept { alias: "b".to_owned(), ..kept(old.weight, "") });
    let new = there.change_key(DEFAULT, DEFAULT, &key.id, alias).await.unwrap();
    assert_eq!((new.weight, &*new.alias, &*new.preview), (7, "b", "…0000"));

    here.create_gateway(DEFAULT, "new", &object(serde_json::json!({}))).await.unwrap();
    there.delete_gateway(DEFAULT, "new").await.unwrap();

    let (key, _) = here.create_key(new_key(Limits::default())).await.unwrap();
    there.forget().await;
    there.keys(None).await.unwrap();
    here.revoke_key(&key.id.0).await.unwrap();
    assert!(there.rotate_key(&key.id.0, Duration::ZERO).await.is_err(), "a revoked key stays so");
}

#[tokio::test]
async fn what_is_known_of_keys_goes_on_at_once_while_the_database_is_away() {
    let Some(server) = testdb::Server::start("what_is_known_of_keys") else { return };
    let store = Store::connect(&server.database().parse().unwrap(), &PARTS).unwrap();
    let clock = Hand::new();
    let opened = Gateway::open(store.clone(), Arc::clone(&clock) as Arc<dyn Clock>, Book::default()).await;
    let gateway = opened.unwrap();
    let (_, secret) = gateway.create_key(new_key(Limits::default())).await.unwrap();
    assert!(valid(&gateway, &secret).await);
    server.kill();
    let needs_it = tokio::spawn(async move { store.write(|_| Ok(())).await });
    for _ in 0..20 {
        clock.advance(Duration::from_secs(1));
        assert!(valid(&gateway, &secret).await);
    }
    assert!(!needs_it.is_finished(), "who must write waits for it, and others do not");
    server.start_again();
    needs_it.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_key_is_told_when_its_next_minute_begins() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let gateway = gateway(folder.path(), &clock).await;
    let limits = Limits { requests_per_minute: Some(2), ..Limits::default() };
    let (key, _) = gateway.create_key(new_key(limits)).await.unwrap();
    let (other, _) = gateway.create_key(new_key(limits)).await.unwrap();
    clock.advance(Duration::from_secs(20));
    for id in [&key.id, &key.id, &other.id] {
        assert_eq!(gateway.count(id).await, Ok(None));
    }
    let refused = gateway.count(&key.id).await.unwrap_err();
    assert_eq!((refused.unit, refused.after), ("requests", Duration::from_secs(40)));
    clock.advance(Duration::from_secs(40));
    assert_eq!(gateway.count(&key.id).await, Ok(None));
}
