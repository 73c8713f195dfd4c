//! What people ask of logs: lists with filters, one by its id, its payloads, and their judgement of it.

use super::Record;
use super::record::COLUMNS;
use crate::Gateway;
use crate::account::number;
use base::NanoUsd;
use protocol::{Error, ErrorKind};
use serde_json::{Map, Value};
use store::Work;

/// Most entries of metadata of a log.
const METADATA: usize = 5;

/// Most filters of a question, and most values of one.
const FILTERS: usize = 32;

/// In which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The smallest first.
    Ascending,
    /// The largest first.
    #[default]
    Descending,
}

/// Which logs, and in which order.
#[derive(Clone, Debug)]
pub struct Query {
    conditions: Vec<String>,
    values: Vec<store::Value>,
    order: &'static str,
    direction: Direction,
    /// Of a filter by metadata the number among its like: key and value are about the same entry.
    metadata: Vec<(Vec<String>, Vec<String>)>,
}

/// The least and the most of what a question found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// How many there are.
    pub count: u64,
    /// Each name with its least and most.
    pub ranges: Vec<(&'static str, Option<i64>, Option<i64>)>,
}

/// What stands in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    /// Dollars from people, billionths in the store.
    Money,
    Flag,
    /// Milliseconds since 1970.
    Time,
    /// What no log has.
    Never,
}

const TOKENS: &str = "(coalesce(logs.tokens_in, 0) + coalesce(logs.tokens_out, 0))";

/// The keys of filters: AI Gateway's, then ours.
const KEYS: &[(&str, &str, Kind)] = &[
    ("id", "logs.id", Kind::Text),
    ("created_at", "logs.created", Kind::Time),
    ("request_content_type", "logs.request_content_type", Kind::Text),
    ("response_content_type", "logs.response_content_type", Kind::Text),
    ("request_type", "logs.request_type", Kind::Text),
    ("success", "logs.success", Kind::Flag),
    ("cached", "logs.cached", Kind::Flag),
    ("provider", "logs.provider", Kind::Text),
    ("model", "logs.model", Kind::Text),
    ("model_type", "logs.model_type", Kind::Text),
    ("cost", "logs.cost", Kind::Money),
    ("tokens", TOKENS, Kind::Number),
    ("tokens_in", "logs.tokens_in", Kind::Number),
    ("tokens_out", "logs.tokens_out", Kind::Number),
    ("duration", "logs.duration", Kind::Number),
    ("feedback", "logs.feedback", Kind::Number),
    ("event_id", "logs.event_id", Kind::Text),
    ("authentication", "logs.authentication", Kind::Flag),
    ("wholesale", "", Kind::Never),
    ("compatibilityMode", "logs.compatibility", Kind::Flag),
    ("dlp_action", "logs.dlp_action", Kind::Text),
    ("findings", "logs.findings", Kind::Text),
    ("user_agent", "logs.user_agent", Kind::Text),
    ("status_code", "logs.status", Kind::Number),
    ("path", "logs.path", Kind::Text),
    ("key_id", "logs.key_id", Kind::Text),
    ("step", "logs.step", Kind::Number),
];

/// By what lists may be ordered.
const ORDERS: &[(&str, &str)] = &[
    ("created_at", "logs.created"),
    ("provider", "logs.provider"),
    ("model", "logs.model"),
    ("model_type", "logs.model_type"),
    ("success", "logs.success"),
    ("cached", "logs.cached"),
    ("cost", "logs.cost"),
    ("tokens_in", "logs.tokens_in"),
    ("tokens_out", "logs.tokens_out"),
    ("duration", "logs.duration"),
    ("feedback", "logs.feedback"),
];

/// Where free text is looked for.
const SEARCHED: &[&str] = &[
    "logs.id",
    "logs.provider",
    "logs.model",
    "logs.path",
    "logs.user_agent",
    "logs.event_id",
    "logs.error",
    "logs.request_head",
    "logs.response_head",
];

fn wrong(name: &str, expected: &str) -> Error {
    Error::invalid(name, format!("Invalid value for '{name}': expected {expected}"))
}

/// Whether a column has a text inside, small and capital letters of ASCII alike. `LIKE` minds case in one database only.
fn contains(column: &str, place: &str) -> String {
    format!("replace(lower(coalesce({column}, '')), {place}, '') <> lower(coalesce({column}, ''))")
}

impl Query {
    /// All logs of a gateway, the newest first.
    #[must_use]
    pub fn new(account: &str, gateway: &str) -> Self {
        let mut query = Self {
            conditions: Vec::new(),
            values: Vec::new(),
            order: "logs.created",
            direction: Direction::default(),
            metadata: Vec::new(),
        };
        for (column, value) in [("account", account), ("gateway", gateway)] {
            let place = query.bind(value.into());
            query.conditions.push(format!("logs.{column} = {place}"));
        }
        query
    }

    fn bind(&mut self, value: store::Value) -> String {
        self.values.push(value);
        format!("?{}", self.values.len())
    }

    /// Orders by a field.
    ///
    /// # Errors
    /// When it is none that can be ordered by.
    pub fn order(&mut self, field: &str, direction: Direction) -> Result<(), Error> {
        let names: Vec<&str> = ORDERS.iter().map(|(name, _)| *name).collect();
        let found = ORDERS.iter().find(|(name, _)| *name == field);
        self.order = found.ok_or_else(|| wrong("order_by", &format!("one of {}", names.join(", "))))?.1;
        self.direction = direction;
        Ok(())
    }

    /// Only logs with this text somewhere.
    pub fn search(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let place = self.bind(super::record::clean(text).to_ascii_lowercase().into());
        let mut found: Vec<String> = SEARCHED.iter().map(|column| contains(column, &place)).collect();
        found.push(format!(
            "EXISTS (SELECT 1 FROM gateway_log_metadata AS found WHERE found.log = logs.id AND {})",
            contains("found.value", &place)
        ));
        self.conditions.push(format!("({})", found.join(" OR ")));
    }

    /// Only logs of which this holds. Several values: one of them, and with `neq` none of them. `time` reads a moment as
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// Names the part of the filter that is wrong.
    pub fn filter(
        &mut self,
        key: &str,
        operator: &str,
        values: &[String],
        time: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), Error> {
        if values.is_empty() || values.len() > FILTERS || self.conditions.len() > FILTERS {
            return Err(wrong("filters.value", &format!("1 to {FILTERS} values, and as many filters")));
        }
        if let Some(part) = key.strip_prefix("metadata.") {
            return self.filter_metadata(part, operator, values);
        }
        let Some((_, column, kind)) = KEYS.iter().find(|(name, _, _)| *name == key) else {
            let names: Vec<&str> = KEYS.iter().map(|(name, _, _)| *name).collect();
            return Err(wrong(
                "filters.key",
                &format!("metadata.key, metadata.value or one of {}", names.join(", ")),
            ));
        };
        let mut parts = Vec::new();
        for value in values {
            parts.push(self.comparison(column, *kind, operator, value, &time)?);
        }
        let between = if operator == "neq" { " AND " } else { " OR " };
        self.conditions.push(format!("({})", parts.join(between)));
        Ok(())
    }

    fn comparison(
        &mut self,
        column: &str,
        kind: Kind,
        operator: &str,
        value: &str,
        time: impl Fn(&str) -> Option<u64>,
    ) -> Result<String, Error> {
        if kind == Kind::Never {
            // It is always false, or nothing.
            let holds = match operator {
                "eq" => matches!(value, "false" | "null" | "0"),
                "neq" => !matches!(value, "false" | "null" | "0"),
                _ => false,
            };
            return Ok(if holds { "1 = 1" } else { "1 = 0" }.to_owned());
        }
        if value == "null" {
            return match operator {
                "eq" => Ok(format!("{column} IS NULL")),
                "neq" => Ok(format!("{column} IS NOT NULL")),
                _ => Err(wrong("filters.operator", "eq or neq with nothing")),
            };
        }
        if operator == "contains" {
            if kind != Kind::Text {
                return Err(wrong("filters.operator", "eq, neq, lt or gt for what is no text"));
            }
            let place = self.bind(super::record::clean(value).to_ascii_lowercase().into());
            return Ok(contains(column, &place));
        }
        let sign = match operator {
            "eq" => "=",
            "neq" => "<>",
            "lt" => "<",
            "gt" => ">",
            _ => return Err(wrong("filters.operator", "eq, neq, contains, lt or gt")),
        };
        let value: store::Value = match kind {
            Kind::Text => super::record::clean(value).into(),
            Kind::Flag => match value {
                "true" | "1" => 1.into(),
                "false" | "0" => 0.into(),
                _ => return Err(wrong("filters.value", "true or false")),
            },
            Kind::Time => number(time(value).ok_or_else(|| {
                wrong("filters.value", "a moment, such as 2026-11-30 or 2026-11-30T12:00:00Z")
            })?)
            .into(),
            Kind::Number => whole(value, operator).ok_or_else(|| wrong("filters.value", "a number"))?.into(),
            Kind::Money => {
                let dollars = value.parse().ok().and_then(NanoUsd::from_dollars);
                dollars.ok_or_else(|| wrong("filters.value", "an amount of dollars"))?.0.into()
            }
            Kind::Never => store::Value::Null,
        };
        let place = self.bind(value);
        Ok(match operator {
            "neq" => format!("({column} IS NULL OR {column} <> {place})"),
            _ => format!("{column} {sign} {place}"),
        })
    }

    /// What is wrong with a filter, said of the parameter or the flag that stands for it.
    #[must_use]
    pub fn said_of(error: Error, name: &str) -> Error {
        let message = ["filters.key", "filters.operator", "filters.value"]
            .iter()
            .fold(error.message.clone(), |message, part| {
                message.replace(&format!("'{part}'"), &format!("'{name}'"))
            });
        Error { message, ..error.at(name) }
    }

    /// Only logs in which a figure is at least this.
    ///
    /// # Errors
    /// When it is none.
    pub fn least(&mut self, key: &str, value: &str, time: impl Fn(&str) -> Option<u64>) -> Result<(), Error> {
        self.bound(key, value, "lt", time)
    }

    /// Only logs in which a figure is at most this.
    ///
    /// # Errors
    /// When it is none.
    pub fn most(&mut self, key: &str, value: &str, time: impl Fn(&str) -> Option<u64>) -> Result<(), Error> {
        self.bound(key, value, "gt", time)
    }

    /// Only logs of which a comparison does not hold; where there is no figure, none does.
    fn bound(
        &mut self,
        key: &str,
        value: &str,
        operator: &str,
        time: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), Error> {
        self.filter(key, operator, &[value.to_owned()], time)?;
        if let Some(condition) = self.conditions.last_mut() {
            *condition = format!("NOT {condition}");
        }
        Ok(())
    }

    /// A key and a value that follow each other are about one entry.
    fn filter_metadata(&mut self, part: &str, operator: &str, values: &[String]) -> Result<(), Error> {
        let column = match part {
            "key" => "name",
            "value" => "value",
            _ => return Err(wrong("filters.key", "metadata.key or metadata.value")),
        };
        let mut parts = Vec::new();
        for value in values {
            let value = super::record::clean(value);
            parts.push(match operator {
                "contains" => {
                    let place = self.bind(value.to_ascii_lowercase().into());
                    contains(&format!("entry.{column}"), &place)
                }
                "eq" | "neq" => {
                    // A value is JSON: a text with its quotes, anything else as it is.
                    let quoted = Value::from(value.as_str()).to_string();
                    let places = [self.bind(value.into()), self.bind(quoted.into())];
                    format!("entry.{column} IN ({})", places.join(", "))
                }
                _ => return Err(wrong("filters.operator", "eq, neq or contains for metadata")),
            });
        }
        let found = format!("({})", parts.join(" OR "));
        if operator == "neq" {
            self.conditions.push(format!("NOT {}", with_entry(&found)));
            return Ok(());
        }
        let open = self
            .metadata
            .iter_mut()
            .find(|(keys, values)| (if part == "key" { keys } else { values }).is_empty());
        match open {
            Some((keys, values)) => (if part == "key" { keys } else { values }).push(found),
            None if part == "key" => self.metadata.push((vec![found], Vec::new())),
            None => self.metadata.push((Vec::new(), vec![found])),
        }
        Ok(())
    }

    fn conditions(&self) -> String {
        let metadata = self
            .metadata
            .iter()
            .map(|(keys, values)| with_entry(&[keys.as_slice(), values].concat().join(" AND ")));
        self.conditions.iter().cloned().chain(metadata).collect::<Vec<_>>().join(" AND ")
    }

    fn ordered(&self) -> String {
        let direction = match self.direction {
            Direction::Ascending => "ASC",
            Direction::Descending => "DESC",
        };
        format!("ORDER BY {} {direction} NULLS LAST, logs.id {direction}", self.order)
    }

    /// The ids that are found, in order, with place for a limit.
    pub(super) fn ids(&self) -> (String, Vec<store::Value>) {
        let sql = format!(
            "SELECT logs.id FROM gateway_logs AS logs WHERE {} {}",
            self.conditions(),
            self.ordered()
        );
        (sql, self.values.clone())
    }

    fn rows(&self, skip: u64, most: u64) -> (String, Vec<store::Value>) {
        let columns: Vec<String> = COLUMNS.iter().map(|column| format!("logs.{column}")).collect();
        let sql = format!(
            "SELECT {} FROM gateway_logs AS logs WHERE {} {} LIMIT {most} OFFSET {}",
            columns.join(", "),
            self.conditions(),
            self.ordered(),
            number(skip)
        );
        (sql, self.values.clone())
    }

    /// The count, and with `ranges` the least and the most of what can be compared.
    fn totals(&self, ranges: bool) -> (String, Vec<store::Value>) {
        let mut columns = vec!["CAST(count(*) AS BIGINT)".to_owned()];
        for (_, column) in RANGES.iter().filter(|_| ranges) {
            columns.push(format!("CAST(min({column}) AS BIGINT), CAST(max({column}) AS BIGINT)"));
        }
        let sql =
            format!("SELECT {} FROM gateway_logs AS logs WHERE {}", columns.join(", "), self.conditions());
        (sql, self.values.clone())
    }
}

/// What has a least and a most.
const RANGES: &[(&str, &str)] = &[
    ("cost", "logs.cost"),
    ("duration", "logs.duration"),
    ("tokens_in", "logs.tokens_in"),
    ("tokens_out", "logs.tokens_out"),
    ("total_tokens", TOKENS),
];

fn with_entry(condition: &str) -> String {
    format!("EXISTS (SELECT 1 FROM gateway_log_metadata AS entry WHERE entry.log = logs.id AND {condition})")
}

/// A whole number for a comparison; what is between two is moved to where the comparison stays the same.
fn whole(text: &str, operator: &str) -> Option<i64> {
    let number: f64 = text.parse().ok().filter(|number: &f64| number.abs() < 9e15)?;
    let moved = if operator == "lt" { number.ceil() } else { number.floor() };
    // No whole number equals it.
    if operator == "eq" && moved != number {
        return Some(i64::MIN);
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and small enough")]
    Some(moved as i64)
}

/// Reads the metadata of some logs into them.
fn add_metadata(work: &Work<'_>, records: &mut [Record]) -> Result<(), store::Error> {
    for group in records.chunks_mut(super::prune::BATCH as usize) {
        let places: Vec<String> = (1..=group.len()).map(|place| format!("?{place}")).collect();
        let sql = format!(
            "SELECT log, name, value FROM gateway_log_metadata WHERE log IN ({}) ORDER BY log, name",
            places.join(", ")
        );
        let ids: Vec<store::Value> = group.iter().map(|record| record.id.as_str().into()).collect();
        for row in work.query(&sql, &ids)? {
            let value = serde_json::from_str(row.text(2)?).unwrap_or(Value::Null);
            if let Some(record) =
                group.iter_mut().find(|record| Ok(record.id.as_str()) == row.text(0).map_err(|_| ()))
            {
                record.metadata.push((row.text(1)?.to_owned(), value));
            }
        }
    }
    Ok(())
}

fn missing() -> Error {
    Error::new(ErrorKind::NotFound, "Log not found")
}

impl Gateway {
    /// Some of the logs that a query finds.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list_logs(&self, query: &Query, skip: u64, most: u64) -> Result<Vec<Record>, Error> {
        let (sql, values) = query.rows(skip, most);
        let read = self.store().read(move |work| {
            let rows = work.query(&sql, &values)?;
            let mut records = rows.iter().map(Record::read).collect::<Result<Vec<_>, _>>()?;
            add_metadata(work, &mut records)?;
            Ok(records)
        });
        read.await.map_err(|error| crate::unavailable("The logs cannot be read", &error))
    }

    /// How many logs a query finds, and with `ranges` the least and the most of their figures.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn count_logs(&self, query: &Query, ranges: bool) -> Result<Totals, Error> {
        let (sql, values) = query.totals(ranges);
        let read = self.store().read(move |work| {
            let rows = work.query(&sql, &values)?;
            let row = &rows[0];
            let mut totals = Totals { count: row.integer(0)?.unsigned_abs(), ranges: Vec::new() };
            for (number, (name, _)) in RANGES.iter().enumerate().filter(|_| ranges) {
                let column = 1 + 2 * number;
                totals.ranges.push((name, row.optional_integer(column)?, row.optional_integer(column + 1)?));
            }
            Ok(totals)
        });
        read.await.map_err(|error| crate::unavailable("The logs cannot be read", &error))
    }

    /// One log of a gateway.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn log(&self, account: &str, gateway: &str, id: &str) -> Result<Record, Error> {
        let mut query = Query::new(account, gateway);
        let place = query.bind(super::record::clean(id).into());
        query.conditions.push(format!("logs.id = {place}"));
        self.list_logs(&query, 0, 1).await?.pop().ok_or_else(missing)
    }

    /// A payload of a log: its form (`text` or `base64`) and its text; `side` is `request` or `response`.
    ///
    /// # Errors
    /// When the log is not there, or the store fails. `None` where the payload was not stored.
    pub async fn log_payload(
        &self,
        account: &str,
        gateway: &str,
        id: &str,
        side: &'static str,
    ) -> Result<Option<(String, String)>, Error> {
        let log = self.log(account, gateway, id).await?;
        let values: [store::Value; 2] = [log.id.into(), side.into()];
        let read = self.store().read(move |work| {
            let sql = "SELECT form, body FROM gateway_log_payloads WHERE log = ?1 AND side = ?2";
            let rows = work.query(sql, &values)?;
            rows.first().map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))).transpose()
        });
        read.await.map_err(|error| crate::unavailable("The log cannot be read", &error))
    }

    /// Keeps what somebody thinks of a log: `feedback` (-1 or 1), `score` (a number) and `metadata`, which replaces
    /// what was there; nothing takes away.
    ///
    /// # Errors
    /// When the log is not there, a field is wrong, or the store fails.
    pub async fn judge_log(
        &self,
        account: &str,
        gateway: &str,
        id: &str,
        fields: &Map<String, Value>,
    ) -> Result<Record, Error> {
        let mut record = self.log(account, gateway, id).await?;
        for (name, value) in fields {
            match name.as_str() {
                "feedback" => {
                    record.feedback = match value {
                        Value::Null => None,
                        value if *value == 1 || *value == 1.0 => Some(1),
                        value if *value == -1 || *value == -1.0 => Some(-1),
                        _ => return Err(wrong(name, "-1, 1 or null")),
                    };
                }
                "score" => match value {
                    Value::Null => record.score = None,
                    value => {
                        record.score = Some(value.as_f64().ok_or_else(|| wrong(name, "a number or null"))?);
                    }
                },
                "metadata" => record.metadata = metadata(value)?,
                _ => {
                    let shown: String = name.chars().take(64).collect();
                    return Err(Error::invalid(&shown, format!("There is no field '{shown}' here")));
                }
            }
        }
        let changed = record.clone();
        let written = self.store().write(move |work| {
            let score = changed.score.map(|score| Value::from(score).to_string());
            let values = [changed.id.as_str().into(), changed.feedback.into(), score.into()];
            work.execute("UPDATE gateway_logs SET feedback = ?2, score = ?3 WHERE id = ?1", &values)?;
            work.execute("DELETE FROM gateway_log_metadata WHERE log = ?1", &values[..1])?;
            for (name, value) in &changed.metadata {
                let sql = "INSERT INTO gateway_log_metadata (log, name, value) VALUES (?1, ?2, ?3)";
                let row = [values[0].clone(), name.as_str().into(), value.to_string().into()];
                work.execute(sql, &row)?;
            }
            Ok(())
        });
        written.await.map_err(|error| crate::unavailable("The log could not be changed", &error))?;
        Ok(record)
    }
}

fn metadata(value: &Value) -> Result<Vec<(String, Value)>, Error> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let expected = format!("an object of at most {METADATA} texts, numbers or truth values, or null");
    let fine = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
    let object = value.as_object().filter(|object| {
        object.len() <= METADATA
            && object.iter().all(|(name, value)| {
                fine(value)
                    && !name.starts_with("cf.")
                    && !name.contains('\0')
                    && !value.to_string().contains('\0')
            })
    });
    let object = object.ok_or_else(|| wrong("metadata", &expected))?;
    Ok(object.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}
