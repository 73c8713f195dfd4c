//! Post-processors of `tokenizer.json`: which ids go before and after a prompt, and around and between two texts.
//!
//! A form of pairs that is not built (texts swapped or repeated, two templates one after the other) counts as none:
//! most tokenizers are never asked for pairs, and those that are say that they have none.

use serde_json::Value;

use super::component::{check_depth, kind, list};
use super::{Tokens, unsupported};
use crate::Error;
use crate::pair::{PairForm, TypedIds};

const PART: &str = "post_processor";

/// What a post-processor puts around texts.
#[derive(Default)]
pub(super) struct Around {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
    pub(super) pair: Option<PairForm>,
    /// How many components said how a pair is made.
    forms: usize,
}

pub(super) fn read(component: Option<&Value>, tokens: &Tokens) -> Result<Around, Error> {
    let mut around = Around::default();
    if let Some(component) = component.filter(|component| !component.is_null()) {
        add(component, tokens, &mut around, 0)?;
    }
    around.pair = around.pair.filter(|_| around.forms == 1);
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
        kind @ ("BertProcessing" | "RobertaProcessing") => {
            let (cls, sep) = (named(component, "cls", tokens)?, named(component, "sep", tokens)?);
            around.before.insert(0, cls);
            around.after.push(sep);
            around.forms += 1;
            // RoBERTa parts the texts twice and gives all tokens one type.
            let second_type = u32::from(kind == "BertProcessing");
            let between = if kind == "BertProcessing" { vec![sep] } else { vec![sep, sep] };
            around.pair = Some(PairForm {
                before: TypedIds::of(vec![cls], 0),
                first_type: 0,
                between: TypedIds::of(between, 0),
                second_type,
                after: TypedIds::of(vec![sep], second_type),
            });
            Ok(())
        }
        other => Err(unsupported(PART, other)),
    }
}

/// `["[CLS]", 101]`.
fn named(component: &Value, name: &str, tokens: &Tokens) -> Result<u32, Error> {
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

/// The templates of a single text and of two: special tokens around sequences.
fn template(component: &Value, tokens: &Tokens, around: &mut Around) -> Result<(), Error> {
    let (mut before, mut after, mut seen) = (Vec::new(), Vec::new(), false);
    for part in list(PART, component, "single")? {
        if part.get("Sequence").is_some() {
            if std::mem::replace(&mut seen, true) {
                return Err(unsupported(PART, "TemplateProcessing that repeats the text"));
            }
            continue;
        }
        let side = if seen { &mut after } else { &mut before };
        side.extend(special(component, part, tokens)?);
    }
    around.before.splice(0..0, before);
    around.after.extend(after);
    around.forms += 1;
    around.pair = pair_template(component, tokens)?;
    Ok(())
}

fn pair_template(component: &Value, tokens: &Tokens) -> Result<Option<PairForm>, Error> {
    let Some(parts) = component.get("pair").and_then(Value::as_array) else { return Ok(None) };
    let mut form = PairForm::default();
    let mut seen = 0;
    for part in parts {
        let body = part.get("Sequence").or_else(|| part.get("SpecialToken"));
        let kind = body.and_then(|body| body.get("type_id")).map_or(Some(0), Value::as_u64);
        let Some(kind) = kind.and_then(|kind| u32::try_from(kind).ok()) else { return Ok(None) };
        if let Some(sequence) = part.get("Sequence") {
            match (seen, sequence.get("id").and_then(Value::as_str)) {
                (0, Some("A")) => form.first_type = kind,
                (1, Some("B")) => form.second_type = kind,
                _ => return Ok(None),
            }
            seen += 1;
            continue;
        }
        let side = [&mut form.before, &mut form.between, &mut form.after];
        let Some(side) = side.into_iter().nth(seen) else { return Ok(None) };
        side.extend(&TypedIds::of(special(component, part, tokens)?, kind));
    }
    Ok((seen == 2).then_some(form))
}

/// The ids of a template's special token.
fn special(component: &Value, part: &Value, tokens: &Tokens) -> Result<Vec<u32>, Error> {
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
    ids.iter().map(|id| check(id, name, tokens)).collect()
}
