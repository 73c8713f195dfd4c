//! Items: what a conversation is made of in this dialect, read from the wire and written to it.
//!
//! What a caller sends, what a response gives out and what is kept between two requests have the same form, so that
//! an output may be sent back as input as it is. Ids are the server's: those that a caller sends with an item are
//! passed over, save for references.

use crate::fields::{self, Object, element, unsupported, wrong_type};
use crate::openai::{thoughts, to_json};
use crate::{Error, ErrorKind, Part, Role, Thought};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// One item of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// Something said.
    Message {
        /// Who speaks; never [`Role::Tool`].
        role: Role,
        /// What is said.
        content: Vec<Part>,
    },
    /// What the model thought.
    Reasoning {
        /// The thoughts.
        text: String,
        /// The same as the service wrote it down that thought it, where it did.
        thoughts: Vec<Thought>,
    },
    /// A call of a function.
    Call {
        /// The id that its output names.
        call_id: String,
        /// The function.
        name: String,
        /// Its arguments as JSON text.
        arguments: String,
    },
    /// What a function gave back.
    CallOutput {
        /// The call's id.
        call_id: String,
        /// What it gave.
        output: Vec<Part>,
    },
    /// A kept item, by its id.
    Reference {
        /// The id.
        id: String,
    },
}

/// Fields that say nothing of what was said: what clients echo from an earlier response.
const HARMLESS: &[&str] = &["id", "status", "phase", "created_by", "malformed_calls"];

/// What stands before the text in `encrypted_content`. Nothing is secret here, the text stands beside it in `content`;
/// clients that keep no state know this field as the one that carries thoughts to the next request.
const CARRIED: &str = "hearth-1:";

/// What stands there before the thoughts as their service wants them back: JSON, `{"text", "details"}`, in which `details`
/// are as chat completions have them in `reasoning_details`, and `text` is left out where it is theirs.
const PROVEN: &str = "hearth-2:";

/// The value of `encrypted_content` for these thoughts.
pub(super) fn carried(text: &str, thoughts: &[Thought]) -> String {
    if thoughts.is_empty() {
        return URL_SAFE_NO_PAD.encode(format!("{CARRIED}{text}"));
    }
    let mut all = json!({"details": thoughts.iter().map(thoughts::written).collect::<Vec<_>>()});
    if text != signed(thoughts) {
        all["text"] = text.into();
    }
    URL_SAFE_NO_PAD.encode(format!("{PROVEN}{}", to_json(&all)))
}

/// What was carried; nothing where somebody else wrote it, as another service's own that only that can read.
fn uncarried(token: &str) -> Option<(String, Vec<Thought>)> {
    let told = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    if let Some(text) = told.strip_prefix(CARRIED) {
        return Some((text.to_owned(), Vec::new()));
    }
    let all: Value = serde_json::from_str(told.strip_prefix(PROVEN)?).ok()?;
    let thoughts = thoughts::of(&all["details"]);
    Some((all["text"].as_str().map_or_else(|| signed(&thoughts), str::to_owned), thoughts))
}

/// The text of those that may be read.
fn signed(thoughts: &[Thought]) -> String {
    let texts = thoughts.iter().map(|thought| match thought {
        Thought::Signed { text, .. } => text.as_str(),
        Thought::Redacted { .. } => "",
    });
    texts.collect()
}

impl Item {
    /// Reads an item that stands at `path`.
    pub(super) fn read(path: String, value: Value) -> Result<Self, Error> {
        let mut fields = Object::at(path, value)?;
        let kind = match fields.string("type")? {
            Some(kind) => kind,
            // The short form of a message has no type; that of a reference is its id alone.
            None if fields.has("role") => "message".to_owned(),
            None if fields.has("id") => "item_reference".to_owned(),
            None => return Err(fields::missing(&fields.path("type"))),
        };
        if kind == "item_reference" {
            let id = fields.required_string("id")?;
            fields.finish()?;
            return Ok(Self::Reference { id });
        }
        fields.harmless(HARMLESS);
        let item = match kind.as_str() {
            "message" => message(&mut fields)?,
            "reasoning" => reasoning(&mut fields)?,
            "function_call" => {
                fields.harmless(&["parsed_arguments"]);
                fields.refuse(&["namespace", "caller", "async"])?;
                Self::Call {
                    call_id: fields.required_string("call_id")?,
                    name: fields.required_name("name")?,
                    arguments: fields.required_string("arguments")?,
                }
            }
            "function_call_output" => {
                fields.harmless(&["name"]);
                fields.refuse(&["namespace", "caller"])?;
                let call_id = fields.required_string("call_id")?;
                let path = fields.path("output");
                let output = fields.take("output").ok_or_else(|| fields::missing(&path))?;
                Self::CallOutput { call_id, output: content(&path, output, Role::Tool)? }
            }
            other => return Err(unknown(&fields.path("type"), other)),
        };
        fields.finish()?;
        Ok(item)
    }

    /// What an id of such an item begins with.
    #[must_use]
    pub const fn prefix(&self) -> &'static str {
        match self {
            Self::Message { .. } => "msg",
            Self::Reasoning { .. } => "rs",
            Self::Call { .. } => "fc",
            Self::CallOutput { .. } => "fco",
            Self::Reference { .. } => "ref",
        }
    }

    /// The item on the wire, whole and with this id.
    #[must_use]
    pub fn write(&self, id: &str) -> Value {
        match self {
            Self::Message { role, content } => json!({
                "id": id, "type": "message", "status": "completed", "role": role.as_str(),
                "content": content.iter().map(|part| written(part, *role)).collect::<Vec<_>>(),
            }),
            Self::Reasoning { text, thoughts } => {
                let mut item = json!({
                    "id": id, "type": "reasoning", "status": "completed", "summary": [],
                    "content": [{"type": "reasoning_text", "text": text}],
                });
                if text.is_empty() {
                    item["content"] = json!([]);
                }
                if !thoughts.is_empty() {
                    item["encrypted_content"] = carried(text, thoughts).into();
                }
                item
            }
            Self::Call { call_id, name, arguments } => json!({
                "id": id, "type": "function_call", "status": "completed", "call_id": call_id, "name": name,
                "arguments": arguments,
            }),
            Self::CallOutput { call_id, output } => {
                let output = match output.as_slice() {
                    [Part::Text(text)] => json!(text),
                    parts => parts.iter().map(|part| written(part, Role::Tool)).collect(),
                };
                json!({
                    "id": id, "type": "function_call_output", "status": "completed", "call_id": call_id,
                    "output": output,
                })
            }
            Self::Reference { id } => json!({"type": "item_reference", "id": id}),
        }
    }
}

fn written(part: &Part, role: Role) -> Value {
    match part {
        Part::Text(text) if role == Role::Assistant => {
            json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
        }
        Part::Text(text) => json!({"type": "input_text", "text": text}),
        Part::Image { url, detail } => {
            json!({"type": "input_image", "image_url": url, "detail": detail.as_deref().unwrap_or("auto")})
        }
    }
}

fn unknown(path: &str, kind: &str) -> Error {
    let shown: String = kind.chars().take(64).collect();
    let message = format!(
        "'{path}': items of type '{shown}' are not supported by this server; supported are 'message', \
         'reasoning', 'function_call', 'function_call_output' and 'item_reference'"
    );
    Error::new(ErrorKind::Unsupported, message).at(path)
}

fn message(fields: &mut Object) -> Result<Item, Error> {
    let role = fields.required_string("role")?;
    let role = match role.as_str() {
        "user" => Role::User,
        "system" => Role::System,
        "developer" => Role::Developer,
        "assistant" => Role::Assistant,
        _ => {
            let path = fields.path("role");
            let shown: String = role.chars().take(64).collect();
            let message = format!(
                "Invalid value for '{path}': '{shown}'; supported are 'user', 'assistant', 'system' and 'developer'"
            );
            return Err(Error::invalid(path, message));
        }
    };
    let path = fields.path("content");
    let content = match fields.take("content") {
        Some(said) => content(&path, said, role)?,
        // A turn of no words.
        None if role == Role::Assistant => Vec::new(),
        None => return Err(fields::missing(&path)),
    };
    Ok(Item::Message { role, content })
}

/// Thoughts: their text where it stands there, else what was carried, else the summary. What another service has sealed
/// is left out, as a proof of its would be.
fn reasoning(fields: &mut Object) -> Result<Item, Error> {
    let mut read = |name: &'static str, kind: &str| -> Result<String, Error> {
        let path = fields.path(name);
        let parts = fields.array(name)?.unwrap_or_default();
        let mut text = String::new();
        for (index, part) in parts.into_iter().enumerate() {
            let mut part = Object::at(element(&path, index), part)?;
            if part.required_string("type")? != kind {
                let path = part.path("type");
                return Err(Error::invalid(&path, format!("Invalid value for '{path}': expected '{kind}'")));
            }
            text.push_str(&part.required_string("text")?);
            part.finish()?;
        }
        Ok(text)
    };
    let content = read("content", "reasoning_text")?;
    let summary = read("summary", "summary_text")?;
    let token = fields.string("encrypted_content")?;
    let (carried, thoughts) = token.and_then(|token| uncarried(&token)).unzip();
    let text = Some(content).filter(|text| !text.is_empty()).or(carried).unwrap_or(summary);
    Ok(Item::Reasoning { text, thoughts: thoughts.unwrap_or_default() })
}

/// A text, or parts.
fn content(path: &str, value: Value, role: Role) -> Result<Vec<Part>, Error> {
    let parts = match value {
        Value::String(text) => return Ok(vec![Part::Text(text)]),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(path, "a string or an array of parts", &other)),
    };
    parts
        .into_iter()
        .enumerate()
        .map(|(index, value)| part(Object::at(element(path, index), value)?, role))
        .collect()
}

fn part(mut fields: Object, role: Role) -> Result<Part, Error> {
    let kind = fields.required_string("type")?;
    let part = match kind.as_str() {
        "input_text" | "output_text" | "text" => {
            fields.harmless(&["annotations", "logprobs", "parsed", "prompt_cache_breakpoint"]);
            Part::Text(fields.required_string("text")?)
        }
        // An earlier refusal was said as text.
        "refusal" if role == Role::Assistant => Part::Text(fields.required_string("refusal")?),
        "input_image" if matches!(role, Role::User | Role::Tool) => image(&mut fields)?,
        "input_image" | "input_file" | "input_audio" | "computer_screenshot" => {
            let path = fields.path("type");
            let message = format!("'{path}': parts of type '{kind}' are not supported here");
            return Err(Error::new(ErrorKind::Unsupported, message).at(path));
        }
        _ => {
            let path = fields.path("type");
            let shown: String = kind.chars().take(64).collect();
            let own = if role == Role::Assistant { "output_text" } else { "input_text" };
            let message =
                format!("Invalid value for '{path}': '{shown}'; supported are '{own}' and 'input_image'");
            return Err(Error::invalid(path, message));
        }
    };
    fields.finish()?;
    Ok(part)
}

fn image(fields: &mut Object) -> Result<Part, Error> {
    if fields.has("file_id") {
        return Err(unsupported(&fields.path("file_id")));
    }
    fields.harmless(&["file_id", "prompt_cache_breakpoint"]);
    let path = fields.path("image_url");
    let url = fields.required_string("image_url")?;
    if !["data:", "https:", "http:"].iter().any(|scheme| url.starts_with(scheme)) {
        let message = format!("Invalid value for '{path}': expected a data: or https: URL");
        return Err(Error::invalid(path, message));
    }
    Ok(Part::Image { url, detail: fields.string("detail")?.filter(|detail| detail != "auto") })
}
