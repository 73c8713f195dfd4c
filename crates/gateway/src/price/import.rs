//! Reads files of prices, in the form of LiteLLM's `model_prices_and_context_window.json` (dollars a token) or of
//! models.dev's `api.json` (dollars a million tokens).
//!
//! Only prices of tokens of text are read, in each tier that the file prices (LiteLLM's `_flex`, `_priority` and
//! `_batches`). What it says of images or sound stays unread, and a model without a price for input is left out.

use super::{Price, Rates};
use crate::Tier;
use base::NanoUsd;
use serde_json::{Map, Value};

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// Provider, model and price.
    pub prices: Vec<(String, String, Price)>,
    /// Entries that have no price of tokens.
    pub skipped: usize,
}

/// LiteLLM's name of a provider, ours, and what stands before its models' names.
const LITELLM: &[(&str, &str, &str)] = &[
    ("azure", "azure-openai", "azure/"),
    ("bedrock", "aws-bedrock", "bedrock/"),
    ("bedrock_converse", "aws-bedrock", "bedrock/"),
    ("cohere_chat", "cohere", "cohere_chat/"),
    ("dashscope", "alibaba", "dashscope/"),
    ("fireworks_ai", "fireworks", "fireworks_ai/"),
    ("fireworks_ai-embedding-models", "fireworks", "fireworks_ai/"),
    ("gemini", "google-ai-studio", "gemini/"),
    ("perplexity", "perplexity-ai", "perplexity/"),
    ("text-completion-openai", "openai", ""),
    ("vertex_ai", "google-vertex-ai", "vertex_ai/"),
    ("vertex_ai-anthropic_models", "google-vertex-ai", "vertex_ai/"),
    ("vertex_ai-embedding-models", "google-vertex-ai", "vertex_ai/"),
    ("vertex_ai-language-models", "google-vertex-ai", "vertex_ai/"),
    ("vertex_ai-llama_models", "google-vertex-ai", "vertex_ai/"),
    ("vertex_ai-mistral_models", "google-vertex-ai", "vertex_ai/"),
    ("xai", "grok", "xai/"),
];

/// models.dev's name of a provider, and ours.
const MODELS_DEV: &[(&str, &str)] = &[
    ("amazon-bedrock", "aws-bedrock"),
    ("azure", "azure-openai"),
    ("fireworks-ai", "fireworks"),
    ("google", "google-ai-studio"),
    ("google-vertex", "google-vertex-ai"),
    ("google-vertex-anthropic", "google-vertex-ai"),
    ("moonshotai", "moonshot"),
    ("perplexity", "perplexity-ai"),
    ("xai", "grok"),
];

/// Reads a file of either form. Providers that are not ours keep their names, so that a file may also price
/// `custom-…` and local ones.
///
/// # Errors
/// What is wrong with the file, in words; a price that is no amount names its model.
pub fn import(text: &str) -> Result<Imported, String> {
    let top: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("it is no JSON object: {error}"))?;
    let mut imported = Imported::default();
    let lists_providers = top.values().any(|entry| entry["models"].is_object());
    for (name, entry) in &top {
        if lists_providers {
            let provider =
                MODELS_DEV.iter().find(|known| known.0 == name).map_or(name.as_str(), |known| known.1);
            for (model, facts) in entry["models"].as_object().into_iter().flatten() {
                take(&mut imported, provider, model, models_dev(&facts["cost"]))?;
            }
        } else if let Some(litellm_name) = entry["litellm_provider"].as_str() {
            let (provider, model) = litellm_place(litellm_name, name);
            take(&mut imported, provider, model, litellm(entry))?;
        } else {
            imported.skipped += 1;
        }
    }
    if imported.prices.is_empty() {
        return Err("it has no price in the form of LiteLLM or of models.dev".to_owned());
    }
    Ok(imported)
}

fn take(
    imported: &mut Imported,
    provider: &str,
    model: &str,
    price: Result<Price, String>,
) -> Result<(), String> {
    let price = price.map_err(|why| format!("{provider}/{model}: {why}"))?;
    if price.rates.input.is_some() {
        imported.prices.push((provider.to_owned(), model.to_owned(), price));
    } else {
        imported.skipped += 1;
    }
    Ok(())
}

/// Our names for one of LiteLLM's models.
fn litellm_place<'a>(provider: &'a str, model: &'a str) -> (&'a str, &'a str) {
    if let Some((_, ours, before)) = LITELLM.iter().find(|known| known.0 == provider) {
        return (ours, model.strip_prefix(before).unwrap_or(model));
    }
    let bare = model.strip_prefix(provider).and_then(|rest| rest.strip_prefix('/'));
    (provider, bare.unwrap_or(model))
}

/// LiteLLM's ends of names for the tiers.
const TIERS: [(&str, Tier); 3] =
    [("_flex", Tier::Flex), ("_priority", Tier::Priority), ("_batches", Tier::Batch)];

fn litellm(entry: &Value) -> Result<Price, String> {
    let mut price = litellm_tier(entry, "")?;
    for (end, tier) in TIERS {
        let mut rates = litellm_tier(entry, end)?;
        // A long prompt whose price in this tier is not told has none.
        for (tokens, _) in &price.above {
            if !rates.above.iter().any(|(told, _)| told == tokens) {
                rates.above.push((*tokens, Rates::default()));
            }
        }
        rates.above.sort_by_key(|(tokens, _)| *tokens);
        if rates.rates.input.is_some() {
            price.tiers.push((tier, rates));
        }
    }
    Ok(price)
}

/// The prices whose names end so.
fn litellm_tier(entry: &Value, end: &str) -> Result<Price, String> {
    let rates = |facts: &Value, suffix: &str| {
        let rate = |name: &str| amount(facts, &format!("{name}{suffix}{end}"), 1e6);
        Ok::<_, String>(Rates {
            input: rate("input_cost_per_token")?,
            cached_input: rate("cache_read_input_token_cost")?,
            cache_write: rate("cache_creation_input_token_cost")?,
            cache_write_1h: rate("cache_creation_input_token_cost_above_1hr")?,
            output: rate("output_cost_per_token")?,
            reasoning: rate("output_cost_per_reasoning_token")?,
        })
    };
    let mut price = Price { rates: rates(entry, "")?, ..Price::default() };
    for key in entry.as_object().into_iter().flat_map(Map::keys) {
        let tier = key
            .strip_prefix("input_cost_per_token_above_")
            .and_then(|rest| rest.strip_suffix(end)?.strip_suffix("k_tokens"));
        if let Some(thousands) = tier.and_then(|number| number.parse::<u64>().ok()) {
            let tier = rates(entry, &format!("_above_{thousands}k_tokens"))?;
            price.above.push((thousands.saturating_mul(1000), tier));
        }
    }
    let tiered = entry["tiered_pricing"].as_array().filter(|_| end.is_empty());
    for tier in tiered.into_iter().flatten() {
        let start = tier["range"][0].as_f64().filter(|start| *start >= 0.0).ok_or("a tier has no range")?;
        if start == 0.0 {
            price.rates = rates(tier, "")?;
        } else {
            price.above.push((start as u64, rates(tier, "")?));
        }
    }
    price.above.sort_by_key(|(tokens, _)| *tokens);
    Ok(price)
}

fn models_dev(cost: &Value) -> Result<Price, String> {
    let rates = |cost: &Value| {
        let rate = |name: &str| amount(cost, name, 1.0);
        let cache_write = rate("cache_write")?;
        Ok::<_, String>(Rates {
            input: rate("input")?,
            cached_input: rate("cache_read")?,
            cache_write,
            cache_write_1h: None,
            output: rate("output")?,
            reasoning: rate("reasoning")?,
        })
    };
    let mut price = Price { rates: rates(cost)?, ..Price::default() };
    for tier in cost["tiers"].as_array().into_iter().flatten() {
        if tier["tier"]["type"] == "context" {
            let size = tier["tier"]["size"].as_u64().ok_or("a tier has no size")?;
            price.above.push((size, rates(tier)?));
        }
    }
    if price.above.is_empty() && cost["context_over_200k"].is_object() {
        price.above.push((200_000, rates(&cost["context_over_200k"])?));
    }
    price.above.sort_by_key(|(tokens, _)| *tokens);
    Ok(price)
}

/// An amount in dollars, for so many millionths of a million tokens.
fn amount(facts: &Value, name: &str, scale: f64) -> Result<Option<NanoUsd>, String> {
    match facts.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let dollars = value.as_f64().filter(|dollars| *dollars >= 0.0);
            let price = dollars.and_then(|dollars| NanoUsd::from_dollars(dollars * scale));
            price.map(Some).ok_or_else(|| format!("{name} is no price"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(price: Option<NanoUsd>) -> Option<i64> {
        price.map(|price| price.0)
    }

    #[test]
    fn litellms_names_and_units_become_ours() {
        let file = r#"{
            "sample_spec": {"mode": "chat"},
            "xai/grok-x": {"litellm_provider": "xai", "input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05,
                "cache_read_input_token_cost": 7.5e-07, "input_cost_per_token_above_128k_tokens": 6e-06,
                "input_cost_per_token_above_128k_tokens_priority": 9e-06, "input_cost_per_token_priority": 4.5e-06,
                "input_cost_per_token_batches": 1e-06, "output_cost_per_token_batches": 7e-06},
            "custom-lab/m": {"litellm_provider": "custom-lab", "input_cost_per_token": 0},
            "dashscope/q": {"litellm_provider": "dashscope", "tiered_pricing": [
                {"range": [0, 256000.0], "input_cost_per_token": 5e-08, "output_cost_per_token": 4e-07},
                {"range": [256000.0, 1000000.0], "input_cost_per_token": 2.5e-07, "output_cost_per_token": 2e-06}]},
            "picture": {"litellm_provider": "openai", "output_cost_per_image": 1}
        }"#;
        let found = import(file).unwrap();
        let places: Vec<(&str, &str)> =
            found.prices.iter().map(|(provider, model, _)| (provider.as_str(), model.as_str())).collect();
        assert_eq!(places, [("grok", "grok-x"), ("custom-lab", "m"), ("alibaba", "q")]);
        assert_eq!(found.skipped, 2);
        let grok = &found.prices[0].2;
        assert_eq!(nanos(grok.rates.cached_input), Some(750_000_000));
        assert_eq!((grok.above.len(), grok.above[0].0), (1, 128_000));
        assert_eq!(nanos(grok.above[0].1.input), Some(6_000_000_000));
        let [(Tier::Priority, priority), (Tier::Batch, batch)] = grok.tiers.as_slice() else {
            panic!("{:?}", grok.tiers)
        };
        assert_eq!((nanos(priority.rates.input), priority.rates.output), (Some(4_500_000_000), None));
        assert_eq!(nanos(priority.above[0].1.input), Some(9_000_000_000));
        assert_eq!(nanos(batch.rates.output), Some(7_000_000_000));
        assert_eq!(batch.above, [(128_000, Rates::default())], "no price is told for a long prompt");
        let tiers = &found.prices[2].2;
        assert_eq!((nanos(tiers.rates.input), tiers.above[0].0), (Some(50_000_000), 256_000));
    }

    #[test]
    fn models_devs_names_and_units_become_ours() {
        let file = r#"{"google": {"id": "google", "models": {
            "a": {"cost": {"input": 1.25, "output": 10, "cache_read": 0.31, "cache_write": 2,
                "context_over_200k": {"input": 2.5, "output": 15}}},
            "b": {"cost": {"input": 5, "output": 30, "tiers": [
                {"input": 10, "output": 45, "tier": {"type": "context", "size": 272000}}],
                "context_over_200k": {"input": 9, "output": 9}}},
            "free": {}}}}"#;
        let found = import(file).unwrap();
        assert_eq!((found.prices.len(), found.skipped), (2, 1));
        let (provider, model, a) = &found.prices[0];
        assert_eq!((provider.as_str(), model.as_str()), ("google-ai-studio", "a"));
        assert_eq!(
            (nanos(a.rates.input), nanos(a.rates.cached_input)),
            (Some(1_250_000_000), Some(310_000_000))
        );
        assert_eq!((a.above[0].0, nanos(a.above[0].1.output)), (200_000, Some(15_000_000_000)));
        assert_eq!((found.prices[1].2.above.len(), found.prices[1].2.above[0].0), (1, 272_000));
    }

    #[test]
    fn a_file_that_is_wrong_is_told_so_by_its_model() {
        assert!(import("[]").unwrap_err().contains("no JSON object"));
        assert!(import("{}").unwrap_err().contains("no price"));
        let negative = r#"{"m": {"litellm_provider": "openai", "input_cost_per_token": -1}}"#;
        assert_eq!(import(negative).unwrap_err(), "openai/m: input_cost_per_token is no price");
    }
}
