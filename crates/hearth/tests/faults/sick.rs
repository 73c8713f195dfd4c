//! A provider that refuses, hangs, breaks off, or talks nonsense, and what the client and the ledger get of it.

use super::fake::{self, Asked, Fake, JSON, Manner, answer, chunk, event, stream_head};
use super::server::{Answer, Home, chat};
use std::net::TcpListener;

fn manner(asked: &Asked) -> Manner {
    let begun = || [stream_head(), chunk(&event(&asked.path))].concat();
    let kind = asked.id.split(' ').next().unwrap_or_default();
    let first = asked.before == 0;
    match kind {
        "hangs" => Manner::Hold(Vec::new()),
        "resets" => Manner::Break(begun()),
        "ends" => Manner::Say(vec![begun(), chunk("")]),
        "breaks" => Manner::Break(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{".to_vec(),
        ),
        "garbage" => Manner::Break(b"\x16\x03\x01 this is no HTTP\r\n\r\n".to_vec()),
        "nonsense" => Manner::Say(vec![answer(200, &[JSON], "<html>504</html>")]),
        "empty" => Manner::Say(vec![answer(200, &[JSON], "")]),
        "full" => {
            Manner::Say(vec![answer(429, &[JSON, "retry-after: 60"], r#"{"error":{"message":"later"}}"#)])
        }
        "busy" if first => {
            Manner::Say(vec![answer(429, &[JSON, "retry-after: 0"], r#"{"error":{"message":"soon"}}"#)])
        }
        "lies" => Manner::Say(vec![answer(200, &[JSON], r#"{"error":{"message":"overloaded","code":503}}"#)]),
        "lies-once" if first => {
            Manner::Say(vec![answer(200, &[JSON], r#"{"error":{"message":"overloaded"}}"#)])
        }
        "streams-error" => Manner::Say(vec![
            stream_head(),
            chunk("data: {\"error\":{\"message\":\"no\",\"code\":429}}\n\n"),
            chunk(""),
        ]),
        "wrong" => Manner::Say(vec![answer(400, &[JSON], r#"{"error":{"message":"your fault"}}"#)]),
        _ => fake::chat(asked, 10, 5),
    }
}

#[test]
fn each_fault_of_a_provider_has_its_answer_and_its_entry() {
    let folder = tempfile::tempdir().expect("tempdir");
    let home = Home::new(folder.path());
    let sick = Fake::new(folder.path(), "custom-a", manner);
    // A port at which nobody listens.
    let refused = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    home.settings(&format!(
        "[providers.custom-a]\nbase-url = \"http://{}/v1\"\nfirst-byte-timeout = 1\nidle-timeout = 1\n\
         [providers.custom-none]\nbase-url = \"http://{refused}/v1\"\n",
        sick.address
    ));
    let key = home.key(&[]);
    let running = home.start(&[]);
    // Each at a model of its own, since breakers look at models.
    let ask = |kind: &str, stream: bool| -> Answer {
        let slug = if kind == "refuses" { "custom-none" } else { "custom-a" };
        let id = format!("{kind} {stream}");
        chat(&running.address, &key, &id, &format!("{slug}/{kind}-{stream}"), stream).expect("sent")
    };
    // Kind, whether streamed, status, part of the answer, attempts that the provider saw.
    let cases: &[(&str, bool, u16, &str, usize)] = &[
        ("refuses", false, 502, "cannot be reached", 0),
        ("hangs", false, 504, "did not answer", 2),
        ("breaks", false, 502, "broke off", 2),
        ("garbage", false, 502, "custom-a", 2),
        ("nonsense", false, 502, "is no JSON object", 2),
        ("empty", false, 502, "is empty", 2),
        ("full", false, 429, "later", 1),
        ("busy", false, 200, "chat.completion", 2),
        ("lies", false, 503, "overloaded", 2),
        ("lies-once", false, 200, "chat.completion", 2),
        ("wrong", false, 400, "your fault", 1),
        ("hangs", true, 504, "did not answer", 2),
        ("garbage", true, 502, "custom-a", 2),
        ("resets", true, 200, "broke off", 1),
        ("ends", true, 200, "ended before the answer did", 1),
        ("streams-error", true, 429, "no", 2),
        ("busy", true, 200, "[DONE]", 2),
        ("lies-once", true, 200, "[DONE]", 2),
        ("fine", true, 200, "[DONE]", 1),
    ];
    for (kind, stream, status, part, attempts) in cases {
        let answer = ask(kind, *stream);
        assert_eq!((answer.status, answer.whole), (*status, true), "{kind}: {answer:?}");
        assert!(answer.text.contains(part), "{kind}: {part:?} is not in {answer:?}");
        let id = format!("{kind} {stream}");
        let saw = sick.seen().asked.iter().filter(|asked| asked.id == id).count();
        assert_eq!(saw, *attempts, "{kind}");
        if *kind == "full" {
            assert_eq!(answer.header("retry-after"), Some("60"), "{answer:?}");
        }
    }
    let entries = home.entries();
    assert_eq!(entries.len(), cases.len(), "{entries:?}");
    for ((id, _), line) in &entries {
        let ends_well = ["busy", "lies-once", "fine"].iter().any(|kind| id.starts_with(&format!("{kind} ")));
        let expected = if ends_well { (0, 10) } else { (1, 0) };
        let found = (line["failed"].as_u64(), line["input_tokens"].as_u64());
        assert_eq!(found, (Some(expected.0), Some(expected.1)), "{id}: {line}");
        assert_eq!((&line["requests"], &line["open"]), (&1.into(), &0.into()), "{id}: {line}");
    }
}
