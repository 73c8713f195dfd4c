//! Which members the elements of a route have. One that is mistyped would be passed over, and what it should set would be
//! left out in silence. Looked at when a version is written; what is kept was taken once, and stays.

use protocol::Error;
use serde_json::{Map, Value};

/// Of every element.
const MEMBERS: &[&str] = &["id", "type", "outputs", "properties"];

/// The properties of each kind, in both spellings.
const PROPERTIES: &[(&str, &[&str])] = &[
    ("conditional", &["conditions", "condition"]),
    ("model", &["provider", "model", "timeout", "retries", "hedge"]),
    ("rate", RATE),
    ("rate_limit", RATE),
];
const RATE: &[&str] = &["key", "limit", "limitType", "limit_type", "window", "interval", "technique"];

/// Refuses members that are none; what else is wrong with elements is not looked at.
pub(super) fn check(elements: &Value) -> Result<(), Error> {
    for (index, element) in elements.as_array().into_iter().flatten().enumerate() {
        let Some(element) = element.as_object() else { continue };
        let at = format!("elements[{index}]");
        only(element, MEMBERS, &at)?;
        let kind = element.get("type").and_then(Value::as_str).unwrap_or_default();
        let known = PROPERTIES.iter().find(|(name, _)| *name == kind).map_or(&[][..], |(_, known)| known);
        if let Some(properties) = element.get("properties").and_then(Value::as_object) {
            only(properties, known, &format!("{at}.properties"))?;
        }
    }
    Ok(())
}

fn only(object: &Map<String, Value>, known: &[&str], at: &str) -> Result<(), Error> {
    let Some(unknown) = object.keys().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let shown: String = unknown.chars().take(64).collect();
    let place = format!("{at}.{shown}");
    let there = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(Error::invalid(&place, format!("There is no member '{place}'; there are: {there}")))
}
