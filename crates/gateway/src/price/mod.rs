//! What usage costs.
//!
//! `cost = (input - cached - written) * input price + cached * its price + written * its price + output * its price`,
//! in whole billionths of a dollar, rounded once at the end, so that however an answer came its cost is the same. A
//! price that is missing for tokens that were used makes the cost unknown: never a guess, and never nothing.

mod book;
mod custom;
mod import;

pub use book::Book;
pub use custom::CustomCost;
pub use import::{Imported, import};

use crate::{Tier, Usage};
use base::NanoUsd;

/// Prices of a model, each per million tokens; `None` where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Prompt tokens that had to be computed.
    pub input: Option<NanoUsd>,
    /// Prompt tokens that were read from a cache.
    pub cached_input: Option<NanoUsd>,
    /// Prompt tokens that were written to a cache.
    pub cache_write: Option<NanoUsd>,
    /// Those that are kept for an hour.
    pub cache_write_1h: Option<NanoUsd>,
    /// Tokens of the answer.
    pub output: Option<NanoUsd>,
    /// Tokens of thoughts; where this is not known they cost what the answer's others do.
    pub reasoning: Option<NanoUsd>,
}

/// Prices of a model, with others for long prompts where it has such.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// What holds for most prompts.
    pub rates: Rates,
    /// For a prompt of more tokens than this, these rates hold for all of the request. In rising order.
    pub above: Vec<(u64, Rates)>,
    /// What holds in other tiers; one that is not here has no known price.
    pub tiers: Vec<(Tier, Price)>,
}

/// What a request cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// What is owed.
    pub cost: NanoUsd,
    /// How much more it would have been had no token been read from a cache; unknown without a full price. Negative
    /// where a cached token costs more.
    pub saved: Option<NanoUsd>,
}

impl From<base::Price> for Price {
    /// A local model's: its cache is written for nothing beside the input.
    fn from(price: base::Price) -> Self {
        let rates = Rates {
            input: Some(price.input),
            cached_input: Some(price.cached_input),
            output: Some(price.output),
            ..Rates::default()
        };
        Self { rates, ..Self::default() }
    }
}

impl Price {
    /// The rates for a prompt of so many tokens.
    #[must_use]
    pub fn rates(&self, input: u64) -> &Rates {
        self.above.iter().rev().find(|(tokens, _)| input > *tokens).map_or(&self.rates, |(_, rates)| rates)
    }

    /// What this usage costs: what the provider says it does, else by the prices here. `None` when a price is missing,
    /// also that of its tier, when something is in it that has a price of its own, or when it contradicts itself.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> Option<Cost> {
        if let Some(cost) = usage.told {
            return Some(Cost { cost, saved: None });
        }
        if usage.other {
            return None;
        }
        if usage.tier != Tier::Standard {
            let (_, price) = self.tiers.iter().find(|(tier, _)| *tier == usage.tier)?;
            return price.cost(&Usage { tier: Tier::Standard, ..*usage });
        }
        let rates = self.rates(usage.input);
        let cached = usage.cached_input.unwrap_or(0);
        let written = usage.cache_write.unwrap_or(0);
        let long = usage.cache_write_1h.unwrap_or(0);
        let reasoning = usage.reasoning.unwrap_or(0);
        let fresh = usage.input.checked_sub(cached)?.checked_sub(written)?;
        let thoughts = if rates.reasoning.is_some() { reasoning } else { 0 };
        let sum = |cached, fresh| {
            total(&[
                (fresh, rates.input),
                (cached, rates.cached_input),
                (written.checked_sub(long)?, rates.cache_write),
                (long, rates.cache_write_1h),
                (usage.output.checked_sub(thoughts)?, rates.output),
                (thoughts, rates.reasoning),
            ])
        };
        let cost = sum(cached, fresh)?;
        let full = sum(0, fresh.checked_add(cached)?);
        let saved = full.and_then(|full| full.0.checked_sub(cost.0)).map(NanoUsd);
        Some(Cost { cost, saved })
    }

    /// The most that a request can cost: so many tokens of prompt, none of them cached, and of answer, in the dearest
    /// tier, since a provider may have been told elsewhere which one to use.
    #[must_use]
    pub fn worst(&self, input: u64, output: u64) -> Option<NanoUsd> {
        let tiers = self.tiers.iter().filter_map(|(_, price)| price.worst(input, output));
        Some(self.worst_of_rates(input, output)?.max(tiers.max().unwrap_or_default()))
    }

    fn worst_of_rates(&self, input: u64, output: u64) -> Option<NanoUsd> {
        let rates = self.rates(input);
        let dearest = |prices: &[Option<NanoUsd>]| prices.iter().flatten().max().copied();
        total(&[
            (input, rates.input.and(dearest(&[rates.input, rates.cache_write, rates.cache_write_1h]))),
            (output, rates.output.and(dearest(&[rates.output, rates.reasoning]))),
        ])
    }
}

/// Tokens times their price per million, rounded half up.
fn total(terms: &[(u64, Option<NanoUsd>)]) -> Option<NanoUsd> {
    const MILLION: i128 = 1_000_000;
    let mut sum = 0i128;
    for (tokens, price) in terms {
        if *tokens > 0 {
            sum += i128::from(*tokens) * i128::from((*price)?.0);
        }
    }
    i64::try_from((sum + MILLION / 2).div_euclid(MILLION)).ok().map(NanoUsd)
}

#[cfg(test)]
mod tests;
