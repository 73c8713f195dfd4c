//! The input of a call that was cut: the values that were complete, as Anthropic's clients read a cut stream.
//!
//! A text, a name or a word that was cut is left out with what belongs to it; arrays and objects are closed where
//! they were cut. A number at the end counts as it stands.

use serde_json::{Map, Value};

/// The object that a call's arguments make, as far as they came. What is no object is an empty one.
pub(super) fn object(arguments: &str) -> Map<String, Value> {
    let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
    read(arguments).or_else(|| read(&closed(arguments))).unwrap_or_default()
}

/// What a scanner expects inside an open array or object.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    Array,
    /// A name, and behind its colon a value.
    Object {
        value: bool,
    },
}

/// The text up to its last complete value, with all that is open there closed.
fn closed(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut open: Vec<Open> = Vec::new();
    let mut whole = (0, 0);
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' => {
                open.push(if *byte == b'{' { Open::Object { value: false } } else { Open::Array });
                at += 1;
                whole = (at, open.len());
            }
            b'}' | b']' => {
                open.pop();
                at += 1;
                whole = (at, open.len());
            }
            b':' => {
                at += 1;
                if let Some(Open::Object { value }) = open.last_mut() {
                    *value = true;
                }
            }
            b',' => {
                at += 1;
                if let Some(Open::Object { value }) = open.last_mut() {
                    *value = false;
                }
            }
            b'"' => {
                let Some(end) = string_end(bytes, at + 1) else { break };
                at = end;
                if open.last() != Some(&Open::Object { value: false }) {
                    whole = (at, open.len());
                }
            }
            b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            _ => {
                let length = bytes[at..].iter().take_while(|byte| !b",]} \t\n\r".contains(byte)).count();
                // Half a word or number at the end is none.
                if serde_json::from_str::<Value>(text.get(at..at + length).unwrap_or_default()).is_err() {
                    break;
                }
                at += length;
                whole = (at, open.len());
            }
        }
    }
    // Brackets that were open at the last complete value are still the first ones of those open now, unless they
    // were closed since, which would have completed a later value.
    let (end, depth) = whole;
    let mut out = text[..end].to_owned();
    out.extend(open.iter().take(depth).rev().map(|open| if *open == Open::Array { ']' } else { '}' }));
    out
}

/// Behind the quote that ends a string whose text begins here.
fn string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn what_was_cut_is_left_out_and_what_was_open_is_closed() {
        for (cut, read) in [
            ("", json!({})),
            ("{", json!({})),
            (r#"{"a"#, json!({})),
            (r#"{"a":"#, json!({})),
            (r#"{"a": "x"#, json!({})),
            (r#"{"a": "x\"#, json!({})),
            (r#"{"a": "x\\""#, json!({"a": "x\\"})),
            (r#"{"a": 12"#, json!({"a": 12})),
            (r#"{"a": 1."#, json!({})),
            (r#"{"a": tru"#, json!({})),
            (r#"{"a": true"#, json!({"a": true})),
            (r#"{"a": [1, {"b": "c","d"#, json!({"a": [1, {"b": "c"}]})),
            (r#"{"a": {"b": nul"#, json!({"a": {}})),
            (r#"{"a": "}", "b": [[], {"#, json!({"a": "}", "b": [[], {}]})),
            (r#"{"a": 1, "b": "é"#, json!({"a": 1})),
            ("[1, 2", json!({})),
            ("nonsense", json!({})),
        ] {
            assert_eq!(Value::Object(object(cut)), read, "{cut}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i32>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
            "[a-z\"\\\\{}\\[\\],:é 🙂]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[a-z\":]{1,3}", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// Whether `part` says nothing that `all` does not say in the same place. A number that was cut may differ.
    fn within(part: &Value, all: &Value) -> bool {
        match (part, all) {
            (Value::Object(part), Value::Object(all)) => {
                part.iter().all(|(name, value)| all.get(name).is_some_and(|all| within(value, all)))
            }
            (Value::Array(part), Value::Array(all)) => {
                part.len() <= all.len() && part.iter().zip(all).all(|(part, all)| within(part, all))
            }
            (Value::Number(part), Value::Number(all)) => all.to_string().starts_with(&part.to_string()),
            (part, all) => part == all,
        }
    }

    proptest! {
        #[test]
        fn a_cut_object_is_part_of_the_whole(value in value(), at in any::<prop::sample::Index>()) {
            let all = json!({"a": value, "b": 1});
            let text = all.to_string();
            let cuts: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            let cut = &text[..cuts[at.index(cuts.len())]];
            let read = closed(cut);
            if !cut.is_empty() {
                prop_assert!(serde_json::from_str::<Value>(&read).is_ok(), "{} of {}", read, cut);
            }
            prop_assert!(within(&Value::Object(object(cut)), &all));
            prop_assert_eq!(Value::Object(object(&text)), all);
        }

        #[test]
        fn no_text_is_too_odd(text in "[\\[\\]{}\",:a1 \\\\é-]{0,40}") {
            let _ = object(&text);
        }
    }
}
