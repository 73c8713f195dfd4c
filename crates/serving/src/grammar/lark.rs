//! From a rule to the grammar library's own form.
//!
//! A rule becomes a right-linear grammar: each nonterminal is a list of alternatives, and an alternative is
//! a terminal and what follows it. That form is needed for `Text`: the library's lexer takes the longest
//! match, so that "any text" would swallow a marker that is spelled in characters. Where such a marker may
//! follow, text and marker are one lazy terminal; where a marker is a token of its own, the token ends the
//! text by itself.

use super::Rule;
use super::schema::{self, Limits};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use protocol::Error;
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::Write;
use tokenizer::Tokenizer;

/// Nonterminals and alternatives of one grammar, at most.
const MOST_PARTS: usize = 20_000;
/// A Lark grammar has at most so many bytes; the library goes down a chain of rules by recursion.
const LONGEST_LARK: usize = 64 << 10;
/// A Lark grammar has at most so many lines; the library's work on a fault grows with their square.
const MOST_LINES: usize = 500;
/// Brackets in a Lark grammar or regular expression nest at most so deep, by a count that ignores quotes.
const DEEPEST_BRACKETS: usize = 200;
/// `Repeat` writes its rule out so many times, at most.
const MOST_COPIES: u32 = 128;

/// A place in the grammar: an index into `Builder::nodes`.
type Node = usize;

#[derive(Clone, PartialEq)]
enum Terminal {
    /// These characters.
    Literal(String),
    /// This token.
    Token(u32),
    /// A grammar of its own, by index.
    Nested(usize),
    /// Text without these markers; at least a character.
    Text(Vec<String>),
    /// Text up to and with the first occurrence of these characters.
    Until(String),
}

/// What may stand at a place.
enum Place {
    /// The answer ends.
    End,
    /// This, and then what stands there.
    Then(Terminal, Node),
    /// What may stand at one of these.
    Either(Vec<Node>),
    /// Any text without these markers, and then what stands there.
    Free(Vec<String>, Node),
}

/// One way to go on from a place, all places that say nothing themselves gone through.
#[derive(Clone)]
enum Way {
    End,
    Then(Terminal, Node),
    /// Text, then only those ways of this `Free` place that follow a text of their own accord.
    Behind(Terminal, Node),
}

struct Builder<'a> {
    tokenizer: &'a Tokenizer,
    nodes: Vec<Place>,
    nested: Vec<GrammarWithLexer>,
    /// What the nested grammars were made of, to share them.
    sources: Vec<&'a Rule>,
}

/// The library's grammar for a rule.
pub(super) fn grammar(rule: &Rule, tokenizer: &Tokenizer) -> Result<TopLevelGrammar, Error> {
    let mut builder = Builder { tokenizer, nodes: Vec::new(), nested: Vec::new(), sources: Vec::new() };
    let end = builder.node(Place::End)?;
    let start = builder.build(rule, end)?;
    let mut grammars = vec![GrammarWithLexer {
        name: Some("answer".to_owned()),
        json_schema: None,
        lark_grammar: Some(builder.text(start)?),
    }];
    grammars.append(&mut builder.nested);
    Ok(TopLevelGrammar { grammars, max_tokens: None })
}

/// The library's form of a part that came from the request.
pub(super) fn leaf(rule: &Rule) -> Result<GrammarWithLexer, Error> {
    let mut grammar = GrammarWithLexer { name: None, json_schema: None, lark_grammar: None };
    match rule {
        Rule::Json { schema, at, exact } => {
            let lowered = schema::lower(schema, "", *exact, &Limits::default());
            let lowered = lowered.map_err(|fault| fault.at(at))?;
            grammar.json_schema = Some(lowered);
        }
        Rule::Regex { pattern, at } => {
            if pattern.len() > LONGEST_LARK {
                return Err(Error::invalid(at, format!("an expression has at most {LONGEST_LARK} bytes")));
            }
            shallow(pattern, at)?;
            grammar.lark_grammar = Some(format!("start: /{}/", llguidance::regex_to_lark(pattern, "")));
        }
        Rule::Lark { grammar: text, at } => {
            if text.len() > LONGEST_LARK {
                return Err(Error::invalid(at, format!("a grammar has at most {LONGEST_LARK} bytes")));
            }
            if text.lines().count() > MOST_LINES {
                return Err(Error::invalid(at, format!("a grammar has at most {MOST_LINES} lines")));
            }
            shallow(text, at)?;
            grammar.lark_grammar = Some(text.clone());
        }
        _ => {}
    }
    Ok(grammar)
}

impl<'a> Builder<'a> {
    fn node(&mut self, place: Place) -> Result<Node, Error> {
        if self.nodes.len() >= MOST_PARTS {
            return Err(too_large());
        }
        self.nodes.push(place);
        Ok(self.nodes.len() - 1)
    }

    /// The place where `rule` and then `next` may stand.
    fn build(&mut self, rule: &'a Rule, next: Node) -> Result<Node, Error> {
        match rule {
            Rule::Literal(text) if text.is_empty() => Ok(next),
            Rule::Literal(text) => self.node(Place::Then(Terminal::Literal(text.clone()), next)),
            Rule::Marker(text) => {
                let terminal = match self.tokenizer.token_id(text) {
                    Some(id) => Terminal::Token(id),
                    None => Terminal::Literal(text.clone()),
                };
                self.node(Place::Then(terminal, next))
            }
            Rule::Json { .. } | Rule::Regex { .. } | Rule::Lark { .. } => {
                let nested = self.nested(rule)?;
                self.node(Place::Then(Terminal::Nested(nested), next))
            }
            Rule::Text { before } => self.node(Place::Free(before.clone(), next)),
            Rule::Sequence(rules) => rules.iter().rev().try_fold(next, |next, rule| self.build(rule, next)),
            Rule::OneOf(rules) => {
                let all = rules.iter().map(|rule| self.build(rule, next)).collect::<Result<_, _>>()?;
                self.node(Place::Either(all))
            }
            Rule::Repeat { rule, least, most } => self.repeat(rule, *least, *most, next),
        }
    }

    fn nested(&mut self, rule: &'a Rule) -> Result<usize, Error> {
        if let Some(known) = self.sources.iter().position(|source| *source == rule) {
            return Ok(known);
        }
        let mut grammar = leaf(rule)?;
        grammar.name = Some(format!("part{}", self.nested.len()));
        self.nested.push(grammar);
        self.sources.push(rule);
        Ok(self.nested.len() - 1)
    }

    fn repeat(&mut self, rule: &'a Rule, least: u32, most: Option<u32>, next: Node) -> Result<Node, Error> {
        if least.max(most.unwrap_or(0)) > MOST_COPIES || most.is_some_and(|most| most < least) {
            return Err(too_large());
        }
        let mut node = match most {
            Some(most) => {
                let mut node = next;
                for _ in least..most {
                    let more = self.build(rule, node)?;
                    node = self.node(Place::Either(vec![more, next]))?;
                }
                node
            }
            None => {
                let again = self.node(Place::Either(vec![next]))?;
                let more = self.build(rule, again)?;
                self.nodes[again] = Place::Either(vec![more, next]);
                again
            }
        };
        for _ in 0..least {
            node = self.build(rule, node)?;
        }
        Ok(node)
    }

    /// The ways to go on from a place.
    fn ways(&self, node: Node, seen: &mut Vec<Node>, out: &mut Vec<Way>) {
        if seen.contains(&node) {
            return;
        }
        seen.push(node);
        match &self.nodes[node] {
            Place::End => out.push(Way::End),
            Place::Then(terminal, next) => out.push(Way::Then(terminal.clone(), *next)),
            Place::Either(all) => all.iter().for_each(|node| self.ways(*node, seen, out)),
            Place::Free(before, next) => {
                let mut following = Vec::new();
                self.ways(*next, seen, &mut following);
                let mut ends = false;
                for way in following {
                    match way {
                        // Characters after a text: the text ends at their first occurrence.
                        Way::Then(Terminal::Literal(text), then) => {
                            out.push(Way::Then(Terminal::Until(text), then));
                        }
                        other => {
                            ends = true;
                            out.push(other);
                        }
                    }
                }
                if ends {
                    out.push(Way::Behind(Terminal::Text(before.clone()), *next));
                }
            }
        }
    }

    /// The grammar as the library reads it: `nI` is what may stand at a place, `eI` what may stand there behind
    /// a text.
    fn text(&self, start: Node) -> Result<String, Error> {
        let mut out = format!("start: n{start}\n");
        let mut terminals: Vec<Terminal> = Vec::new();
        let mut seen = HashSet::from([(start, false)]);
        let mut open = vec![(start, false)];
        let mut parts = 0;
        while let Some((node, behind)) = open.pop() {
            let mut ways = Vec::new();
            self.ways(node, &mut Vec::new(), &mut ways);
            if behind {
                ways.retain(|way| !matches!(way, Way::Then(Terminal::Literal(_) | Terminal::Until(_), _)));
            }
            parts += ways.len();
            if parts > MOST_PARTS {
                return Err(too_large());
            }
            let mut written = Vec::new();
            for way in ways {
                let (terminal, next, behind) = match way {
                    Way::End => {
                        written.push("\"\"".to_owned());
                        continue;
                    }
                    Way::Then(terminal, next) => (terminal, next, false),
                    Way::Behind(terminal, next) => (terminal, next, true),
                };
                if seen.insert((next, behind)) {
                    open.push((next, behind));
                }
                let name = match &terminal {
                    Terminal::Literal(text) => quoted(text),
                    Terminal::Token(id) => format!("<[{id}]>"),
                    Terminal::Nested(i) => format!("@part{i}"),
                    Terminal::Text(_) | Terminal::Until(_) => {
                        let text = matches!(terminal, Terminal::Text(_));
                        let known = terminals.iter().position(|other| *other == terminal);
                        let i = known.unwrap_or(terminals.len());
                        if known.is_none() {
                            terminals.push(terminal);
                        }
                        format!("{}{i}", if text { "TEXT" } else { "until" })
                    }
                };
                written.push(format!("{name} {}{next}", if behind { 'e' } else { 'n' }));
            }
            let name = if behind { 'e' } else { 'n' };
            let _ = writeln!(out, "{name}{node}: {}", written.join("\n  | "));
        }
        for (i, terminal) in terminals.iter().enumerate() {
            match terminal {
                Terminal::Text(before) => {
                    let _ = write!(out, "TEXT{i}: /(?s:.+)/");
                    for marker in before {
                        let _ = write!(out, " & ~/(?s:.*){}(?s:.*)/", pattern(marker));
                    }
                    out.push('\n');
                }
                Terminal::Until(marker) => {
                    let _ = writeln!(out, "until{i}[lazy]: /(?s:.*){}/", pattern(marker));
                }
                Terminal::Literal(_) | Terminal::Token(_) | Terminal::Nested(_) => {}
            }
        }
        Ok(out)
    }
}

/// Refuses what nests so deep that reading it could exhaust a stack.
fn shallow(text: &str, at: &str) -> Result<(), Error> {
    let (mut depth, mut deepest) = (0usize, 0);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' | '~' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > DEEPEST_BRACKETS {
        return Err(Error::invalid(at, format!("brackets nest more than {DEEPEST_BRACKETS} deep")));
    }
    Ok(())
}

fn too_large() -> Error {
    Error::new(
        protocol::ErrorKind::InvalidRequest,
        "the request's tools and formats make too large a grammar",
    )
}

/// A string of the grammar language.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A regular expression for these characters, between slashes.
fn pattern(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_alphanumeric() || !c.is_ascii() || c == ' ' || c == '_' => out.push(c),
            // An escaped slash would end the expression early.
            '/' => out.push_str("\\/"),
            c => {
                let _ = write!(out, "\\x{{{:x}}}", c as u32);
            }
        }
    }
    out
}
