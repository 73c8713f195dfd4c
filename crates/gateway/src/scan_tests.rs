//! The scan held to serde_json: the same bodies accepted, the same values found, every other byte left alone.

use super::*;
use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body).is_ok()
}

#[track_caller]
fn refused(body: &str, message: &str) {
    let error = scan(body.as_bytes()).expect_err(body);
    assert_eq!(error.to_string(), message, "{body}");
}

#[test]
fn members_are_found_where_they_stand() {
    let body =
        br#" { "messages":[{"role":"user","model":"no"}], "model" : "gpt" ,"stream":true, "max_tokens":7 } "#;
    let scan = scan(body).unwrap();
    assert_eq!(scan.string(body, Field::Model).unwrap().as_deref(), Some("gpt"));
    assert_eq!(scan.span(Field::Model).map(|span| &body[span]), Some(&br#""gpt""#[..]));
    assert!(scan.flag(body, Field::Stream).unwrap());
    assert_eq!(scan.count(body, Field::MaxTokens), Ok(Some(7)));
    assert_eq!(scan.count(body, Field::N), Ok(None));
}

#[test]
fn null_is_absence() {
    let body = br#"{"model":null,"stream":null}"#;
    let scan = scan(body).unwrap();
    assert_eq!(scan.string(body, Field::Model), Ok(None));
    assert_eq!(scan.flag(body, Field::Stream), Ok(false));
}

#[test]
fn a_name_is_what_it_says_however_it_is_escaped() {
    let body = br#"{"mod\u0065l":"a\u0062c"}"#;
    let scan = scan(body).unwrap();
    assert_eq!(scan.string(body, Field::Model).unwrap().as_deref(), Some("abc"));
    refused(
        r#"{"model":"a","mod\u0065l":"b"}"#,
        "model is given twice, which readers understand differently",
    );
}

#[test]
fn only_members_that_count_must_stand_once() {
    assert!(scan(br#"{"x":1,"x":2}"#).is_ok());
    refused(
        r#"{"stream":true,"stream":false}"#,
        "stream is given twice, which readers understand differently",
    );
}

#[test]
fn faults_are_told_with_their_place() {
    for (body, message) in [
        ("", "the body is not valid JSON: an object is expected at byte 0, where the body ends"),
        ("[]", "the body is not valid JSON: an object is expected at byte 0, not '['"),
        (
            "{\"a\":1,}",
            "the body is not valid JSON: a member's name in quotes is expected at byte 7, not '}'",
        ),
        ("{\"a\":[1 2]}", "the body is not valid JSON: a comma or ] is expected at byte 8, not '2'"),
        ("{\"a\":1} x", "the body is not valid JSON: the end is expected at byte 8, not 'x'"),
        (
            "{\"a\":\"b",
            "the body is not valid JSON: the end of a string is expected at byte 7, where the body ends",
        ),
        (
            "{\"a\":\"\n\"}",
            "the body is not valid JSON: an escape instead of a control character is expected at byte 6, not '\\n'",
        ),
    ] {
        refused(body, message);
    }
    let body = br#"{"model":7}"#;
    let error: Error = scan(body).unwrap().string(body, Field::Model).unwrap_err().into();
    assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::InvalidRequest, Some("model")));
    assert_eq!(error.message, "model must be a string");
}

#[test]
fn nesting_ends_where_serde_json_ends() {
    for depth in [126, 127, 128, 129] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let body = format!("{{\"x\":{}0{}}}", open.repeat(depth - 1), close.repeat(depth - 1));
            let parsed = serde_json::from_str::<Value>(&body).is_ok();
            assert_eq!(scan(body.as_bytes()).is_ok(), parsed, "{depth} {open}");
        }
    }
}

#[test]
fn a_member_is_replaced_or_put_first_and_nothing_else_moves() {
    #[track_caller]
    fn check(body: &'static str, expected: &str) {
        let scan = scan(body.as_bytes()).unwrap();
        let mut edits = Edits::none();
        edits.set(&scan, Field::StreamOptions, "{}");
        edits.set(&scan, Field::Model, "\"m\"");
        let pieces = edits.apply(&Bytes::from_static(body.as_bytes()));
        assert_eq!(String::from_utf8(pieces.0.concat()).unwrap(), expected);
        assert_eq!(pieces.len(), expected.len());
    }
    check(r#"{ "model" : "p/m", "x":1.0 }"#, r#"{"stream_options":{}, "model" : "m", "x":1.0 }"#);
    check(r#"{"stream_options":null,"model":"p/m"}"#, r#"{"stream_options":{},"model":"m"}"#);
}

#[test]
fn an_empty_object_gets_its_member_without_a_comma() {
    let body = Bytes::from_static(b"{ }");
    let mut edits = Edits::none();
    edits.set(&scan(&body).unwrap(), Field::Model, "1");
    assert_eq!(edits.apply(&body).0.concat(), b"{\"model\":1 }");
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[\"\\\\\u{0}-\u{1f}é語🦀 a]{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
    let name = prop_oneof![prop::sample::select(names).prop_map(str::to_owned), ".{0,8}"];
    prop::collection::vec((name, value()), 0..8).prop_map(|members| members.into_iter().collect())
}

fn written() -> impl Strategy<Value = String> {
    (object(), any::<bool>()).prop_map(|(object, pretty)| {
        if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }
            .expect("a value is written")
    })
}

proptest! {
    #[test]
    fn each_value_found_is_the_one_a_parser_finds(text in written()) {
        let scan = scan(text.as_bytes()).unwrap();
        let parsed: Map<String, Value> = serde_json::from_str(&text).unwrap();
        for (name, field) in FIELDS {
            let found = scan.span(field).map(|span| serde_json::from_str::<Value>(&text[span]).unwrap());
            prop_assert_eq!(found.as_ref(), parsed.get(name));
        }
    }

    #[test]
    fn what_is_accepted_is_what_a_parser_accepts(
        text in written(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 0..3),
    ) {
        let mut body = text.into_bytes();
        for (place, byte, kind) in changes {
            let at = place.index(body.len().max(1)).min(body.len().saturating_sub(1));
            match kind {
                0 if !body.is_empty() => body[at] = byte,
                1 if !body.is_empty() => { body.remove(at); }
                _ => body.insert(at, byte),
            }
        }
        let first = body.iter().find(|byte| !b" \n\r\t".contains(byte));
        match scan(&body) {
            Ok(_) => prop_assert!(is_json(&body)),
            Err(ScanError::Twice(_)) => {}
            Err(error) => prop_assert!(!is_json(&body) || first != Some(&b'{'), "{}", error),
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = scan(&body);
    }

    #[test]
    fn an_edit_changes_its_member_and_no_other_byte(text in written(), pick in 0..FIELDS.len()) {
        let field = FIELDS[pick].1;
        let body = Bytes::from(text.clone());
        let before = scan(&body).unwrap();
        let mut edits = Edits::none();
        edits.set(&before, field, "[\"new\"]");
        let after = edits.apply(&body).0.concat();
        let mut expected: Map<String, Value> = serde_json::from_str(&text).unwrap();
        expected.insert(field.name().to_owned(), serde_json::json!(["new"]));
        prop_assert_eq!(serde_json::from_slice::<Map<String, Value>>(&after).unwrap(), expected);
        if let Some(span) = before.span(field) {
            prop_assert_eq!(&after[..span.start], &body[..span.start]);
            prop_assert!(after.ends_with(&body[span.end..]));
        }
    }

    #[test]
    fn the_first_special_byte_is_found_as_by_looking_at_each(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let each = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(bytes.len());
        prop_assert_eq!(plain(&bytes, 0), each);
    }
}

#[test]
fn a_member_gives_its_place_to_another() {
    let body = Bytes::from_static(br#"{ "a":1, "mod\u0065l" : "x", "b":2}"#);
    let found = scan(&body).unwrap();
    let mut edits = Edits::none();
    edits.replace(&found, Field::Model, "version", "\"v\"");
    edits.replace(&found, Field::N, "n", "1");
    let text = String::from_utf8(edits.apply(&body).0.concat()).unwrap();
    assert_eq!(text, r#"{ "a":1, "version":"v", "b":2}"#);
}
