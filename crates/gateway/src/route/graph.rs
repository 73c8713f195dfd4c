//! A version of a route: elements with edges between them, read and checked as a whole.
//!
//! Invariant of a [`Graph`]: one start, every edge leads to an element, no way leads back, every element can be reached,
//! and what a model answers goes to the end. So a walk ends, and asks each model once at the most. Two spellings are read:
//! that of AI Gateway's documents (`rate_limit`, `interval`, `condition`) and that of its SDK (`rate`, `window`, `conditions`).

use super::condition::{self, Condition};
use super::facts::Fact;
use base::NanoUsd;
use protocol::Error;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most elements.
const ELEMENTS_MAX: usize = 100;

/// Most shares of a percentage, beside the rest.
const SHARES_MAX: usize = 5;

/// Most attempts at a model.
const RETRIES_MAX: u64 = 4;

/// Longest time to a model's first byte, and longest window of a rate, in their units.
const TIMEOUT_MAX_MS: u64 = 3_600_000;
const WINDOW_MAX_S: u64 = 366 * 86_400;

/// A version of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub(super) elements: BTreeMap<String, Element>,
    pub(super) start: String,
}

/// What stands at a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Element {
    /// Where requests come in.
    Start {
        /// The next element.
        next: String,
    },
    /// Two ways by a condition.
    Conditional {
        /// The condition.
        condition: Condition,
        /// Where it holds.
        yes: String,
        /// Where it does not.
        no: String,
    },
    /// Ways by chance.
    Percentage {
        /// Per cent of the requests, and where they go.
        shares: Vec<(f64, String)>,
        /// Where the others go.
        rest: Option<String>,
    },
    /// Two ways by how much was used.
    Rate(Rate),
    /// A model is asked.
    Model(Model),
    /// The way ends.
    End,
}

/// How much may pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// What is counted apart.
    pub key: Fact,
    /// How much passes in a window.
    pub limit: Limit,
    /// The window.
    pub window: Duration,
    /// Whether the window moves with each request; else windows begin at multiples of their length since 1970.
    pub sliding: bool,
    /// Where requests go that pass.
    pub success: String,
    /// Where the others go; without it they are refused.
    pub fallback: Option<String>,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests that pass this element.
    Count(u64),
    /// What requests of the gateway cost, by the ledger.
    Cost(NanoUsd),
}

/// A model that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The provider's name; `workers-ai` for a model of this server.
    pub provider: String,
    /// The model by its name there.
    pub model: String,
    /// Longest time to the first byte, for each attempt; none: the provider's.
    pub timeout: Option<Duration>,
    /// Attempts after the first; none: as the gateway has it.
    pub retries: Option<u32>,
    /// When a second request is sent beside the first: milliseconds, or `p95`.
    pub hedge: Option<String>,
    /// Where an answer goes.
    pub success: String,
    /// Where a failure goes; without it the failure is the answer.
    pub fallback: Option<String>,
}

impl Element {
    /// Its kind, in the words of AI Gateway's SDK.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Conditional { .. } => "conditional",
            Self::Percentage { .. } => "percentage",
            Self::Rate(_) => "rate",
            Self::Model(_) => "model",
            Self::End => "end",
        }
    }

    /// Its edges, by name.
    fn edges(&self) -> Vec<(String, &str)> {
        match self {
            Self::Start { next } => vec![("next".to_owned(), next)],
            Self::Conditional { yes, no, .. } => vec![("true".to_owned(), yes), ("false".to_owned(), no)],
            Self::Percentage { shares, rest } => shares
                .iter()
                .map(|(share, to)| (format!("{share}%"), to.as_str()))
                .chain(rest.iter().map(|to| ("else".to_owned(), to.as_str())))
                .collect(),
            Self::Rate(Rate { success, fallback, .. }) | Self::Model(Model { success, fallback, .. }) => {
                std::iter::once(("success".to_owned(), success.as_str()))
                    .chain(fallback.iter().map(|to| ("fallback".to_owned(), to.as_str())))
                    .collect()
            }
            Self::End => Vec::new(),
        }
    }
}

fn wrong<T>(at: &str, expected: &str) -> Result<T, Error> {
    Err(Error::invalid(at, format!("Invalid value for '{at}': expected {expected}")))
}

/// A member that must be a text with something in it.
fn text<'a>(object: &'a Map<String, Value>, name: &str, at: &str) -> Result<&'a str, Error> {
    match object.get(name).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Ok(text),
        _ => wrong(&format!("{at}.{name}"), "a text"),
    }
}

/// Reads the members of one element.
struct Reader<'a> {
    at: String,
    outputs: Map<String, Value>,
    properties: Option<&'a Map<String, Value>>,
}

impl<'a> Reader<'a> {
    fn properties(&self) -> Result<&'a Map<String, Value>, Error> {
        self.properties.map_or_else(|| wrong(&format!("{}.properties", self.at), "an object"), Ok)
    }

    /// The first of these properties that is there, with its place.
    fn first(&self, names: &[&str]) -> Result<(Option<&'a Value>, String), Error> {
        let properties = self.properties()?;
        let found = names.iter().find(|name| properties.get(**name).is_some_and(|value| !value.is_null()));
        let name = found.or(names.first()).copied().unwrap_or_default();
        Ok((found.map(|name| &properties[*name]), format!("{}.properties.{name}", self.at)))
    }

    /// Takes an edge.
    fn edge(&mut self, name: &str) -> Result<Option<String>, Error> {
        let Some(output) = self.outputs.remove(name).filter(|output| !output.is_null()) else {
            return Ok(None);
        };
        let at = format!("{}.outputs.{name}", self.at);
        let to = ["elementId", "element_id"].iter().find_map(|id| output.get(id)).and_then(Value::as_str);
        to.map_or_else(|| wrong(&at, "an object with 'elementId'"), |to| Ok(Some(to.to_owned())))
    }

    fn must(&mut self, name: &str) -> Result<String, Error> {
        let at = format!("{}.outputs.{name}", self.at);
        self.edge(name)?.map_or_else(|| wrong(&at, "an object with 'elementId'"), Ok)
    }

    /// A whole number of a property, within bounds.
    fn number(&self, names: &[&str], range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, Error> {
        let (value, at) = self.first(names)?;
        let Some(value) = value else { return Ok(None) };
        // SDKs write whole numbers as 3.0 too.
        let whole = value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..1e15).contains(number));
        match whole.map(|number| number as u64).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => wrong(&at, &format!("a whole number from {} to {}", range.start(), range.end())),
        }
    }

    fn conditional(&mut self) -> Result<Element, Error> {
        let (value, at) = self.first(&["conditions", "condition"])?;
        let Some(value) = value else { return wrong(&at, "a condition") };
        let condition = condition::parse(value, &at)?;
        Ok(Element::Conditional { condition, yes: self.must("true")?, no: self.must("false")? })
    }

    fn percentage(&mut self) -> Result<Element, Error> {
        let at = format!("{}.outputs", self.at);
        let rest = self.edge("else")?;
        let names: Vec<String> = self.outputs.keys().cloned().collect();
        let (mut shares, mut sum) = (Vec::new(), 0.0);
        for name in names {
            let share = name.strip_suffix('%').and_then(|share| share.trim().parse::<f64>().ok());
            let Some(share) = share.filter(|share| *share > 0.0 && *share <= 100.0) else {
                return wrong(&format!("{at}.{name}"), "a name such as \"25%\", or \"else\"");
            };
            sum += share;
            shares.push((share, self.must(&name)?));
        }
        if shares.is_empty() || shares.len() > SHARES_MAX {
            return wrong(&at, &format!("from 1 to {SHARES_MAX} shares such as \"25%\", and \"else\""));
        }
        if sum > 100.0 + 1e-9 {
            return wrong(&at, &format!("shares of 100% together, not {sum}%"));
        }
        if rest.is_none() && sum < 100.0 - 1e-9 {
            return wrong(&format!("{at}.else"), &format!("an edge for the {}% that are left", 100.0 - sum));
        }
        Ok(Element::Percentage { shares, rest })
    }

    fn rate(&mut self) -> Result<Element, Error> {
        let (key, at) = self.first(&["key"])?;
        let Some(key) = key.and_then(Value::as_str) else {
            return wrong(&at, "a fact such as metadata.user");
        };
        let key = Fact::parse(key, &at)?;
        let (kind, kind_at) = self.first(&["limitType", "limit_type"])?;
        let limit = match kind.and_then(Value::as_str) {
            None | Some("count") => match self.number(&["limit"], 1..=1_000_000_000_000)? {
                Some(limit) => Limit::Count(limit),
                None => return wrong(&format!("{}.properties.limit", self.at), "a number of requests"),
            },
            Some("cost") => {
                if matches!(key, Fact::Header(_) | Fact::Body(_)) {
                    return wrong(
                        &at,
                        "metadata.NAME, key, account or gateway, by which the ledger knows costs",
                    );
                }
                let (dollars, at) = self.first(&["limit"])?;
                let dollars = dollars.and_then(Value::as_f64).filter(|dollars| (0.0..1e9).contains(dollars));
                let Some(dollars) = dollars else { return wrong(&at, "an amount in dollars") };
                Limit::Cost(NanoUsd((dollars * 1e9).round() as i64))
            }
            Some(_) => return wrong(&kind_at, "count or cost"),
        };
        let Some(window) = self.number(&["window", "interval"], 1..=WINDOW_MAX_S)? else {
            return wrong(&format!("{}.properties.window", self.at), "a number of seconds");
        };
        let (technique, at) = self.first(&["technique"])?;
        let sliding = match technique.map(Value::as_str) {
            None | Some(Some("fixed")) => false,
            Some(Some("sliding")) => true,
            Some(_) => return wrong(&at, "fixed or sliding"),
        };
        let window = Duration::from_secs(window);
        let (success, fallback) = (self.must("success")?, self.edge("fallback")?);
        Ok(Element::Rate(Rate { key, limit, window, sliding, success, fallback }))
    }

    fn model(&mut self) -> Result<Element, Error> {
        let properties = self.properties()?;
        let at = format!("{}.properties", self.at);
        let provider = text(properties, "provider", &at)?.to_owned();
        if provider == "dynamic" || provider.contains('/') {
            return wrong(&format!("{at}.provider"), "a provider, which no route is");
        }
        let model = text(properties, "model", &at)?.to_owned();
        let timeout = self.number(&["timeout"], 0..=TIMEOUT_MAX_MS)?.filter(|ms| *ms > 0);
        let retries = self.number(&["retries"], 0..=RETRIES_MAX)?;
        let (hedge, at) = self.first(&["hedge"])?;
        let hedge = match hedge {
            None => None,
            Some(Value::String(word)) if word == "p95" => Some(word.clone()),
            Some(_) => match self.number(&["hedge"], 1..=TIMEOUT_MAX_MS) {
                Ok(ms) => ms.map(|ms| ms.to_string()),
                Err(_) => return wrong(&at, "a number of milliseconds, or \"p95\""),
            },
        };
        let (success, fallback) = (self.must("success")?, self.edge("fallback")?);
        Ok(Element::Model(Model {
            provider,
            model,
            timeout: timeout.map(Duration::from_millis),
            retries: retries.and_then(|retries| u32::try_from(retries).ok()),
            hedge,
            success,
            fallback,
        }))
    }
}

fn element(value: &Value, at: &str) -> Result<(String, Element), Error> {
    let Value::Object(object) = value else { return wrong(at, "an object") };
    let id = text(object, "id", at)?.to_owned();
    let outputs = match object.get("outputs") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(outputs)) => outputs.clone(),
        Some(_) => return wrong(&format!("{at}.outputs"), "an object"),
    };
    let properties = object.get("properties").and_then(Value::as_object);
    let mut reader = Reader { at: at.to_owned(), outputs, properties };
    let element = match text(object, "type", at)? {
        "start" => Element::Start { next: reader.must("next")? },
        "conditional" => reader.conditional()?,
        "percentage" => reader.percentage()?,
        "rate" | "rate_limit" => reader.rate()?,
        "model" => reader.model()?,
        "end" => Element::End,
        _ => {
            let kinds = "start, conditional, percentage, rate, model or end";
            return wrong(&format!("{at}.type"), kinds);
        }
    };
    if let Some(more) = reader.outputs.keys().next() {
        return wrong(
            &format!("{at}.outputs"),
            &format!("no edge '{more}' of an element '{}'", element.kind()),
        );
    }
    Ok((id, element))
}

impl Graph {
    /// Reads the elements of a route and checks them as a whole.
    ///
    /// # Errors
    /// Names the element, and what of it is wrong.
    pub fn parse(elements: &Value) -> Result<Self, Error> {
        let Value::Array(list) = elements else { return wrong("elements", "a list of elements") };
        if list.is_empty() || list.len() > ELEMENTS_MAX {
            return wrong("elements", &format!("from 1 to {ELEMENTS_MAX} elements"));
        }
        let mut places = BTreeMap::new();
        let mut graph = Self { elements: BTreeMap::new(), start: String::new() };
        for (index, value) in list.iter().enumerate() {
            let at = format!("elements[{index}]");
            let (id, element) = element(value, &at)?;
            if places.insert(id.clone(), at.clone()).is_some() {
                return wrong(&format!("{at}.id"), "an id that no other element has");
            }
            if let Element::Start { .. } = element {
                if !graph.start.is_empty() {
                    return wrong(&at, "one element 'start' only");
                }
                graph.start.clone_from(&id);
            }
            graph.elements.insert(id, element);
        }
        if graph.start.is_empty() {
            return wrong("elements", "an element 'start'");
        }
        graph.check(&places)?;
        Ok(graph)
    }

    /// Checks the module's invariant; `places` is how elements are called in errors.
    fn check(&self, places: &BTreeMap<String, String>) -> Result<(), Error> {
        for (id, element) in &self.elements {
            for (name, to) in element.edges() {
                let at = format!("{}.outputs.{name}", places[id]);
                match self.elements.get(to) {
                    None => return wrong(&at, &format!("the id of an element; there is no '{to}'")),
                    Some(Element::Start { .. }) => return wrong(&at, "an element that is not the start"),
                    Some(Element::End) => {}
                    Some(_) if matches!(element, Element::Model(_)) && name == "success" => {
                        return wrong(&at, "an element 'end': an answer goes to the client");
                    }
                    Some(_) => {}
                }
            }
        }
        // Depth first: an element on the way that is met again closes a circle.
        let (mut done, mut way) = (BTreeMap::new(), vec![(self.start.as_str(), 0)]);
        done.insert(self.start.as_str(), false);
        while let Some((id, edge)) = way.pop() {
            let edges = self.elements[id].edges();
            let Some((name, to)) = edges.get(edge) else {
                done.insert(id, true);
                continue;
            };
            way.push((id, edge + 1));
            match done.get(to) {
                Some(true) => {}
                Some(false) => {
                    let at = format!("{}.outputs.{name}", places[id]);
                    return wrong(&at, &format!("an element that does not lead back; '{to}' does"));
                }
                None => {
                    let (to, _) = self.elements.get_key_value(*to).expect("every edge was looked up");
                    done.insert(to, false);
                    way.push((to, 0));
                }
            }
        }
        match self.elements.keys().find(|id| !done.contains_key(id.as_str())) {
            Some(id) => wrong(&places[id], "an element that can be reached from the start"),
            None => Ok(()),
        }
    }

    /// Whether it looks at the body of a request.
    #[must_use]
    pub fn reads_body(&self) -> bool {
        self.elements.values().any(|element| match element {
            Element::Conditional { condition, .. } => {
                let mut facts = Vec::new();
                condition.facts(&mut facts);
                facts.iter().any(|fact| matches!(fact, Fact::Body(_)))
            }
            Element::Rate(rate) => matches!(rate.key, Fact::Body(_)),
            Element::Start { .. } | Element::Percentage { .. } | Element::Model(_) | Element::End => false,
        })
    }
}
