//! What is found, what is not, and that JSON stays JSON.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(text::redacted(text), expected);
}

#[test]
fn secrets_of_known_forms_are_found() {
    let key = "a1B2".repeat(12);
    for secret in [
        format!("sk-proj-{key}"),
        format!("sk-ant-api03-{key}"),
        format!("hearth_{key}"),
        format!("ghp_{key}"),
        format!("github_pat_{key}"),
        format!("xoxb-12345-{key}"),
        format!("AIza{key}"),
        format!("gsk_{key}"),
        format!("hf_{key}"),
        "AKIAIOSFODNN7EXAMPLE".to_owned(),
        format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{key}"),
    ] {
        check(&format!("key: {secret}, then."), "key: [secret], then.");
        check(&format!("{secret}."), "[secret].");
    }
    check("Authorization: Bearer abcdef123456789", "Authorization: Bearer [secret]");
    check(
        "postgres://ada:s3cr@t@db:5432/x and https://host/a@b",
        "postgres://ada:[secret]@db:5432/x and https://host/a@b",
    );
    let pem = "a -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- b";
    check(pem, "a [private key] b");
    check("-----BEGIN PRIVATE KEY-----\nMIIE cut", "[private key]");
}

#[test]
fn personal_data_is_found() {
    check("write to ada.l+x@mail.example.org.", "write to [email].");
    check("<ada@example.com>", "<[email]>");
    check(
        "card 4111 1111 1111 1111 or 5555-5555-5555-4444, 378282246310005!",
        "card [card] or [card], [card]!",
    );
    check("GB82 WEST 1234 5698 7654 32 and DE89370400440532013000.", "[iban] and [iban].");
    check("call +49 30 901820 or (212) 555-0100, 212-555-0100", "call [phone] or [phone], [phone]");
    check("from 192.168.1.20:8080 and 2001:db8::8a2e:370:7334.", "from [ip address]:8080 and [ip address].");
}

#[test]
fn what_only_looks_like_it_stays() {
    for text in [
        "the bearer of bad news",
        "sk-learn and sk-something-long-in-small-letters",
        "4111 1111 1111 1112",
        "GB82WEST12345698765433",
        "1764460800123 and 1764460800",
        "std::fmt::Display, a::b, 12:30:45",
        "version 1.2.3 of 2026-11-30",
        "max_tokens 100, 555-0100",
        "user@host and @name",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "https://example.com:8080/a:b@c",
        "Grüße, 你好 😀",
        "sk-something-long-in-small-letters-2 and hf_model_name_of_llama_3_8b_instruct",
        "npm_config_user_agent_version_2_of_all and fw_update_2024_release_notes",
        "Bearer authentication, bearer of-responsibility",
        "postgres://user:${PASSWORD}@db/x, http://u:$TOKEN@h, https://u:***@h",
        "git clone git@github.com:a/b.git",
        "127.0.0.1:8790, 0.0.0.0",
        "+0.12345678, +3.14159265, + 12345678, 1.2e+12345678",
        // Right check digits, of no scheme: a long id, and a number of 13 digits.
        "6304000000000000 and 5018000000009",
    ] {
        check(text, text);
    }
}

/// Were each of its places read to the end of the text, this would take minutes.
#[test]
fn a_text_that_looks_like_a_find_at_each_of_its_places_is_read_once() {
    for piece in
        ["a.", "eyJ-", "sk-", "1.", "1 ", "a://", "bearer ", "-----BEGIN ", "ab:", "+1", "GB82 ", "1-", "(1"]
    {
        let text = piece.repeat(20_000 / piece.len());
        let found = redacted(&format!("{{\"a\":\"{text}"), None);
        assert!(!text::redacted(&text).is_empty() && !found.is_empty());
    }
}

#[test]
fn json_is_changed_inside_its_strings_alone() {
    let before = r#"{ "a" : "mail ada@example.com\n\"now\"", "n": 4111111111111111, "f":4111111111111111.5,"ada@example.com":[1,"\u00e9"], "password":"hunter2", "max_tokens":16 }"#;
    let after = r#"{ "a" : "mail [email]\n\"now\"", "n": "[card]", "f":4111111111111111.5,"[email]":[1,"\u00e9"], "password":"[secret]", "max_tokens":16 }"#;
    assert_eq!(redacted(before, Some("application/json")), after);
    assert!(serde_json::from_str::<Value>(after).is_ok());
    // One that was cut is gone through as far as it goes.
    assert_eq!(redacted(r#"{"a":"ada@example.com","b":"bob@exam"#, None), r#"{"a":"[email]","b":"bob@exam"#);
    assert_eq!(redacted(r#"{"a":"x\"#, None), r#"{"a":"x\"#);
}

#[test]
fn what_a_stream_tells_in_pieces_is_found() {
    let chunk =
        |text: &str| format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": text}}]}));
    let stream = [
        chunk("Write to ada"),
        chunk("@exam"),
        chunk("ple.com, or"),
        chunk(" not."),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat();
    let found = redacted(&stream, Some("text/event-stream; charset=utf-8"));
    let expected =
        [chunk("Write to [email]"), chunk(""), chunk(", or"), chunk(" not."), "data: [DONE]\n\n".to_owned()]
            .concat();
    assert_eq!(found, expected);
    let event = |text: &str| {
        format!(
            "event: content_block_delta\ndata: {}\n\n",
            json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": text}})
        )
    };
    let found =
        redacted(&[event("4111 1111 "), event("1111 1111"), event("!")].concat(), Some("text/event-stream"));
    assert_eq!(found, [event("[card]"), event(""), event("!")].concat());
}

fn any_text() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        "\\PC{0,12}",
        Just("ada@example.com".to_owned()),
        Just("4111 1111 1111 1111".to_owned()),
        Just("Bearer abcdefgh12345678".to_owned()),
        Just("http://u:p\\\"w@h/".to_owned()),
        Just("\"\\/\u{8}\n\u{1}".to_owned()),
        Just("-----BEGIN PRIVATE KEY-----\\n".to_owned()),
        Just("+49 30 901820".to_owned()),
        "[0-9]{13,19}",
    ];
    prop::collection::vec(pieces, 0..5).prop_map(|pieces| pieces.concat())
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(Value::from(4_111_111_111_111_111_u64)),
        any::<f64>().prop_map(Value::from),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let key = prop_oneof![any_text(), Just("password".to_owned())];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn redaction_keeps_json_valid(value in any_json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let text = text.unwrap();
        let found = redacted(&text, Some("application/json"));
        prop_assert!(serde_json::from_str::<Value>(&found).is_ok(), "{text} became {found}");
        let escaped: String = text.chars().map(|c| if c.is_ascii() { c.to_string() } else {
            c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }).collect();
        let found = redacted(&escaped, Some("application/json"));
        prop_assert!(serde_json::from_str::<Value>(&found).is_ok(), "{escaped} became {found}");
    }

    #[test]
    fn redaction_takes_any_text_and_finds_nothing_twice(text in any_text(), cut in any::<prop::sample::Index>()) {
        let once = text::redacted(&text).into_owned();
        let json = Value::from(text.as_str()).to_string();
        let end = cut.index(json.len() + 1);
        if json.is_char_boundary(end) {
            let _ = redacted(&format!("{{\"a\":{}", &json[..end]), None);
        }
        prop_assert!(text::finds(&once).len() <= text::finds(&text).len() + 1);
        let events = format!("data: {{\"d\":{json}}}\n\ndata: {{\"d\":{json}}}\n\n");
        let found = redacted(&events, Some("text/event-stream"));
        for line in found.lines().filter_map(|line| line.strip_prefix("data: ")) {
            prop_assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
        }
    }
}

#[test]
fn what_stands_behind_an_escape_of_json_in_a_string_is_found() {
    let inner = json!({"text": "one\nAKIAIOSFODNN7EXAMPLE"}).to_string();
    let call = json!({"function": {"arguments": inner}}).to_string();
    assert!(found(&call, Some("application/json")).contains(text::SECRET));
    assert!(!redacted(&call, Some("application/json")).contains("AKIA"));
}

#[test]
fn what_is_found_in_a_payload_is_what_would_be_taken_out() {
    let words = |payload: &str, kind: &str| found(payload, Some(kind)).into_iter().collect::<Vec<_>>();
    let body = r#"{"messages":[{"content":"mail \u0061da@example.com"}],"n":4111111111111111,"f":1.5}"#;
    assert_eq!(words(body, "application/json"), ["[card]", "[email]"]);
    assert_eq!(words("call +49 30 901820", "text/plain"), ["[phone]"]);
    let chunk = |text: &str| {
        format!("data: {}\n\n", json!({"id": "4111", "choices": [{"delta": {"content": text}}]}))
    };
    let stream = [chunk("4111 1111 "), chunk("1111"), chunk(" 1111"), "data: [DONE]\n\n".to_owned()].concat();
    assert_eq!(words(&stream, "text/event-stream"), ["[card]"]);
    let id = [chunk("a"), chunk("b"), chunk("c"), chunk("d")].concat();
    assert_eq!(words(&id, "text/event-stream"), [""; 0], "an id that each event repeats is no number");
}

#[test]
fn bytes_in_base64_are_not_looked_into() {
    let bytes = "+12345678/".repeat(200);
    for body in [
        json!({"image_url": {"url": format!("data:image/png;base64,{bytes}")}}),
        json!({"source": {"type": "base64", "data": bytes}}),
    ] {
        assert!(found(&body.to_string(), Some("application/json")).is_empty());
    }
    let short = json!({"data": "+12345678/"}).to_string();
    assert!(!found(&short, Some("application/json")).is_empty(), "what is short is read");
}
