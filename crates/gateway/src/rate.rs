//! How often a key may ask: so many requests in each minute, in this process.

use crate::key::Key;
use crate::{Gateway, KeyId};
use protocol::{Error, ErrorKind};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const MINUTE: u64 = 60;

/// Requests of the running minute by key; a minute's keys are forgotten with it.
#[derive(Default)]
pub(crate) struct Rates(Mutex<(u64, HashMap<KeyId, u32>)>);

impl Gateway {
    /// Counts a request of a key.
    ///
    /// # Errors
    /// When the key has had all of its minute; says when the next one begins.
    pub fn count(&self, key: &Key) -> Result<(), Error> {
        let Some(limit) = key.limits.requests_per_minute else { return Ok(()) };
        let now = self.now();
        let mut rates = self.rates().0.lock().unwrap_or_else(PoisonError::into_inner);
        if rates.0 != now / MINUTE {
            *rates = (now / MINUTE, HashMap::new());
        }
        let count = rates.1.entry(key.id.clone()).or_default();
        if *count >= limit {
            let message = format!("This key may ask {limit} times a minute");
            let left = Duration::from_secs(MINUTE - now % MINUTE);
            return Err(Error::new(ErrorKind::Overloaded, message).retry_after(left));
        }
        *count += 1;
        Ok(())
    }
}
