//! Keys of providers over a real store, one process or two.

use super::*;
use crate::provider::{Providers, Wishes};
use crate::secret;
use crate::tests::{Hand, gateway};
use std::path::Path;
use std::time::Duration;

async fn process(folder: &Path, clock: &Arc<Hand>) -> Gateway {
    let gateway = gateway(folder, clock).await;
    gateway.seal_with(SecretPlace { folder: folder.to_owned(), environment: None });
    gateway
}

fn new(alias: &str, is_default: bool, weight: u32, secret: &str) -> NewKept {
    NewKept {
        account: DEFAULT.into(),
        gateway: DEFAULT.into(),
        provider: "openai".into(),
        alias: alias.into(),
        is_default,
        weight,
        limit: None,
        secret: secret.to_owned().into(),
    }
}

fn openai() -> Arc<Configured> {
    let wishes =
        Wishes { keys: vec![ProviderKey { secret: "of-settings".into(), weight: 1 }], ..Wishes::default() };
    Arc::clone(Providers::new([("openai".to_owned(), wishes)].into()).unwrap().get("openai").unwrap())
}

/// The keys that a request uses, `times` in turn.
async fn used(gateway: &Gateway, alias: Option<&str>, times: usize) -> Vec<String> {
    let provider = openai();
    let mut used = Vec::new();
    let kept = gateway.with_kept_keys(DEFAULT, DEFAULT, &provider, alias).await.unwrap();
    let kept = kept.unwrap_or(provider);
    for _ in 0..times {
        let crate::credential::Credential::Header(value) = &**kept.next_key().unwrap() else { panic!() };
        used.push(value.to_str().unwrap().trim_start_matches("Bearer ").to_owned());
    }
    used
}

#[tokio::test]
async fn a_secret_that_is_no_key_of_its_provider_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = process(folder.path(), &Hand::new()).await;
    for (provider, secret) in
        [("google-vertex-ai", "{\"bad"), ("google-vertex-ai", "{}"), ("aws-bedrock", ":x")]
    {
        let wish = NewKept { provider: provider.into(), ..new(DEFAULT, false, 1, secret) };
        let error = gateway.keep_key(wish).await.unwrap_err();
        assert_eq!(error.param.as_deref(), Some("secret"), "{provider} {secret}");
    }
}

#[tokio::test]
async fn a_key_is_not_kept_under_another_secret_key_than_those_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, other) = (Hand::new(), tempfile::tempdir().unwrap());
    let server = process(folder.path(), &clock).await;
    server.keep_key(new(DEFAULT, false, 1, "sk-one")).await.unwrap();
    let elsewhere = gateway(folder.path(), &clock).await;
    elsewhere.seal_with(SecretPlace { folder: other.path().to_owned(), environment: None });
    let error = elsewhere.keep_key(new("b", false, 1, "sk-two")).await.unwrap_err();
    assert!(error.message.contains("sealed with another key"), "{error}");
    assert_eq!(server.kept_keys(DEFAULT, DEFAULT).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_kept_key_goes_before_the_settings_and_by_its_alias() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = process(folder.path(), &Hand::new()).await;
    assert_eq!(used(&gateway, None, 1).await, ["of-settings"]);
    gateway.keep_key(new("other", false, 1, "sk-other")).await.unwrap();
    assert_eq!(used(&gateway, None, 1).await, ["of-settings"], "another alias is for those who name it");
    assert_eq!(used(&gateway, Some("other"), 1).await, ["sk-other"]);
    gateway.keep_key(new(DEFAULT, false, 1, "sk-default")).await.unwrap();
    assert_eq!(used(&gateway, None, 1).await, ["sk-default"]);
    let marked = gateway.keep_key(new("main", true, 1, "sk-marked")).await.unwrap();
    assert_eq!(used(&gateway, None, 1).await, ["sk-marked"]);
    gateway.forget_key(DEFAULT, DEFAULT, &marked.id).await.unwrap();
    assert_eq!(used(&gateway, None, 1).await, ["sk-default"]);
    let missing = gateway.with_kept_keys(DEFAULT, DEFAULT, &openai(), Some("nobody")).await.unwrap_err();
    assert_eq!(missing.param.as_deref(), Some(ALIAS));
    // It is for one gateway of one account.
    let elsewhere = gateway.with_kept_keys(DEFAULT, "else", &openai(), None).await.unwrap();
    assert!(elsewhere.is_none());
}

#[tokio::test]
async fn keys_of_one_alias_are_used_in_turn_by_their_weights() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = process(folder.path(), &Hand::new()).await;
    gateway.keep_key(new(DEFAULT, false, 3, "sk-a")).await.unwrap();
    gateway.keep_key(new(DEFAULT, false, 1, "sk-b")).await.unwrap();
    let used = used(&gateway, None, 40).await;
    assert_eq!(used.iter().filter(|key| *key == "sk-a").count(), 30, "{used:?}");
}

#[tokio::test]
async fn no_file_and_no_answer_shows_a_kept_key() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = process(folder.path(), &Hand::new()).await;
    let secret = "sk-0123456789abcdefghij-WXYZ";
    let kept = gateway.keep_key(new(DEFAULT, false, 1, secret)).await.unwrap();
    assert_eq!(kept.preview, "…WXYZ");
    let short = gateway.keep_key(new("short", false, 1, "sk-short")).await.unwrap();
    assert_eq!(short.preview, "…", "of a short one no part is shown");
    let directory = gateway.directory().await.unwrap();
    assert!(!format!("{directory:?} {kept:?} {:?}", new("", false, 1, secret)).contains("456789"));
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let path = file.unwrap().path();
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let found = bytes.windows(20).any(|window| window == &secret.as_bytes()[..20]);
        assert!(!found, "{} holds the key", path.display());
    }
}

#[tokio::test]
async fn another_process_sees_a_kept_key_and_a_new_sealing_key_within_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Hand::new();
    let here = process(folder.path(), &clock).await;
    let there = process(folder.path(), &clock).await;
    assert_eq!(used(&there, None, 1).await, ["of-settings"]);
    here.keep_key(new(DEFAULT, false, 1, "sk-a")).await.unwrap();
    clock.advance(Duration::from_millis(600));
    assert_eq!(used(&there, None, 1).await, ["sk-a"]);
    let old = std::fs::read_to_string(folder.path().join(secret::FILE)).unwrap();
    assert_eq!(here.reseal().await.unwrap(), 1);
    let file = std::fs::read_to_string(folder.path().join(secret::FILE)).unwrap();
    assert!(file.trim() != old.trim() && file.split_whitespace().count() == 1, "the old key is gone");
    clock.advance(Duration::from_millis(600));
    assert_eq!(used(&there, None, 1).await, ["sk-a"]);
}

#[tokio::test]
async fn without_the_sealing_key_a_request_fails_and_no_new_one_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = process(folder.path(), &Hand::new()).await;
    gateway.keep_key(new(DEFAULT, false, 1, "sk-a")).await.unwrap();
    let file = folder.path().join(secret::FILE);
    std::fs::remove_file(&file).unwrap();
    let error = gateway.with_kept_keys(DEFAULT, DEFAULT, &openai(), None).await.unwrap_err();
    assert!(error.message.contains(secret::FILE), "{error}");
    assert!(!file.exists());
}

#[tokio::test]
async fn a_key_that_cannot_be_is_refused_by_its_field() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = process(folder.path(), &Hand::new()).await;
    for (field, wish) in [
        ("provider_slug", NewKept { provider: "nobody".into(), ..new(DEFAULT, false, 1, "s") }),
        ("provider_slug", NewKept { provider: "custom-".into(), ..new(DEFAULT, false, 1, "s") }),
        ("alias", new("a b", false, 1, "s")),
        ("secret", new(DEFAULT, false, 1, " ")),
        ("secret", new(DEFAULT, false, 1, "a\nb")),
        ("weight", new(DEFAULT, false, 0, "s")),
        ("weight", new(DEFAULT, false, 101, "s")),
    ] {
        let error = gateway.keep_key(wish).await.unwrap_err();
        assert_eq!(error.param.as_deref(), Some(field), "{error}");
    }
    let elsewhere = NewKept { gateway: "nowhere".into(), ..new(DEFAULT, false, 1, "s") };
    assert_eq!(gateway.keep_key(elsewhere).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn the_keys_of_a_gateway_go_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = process(folder.path(), &Hand::new()).await;
    gateway.create_gateway(DEFAULT, "prod", &serde_json::Map::new()).await.unwrap();
    let kept = NewKept { gateway: "prod".into(), ..new(DEFAULT, false, 1, "sk-a") };
    gateway.keep_key(kept).await.unwrap();
    gateway.delete_gateway(DEFAULT, "prod").await.unwrap();
    gateway.create_gateway(DEFAULT, "prod", &serde_json::Map::new()).await.unwrap();
    assert!(gateway.kept_keys(DEFAULT, "prod").await.unwrap().is_empty());
}

#[tokio::test]
async fn sealing_anew_takes_the_headers_of_own_providers_along() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Hand::new();
    let gateway = process(folder.path(), &clock).await;
    let fields = serde_json::json!({"name": "Lab", "slug": "lab", "base_url": "https://llm.example.com/v1",
        "headers": {"x-key": "k-0123456789abcdef"}});
    gateway.create_custom(DEFAULT, fields.as_object().unwrap(), custom::Reach::Public).await.unwrap();
    gateway.keep_key(new(DEFAULT, false, 1, "sk-a")).await.unwrap();
    assert_eq!(gateway.reseal().await.unwrap(), 2);
    clock.advance(Duration::from_millis(600));
    let providers = gateway.providers(DEFAULT, &Arc::default()).await.unwrap();
    assert_eq!(providers.get("custom-lab").unwrap().headers["x-key"], "k-0123456789abcdef");
}
