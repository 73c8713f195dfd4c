//! The `tojson` filter as `transformers` sets it up: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! Keys keep their order; separators are `", "` and `": "`; with `indent` an item stands on its own line.
//! Numbers read as Python writes them.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest nesting that is written; templates see JSON that was parsed with a limit, this is a second one.
const DEPTH: usize = 256;

struct Style {
    indent: Option<String>,
    item: String,
    colon: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// The filter. Keyword arguments: `indent`, `ensure_ascii`, `separators`, `sort_keys`.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let ensure_ascii = positional_or(&args, 0, &kwargs, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = match positional_or(&args, 1, &kwargs, "indent")? {
        Some(v) if !v.is_none() => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(v)?.min(64)),
        }),
        _ => None,
    };
    let mut style = Style {
        item: if indent.is_some() { "," } else { ", " }.to_owned(),
        colon: ": ".to_owned(),
        indent,
        ensure_ascii,
        sort_keys: positional_or(&args, 3, &kwargs, "sort_keys")?.is_some_and(|v| v.is_true()),
    };
    if let Some(separators) = positional_or(&args, 2, &kwargs, "separators")?.filter(|v| !v.is_none()) {
        let text = |i: usize| {
            let part = separators.get_item_by_index(i)?;
            part.as_str().map(str::to_owned).ok_or_else(|| invalid("separators must be two strings"))
        };
        (style.item, style.colon) = (text(0)?, text(1)?);
    }
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(&mut out, value, &style, 0)?;
    state.consume_fuel(out.len() as u64 / 4)?;
    Ok(out)
}

fn positional_or(args: &[Value], at: usize, kwargs: &Kwargs, name: &str) -> Result<Option<Value>, Error> {
    match args.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get(name),
    }
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn write(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(invalid("the value is nested too deeply for JSON"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_container(out, style, depth, ['[', ']'], items.len(), |out, i| {
                write(out, &items[i], style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_container(out, style, depth, ['{', '}'], keys.len(), |out, i| {
                match keys[i].as_str() {
                    Some(key) => write_string(out, key, style.ensure_ascii),
                    None => {
                        let mut key = String::new();
                        write(&mut key, &keys[i], style, depth + 1)?;
                        write_string(out, &key, style.ensure_ascii);
                    }
                }
                out.push_str(&style.colon);
                write(out, &value.get_item(&keys[i])?, style, depth + 1)
            })?;
        }
        _ => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value of type {} is not JSON serializable", value.kind()),
            ));
        }
    }
    Ok(())
}

fn write_container(
    out: &mut String,
    style: &Style,
    depth: usize,
    brackets: [char; 2],
    len: usize,
    mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(brackets[0]);
    for i in 0..len {
        if i > 0 {
            out.push_str(&style.item);
        }
        line(out, style, depth + 1);
        item(out, i)?;
    }
    if len > 0 {
        line(out, style, depth);
    }
    out.push(brackets[1]);
    Ok(())
}

fn line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

fn write_number(out: &mut String, value: &Value) {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        out.push_str(&python_float(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
    }
}

/// A float as Python's `repr` and `json.dumps` write it.
fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Rust's `{:e}` gives the shortest digits that read back; Python uses the exponent outside [1e-4, 1e16).
    let shortest = format!("{x:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    use std::fmt::Write as _;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || ensure_ascii && (c as u32) > 0x7e => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_read_as_python_writes_them() {
        for (x, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e300, "1.25e+300"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(python_float(x), text);
        }
    }
}
