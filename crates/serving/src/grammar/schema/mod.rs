//! From a JSON schema as callers write it to one that the grammar library takes whole.
//!
//! Each keyword is enforced, an annotation, or refused with the JSON pointer of where it stands; none is
//! dropped in silence. The result has no references but into its own `$defs`, no identifiers, no `oneOf` and no
//! unbounded numbers, and every document that it describes is one of the caller's schema:
//!
//! - An object that names its properties and does not speak of others has no others.
//! - A value of which nothing is said (`{}`, `true`, items or further properties without a schema) nests at most
//!   [`FREE_DEPTH`] deep.
//! - Numbers lie where doubles hold each integer, as far as their bounds let them, else they are refused; no exponents.
//! - Keywords of objects, arrays, strings or numbers imply their type where nothing else tells it.
//! - `oneOf` must have options of which no document can fit two; it is then `anyOf`.
//! - `format` is enforced for the formats of the table in [`format`](mod@format), else an annotation, as the
//!   standard has it.
//! - Lengths above [`Limits::length`] and counts above [`Limits::count`] are cut to it where they are upper bounds, else refused.
//!
//! A schema that is not `exact` loses the keywords that no grammar can enforce, and those alone (see
//! [`lenient`]); what its documents are is then more than its author said.

mod format;
mod keyword;
mod lenient;
mod oneof;
mod reference;
mod shape;
mod termination;

use keyword::Kind;
use protocol::Error;
use reference::References;
use serde_json::{Map, Value, json};
pub(crate) use shape::may_be_object;
use std::collections::HashMap;

/// How deep a value nests of which the schema says nothing.
pub(super) const FREE_DEPTH: usize = 16;
/// Name of the definition that bounds values which several schemas restrict.
const MERGED: &str = "merged";
/// Integers beyond this are not exact in a double.
const LARGEST: i64 = 9_007_199_254_740_991;

/// How large a schema may be.
pub(super) struct Limits {
    /// As JSON text.
    pub bytes: usize,
    /// Schemas inside schemas.
    pub depth: usize,
    /// Schemas in all, references followed.
    pub nodes: usize,
    /// Values of an `enum`, counted over the whole schema.
    pub values: usize,
    /// Counts of items and properties.
    pub count: u64,
    /// Lengths of strings that are counted: the grammar has a state for each character.
    pub length: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 512 << 10, depth: 64, nodes: 10_000, values: 20_000, count: 100_000, length: 16_384 }
    }
}

/// What is wrong with a schema, and where.
#[derive(Debug, PartialEq)]
pub(super) struct Fault {
    /// A JSON pointer into the schema.
    pub pointer: String,
    pub message: String,
}

impl Fault {
    fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into() }
    }

    /// The error, given where the schema stands in the request.
    pub fn at(self, at: &str) -> Error {
        let place = if self.pointer.is_empty() { "the schema" } else { self.pointer.as_str() };
        Error::invalid(format!("{at}{}", self.pointer), format!("{place}: {}", self.message))
    }
}

/// The library's form of the schema that stands at `start`, a pointer into `root`. `exact`: all of it is enforced.
pub(super) fn lower(root: &Value, start: &str, exact: bool, limits: &Limits) -> Result<Value, Fault> {
    let size = root.to_string().len();
    if size > limits.bytes {
        return Err(Fault::new("", format!("a schema has at most {} bytes; this has {size}", limits.bytes)));
    }
    let mut lowering = Lowering {
        root,
        references: References::new(root),
        limits,
        exact,
        definitions: HashMap::new(),
        open: Vec::new(),
        done: Map::new(),
        origins: HashMap::new(),
        alternatives: Vec::new(),
        nodes: 0,
        values: 0,
        free: false,
        merged: false,
    };
    let schema = root.pointer(start).unwrap_or(&Value::Null);
    let mut lowered = lowering.schema(schema, start, 0, true)?;
    while let Some((pointer, closed)) = lowering.open.pop() {
        let schema = root.pointer(&pointer).unwrap_or(&Value::Null);
        let definition = lowering.schema(schema, &pointer, 0, closed)?;
        let name = lowering.definitions[&(pointer, closed)].clone();
        lowering.done.insert(name, definition);
    }
    for alternatives in &lowering.alternatives {
        oneof::check(alternatives, root, &lowering.references, &lowering.done)?;
    }
    termination::check(&mut lowered, &mut lowering.done, &lowering.origins)?;
    if lowering.merged {
        // The library would unroll a recursive schema as deep as a free value nests; there numbers alone have bounds.
        let bounded = !termination::recursive(&lowering.done);
        lowering.free |= bounded;
        let free = json!({ "$ref": format!("#/$defs/{}", free_name(FREE_DEPTH)) });
        lowering.done.insert(MERGED.to_owned(), if bounded { free } else { bounded_numbers() });
    }
    if lowering.free {
        add_free_values(&mut lowering.done);
    }
    let mut top = Map::new();
    top.insert(
        "x-guidance".to_owned(),
        // Raw UTF-8 instead of \u escapes: a property's name could else be written in two ways.
        json!({
            "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false,
            "json_allowed_escapes": "nrbtf\\\"",
        }),
    );
    top.insert("$defs".to_owned(), Value::Object(lowering.done));
    match lowered {
        Value::Object(fields) if !fields.contains_key("$ref") => top.extend(fields),
        // A reference at the top is a schema like others.
        other => {
            top.insert("allOf".to_owned(), json!([other]));
        }
    }
    Ok(Value::Object(top))
}

/// A `oneOf` whose options must exclude each other.
struct Alternatives {
    pointer: String,
    lowered: Vec<Value>,
    originals: Vec<String>,
}

struct Lowering<'a> {
    root: &'a Value,
    references: References,
    limits: &'a Limits,
    /// Whether what no grammar can enforce is refused.
    exact: bool,
    /// Names of definitions: by what they refer to, and whether objects are closed there.
    definitions: HashMap<(String, bool), String>,
    /// Definitions that are named but not made.
    open: Vec<(String, bool)>,
    done: Map<String, Value>,
    /// Where a definition was first referred to.
    origins: HashMap<String, String>,
    alternatives: Vec<Alternatives>,
    nodes: usize,
    values: usize,
    /// A value of which nothing is said occurs.
    free: bool,
    /// Schemas restrict a value together somewhere.
    merged: bool,
}

type Fields = Map<String, Value>;

impl Lowering<'_> {
    /// Lowers one schema. `closed`: objects that name properties have no others, and values of which nothing is
    /// said have their bounds; not so where schemas restrict one value together, since the library merges
    /// them there.
    fn schema(&mut self, schema: &Value, at: &str, depth: usize, closed: bool) -> Result<Value, Fault> {
        self.nodes += 1;
        if self.nodes > self.limits.nodes {
            return Err(Fault::new(at, format!("a schema has at most {} schemas in it", self.limits.nodes)));
        }
        if depth > self.limits.depth {
            return Err(Fault::new(at, format!("schemas nest at most {} deep", self.limits.depth)));
        }
        let fields = match schema {
            Value::Bool(true) => return Ok(self.free_value(closed)),
            Value::Bool(false) => return Ok(Value::Bool(false)),
            Value::Object(fields) => fields,
            other => return Err(Fault::new(at, format!("a schema is an object or a boolean, not {other}"))),
        };
        let reduced = if self.exact { None } else { lenient::without(fields, &self.references, self.limits) };
        let fields = reduced.as_ref().unwrap_or(fields);
        keyword::check(fields, at)?;
        let mut out = Map::new();
        let assertions = fields.keys().filter(|key| keyword::kind(key) != Kind::Annotation).count();
        if assertions == 0 {
            return Ok(self.free_value(closed));
        }
        // What lies beside an applicator restricts the same value; an object closed here could not be met there.
        let applied = fields.keys().filter(|key| keyword::kind(key) == Kind::Applicator).count();
        let beside = assertions - applied - usize::from(fields.contains_key("type"));
        let entered = closed;
        let several = fields.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
        let inside = closed && applied <= 1 && beside == 0 && !several;
        let closed = closed && applied == 0;
        for (key, value) in fields {
            let here = format!("{at}/{}", escaped(key));
            match key.as_str() {
                "type" => out.extend([(key.clone(), types(value, &here)?)]),
                "enum" | "const" => self.constants(key, value, fields, &here, &mut out)?,
                "$ref" => {
                    let reference = self.refer(value, &here, inside)?;
                    out.insert(key.clone(), reference);
                }
                "anyOf" | "allOf" | "oneOf" => {
                    let inside =
                        inside && (key != "allOf" || value.as_array().is_some_and(|all| all.len() == 1));
                    self.combine(key, value, &here, depth, inside, &mut out)?;
                }
                "not" => match value {
                    Value::Bool(true) => return Ok(Value::Bool(false)),
                    Value::Object(inner) if inner.is_empty() => return Ok(Value::Bool(false)),
                    _ => return Err(Fault::new(here, "`not` is supported with {} only")),
                },
                _ => {}
            }
        }
        self.objects(fields, at, depth, closed, &mut out)?;
        self.arrays(fields, at, depth, closed, &mut out)?;
        strings(fields, at, self.limits, &mut out)?;
        numbers(fields, at, &mut out)?;
        if applied == 0 {
            self.complete(closed, &mut out);
        }
        if entered && applied > 0 && !inside {
            // Here the merging of schemas begins; what they leave open gets its bounds once, for all of them.
            self.merged = true;
            also(&mut out, json!({ "$ref": format!("#/$defs/{MERGED}") }));
        }
        if out.is_empty() { Ok(self.free_value(closed)) } else { Ok(Value::Object(out)) }
    }

    /// Gives a schema the type that its keywords imply, and its open ends their bounds.
    fn complete(&mut self, closed: bool, out: &mut Fields) {
        if !out.contains_key("type") {
            let implied = keyword::implied_types(out);
            if !implied.is_empty() {
                out.insert("type".to_owned(), json!(implied));
            }
        }
        let has = |out: &Fields, name: &str| match &out.get("type") {
            Some(Value::String(one)) => one == name,
            Some(Value::Array(many)) => many.iter().any(|one| one == name),
            _ => false,
        };
        if closed && has(out, "object") && !out.contains_key("additionalProperties") {
            let free = self.free_value(closed);
            out.insert("additionalProperties".to_owned(), free);
        }
        if closed && has(out, "array") && !out.contains_key("items") {
            let free = self.free_value(closed);
            out.insert("items".to_owned(), free);
        }
        if has(out, "number") || has(out, "integer") {
            if !out.contains_key("minimum") && !out.contains_key("exclusiveMinimum") {
                out.insert("minimum".to_owned(), json!(-LARGEST));
            }
            if !out.contains_key("maximum") && !out.contains_key("exclusiveMaximum") {
                out.insert("maximum".to_owned(), json!(LARGEST));
            }
        }
    }

    /// A value of which nothing is said.
    fn free_value(&mut self, bounded: bool) -> Value {
        if !bounded {
            return Value::Bool(true);
        }
        self.free = true;
        json!({ "$ref": format!("#/$defs/{}", free_name(FREE_DEPTH)) })
    }

    fn refer(&mut self, value: &Value, here: &str, closed: bool) -> Result<Value, Fault> {
        let Some(reference) = value.as_str() else {
            return Err(Fault::new(here, "a reference is a string"));
        };
        let target = self.references.resolve(self.root, reference).map_err(|why| Fault::new(here, why))?;
        let key = (target, closed);
        let name = match self.definitions.get(&key) {
            Some(name) => name.clone(),
            None => {
                let name = format!("d{}", self.definitions.len());
                self.definitions.insert(key.clone(), name.clone());
                self.origins.insert(name.clone(), here.to_owned());
                self.open.push(key);
                name
            }
        };
        Ok(json!(format!("#/$defs/{name}")))
    }

    fn combine(
        &mut self,
        key: &str,
        value: &Value,
        here: &str,
        depth: usize,
        closed: bool,
        out: &mut Fields,
    ) -> Result<(), Fault> {
        let Some(options) = value.as_array().filter(|options| !options.is_empty()) else {
            return Err(Fault::new(here, format!("`{key}` is an array with at least one schema")));
        };
        let mut lowered = Vec::new();
        for (i, option) in options.iter().enumerate() {
            lowered.push(self.schema(option, &format!("{here}/{i}"), depth + 1, closed)?);
        }
        if key == "oneOf" && self.exact {
            self.alternatives.push(Alternatives {
                pointer: here.to_owned(),
                lowered: lowered.clone(),
                originals: (0..options.len()).map(|i| format!("{here}/{i}")).collect(),
            });
        }
        match key {
            "allOf" => lowered.into_iter().for_each(|part| also(out, part)),
            // A schema may have both anyOf and oneOf.
            _ if out.contains_key("anyOf") => also(out, json!({ "anyOf": lowered })),
            _ => {
                out.insert("anyOf".to_owned(), Value::Array(lowered));
            }
        }
        Ok(())
    }

    fn constants(
        &mut self,
        key: &str,
        value: &Value,
        fields: &Fields,
        here: &str,
        out: &mut Fields,
    ) -> Result<(), Fault> {
        let all = match (key, value) {
            ("const", value) => std::slice::from_ref(value),
            (_, Value::Array(all)) if !all.is_empty() => all.as_slice(),
            _ => return Err(Fault::new(here, "`enum` is an array with at least one value")),
        };
        self.values += all.len();
        if self.values > self.limits.values {
            return Err(Fault::new(here, format!("a schema has at most {} enum values", self.limits.values)));
        }
        let types = fields.get("type");
        let fitting: Vec<&Value> = all.iter().filter(|value| keyword::fits_type(value, types)).collect();
        if fitting.is_empty() {
            return Err(Fault::new(here, "no value here has the type that the schema asks for"));
        }
        if let Some(odd) = fitting.iter().find(|value| keyword::unwritable(value)) {
            return Err(Fault::new(
                here,
                format!("{odd} has control characters or a number that is not exact"),
            ));
        }
        let mut distinct: Vec<&Value> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        distinct.extend(fitting.into_iter().filter(|value| seen.insert(value.to_string())));
        if out.contains_key("enum") {
            // Both `enum` and `const`.
            also(out, json!({ "enum": distinct }));
        } else {
            out.insert("enum".to_owned(), json!(distinct));
        }
        Ok(())
    }

    fn objects(
        &mut self,
        fields: &Fields,
        at: &str,
        depth: usize,
        closed: bool,
        out: &mut Fields,
    ) -> Result<(), Fault> {
        for key in ["properties", "patternProperties"] {
            let Some(value) = fields.get(key) else { continue };
            let Some(members) = value.as_object() else {
                return Err(Fault::new(format!("{at}/{key}"), format!("`{key}` is an object of schemas")));
            };
            let mut lowered = Map::new();
            for (name, schema) in members {
                let here = format!("{at}/{key}/{}", escaped(name));
                lowered.insert(name.clone(), self.schema(schema, &here, depth + 1, closed)?);
            }
            out.insert(key.to_owned(), Value::Object(lowered));
        }
        if let Some(value) = fields.get("required") {
            let here = format!("{at}/required");
            let names = value.as_array().filter(|names| names.iter().all(Value::is_string));
            let Some(names) = names else {
                return Err(Fault::new(here, "`required` is an array of strings"));
            };
            out.insert("required".to_owned(), json!(names));
        }
        let further =
            ["additionalProperties", "unevaluatedProperties"].into_iter().find(|k| fields.contains_key(*k));
        if let Some(key) = further {
            let schema = self.schema(&fields[key], &format!("{at}/{key}"), depth + 1, closed)?;
            out.insert("additionalProperties".to_owned(), schema);
        }
        self.property_names(fields, at, closed, out)?;
        let limits = self.limits;
        for key in ["minProperties", "maxProperties"] {
            if let Some(count) = count(fields, key, at, limits)? {
                out.insert(key.to_owned(), json!(count));
            }
        }
        let names = out.get("properties").and_then(Value::as_object);
        let names_any = names.is_some();
        let undeclared: Vec<String> = out
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .filter(|name| names.is_none_or(|names| !names.contains_key(*name)))
            .map(str::to_owned)
            .collect();
        let open = !out.contains_key("additionalProperties");
        if open && closed && names_any && !out.contains_key("patternProperties") {
            // A name that is required but not declared may have any value.
            for name in undeclared {
                let free = self.free_value(closed);
                if let Some(members) = out.get_mut("properties").and_then(Value::as_object_mut) {
                    members.insert(name, free);
                }
            }
            if !out.contains_key("minProperties") || names_enough(out) {
                out.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Ok(())
    }

    /// `propertyNames` says of names what can be said by other keywords.
    fn property_names(
        &mut self,
        fields: &Fields,
        at: &str,
        closed: bool,
        out: &mut Fields,
    ) -> Result<(), Fault> {
        let Some(names) = fields.get("propertyNames") else { return Ok(()) };
        let here = format!("{at}/propertyNames");
        let inner = match names {
            Value::Bool(true) => return Ok(()),
            Value::Object(inner) => inner,
            _ => return Err(Fault::new(here, "`propertyNames` is a schema; `false` is not supported")),
        };
        let said: Vec<&String> =
            inner.keys().filter(|key| keyword::kind(key) != Kind::Annotation && *key != "type").collect();
        let further = out.remove("additionalProperties").unwrap_or_else(|| self.free_value(closed));
        let plain = !out.contains_key("properties") && !out.contains_key("patternProperties");
        match said.as_slice() {
            [] => {
                out.insert("additionalProperties".to_owned(), further);
            }
            [key] if *key == "enum" && plain => {
                let listed = inner["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let members: Fields = listed.map(|name| (name.to_owned(), further.clone())).collect();
                out.insert("properties".to_owned(), Value::Object(members));
                out.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            [key] if *key == "pattern" && plain && inner["pattern"].is_string() => {
                let pattern = inner["pattern"].as_str().unwrap_or_default();
                out.insert("patternProperties".to_owned(), json!({ pattern: further }));
                out.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            _ => {
                let message =
                    "`propertyNames` is supported with `enum` or `pattern` alone, and without `properties`";
                return Err(Fault::new(here, message));
            }
        }
        Ok(())
    }

    fn arrays(
        &mut self,
        fields: &Fields,
        at: &str,
        depth: usize,
        closed: bool,
        out: &mut Fields,
    ) -> Result<(), Fault> {
        let list = |key: &str| fields.get(key).and_then(Value::as_array).map(|list| (key.to_owned(), list));
        // Before 2020 a list of schemas stood in `items`, and the rest in `additionalItems`.
        let (prefix, rest) = match list("items") {
            Some(prefix) => (Some(prefix), "additionalItems"),
            None => (list("prefixItems"), "items"),
        };
        if fields.contains_key("prefixItems") && !fields["prefixItems"].is_array() {
            return Err(Fault::new(format!("{at}/prefixItems"), "`prefixItems` is an array of schemas"));
        }
        if let Some((key, schemas)) = prefix {
            let mut lowered = Vec::new();
            for (i, schema) in schemas.iter().enumerate() {
                lowered.push(self.schema(schema, &format!("{at}/{key}/{i}"), depth + 1, closed)?);
            }
            out.insert("prefixItems".to_owned(), Value::Array(lowered));
        }
        let rest = [rest, "unevaluatedItems"].into_iter().find(|key| fields.contains_key(*key));
        if let Some(rest) = rest {
            let schema = self.schema(&fields[rest], &format!("{at}/{rest}"), depth + 1, closed)?;
            out.insert("items".to_owned(), schema);
        }
        let limits = self.limits;
        for key in ["minItems", "maxItems"] {
            if let Some(count) = count(fields, key, at, limits)? {
                out.insert(key.to_owned(), json!(count));
            }
        }
        if fields.get("uniqueItems") == Some(&Value::Bool(true)) {
            let few = out.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most <= 1);
            if !few {
                return Err(Fault::new(format!("{at}/uniqueItems"), "`uniqueItems` is not supported"));
            }
        }
        Ok(())
    }
}

/// Adds a schema that must hold too.
fn also(out: &mut Fields, part: Value) {
    match out.get_mut("allOf").and_then(Value::as_array_mut) {
        Some(all) => all.push(part),
        None => {
            out.insert("allOf".to_owned(), Value::Array(vec![part]));
        }
    }
}

/// Whether the declared properties can reach `minProperties`.
fn names_enough(out: &Fields) -> bool {
    let declared = out.get("properties").and_then(Value::as_object).map_or(0, Map::len) as u64;
    out.get("minProperties").and_then(Value::as_u64).is_none_or(|least| least <= declared)
}

fn types(value: &Value, here: &str) -> Result<Value, Fault> {
    let known = |value: &Value| value.as_str().is_some_and(|name| keyword::TYPES.contains(&name));
    match value {
        Value::String(_) if known(value) => Ok(value.clone()),
        Value::Array(all) if !all.is_empty() && all.iter().all(known) => {
            let mut distinct: Vec<Value> = Vec::new();
            for one in all {
                if !distinct.contains(one) {
                    distinct.push(one.clone());
                }
            }
            Ok(Value::Array(distinct))
        }
        other => {
            Err(Fault::new(here, format!("a type is one of {}, not {other}", keyword::TYPES.join(", "))))
        }
    }
}

/// A count that a keyword gives.
fn count(fields: &Fields, key: &str, at: &str, limits: &Limits) -> Result<Option<u64>, Fault> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    let here = format!("{at}/{key}");
    let whole = value.as_u64().or_else(|| {
        let value = value.as_f64().filter(|value| *value >= 0.0 && value.fract() == 0.0);
        value.map(|value| value as u64)
    });
    let Some(whole) = whole else {
        return Err(Fault::new(here, format!("`{key}` is a whole number of at least 0, not {value}")));
    };
    let limit = if key.ends_with("Length") { limits.length } else { limits.count };
    if key.starts_with("min") && whole > limit {
        return Err(Fault::new(here, format!("`{key}` is at most {limit}")));
    }
    Ok(Some(whole.min(limit)))
}

fn strings(fields: &Fields, at: &str, limits: &Limits, out: &mut Fields) -> Result<(), Fault> {
    for key in ["minLength", "maxLength"] {
        if let Some(count) = count(fields, key, at, limits)? {
            out.insert(key.to_owned(), json!(count));
        }
    }
    if let Some(value) = fields.get("pattern") {
        let Some(pattern) = value.as_str() else {
            return Err(Fault::new(format!("{at}/pattern"), "`pattern` is a string"));
        };
        out.insert("pattern".to_owned(), json!(pattern));
    }
    if let Some(value) = fields.get("format") {
        let Some(name) = value.as_str() else {
            return Err(Fault::new(format!("{at}/format"), "`format` is a string"));
        };
        // The table has formats of strings; the same words beside numbers are annotations.
        let mut types = vec![fields.get("type").cloned().unwrap_or_else(|| json!("string"))];
        if let Some(Value::Array(all)) = types.first().cloned() {
            types = all;
        }
        if types.iter().any(|one| one == "string") {
            match (format::pattern(name), out.contains_key("pattern")) {
                (Some(format), false) => {
                    out.insert("pattern".to_owned(), json!(format));
                }
                (Some(format), true) => {
                    let both = json!({ "type": "string", "pattern": format });
                    let rest: Vec<&Value> = types.iter().filter(|one| *one != "string").collect();
                    let both =
                        if rest.is_empty() { both } else { json!({ "anyOf": [both, { "type": rest }] }) };
                    also(out, both);
                }
                (None, _) => {}
            }
        }
    }
    Ok(())
}

fn numbers(fields: &Fields, at: &str, out: &mut Fields) -> Result<(), Fault> {
    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"] {
        let Some(value) = fields.get(key) else { continue };
        let here = format!("{at}/{key}");
        match value {
            // Draft 4: whether `minimum` or `maximum` itself is left out.
            Value::Bool(exclusive) if key.starts_with("exclusive") => {
                let plain = if key.ends_with("Minimum") { "minimum" } else { "maximum" };
                if let (true, Some(bound)) = (exclusive, fields.get(plain)) {
                    // A bound that was brought inwards is one that may be said.
                    if bound.as_f64().is_some_and(|bound| bound.abs() <= LARGEST as f64) {
                        out.insert(key.to_owned(), bound.clone());
                        out.remove(plain);
                    }
                }
            }
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                if key == "multipleOf" && !keyword::is_handy_step(number) {
                    let message = "`multipleOf` is a number above 0 with few digits";
                    return Err(Fault::new(here, message));
                }
                if key == "multipleOf" {
                    out.insert(key.to_owned(), value.clone());
                    continue;
                }
                if number.is_nan() || keyword::is_out_of_reach(key, number) {
                    let message =
                        format!("numbers beyond ±{LARGEST} are not exact, and `{key}` leaves no others");
                    return Err(Fault::new(here, message));
                }
                if number.abs() <= LARGEST as f64 {
                    out.insert(key.to_owned(), value.clone());
                } else if key.ends_with("inimum") {
                    // The bound is further out than where exact numbers end: inwards to there.
                    out.entry("minimum").or_insert_with(|| json!(-LARGEST));
                } else {
                    out.entry("maximum").or_insert_with(|| json!(LARGEST));
                }
            }
            other => return Err(Fault::new(here, format!("`{key}` is a number, not {other}"))),
        }
    }
    Ok(())
}

/// Any value; a number within its bounds.
fn bounded_numbers() -> Value {
    let others = ["string", "boolean", "null", "object", "array"];
    json!({ "anyOf": [{ "type": others }, { "type": "number", "minimum": -LARGEST, "maximum": LARGEST }] })
}

fn free_name(depth: usize) -> String {
    format!("free{depth}")
}

/// Adds the definitions of a value of which nothing is said.
fn add_free_values(definitions: &mut Fields) {
    let number = json!({ "type": "number", "minimum": -LARGEST, "maximum": LARGEST });
    let mut all =
        vec![json!({ "type": "string" }), number, json!({ "type": "boolean" }), json!({ "type": "null" })];
    definitions.insert(free_name(0), json!({ "anyOf": all.clone() }));
    let plain = all.len();
    for depth in 1..=FREE_DEPTH {
        let inner = json!({ "$ref": format!("#/$defs/{}", free_name(depth - 1)) });
        all.truncate(plain);
        all.push(json!({ "type": "object", "additionalProperties": inner }));
        all.push(json!({ "type": "array", "items": inner }));
        definitions.insert(free_name(depth), json!({ "anyOf": all.clone() }));
    }
}

/// A key as JSON pointers write it.
pub(crate) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
