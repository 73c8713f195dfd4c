//! Calls as a Python list of calls, `[f(a=1, b="x"), g()]`, and as lines of Python.
//!
//! Literals only: nothing is evaluated. Also takes JSON's `true`, `false` and `null`, which a grammar of ours
//! writes, and an argument list that is one dictionary (`f(**{"a": 1})`).

use super::declared::Declared;
use super::json::{Call, Scan};
use serde_json::{Map, Number, Value};

const DEEPEST: u32 = 100;

/// Where in a bracketed expression a scan stands.
#[derive(Clone, Debug, Default)]
pub(super) struct PythonScan {
    depth: u32,
    quote: Option<u8>,
    escaped: bool,
}

impl PythonScan {
    /// Goes on at `from`, until the outermost bracket closes.
    pub fn run(&mut self, text: &str, from: usize) -> Scan {
        for (i, byte) in text.bytes().enumerate().skip(from) {
            if let Some(quote) = self.quote {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'\n' => return Scan::Bad(i),
                    _ if byte == quote => self.quote = None,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' | b'\'' => self.quote = Some(byte),
                b'[' | b'(' | b'{' => {
                    if self.depth == DEEPEST {
                        return Scan::Bad(i);
                    }
                    self.depth += 1;
                }
                b']' | b')' | b'}' => {
                    if self.depth == 0 {
                        return Scan::Bad(i);
                    }
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Scan::End(i + 1);
                    }
                }
                _ => {}
            }
        }
        Scan::More
    }
}

/// Reads `[f(..), g(..)]`.
pub(super) fn list(text: &str, tools: &Declared) -> Result<Vec<Call>, String> {
    let mut reader = Reader { rest: text.trim(), tools };
    reader.expect('[')?;
    let mut calls = Vec::new();
    loop {
        if reader.take(']') {
            break;
        }
        calls.push(reader.call()?);
        if !reader.take(',') {
            reader.expect(']')?;
            break;
        }
    }
    reader.end()?;
    Ok(calls)
}

/// Reads one call, which may stand inside `print(..)`, or a list of calls.
pub(super) fn statement(text: &str, tools: &Declared) -> Result<Vec<Call>, String> {
    let text = text.trim();
    if text.starts_with('[') {
        return list(text, tools);
    }
    let mut reader = Reader { rest: text, tools };
    let printed = !tools.has("print") && text.starts_with("print(");
    if printed {
        reader.rest = &reader.rest["print(".len()..];
    }
    let call = reader.call()?;
    if printed {
        reader.expect(')')?;
    }
    reader.end()?;
    Ok(vec![call])
}

struct Reader<'a> {
    rest: &'a str,
    tools: &'a Declared,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, c: char) -> bool {
        self.space();
        let after = self.rest.strip_prefix(c);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.take(c) { Ok(()) } else { Err(format!("the call lacks '{c}' where it needs one")) }
    }

    fn end(&mut self) -> Result<(), String> {
        self.space();
        if self.rest.is_empty() { Ok(()) } else { Err("something stands after the calls".into()) }
    }

    fn call(&mut self) -> Result<Call, String> {
        self.space();
        let Some(name) = self.tools.called(self.rest) else {
            let named: String = self.rest.chars().take_while(|c| *c != '(').take(64).collect();
            return Err(format!("there is no tool {named:?}"));
        };
        self.rest = &self.rest[name.len() + 1..];
        let mut arguments = Map::new();
        let mut place = 0;
        loop {
            if self.take(')') {
                break;
            }
            if let Some(rest) = self.rest.strip_prefix("**") {
                self.rest = rest;
                let Value::Object(all) = self.value(0)? else {
                    return Err("** needs a dictionary".into());
                };
                arguments.extend(all);
            } else if let Some(key) = self.keyword(name) {
                let value = self.value(0)?;
                arguments.insert(key, value);
            } else {
                let value = self.value(0)?;
                let key = self.tools.property(name, place).ok_or("an argument has no name")?;
                place += 1;
                arguments.insert(key.to_owned(), value);
            }
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(Call { name: name.to_owned(), arguments: Value::Object(arguments).to_string() })
    }

    /// `key=`, also a key of the schema that Python could not write.
    fn keyword(&mut self, tool: &str) -> Option<String> {
        self.space();
        let mut place = 0;
        while let Some(key) = self.tools.property(tool, place) {
            if let Some(rest) = self.rest.strip_prefix(key)
                && let Some(rest) = rest.trim_start().strip_prefix('=')
            {
                self.rest = rest;
                return Some(key.to_owned());
            }
            place += 1;
        }
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        let (key, rest) = self.rest.split_at(end);
        let rest = rest.trim_start().strip_prefix('=').filter(|rest| !rest.starts_with('='))?;
        if key.is_empty() {
            return None;
        }
        self.rest = rest;
        Some(key.to_owned())
    }

    fn value(&mut self, depth: u32) -> Result<Value, String> {
        if depth == DEEPEST {
            return Err("the arguments are nested too deeply".into());
        }
        self.space();
        match self.rest.bytes().next() {
            Some(b'"' | b'\'') => {
                let mut text = self.string()?;
                // Strings side by side are one.
                while self.rest.trim_start().starts_with(['"', '\'']) {
                    self.space();
                    text.push_str(&self.string()?);
                }
                Ok(Value::String(text))
            }
            Some(b'[') => self.items('[', ']', depth),
            Some(b'(') => self.items('(', ')', depth),
            Some(b'{') => self.dictionary(depth),
            _ => self.word(),
        }
    }

    fn items(&mut self, open: char, close: char, depth: u32) -> Result<Value, String> {
        self.expect(open)?;
        let mut items = Vec::new();
        loop {
            if self.take(close) {
                break;
            }
            items.push(self.value(depth + 1)?);
            if !self.take(',') {
                self.expect(close)?;
                break;
            }
        }
        Ok(Value::Array(items))
    }

    fn dictionary(&mut self, depth: u32) -> Result<Value, String> {
        self.expect('{')?;
        let mut fields = Map::new();
        loop {
            if self.take('}') {
                break;
            }
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                Value::Number(key) => key.to_string(),
                _ => return Err("a key is no text".into()),
            };
            self.expect(':')?;
            let value = self.value(depth + 1)?;
            fields.insert(key, value);
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        Ok(Value::Object(fields))
    }

    fn word(&mut self) -> Result<Value, String> {
        let other = |c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '+' | '-'));
        let (word, rest) = self.rest.split_at(self.rest.find(other).unwrap_or(self.rest.len()));
        let value = match word {
            "True" | "true" => Value::Bool(true),
            "False" | "false" => Value::Bool(false),
            "None" | "null" => Value::Null,
            _ => Value::Number(number(word).ok_or_else(|| {
                let shown: String = word.chars().take(64).collect();
                format!("{shown:?} is no value")
            })?),
        };
        self.rest = rest;
        Ok(value)
    }

    fn string(&mut self) -> Result<String, String> {
        let unended = || "a text has no end".to_owned();
        let mut chars = self.rest.char_indices();
        let (_, quote) = chars.next().ok_or_else(unended)?;
        let mut text = String::new();
        loop {
            let (i, c) = chars.next().ok_or_else(unended)?;
            if c == quote {
                self.rest = &self.rest[i + c.len_utf8()..];
                return Ok(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let (_, escape) = chars.next().ok_or_else(unended)?;
            let mut code = |digits: usize| -> Result<u32, String> {
                let mut code = 0;
                for _ in 0..digits {
                    let digit = chars.next().and_then(|(_, c)| c.to_digit(16));
                    code = code * 16 + digit.ok_or("an escape lacks digits")?;
                }
                Ok(code)
            };
            match escape {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                'v' => text.push('\u{b}'),
                '0' => text.push('\0'),
                '\n' => {}
                '\\' | '"' | '\'' | '/' => text.push(escape),
                'x' | 'u' | 'U' => {
                    let digits = if escape == 'x' {
                        2
                    } else if escape == 'u' {
                        4
                    } else {
                        8
                    };
                    let mut scalar = code(digits)?;
                    // JSON writes what lies beyond the first plane as a pair.
                    if (0xd800..0xdc00).contains(&scalar) && chars.as_str().starts_with("\\u") {
                        chars.next();
                        chars.next();
                        let mut low = 0;
                        for _ in 0..4 {
                            let digit = chars.next().and_then(|(_, c)| c.to_digit(16));
                            low = low * 16 + digit.ok_or("an escape lacks digits")?;
                        }
                        if (0xdc00..0xe000).contains(&low) {
                            scalar = 0x1_0000 + ((scalar - 0xd800) << 10) + (low - 0xdc00);
                        }
                    }
                    text.push(char::from_u32(scalar).ok_or("an escape names no character")?);
                }
                other => text.extend(['\\', other]),
            }
        }
    }
}

fn number(word: &str) -> Option<Number> {
    let plain = word.strip_prefix('+').unwrap_or(word);
    // JSON's spelling first, which keeps what was written; then Python's (`1.`, `.5`, `007`, `1_000`).
    serde_json::from_str(plain).ok().or_else(|| {
        let plain = plain.replace('_', "");
        if !plain.bytes().any(|b| b.is_ascii_digit()) || plain.contains(char::is_whitespace) {
            return None;
        }
        plain.parse::<i64>().ok().map(Number::from).or_else(|| Number::from_f64(plain.parse().ok()?))
    })
}

/// A JSON value as a Python literal.
pub(super) fn python_text(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        // JSON's strings and numbers are Python's too, but for a character that Python ends a line with.
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(python_text).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let pair = |(key, value): (&String, &Value)| {
                format!("{}: {}", Value::from(key.as_str()), python_text(value))
            };
            format!("{{{}}}", fields.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Tool;
    use serde_json::json;

    fn tools() -> Declared {
        let parameters = json!({"type": "object", "properties": {"a": {}, "b": {}}});
        let tool = |name: &str| Tool {
            name: name.into(),
            description: None,
            parameters: Some(parameters.clone()),
            strict: None,
            cache: None,
        };
        Declared::new(&[tool("f"), tool("math.sum")])
    }

    #[track_caller]
    fn check(text: &str, expected: &[(&str, &str)]) {
        let calls = statement(text, &tools()).unwrap();
        let calls: Vec<_> = calls.iter().map(|c| (c.name.as_str(), c.arguments.as_str())).collect();
        assert_eq!(calls, expected, "{text}");
    }

    #[test]
    fn literals_become_json() {
        check("[f(a=1, b=\"x\")]", &[("f", r#"{"a":1,"b":"x"}"#)]);
        check(
            "[f(), math.sum(a=[1, 2.5], b=None)]",
            &[("f", "{}"), ("math.sum", r#"{"a":[1,2.5],"b":null}"#)],
        );
        check("f(a={'k': (True, false)}, b='it\\'s')", &[("f", r#"{"a":{"k":[true,false]},"b":"it's"}"#)]);
        check("print(f(a=-1e3, b=.5))", &[("f", r#"{"a":-1000.0,"b":0.5}"#)]);
        check("f(1, 'two')", &[("f", r#"{"a":1,"b":"two"}"#)]);
        check(
            "[f(**{\"a\": 1}, c=\"\\u00e9\\ud83d\\ude00\\x41\\d\"),]",
            &[("f", r#"{"a":1,"c":"é😀A\\d"}"#)],
        );
        check("f(a='x' \"y\", b = '(])')", &[("f", r#"{"a":"xy","b":"(])"}"#)]);
    }

    #[test]
    fn what_is_no_call_is_refused() {
        for text in
            ["g()", "f(a=b)", "f(a=1", "[f() g()]", "f(a=1) + 1", "f(1, 2, 3)", "f(a='\\ud83d')", "f(=1)"]
        {
            assert!(statement(text, &tools()).is_err(), "{text}");
        }
        assert!(statement(&format!("f(a={})", "[".repeat(5000)), &tools()).is_err());
    }
}
