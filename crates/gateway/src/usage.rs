//! What a request used, in one meaning for all dialects.
//!
//! What a provider reported is read by `protocol::counts`. Nothing is ever estimated: what was not reported is `None`,
//! which is not the same as zero.

use base::NanoUsd;
use protocol::counts::Counts;

/// What a provider was asked to be: prices differ by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// What everybody gets.
    #[default]
    Standard,
    /// Later and cheaper.
    Flex,
    /// Sooner and dearer.
    Priority,
    /// Within a day.
    Batch,
    /// One whose price nobody tells.
    Other,
}

impl Tier {
    /// From a provider's word for it.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        match word {
            "default" | "standard" | "auto" | "on_demand" => Self::Standard,
            "flex" => Self::Flex,
            "priority" => Self::Priority,
            "batch" => Self::Batch,
            _ => Self::Other,
        }
    }
}

/// Tokens of one request, as reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All tokens of the prompt, those read from a cache and those written to one included.
    pub input: u64,
    /// Of these, read from a cache.
    pub cached_input: Option<u64>,
    /// Of these, written to a cache at a price of their own.
    pub cache_write: Option<u64>,
    /// Of those written, kept for an hour, which some providers charge more for.
    pub cache_write_1h: Option<u64>,
    /// All tokens of the answer, thoughts included.
    pub output: u64,
    /// Of these, spent on thinking.
    pub reasoning: Option<u64>,
    /// The tier in which it was answered.
    pub tier: Tier,
    /// Whether something was used that has a price of its own: tokens of images or sound, searches.
    pub other: bool,
    /// What all of it costs, as the provider says.
    pub told: Option<NanoUsd>,
}

impl Usage {
    /// What a provider reported; nothing where it told only half of it.
    #[must_use]
    pub fn reported(counts: &Counts, tier: Tier) -> Option<Self> {
        Some(Self {
            input: counts.prompt?,
            cached_input: counts.cached,
            cache_write: counts.written,
            cache_write_1h: counts.written_1h,
            output: counts.answer?,
            reasoning: counts.thoughts,
            tier,
            other: counts.other,
            told: counts.cost,
        })
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        let add = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (one, other) => one.or(other),
        };
        Self {
            input: self.input.saturating_add(other.input),
            cached_input: add(self.cached_input, other.cached_input),
            cache_write: add(self.cache_write, other.cache_write),
            cache_write_1h: add(self.cache_write_1h, other.cache_write_1h),
            output: self.output.saturating_add(other.output),
            reasoning: add(self.reasoning, other.reasoning),
            // Two tiers have no price together.
            tier: if self.tier == other.tier { self.tier } else { Tier::Other },
            // One that tells a cost and one that does not have none together.
            other: self.other || other.other || self.told.is_some() != other.told.is_some(),
            told: self.told.zip(other.told).map(|(one, two)| NanoUsd(one.0.saturating_add(two.0))),
        }
    }
}

impl From<protocol::Usage> for Usage {
    fn from(usage: protocol::Usage) -> Self {
        Self {
            input: usage.prompt_tokens.into(),
            cached_input: Some(usage.cached_tokens.into()),
            // Models here write their cache for nothing.
            cache_write: (usage.cache_write_tokens > 0).then(|| usage.cache_write_tokens.into()),
            cache_write_1h: None,
            output: usage.completion_tokens.into(),
            reasoning: Some(usage.reasoning_tokens.into()),
            tier: Tier::Standard,
            other: false,
            told: None,
        }
    }
}
