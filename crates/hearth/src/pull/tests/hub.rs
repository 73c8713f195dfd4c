//! The hub's ways: redirects that carry the facts, tokens, renamed repositories.

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub that answers for one large file by a redirect to a content host.
fn hub_and_content_host(bytes: Vec<u8>, told_sha256: String) -> (Server, Server) {
    let body = bytes.clone();
    let contents = Server::start(move |asked| Answer::file(asked, &body));
    let target = format!("{}/blob?signature=1", contents.url());
    let len = bytes.len();
    let hub = Server::start(move |asked| {
        let known = asked.path.starts_with("/owner/repo/resolve/");
        if !known {
            return Answer::status(404);
        }
        Answer::status(302)
            .header("Location", target.clone())
            .header("X-Repo-Commit", COMMIT)
            .header("X-Linked-Size", len.to_string())
            .header("X-Linked-ETag", format!("\"{told_sha256}\""))
            .header("ETag", "\"of-the-redirect\"")
    });
    (hub, contents)
}

fn source() -> Vec<String> {
    vec!["hf:owner/repo/m.gguf".to_owned()]
}

#[tokio::test]
async fn the_redirect_tells_hash_size_and_commit_and_the_lock_keeps_them() {
    let bytes = content(100_000);
    let (hub, contents) = hub_and_content_host(bytes.clone(), sha256(&bytes));
    let world = World::with_hub(hub.url(), Some("hf_secret"));
    let installed = world.pull(&world.entry("", &source())).await.expect("pulled");
    assert_eq!(std::fs::read(&installed.path).expect("readable"), bytes);
    let file = &installed.lock.files[0];
    assert_eq!((file.size, file.sha256.clone()), (100_000, Some(sha256(&bytes))));
    assert_eq!(file.revision.as_deref(), Some(COMMIT));
    assert_eq!(
        hub.gets()[0].path,
        format!("/owner/repo/resolve/{COMMIT}/m.gguf"),
        "by commit, not by branch"
    );
    for asked in hub.asked() {
        assert_eq!(asked.header("authorization"), Some("Bearer hf_secret"));
    }
    for asked in contents.asked() {
        assert_eq!(asked.header("authorization"), None, "the token must not reach another host");
    }
}

#[tokio::test]
async fn content_that_is_not_what_the_hub_told_is_refused() {
    let bytes = content(1000);
    let (hub, _contents) = hub_and_content_host(bytes, sha256(b"something else"));
    let world = World::with_hub(hub.url(), None);
    let error = world.pull(&world.entry("", &source())).await.expect_err("wrong");
    assert!(matches!(error.attempts[0].1, FetchError::WrongHash { .. }), "{error}");
    world.assert_nothing_in_place();
}

#[tokio::test]
async fn a_file_exchanged_on_the_hub_is_refused_before_it_is_downloaded() {
    let bytes = content(1000);
    let (hub, contents) = hub_and_content_host(bytes.clone(), sha256(&bytes));
    let world = World::with_hub(hub.url(), None);
    let facts = format!("sha256 = {:?}", sha256(b"what the catalog lists"));
    let error = world.pull(&world.entry(&facts, &source())).await.expect_err("exchanged");
    assert!(matches!(error.attempts[0].1, FetchError::WrongHash { .. }), "{error}");
    assert!(contents.asked().is_empty());
}

#[tokio::test]
async fn a_refusal_says_what_would_help() {
    for status in [401, 403] {
        let hub = Server::start(move |_| Answer::status(status));
        let world = World::with_hub(hub.url(), None);
        let error = world.pull(&world.entry("", &source())).await.expect_err("refused").to_string();
        assert!(error.contains(&status.to_string()) && error.contains("HF_TOKEN"), "{error}");
        assert!(!error.contains("offline"), "{error}");
    }
}

#[tokio::test]
async fn a_missing_file_is_not_tried_again() {
    let hub = Server::start(|_| Answer::status(404));
    let world = World::with_hub(hub.url(), None);
    let error = world.pull(&world.entry("", &source())).await.expect_err("missing");
    assert!(matches!(error.attempts[0].1, FetchError::NotFound), "{error}");
    assert_eq!(hub.asked().len(), 1);
}

#[tokio::test]
async fn a_small_file_has_a_git_id_and_gets_our_own_hash() {
    let bytes = content(500);
    let body = bytes.clone();
    let hub = Server::start(move |asked| {
        Answer::file(asked, &body).header("ETag", "\"a5c1a0b0\"").header("X-Repo-Commit", COMMIT)
    });
    let world = World::with_hub(hub.url(), None);
    let installed = world.pull(&world.entry("", &source())).await.expect("pulled");
    assert_eq!(installed.lock.files[0].sha256, Some(sha256(&bytes)));
}

#[tokio::test]
async fn a_renamed_repository_is_followed_on_the_same_host() {
    let bytes = content(500);
    let body = bytes.clone();
    let hub = Server::start(move |asked| match asked.path.strip_prefix("/owner/repo/") {
        Some(rest) => Answer::status(307).header("Location", format!("/new/name/{rest}")),
        None => Answer::file(asked, &body).header("X-Repo-Commit", COMMIT),
    });
    let world = World::with_hub(hub.url(), Some("hf_secret"));
    let installed = world.pull(&world.entry("", &source())).await.expect("pulled");
    assert_eq!(std::fs::read(&installed.path).expect("readable"), bytes);
}

#[test]
fn the_token_is_not_shown() {
    let hub = Hub::new(None, Some("hf_secret".into()));
    assert!(!format!("{hub:?}").contains("hf_secret"));
}
