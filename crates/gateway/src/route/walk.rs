//! A walk through a route: a plain state machine, which says what to do next and is told how that went.
//!
//! It counts nothing and asks nobody. What it took, and why, it remembers for `explain`.

use super::facts::{Facts, shown};
use super::graph::{Element, Graph, Model, Rate};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// One edge that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The element.
    pub element: String,
    /// Its kind.
    pub kind: &'static str,
    /// The edge's name; nothing where the way ends here.
    pub edge: Option<String>,
    /// The element that it leads to.
    pub to: Option<String>,
    /// Why, for people.
    pub why: String,
}

impl Taken {
    /// As JSON.
    #[must_use]
    pub fn object(&self) -> Value {
        let Self { element, kind, edge, to, why } = self;
        json!({"element": element, "type": kind, "edge": edge, "to": to, "why": why})
    }
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn<'a> {
    /// Ask whether a rate lets the request pass, and tell it by [`Walk::told`].
    Count(&'a str, &'a Rate),
    /// Ask a model, and tell by [`Walk::told`] whether it answered.
    Ask(&'a str, &'a Model),
    /// Nothing: the way ends.
    End,
}

/// A walk.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    graph: &'a Graph,
    /// The id of the route, so that two routes draw apart.
    route: &'a str,
    facts: &'a Facts,
    at: &'a str,
    ended: bool,
    taken: Vec<Taken>,
}

/// A number from 0 to 100 for a session at an element; the same for ever.
#[must_use]
pub fn draw(route: &str, element: &str, session: &str) -> f64 {
    let mut hash = Sha256::new();
    for part in [route, element, session] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let bits = digest.iter().take(8).fold(0u64, |bits, byte| (bits << 8) | u64::from(*byte));
    (bits >> 11) as f64 / (1u64 << 53) as f64 * 100.0
}

impl<'a> Walk<'a> {
    /// A walk that begins.
    #[must_use]
    pub fn new(graph: &'a Graph, route: &'a str, facts: &'a Facts) -> Self {
        Self { graph, route, facts, at: &graph.start, ended: false, taken: Vec::new() }
    }

    fn element(&self) -> &'a Element {
        &self.graph.elements[self.at]
    }

    fn take(&mut self, edge: impl Into<String>, to: Option<&'a str>, why: impl Into<String>) {
        self.taken.push(Taken {
            element: self.at.to_owned(),
            kind: self.element().kind(),
            edge: Some(edge.into()),
            to: to.map(str::to_owned),
            why: why.into(),
        });
        match to {
            Some(to) => self.at = to,
            None => self.ended = true,
        }
    }

    /// Goes on to where something must be done.
    pub fn turn(&mut self) -> Turn<'a> {
        loop {
            if self.ended {
                return Turn::End;
            }
            match self.element() {
                Element::Start { next } => self.take("next", Some(next), "requests come in here"),
                Element::Conditional { condition, yes, no } => {
                    let mut facts = Vec::new();
                    condition.facts(&mut facts);
                    let seen: Vec<String> = facts
                        .iter()
                        .map(|fact| format!("{fact} is {}", shown(self.facts.get(fact).as_deref())))
                        .collect();
                    let holds = condition.holds(self.facts);
                    let (edge, to, word) =
                        if holds { ("true", yes, "holds") } else { ("false", no, "does not hold") };
                    self.take(edge, Some(to), format!("the condition {word}: {}", seen.join(", ")));
                }
                Element::Percentage { shares, rest } => {
                    let drawn = draw(self.route, self.at, &self.facts.session);
                    let mut end = 0.0;
                    let share = shares.iter().find(|(share, _)| {
                        end += share;
                        drawn < end
                    });
                    // Shares of 100 together leave nothing but a rounding.
                    let last = shares.last().map(|(share, to)| (format!("{share}%"), to));
                    let (edge, to) = match (share, rest) {
                        (Some((share, to)), _) => (format!("{share}%"), to),
                        (None, Some(rest)) => ("else".to_owned(), rest),
                        (None, None) => last.expect("a percentage has at least one share"),
                    };
                    self.take(edge, Some(to), format!("the session draws {drawn:.2} of 100"));
                }
                Element::Rate(rate) => return Turn::Count(self.at, rate),
                Element::Model(model) => return Turn::Ask(self.at, model),
                Element::End => {
                    self.taken.push(Taken {
                        element: self.at.to_owned(),
                        kind: "end",
                        edge: None,
                        to: None,
                        why: "the way ends".to_owned(),
                    });
                    self.ended = true;
                }
            }
        }
    }

    /// Tells how the last turn went, and why, for people.
    ///
    /// # Panics
    /// When nothing was to be done.
    pub fn told(&mut self, passed: bool, why: impl Into<String>) {
        let (success, fallback) = match self.element() {
            Element::Rate(rate) => (&rate.success, rate.fallback.as_deref()),
            Element::Model(model) => (&model.success, model.fallback.as_deref()),
            other => unreachable!("an element '{}' asks for nothing", other.kind()),
        };
        if passed {
            self.take("success", Some(success), why);
        } else {
            self.take("fallback", fallback, why);
        }
    }

    /// The edges that were taken.
    #[must_use]
    pub fn taken(&self) -> &[Taken] {
        &self.taken
    }
}
