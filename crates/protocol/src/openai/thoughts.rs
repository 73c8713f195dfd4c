//! Thoughts that their service wants back: `reasoning_details`, as OpenRouter has them and its clients echo them.

use crate::fields::Object;
use crate::{Maker, Thought};
use serde_json::{Value, json};

/// One as it goes out.
pub(crate) fn written(thought: &Thought) -> Value {
    match thought {
        Thought::Signed { text, signature, maker } => {
            json!({"type": "reasoning.text", "text": text, "signature": signature, "format": maker.name()})
        }
        Thought::Redacted { data, maker } => {
            json!({"type": "reasoning.encrypted", "data": data, "format": maker.name()})
        }
    }
}

/// Those of a message. What is none of both kinds, or has no proof, is passed over: it is a copy of what stands in
/// `reasoning`.
pub(crate) fn read(fields: &mut Object) -> Option<Vec<Thought>> {
    fields.take("reasoning_details").as_ref().map(of)
}

/// Those of a list. Where a form is not named it is Anthropic's, as OpenRouter's clients have it.
pub(crate) fn of(details: &Value) -> Vec<Thought> {
    let text = |value: &Value, name: &str| {
        value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let details = details.as_array().map(Vec::as_slice).unwrap_or_default();
    let maker = |detail: &Value| text(detail, "format").map_or(Maker::Anthropic, |name| Maker::named(&name));
    details
        .iter()
        .filter_map(|detail| match detail.get("type").and_then(Value::as_str)? {
            "reasoning.text" => Some(Thought::Signed {
                text: text(detail, "text").unwrap_or_default(),
                signature: text(detail, "signature")?,
                maker: maker(detail),
            }),
            "reasoning.encrypted" => {
                Some(Thought::Redacted { data: text(detail, "data")?, maker: maker(detail) })
            }
            _ => None,
        })
        .collect()
}
