//! Where the fields of a canonical request stand in the body that the caller wrote.
//!
//! Backends name a field at fault by its place in the canonical form, which is that of OpenAI's chat completions:
//! `tools[0].function.parameters`, `response_format.json_schema.schema`, with a JSON pointer behind it where the
//! fault lies inside a schema. A dialect that takes a field elsewhere notes it here while it reads the body, so
//! that callers are told the path they know.

use crate::Error;

/// Fields that stand elsewhere than in the canonical form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Written before every path, such as `input.`.
    root: String,
    /// Canonical path and the caller's.
    moved: Vec<(String, String)>,
}

impl Places {
    /// All fields stand inside an object; `root` is its path, empty for the body itself.
    pub(crate) fn inside(root: &str) -> Self {
        let root = if root.is_empty() { String::new() } else { format!("{root}.") };
        Self { root, moved: Vec::new() }
    }

    /// A field, and all that is in it, stands elsewhere.
    pub(crate) fn moved(&mut self, canonical: impl Into<String>, written: impl Into<String>) {
        self.moved.push((canonical.into(), written.into()));
    }

    /// What is embedded stands in this field.
    pub fn input_is(&mut self, field: &str) {
        self.moved("input", field);
    }

    /// The caller's path of a canonical one.
    #[must_use]
    pub fn written(&self, canonical: &str) -> String {
        // The model is named beside the input or in the path, never inside.
        if canonical == "model" {
            return canonical.to_owned();
        }
        let longest = self
            .moved
            .iter()
            .filter_map(|(from, to)| {
                let rest = canonical.strip_prefix(from.as_str())?;
                (rest.is_empty() || rest.starts_with(['.', '[', '/'])).then_some((from.len(), to, rest))
            })
            .max_by_key(|(length, _, _)| *length);
        match longest {
            Some((_, to, rest)) => format!("{}{to}{rest}", self.root),
            None => format!("{}{canonical}", self.root),
        }
    }

    /// An error of a backend, with the field at fault named as the caller wrote it.
    #[must_use]
    pub fn locate(&self, mut error: Error) -> Error {
        if let Some(param) = &error.param {
            let written = self.written(param);
            if written != *param {
                // A bare word such as `tools` may stand in the text as what it means; in quotes it is the field.
                error.message = if param.contains(['[', '.', '/']) {
                    error.message.replace(param.as_str(), &written)
                } else {
                    error.message.replace(&format!("'{param}'"), &format!("'{written}'"))
                };
                error.param = Some(written);
            }
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_place_that_ends_at_a_border_counts() {
        let mut places = Places::inside("input");
        places.moved("tools[1]", "tools[3]");
        places.moved("tools[1].function", "tools[3]");
        places.moved("response_format.json_schema.schema", "response_format.json_schema");
        for (canonical, written) in [
            ("tools[1].function.parameters/properties/x", "input.tools[3].parameters/properties/x"),
            ("tools[1].type", "input.tools[3].type"),
            ("tools[10].function.name", "input.tools[10].function.name"),
            ("tools[1].functions", "input.tools[3].functions"),
            ("response_format.json_schema.schema/anyOf/0", "input.response_format.json_schema/anyOf/0"),
            ("response_format", "input.response_format"),
            ("model", "model"),
        ] {
            assert_eq!(places.written(canonical), written);
        }
    }

    #[test]
    fn the_text_of_an_error_names_the_same_place() {
        let mut places = Places::default();
        places.moved("tools[0].function", "tools[0]");
        let error = Error::invalid("tools[0].function.name", "'tools[0].function.name' is taken");
        assert_eq!(places.locate(error), Error::invalid("tools[0].name", "'tools[0].name' is taken"));
        places.moved("stop", "stop_sequences");
        let error = Error::invalid("stop", "'stop' does not stop here");
        assert_eq!(
            places.locate(error),
            Error::invalid("stop_sequences", "'stop_sequences' does not stop here")
        );
    }
}
