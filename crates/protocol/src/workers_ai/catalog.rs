//! `models/search`: the catalog, filtered and paged.
//!
//! Clients that page ask for one page after the other until one comes back empty, so a page past the end must
//! be empty and never an error or the first page again.

use super::envelope;
use crate::openai::to_json;
use crate::{Error, ErrorKind, ModelInfo, ModelTask};
use base::rng::mix;
use serde::Serialize;
use serde_json::{Value, json};

/// Entries of a page where the caller sets none.
const PER_PAGE: u32 = 50;
/// Most entries of a page.
const MAX_PER_PAGE: u32 = 1000;

/// Which page a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResultInfo {
    page: u32,
    per_page: u32,
    count: usize,
    total_count: usize,
    total_pages: usize,
}

/// A search as asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    text: Option<String>,
    task: Option<String>,
    author: Option<String>,
    source: Option<String>,
    page: Option<u32>,
    per_page: Option<u32>,
}

/// Reads a query, already split and decoded. Parameters that name no filter are ignored, as in any query.
pub fn parse(query: &[(String, String)]) -> Result<Search, Error> {
    let mut search = Search::default();
    for (name, value) in query {
        let given = || Some(value.clone()).filter(|value| !value.is_empty());
        match name.as_str() {
            "search" => search.text = given(),
            "task" => search.task = given(),
            "author" => search.author = given(),
            "source" => search.source = given(),
            "page" => search.page = Some(count(name, value, u32::MAX)?),
            "per_page" => search.per_page = Some(count(name, value, MAX_PER_PAGE)?),
            "format" if !value.is_empty() => {
                return Err(Error::new(ErrorKind::Unsupported, "'format' is not supported by this server")
                    .at("format"));
            }
            _ => {}
        }
    }
    Ok(search)
}

fn count(name: &str, value: &str, most: u32) -> Result<u32, Error> {
    let wrong =
        || Error::invalid(name, format!("Invalid value for '{name}': expected an integer from 1 to {most}"));
    value.parse().ok().filter(|count| (1..=most).contains(count)).ok_or_else(wrong)
}

impl Search {
    fn finds(&self, model: &ModelInfo) -> bool {
        let (task_id, task_name, _) = task(model.task);
        let contains = |text: &str, part: &str| text.to_lowercase().contains(&part.to_lowercase());
        let text = self.text.as_deref().is_none_or(|part| {
            contains(&model.id, part)
                || contains(&model.description, part)
                || model.aliases.iter().any(|alias| contains(alias, part))
        });
        let task =
            self.task.as_deref().is_none_or(|task| task == task_id || task.eq_ignore_ascii_case(task_name));
        let author = self.author.as_deref().is_none_or(|author| {
            model.id.rsplit_once('/').is_some_and(|(before, _)| before.rsplit('/').next() == Some(author))
        });
        let source = self.source.as_deref().is_none_or(|source| source == "1");
        text && task && author && source
    }
}

/// The page that was asked for, in its envelope.
#[must_use]
pub fn page(search: &Search, models: &[ModelInfo]) -> String {
    let found: Vec<&ModelInfo> = models.iter().filter(|model| search.finds(model)).collect();
    let page = search.page.unwrap_or(1);
    let per_page = search.per_page.unwrap_or(PER_PAGE);
    let skip = (page as usize - 1).saturating_mul(per_page as usize);
    let shown: Vec<Value> =
        found.iter().skip(skip).take(per_page as usize).map(|model| entry(model)).collect();
    let info = ResultInfo {
        page,
        per_page,
        count: shown.len(),
        total_count: found.len(),
        total_pages: found.len().div_ceil(per_page as usize),
    };
    envelope(to_json(&shown), Some(info))
}

/// A task's id, name and description in Cloudflare's catalog.
const fn task(task: ModelTask) -> (&'static str, &'static str, &'static str) {
    match task {
        ModelTask::TextGeneration => (
            "c329a1f9-323d-4e91-b2aa-582dd4188d34",
            "Text Generation",
            "Family of generative text models, such as large language models (LLM), that can be adapted for a \
             variety of natural language tasks.",
        ),
        ModelTask::TextEmbeddings => (
            "0137cdcf-162a-4108-94f2-1ca59e8c65ee",
            "Text Embeddings",
            "Feature extraction models transform raw data into numerical features that can be processed while \
             preserving the information in the original dataset.",
        ),
        // Cloudflare's catalog lists its rerankers under text classification.
        ModelTask::Rerank => (
            "19606750-23ed-4371-aab2-c20349b53a60",
            "Text Classification",
            "Sentiment analysis or text classification is a common NLP task that classifies a text input into \
             labels or classes.",
        ),
    }
}

fn entry(model: &ModelInfo) -> Value {
    let (task_id, task_name, task_description) = task(model.task);
    let mut properties = vec![json!({"property_id": "context_window", "value": model.context.to_string()})];
    if let Some(price) = &model.price {
        let unit = |unit: &str, price: base::NanoUsd| json!({"unit": unit, "price": price.dollars(), "currency": "USD"});
        properties.push(json!({"property_id": "price", "value": [
            unit("per M input tokens", price.input),
            unit("per M output tokens", price.output),
            unit("per M cached input tokens", price.cached_input),
        ]}));
    }
    if model.tools {
        properties.push(json!({"property_id": "function_calling", "value": "true"}));
    }
    json!({
        "id": uuid_of(&model.id),
        "source": 1,
        "name": model.id,
        "description": model.description,
        "task": {"id": task_id, "name": task_name, "description": task_description},
        "created_at": timestamp(model.created),
        "tags": [],
        "properties": properties,
    })
}

/// A UUID (version 8) that depends on the name alone.
fn uuid_of(name: &str) -> String {
    let hash = |seed: u64| name.bytes().fold(mix(seed), |hash, byte| mix(hash ^ u64::from(byte)));
    let (a, b) = (hash(1), hash(2));
    format!(
        "{:08x}-{:04x}-8{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        0x8000 | (b >> 48) & 0x3fff,
        b & 0xffff_ffff_ffff
    )
}

/// Seconds since 1970 as `2026-02-02 10:00:00.000`, in UTC.
///
/// Days to civil date by Howard Hinnant's algorithm ("chrono-compatible low-level date algorithms").
pub fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.000")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(id: &str, task: ModelTask) -> ModelInfo {
        ModelInfo {
            id: id.to_owned(),
            aliases: Vec::new(),
            task,
            description: "A model".to_owned(),
            context: 2048,
            dimensions: None,
            tools: false,
            price: None,
            created: 0,
            ready: true,
        }
    }

    fn names(query: &[(&str, &str)], models: &[ModelInfo]) -> Vec<String> {
        let query: Vec<_> =
            query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let body: Value = serde_json::from_str(&page(&parse(&query).unwrap(), models)).unwrap();
        body["result"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["name"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_page_past_the_end_is_empty() {
        let models: Vec<_> = (0..5).map(|i| model(&format!("m{i}"), ModelTask::TextGeneration)).collect();
        assert_eq!(names(&[], &models).len(), 5);
        assert_eq!(names(&[("page", "2")], &models), Vec::<String>::new());
        assert_eq!(names(&[("page", "3"), ("per_page", "2")], &models), ["m4"]);
        assert_eq!(names(&[("page", "4294967295"), ("per_page", "1000")], &models), Vec::<String>::new());
    }

    #[test]
    fn pages_that_are_no_number_are_refused() {
        for (name, value) in
            [("page", "0"), ("page", "-1"), ("page", "a"), ("per_page", "0"), ("per_page", "1001")]
        {
            let error = parse(&[(name.to_owned(), value.to_owned())]).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
        }
    }

    #[test]
    fn filters_narrow_the_list() {
        let models = [
            model("@cf/meta/llama", ModelTask::TextGeneration),
            model("@cf/baai/bge", ModelTask::TextEmbeddings),
        ];
        assert_eq!(names(&[("search", "LLAMA")], &models), ["@cf/meta/llama"]);
        assert_eq!(names(&[("task", "text embeddings")], &models), ["@cf/baai/bge"]);
        assert_eq!(names(&[("author", "baai")], &models), ["@cf/baai/bge"]);
        assert_eq!(names(&[("author", "ba")], &models), Vec::<String>::new());
    }

    #[test]
    fn seconds_become_dates() {
        assert_eq!(timestamp(0), "1970-01-01 00:00:00.000");
        assert_eq!(timestamp(951_782_400), "2000-02-29 00:00:00.000");
        assert_eq!(timestamp(1_770_026_399), "2026-02-02 09:59:59.000");
        assert_eq!(timestamp(4_107_542_399), "2100-02-28 23:59:59.000");
        assert_eq!(timestamp(4_107_542_400), "2100-03-01 00:00:00.000");
    }

    proptest! {
        #[test]
        fn pages_one_after_the_other_give_each_model_once(count in 0usize..40, per_page in 1usize..15) {
            let models: Vec<_> = (0..count).map(|i| model(&format!("m{i}"), ModelTask::TextGeneration)).collect();
            let mut seen = Vec::new();
            for page in 1.. {
                let shown = names(&[("page", &page.to_string()), ("per_page", &per_page.to_string())], &models);
                if shown.is_empty() {
                    break;
                }
                seen.extend(shown);
            }
            prop_assert_eq!(seen, models.iter().map(|model| model.id.clone()).collect::<Vec<_>>());
        }

        #[test]
        fn ids_are_uuids(name in ".*") {
            let id = uuid_of(&name);
            prop_assert_eq!(id.len(), 36);
            prop_assert_eq!(&id[14..15], "8");
            prop_assert!("89ab".contains(&id[19..20]));
        }
    }
}
