//! What Python's strings, lists and dicts and Jinja2's own tests and filters do where minijinja and its
//! `pycompat` differ or have nothing.
//!
//! Invariant: a template that renders in Python renders to the same text here, as far as templates lean on
//! these. Not here: the `%` operator on strings and unary `+`, which minijinja's grammar has no hook for.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Adds all of it to an environment.
pub(super) fn install(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(method);
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // Jinja2 asks whether there are a length and items by index, which strings and dicts have too.
    env.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Undefined | ValueKind::String | ValueKind::Bytes | ValueKind::Seq | ValueKind::Map
        )
    });
    env.add_test("callable", is_callable);
    env.add_filter("trim", |text: String, chars: Option<String>| {
        trimmed(&text, chars.as_deref(), true, true)
    });
    env.add_filter("escape", |text: String| escaped(&text));
    env.add_filter("e", |text: String| escaped(&text));
    env.add_filter("int", int);
}

/// What `str.isspace` says of a character: Unicode's white space and the four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `\r\n` and `\r` as `\n`, as Jinja2 reads its source.
pub(super) fn with_plain_newlines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

fn is_callable(value: &Value) -> bool {
    // Functions are the objects without a structure of their own. A macro cannot be told from a map.
    matches!(value.kind(), ValueKind::Plain) && value.as_object().is_some()
}

fn trimmed(text: &str, chars: Option<&str>, left: bool, right: bool) -> String {
    let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(cut) } else { text };
    let text = if right { text.trim_end_matches(cut) } else { text };
    text.to_owned()
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `int`, which gives its default, zero unless said otherwise, for what is no number.
fn int(state: &State, value: Value, default: Option<Value>, base: Option<u32>, kwargs: Kwargs) -> Value {
    let default = default.or_else(|| kwargs.get("default").ok()).unwrap_or_else(|| Value::from(0));
    minijinja::filters::int(state, &value, Some(default.clone()), base, kwargs).unwrap_or(default)
}

fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let known = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => string_method(text, name, args)?,
        (ValueKind::Seq, _) => match name {
            "index" => {
                let (item,): (&Value,) = from_args(args)?;
                let at = value.try_iter()?.position(|other| other == *item);
                Some(Value::from(at.ok_or_else(|| absent("the item is not in the list"))?))
            }
            "copy" => copied(value, args)?,
            _ => None,
        },
        (ValueKind::Map, _) if name == "copy" => copied(value, args)?,
        _ => None,
    };
    match known {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Values cannot be changed here, so that a copy is the value itself.
fn copied(value: &Value, args: &[Value]) -> Result<Option<Value>, Error> {
    let () = from_args(args)?;
    Ok(Some(value.clone()))
}

fn absent(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// The methods of strings that are other than `pycompat`'s; `None` for all else.
fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(trimmed(text, chars, name != "rstrip", name != "lstrip"))
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(is_space))
        }
        "split" | "rsplit" => {
            let (separator, most, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = if kwargs.has("sep") { kwargs.get("sep")? } else { separator };
            let most = if kwargs.has("maxsplit") { kwargs.get("maxsplit")? } else { most };
            kwargs.assert_all_used()?;
            let most = most.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            split(text, separator, most, name == "rsplit")?.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            lines(text, keep.unwrap_or(false)).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let last = name == "rpartition";
            let parts = match if last { text.rsplit_once(separator) } else { text.split_once(separator) } {
                Some((before, after)) => [before, separator, after],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (skipped, part) = window(text, start, end);
            let at = part.and_then(|part| {
                let at = if name.starts_with('r') { part.rfind(what) } else { part.find(what) };
                at.map(|at| skipped + part[..at].chars().count())
            });
            match at {
                Some(at) => Value::from(at),
                None if name.ends_with("find") => Value::from(-1),
                None => return Err(absent("the text is not in the string")),
            }
        }
        _ => return Ok(None),
    }))
}

/// The characters of `text` from `start` to `end` as a slice would have them, with how many are before;
/// `None` where the start lies beyond the end.
fn window(text: &str, start: Option<i64>, end: Option<i64>) -> (usize, Option<&str>) {
    let count = text.chars().count();
    let place = |at: i64| {
        let back = usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX);
        if at < 0 { count.saturating_sub(back) } else { back }
    };
    let (start, end) = (start.map_or(0, place), end.map_or(count, place).min(count));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    (start, (start <= end).then(|| &text[byte(start)..byte(end)]))
}

fn split<'a>(
    text: &'a str,
    separator: Option<&str>,
    most: usize,
    from_right: bool,
) -> Result<Vec<&'a str>, Error> {
    let pieces = most.saturating_add(1);
    let mut out: Vec<&str> = match separator {
        Some("") => return Err(absent("empty separator")),
        Some(separator) if from_right => text.rsplitn(pieces, separator).collect(),
        Some(separator) => text.splitn(pieces, separator).collect(),
        None => {
            let mut out = Vec::new();
            let trim = |text: &'a str| {
                if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) }
            };
            let mut rest = trim(text);
            while !rest.is_empty() {
                // With all splits used up the rest keeps the white space of its far end.
                let at = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
                let Some(at) = at.filter(|_| out.len() < most) else {
                    out.push(rest);
                    break;
                };
                let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                let (piece, remains) =
                    if from_right { (&rest[after..], &rest[..at]) } else { (&rest[..at], &rest[after..]) };
                out.push(piece);
                rest = trim(remains);
            }
            out
        }
    };
    if from_right {
        out.reverse();
    }
    Ok(out)
}

/// `str.splitlines`: at every line boundary that Unicode has.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let wide = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        out.push(&rest[..if keep { at + wide } else { at }]);
        rest = &rest[at + wide..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}
