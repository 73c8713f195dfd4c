//! When an attempt is repeated, and after what pause.
//!
//! Only before the client has got a byte, and only after what another attempt may change: no connection, no answer in
//! time, an answer that broke off before any of it was passed on, 408, 409, 429 and all of 5xx. A caller sets the numbers
//! by AI Gateway's headers; what a provider says about its own pause goes before them.

use crate::{Backoff, flags};
use hyper::http::{HeaderMap, StatusCode};
use protocol::Error;
use std::time::{Duration, SystemTime};

/// Most attempts, and longest pause, that a caller may ask for (AI Gateway's limits).
const ATTEMPTS_MAX: u64 = 5;
const DELAY_MAX: Duration = Duration::from_secs(5);

/// Longest pause that a provider may ask for; with a longer one its answer goes to the client, who may wait.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The header that asks for a second request beside a slow one.
const HEDGE: &str = "cf-aig-hedge";

/// How often and when a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Attempts in all.
    pub attempts: u32,
    /// The first pause.
    pub delay: Duration,
    /// How that grows.
    pub backoff: Backoff,
    /// Time to the first byte, for all attempts but the last of several, which waits as long as the provider may take.
    pub first_byte: Option<Duration>,
    /// Whether that holds for the last of several attempts too.
    pub strict: bool,
    /// When a second request is sent beside the first.
    pub hedge: Option<Hedge>,
}

/// How long the first byte of an answer may take before the same is asked a second time beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hedge {
    /// So long.
    After(Duration),
    /// As long as 95 of 100 answers of the model took of late; while that is not known, for ever.
    P95,
}

impl Hedge {
    /// Reads milliseconds or `p95`.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(word: &str) -> Result<Self, Error> {
        let ms = word.parse().ok().filter(|ms| (1..=86_400_000).contains(ms));
        match (word, ms) {
            ("p95", _) => Ok(Self::P95),
            (_, Some(ms)) => Ok(Self::After(Duration::from_millis(ms))),
            _ => Err(Error::invalid(HEDGE, format!("{HEDGE} must be a number of milliseconds, or p95"))),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts: 2,
            delay: Duration::from_millis(250),
            backoff: Backoff::Exponential,
            first_byte: None,
            strict: false,
            hedge: None,
        }
    }
}

impl Policy {
    /// What the headers of a request say, over what holds without.
    ///
    /// # Errors
    /// Names the header that is wrong.
    pub fn asked(self, headers: &HeaderMap) -> Result<Self, Error> {
        let number = |name: &'static str, range: std::ops::RangeInclusive<u64>| {
            let Some(value) = headers.get(name) else { return Ok(None) };
            let value = value.to_str().ok().and_then(|value| value.trim().parse().ok());
            value.filter(|value| range.contains(value)).map(Some).ok_or_else(|| {
                Error::invalid(
                    name,
                    format!("{name} must be a whole number from {} to {}", range.start(), range.end()),
                )
            })
        };
        let delay_max = u64::try_from(DELAY_MAX.as_millis()).unwrap_or(u64::MAX);
        let attempts = number("cf-aig-max-attempts", 1..=ATTEMPTS_MAX)?;
        let delay = number("cf-aig-retry-delay", 0..=delay_max)?;
        let first_byte = number("cf-aig-request-timeout", 1..=86_400_000)?;
        let backoff = match headers.get("cf-aig-backoff").map(|value| value.as_bytes().trim_ascii()) {
            None => self.backoff,
            Some(b"constant") => Backoff::Constant,
            Some(b"linear") => Backoff::Linear,
            Some(b"exponential") => Backoff::Exponential,
            Some(_) => {
                let message = "cf-aig-backoff must be constant, linear or exponential";
                return Err(Error::invalid("cf-aig-backoff", message));
            }
        };
        let strict = flags::is_set(headers, flags::STRICT_TIMEOUT);
        let hedge = headers.get(HEDGE).map(|value| Hedge::parse(value.to_str().unwrap_or_default()));
        Ok(Self {
            strict: strict || self.strict,
            hedge: hedge.transpose()?.or(self.hedge),
            attempts: attempts.and_then(|attempts| u32::try_from(attempts).ok()).unwrap_or(self.attempts),
            delay: delay.map_or(self.delay, Duration::from_millis),
            backoff,
            first_byte: first_byte.map(Duration::from_millis).or(self.first_byte),
        })
    }

    /// The pause after attempt number `done`, from 1; `asked` is what the provider says. `None`: no other attempt.
    /// `chance` in `[0, 1)` takes away up to half of a pause that nobody asked for, so that clients do not come back
    /// together.
    #[must_use]
    pub fn pause(&self, done: u32, asked: Option<Duration>, chance: f64) -> Option<Duration> {
        if done >= self.attempts {
            return None;
        }
        if let Some(asked) = asked {
            return (asked <= WAIT_MAX).then_some(asked);
        }
        let factor = match self.backoff {
            Backoff::Constant => 1,
            Backoff::Linear => done,
            Backoff::Exponential => 1 << (done - 1).min(16),
        };
        Some((self.delay * factor).min(WAIT_MAX).mul_f64(1.0 - chance.clamp(0.0, 1.0) / 2.0))
    }
}

/// Whether another attempt may have another outcome.
#[must_use]
pub fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 409 | 429 | 500..)
}

/// The pause that an answer asks for: seconds, or a date (RFC 9110, 10.2.3), which is counted from the answer's own `Date`
/// where it has one. A date that has passed asks for none.
#[must_use]
pub fn asked(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name: &str| text(name)?.parse::<f64>().ok();
    if let Some(seconds) = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after")) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = httpdate::parse_http_date(text("retry-after")?).ok()?;
    let now = text("date").and_then(|date| httpdate::parse_http_date(date).ok());
    until.duration_since(now.unwrap_or_else(SystemTime::now)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (hyper::http::HeaderName::from_static(name), HeaderValue::from_static(value))
            })
            .collect()
    }

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn callers_set_the_policy_within_its_limits() {
        let asked = Policy::default()
            .asked(&headers(&[
                ("cf-aig-max-attempts", "5"),
                ("cf-aig-retry-delay", "100"),
                ("cf-aig-backoff", "linear"),
                ("cf-aig-request-timeout", "900"),
            ]))
            .unwrap();
        let expected = Policy {
            attempts: 5,
            delay: MS(100),
            backoff: Backoff::Linear,
            first_byte: Some(MS(900)),
            ..Policy::default()
        };
        assert_eq!(asked, expected);
        for (name, value) in [
            ("cf-aig-max-attempts", "6"),
            ("cf-aig-max-attempts", "0"),
            ("cf-aig-retry-delay", "5001"),
            ("cf-aig-backoff", "none"),
            ("cf-aig-request-timeout", "soon"),
            ("cf-aig-hedge", "p99"),
            ("cf-aig-hedge", "0"),
        ] {
            let error = Policy::default().asked(&headers(&[(name, value)])).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name), "{error}");
        }
    }

    #[test]
    fn pauses_grow_as_asked_and_attempts_end() {
        for (backoff, expected) in [
            (Backoff::Constant, [100, 100, 100]),
            (Backoff::Linear, [100, 200, 300]),
            (Backoff::Exponential, [100, 200, 400]),
        ] {
            let policy = Policy { attempts: 4, delay: MS(100), backoff, ..Policy::default() };
            assert_eq!([1, 2, 3].map(|done| policy.pause(done, None, 0.0)), expected.map(|ms| Some(MS(ms))));
            assert_eq!(policy.pause(4, None, 0.0), None);
            assert_eq!(policy.pause(1, None, 1.0), Some(MS(50)));
        }
    }

    #[test]
    fn a_providers_own_pause_goes_before_and_a_long_one_is_the_clients() {
        let policy = Policy::default();
        assert_eq!(policy.pause(1, Some(MS(1234)), 0.9), Some(MS(1234)));
        assert_eq!(policy.pause(1, Some(MS(20_001)), 0.0), None);
        assert_eq!(asked(&headers(&[("retry-after", "2")])), Some(MS(2000)));
        assert_eq!(asked(&headers(&[("retry-after", "2"), ("retry-after-ms", "1500")])), Some(MS(1500)));
        assert_eq!(asked(&headers(&[("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT")])), None);
        assert_eq!(asked(&headers(&[("retry-after", "-1")])), None);
        let now = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for date in
            ["Sun, 06 Nov 1994 08:49:49 GMT", "Sunday, 06-Nov-94 08:49:49 GMT", "Sun Nov  6 08:49:49 1994"]
        {
            assert_eq!(asked(&headers(&[now, ("retry-after", date)])), Some(MS(12_000)), "{date}");
        }
        assert_eq!(asked(&headers(&[now, ("retry-after", "Sun, 06 Nov 1994 08:49:36 GMT")])), None);
        assert_eq!(asked(&headers(&[now, ("retry-after", "soon")])), None);
    }

    #[test]
    fn what_a_client_did_wrong_is_not_repeated() {
        for status in [400, 401, 403, 404, 413, 422] {
            assert!(!is_passing(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [408, 409, 429, 500, 502, 503, 504, 529] {
            assert!(is_passing(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
