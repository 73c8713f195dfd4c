//! What was used and what it cost, added up by whatever people ask for.

use crate::Gateway;
use crate::account::number;
use base::NanoUsd;
use protocol::Error;
use serde_json::{Value, json};
use store::Row;

/// By what entries are put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// The account.
    Account,
    /// The key's id.
    Key,
    /// The model.
    Model,
    /// The provider.
    Provider,
    /// The gateway.
    Gateway,
    /// The value of a metadata key.
    Metadata(String),
    /// The hour in which the request began, in seconds since 1970.
    Hour,
    /// The same for the day, in UTC.
    Day,
}

impl Group {
    /// Reads `account`, `key`, `model`, `provider`, `gateway`, `hour`, `day` or `metadata.NAME`.
    ///
    /// # Errors
    /// When it is none of them.
    pub fn parse(word: &str) -> Result<Self, Error> {
        Ok(match word {
            "account" => Self::Account,
            "key" => Self::Key,
            "model" => Self::Model,
            "provider" => Self::Provider,
            "gateway" => Self::Gateway,
            "hour" => Self::Hour,
            "day" => Self::Day,
            _ => match word.strip_prefix("metadata.") {
                Some(name) if !name.is_empty() => Self::Metadata(name.to_owned()),
                _ => {
                    let shown: String = word.chars().take(64).collect();
                    let message = format!(
                        "Invalid value for 'group_by': '{shown}' is none of account, key, model, provider, gateway, \
                         hour, day, metadata.NAME"
                    );
                    return Err(Error::invalid("group_by", message));
                }
            },
        })
    }

    /// Its name in answers.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Account => "account".to_owned(),
            Self::Key => "key".to_owned(),
            Self::Model => "model".to_owned(),
            Self::Provider => "provider".to_owned(),
            Self::Gateway => "gateway".to_owned(),
            Self::Metadata(name) => format!("metadata.{name}"),
            Self::Hour => "hour".to_owned(),
            Self::Day => "day".to_owned(),
        }
    }
}

/// Which entries count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this account.
    pub account: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// Of this model.
    pub model: Option<String>,
    /// Of this provider.
    pub provider: Option<String>,
    /// Of this gateway.
    pub gateway: Option<String>,
    /// Begun at this second or later.
    pub from: Option<u64>,
    /// Begun before this second.
    pub to: Option<u64>,
}

/// A question to the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Which entries count.
    pub filter: Filter,
    /// One line for each that differs in one of these; with none, one line for all.
    pub groups: Vec<Group>,
}

/// Most groups of a question.
const GROUPS: usize = 8;

/// The sums over some entries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// What they have in common, in the order of the question: a text, a number, or nothing.
    pub groups: Vec<Value>,
    /// How many they are.
    pub requests: u64,
    /// Of these, not ended yet.
    pub open: u64,
    /// Of these, failed.
    pub failed: u64,
    /// Of these, interrupted.
    pub interrupted: u64,
    /// Of those that have ended, the ones whose cost is not known; it is not in `cost`.
    pub unpriced: u64,
    /// Tokens of prompts.
    pub input: u64,
    /// Of these, read from a cache.
    pub cached_input: u64,
    /// Of these, written to a cache.
    pub cache_write: u64,
    /// Tokens of answers.
    pub output: u64,
    /// Of these, thoughts.
    pub reasoning: u64,
    /// What is owed.
    pub cost: NanoUsd,
    /// How much more it would have been without cached tokens.
    pub saved: NanoUsd,
}

impl Line {
    /// Names of its columns, after those of the groups; money is in dollars.
    pub const COLUMNS: [&'static str; 12] = [
        "requests",
        "open",
        "failed",
        "interrupted",
        "unpriced",
        "input_tokens",
        "cached_input_tokens",
        "cache_write_tokens",
        "output_tokens",
        "reasoning_tokens",
        "cost",
        "saved",
    ];

    /// Their values, exact: money with all nine digits after the point.
    #[must_use]
    pub fn values(&self) -> [String; 12] {
        let count = |number: u64| number.to_string();
        [
            count(self.requests),
            count(self.open),
            count(self.failed),
            count(self.interrupted),
            count(self.unpriced),
            count(self.input),
            count(self.cached_input),
            count(self.cache_write),
            count(self.output),
            count(self.reasoning),
            exact(self.cost),
            exact(self.saved),
        ]
    }

    /// The line as an object.
    #[must_use]
    pub fn object(&self, groups: &[Group]) -> Value {
        let mut object = serde_json::Map::new();
        for (group, value) in groups.iter().zip(&self.groups) {
            object.insert(group.name(), value.clone());
        }
        for (name, value) in Self::COLUMNS.iter().zip(self.values()) {
            object.insert((*name).to_owned(), value.parse::<u64>().map_or(Value::Null, Value::from));
        }
        // Dollars as clients expect them, and whole billionths, which no float rounds.
        for (name, amount) in [("cost", self.cost), ("saved", self.saved)] {
            object.insert(name.to_owned(), json!(amount.dollars()));
            object.insert(format!("{name}_nano_usd"), json!(amount.0));
        }
        Value::Object(object)
    }

    /// All lines as comma-separated values with a head (RFC 4180).
    #[must_use]
    pub fn csv(lines: &[Self], groups: &[Group]) -> String {
        let names = groups.iter().map(Group::name).chain(Self::COLUMNS.map(str::to_owned));
        let mut text = csv_row(names);
        for line in lines {
            let groups = line.groups.iter().map(|value| match value {
                Value::Null => String::new(),
                Value::String(text) => no_formula(text),
                other => other.to_string(),
            });
            text += &csv_row(groups.chain(line.values()));
        }
        text
    }
}

/// Dollars with nine digits after the point.
fn exact(amount: NanoUsd) -> String {
    let sign = if amount.0 < 0 { "-" } else { "" };
    let nanos = amount.0.unsigned_abs();
    format!("{sign}{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

/// A caller's text as spreadsheets take it for a text: behind an apostrophe where it would be a formula (OWASP, "CSV
/// Injection").
fn no_formula(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() }
}

fn csv_row(fields: impl Iterator<Item = String>) -> String {
    let quoted = fields.map(|field| {
        if field.contains(['"', ',', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field
        }
    });
    quoted.collect::<Vec<_>>().join(",") + "\r\n"
}

impl Question {
    /// The query and its values.
    fn sql(&self) -> (String, Vec<store::Value>) {
        let mut values: Vec<store::Value> = Vec::new();
        let mut bind = |value: store::Value| {
            values.push(value);
            format!("?{}", values.len())
        };
        let mut columns = Vec::new();
        let mut joins = String::new();
        for (number, group) in self.groups.iter().enumerate() {
            columns.push(match group {
                Group::Account => "entries.account".to_owned(),
                Group::Key => "entries.key_id".to_owned(),
                Group::Model => "entries.model".to_owned(),
                Group::Provider => "entries.provider".to_owned(),
                Group::Gateway => "entries.gateway".to_owned(),
                Group::Hour => "entries.created / 3600 * 3600".to_owned(),
                Group::Day => "entries.created / 86400 * 86400".to_owned(),
                Group::Metadata(name) => {
                    let name = bind(name.as_str().into());
                    joins += &format!(
                        " LEFT JOIN gateway_ledger_metadata AS metadata{number}
                          ON metadata{number}.request = entries.request AND metadata{number}.name = {name}"
                    );
                    format!("metadata{number}.value")
                }
            });
        }
        let Filter { account, key, model, provider, gateway, from, to } = &self.filter;
        let mut conditions = Vec::new();
        for (column, wanted) in [
            ("account", account),
            ("key_id", key),
            ("model", model),
            ("provider", provider),
            ("gateway", gateway),
        ] {
            if let Some(wanted) = wanted {
                conditions.push(format!("entries.{column} = {}", bind(wanted.as_str().into())));
            }
        }
        for (comparison, second) in [(">=", from), ("<", to)] {
            if let Some(second) = second {
                conditions.push(format!("entries.created {comparison} {}", bind(number(*second).into())));
            }
        }
        let places: Vec<String> = (1..=columns.len()).map(|place| place.to_string()).collect();
        let count = |condition: &str| format!("CAST(sum(CASE WHEN {condition} THEN 1 ELSE 0 END) AS BIGINT)");
        columns.extend([
            "CAST(count(*) AS BIGINT)".to_owned(),
            count("entries.state = 'open'"),
            count("entries.state = 'failed'"),
            count("entries.state = 'interrupted'"),
            count("entries.state <> 'open' AND entries.cost IS NULL"),
        ]);
        for column in ["input", "cached_input", "cache_write", "output", "reasoning", "cost", "saved"] {
            columns.push(format!("CAST(coalesce(sum(entries.{column}), 0) AS BIGINT)"));
        }
        let mut sql = format!("SELECT {} FROM gateway_ledger AS entries{joins}", columns.join(", "));
        if !conditions.is_empty() {
            sql += &format!(" WHERE {}", conditions.join(" AND "));
        }
        if !places.is_empty() {
            let order: Vec<String> = places.iter().map(|place| format!("{place} NULLS FIRST")).collect();
            sql += &format!(" GROUP BY {} ORDER BY {}", places.join(", "), order.join(", "));
        }
        (sql, values)
    }

    fn line(&self, row: &Row) -> Result<Line, store::Error> {
        let mut groups = Vec::new();
        for (column, group) in self.groups.iter().enumerate() {
            groups.push(match group {
                Group::Hour | Group::Day => json!(row.integer(column)?),
                Group::Metadata(_) => match row.optional_text(column)? {
                    None => Value::Null,
                    Some(value) => serde_json::from_str(value).unwrap_or_else(|_| json!(value)),
                },
                _ => json!(row.optional_text(column)?),
            });
        }
        let sum = |column: usize| row.optional_integer(groups.len() + column).map(Option::unwrap_or_default);
        let count = |column: usize| sum(column).map(i64::unsigned_abs);
        Ok(Line {
            requests: count(0)?,
            open: count(1)?,
            failed: count(2)?,
            interrupted: count(3)?,
            unpriced: count(4)?,
            input: count(5)?,
            cached_input: count(6)?,
            cache_write: count(7)?,
            output: count(8)?,
            reasoning: count(9)?,
            cost: NanoUsd(sum(10)?),
            saved: NanoUsd(sum(11)?),
            groups,
        })
    }
}

impl Gateway {
    /// Answers a question.
    ///
    /// # Errors
    /// When it has too many groups, or the store fails.
    pub async fn usage(&self, question: Question) -> Result<Vec<Line>, Error> {
        if question.groups.len() > GROUPS {
            return Err(Error::invalid("group_by", format!("At most {GROUPS} groups can be asked for")));
        }
        let read = self.store().read(move |work| {
            let (sql, values) = question.sql();
            let rows = work.query(&sql, &values)?;
            rows.iter().map(|row| question.line(row)).collect::<Result<Vec<_>, _>>()
        });
        read.await.map_err(|error| crate::unavailable("The ledger cannot be read", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_written_with_all_its_digits() {
        for (nanos, text) in [
            (0, "0.000000000"),
            (1, "0.000000001"),
            (-1, "-0.000000001"),
            (1_500_000_000, "1.500000000"),
            (i64::MAX, "9223372036.854775807"),
        ] {
            assert_eq!(exact(NanoUsd(nanos)), text);
        }
    }

    #[test]
    fn fields_with_commas_and_quotes_come_back_from_the_table() {
        let line = Line { groups: vec![json!("a,\"b\""), Value::Null, json!(3)], ..Line::default() };
        let groups = [Group::Model, Group::Key, Group::Metadata("n".into())];
        let text = Line::csv(&[line], &groups);
        let mut rows = text.split("\r\n");
        assert!(rows.next().unwrap().starts_with("model,key,metadata.n,requests,open,"));
        assert!(rows.next().unwrap().starts_with(r#""a,""b""",,3,0,0,"#));
    }

    #[test]
    fn what_a_caller_wrote_is_no_formula_in_a_spreadsheet() {
        let formula = |text: &str| {
            let line = Line { groups: vec![json!(text)], ..Line::default() };
            Line::csv(&[line], &[Group::Metadata("team".into())]).lines().nth(1).unwrap().to_owned()
        };
        for text in ["=cmd|'/c calc'!A1", "+1", "-1+1", "@SUM(1)", "\t=1"] {
            assert!(formula(text).starts_with(&format!("'{text}")), "{text}");
        }
        assert!(formula("red").starts_with("red,"));
    }

    #[test]
    fn a_group_that_is_none_is_refused() {
        for word in ["", "metadata.", "colour", "metadata"] {
            assert_eq!(Group::parse(word).unwrap_err().param.as_deref(), Some("group_by"), "{word}");
        }
        assert_eq!(Group::parse("metadata.team"), Ok(Group::Metadata("team".into())));
    }
}
