//! What became of a request on its way to providers, told to who stands around its handler: handlers give back a response
//! in the client's dialect and know nothing of this.

use axum::http::{HeaderMap, HeaderValue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail(Arc<Mutex<Steps>>);

#[derive(Debug, Default)]
struct Steps {
    /// Providers that were asked in vain before the one that answers.
    passed: Vec<Arc<str>>,
    /// Which of several providers answers, from 0, and its entry in the ledger.
    answer: Option<(usize, Option<String>)>,
}

impl Trail {
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These providers were asked, and none answers.
    pub(super) fn in_vain(&self, slugs: impl IntoIterator<Item = Arc<str>>) {
        self.steps().passed.extend(slugs);
    }

    /// Whether a provider was asked already.
    pub(super) fn has_asked(&self, slug: &str) -> bool {
        self.steps().passed.iter().any(|passed| **passed == *slug)
    }

    /// A provider answers; `step` counts from those that were not passed by.
    pub(super) fn answered(&self, step: usize, entry: Option<String>) {
        let mut steps = self.steps();
        // Of a request that asks several times the first counts.
        let step = steps.passed.len() + step;
        steps.answer.get_or_insert((step, entry));
    }

    /// Puts into a response what is told of it.
    pub(super) fn tell(&self, headers: &mut HeaderMap) {
        let Some((step, entry)) = self.steps().answer.take() else { return };
        headers.insert("cf-aig-step", HeaderValue::from(step));
        if let Some(entry) = entry.and_then(|entry| HeaderValue::from_str(&entry).ok()) {
            headers.insert("cf-aig-log-id", entry);
        }
    }
}
