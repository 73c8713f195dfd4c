//! What an answer's text must look like: OpenAI's `response_format`, with two types more, and the names that vLLM
//! has for the same things.
//!
//! At most one of them may be given: which would hold is not for us to guess.

use crate::fields::{Object, missing, unsupported, wrong_type};
use crate::{Error, Places, ResponseFormat};
use serde_json::Value;

/// Where formats stand in a canonical request.
const SCHEMA: &str = "response_format.json_schema.schema";
const REGEX: &str = "response_format.regex";
const GRAMMAR: &str = "response_format.grammar";

/// The wanted format, and where it was written.
pub(crate) fn response_format(fields: &mut Object, places: &mut Places) -> Result<ResponseFormat, Error> {
    let mut found: Option<(String, ResponseFormat)> = None;
    let mut add = |path: String, format: ResponseFormat| match &found {
        Some((first, _)) => {
            Err(Error::invalid(&path, format!("'{path}' and '{first}' both say what the answer must be")))
        }
        None => {
            found = Some((path, format));
            Ok(())
        }
    };
    let path = fields.path("response_format");
    if let Some(format) = fields.object("response_format")? {
        let format = one_format(format, places)?;
        if format != ResponseFormat::Text {
            add(path, format)?;
        }
    }
    for (name, kind) in
        [("guided_json", Kind::Json), ("guided_regex", Kind::Regex), ("guided_grammar", Kind::Lark)]
    {
        let path = fields.path(name);
        if let Some(value) = fields.take(name) {
            let format = kind.read(&path, value)?;
            kind.stands_at(name, places);
            add(path, format)?;
        }
    }
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        for (name, kind) in [("json", Kind::Json), ("regex", Kind::Regex), ("grammar", Kind::Lark)] {
            let path = outputs.path(name);
            if let Some(value) = outputs.take(name) {
                let format = kind.read(&path, value)?;
                kind.stands_at(&format!("structured_outputs.{name}"), places);
                add(path, format)?;
            }
        }
        outputs.refuse(&["choice", "json_object", "structural_tag"])?;
        outputs.finish()?;
    }
    fields.refuse(&["guided_choice", "guided_decoding_backend", "guided_json_object", "structural_tag"])?;
    Ok(found.map_or(ResponseFormat::Text, |(_, format)| format))
}

/// What one of vLLM's fields holds.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Regex,
    Lark,
}

impl Kind {
    fn read(self, path: &str, value: Value) -> Result<ResponseFormat, Error> {
        match (self, value) {
            (Self::Json, schema @ Value::Object(_)) => {
                Ok(ResponseFormat::JsonSchema { name: None, schema, strict: Some(true) })
            }
            // A schema as text.
            (Self::Json, Value::String(text)) => match serde_json::from_str(&text) {
                Ok(schema @ Value::Object(_)) => {
                    Ok(ResponseFormat::JsonSchema { name: None, schema, strict: Some(true) })
                }
                _ => Err(Error::invalid(path, format!("Invalid value for '{path}': not a JSON schema"))),
            },
            (Self::Json, other) => Err(wrong_type(path, "an object", &other)),
            (Self::Regex, Value::String(pattern)) => not_empty(path, pattern).map(ResponseFormat::Regex),
            (Self::Lark, Value::String(grammar)) => not_empty(path, grammar).map(ResponseFormat::Lark),
            (Self::Regex | Self::Lark, other) => Err(wrong_type(path, "a string", &other)),
        }
    }

    fn stands_at(self, path: &str, places: &mut Places) {
        let canonical = match self {
            Self::Json => SCHEMA,
            Self::Regex => REGEX,
            Self::Lark => GRAMMAR,
        };
        places.moved(canonical, path);
        places.moved("response_format", path);
    }
}

/// `response_format` itself.
fn one_format(mut format: Object, places: &mut Places) -> Result<ResponseFormat, Error> {
    let kind = format.required_string("type")?;
    let path = format.path("type");
    let result = match kind.as_str() {
        "text" => ResponseFormat::Text,
        "json_object" => ResponseFormat::JsonObject,
        "json_schema" => {
            let path = format.path("json_schema");
            let schema = format.take("json_schema").ok_or_else(|| missing(&path))?;
            json_schema(path, schema, places)?
        }
        "regex" => {
            let path = format.path("regex");
            ResponseFormat::Regex(not_empty(&path, format.required_string("regex")?)?)
        }
        "lark" | "grammar" => {
            let path = format.path("grammar");
            ResponseFormat::Lark(not_empty(&path, format.required_string("grammar")?)?)
        }
        "structural_tag" => return Err(unsupported(&path)),
        _ => {
            return Err(Error::invalid(
                &path,
                format!(
                    "Invalid value for '{path}': supported are 'text', 'json_object', 'json_schema', 'regex' and \
                     'lark'"
                ),
            ));
        }
    };
    format.finish()?;
    Ok(result)
}

fn not_empty(path: &str, text: String) -> Result<String, Error> {
    if text.is_empty() {
        return Err(Error::invalid(path, format!("Invalid value for '{path}': the text is empty")));
    }
    Ok(text)
}

/// A schema comes in OpenAI's envelope `{name,schema,strict}` or bare, as the native Workers AI routes take it.
fn json_schema(path: String, value: Value, places: &mut Places) -> Result<ResponseFormat, Error> {
    // A bare schema describes a value ("type", "properties", ...), the envelope holds it under "schema".
    let enveloped = value.get("schema").is_some_and(Value::is_object);
    if !enveloped {
        if !value.is_object() {
            return Err(wrong_type(&path, "an object", &value));
        }
        let named = value.get("name").is_some_and(Value::is_string) && value.get("type").is_none();
        if named {
            return Err(missing(&format!("{path}.schema")));
        }
        places.moved(SCHEMA, "response_format.json_schema");
        return Ok(ResponseFormat::JsonSchema { name: None, schema: value, strict: None });
    }
    let mut envelope = Object::at(path, value)?;
    let schema = envelope.take("schema").expect("checked above");
    let name = envelope.string("name")?;
    let strict = envelope.boolean("strict")?;
    envelope.string("description")?;
    envelope.finish()?;
    Ok(ResponseFormat::JsonSchema { name, schema, strict })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<(ResponseFormat, Places), Error> {
        let mut fields = Object::root(body)?;
        let mut places = Places::default();
        let format = response_format(&mut fields, &mut places)?;
        fields.finish()?;
        Ok((format, places))
    }

    #[test]
    fn every_spelling_is_the_same_format_and_its_faults_are_named_there() {
        let schema = json!({"type": "object", "properties": {"x": {}}});
        let json = ResponseFormat::JsonSchema { name: None, schema: schema.clone(), strict: Some(true) };
        let bare = ResponseFormat::JsonSchema { name: None, schema: schema.clone(), strict: None };
        let regex = ResponseFormat::Regex("a+".to_owned());
        let lark = ResponseFormat::Lark("start: \"a\"".to_owned());
        let fault = format!("{SCHEMA}/properties/x");
        for (body, format, canonical, written) in [
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema, "strict": true}}}),
                &json,
                fault.as_str(),
                fault.as_str(),
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": schema}}),
                &bare,
                &fault,
                "response_format.json_schema/properties/x",
            ),
            (json!({"guided_json": schema}), &json, &fault, "guided_json/properties/x"),
            (json!({"guided_json": schema.to_string()}), &json, &fault, "guided_json/properties/x"),
            (
                json!({"structured_outputs": {"json": schema}}),
                &json,
                &fault,
                "structured_outputs.json/properties/x",
            ),
            (json!({"response_format": {"type": "regex", "regex": "a+"}}), &regex, REGEX, REGEX),
            (json!({"guided_regex": "a+"}), &regex, REGEX, "guided_regex"),
            (json!({"structured_outputs": {"regex": "a+"}}), &regex, REGEX, "structured_outputs.regex"),
            (
                json!({"response_format": {"type": "lark", "grammar": "start: \"a\""}}),
                &lark,
                GRAMMAR,
                GRAMMAR,
            ),
            (
                json!({"response_format": {"type": "grammar", "grammar": "start: \"a\""}}),
                &lark,
                GRAMMAR,
                GRAMMAR,
            ),
            (
                json!({"guided_grammar": "start: \"a\"", "response_format": {"type": "text"}}),
                &lark,
                "response_format",
                "guided_grammar",
            ),
        ] {
            let (read, places) = read(body.clone()).unwrap_or_else(|error| panic!("{body}: {error}"));
            assert_eq!(&read, format, "{body}");
            assert_eq!(places.written(canonical), written, "{body}");
        }
    }

    #[test]
    fn two_formats_or_a_wrong_one_are_refused_by_name() {
        for (body, param) in [
            (json!({"response_format": {"type": "json_object"}, "guided_json": {}}), "guided_json"),
            (json!({"guided_json": {}, "guided_regex": "a"}), "guided_regex"),
            (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs.regex"),
            (json!({"structured_outputs": {"json": {}, "colour": "a"}}), "structured_outputs.colour"),
            (json!({"structured_outputs": {"choice": ["a"]}}), "structured_outputs.choice"),
            (json!({"guided_choice": ["a"]}), "guided_choice"),
            (json!({"guided_json": "no schema"}), "guided_json"),
            (json!({"guided_json": 3}), "guided_json"),
            (json!({"guided_regex": ""}), "guided_regex"),
            (json!({"response_format": {"type": "regex"}}), "response_format.regex"),
            (json!({"response_format": {"type": "regex", "regex": ""}}), "response_format.regex"),
            (
                json!({"response_format": {"type": "regex", "regex": "a", "pattern": "b"}}),
                "response_format.pattern",
            ),
            (json!({"response_format": {"type": "lark", "grammar": {}}}), "response_format.grammar"),
            (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        ] {
            let error = read(body.clone()).expect_err(&body.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
