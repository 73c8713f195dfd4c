//! What became of a request on its way to providers, told to who stands around its handler: handlers give back a response
//! in the client's dialect and know nothing of this.

use super::refusal::Refusal;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use protocol::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail(Arc<Mutex<Steps>>);

#[derive(Debug, Default)]
struct Steps {
    /// Providers that were asked in vain before the one that answers.
    passed: Vec<Arc<str>>,
    /// What they came to.
    failure: Option<Result<Response, Error>>,
    /// Which of several providers answers, from 0, and its entry in the ledger.
    answer: Option<(usize, Option<String>)>,
}

impl Trail {
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These providers were asked, and none answers; this is what the client would be told.
    pub(super) fn in_vain(
        &self,
        slugs: impl IntoIterator<Item = Arc<str>>,
        failure: Result<Response, Error>,
    ) {
        let mut steps = self.steps();
        steps.passed.extend(slugs);
        steps.failure = Some(failure);
    }

    /// What the client is told: where nobody else was asked in the end, what those said that were, and not why the
    /// others could not be.
    pub(super) fn last_word(&self, response: Response) -> Response {
        let refused = response.extensions().get::<Error>();
        let by_nobody = refused.is_some_and(|error| error.status.is_none());
        let mut steps = self.steps();
        match steps.failure.take() {
            Some(failure) if by_nobody && steps.answer.is_none() => {
                failure.unwrap_or_else(|error| Refusal(error).into_response())
            }
            _ => response,
        }
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
