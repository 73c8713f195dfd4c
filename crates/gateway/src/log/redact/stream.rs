//! Streams of events: a text that is told in pieces is looked at as a whole.
//!
//! Each event's data is JSON in every dialect that streams. Strings that stand at the same place of successive events
//! (`choices[0].delta.content`) are joined; what is found in the joined text is taken out of the pieces it lies in, with the
//! word that stands for it in the first. Events in which nothing is found come back byte for byte.

use super::{json, text};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

/// A string of an event: the event's line, and the place in its JSON.
struct Piece {
    line: usize,
    pointer: String,
    text: String,
}

/// Texts by what they are a part of, and the events' JSON by their lines.
type Told = (HashMap<String, Vec<Piece>>, HashMap<usize, Value>);

fn told<'l>(lines: impl Iterator<Item = &'l str>) -> Told {
    let mut texts: HashMap<String, Vec<Piece>> = HashMap::new();
    let mut values: HashMap<usize, Value> = HashMap::new();
    for (line, text) in lines.enumerate() {
        let Some(data) = data(text) else { continue };
        let Ok(value) = serde_json::from_str::<Value>(data) else { continue };
        // Events of one kind, and of one block or tool, tell one text.
        let kind = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let part =
            ["index", "output_index", "content_index"].map(|name| value.get(name).and_then(Value::as_u64));
        strings(&value, &mut String::new(), &mut |pointer, text| {
            let key = format!("{kind} {part:?} {pointer}");
            texts.entry(key).or_default().push(Piece {
                line,
                pointer: pointer.to_owned(),
                text: text.to_owned(),
            });
        });
        values.insert(line, value);
    }
    (texts, values)
}

/// Adds the words for what is found in the texts of a stream.
pub(super) fn found(stream: &str, words: &mut BTreeSet<&'static str>) {
    for pieces in told(stream.lines()).0.into_values() {
        // What each event repeats, such as an id, is said once.
        if pieces.iter().all(|piece| piece.text == pieces[0].text) {
            text::found(&pieces[0].text, words);
        } else {
            text::found(&pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), words);
        }
    }
}

/// The same stream without secrets and personal data.
pub(super) fn redacted(stream: &str) -> String {
    let mut lines: Vec<String> = stream.split_inclusive('\n').map(str::to_owned).collect();
    let (texts, mut values) = told(lines.iter().map(String::as_str));
    let mut changed: HashMap<usize, Vec<(String, String)>> = HashMap::new();
    for pieces in texts.into_values().filter(|pieces| pieces.len() > 1) {
        take_out(pieces, &mut changed);
    }
    for (line, changes) in changed {
        let Some(value) = values.get_mut(&line) else { continue };
        for (pointer, text) in changes {
            if let Some(place) = value.pointer_mut(&pointer) {
                *place = text.into();
            }
        }
        let end = lines[line].trim_end_matches(['\n', '\r']).len();
        lines[line] = format!("data: {value}{}", &lines[line][end..]);
    }
    // What stands whole in one event, and what is no JSON.
    json::redacted(&lines.concat())
}

fn data(line: &str) -> Option<&str> {
    let data = line.strip_prefix("data:")?.trim();
    data.starts_with('{').then_some(data)
}

/// Every string of a value with its place.
fn strings(value: &Value, pointer: &mut String, found: &mut impl FnMut(&str, &str)) {
    let length = pointer.len();
    match value {
        Value::String(text) => found(pointer, text),
        Value::Array(list) => {
            for (number, value) in list.iter().enumerate() {
                pointer.push_str(&format!("/{number}"));
                strings(value, pointer, found);
                pointer.truncate(length);
            }
        }
        Value::Object(object) => {
            for (name, value) in object {
                pointer.push('/');
                pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
                strings(value, pointer, found);
                pointer.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Notes the pieces that change.
fn take_out(pieces: Vec<Piece>, changed: &mut HashMap<usize, Vec<(String, String)>>) {
    let joined: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let finds = text::finds(&joined);
    if finds.is_empty() {
        return;
    }
    let (mut start, mut next) = (0, 0);
    for piece in pieces {
        let end = start + piece.text.len();
        let mut text = String::new();
        let mut at = start;
        // A find may go on into the next piece, which then begins within it.
        while let Some((from, until, word)) = finds.get(next).copied().filter(|(from, _, _)| *from < end) {
            if from >= start {
                text.push_str(&joined[at..from]);
                text.push_str(word);
            }
            at = until.min(end);
            if until > end {
                break;
            }
            next += 1;
        }
        text.push_str(&joined[at..end]);
        if text != piece.text {
            changed.entry(piece.line).or_default().push((piece.pointer, text));
        }
        start = end;
    }
}
