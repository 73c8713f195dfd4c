//! Reads a request body as JSON, bounded in depth and in number of values, and says at which field it breaks.
//!
//! Invariant: a body of `n` bytes never makes more than [`MAX_VALUES`] values, so the memory it costs is
//! bounded however it is written. Which fields a body may have is not decided here.

use crate::{Error, ErrorKind};
use serde_json::Value;

/// Arrays and objects may stand inside each other this deep.
pub(crate) const MAX_DEPTH: usize = 100;
/// Values a body may hold, for example token ids. A value costs up to half a kilobyte while it is read.
pub(crate) const MAX_VALUES: usize = 1 << 20;

/// Parses a body. Errors are of kind `Malformed` and name the field where the text breaks.
pub(crate) fn parse(body: &[u8]) -> Result<Value, Error> {
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
    let text = std::str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to();
        named(malformed(format!("The body is not valid UTF-8 (byte {at})")), &body[..at])
    })?;
    if text.trim_start().is_empty() {
        return Err(malformed("The body is empty; it must be a JSON object".to_owned()));
    }
    match bound(body, MAX_DEPTH, MAX_VALUES) {
        Bound::Fits => {}
        Bound::TooDeep => {
            let message = format!("The JSON is nested deeper than {MAX_DEPTH} levels");
            return Err(named(malformed(message), body));
        }
        Bound::TooMany => return Err(malformed(format!("The JSON holds more than {MAX_VALUES} values"))),
    }
    serde_json::from_str(text).map_err(|error| {
        let at = offset(text, error.line(), error.column());
        let word = text[..at].trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '-').len();
        let word = &text[word..];
        let reason = error.to_string();
        let hint = if word.starts_with("NaN") || word.starts_with("Infinity") || word.starts_with("-Infinity")
        {
            "; NaN and Infinity are not JSON"
        } else if reason.contains("surrogate") || reason.contains("end of hex escape") {
            // What JavaScript sends for a text that was cut by its length.
            "; half a surrogate pair is no character: was a text cut inside one?"
        } else {
            ""
        };
        named(malformed(format!("The body is not valid JSON: {reason}{hint}")), &body[..at])
    })
}

/// What serde says of a value, without the names of types, which tell a reader nothing.
#[must_use]
pub fn plain(message: &str) -> String {
    let Some((before, expected)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let (what, place) = expected.split_at(expected.find(" at line ").unwrap_or(expected.len()));
    let plain = match what {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not below zero",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        _ if what.starts_with("struct ") || what.contains("tagged enum ") => "names with their values",
        _ => return message.to_owned(),
    };
    format!("{before}expected {plain}{place}")
}

#[derive(Debug, PartialEq)]
enum Bound {
    Fits,
    TooDeep,
    TooMany,
}

/// Looks at the brackets and commas outside of strings, without parsing. Most of a body is long strings, which
/// are skipped.
fn bound(body: &[u8], max_depth: usize, max_values: usize) -> Bound {
    let (mut at, mut depth, mut values) = (0, 0usize, 0);
    while let Some(byte) = body.get(at) {
        at += 1;
        match byte {
            b'"' => at += string_length(&body[at..]),
            b'[' | b'{' => {
                depth += 1;
                values += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > max_depth {
            return Bound::TooDeep;
        }
        if values > max_values {
            return Bound::TooMany;
        }
    }
    Bound::Fits
}

/// Bytes from behind an opening quote to behind the closing one, or to the end where there is none.
fn string_length(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
        at += found + 1;
        if text[at - 1] == b'"' {
            return at;
        }
        // A backslash takes the next byte with it.
        at += 1;
    }
    text.len()
}

/// Adds the path of the field in which `before` ends, where there is one. Deep paths are cut: nobody reads a name
/// of a thousand brackets.
fn named(error: Error, before: &[u8]) -> Error {
    let mut path = Path::default();
    for byte in before {
        path.push(*byte);
        if path.depth() > 8 {
            break;
        }
    }
    let name = path.name();
    if name.is_empty() { error } else { error.at(name) }
}

/// Byte offset of a line and column as `serde_json` counts them: both from 1, columns in bytes.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let mut at = (start + column.saturating_sub(1)).min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Follows JSON text byte by byte and knows the path of the value it stands in. Wrong text gives a wrong
/// path, never a panic.
#[derive(Default)]
struct Path {
    open: Vec<Level>,
    in_string: bool,
    escaped: bool,
    string: Vec<u8>,
}

enum Level {
    Array(usize),
    Object { key: Vec<u8>, in_value: bool },
}

impl Path {
    fn push(&mut self, byte: u8) {
        if self.in_string {
            self.push_in_string(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.string.clear();
            }
            b'[' => self.open.push(Level::Array(0)),
            b'{' => self.open.push(Level::Object { key: Vec::new(), in_value: false }),
            b']' | b'}' => {
                self.open.pop();
            }
            b':' => {
                if let Some(Level::Object { key, in_value }) = self.open.last_mut() {
                    *key = std::mem::take(&mut self.string);
                    *in_value = true;
                }
            }
            b',' => match self.open.last_mut() {
                Some(Level::Array(index)) => *index += 1,
                Some(Level::Object { in_value, .. }) => *in_value = false,
                None => {}
            },
            _ => {}
        }
    }

    fn push_in_string(&mut self, byte: u8) {
        if self.escaped {
            self.escaped = false;
        } else if byte == b'\\' {
            self.escaped = true;
        } else if byte == b'"' {
            self.in_string = false;
            return;
        }
        // Keys beyond this length are cut in messages; values are not needed at all.
        if self.string.len() < 64 {
            self.string.push(byte);
        }
    }

    fn depth(&self) -> usize {
        self.open.len()
    }

    fn name(&self) -> String {
        let mut name = String::new();
        for level in &self.open {
            match level {
                Level::Array(index) => name.push_str(&format!("[{index}]")),
                Level::Object { key, in_value: true } => {
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.push_str(&String::from_utf8_lossy(key));
                }
                Level::Object { in_value: false, .. } => {}
            }
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(body: &[u8], param: Option<&str>, message: &str) {
        let error = parse(body).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Malformed);
        assert_eq!(error.param.as_deref(), param, "{error}");
        assert!(error.message.contains(message), "{error}");
    }

    #[test]
    fn what_serde_expects_is_told_in_words_and_not_in_types() {
        for (said, told) in [
            ("invalid type: string \"x\", expected u64", "a whole number, not below zero"),
            (
                "invalid type: integer `3`, expected struct Rails at line 1 column 2",
                "values at line 1 column 2",
            ),
            ("invalid type: map, expected internally tagged enum Match", "names with their values"),
        ] {
            let plain = plain(said);
            assert!(plain.starts_with("invalid type: ") && plain.ends_with(told), "{plain}");
        }
        let words = "unknown field `a`, expected `b` or `c`";
        assert_eq!(plain(words), words);
    }

    #[test]
    fn broken_json_is_named_by_the_field_it_breaks_in() {
        check(br#"{"temperature": NaN}"#, Some("temperature"), "NaN and Infinity are not JSON");
        check(br#"{"a":1,"temperature":-Infinity}"#, Some("temperature"), "NaN and Infinity are not JSON");
        check(
            b"{\"messages\":[{\"role\":\"user\"},\n{\"role\":nope}]}",
            Some("messages[1].role"),
            "not valid JSON",
        );
        for half in [r"\ud83d", r"\ud83d.", r"\ude00", r"\ud83d\n", r"\ud83d\ud83d"] {
            check(format!(r#"{{"a":"x{half}"}}"#).as_bytes(), Some("a"), "half a surrogate pair");
        }
        check(br#"{"a":1e999}"#, Some("a"), "number out of range");
        check(b"", None, "empty");
        check(b"  \n", None, "empty");
        check(b"{", None, "not valid JSON");
        check(b"{\"model\":\"a\xff\"}", Some("model"), "UTF-8 (byte 11)");
    }

    #[test]
    fn deep_json_is_refused_with_its_field() {
        let deep = |n: usize| format!("{{\"messages\":{}{}}}", "[".repeat(n), "]".repeat(n));
        check(deep(1000).as_bytes(), Some("messages[0][0][0][0][0][0][0][0]"), "deeper than 100");
        check(
            format!("{{\"a\":{}", "[".repeat(1_000_000)).as_bytes(),
            Some("a[0][0][0][0][0][0][0][0]"),
            "deeper",
        );
        assert!(parse(deep(MAX_DEPTH - 1).as_bytes()).is_ok());
    }

    #[test]
    fn a_body_of_too_many_values_is_refused_before_it_is_built() {
        let body = format!("[{}1]", "1,".repeat(MAX_VALUES));
        check(body.as_bytes(), None, "more than");
    }

    /// The slow twin of [`bound`]: byte by byte.
    fn bound_slowly(body: &[u8], max_depth: usize, max_values: usize) -> Bound {
        let mut path = Path::default();
        let mut values = 0;
        for byte in body {
            values += usize::from(!path.in_string && b"[{,".contains(byte));
            path.push(*byte);
            if path.depth() > max_depth {
                return Bound::TooDeep;
            }
            if values > max_values {
                return Bound::TooMany;
            }
        }
        Bound::Fits
    }

    proptest! {
        #[test]
        fn skipping_strings_changes_no_verdict(body in "[\\[\\]{},:a\"\\\\]{0,60}") {
            let body = body.as_bytes();
            prop_assert_eq!(bound(body, 4, 9), bound_slowly(body, 4, 9));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&body);
        }

        #[test]
        fn any_cut_of_valid_json_is_refused_without_a_panic(at in 0usize..90) {
            let body = "{\"messages\":[{\"role\":\"us\\u00e9r\",\"content\":\"h\u{e9}llo \\\" {[\"}],\"n\":[1,2,{\"é\":null}]}";
            let at = at.min(body.len() - 1);
            prop_assert!(parse(&body.as_bytes()[..at]).is_err());
        }
    }
}
