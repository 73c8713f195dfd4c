//! OpenAI's Responses API: body to canonical request, answer to one object or to its events.
//!
//! A response is a turn of a conversation: items that go in, items that come out. Its items are numbered through and
//! their ids hold the response's, so that an item is found without an index. Keeping them is the server's business.

mod conversation;
mod events;
mod item;
mod output;
mod request;
mod tools;

pub use super::Head;
pub use events::{Responding, broken};
pub use item::Item;
pub use request::{Asked, Form, parse};

use serde_json::Value;

/// What ids of responses begin with.
const PREFIX: &str = "resp_";

/// Characters of an id that items share with their response.
const TURN: usize = 32;

/// The id of a response; `turn` is 32 hexadecimal digits.
#[must_use]
pub fn response_id(turn: &str) -> String {
    format!("{PREFIX}{turn}")
}

/// The part of a response's id that its items share.
fn turn_of(response: &str) -> &str {
    response.strip_prefix(PREFIX).unwrap_or(response)
}

fn item_id(prefix: &str, turn: &str, number: usize) -> String {
    format!("{prefix}_{turn}{number:04x}")
}

/// The response whose item this id names, and the item's number in it: input first, then output.
#[must_use]
pub fn place_of(item: &str) -> Option<(String, usize)> {
    let (_, rest) = item.split_once('_')?;
    let (turn, number) = rest.split_at_checked(TURN)?;
    let hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (hexadecimal(turn) && hexadecimal(number))
        .then(|| Some((response_id(turn), usize::from_str_radix(number, 16).ok()?)))?
}

/// Input items on the wire, with the ids that they have as the first items of this response.
#[must_use]
pub fn written_input(response: &str, input: &[Item]) -> Vec<Value> {
    let turn = turn_of(response);
    let items = input.iter().enumerate();
    items.map(|(number, item)| item.write(&item_id(item.prefix(), turn, number))).collect()
}

#[cfg(test)]
mod tests;
