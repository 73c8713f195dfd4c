//! A second request beside a slow one: at the next provider that may answer, and where there is none at the same one.
//!
//! The one whose answer begins first is passed on; the other is dropped, which closes its connection, and its entry in the
//! ledger says that it was interrupted, with the status 499 and a cost that nobody knows. Both are entered before they are
//! sent, so a budget without room for two sends one. Not here: who is asked when both fail.

use super::attempt::{Begun, Failed};
use super::ready::Ready;
use super::retry::Hedge;
use super::{Call, Proxy};
use crate::Gateway;
use crate::ledger::Entry;
use futures::future::{Either, select};
use std::collections::{HashMap, VecDeque};
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
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

/// What came of it.
pub(super) struct Asked<'a> {
    /// Who answered, or whose word holds.
    pub(super) ready: Ready<'a>,
    pub(super) attempted: Result<Begun, Failed>,
    /// The last step that was asked.
    pub(super) last: usize,
}

/// How each of two ended; nothing where the other was quicker.
type Ended = [Option<Result<Begun, Failed>>; 2];

impl Proxy {
    /// Asks one, and where its first byte takes long another beside it: the next that may answer, or the same one again
    /// where there is none. What became of the one whose word does not hold is told and entered here.
    pub(super) async fn hedged<'a>(
        &self,
        ledger: Option<&Gateway>,
        call: &'a Call,
        first: Ready<'a>,
    ) -> Asked<'a> {
        let delay = match call.policy.hedge {
            Some(Hedge::After(delay)) => Some(delay),
            Some(Hedge::P95) => self.first_bytes.p95(&first.provider.circuit, &first.target.model),
            None => None,
        };
        let began = self.clock.now();
        let (mut second, mut began_second) = (None, began);
        let [one, two]: Ended = {
            let mut one = pin!(self.attempts(call, first.target, &first.signed));
            let early = match delay {
                None => Some(one.as_mut().await),
                Some(delay) => timeout(delay, one.as_mut()).await.ok(),
            };
            if early.is_none() {
                // Rare and large.
                second = Box::pin(self.beside(ledger, call, first.step)).await;
                began_second = self.clock.now();
            }
            match (early, &second) {
                (Some(early), _) => [Some(early), None],
                (None, None) => [Some(one.await), None],
                (None, Some(second)) => {
                    let slug = &*second.target.provider.slug;
                    tracing::debug!(provider = slug, "a second request is sent beside a slow one");
                    let mut two = Box::pin(self.attempts(call, second.target, &second.signed));
                    race(one, two.as_mut()).await
                }
            }
        };
        let first_holds = match (&one, &two) {
            (Some(Ok(_)), _) | (_, None) => true,
            (_, Some(Ok(_))) | (None, _) => false,
            // What is the client's fault is said by whoever says it.
            (Some(Err(one)), Some(Err(_))) => !one.is_passing(),
        };
        let took = |began| self.clock.now().saturating_sub(began);
        if two.as_ref().is_some_and(Result::is_ok)
            && let Some(second) = second.as_ref().filter(|second| second.step != first.step)
        {
            self.remember(second, took(began_second));
        }
        if [&one, &two].into_iter().flatten().any(Result::is_ok) {
            // Of one that was given up this is less than it took.
            self.remember(&first, took(began));
        }
        let last = second.as_ref().map_or(first.step, |second| second.step);
        let Some(second) = second else {
            let attempted = one.expect("who is alone is waited for");
            return Asked { ready: first, attempted, last };
        };
        let (ready, attempted, other, others) =
            if first_holds { (first, one, second, two) } else { (second, two, first, one) };
        self.leave(other, others, ready.entry.as_ref()).await;
        Asked { ready, attempted: attempted.expect("whose word holds has said it"), last }
    }

    /// The next that may be asked beside one; it itself where there is no other, and nobody where that may not be.
    async fn beside<'a>(&self, ledger: Option<&Gateway>, call: &'a Call, step: usize) -> Option<Ready<'a>> {
        for other in (step + 1..call.targets.len()).chain([step]) {
            if let Ok(ready) = self.ready(ledger, call, other).await {
                return Some(ready);
            }
        }
        None
    }

    /// Ends one whose word does not hold.
    async fn leave(
        &self,
        mut other: Ready<'_>,
        attempted: Option<Result<Begun, Failed>>,
        held: Option<&Entry>,
    ) {
        let entry = other.entry.take();
        match attempted {
            None => {
                self.give_back(&other);
                if let Some(entry) = entry {
                    entry.cancel(held);
                }
            }
            Some(mut attempted) => {
                self.tell(&other, &mut attempted);
                if let (Some(entry), Err(failed)) = (entry, &attempted) {
                    entry.fail(failed.status.as_u16(), &failed.why()).await;
                }
            }
        }
    }

    fn remember(&self, ready: &Ready<'_>, took: Duration) {
        self.first_bytes.add(&ready.provider.circuit, &ready.target.model, took);
    }
}

/// Runs both until one has an answer, or none.
async fn race<F: Future<Output = Result<Begun, Failed>>>(one: Pin<&mut F>, two: Pin<&mut F>) -> Ended {
    match select(one, two).await {
        Either::Left((Err(failed), two)) => [Some(Err(failed)), Some(two.await)],
        Either::Left((answered, _)) => [Some(answered), None],
        Either::Right((Err(failed), one)) => [Some(one.await), Some(Err(failed))],
        Either::Right((answered, _)) => [None, Some(answered)],
    }
}
