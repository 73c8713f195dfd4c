//! Models as Anthropic lists them: those that talk, in pages.

use crate::openai::to_json;
use crate::workers_ai::catalog::timestamp;
use crate::{Error, ModelInfo, ModelTask};
use serde_json::{Value, json};

/// Models of a page where the caller does not say.
const PAGE: usize = 20;

/// Most models of a page.
const LARGEST_PAGE: usize = 1000;

/// Which page is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    limit: usize,
    after: Option<String>,
    before: Option<String>,
}

/// Reads a query. Parameters that are not known here are left alone: clients send some that name betas.
pub fn parse(query: &[(String, String)]) -> Result<Page, Error> {
    let mut page = Page { limit: PAGE, after: None, before: None };
    for (name, value) in query {
        match name.as_str() {
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=LARGEST_PAGE).contains(limit));
                page.limit = limit.ok_or_else(|| {
                    Error::invalid("limit", format!("expected an integer from 1 to {LARGEST_PAGE}"))
                })?;
            }
            "after_id" => page.after = Some(value.clone()),
            "before_id" => page.before = Some(value.clone()),
            _ => {}
        }
    }
    if page.after.is_some() && page.before.is_some() {
        return Err(Error::invalid("before_id", "'after_id' and 'before_id' exclude each other"));
    }
    Ok(page)
}

/// A page of the models.
pub fn list(page: &Page, models: &[ModelInfo]) -> Result<String, Error> {
    let all: Vec<&ModelInfo> =
        models.iter().filter(|model| model.task == ModelTask::TextGeneration).collect();
    let find = |name: &str, id: &str| {
        let found = all.iter().position(|model| model.id == id);
        found.ok_or_else(|| Error::invalid(name, "no model of the list has this id"))
    };
    let (shown, more) = if let Some(id) = &page.before {
        let before = &all[..find("before_id", id)?];
        let start = before.len().saturating_sub(page.limit);
        (&before[start..], start > 0)
    } else {
        let after = match &page.after {
            Some(id) => &all[find("after_id", id)? + 1..],
            None => &all[..],
        };
        (&after[..after.len().min(page.limit)], after.len() > page.limit)
    };
    Ok(to_json(&json!({
        "data": shown.iter().map(|model| entry(model)).collect::<Vec<_>>(),
        "has_more": more,
        "first_id": shown.first().map(|model| &model.id),
        "last_id": shown.last().map(|model| &model.id),
    })))
}

/// One model.
#[must_use]
pub fn one(model: &ModelInfo) -> String {
    to_json(&entry(model))
}

fn entry(model: &ModelInfo) -> Value {
    let created = timestamp(model.created);
    let (date, time) = created.split_once(' ').unwrap_or((&created, "00:00:00"));
    json!({
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": format!("{date}T{}Z", time.split('.').next().unwrap_or(time)),
        "lifecycle": "active",
        "deprecated_at": null,
        "retires_at": null,
        "max_input_tokens": model.context,
        "max_tokens": model.context,
    })
}
