//! The server's own metrics; the models' are [`super::Status`]'s.

use super::App;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const REQUESTS: (&str, &str) = ("hearth_http_requests_total", "Requests answered, by route and status.");
const STREAMS: (&str, &str) = ("hearth_http_streams", "Answers being streamed now.");
const ABANDONED: (&str, &str) =
    ("hearth_http_streams_abandoned_total", "Streams whose client went away before the end.");
const KEYLESS: (&str, &str) =
    ("hearth_http_keyless_total", "Requests refused because they showed no valid key; they are in no log.");

/// Counters of the server.
#[derive(Default)]
pub(super) struct Metrics {
    /// By route (`None`: no route) and status. Both come from fixed sets, so the map stays small.
    requests: Mutex<BTreeMap<(Option<String>, u16), u64>>,
    streams: AtomicI64,
    abandoned: AtomicU64,
    keyless: AtomicU64,
}

impl Metrics {
    /// Counts a response.
    pub(super) fn count(&self, route: Option<&str>, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route.map(str::to_owned), status)).or_default() += 1;
    }

    /// Counts a request that showed no key of ours where one is needed.
    pub(super) fn keyless(&self) {
        self.keyless.fetch_add(1, Ordering::Relaxed);
    }

    /// All of them in Prometheus' text form.
    pub(super) fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let head = |out: &mut String, (name, help): (&str, &str), kind: &str| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        };
        head(&mut out, REQUESTS, "counter");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        for ((route, status), count) in requests.iter() {
            let route = route.as_deref().unwrap_or("none");
            let _ = writeln!(out, "{}{{route=\"{route}\",status=\"{status}\"}} {count}", REQUESTS.0);
        }
        head(&mut out, STREAMS, "gauge");
        let _ = writeln!(out, "{} {}", STREAMS.0, self.streams.load(Ordering::Relaxed));
        head(&mut out, ABANDONED, "counter");
        let _ = writeln!(out, "{} {}", ABANDONED.0, self.abandoned.load(Ordering::Relaxed));
        head(&mut out, KEYLESS, "counter");
        let _ = writeln!(out, "{} {}", KEYLESS.0, self.keyless.load(Ordering::Relaxed));
        out
    }
}

/// Counts a stream for as long as it is sent.
pub(super) struct StreamGuard {
    app: Arc<App>,
    ended: bool,
}

impl StreamGuard {
    pub(super) fn new(app: Arc<App>) -> Self {
        app.metrics.streams.fetch_add(1, Ordering::Relaxed);
        Self { app, ended: false }
    }

    /// The stream came to its end.
    pub(super) fn ended(&mut self) {
        self.ended = true;
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.app.metrics.streams.fetch_sub(1, Ordering::Relaxed);
        if !self.ended {
            self.app.metrics.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}
