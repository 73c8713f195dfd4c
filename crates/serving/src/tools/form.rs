//! The forms in which families write calls, as data: what stands around a name and its arguments.
//!
//! One description serves the grammar that makes calls and the text that shows made ones, so they cannot
//! differ. How forms are read, which is more lenient, is in [`super::block`].

use super::pythonic::python_text;
use serde_json::{Map, Value};

/// How a family writes calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// Each call an object between two markers, on a line of its own.
    Tagged { open: &'static str, close: &'static str },
    /// Each call an object and nothing around it; `parameters` holds the arguments.
    Bare { between: &'static str },
    /// A marker, then a JSON array of objects.
    List { open: &'static str, bracket: &'static str },
    /// The name in plain characters, then the arguments, between markers.
    Named(&'static Named),
    /// `[f(a=1), g()]`.
    Pythonic { open: Option<&'static str>, close: Option<&'static str> },
    /// Tags for the function and for each parameter, the values as plain text.
    Parameters,
}

/// What [`Form::Named`] puts around calls, their names and arguments. Empty where there is nothing.
#[derive(Debug)]
pub(super) struct Named {
    /// Before the first call.
    pub section: &'static str,
    /// Before each call.
    pub open: &'static str,
    /// Before its name.
    pub prefix: &'static str,
    /// Whether `:` and the call's number follow the name.
    pub numbered: bool,
    /// Between name and arguments.
    pub arguments: &'static str,
    /// After the arguments, before `close`.
    pub after: &'static str,
    /// After each call.
    pub close: &'static str,
    /// After the last call.
    pub end: &'static str,
    /// Between two calls.
    pub between: &'static str,
}

/// A part of what is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// A marker: one token where the vocabulary has it.
    Marker(&'static str),
    /// Characters.
    Text(String),
    /// The number of the call.
    Number,
    /// The arguments, in the form's way.
    Arguments,
}

/// Around a block of calls: before the first, between two, after the last.
pub(super) struct Around {
    pub before: Vec<Part>,
    pub between: Vec<Part>,
    pub after: Vec<Part>,
}

fn text(text: &str) -> Option<Part> {
    (!text.is_empty()).then(|| Part::Text(text.to_owned()))
}

fn marker(text: &'static str) -> Option<Part> {
    // Marks that are not made of a bracketed word are plain characters.
    let marks = text.starts_with(['<', '[']) && !text.contains(char::is_whitespace);
    (!text.is_empty()).then(|| if marks { Part::Marker(text) } else { Part::Text(text.to_owned()) })
}

/// A text as a JSON string, in the spelling of chat templates.
pub(super) fn string(text: &str) -> String {
    Value::from(text).to_string()
}

impl Form {
    /// The parts of one call. For the bare form the first part is what the call is known by.
    pub fn call(self, name: &str) -> Vec<Part> {
        let object = |key: &str| {
            vec![
                Part::Text(format!("{{\"name\": {}, \"{key}\": ", string(name))),
                Part::Arguments,
                Part::Text("}".into()),
            ]
        };
        match self {
            Self::Tagged { open, close } => {
                let mut parts = vec![Part::Marker(open), Part::Text("\n".into())];
                parts.extend(object("arguments"));
                parts.extend([Part::Text("\n".into()), Part::Marker(close)]);
                parts
            }
            Self::Bare { .. } => object("parameters"),
            Self::List { .. } => object("arguments"),
            Self::Named(named) => {
                let mut parts: Vec<Part> = Vec::new();
                parts.extend(marker(named.open));
                parts.extend(prefix(named.prefix));
                parts.extend(text(name));
                if named.numbered {
                    parts.extend([Part::Text(":".into()), Part::Number]);
                }
                parts.extend(marker(named.arguments));
                parts.push(Part::Arguments);
                parts.extend(text(named.after));
                parts.extend(marker(named.close));
                parts
            }
            Self::Pythonic { .. } => {
                vec![Part::Text(format!("{name}(")), Part::Arguments, Part::Text(")".into())]
            }
            Self::Parameters => vec![
                Part::Marker("<tool_call>"),
                Part::Text(format!("\n<function={name}>\n")),
                Part::Arguments,
                Part::Text("</function>\n".into()),
                Part::Marker("</tool_call>"),
            ],
        }
    }

    /// What stands around the calls of one block.
    pub fn around(self) -> Around {
        let around = |before: Vec<Option<Part>>, between: Option<Part>, after: Vec<Option<Part>>| Around {
            before: before.into_iter().flatten().collect(),
            between: between.into_iter().collect(),
            after: after.into_iter().flatten().collect(),
        };
        match self {
            Self::Tagged { .. } | Self::Parameters => around(vec![], text("\n"), vec![]),
            Self::Bare { between } => around(vec![], text(between), vec![]),
            Self::List { open, bracket } => {
                around(vec![marker(open), text(bracket)], text(", "), vec![text("]")])
            }
            Self::Named(named) => {
                around(vec![marker(named.section)], text(named.between), vec![marker(named.end)])
            }
            Self::Pythonic { open, close } => around(
                vec![open.and_then(marker), text("[")],
                text(", "),
                vec![text("]"), close.and_then(marker)],
            ),
        }
    }

    /// Whether several calls are one block, so that text cannot stand between them.
    pub fn is_one_block(self) -> bool {
        match self {
            Self::Tagged { .. } | Self::Parameters | Self::Bare { .. } => false,
            Self::Named(named) => !named.section.is_empty(),
            Self::List { .. } | Self::Pythonic { .. } => true,
        }
    }

    /// Whether a call of this form can say a tool's name. JSON strings say every name; elsewhere it stands in plain
    /// characters, between marks that it must not hold.
    pub fn carries(self, name: &str) -> bool {
        let plain = |marks: &str| {
            !name.is_empty()
                && name.chars().all(|c| !c.is_control() && !c.is_whitespace() && !marks.contains(c))
        };
        match self {
            Self::Tagged { .. } | Self::Bare { .. } | Self::List { .. } => true,
            Self::Named(_) => plain("{}[]<>|\"`"),
            Self::Pythonic { .. } => plain("()[]{},=\"'"),
            Self::Parameters => plain("<>"),
        }
    }

    /// Arguments as the form writes them; `json` is the text of an object.
    pub fn arguments(self, json: &str) -> String {
        let fields = || serde_json::from_str::<Map<String, Value>>(json).unwrap_or_default();
        match self {
            Self::Tagged { .. } | Self::Bare { .. } | Self::List { .. } | Self::Named(_) => json.to_owned(),
            Self::Pythonic { .. } => {
                let fields = fields();
                if fields.keys().all(|key| is_keyword(key)) {
                    let pairs: Vec<_> =
                        fields.iter().map(|(key, value)| format!("{key}={}", python_text(value))).collect();
                    pairs.join(", ")
                } else {
                    format!("**{}", python_text(&Value::Object(fields)))
                }
            }
            Self::Parameters => {
                let parameter = |(key, value): (&String, &Value)| {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    format!("<parameter={key}>\n{value}\n</parameter>\n")
                };
                fields().iter().map(parameter).collect()
            }
        }
    }

    /// A whole block of calls as text.
    pub fn write(self, calls: &[(&str, &str)]) -> String {
        let around = self.around();
        let mut out = String::new();
        let mut put = |parts: &[Part], number: usize, arguments: &str| {
            for part in parts {
                match part {
                    Part::Marker(text) => out.push_str(text),
                    Part::Text(text) => out.push_str(text),
                    Part::Number => out.push_str(&number.to_string()),
                    Part::Arguments => out.push_str(&self.arguments(arguments)),
                }
            }
        };
        put(&around.before, 0, "");
        for (i, (name, arguments)) in calls.iter().enumerate() {
            if i > 0 {
                put(&around.between, 0, "");
            }
            put(&self.call(name), i, arguments);
        }
        put(&around.after, 0, "");
        out
    }
}

/// A prefix may end in a marker (`function<｜tool▁sep｜>`).
fn prefix(whole: &'static str) -> impl Iterator<Item = Part> {
    let (plain, marked) = whole.split_at(whole.find('<').unwrap_or(whole.len()));
    text(plain).into_iter().chain(marker(marked))
}

/// Whether Python can write this as the name of an argument.
pub(super) fn is_keyword(key: &str) -> bool {
    let mut chars = key.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
