//! A second request beside a slow one, and who tells the breaker how an answer ended.
//!
//! The one whose answer begins first is passed on; the other is dropped, which closes its connection, and its entry in the
//! ledger says that it was interrupted, with the status 499 and a cost that nobody knows. Both are entered before they are
//! sent, so a budget without room for two sends one. Not here: whom to ask next.

use super::attempt::{Begun, Failed};
use super::breaker::{Breakers, Outcome};
use super::retry::Hedge;
use super::{Call, Proxy, Signed, Target, enter};
use crate::Gateway;
use crate::ledger::Entry;
use base::Clock;
use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// First bytes that are remembered of each model, and how few say nothing.
const REMEMBERED: usize = 200;
const FEWEST: usize = 20;

/// Models of which they are remembered; their names come from callers.
const MODELS: usize = 1000;

/// How long the first bytes of answers took, by circuit and model.
#[derive(Debug, Default)]
pub(super) struct FirstBytes(Mutex<HashMap<(String, String), VecDeque<Duration>>>);

impl FirstBytes {
    fn add(&self, circuit: &str, model: &str, took: Duration) {
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (circuit.to_owned(), model.to_owned());
        if models.len() >= MODELS && !models.contains_key(&name) {
            return;
        }
        let times = models.entry(name).or_default();
        if times.len() == REMEMBERED {
            times.pop_front();
        }
        times.push_back(took);
    }

    /// What 95 of 100 did not exceed.
    fn p95(&self, circuit: &str, model: &str) -> Option<Duration> {
        let models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = models.get(&(circuit.to_owned(), model.to_owned()))?;
        if times.len() < FEWEST {
            return None;
        }
        let mut times: Vec<Duration> = times.iter().copied().collect();
        times.sort_unstable();
        times.get((times.len() * 95).div_ceil(100) - 1).copied()
    }
}

/// Tells a breaker how an answer ends that has begun.
pub(super) struct Told {
    pub(super) breakers: Arc<Breakers>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) circuit: String,
    pub(super) model: String,
}

impl Told {
    pub(super) fn tell(self, outcome: Outcome) {
        self.breakers.tell(&self.circuit, &self.model, outcome, self.clock.now());
    }
}

impl Proxy {
    /// Asks a target, and where its first byte takes long a second time beside that. Gives the outcome with its entry.
    pub(super) async fn hedged(
        &self,
        ledger: Option<&Gateway>,
        call: &Call,
        target: &Target,
        (circuit, headers): (&str, &Signed),
        entry: Option<Entry>,
    ) -> (Result<Begun, Failed>, Option<Entry>) {
        let began = self.clock.now();
        let remember = |outcome: &Result<Begun, Failed>| {
            if outcome.is_ok() {
                self.first_bytes.add(circuit, &target.model, self.clock.now().saturating_sub(began));
            }
        };
        let delay = match call.policy.hedge {
            Some(Hedge::After(delay)) => Some(delay),
            Some(Hedge::P95) => self.first_bytes.p95(circuit, &target.model),
            None => None,
        };
        let mut first = pin!(self.attempts(call, target, headers));
        let early = match delay {
            None => Some(first.as_mut().await),
            Some(delay) => timeout(delay, first.as_mut()).await.ok(),
        };
        if let Some(outcome) = early {
            remember(&outcome);
            return (outcome, entry);
        }
        let Ok(other) = enter(ledger, call, target).await else {
            let outcome = first.await;
            remember(&outcome);
            return (outcome, entry);
        };
        tracing::debug!(provider = &*target.provider.slug, "a second request is sent beside a slow one");
        let mut second = pin!(self.attempts(call, target, headers));
        let ((outcome, entry), lost) = tokio::select! {
            biased;
            outcome = first.as_mut() => match outcome {
                Ok(begun) => ((Ok(begun), entry), other),
                Err(failed) => {
                    end(entry, &failed).await;
                    ((second.await, other), None)
                }
            },
            outcome = second.as_mut() => match outcome {
                Ok(begun) => ((Ok(begun), other), entry),
                Err(failed) => {
                    end(other, &failed).await;
                    ((first.await, entry), None)
                }
            },
        };
        remember(&outcome);
        if let Some(lost) = lost {
            lost.cancel(entry.as_ref());
        }
        (outcome, entry)
    }
}

async fn end(entry: Option<Entry>, failed: &Failed) {
    if let Some(entry) = entry {
        entry.fail(failed.status.as_u16()).await;
    }
}
