//! Takes a JSON object apart field by field, with errors that name each field as the caller wrote it.
//!
//! A field that is `null` counts as absent. A field that nobody took is an error of [`Object::finish`]: what a
//! caller asked for is never ignored in silence.

use crate::{CacheFor, Error, ErrorKind};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// An object on its way to a typed form.
pub(crate) struct Object {
    path: String,
    fields: Map<String, Value>,
    /// Names that were asked for, to suggest from.
    known: Vec<&'static str>,
}

/// The path of element `index` of `array`.
pub(crate) fn element(array: &str, index: usize) -> String {
    format!("{array}[{index}]")
}

/// A field holds a value of the wrong type.
pub(crate) fn wrong_type(path: &str, expected: &str, got: &Value) -> Error {
    let got = match got {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a decimal number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Error::invalid(path, format!("Invalid type for '{path}': expected {expected}, but got {got}"))
}

/// A field is missing.
pub(crate) fn missing(path: &str) -> Error {
    Error::invalid(path, format!("Missing required parameter: '{path}'"))
}

/// A field asks for something that is not built.
pub(crate) fn unsupported(path: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("'{path}' is not supported by this server")).at(path)
}

/// A value as a string.
pub(crate) fn string(path: &str, value: Value) -> Result<String, Error> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong_type(path, "a string", &other)),
    }
}

/// A value as an array.
pub(crate) fn array(path: &str, value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(wrong_type(path, "an array", &other)),
    }
}

/// A value as a finite number inside a range.
pub(crate) fn number(path: &str, value: &Value, range: &RangeInclusive<f64>) -> Result<f64, Error> {
    let Some(number) = value.as_f64() else { return Err(wrong_type(path, "a number", value)) };
    if range.contains(&number) {
        return Ok(number);
    }
    let (low, high) = (range.start(), range.end());
    Err(Error::invalid(path, format!("Invalid value for '{path}': {value} is outside {low} to {high}")))
}

/// A value as an integer inside a range; `16.0` counts as 16.
pub(crate) fn integer(path: &str, value: &Value, range: &RangeInclusive<i64>) -> Result<i64, Error> {
    let whole = match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            (float.fract() == 0.0).then_some(if float.abs() < 9e15 {
                float as i64
            } else if float > 0.0 {
                i64::MAX
            } else {
                i64::MIN
            })
        }),
        _ => None,
    };
    let Some(whole) = whole else { return Err(wrong_type(path, "an integer", value)) };
    if range.contains(&whole) {
        return Ok(whole);
    }
    let (low, high) = (range.start(), range.end());
    Err(Error::invalid(path, format!("Invalid value for '{path}': {value} is outside {low} to {high}")))
}

/// A token id.
pub(crate) fn token(path: &str, value: &Value) -> Result<u32, Error> {
    Ok(integer(path, value, &(0..=i64::from(u32::MAX)))? as u32)
}

impl Object {
    /// A whole body.
    pub(crate) fn root(value: Value) -> Result<Self, Error> {
        match value {
            Value::Object(fields) => Ok(Self { path: String::new(), fields, known: Vec::new() }),
            _ => Err(Error::new(ErrorKind::Malformed, "The body must be a JSON object")),
        }
    }

    /// The object at `path`.
    pub(crate) fn at(path: String, value: Value) -> Result<Self, Error> {
        match value {
            Value::Object(fields) => Ok(Self { path, fields, known: Vec::new() }),
            other => Err(wrong_type(&path, "an object", &other)),
        }
    }

    /// The path of one of its fields.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether a field is there and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|value| !value.is_null())
    }

    pub(crate) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.fields.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, Error> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.path(name), "a boolean", &other)),
        }
    }

    pub(crate) fn string(&mut self, name: &'static str) -> Result<Option<String>, Error> {
        self.take(name).map(|value| string(&self.path(name), value)).transpose()
    }

    pub(crate) fn required_string(&mut self, name: &'static str) -> Result<String, Error> {
        self.string(name)?.ok_or_else(|| missing(&self.path(name)))
    }

    /// The same for what has a name: empty text names nothing.
    pub(crate) fn required_name(&mut self, name: &'static str) -> Result<String, Error> {
        let value = self.required_string(name)?;
        if value.is_empty() {
            let path = self.path(name);
            return Err(Error::invalid(&path, format!("Invalid value for '{path}': the name is empty")));
        }
        Ok(value)
    }

    pub(crate) fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, Error> {
        self.take(name).map(|value| number(&self.path(name), &value, &range)).transpose()
    }

    pub(crate) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Error> {
        self.take(name).map(|value| integer(&self.path(name), &value, &range)).transpose()
    }

    pub(crate) fn array(&mut self, name: &'static str) -> Result<Option<Vec<Value>>, Error> {
        self.take(name).map(|value| array(&self.path(name), value)).transpose()
    }

    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Object>, Error> {
        self.take(name).map(|value| Object::at(self.path(name), value)).transpose()
    }

    /// What has not been taken yet.
    pub(crate) fn into_rest(self) -> Map<String, Value> {
        self.fields
    }

    /// `cache_control`, as Anthropic has it and routers take it in OpenAI's dialect: a hint, so what it cannot be is
    /// passed over.
    pub(crate) fn cache_control(&mut self) -> Option<CacheFor> {
        let control = self.take("cache_control")?;
        if control.get("type").and_then(Value::as_str) != Some("ephemeral") {
            return None;
        }
        let hour = control.get("ttl").and_then(Value::as_str) == Some("1h");
        Some(if hour { CacheFor::Hour } else { CacheFor::Minutes })
    }

    /// Accepts fields that do not change the answer.
    pub(crate) fn harmless(&mut self, names: &[&'static str]) {
        for name in names {
            self.take(name);
        }
    }

    /// Refuses fields that would change the answer and are not built.
    pub(crate) fn refuse(&mut self, names: &[&'static str]) -> Result<(), Error> {
        match names.iter().find(|name| self.take(name).is_some()) {
            None => Ok(()),
            Some(name) => Err(unsupported(&self.path(name))),
        }
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let Some(name) = self.fields.keys().next() else { return Ok(()) };
        // A name from the caller goes into the message: keep it short.
        let shown: String = name.chars().take(64).collect();
        let path = self.path(&shown);
        let mut message = format!("Unrecognized request argument supplied: {path}");
        if let Some(near) = nearest(&shown, &self.known) {
            message.push_str(&format!("; did you mean '{}'?", self.path(near)));
        }
        Err(Error::invalid(path, message))
    }
}

/// The candidate that most likely was meant, if any is near.
fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let limit = (name.len() / 3).max(1);
    candidates
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .min()
        .filter(|(distance, _)| *distance <= limit)
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace) that turn one text into the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_nobody_took_is_named_with_the_nearest_known_one() {
        let mut object = Object::root(json!({"max_token": 5})).unwrap();
        object.integer("max_tokens", 1..=10).unwrap();
        let error = object.finish().unwrap_err();
        assert_eq!(error.param.as_deref(), Some("max_token"));
        assert_eq!(
            error.message,
            "Unrecognized request argument supplied: max_token; did you mean 'max_tokens'?"
        );
    }

    #[test]
    fn integers_are_whole_and_inside_their_range() {
        let check = |value: Value| integer("n", &value, &(1..=128)).map_err(|error| error.message);
        assert_eq!(check(json!(16.0)), Ok(16));
        assert!(check(json!(16.5)).unwrap_err().contains("expected an integer, but got a decimal number"));
        assert!(check(json!(1e300)).unwrap_err().contains("outside 1 to 128"));
        assert!(check(json!(u64::MAX)).unwrap_err().contains("outside 1 to 128"));
        assert!(check(json!("16")).unwrap_err().contains("but got a string"));
    }
}
