//! Whether a compiled grammar can come to an end: each rule that an answer may walk into must describe some text.
//!
//! Works on the library's own compiled form, so that it knows every construct. Conditions of parametric rules are
//! taken to hold, and a terminal to match something: what is refused has no end, not all without an end is refused.

use llguidance::earley::{CGrammar, CSymIdx};
use std::collections::HashSet;

/// Why no answer ends, or, where `everywhere`, why some answer that may be begun has no end; `None` where all is well.
pub(super) fn why(grammar: &CGrammar, everywhere: bool) -> Option<String> {
    let mut reached = HashSet::from([grammar.start()]);
    let mut open = vec![grammar.start()];
    let mut all = Vec::new();
    while let Some(symbol) = open.pop() {
        all.push(symbol);
        for rule in grammar.rules_of(symbol) {
            let parts = grammar.rule_rhs(*rule).0;
            open.extend(parts.iter().copied().filter(|part| reached.insert(*part)));
        }
    }
    // Grows until nothing is added: what ends by what is known to end. Each round is one pass over the grammar, and
    // from the far end of chains (which the search met last) few rounds are needed.
    let mut ends: HashSet<CSymIdx> = HashSet::new();
    loop {
        let before = ends.len();
        for symbol in all.iter().rev() {
            if !ends.contains(symbol) && can_end(grammar, *symbol, &ends) {
                ends.insert(*symbol);
            }
        }
        if ends.len() == before {
            break;
        }
    }
    if !ends.contains(&grammar.start()) {
        return Some(
            "no text of it ever ends: each way through its rules needs one of them again".to_owned(),
        );
    }
    let endless = all.iter().any(|symbol| !ends.contains(symbol));
    (everywhere && endless)
        .then(|| "it has a rule that never ends: each way through it needs the rule again".to_owned())
}

fn can_end(grammar: &CGrammar, symbol: CSymIdx, ends: &HashSet<CSymIdx>) -> bool {
    let data = grammar.sym_data(symbol);
    data.is_terminal
        || data.is_nullable
        || !data.cond_nullable.is_empty()
        || data.rules.is_empty()
        || data.rules.iter().any(|rule| grammar.rule_rhs(*rule).0.iter().all(|part| ends.contains(part)))
}
