//! What a caller says a request costs: the header `cf-aig-custom-cost`.
//!
//! Either `{"per_token_in", "per_token_out", "per_cache_read_token"?, "per_cache_write_token"?}` in dollars a token, a
//! missing cache rate being that of input, or `{"total_cost"}` in dollars.

use super::{Cost, Price, Rates};
use crate::{Tier, Usage};
use base::NanoUsd;
use protocol::Error;
use serde_json::{Map, Value};

/// The header.
const HEADER: &str = "cf-aig-custom-cost";

/// A cost that goes before the price book's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CustomCost {
    /// Prices of tokens.
    Rates(Price),
    /// The whole cost, whatever was used.
    Total(NanoUsd),
}

impl CustomCost {
    /// Reads the header's value.
    ///
    /// # Errors
    /// When it is none of the two forms, or a number is negative or too large.
    pub fn parse(json: &str) -> Result<Self, Error> {
        let bad = |what: &str| Error::invalid(HEADER, format!("Invalid value for '{HEADER}': {what}"));
        let fields: Map<String, Value> =
            serde_json::from_str(json).map_err(|_| bad("expected a JSON object"))?;
        let number = |name: &str, scale: f64| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let number = value.as_f64().filter(|number| *number >= 0.0);
                let amount = number.and_then(|number| NanoUsd::from_dollars(number * scale));
                amount.map(Some).ok_or_else(|| bad(&format!("{name} must be a number of dollars")))
            }
        };
        if let Some(total) = number("total_cost", 1.0)? {
            return Ok(Self::Total(total));
        }
        const MILLION: f64 = 1e6;
        let (input, output) = (number("per_token_in", MILLION)?, number("per_token_out", MILLION)?);
        if input.is_none() || output.is_none() {
            return Err(bad("it needs total_cost, or per_token_in and per_token_out"));
        }
        let cache_write = number("per_cache_write_token", MILLION)?.or(input);
        let rates = Rates {
            input,
            cached_input: number("per_cache_read_token", MILLION)?.or(input),
            cache_write,
            cache_write_1h: cache_write,
            output,
            reasoning: None,
        };
        Ok(Self::Rates(Price { rates, ..Price::default() }))
    }

    /// What a request costs; `None` when the usage it needs is not known.
    #[must_use]
    pub fn cost(&self, usage: Option<&Usage>) -> Option<Cost> {
        match self {
            // Whoever names a price for tokens means all of them.
            Self::Rates(price) => {
                price.cost(&Usage { tier: Tier::Standard, other: false, told: None, ..*usage? })
            }
            Self::Total(total) => Some(Cost { cost: *total, saved: Some(NanoUsd(0)) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(json: &str) -> Option<i64> {
        let usage = Usage {
            input: 100,
            cached_input: Some(40),
            cache_write: Some(10),
            output: 7,
            ..Usage::default()
        };
        CustomCost::parse(json).ok()?.cost(Some(&usage)).map(|cost| cost.cost.0)
    }

    #[test]
    fn a_missing_cache_rate_is_that_of_input() {
        assert_eq!(cost(r#"{"per_token_in":1e-6,"per_token_out":2e-6}"#), Some(100_000 + 14_000));
        let all = r#"{"per_token_in":1e-6,"per_token_out":2e-6,"per_cache_read_token":0,"per_cache_write_token":3e-6}"#;
        assert_eq!(cost(all), Some(50_000 + 30_000 + 14_000));
    }

    #[test]
    fn a_total_needs_no_usage() {
        let total = CustomCost::parse(r#"{"total_cost":0.5}"#).unwrap();
        assert_eq!(total.cost(None).map(|cost| cost.cost), Some(NanoUsd(500_000_000)));
    }

    #[test]
    fn what_is_no_cost_is_refused_by_the_headers_name() {
        for json in [
            "",
            "1",
            "{}",
            r#"{"per_token_in":1}"#,
            r#"{"total_cost":-1}"#,
            r#"{"total_cost":"1"}"#,
            r#"{"per_token_in":1e300,"per_token_out":1}"#,
        ] {
            let error = CustomCost::parse(json).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(HEADER), "{json}");
        }
    }
}
