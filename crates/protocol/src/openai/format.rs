//! What an answer's text must look like: OpenAI's `response_format`, with two types more, and the names that vLLM
//! has for the same things.
//!
//! At most one of them may be given: which would hold is not for us to guess.

use crate::fields::{Object, element, missing, string, unsupported, wrong_type};
use crate::{Error, Places, ResponseFormat};
use serde_json::Value;

/// Where formats stand in a canonical request.
const SCHEMA: &str = "response_format.json_schema.schema";
const REGEX: &str = "response_format.regex";
const GRAMMAR: &str = "response_format.grammar";

/// Most texts of a choice.
const MAX_CHOICES: usize = 1024;

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
    for (name, kind) in [
        ("guided_json", Kind::Json),
        ("guided_regex", Kind::Regex),
        ("guided_grammar", Kind::Lark),
        ("guided_choice", Kind::Choice),
    ] {
        let path = fields.path(name);
        if let Some(value) = fields.take(name) {
            let format = kind.read(&path, value)?;
            kind.stands_at(name, places);
            add(path, format)?;
        }
    }
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        for (name, kind) in
            [("json", Kind::Json), ("regex", Kind::Regex), ("grammar", Kind::Lark), ("choice", Kind::Choice)]
        {
            let path = outputs.path(name);
            if let Some(value) = outputs.take(name) {
                let format = kind.read(&path, value)?;
                kind.stands_at(&format!("structured_outputs.{name}"), places);
                add(path, format)?;
            }
        }
        outputs.refuse(&["json_object", "structural_tag"])?;
        outputs.finish()?;
    }
    fields.refuse(&["guided_decoding_backend", "guided_json_object", "structural_tag"])?;
    Ok(found.map_or(ResponseFormat::Text, |(_, format)| format))
}

/// What one of vLLM's fields holds.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Regex,
    Lark,
    /// One of these texts.
    Choice,
}

impl Kind {
    fn read(self, path: &str, value: Value) -> Result<ResponseFormat, Error> {
        match (self, value) {
            (Self::Json, schema) if is_schema(&schema) => {
                Ok(ResponseFormat::JsonSchema { name: None, schema, strict: Some(true) })
            }
            // A schema as text.
            (Self::Json, Value::String(text)) => match serde_json::from_str(&text) {
                Ok(schema) if is_schema(&schema) => {
                    Ok(ResponseFormat::JsonSchema { name: None, schema, strict: Some(true) })
                }
                _ => Err(Error::invalid(path, format!("Invalid value for '{path}': not a JSON schema"))),
            },
            (Self::Json, other) => Err(wrong_type(path, "an object", &other)),
            (Self::Regex, Value::String(pattern)) => not_empty(path, pattern).map(ResponseFormat::Regex),
            (Self::Lark, Value::String(grammar)) => not_empty(path, grammar).map(ResponseFormat::Lark),
            (Self::Choice, Value::Array(texts)) => choice(path, texts).map(ResponseFormat::Regex),
            (Self::Choice, other) => Err(wrong_type(path, "an array of strings", &other)),
            (Self::Regex | Self::Lark, other) => Err(wrong_type(path, "a string", &other)),
        }
    }

    fn stands_at(self, path: &str, places: &mut Places) {
        let canonical = match self {
            Self::Json => SCHEMA,
            Self::Regex | Self::Choice => REGEX,
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
        // llama.cpp's way to give a schema.
        "json_object" => match format.take("schema") {
            None => ResponseFormat::JsonObject,
            Some(schema) if is_schema(&schema) => {
                places.moved(SCHEMA, "response_format.schema");
                ResponseFormat::JsonSchema { name: None, schema, strict: None }
            }
            Some(other) => return Err(wrong_type(&format.path("schema"), "an object", &other)),
        },
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

/// Whether a value can be a JSON schema: an object, `true` (anything) or `false` (nothing).
pub(crate) fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// A regular expression of exactly these texts.
fn choice(path: &str, texts: Vec<Value>) -> Result<String, Error> {
    if texts.is_empty() || texts.len() > MAX_CHOICES {
        let message = format!("Invalid value for '{path}': expected 1 to {MAX_CHOICES} texts");
        return Err(Error::invalid(path, message));
    }
    let mut pattern = String::new();
    for (index, text) in texts.into_iter().enumerate() {
        let path = element(path, index);
        let text = not_empty(&path, string(&path, text)?)?;
        pattern.push(if index == 0 { '(' } else { '|' });
        for character in text.chars() {
            if r"\.+*?()|[]{}^$#&-~".contains(character) {
                pattern.push('\\');
            }
            pattern.push(character);
        }
    }
    pattern.push(')');
    Ok(pattern)
}

/// A schema comes in OpenAI's envelope `{name,schema,strict}` or bare, as the native Workers AI routes take it.
fn json_schema(path: String, value: Value, places: &mut Places) -> Result<ResponseFormat, Error> {
    // A bare schema describes a value ("type", "properties", ...), the envelope holds it under "schema".
    let schema = value.get("schema").filter(|schema| !schema.is_null());
    let typed = value.get("type").is_some();
    if let Some(other) = schema.filter(|schema| !typed && !is_schema(schema)) {
        return Err(wrong_type(&format!("{path}.schema"), "an object", other));
    }
    let enveloped = schema.is_some_and(|schema| schema.is_object() || !typed);
    if !enveloped {
        if !value.is_object() {
            return Err(wrong_type(&path, "an object", &value));
        }
        let named = value.get("name").is_some_and(Value::is_string) && !typed;
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
            (json!({"structured_outputs": {"choice": ["a", 1]}}), "structured_outputs.choice[1]"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_choice": "a"}), "guided_choice"),
            (json!({"guided_choice": ["a", ""]}), "guided_choice[1]"),
            (json!({"guided_choice": ["a"], "guided_json": {}}), "guided_choice"),
            (json!({"response_format": {"type": "json_object", "schema": [1]}}), "response_format.schema"),
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

    #[test]
    fn a_schema_may_be_true_or_false_and_one_of_another_type_is_not_called_missing() {
        for schema in [json!(true), json!(false)] {
            for body in [
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}),
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                json!({"guided_json": schema}),
                json!({"guided_json": schema.to_string()}),
            ] {
                let (format, _) = read(body.clone()).unwrap_or_else(|error| panic!("{body}: {error}"));
                let ResponseFormat::JsonSchema { schema: found, .. } = format else { panic!("{body}") };
                assert_eq!(found, schema, "{body}");
            }
        }
        for envelope in [json!({"name": "s", "schema": [1]}), json!({"schema": "x"})] {
            let body = json!({"response_format": {"type": "json_schema", "json_schema": envelope}});
            let error = read(body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(SCHEMA));
            assert!(error.message.contains("expected an object"), "{error}");
        }
    }

    #[test]
    fn llama_cpps_schema_in_json_object_is_a_schema() {
        let schema = json!({"type": "object"});
        let body = json!({"response_format": {"type": "json_object", "schema": schema}});
        let (format, places) = read(body).unwrap();
        assert_eq!(format, ResponseFormat::JsonSchema { name: None, schema, strict: None });
        assert_eq!(places.written(&format!("{SCHEMA}/type")), "response_format.schema/type");
    }

    #[test]
    fn a_choice_is_exactly_its_texts() {
        let (format, places) = read(json!({"guided_choice": ["yes", "1+1 (a|b)\\n"]})).unwrap();
        assert_eq!(format, ResponseFormat::Regex(r"(yes|1\+1 \(a\|b\)\\n)".to_owned()));
        assert_eq!(places.written(REGEX), "guided_choice");
        let (same, places) = read(json!({"structured_outputs": {"choice": ["yes"]}})).unwrap();
        assert_eq!(same, ResponseFormat::Regex("(yes)".to_owned()));
        assert_eq!(places.written(REGEX), "structured_outputs.choice");
    }
}
