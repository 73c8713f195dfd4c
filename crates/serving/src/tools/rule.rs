//! The grammar of an answer: thoughts, then text with calls in it, calls alone, or a document.

use super::declared::is_text;
use super::form::{Form, Part, is_keyword};
use super::registry::{Bare, Family, Think};
use super::{Ask, Thinking};
use crate::grammar::Rule;
use protocol::{ResponseFormat, Tool, ToolChoice};
use serde_json::{Value, json};

/// Most calls of an answer that must call. Without a bound a small model, which must call and may always call
/// again, goes on to `max_tokens` with the same call; no agent makes so many at once.
const MOST_CALLS: u32 = 16;

/// Each of these calls is written out in the grammar, which holds so many parts at most (a compiler takes more).
const MOST_PARTS: u32 = 8000;

impl Family {
    /// What an answer may be; `None` where anything goes.
    pub fn rule(&self, ask: &Ask<'_>) -> Option<Rule> {
        let (tools, forced): (Vec<(usize, &Tool)>, bool) = match ask.choice {
            ToolChoice::None => (Vec::new(), false),
            ToolChoice::Auto => (ask.tools.iter().enumerate().collect(), false),
            ToolChoice::Required => (ask.tools.iter().enumerate().collect(), true),
            ToolChoice::Named(name) => {
                (ask.tools.iter().enumerate().filter(|(_, tool)| tool.name == *name).collect(), true)
            }
        };
        // Some families' templates refuse a message of several calls: none is led there who did not ask for them. What
        // comes all the same is read.
        let one = ask.is_single() || self.single && ask.parallel.is_none();
        let document = document(ask.format);
        let body = match (tools.is_empty(), forced, document) {
            (true, _, None) => return None,
            (true, _, Some(document)) => document,
            (false, true, _) => self.calls(&tools, if one { 1 } else { MOST_CALLS }),
            (false, false, Some(document)) => {
                Rule::OneOf(vec![self.calls(&tools, if one { 1 } else { MOST_CALLS }), document])
            }
            (false, false, None) => self.text_with_calls(&tools, one),
        };
        Some(match self.think {
            Some(think) => after_thoughts(think, ask.thinking, body),
            None => body,
        })
    }

    /// Calls and nothing else.
    fn calls(&self, tools: &[(usize, &Tool)], most: u32) -> Rule {
        let around = self.form.around();
        let call = one_of(tools.iter().map(|(i, tool)| self.call(*i, tool)).collect());
        // Many calls of many tools would make a grammar that is refused for its size.
        let most = most.min(MOST_PARTS / size(&call)).max(1);
        let mut parts = parts(&around.before);
        if most == 1 {
            parts.push(call);
        } else if around.between.is_empty() {
            parts.push(Rule::Repeat { rule: Box::new(call), least: 1, most: Some(most) });
        } else {
            let mut again = self::parts(&around.between);
            again.push(call.clone());
            parts.push(call);
            parts.push(Rule::Repeat {
                rule: Box::new(Rule::Sequence(again)),
                least: 0,
                most: Some(most - 1),
            });
        }
        parts.extend(self::parts(&around.after));
        Rule::Sequence(parts)
    }

    /// Free text in which a call, once its marker is there, goes on as a call.
    fn text_with_calls(&self, tools: &[(usize, &Tool)], one: bool) -> Rule {
        let text = Rule::Text { before: self.marks(tools) };
        let most = if one || !self.form.is_one_block() { 1 } else { MOST_CALLS };
        let calls = self.calls(tools, most);
        let mut block = vec![calls];
        if let Some(tag) = self.openers.iter().find(|o| o.own && self.bare == Bare::Own) {
            // The marker may stand before a call that needs none.
            let tagged = Rule::Sequence(vec![Rule::Marker(tag.text.into()), block.remove(0)]);
            block = vec![self.calls(tools, most), tagged];
        }
        let block = if block.len() == 1 { block.remove(0) } else { Rule::OneOf(block) };
        if one {
            // Nothing after it: a model that wants to call again would write the call as text.
            return Rule::Sequence(vec![
                text,
                Rule::Repeat { rule: Box::new(block), least: 0, most: Some(1) },
            ]);
        }
        // A text before each call and one at the end: a text must see what may end it, which at the end of what is
        // repeated is not known yet.
        let again = Rule::Sequence(vec![text.clone(), block]);
        Rule::Sequence(vec![Rule::Repeat { rule: Box::new(again), least: 0, most: None }, text])
    }

    /// What text cannot hold, since a call begins with it.
    fn marks(&self, tools: &[(usize, &Tool)]) -> Vec<String> {
        let own = self.openers.iter().filter(|opener| opener.own).map(|opener| opener.text.to_owned());
        let mut marks: Vec<String> = own.collect();
        let first = |(_, tool): &(usize, &Tool)| match self.form.call(&tool.name).into_iter().next() {
            Some(Part::Text(text)) => text,
            _ => String::new(),
        };
        match self.form {
            Form::Bare { .. } => marks.extend(tools.iter().map(first)),
            Form::Pythonic { .. } => marks.extend(tools.iter().map(|tool| format!("[{}", first(tool)))),
            Form::Tagged { .. } | Form::List { .. } | Form::Named(_) | Form::Parameters => {}
        }
        marks
    }

    /// Whether a grammar of this form holds arguments to all of a tool's schema. Parameters in plain text do so
    /// only for a list of properties, and hold a text to its enum alone.
    pub fn enforces(&self, tool: &Tool) -> bool {
        const BOUNDS: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
        if !matches!(self.form, Form::Parameters) {
            return true;
        }
        let plain = |property: &Property<'_>| {
            let bounded = BOUNDS.iter().any(|key| property.schema.get(key).is_some());
            !(property.name.contains(['>', '\n']) || is_text(&property.schema) && bounded)
        };
        properties(tool, "").is_some_and(|all| all.iter().all(plain))
    }

    fn call(&self, i: usize, tool: &Tool) -> Vec<Rule> {
        let at = format!("tools[{i}].function.parameters");
        let parts = self.form.call(&tool.name).into_iter().map(|part| match part {
            Part::Marker(text) => Rule::Marker(text.into()),
            Part::Text(text) => Rule::Literal(text),
            Part::Number => Rule::Regex { pattern: "[0-9]{1,4}".into(), at: String::new() },
            Part::Arguments => match self.form {
                Form::Pythonic { .. } => keywords(tool, &at),
                Form::Parameters => parameters(tool, &at),
                _ => arguments(tool, &at),
            },
        });
        parts.collect()
    }
}

/// One of several sequences. What all begin or end with stands once: it may be marker and brackets, of many
/// tools, in each of many calls.
fn one_of(mut all: Vec<Vec<Rule>>) -> Rule {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    while let Some(first) = all.first().and_then(|parts| parts.first()).cloned()
        && all.iter().all(|parts| parts.first() == Some(&first))
    {
        all.iter_mut().for_each(|parts| drop(parts.remove(0)));
        before.push(first);
    }
    while let Some(last) = all.first().and_then(|parts| parts.last()).cloned()
        && all.iter().all(|parts| parts.last() == Some(&last))
    {
        all.iter_mut().for_each(|parts| drop(parts.pop()));
        after.insert(0, last);
    }
    if all.iter().any(|parts| !parts.is_empty()) {
        before.push(Rule::OneOf(all.into_iter().map(Rule::Sequence).collect()));
    }
    before.extend(after);
    Rule::Sequence(before)
}

/// About how many parts a rule has once it is written out.
fn size(rule: &Rule) -> u32 {
    match rule {
        Rule::Sequence(rules) | Rule::OneOf(rules) => rules.iter().map(size).fold(1, u32::saturating_add),
        Rule::Repeat { rule, most, .. } => {
            size(rule).saturating_mul(most.unwrap_or(1).max(1)).saturating_add(1)
        }
        _ => 2,
    }
}

fn parts(parts: &[Part]) -> Vec<Rule> {
    let rule = |part: &Part| match part {
        Part::Marker(text) => Rule::Marker((*text).into()),
        Part::Text(text) => Rule::Literal(text.clone()),
        Part::Number | Part::Arguments => Rule::Literal(String::new()),
    };
    parts.iter().map(rule).collect()
}

fn document(format: &ResponseFormat) -> Option<Rule> {
    match format {
        ResponseFormat::Text => None,
        ResponseFormat::JsonObject => {
            Some(Rule::Json { schema: json!({"type": "object"}), at: "response_format".into(), exact: true })
        }
        ResponseFormat::JsonSchema { schema, .. } => Some(Rule::Json {
            schema: schema.clone(),
            at: "response_format.json_schema.schema".into(),
            exact: true,
        }),
        ResponseFormat::Regex(pattern) => {
            Some(Rule::Regex { pattern: pattern.clone(), at: "response_format.regex".into() })
        }
        ResponseFormat::Lark(grammar) => {
            Some(Rule::Lark { grammar: grammar.clone(), at: "response_format.grammar".into() })
        }
    }
}

/// A think block, where there is one or may be one, and then the rule.
fn after_thoughts(think: Think, thinking: Thinking, body: Rule) -> Rule {
    let close = vec![
        Rule::Text { before: vec![think.close.into()] },
        Rule::Marker(think.close.into()),
        Rule::Repeat { rule: Box::new(Rule::Literal("\n".into())), least: 0, most: Some(2) },
    ];
    match thinking {
        Thinking::No => body,
        Thinking::Open => {
            let mut all = close;
            all.push(body);
            Rule::Sequence(all)
        }
        Thinking::May => {
            let mut block = vec![Rule::Marker(think.open.into())];
            block.extend(close);
            let block = Rule::Repeat { rule: Box::new(Rule::Sequence(block)), least: 0, most: Some(1) };
            Rule::Sequence(vec![block, body])
        }
    }
}

/// The schema of a tool's arguments, which are an object whatever else it says.
fn object(tool: &Tool) -> Value {
    match &tool.parameters {
        Some(Value::Object(fields)) => {
            let mut fields = fields.clone();
            let says = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
            if !says.iter().any(|key| fields.contains_key(*key)) {
                fields.insert("type".into(), "object".into());
            }
            // Of several types only this one can be arguments.
            if fields
                .get("type")
                .and_then(Value::as_array)
                .is_some_and(|all| all.iter().any(|t| t == "object"))
            {
                fields.insert("type".into(), "object".into());
            }
            Value::Object(fields)
        }
        None | Some(Value::Null | Value::Bool(true)) => json!({"type": "object"}),
        Some(other) => other.clone(),
    }
}

/// A property of a tool whose arguments are written one by one.
struct Property<'a> {
    name: &'a str,
    /// Its schema, with the definitions that it may refer to.
    schema: Value,
    at: String,
    required: bool,
    exact: bool,
}

impl Property<'_> {
    fn value(&self) -> Rule {
        Rule::Json { schema: self.schema.clone(), at: self.at.clone(), exact: self.exact }
    }
}

/// A tool's arguments as one object. Only `strict` asks for all of the schema: what agents declare may hold
/// keywords that no grammar can enforce, and is then still better obeyed as far as can be than refused.
fn arguments(tool: &Tool, at: &str) -> Rule {
    Rule::Json { schema: object(tool), at: at.to_owned(), exact: is_exact(tool) }
}

fn is_exact(tool: &Tool) -> bool {
    tool.strict == Some(true)
}

/// The properties, those that must be there first, where the schema is a plain list of them; `None` where it
/// says more.
fn properties<'a>(tool: &'a Tool, at: &str) -> Option<Vec<Property<'a>>> {
    const PLAIN: [&str; 9] = [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "description",
        "title",
        "$defs",
        "definitions",
        "$schema",
    ];
    let Some(parameters) = tool.parameters.as_ref().filter(|p| !p.is_null()) else { return Some(Vec::new()) };
    let fields = parameters.as_object()?;
    if !fields.keys().all(|key| PLAIN.contains(&key.as_str()))
        || fields.get("type").is_some_and(|t| t != "object")
    {
        return None;
    }
    let names = fields.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let known = fields.get("properties").and_then(Value::as_object);
    let property = |(name, schema): (&'a String, &Value)| {
        let mut schema = if schema.is_object() { schema.clone() } else { json!({}) };
        for key in ["$defs", "definitions"] {
            if let (Some(own), Some(all)) = (schema.as_object_mut(), fields.get(key)) {
                own.entry(key).or_insert_with(|| all.clone());
            }
        }
        let at = format!("{at}/properties/{}", crate::grammar::escaped(name));
        Property {
            name,
            schema,
            at,
            required: names.iter().any(|required| required == name),
            exact: is_exact(tool),
        }
    };
    let mut all: Vec<Property<'a>> = known.into_iter().flatten().map(property).collect();
    // What must be there and is described nowhere cannot be written one by one.
    if names.len() > all.iter().filter(|property| property.required).count() {
        return None;
    }
    all.sort_by_key(|property| !property.required);
    Some(all)
}

/// Arguments as `a=1, b="x"`, the values as JSON; `**{..}` where they cannot be named one by one.
fn keywords(tool: &Tool, at: &str) -> Rule {
    // Where none is required the rule grows with the square of their number.
    let listed = properties(tool, at).filter(|all| {
        all.iter().all(|p| is_keyword(p.name)) && (all.len() <= 16 || all.iter().any(|p| p.required))
    });
    let Some(all) = listed else {
        return Rule::Sequence(vec![Rule::Literal("**".into()), arguments(tool, at)]);
    };
    fn one(property: &Property<'_>, before: &str) -> Rule {
        Rule::Sequence(vec![Rule::Literal(format!("{before}{}=", property.name)), property.value()])
    }
    fn from(all: &[Property<'_>]) -> Rule {
        let Some((first, rest)) = all.split_first() else { return Rule::Literal(String::new()) };
        let mut parts = vec![one(first, "")];
        parts.extend(rest.iter().map(|property| maybe(property.required, one(property, ", "))));
        let here = Rule::Sequence(parts);
        if first.required { here } else { Rule::OneOf(vec![here, from(rest)]) }
    }
    from(&all)
}

fn maybe(certain: bool, rule: Rule) -> Rule {
    if certain { rule } else { Rule::Repeat { rule: Box::new(rule), least: 0, most: Some(1) } }
}

/// Arguments as a tag each, the values as plain text where text must stand, else as JSON.
fn parameters(tool: &Tool, at: &str) -> Rule {
    const END: &str = "\n</parameter>\n";
    let any = || Rule::Text { before: vec!["</parameter>".into()] };
    let Some(all) = properties(tool, at).filter(|all| all.iter().all(|p| !p.name.contains(['>', '\n'])))
    else {
        // More than a list of properties: any parameters.
        let one = Rule::Sequence(vec![
            Rule::Literal("<parameter=".into()),
            Rule::Regex { pattern: "[^<>\n]{1,64}".into(), at: String::new() },
            Rule::Literal(">\n".into()),
            any(),
            Rule::Literal("</parameter>\n".into()),
        ]);
        return Rule::Repeat { rule: Box::new(one), least: 0, most: None };
    };
    let one = |property: &Property<'_>| {
        let open = Rule::Literal(format!("<parameter={}>\n", property.name));
        let said = |value: &Value| value.as_str().map(|text| Rule::Literal(format!("{text}{END}")));
        let schema = &property.schema;
        let mut parts = vec![open];
        if is_text(schema) {
            let listed = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let named: Vec<Rule> = listed.iter().chain(schema.get("const")).filter_map(said).collect();
            if named.is_empty() {
                parts.extend([any(), Rule::Literal("</parameter>\n".into())]);
            } else {
                parts.push(Rule::OneOf(named));
            }
        } else {
            parts.push(property.value());
            parts.push(Rule::Literal(END.into()));
        }
        maybe(property.required, Rule::Sequence(parts))
    };
    Rule::Sequence(all.iter().map(one).collect())
}
