//! Providers of accounts: which addresses they may have, and who sees them when.

use super::*;
use crate::DEFAULT;
use crate::scan::Pieces;
use crate::tests::{Hand, gateway};
use crate::upstream::{Sent, Upstream};
use std::time::Duration;

fn fields(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).unwrap()
}

fn lab(url: &str) -> Map<String, Value> {
    fields(&serde_json::json!({"name": "Lab", "slug": "lab", "base_url": url}).to_string())
}

#[test]
fn an_address_inside_a_private_network_is_refused_however_it_is_written() {
    let check = |url: &str, reach| address::check(url, reach).is_ok();
    for url in [
        "https://api.example.com/v1",
        "https://8.8.8.8",
        "https://[2606:4700::1111]/v1",
        "https://api.example.com:8443",
        "https://localhost.example.com",
    ] {
        assert!(check(url, Reach::Public), "{url}");
    }
    for url in [
        "http://api.example.com/v1",
        "https://localhost",
        "https://LOCALHOST.",
        "https://intranet",
        "https://db.internal",
        "https://printer.local",
        "https://127.0.0.1",
        "https://127.1",
        "https://2130706433",
        "https://0x7f.0.0.1",
        "https://017700000001",
        "https://0.0.0.0",
        "https://10.1.2.3",
        "https://172.31.0.1",
        "https://192.168.1.1",
        "https://169.254.169.254",
        "https://100.100.100.200",
        "https://[::1]",
        "https://[::]",
        "https://[::ffff:10.0.0.1]",
        "https://[::ffff:a9fe:a9fe]",
        "https://[64:ff9b::10.0.0.1]",
        "https://[2002:0a00:0001::1]",
        "https://[fd00:ec2::254]",
        "https://[fe80::1]",
    ] {
        assert!(!check(url, Reach::Public), "{url}");
    }
    for url in ["http://127.0.0.1:9000/v1", "http://lab.internal", "https://10.0.0.8"] {
        assert!(check(url, Reach::Private), "{url}");
    }
    for url in [
        "https://e.com:99999",
        "https://e.com:0",
        "https://[2606:4700::1111]:70000",
        "",
        "api.example.com",
        "ftp://example.com",
        "https://u:p@example.com",
        "https://example.com?a=b",
    ] {
        assert!(!check(url, Reach::Private), "{url}");
    }
}

#[test]
fn public_addresses_are_told_from_all_others() {
    for (address, expected) in [
        ("1.1.1.1", true),
        ("172.15.0.1", true),
        ("172.16.0.1", false),
        ("172.32.0.1", true),
        ("100.63.0.1", true),
        ("100.64.0.1", false),
        ("198.18.0.1", false),
        ("198.20.0.1", true),
        ("224.0.0.1", false),
        ("255.255.255.255", false),
        ("192.0.2.1", false),
        ("2a00:1450::1", true),
        ("2001:4860::8888", true),
        ("2001:db8::1", false),
        ("2001:0:1::1", false),
        ("::ffff:8.8.8.8", true),
        ("ff02::1", false),
    ] {
        assert_eq!(is_public(address.parse().unwrap()), expected, "{address}");
    }
}

#[tokio::test]
async fn a_name_that_resolves_into_a_private_network_is_not_connected_to() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let upstream = Upstream::new().unwrap();
    let request = move || {
        let mut request = hyper::Request::new(Sent::from(Pieces::default()));
        *request.uri_mut() = format!("http://localhost:{port}/").parse().unwrap();
        request
    };
    let error = upstream.send(request(), true).await.unwrap_err();
    assert!(error.to_string().contains("private network"), "{error}");
    // Whoever may go there does connect.
    let asked = tokio::spawn(async move { upstream.send(request(), false).await.is_ok() });
    listener.accept().await.unwrap();
    assert!(!asked.await.unwrap());
}

#[tokio::test]
async fn an_accounts_provider_is_seen_in_that_account_and_changes_within_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Hand::new();
    let here = gateway(folder.path(), &clock).await;
    let there = gateway(folder.path(), &clock).await;
    there.create_account("acme", "Acme").await.unwrap();
    clock.advance(Duration::from_millis(600));
    let settings = Arc::new(Providers::new(std::collections::BTreeMap::new()).unwrap());
    let base = async |account: &str| {
        let providers = there.providers(account, &settings).await.unwrap();
        providers.get("custom-lab").map(|provider| provider.base().to_string())
    };
    assert_eq!(base("acme").await, None);
    let made = here.create_custom("acme", &lab("https://a.example.com/v1"), Reach::Public).await.unwrap();
    clock.advance(Duration::from_millis(600));
    assert_eq!(base("acme").await.as_deref(), Some("https://a.example.com/v1"));
    assert_eq!(base(DEFAULT).await, None, "another account has no part in it");
    assert!(there.providers("acme", &settings).await.unwrap().get("openai").is_some());
    let moved = fields(r#"{"base_url":"https://b.example.com"}"#);
    here.update_custom("acme", &made.id, &moved, Reach::Public).await.unwrap();
    clock.advance(Duration::from_millis(600));
    assert_eq!(base("acme").await.as_deref(), Some("https://b.example.com/"));
    here.update_custom("acme", "custom-lab", &fields(r#"{"enable":false}"#), Reach::Public).await.unwrap();
    clock.advance(Duration::from_millis(600));
    assert_eq!(base("acme").await, None);
    here.delete_custom("acme", "lab").await.unwrap();
    assert!(here.customs("acme").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_provider_that_cannot_be_is_refused_by_its_field() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path(), &Hand::new()).await;
    for (field, json) in [
        ("name", r#"{"slug":"lab","base_url":"https://a.example.com"}"#),
        ("slug", r#"{"name":"n","slug":"Lab","base_url":"https://a.example.com"}"#),
        ("base_url", r#"{"name":"n","slug":"lab","base_url":"http://a.example.com"}"#),
        ("base_url", r#"{"name":"n","slug":"lab","base_url":"https://10.0.0.1"}"#),
        ("enable", r#"{"name":"n","slug":"lab","base_url":"https://a.example.com","enable":"yes"}"#),
        (
            "headers",
            r#"{"name":"n","slug":"lab","base_url":"https://a.example.com","headers":"{\"host\":\"b\"}"}"#,
        ),
        ("colour", r#"{"name":"n","slug":"lab","base_url":"https://a.example.com","colour":"red"}"#),
    ] {
        let error = gateway.create_custom(DEFAULT, &fields(json), Reach::Public).await.unwrap_err();
        assert_eq!(error.param.as_deref(), Some(field), "{error}");
    }
    gateway.create_custom(DEFAULT, &lab("http://127.0.0.1:1"), Reach::Private).await.unwrap();
    let again =
        gateway.create_custom(DEFAULT, &lab("https://a.example.com"), Reach::Public).await.unwrap_err();
    assert_eq!(again.param.as_deref(), Some("slug"));
    // What the operator allowed stays while the address stays, and does not go on to another.
    let renamed = fields(r#"{"name":"Other"}"#);
    assert!(gateway.update_custom(DEFAULT, "lab", &renamed, Reach::Public).await.unwrap().private);
    let moved = fields(r#"{"base_url":"http://10.0.0.1"}"#);
    assert!(gateway.update_custom(DEFAULT, "lab", &moved, Reach::Public).await.is_err());
}
