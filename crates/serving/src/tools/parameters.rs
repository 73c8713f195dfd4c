//! Calls written with a tag for the function and one for each parameter (Qwen3-Coder).
//!
//! ```text
//! <function=edit>
//! <parameter=path>
//! src/lib.rs
//! </parameter>
//! </function>
//! ```
//! A value is plain text. It is text in the arguments where the tool's schema says so or where it is no JSON,
//! else the JSON that it is. It ends at the first `</parameter>` after which the form goes on, so a value may
//! speak of the tag itself.

use super::block::{Seen, after_space, starts};
use super::declared::Declared;
use super::json::Call;
use serde_json::{Map, Value};

const END: &str = "</parameter>";

/// Where in a call a scan stands.
#[derive(Clone, Debug, Default)]
pub(super) struct ParameterScan {
    state: State,
    name: String,
    arguments: Map<String, Value>,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Function,
    Between,
    Value {
        key: String,
        start: usize,
    },
}

impl ParameterScan {
    /// Goes on at `at`; gives the call once it has ended.
    pub fn run(&mut self, text: &str, at: &mut usize, tools: &Declared) -> Result<Option<Call>, String> {
        loop {
            let rest = &text[*at..];
            match &mut self.state {
                State::Function => {
                    let Some(name) = tag(rest, "<function=", at, tools)? else { return Ok(None) };
                    if !tools.has(name) {
                        return Err(format!("there is no tool {name:?}"));
                    }
                    self.name = name.to_owned();
                    self.state = State::Between;
                }
                State::Between => {
                    *at = after_space(text, *at);
                    let next = &text[*at..];
                    match (starts(next, "</function>"), starts(next, "<parameter=")) {
                        (Seen::Yes, _) => {
                            *at += "</function>".len();
                            let arguments = Value::Object(std::mem::take(&mut self.arguments)).to_string();
                            return Ok(Some(Call { name: std::mem::take(&mut self.name), arguments }));
                        }
                        (_, Seen::Yes) => {
                            let mut end = *at;
                            let Some(key) = tag(next, "<parameter=", &mut end, tools)? else {
                                return Ok(None);
                            };
                            self.state = State::Value { key: key.to_owned(), start: end };
                            *at = end;
                        }
                        (Seen::Part, _) | (_, Seen::Part) => return Ok(None),
                        _ => return Err("a parameter or the function's end is missing".into()),
                    }
                }
                State::Value { key, start } => {
                    let Some(found) = rest.find(END) else {
                        // The tag may have begun.
                        *at = text.floor_char_boundary(text.len().saturating_sub(END.len() - 1).max(*start));
                        return Ok(None);
                    };
                    let end = *at + found;
                    let next = text[end + END.len()..].trim_start();
                    let after = ["<parameter=", "</function>", "</tool_call>"].map(|tag| starts(next, tag));
                    if after.contains(&Seen::Yes) {
                        let said = &text[*start..end];
                        let said = said.strip_prefix('\n').unwrap_or(said);
                        let said = said.strip_suffix('\n').unwrap_or(said);
                        let value = value(said, tools.is_text(&self.name, key));
                        self.arguments.insert(std::mem::take(key), value);
                        *at = end + END.len();
                        self.state = State::Between;
                    } else if after.contains(&Seen::Part) {
                        *at = end;
                        return Ok(None);
                    } else {
                        *at = end + END.len();
                    }
                }
            }
        }
    }
}

/// The name in `<..=NAME>`; moves `at` past it.
fn tag<'a>(rest: &'a str, open: &str, at: &mut usize, tools: &Declared) -> Result<Option<&'a str>, String> {
    // A parameter's name is bounded as a tool's is.
    let seen = &rest[..rest.floor_char_boundary(open.len() + tools.head())];
    match (seen.strip_prefix(open).and_then(|rest| rest.find('>')), seen.len() < rest.len()) {
        (Some(end), _) => {
            *at += open.len() + end + 1;
            Ok(Some(&rest[open.len()..open.len() + end]))
        }
        (None, true) => Err("a tag has no end".into()),
        (None, false) => Ok(None),
    }
}

fn value(said: &str, text: bool) -> Value {
    if text {
        return said.into();
    }
    match said.trim() {
        "True" => true.into(),
        "False" => false.into(),
        "None" => Value::Null,
        trimmed => serde_json::from_str(trimmed).unwrap_or_else(|_| said.into()),
    }
}
