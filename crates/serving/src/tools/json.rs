//! Finds the end of JSON values in text that is still coming, and reads calls written as JSON objects.
//!
//! Linear in the text: a scan goes on where it stopped. Whether a value obeys JSON to the letter is told once
//! it is whole.

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// As deep as arguments are read again when they come back as history.
const DEEPEST: u32 = 100;

/// A call as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
}

/// Where in an object or an array a scan stands.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonScan {
    depth: u32,
    /// One bit for each open bracket, the innermost lowest: whether it is a brace.
    braces: u128,
    quoted: bool,
    escaped: bool,
}

/// How far a scan came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The text ends inside the value.
    More,
    /// The value ends before this byte.
    End(usize),
    /// This byte cannot stand there.
    Bad(usize),
}

impl JsonScan {
    /// Stands inside an object.
    pub fn inside_object() -> Self {
        Self { depth: 1, braces: 1, ..Self::default() }
    }

    /// Goes on at `from`, which is where the last run stopped.
    pub fn run(&mut self, text: &str, from: usize) -> Scan {
        for (i, byte) in text.bytes().enumerate().skip(from) {
            if self.quoted {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.quoted = false,
                    0..0x20 => return Scan::Bad(i),
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.quoted = true,
                b'{' | b'[' => {
                    if self.depth == DEEPEST {
                        return Scan::Bad(i);
                    }
                    self.depth += 1;
                    self.braces = (self.braces << 1) | u128::from(byte == b'{');
                }
                b'}' | b']' => {
                    if self.depth == 0 || (self.braces & 1 == 1) != (byte == b'}') {
                        return Scan::Bad(i);
                    }
                    self.depth -= 1;
                    self.braces >>= 1;
                    if self.depth == 0 {
                        return Scan::End(i + 1);
                    }
                }
                b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' | b'+' | b'-' | b'.' | b'0'..=b'9' | b'E' => {}
                b'a' | b'e' | b'f' | b'l' | b'n' | b'r' | b's' | b't' | b'u' => {}
                _ => return Scan::Bad(i),
            }
        }
        Scan::More
    }
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Reads a call written as an object. Where `told` holds, it must say its arguments.
pub(super) fn read_call(raw: &str, told: bool) -> Result<Call, String> {
    let fields: Fields<'_> = serde_json::from_str(raw).map_err(|e| format!("the call is no JSON: {e}"))?;
    let inner = fields.get("function").map(|inner| inner.get());
    let (fields, name) = match (fields.get("name"), inner) {
        (Some(name), _) => (fields.clone(), name.get().to_owned()),
        (None, Some(function)) if function.starts_with('"') => (fields.clone(), function.to_owned()),
        (None, Some(function)) => {
            let inner: Fields<'_> =
                serde_json::from_str(function).map_err(|_| "the call names no tool".to_owned())?;
            let name = inner.get("name").map(|name| name.get().to_owned());
            (inner, name.ok_or("the call names no tool")?)
        }
        (None, None) => return Err("the call names no tool".into()),
    };
    let name: String = serde_json::from_str(&name).map_err(|_| "the tool's name is no text".to_owned())?;
    let said = fields.get("arguments").or_else(|| fields.get("parameters")).map_or("null", |raw| raw.get());
    if told && said == "null" {
        return Err("the call has no arguments".into());
    }
    Ok(Call { name, arguments: arguments(said)? })
}

/// The JSON text of arguments: an object as it stands, an object inside a JSON string, or none.
pub(super) fn arguments(said: &str) -> Result<String, String> {
    let said = said.trim();
    let text = if said.starts_with('"') {
        let inner: String =
            serde_json::from_str(said).map_err(|e| format!("the arguments are no JSON: {e}"))?;
        inner.trim().to_owned()
    } else {
        said.to_owned()
    };
    if matches!(text.as_str(), "" | "null") {
        return Ok("{}".into());
    }
    match serde_json::from_str::<Map<String, Value>>(&text) {
        Ok(_) => Ok(text),
        Err(error) if error.is_data() => Err("the arguments are no JSON object".into()),
        Err(error) => Err(format!("the arguments are no JSON: {error}")),
    }
}

/// The JSON string at the start of a text.
pub(super) enum Quoted {
    /// It goes on.
    More,
    /// What it says, and its length as written.
    Whole(String, usize),
    /// There is none.
    No,
}

pub(super) fn quoted(text: &str) -> Quoted {
    if !text.starts_with('"') {
        return if text.is_empty() { Quoted::More } else { Quoted::No };
    }
    let mut escaped = false;
    for (i, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                return serde_json::from_str(&text[..=i])
                    .map_or(Quoted::No, |said| Quoted::Whole(said, i + 1));
            }
            0..0x20 => return Quoted::No,
            _ => {}
        }
    }
    Quoted::More
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_ends_with_the_value_whatever_stands_in_its_strings() {
        for (text, end) in
            [(r#"{"a": "}]\"{"} x"#, 14), (r#"[{"a": [1, true, null]}]]"#, 24), (r#"{"a": "\\"}}"#, 11)]
        {
            assert_eq!(JsonScan::default().run(text, 0), Scan::End(end), "{text}");
            let mut parts = JsonScan::default();
            let ended = (1..=text.len()).find_map(|n| match parts.run(&text[..n], n - 1) {
                Scan::More => None,
                scan => Some(scan),
            });
            assert_eq!(ended, Some(Scan::End(end)), "{text}, byte by byte");
        }
    }

    #[test]
    fn a_scan_stops_at_what_no_json_has() {
        for (text, bad) in [("{\"a\": <", 6), ("{]", 1), ("{\"a\n", 3), ("{\"a\": 'x'}", 6)] {
            assert_eq!(JsonScan::default().run(text, 0), Scan::Bad(bad), "{text}");
        }
        let deep = "[".repeat(1000);
        assert_eq!(JsonScan::default().run(&deep, 0), Scan::Bad(100));
    }

    #[test]
    fn calls_are_read_in_all_shapes() {
        for (raw, arguments) in [
            (r#"{"name": "f", "arguments": {"a":  1}}"#, r#"{"a":  1}"#),
            (r#"{"parameters": {"b": "é"}, "name": "f", "id": 3}"#, r#"{"b": "é"}"#),
            (r#"{"name": "f", "arguments": "{\"a\": 1}"}"#, r#"{"a": 1}"#),
            (r#"{"name": "f"}"#, "{}"),
            (r#"{"name": "f", "arguments": null}"#, "{}"),
            (r#"{"name": "f", "arguments": ""}"#, "{}"),
            (r#"{"type": "function", "function": {"name": "f", "arguments": {}}}"#, "{}"),
            (r#"{"function": "f", "parameters": {}}"#, "{}"),
        ] {
            let call = Call { name: "f".into(), arguments: arguments.into() };
            assert_eq!(read_call(raw, false), Ok(call), "{raw}");
        }
        for raw in [
            r#"{"name": 1}"#,
            r#"{"arguments": {}}"#,
            r#"{"name": "f", "arguments": [1]}"#,
            "{\"name\" \"f\"}",
        ] {
            assert!(read_call(raw, false).is_err(), "{raw}");
        }
        assert!(read_call(r#"{"name": "f"}"#, true).is_err());
        // A half of a surrogate pair is no text.
        assert!(read_call(r#"{"name": "f", "arguments": {"a": "\ud83d"}}"#, false).is_err());
    }
}
