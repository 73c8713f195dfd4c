//! Whether what begins without a marker looks like a call to a declared tool.
//!
//! Decided on the head of the text alone, within a bound, so that an answer that merely holds JSON or code is
//! not held back. A later look at more text never takes back what was decided.

use super::block::{Seen, starts};
use super::declared::Declared;
use super::form::string;
use super::json::{Quoted, quoted};

/// What a text looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// No call.
    No,
    /// Cannot be told yet.
    More,
    /// Perhaps a call; its name comes later.
    Maybe,
    /// A call to a declared tool.
    Sure,
}

/// Objects, or an array of them. `doubled`: the first brace may stand twice.
pub(super) fn objects(text: &str, tools: &Declared, doubled: bool) -> Looks {
    let seen = &text[..text.floor_char_boundary(tools.head())];
    match object_head(seen, tools, doubled) {
        Looks::More if seen.len() < text.len() => Looks::No,
        looks => looks,
    }
}

fn object_head(text: &str, tools: &Declared, doubled: bool) -> Looks {
    let mut rest = text.trim_start();
    rest = rest.strip_prefix('[').unwrap_or(rest).trim_start();
    match starts(rest, "{") {
        Seen::Yes if doubled && rest[1..].starts_with('{') => rest = rest[2..].trim_start(),
        Seen::Yes => rest = rest[1..].trim_start(),
        Seen::Part => return Looks::More,
        Seen::No => return Looks::No,
    }
    let key = match quoted(rest) {
        Quoted::More => {
            let known = ["name", "function", "type", "id", "arguments", "parameters"];
            let may = known.iter().any(|known| rest.is_empty() || known.starts_with(&rest[1..]));
            return if may { Looks::More } else { Looks::No };
        }
        Quoted::No => return Looks::No,
        Quoted::Whole(key, length) => {
            rest = rest[length..].trim_start();
            key
        }
    };
    match key.as_str() {
        "type" | "id" | "arguments" | "parameters" => return Looks::Maybe,
        "name" | "function" => {}
        _ => return Looks::No,
    }
    match starts(rest, ":") {
        Seen::Yes => rest = rest[1..].trim_start(),
        Seen::Part => return Looks::More,
        Seen::No => return Looks::No,
    }
    if key == "function" && rest.starts_with('{') {
        return Looks::Maybe;
    }
    match quoted(rest) {
        Quoted::More => Looks::More,
        Quoted::Whole(name, _) if tools.has(&name) => Looks::Sure,
        Quoted::Whole(..) | Quoted::No => Looks::No,
    }
}

/// Whether a call that looks sure begins exactly as grammars write it, so that they hold from there on.
pub(super) fn exact(text: &str, tools: &Declared) -> bool {
    let Some(rest) = text.strip_prefix("{\"name\": ") else { return false };
    let Quoted::Whole(name, length) = quoted(rest) else { return false };
    tools.has(&name) && rest[..length] == string(&name)
}

/// `[name(`.
pub(super) fn python(text: &str, tools: &Declared) -> Looks {
    let seen = &text[..text.floor_char_boundary(tools.head())];
    let rest = seen.strip_prefix('[').unwrap_or(seen).trim_start();
    if tools.called(rest).is_some() {
        Looks::Sure
    } else if tools.may_be_called(rest) && seen.len() == text.len() {
        Looks::More
    } else {
        Looks::No
    }
}

/// A fenced block.
pub(super) enum Fence {
    No,
    More,
    /// It may hold calls, `skip` bytes on.
    Yes {
        skip: usize,
        code: bool,
    },
}

pub(super) fn fence(text: &str, tools: &Declared, doubled: bool) -> Fence {
    let rest = match starts(text, "```") {
        Seen::Yes => &text[3..],
        Seen::Part => return Fence::More,
        Seen::No => return Fence::No,
    };
    let Some(end) = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_') else {
        return if rest.len() > 16 { Fence::No } else { Fence::More };
    };
    let (language, body) = rest.split_at(end);
    let skip = text.len() - body.len();
    let code = match language {
        "" | "json" | "tool_call" | "tool_calls" => false,
        "tool_code" | "python" => true,
        _ => return Fence::No,
    };
    let looks = if code { statement(body, tools) } else { objects(body, tools, doubled) };
    match looks {
        Looks::No => Fence::No,
        Looks::More => Fence::More,
        Looks::Maybe | Looks::Sure => Fence::Yes { skip, code },
    }
}

fn statement(text: &str, tools: &Declared) -> Looks {
    let rest = text[..text.floor_char_boundary(tools.head())].trim_start();
    let inner = rest.strip_prefix("print(").unwrap_or(rest);
    match python(inner, tools) {
        Looks::No if starts(rest, "print(") == Seen::Part => Looks::More,
        looks => looks,
    }
}

/// Whether the block that a text begins names a declared tool.
pub(super) fn is_sure(text: &str, tools: &Declared, doubled: bool) -> bool {
    let body = text.find(['{', '[']).map_or("", |at| &text[at..]);
    let head = text.len() - body.len();
    head <= 32 && (objects(body, tools, doubled) == Looks::Sure || python(body, tools) == Looks::Sure)
}
