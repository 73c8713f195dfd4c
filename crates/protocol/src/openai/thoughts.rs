//! Thoughts that their service wants back: `reasoning_details`, as OpenRouter has them and its clients echo them.

use crate::Thought;
use crate::fields::Object;
use serde_json::{Value, json};

/// One as it goes out.
pub(crate) fn written(thought: &Thought) -> Value {
    match thought {
        Thought::Signed { text, signature } => {
            json!({"type": "reasoning.text", "text": text, "signature": signature})
        }
        Thought::Redacted(data) => json!({"type": "reasoning.encrypted", "data": data}),
    }
}

/// Those of a message. What is none of both kinds, or has no proof, is passed over: it is a copy of what stands in
/// `reasoning`.
pub(crate) fn read(fields: &mut Object) -> Option<Vec<Thought>> {
    fields.take("reasoning_details").as_ref().map(of)
}

/// Those of a list.
pub(crate) fn of(details: &Value) -> Vec<Thought> {
    let text = |value: &Value, name: &str| {
        value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let details = details.as_array().map(Vec::as_slice).unwrap_or_default();
    details
        .iter()
        .filter_map(|detail| match detail.get("type").and_then(Value::as_str)? {
            "reasoning.text" => Some(Thought::Signed {
                text: text(detail, "text").unwrap_or_default(),
                signature: text(detail, "signature")?,
            }),
            "reasoning.encrypted" => Some(Thought::Redacted(text(detail, "data")?)),
            _ => None,
        })
        .collect()
}
