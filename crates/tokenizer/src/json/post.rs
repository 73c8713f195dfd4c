//! Post-processors of `tokenizer.json`: which ids go before and after a prompt.

use serde_json::Value;

use super::component::{check_depth, kind, list};
use super::{Tokens, unsupported};
use crate::Error;

const PART: &str = "post_processor";

/// Ids before and after.
type Around = (Vec<u32>, Vec<u32>);

pub(super) fn read(component: Option<&Value>, tokens: &Tokens) -> Result<Around, Error> {
    let mut around = Around::default();
    if let Some(component) = component.filter(|component| !component.is_null()) {
        add(component, tokens, &mut around, 0)?;
    }
    Ok(around)
}

fn add(component: &Value, tokens: &Tokens, around: &mut Around, depth: usize) -> Result<(), Error> {
    check_depth(PART, depth)?;
    match kind(component) {
        "Sequence" => {
            for inner in list(PART, component, "processors")? {
                add(inner, tokens, around, depth + 1)?;
            }
            Ok(())
        }
        // It only moves offsets.
        "ByteLevel" => Ok(()),
        "TemplateProcessing" => template(component, tokens, around),
        "BertProcessing" | "RobertaProcessing" => {
            around.0.insert(0, pair(component, "cls", tokens)?);
            around.1.push(pair(component, "sep", tokens)?);
            Ok(())
        }
        other => Err(unsupported(PART, other)),
    }
}

/// `["[CLS]", 101]`.
fn pair(component: &Value, name: &str, tokens: &Tokens) -> Result<u32, Error> {
    let id = component.get(name).and_then(|pair| pair.get(1)).unwrap_or(&Value::Null);
    check(id, name, tokens)
}

fn check(id: &Value, what: &str, tokens: &Tokens) -> Result<u32, Error> {
    let id = id
        .as_u64()
        .and_then(|id| u32::try_from(id).ok())
        .ok_or_else(|| Error::Missing { what: format!("id of {what} in its post_processor") })?;
    let size = tokens.kinds.len();
    if id as usize >= size {
        return Err(Error::IdOutOfRange { what: format!("{what} in the post_processor"), id, size });
    }
    Ok(id)
}

/// The template of a single text: special tokens around one sequence.
fn template(component: &Value, tokens: &Tokens, around: &mut Around) -> Result<(), Error> {
    let (mut before, mut after, mut seen) = (Vec::new(), Vec::new(), false);
    for part in list(PART, component, "single")? {
        if part.get("Sequence").is_some() {
            if std::mem::replace(&mut seen, true) {
                return Err(unsupported(PART, "TemplateProcessing that repeats the text"));
            }
            continue;
        }
        let name = part
            .get("SpecialToken")
            .and_then(|token| token.get("id"))
            .and_then(Value::as_str)
            .ok_or_else(|| unsupported(PART, "TemplateProcessing with a part of unknown kind"))?;
        let ids = component
            .get("special_tokens")
            .and_then(|all| all.get(name))
            .and_then(|token| token.get("ids"))
            .and_then(Value::as_array)
            .ok_or_else(|| Error::Missing { what: format!("special token {name} of its template") })?;
        for id in ids {
            let side = if seen { &mut after } else { &mut before };
            side.push(check(id, name, tokens)?);
        }
    }
    around.0.splice(0..0, before);
    around.1.extend(after);
    Ok(())
}
