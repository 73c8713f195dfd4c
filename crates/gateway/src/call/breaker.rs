//! Circuit breakers: a provider's model that fails again and again is left alone for a while.
//!
//! Invariant: a client's own fault never counts. What counts is no connection, no answer in time, a broken answer, 408,
//! 429 and 5xx, in a row; one success closes the circuit. A time limit of the caller's that is shorter than the provider's
//! own says nothing, and requests with a client's own key go past the circuits that all share. After its rest one request tries; the others wait for it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Failures in a row that open a circuit.
const FAILURES: u32 = 5;

/// How long an open circuit rests.
const REST: Duration = Duration::from_secs(10);

/// Models that are watched; beyond them nothing is remembered, since their names come from callers.
const WATCHED: usize = 10_000;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer, to its end.
    Answered,
    /// An answer that has begun, and may yet break off.
    Begun,
    /// The provider failed, or has no room.
    Failed,
    /// The client's own fault, which says that the provider is there.
    Refused,
}

#[derive(Clone, Copy, Debug, Default)]
struct Circuit {
    failures: u32,
    /// When a request may try again.
    until: Duration,
}

/// A provider's slug and one of its models.
type Watched = (String, String);

/// The circuits of all providers and models.
#[derive(Debug, Default)]
pub struct Breakers(Mutex<HashMap<Watched, Circuit>>);

impl Breakers {
    fn circuits(&self) -> MutexGuard<'_, HashMap<Watched, Circuit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request may go there now; else when one may try.
    ///
    /// # Errors
    /// The time until the circuit may be tried.
    pub fn admit(&self, provider: &str, model: &str, now: Duration) -> Result<(), Duration> {
        let mut circuits = self.circuits();
        if circuits.is_empty() {
            return Ok(());
        }
        let Some(circuit) = circuits.get_mut(&(provider.to_owned(), model.to_owned())) else { return Ok(()) };
        if circuit.failures < FAILURES {
            return Ok(());
        }
        if now < circuit.until {
            return Err(circuit.until - now);
        }
        // This one tries; until it has told, or has had as long as a rest, nobody else does.
        circuit.until = now + REST;
        Ok(())
    }

    /// Takes back what was admitted at a moment and will tell nothing: where that was the one that tries, another may.
    pub fn give_back(&self, provider: &str, model: &str, admitted: Duration) {
        let mut circuits = self.circuits();
        if circuits.is_empty() {
            return;
        }
        let circuit = circuits.get_mut(&(provider.to_owned(), model.to_owned()));
        if let Some(circuit) =
            circuit.filter(|circuit| circuit.failures >= FAILURES && circuit.until == admitted + REST)
        {
            circuit.until = admitted;
        }
    }

    /// How many models are left alone now.
    pub fn resting(&self, now: Duration) -> usize {
        self.circuits().values().filter(|circuit| circuit.failures >= FAILURES && now < circuit.until).count()
    }

    /// Tells what became of a request.
    pub fn tell(&self, provider: &str, model: &str, outcome: Outcome, now: Duration) {
        let mut circuits = self.circuits();
        if outcome == Outcome::Begun {
            // It is there again; but one more failure, be it of this answer, opens the circuit anew.
            if let Some(circuit) = circuits.get_mut(&(provider.to_owned(), model.to_owned())) {
                circuit.failures = circuit.failures.min(FAILURES - 1);
            }
            return;
        }
        if outcome != Outcome::Failed {
            if !circuits.is_empty() {
                circuits.remove(&(provider.to_owned(), model.to_owned()));
            }
            return;
        }
        let name = (provider.to_owned(), model.to_owned());
        if circuits.len() >= WATCHED && !circuits.contains_key(&name) {
            return;
        }
        let circuit = circuits.entry(name).or_default();
        circuit.failures = circuit.failures.saturating_add(1);
        if circuit.failures >= FAILURES {
            circuit.until = now + REST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn failed(times: u32) -> Breakers {
        let breakers = Breakers::default();
        (0..times).for_each(|_| breakers.tell("p", "m", Outcome::Failed, NOW));
        breakers
    }

    #[test]
    fn failures_in_a_row_open_the_circuit_of_that_model_alone() {
        assert_eq!(failed(FAILURES - 1).admit("p", "m", NOW), Ok(()));
        let breakers = failed(FAILURES);
        assert_eq!(breakers.admit("p", "m", NOW), Err(REST));
        assert_eq!(breakers.admit("p", "other", NOW), Ok(()));
        assert_eq!(breakers.admit("other", "m", NOW), Ok(()));
    }

    /// Row 15 of the public faults: requests that clients had got wrong opened the breaker for everybody.
    #[test]
    fn a_clients_fault_never_counts_and_shows_that_the_provider_is_there() {
        let breakers = Breakers::default();
        (0..100).for_each(|_| breakers.tell("p", "m", Outcome::Refused, NOW));
        assert_eq!(breakers.admit("p", "m", NOW), Ok(()));
        let breakers = failed(FAILURES - 1);
        breakers.tell("p", "m", Outcome::Refused, NOW);
        breakers.tell("p", "m", Outcome::Failed, NOW);
        assert_eq!(breakers.admit("p", "m", NOW), Ok(()));
    }

    #[test]
    fn answers_that_begin_and_break_off_open_the_circuit_and_one_that_ends_closes_it() {
        let breakers = Breakers::default();
        for _ in 0..FAILURES {
            assert_eq!(breakers.admit("p", "m", NOW), Ok(()));
            breakers.tell("p", "m", Outcome::Begun, NOW);
            breakers.tell("p", "m", Outcome::Failed, NOW);
        }
        assert_eq!(breakers.admit("p", "m", NOW), Err(REST));
        // The one that tries lets the others in as soon as it begins; and shuts them out when it breaks.
        let later = NOW + REST;
        assert_eq!(breakers.admit("p", "m", later), Ok(()));
        breakers.tell("p", "m", Outcome::Begun, later);
        assert_eq!(breakers.admit("p", "m", later), Ok(()));
        breakers.tell("p", "m", Outcome::Failed, later);
        assert_eq!(breakers.admit("p", "m", later), Err(REST));
        let again = later + REST;
        assert_eq!(breakers.admit("p", "m", again), Ok(()));
        breakers.tell("p", "m", Outcome::Begun, again);
        breakers.tell("p", "m", Outcome::Answered, again);
        breakers.tell("p", "m", Outcome::Failed, again);
        assert_eq!(breakers.admit("p", "m", again), Ok(()));
    }

    #[test]
    fn a_try_that_is_given_back_is_anothers_and_nothing_else_opens_early() {
        let breakers = failed(FAILURES);
        breakers.give_back("p", "m", NOW - REST / 2);
        assert_eq!(breakers.admit("p", "m", NOW), Err(REST));
        let later = NOW + REST;
        assert_eq!(breakers.admit("p", "m", later), Ok(()));
        breakers.give_back("p", "m", later);
        assert_eq!(breakers.admit("p", "m", later), Ok(()));
        assert_eq!(breakers.admit("p", "m", later), Err(REST));
    }

    #[test]
    fn after_its_rest_one_request_tries_and_its_success_closes_the_circuit() {
        let breakers = failed(FAILURES);
        let later = NOW + REST;
        assert_eq!(breakers.admit("p", "m", later), Ok(()));
        assert_eq!(breakers.admit("p", "m", later), Err(REST));
        breakers.tell("p", "m", Outcome::Answered, later);
        assert_eq!(breakers.admit("p", "m", later), Ok(()));
        let breakers = failed(FAILURES);
        assert_eq!(breakers.admit("p", "m", later), Ok(()));
        breakers.tell("p", "m", Outcome::Failed, later);
        assert_eq!(breakers.admit("p", "m", later + REST / 2), Err(REST / 2));
    }
}
