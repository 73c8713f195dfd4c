//! Finds the place in the request that makes a grammar fail to compile.
//!
//! The library's errors name no place. So parts are compiled alone, from the outside in, until the
//! smallest is found that fails by itself.

use super::schema::{self, Limits};
use super::{Rule, lark};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use protocol::Error;
use serde_json::{Value, json};

/// Parts that are tried, at most.
const MOST_TRIES: usize = 100;
/// Characters of the library's message that are passed on.
const LONGEST_MESSAGE: usize = 300;

type Try<'a> = &'a dyn Fn(TopLevelGrammar) -> Result<(), String>;

/// The error for a rule whose grammar was refused with `why`.
pub(super) fn fault(rule: &Rule, why: &str, attempt: Try<'_>) -> Error {
    let mut leaves = Vec::new();
    gather(rule, &mut leaves);
    for leaf in &leaves {
        let grammar = match lark::leaf(leaf) {
            Ok(grammar) => grammar,
            Err(error) => return error,
        };
        // A rule that is one part has been tried.
        let why = if std::ptr::eq(*leaf, rule) {
            why.to_owned()
        } else {
            match attempt(TopLevelGrammar::from_grammar(grammar)) {
                Ok(()) => continue,
                Err(why) => why,
            }
        };
        return match leaf {
            Rule::Json { schema, at, exact } => in_schema(schema, at, *exact, why, attempt),
            Rule::Regex { at, .. } => {
                Error::invalid(at.as_str(), format!("the regular expression: {}", of_expression(&why)))
            }
            Rule::Lark { at, .. } => Error::invalid(at.as_str(), format!("the grammar: {}", short(&why))),
            _ => continue,
        };
    }
    let error = Error::new(
        protocol::ErrorKind::InvalidRequest,
        format!("the request's tools and formats make too complex a grammar: {}", short(why)),
    );
    somewhere(rule, error)
}

/// The error, placed at the first part of the rule that came from the request.
pub(super) fn somewhere(rule: &Rule, error: Error) -> Error {
    let mut leaves = Vec::new();
    gather(rule, &mut leaves);
    match leaves.first() {
        Some(Rule::Json { at, .. } | Rule::Regex { at, .. } | Rule::Lark { at, .. }) => error.at(at.as_str()),
        _ => error,
    }
}

/// The parts of a rule that came from the request.
fn gather<'a>(rule: &'a Rule, leaves: &mut Vec<&'a Rule>) {
    match rule {
        Rule::Json { .. } | Rule::Regex { .. } | Rule::Lark { .. } => leaves.push(rule),
        Rule::Sequence(rules) | Rule::OneOf(rules) => rules.iter().for_each(|rule| gather(rule, leaves)),
        Rule::Repeat { rule, .. } => gather(rule, leaves),
        Rule::Literal(_) | Rule::Marker(_) | Rule::Text { .. } => {}
    }
}

fn in_schema(root: &Value, at: &str, exact: bool, mut why: String, attempt: Try<'_>) -> Error {
    let mut tries = 0;
    // Why a schema fails alone, if it does.
    let mut fails = |root: &Value, pointer: &str| {
        tries += 1;
        if tries > MOST_TRIES {
            return None;
        }
        let lowered = match schema::lower(root, pointer, exact, &Limits::default()) {
            Ok(lowered) => lowered,
            Err(fault) => return Some(fault.message),
        };
        attempt(TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(lowered))).err()
    };
    let mut pointer = String::new();
    'deeper: loop {
        for child in children(root, &pointer) {
            if let Some(reason) = fails(root, &child) {
                (pointer, why) = (child, reason);
                continue 'deeper;
            }
        }
        break;
    }
    let here = root.pointer(&pointer).and_then(Value::as_object);
    for (key, value) in here.into_iter().flatten() {
        let kind = match key.as_str() {
            "pattern" | "format" | "minLength" | "maxLength" => "string",
            "multipleOf" | "minimum" | "maximum" => "number",
            "enum" | "const" => "",
            _ => continue,
        };
        let alone = if kind.is_empty() { json!({ key: value }) } else { json!({ "type": kind, key: value }) };
        if let Some(reason) = fails(&alone, "") {
            why = reason;
            pointer = format!("{pointer}/{key}");
            break;
        }
    }
    schema::Fault { pointer, message: short(&why) }.at(at)
}

/// Pointers to the schemas in a schema, those first that it cannot do without.
fn children(root: &Value, at: &str) -> Vec<String> {
    let Some(fields) = root.pointer(at).and_then(Value::as_object) else { return Vec::new() };
    let required = |name: &str| {
        let names = fields.get("required").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|other| other == name))
    };
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for (key, value) in fields {
        let here = format!("{at}/{}", schema::escaped(key));
        match (key.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(members)) => {
                for (name, member) in members {
                    let child = format!("{here}/{}", schema::escaped(name));
                    match (key == "properties" && required(name), member) {
                        (true, _) => first.push(child),
                        // Nobody asks for what cannot be.
                        (false, Value::Bool(false)) => {}
                        (false, _) => later.push(child),
                    }
                }
            }
            ("allOf", Value::Array(all)) => first.extend((0..all.len()).map(|i| format!("{here}/{i}"))),
            ("anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(all)) => {
                later.extend((0..all.len()).map(|i| format!("{here}/{i}")));
            }
            ("items" | "additionalProperties" | "additionalItems", Value::Object(_)) => later.push(here),
            ("$ref", Value::String(reference)) => {
                // Deeper only; a circle of references would have no end.
                if let Some(target) = reference.strip_prefix('#').filter(|target| target.len() > at.len()) {
                    first.push(target.to_owned());
                }
            }
            _ => {}
        }
    }
    first.append(&mut later);
    first
}

/// The library's message without its verbose parts, and in words that a caller knows.
fn short(why: &str) -> String {
    let line = why.split("\n<").next().unwrap_or_default().replace("<non-verbose/>", "");
    let line = line.trim();
    for (theirs, ours) in IN_PLAIN_WORDS {
        if line.contains(theirs) {
            return (*ours).to_owned();
        }
    }
    let line = if line.is_empty() { "it cannot be compiled" } else { line };
    line.chars().take(LONGEST_MESSAGE).collect()
}

/// What is wrong with a regular expression: the cause alone, without the place in the grammar that we put around it.
fn of_expression(why: &str) -> String {
    let cause = match why.strip_prefix("at ").and_then(|rest| rest.split_once("): ")) {
        Some((_, cause)) => cause,
        None => why,
    };
    // Behind the cause the grammar's lines are quoted, with a mark below the place; the parser of expressions quotes
    // the expression with marks of its own, and says the cause last.
    let cause = cause.split("\n   1 | ").next().and_then(|own| own.split("\n<").next()).unwrap_or_default();
    let line = cause.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    short(line.strip_prefix("error: ").unwrap_or(line))
}

/// Parts of the library's messages that speak of its insides, and what is said instead.
const IN_PLAIN_WORDS: &[(&str, &str)] = &[
    ("NoExtensionBias", "it matches no text that this model can write"),
    ("Regex is empty", "no text fits it: the pattern, the format and the lengths exclude each other"),
    ("Unable to determine if regex is empty", "the pattern and the lengths are too complex together"),
    ("initial lexer configuration", "it is too large"),
    ("grammar size (number of symbols)", "it is too large"),
];
