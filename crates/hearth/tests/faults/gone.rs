//! Clients that vanish, on each surface: the provider's connection ends, the entry is interrupted, and nothing is left.

use super::fake::{Fake, Manner, event, stream_head};
use super::server::{Home, Running, chat, chat_body, send};
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Clients that vanish in the long test; `HEARTH_ABORTS` asks for more.
const ABORTS: usize = 500;

/// Of them at once.
const CLIENTS: usize = 16;

/// Waits until the store has taken all ends.
#[track_caller]
fn until_none_is_open(home: &Home) -> serde_json::Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let line = home.usage("").remove(0);
        if line["open"] == 0 {
            return line;
        }
        assert!(Instant::now() < end, "entries stay open: {line}");
    }
}

fn provider(home: &Home, name: &str) -> Fake {
    let fake = Fake::new(&home.folder, name, |asked| {
        let begun = [stream_head(), super::fake::chunk(&event(&asked.path))].concat();
        if asked.id.starts_with("whole") {
            super::fake::chat(asked, 10, 5)
        } else {
            Manner::Hold(if asked.streams() { begun } else { Vec::new() })
        }
    });
    let dialect = if name == "custom-c" { "anthropic" } else { "openai" };
    let address = &fake.address;
    let old = std::fs::read_to_string(home.folder.join("hearth.toml")).unwrap_or_default();
    home.settings(&format!(
        "{old}[providers.{name}]\nbase-url = \"http://{address}/v1\"\ndialect = \"{dialect}\"\n"
    ));
    fake
}

/// Asks, waits until the provider has the request (and the client its first bytes, in a stream), and vanishes.
fn vanish(running: &Running, fake: &Fake, path: &str, key: &str, id: &str, body: &str) -> Duration {
    let ended = fake.seen().ended;
    let mut connection = send(&running.address, path, key, id, "", body).expect("sent");
    fake.wait("the request", |seen| seen.asked.iter().any(|asked| asked.id == id) && seen.held > 0);
    if body.contains("\"stream\":true") {
        let mut some = [0; 16];
        assert!(connection.read(&mut some).expect("bytes") > 0);
    }
    let left = Instant::now();
    drop(connection);
    fake.wait("the end of the provider's connection", |seen| seen.ended > ended);
    left.elapsed()
}

#[test]
fn a_client_that_vanishes_ends_the_providers_connection_on_each_surface() {
    let folder = tempfile::tempdir().expect("tempdir");
    let home = Home::new(folder.path());
    let (open_ai, anthropic) = (provider(&home, "custom-a"), provider(&home, "custom-c"));
    let key = home.key(&[]);
    let running = home.start(&[]);
    let messages = |id: &str, stream: bool, model: &str| chat_body(id, model, stream);
    let input = |id: &str, stream: bool, model: &str| {
        format!(r#"{{"model":"{model}","stream":{stream},"input":"id:{id};"}}"#)
    };
    let embed = |id: &str, _: bool, model: &str| format!(r#"{{"model":"{model}","input":"id:{id};"}}"#);
    let prompt = |id: &str, stream: bool, model: &str| {
        format!(r#"{{"model":"{model}","stream":{stream},"prompt":"id:{id};"}}"#)
    };
    type Body<'a> = &'a dyn Fn(&str, bool, &str) -> String;
    let cf = "/client/v4/accounts/default/ai/v1";
    let surfaces: &[(&str, &Fake, &str, Body)] = &[
        ("/v1/chat/completions", &open_ai, "custom-a/m", &messages),
        ("/v1/completions", &open_ai, "custom-a/m", &prompt),
        ("/v1/responses", &open_ai, "custom-a/m", &input),
        ("/v1/embeddings", &open_ai, "custom-a/m", &embed),
        ("/v1/messages", &anthropic, "custom-c/m", &messages),
        (&format!("{cf}/chat/completions"), &open_ai, "custom-a/m", &messages),
        ("/v1/default/default/compat/chat/completions", &open_ai, "custom-a/m", &messages),
        ("/v1/default/default/custom-a/chat/completions", &open_ai, "m", &messages),
        ("/v1/default/default/custom-a/responses", &open_ai, "m", &input),
        ("/v1/default/default/custom-c/messages", &anthropic, "m", &messages),
    ];
    let mut longest = Duration::ZERO;
    let mut count = 0;
    for (path, fake, model, body) in surfaces {
        for stream in [false, true] {
            let id = format!("{path} {stream}");
            let body = body(&id, stream, model);
            if stream && !body.contains("stream") {
                continue;
            }
            longest = longest.max(vanish(&running, fake, path, &key, &id, &body));
            count += 1;
        }
    }
    let line = until_none_is_open(&home);
    assert_eq!((&line["requests"], &line["interrupted"]), (&count.into(), &count.into()), "{line}");
    println!("{count} clients vanished; the provider's connection ended within {longest:?}");
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("tempdir");
    let home = Home::new(folder.path());
    let fake = provider(&home, "custom-a");
    let key = home.key(&[]);
    let running = home.start(&[]);
    let next = AtomicUsize::new(0);
    let round = |until: usize| {
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                let (next, fake, running, key) = (&next, &fake, &running, &key);
                scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::SeqCst);
                        if number >= until {
                            return;
                        }
                        let id = number.to_string();
                        let body = chat_body(&id, "custom-a/m", true);
                        let mut connection =
                            send(&running.address, "/v1/chat/completions", key, &id, "", &body)
                                .expect("sent");
                        let mut some = [0; 16];
                        assert!(connection.read(&mut some).expect("bytes") > 0, "{fake:p}");
                    }
                });
            }
        });
        next.store(until, Ordering::SeqCst);
        fake.wait("the end of all", |seen| seen.ended == until && seen.held == 0);
        until_none_is_open(&home);
        running.holds()
    };
    let aborts = std::env::var("HEARTH_ABORTS").ok().and_then(|aborts| aborts.parse().ok()).unwrap_or(ABORTS);
    // What is made once is made in the first ones.
    let before = round(aborts / 5);
    let after = round(aborts);
    let line = home.usage("").remove(0);
    assert_eq!((&line["requests"], &line["interrupted"]), (&aborts.into(), &aborts.into()), "{line}");
    println!(
        "{aborts} aborts: {} -> {} MiB resident, {} -> {} files and sockets",
        before.0 >> 20,
        after.0 >> 20,
        before.1,
        after.1
    );
    assert!(after.1 <= before.1 + CLIENTS, "files or sockets are left: {before:?} {after:?}");
    assert!(after.0 < before.0 + (64 << 20), "memory grows: {before:?} {after:?}");
    let answer = chat(&running.address, &key, "whole", "custom-a/m", false).expect("sent");
    assert_eq!((answer.status, answer.whole), (200, true), "{answer:?}");
}
