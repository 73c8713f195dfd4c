//! Conditions of a route, in the words of MongoDB's queries: `{"metadata.plan": {"$eq": "free"}}`.
//!
//! `$eq $ne $gt $gte $lt $lte $in $nin $exists` over a fact, `$and $or $not` over conditions, and `$not` over tests of
//! a fact. Several members of one object must all hold. As in MongoDB what is not there is not equal to anything and
//! neither greater nor less, so `$ne` and `$nin` hold for it; values of different types are never equal and in no order.

use super::facts::{Fact, Facts};
use protocol::Error;
use serde_json::{Map, Value};
use std::cmp::Ordering;

/// Conditions inside one another.
const DEPTH_MAX: usize = 16;

/// A condition.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// All of these.
    All(Vec<Condition>),
    /// One of these.
    Any(Vec<Condition>),
    /// Not this one.
    Not(Box<Condition>),
    /// A fact passes a test.
    Of(Fact, Test),
}

/// A test of a fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// All of these.
    All(Vec<Test>),
    /// Not this one.
    Not(Box<Test>),
    /// Equal.
    Eq(Value),
    /// Greater, or less, or equal to that as well.
    Order(&'static [Ordering], Value),
    /// Equal to one of these.
    In(Vec<Value>),
    /// There or not.
    Exists(bool),
}

/// The tests that compare.
const ORDERS: &[(&str, &[Ordering])] = &[
    ("$gt", &[Ordering::Greater]),
    ("$gte", &[Ordering::Greater, Ordering::Equal]),
    ("$lt", &[Ordering::Less]),
    ("$lte", &[Ordering::Less, Ordering::Equal]),
];

fn wrong<T>(at: &str, expected: &str) -> Result<T, Error> {
    Err(Error::invalid(at, format!("Invalid value for '{at}': expected {expected}")))
}

/// Reads a condition; `at` is its place, for errors.
///
/// # Errors
/// Names the member that is wrong.
pub fn parse(value: &Value, at: &str) -> Result<Condition, Error> {
    condition(value, at, 0)
}

fn condition(value: &Value, at: &str, depth: usize) -> Result<Condition, Error> {
    let Value::Object(members) = value else { return wrong(at, "an object") };
    if depth > DEPTH_MAX {
        return wrong(at, "conditions that do not nest so deeply");
    }
    let mut all = Vec::with_capacity(members.len());
    for (name, value) in members {
        let place = format!("{at}.{name}");
        let list = || match value {
            Value::Array(list) if !list.is_empty() => list
                .iter()
                .enumerate()
                .map(|(index, value)| condition(value, &format!("{place}[{index}]"), depth + 1))
                .collect::<Result<Vec<_>, _>>(),
            _ => wrong(&place, "a list of conditions"),
        };
        all.push(match name.as_str() {
            "$and" => Condition::All(list()?),
            "$or" => Condition::Any(list()?),
            "$not" => Condition::Not(Box::new(condition(value, &place, depth + 1)?)),
            name if name.starts_with('$') => return wrong(&place, "$and, $or, $not or a fact"),
            name => Condition::Of(Fact::parse(name, &place)?, test(value, &place, depth + 1)?),
        });
    }
    match all.len() {
        0 => wrong(at, "at least one condition"),
        1 => Ok(all.remove(0)),
        _ => Ok(Condition::All(all)),
    }
}

fn test(value: &Value, at: &str, depth: usize) -> Result<Test, Error> {
    let tests = match value {
        Value::Object(members) if members.keys().any(|name| name.starts_with('$')) => members,
        Value::Object(_) | Value::Array(_) => {
            return wrong(at, "a plain value, or tests such as {\"$eq\": …}");
        }
        plain => return Ok(Test::Eq(plain.clone())),
    };
    if depth > DEPTH_MAX {
        return wrong(at, "conditions that do not nest so deeply");
    }
    let mut all = all_tests(tests, at, depth)?;
    Ok(if all.len() == 1 { all.remove(0) } else { Test::All(all) })
}

fn all_tests(tests: &Map<String, Value>, at: &str, depth: usize) -> Result<Vec<Test>, Error> {
    let mut all = Vec::with_capacity(tests.len());
    for (name, value) in tests {
        let place = format!("{at}.{name}");
        let plain = || match value {
            Value::Array(_) | Value::Object(_) => wrong(&place, "a text, a number, a truth value or null"),
            plain => Ok(plain.clone()),
        };
        let list = || match value {
            Value::Array(list) if !list.iter().any(|value| value.is_array() || value.is_object()) => {
                Ok(list.clone())
            }
            _ => wrong(&place, "a list of plain values"),
        };
        all.push(match name.as_str() {
            "$eq" => Test::Eq(plain()?),
            "$ne" => Test::Not(Box::new(Test::Eq(plain()?))),
            "$in" => Test::In(list()?),
            "$nin" => Test::Not(Box::new(Test::In(list()?))),
            "$exists" => match value {
                Value::Bool(there) => Test::Exists(*there),
                _ => return wrong(&place, "true or false"),
            },
            "$not" => Test::Not(Box::new(test(value, &place, depth + 1)?)),
            name => match ORDERS.iter().find(|(known, _)| *known == name) {
                Some((_, orders)) if value.is_number() || value.is_string() => {
                    Test::Order(orders, value.clone())
                }
                Some(_) => return wrong(&place, "a number or a text"),
                None => return wrong(&place, "$eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, $exists or $not"),
            },
        });
    }
    Ok(all)
}

/// Whether two values are the same; numbers by what they count, however they are written.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b) == Ordering::Equal,
        _ => a == b,
    }
}

fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

impl Test {
    fn holds(&self, found: Option<&Value>) -> bool {
        match self {
            Self::All(tests) => tests.iter().all(|test| test.holds(found)),
            Self::Not(test) => !test.holds(found),
            // What is not there is null too, as in MongoDB.
            Self::Eq(Value::Null) => found.is_none_or(Value::is_null),
            Self::Eq(value) => found.is_some_and(|found| same(found, value)),
            Self::Order(orders, value) => {
                found.and_then(|found| order(found, value)).is_some_and(|order| orders.contains(&order))
            }
            Self::In(values) => {
                let found = found.unwrap_or(&Value::Null);
                values.iter().any(|value| same(found, value))
            }
            Self::Exists(there) => found.is_some() == *there,
        }
    }
}

impl Condition {
    /// Whether it holds.
    #[must_use]
    pub fn holds(&self, facts: &Facts) -> bool {
        match self {
            Self::All(conditions) => conditions.iter().all(|condition| condition.holds(facts)),
            Self::Any(conditions) => conditions.iter().any(|condition| condition.holds(facts)),
            Self::Not(condition) => !condition.holds(facts),
            Self::Of(fact, test) => test.holds(facts.get(fact).as_deref()),
        }
    }

    /// The facts that it looks at, in order.
    pub fn facts<'a>(&'a self, found: &mut Vec<&'a Fact>) {
        match self {
            Self::All(conditions) | Self::Any(conditions) => {
                conditions.iter().for_each(|condition| condition.facts(found));
            }
            Self::Not(condition) => condition.facts(found),
            Self::Of(fact, _) => found.push(fact),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(condition: Value, expected: bool) {
        let mut facts = Facts {
            metadata: json!({"plan": "free", "age": 7, "vip": true, "a.b": "dotted"})
                .as_object()
                .unwrap()
                .clone(),
            body: json!({"max_tokens": 100, "messages": [{"role": "user"}]}),
            key: Some("key_1".into()),
            ..Facts::default()
        };
        facts.header("X-Team", "search");
        facts.header("Authorization", "Bearer secret");
        let parsed = parse(&condition, "c").unwrap_or_else(|error| panic!("{condition}: {error}"));
        assert_eq!(parsed.holds(&facts), expected, "{condition}");
    }

    #[test]
    fn tests_are_mongodbs() {
        for (condition, expected) in [
            (json!({"metadata.plan": "free"}), true),
            (json!({"metadata.plan": {"$eq": "paid"}}), false),
            (json!({"metadata.plan": {"$ne": "paid"}}), true),
            (json!({"metadata.none": {"$ne": "paid"}}), true),
            (json!({"metadata.none": {"$eq": null}}), true),
            (json!({"metadata.age": {"$gt": 6, "$lte": 7}}), true),
            (json!({"metadata.age": {"$gt": 7}}), false),
            (json!({"metadata.age": 7.0}), true),
            (json!({"metadata.age": {"$gt": "6"}}), false),
            (json!({"metadata.none": {"$lt": 6}}), false),
            (json!({"metadata.plan": {"$gte": "fre"}}), true),
            (json!({"metadata.plan": {"$in": ["a", "free"]}}), true),
            (json!({"metadata.none": {"$nin": ["a"]}}), true),
            (json!({"metadata.none": {"$in": ["a", null]}}), true),
            (json!({"metadata.none": {"$nin": [null]}}), false),
            (json!({"metadata.plan": {"$in": [null]}}), false),
            (json!({"metadata.vip": {"$exists": true}}), true),
            (json!({"metadata.none": {"$exists": true}}), false),
            (json!({"metadata.age": {"$not": {"$gt": 9}}}), true),
            (json!({"metadata.a.b": "dotted"}), true),
            (json!({"$or": [{"metadata.plan": "paid"}, {"metadata.vip": true}]}), true),
            (json!({"$and": [{"metadata.plan": "free"}, {"metadata.vip": false}]}), false),
            (json!({"$not": {"metadata.plan": "paid"}}), true),
            (json!({"metadata.plan": "free", "metadata.vip": true}), true),
            (json!({"headers.x-team": "search", "body.max_tokens": {"$lt": 101}, "key": "key_1"}), true),
            (json!({"body.messages.0.role": "user"}), true),
        ] {
            check(condition, expected);
        }
    }

    #[test]
    fn a_condition_that_cannot_be_is_named_by_its_place() {
        for (condition, at) in [
            (json!(1), "c"),
            (json!({}), "c"),
            (json!({"plan": "free"}), "c.plan"),
            (json!({"$nor": []}), "c.$nor"),
            (json!({"$or": []}), "c.$or"),
            (json!({"$or": [{"metadata.a": 1}, {"x": 1}]}), "c.$or[1].x"),
            (json!({"metadata.a": {"$regex": "x"}}), "c.metadata.a.$regex"),
            (json!({"metadata.a": {"$gt": true}}), "c.metadata.a.$gt"),
            (json!({"metadata.a": {"$in": "x"}}), "c.metadata.a.$in"),
            (json!({"metadata.a": [1]}), "c.metadata.a"),
            (json!({"headers.authorization": "x"}), "c.headers.authorization"),
        ] {
            assert_eq!(parse(&condition, "c").unwrap_err().param.as_deref(), Some(at), "{condition}");
        }
        let mut deep = json!({"metadata.a": 1});
        (0..40).for_each(|_| deep = json!({"$not": deep}));
        assert!(parse(&deep, "c").is_err());
    }
}
