//! The price book: which price a model of a provider has.
//!
//! It comes with dated prices (`data/prices.json`, made by `scripts/prices`); files that people bring lie over them,
//! model by model, the last one on top.

use super::{Imported, Price, import};
use std::collections::HashMap;

/// The prices that come with the program.
const SHIPPED: &str = include_str!("../../data/prices.json");

/// Prices by provider and model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Book {
    prices: HashMap<String, HashMap<String, Price>>,
}

impl Book {
    /// The prices that come with the program.
    #[must_use]
    pub fn shipped() -> Self {
        let mut book = Self::default();
        book.add(
            import(SHIPPED).expect("the file that comes with the program is one of prices; a test reads it"),
        );
        book
    }

    /// Lays prices over those that are there.
    pub fn add(&mut self, imported: Imported) {
        for (provider, model, price) in imported.prices {
            self.prices.entry(provider).or_default().insert(model, price);
        }
    }

    /// The price of a model, by the provider's slug and the name that goes to the provider.
    #[must_use]
    pub fn price(&self, provider: &str, model: &str) -> Option<&Price> {
        self.prices.get(provider)?.get(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Usage;

    #[test]
    fn the_shipped_prices_cover_the_providers_and_keep_their_parts() {
        let book = Book::shipped();
        for provider in [
            "alibaba",
            "anthropic",
            "aws-bedrock",
            "azure-openai",
            "cerebras",
            "cohere",
            "deepseek",
            "fireworks",
            "google-ai-studio",
            "google-vertex-ai",
            "grok",
            "groq",
            "minimax",
            "mistral",
            "moonshot",
            "openai",
            "perplexity-ai",
            "replicate",
        ] {
            assert!(book.prices.get(provider).is_some_and(|models| !models.is_empty()), "{provider}");
        }
        // Read off the source file: 2.5e-06, 1.25e-06 and 1e-05 dollars a token.
        let usage = Usage { input: 1000, cached_input: Some(600), output: 100, ..Usage::default() };
        let cost = book.price("openai", "gpt-4o").and_then(|price| price.cost(&usage)).expect("a price");
        assert_eq!(cost.cost.0, 400 * 2500 + 600 * 1250 + 100 * 10_000);
        // 1.25e-06 and 2.5e-06 above 200,000 tokens of prompt.
        let gemini = book.price("google-ai-studio", "gemini-2.5-pro").expect("a price");
        assert_eq!(gemini.rates(200_000).input.map(|price| price.0), Some(1_250_000_000));
        assert_eq!(gemini.rates(200_001).input.map(|price| price.0), Some(2_500_000_000));
        assert_eq!(book.price("openai", "no such model"), None);
    }

    #[test]
    fn later_prices_lie_over_earlier_ones_model_by_model() {
        let mut book = Book::shipped();
        let own = r#"{"gpt-4o": {"litellm_provider": "openai", "input_cost_per_token": 1e-6}}"#;
        book.add(import(own).unwrap());
        let price = book.price("openai", "gpt-4o").unwrap();
        assert_eq!((price.rates.input.map(|price| price.0), price.rates.output), (Some(1_000_000_000), None));
        assert!(book.price("openai", "gpt-4o-mini").is_some());
    }
}
