//! Clients that vanish, on each surface: the provider's connection ends, the entry is interrupted, and nothing is left.

use super::fake::{Fake, Manner, event, stream_head};
use super::server::{Home, Running, chat, chat_body, send};
use std::io::{Read, Write};
use std::net::TcpStream;
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
    let connection = send(&running.address, path, key, id, "", body).expect("sent");
    leave(fake, connection, id, body.contains("\"stream\":true"))
}

/// A socket of the universal endpoint that is open, and on which this is asked.
fn on_socket(running: &Running, key: &str, id: &str, query: &str) -> TcpStream {
    let mut connection = TcpStream::connect(&running.address).expect("connected");
    let head = format!(
        "GET /v1/default/default HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         cf-aig-authorization: Bearer {key}\r\ncf-aig-metadata: {{\"id\":\"{id}\"}}\r\n\r\n",
        running.address
    );
    connection.write_all(head.as_bytes()).expect("sent");
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        connection.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    let text = format!(
        r#"{{"type":"universal.create","request":{{"eventId":"e","provider":"custom-a","endpoint":"chat/completions","query":{query}}}}}"#
    );
    // One frame of text, under a mask of zeros.
    let mut frame = vec![0x81, 0x80 | 126];
    frame.extend(u16::try_from(text.len()).expect("short").to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    connection.write_all(&frame).expect("sent");
    connection
}

/// Waits until the provider has the request (and the client its first bytes, in a stream), and closes the connection.
fn leave(fake: &Fake, mut connection: TcpStream, id: &str, streams: bool) -> Duration {
    let ended = fake.seen().ended;
    fake.wait("the request", |seen| seen.asked.iter().any(|asked| asked.id == id) && seen.held > 0);
    if streams {
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
    let universal = |id: &str, stream: bool, model: &str| {
        let query = chat_body(id, model, stream);
        format!(r#"[{{"provider":"custom-a","endpoint":"chat/completions","query":{query}}}]"#)
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
        ("/v1/default/default", &open_ai, "m", &universal),
        ("/ai-gateway/universal/run/default", &open_ai, "m", &universal),
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
    for stream in [false, true] {
        let id = format!("socket {stream}");
        let connection = on_socket(&running, &key, &id, &chat_body(&id, "m", stream));
        longest = longest.max(leave(&open_ai, connection, &id, stream));
        count += 1;
    }
    let line = until_none_is_open(&home);
    assert_eq!((&line["requests"], &line["interrupted"]), (&count.into(), &count.into()), "{line}");
    for ((id, provider), line) in home.entries() {
        assert_eq!(line["requests"], 1, "{id} at {provider}: {line}");
    }
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
