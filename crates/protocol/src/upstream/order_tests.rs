//! The order of deltas, whatever order a provider says things in.

use super::*;

fn start(index: u32) -> Delta {
    Delta::ToolCallStart { choice: 0, index, id: format!("c{index}"), name: "f".into() }
}

fn more(index: u32, arguments: &str) -> Delta {
    Delta::ToolCallArguments { choice: 0, index, arguments: arguments.into() }
}

fn text(text: &str) -> Delta {
    Delta::Text { choice: 0, text: text.into(), logprobs: Vec::new() }
}

#[track_caller]
fn check(deltas: &[Delta], expected: &[Delta]) {
    let (mut order, mut out) = (InOrder::default(), Vec::new());
    deltas.iter().for_each(|delta| order.push(delta.clone(), &mut out));
    order.end(&mut out);
    assert_eq!(out, expected);
}

#[test]
fn calls_one_after_the_other_pass_as_they_come() {
    let deltas =
        [text("a"), start(0), more(0, "{\"x\":\"}"), more(0, "\"}"), start(1), more(1, "{}"), text("b")];
    check(&deltas, &deltas);
    let (mut order, mut out) = (InOrder::default(), Vec::new());
    for (count, delta) in deltas.iter().enumerate() {
        order.push(delta.clone(), &mut out);
        assert_eq!(out.len(), count + 1, "nothing is held back");
    }
}

#[test]
fn calls_whose_arguments_come_by_turns_are_put_one_after_the_other() {
    check(
        &[start(0), start(1), more(0, "{\"a\":"), more(1, "{}"), more(0, "1}"), text("x")],
        &[start(0), more(0, "{\"a\":"), more(0, "1}"), start(1), more(1, "{}"), text("x")],
    );
    // A call without arguments ends with the answer.
    check(&[start(0), start(1), more(1, "{}")], &[start(0), start(1), more(1, "{}")]);
}
