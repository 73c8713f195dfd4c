//! What the gateway counts, in Prometheus' text form.
//!
//! Invariant: labels come from bounded sets. Providers are those that are configured, and `custom` for all that accounts
//! made; models are named by callers, so beyond [`MODELS`] pairs of provider and model both are `other`.

use crate::Gateway;
use crate::Usage;
use crate::caller::counted;
use crate::log::{Finder, Outcome};
use crate::price::Cost;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pairs of provider and model that are told apart.
const MODELS: usize = 256;

/// The provider's label where an account made it.
pub(crate) const CUSTOM: &str = "custom";

/// The upper ends of a histogram's buckets, in milliseconds.
const BUCKETS: [u64; 14] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000];

/// Times, by how long they were.
#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    /// In microseconds.
    sum: AtomicU64,
}

impl Histogram {
    fn add(&self, time: Duration) {
        let place = BUCKETS.partition_point(|end| Duration::from_millis(*end) < time);
        self.buckets[place].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn render(&self, out: &mut String, name: &str, help: &str) {
        head(out, name, help, "histogram");
        let mut count = 0;
        for (place, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            let end = BUCKETS.get(place).map_or("+Inf".to_owned(), |end| (*end as f64 / 1e3).to_string());
            let _ = writeln!(out, "{name}_bucket{{le=\"{end}\"}} {count}");
        }
        let sum = Duration::from_micros(self.sum.load(Ordering::Relaxed)).as_secs_f64();
        let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
    }
}

/// What one model of a provider did.
#[derive(Clone, Debug, Default)]
struct Model {
    /// By status; those are few.
    requests: BTreeMap<u16, u64>,
    input: u64,
    cached_input: u64,
    cache_write: u64,
    output: u64,
    reasoning: u64,
    /// In billionths of a dollar.
    cost: i64,
    unpriced: u64,
}

/// The counters of a process.
#[derive(Default)]
pub struct Metrics {
    models: Mutex<BTreeMap<(String, String), Model>>,
    first_byte: Histogram,
    whole: Histogram,
    /// By the places of [`Finder::LIMITS`].
    reported: [AtomicU64; Finder::LIMITS.len()],
}

// Writing to a string cannot fail.
fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn one(out: &mut String, name: &str, help: &str, kind: &str, value: u64) {
    head(out, name, help, kind);
    let _ = writeln!(out, "{name} {value}");
}

/// A label's value, with what the form wants escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Metrics {
    fn models(&self) -> MutexGuard<'_, BTreeMap<(String, String), Model>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an entry of the ledger that ended.
    pub(crate) fn count(
        &self,
        provider: &str,
        model: &str,
        outcome: Outcome,
        usage: Option<&Usage>,
        cost: Option<Cost>,
    ) {
        let status = match outcome {
            Outcome::Whole => 200,
            Outcome::Failed(status) => status,
            Outcome::Left => 499,
        };
        let mut models = self.models();
        let mut name = (provider.to_owned(), counted(model).into_owned());
        if models.len() >= MODELS && !models.contains_key(&name) {
            name = ("other".to_owned(), "other".to_owned());
        }
        let model = models.entry(name).or_default();
        *model.requests.entry(status).or_default() += 1;
        if let Some(usage) = usage {
            model.input += usage.input;
            model.cached_input += usage.cached_input.unwrap_or(0);
            model.cache_write += usage.cache_write.unwrap_or(0);
            model.output += usage.output;
            model.reasoning += usage.reasoning.unwrap_or(0);
        }
        match cost {
            Some(cost) => model.cost = model.cost.saturating_add(cost.cost.0),
            None => model.unpriced += 1,
        }
    }

    /// Counts a request that a limit which only reports would have refused.
    pub(crate) fn reported(&self, limit: Finder) {
        if let Some(place) = Finder::LIMITS.iter().position(|(known, _)| *known == limit) {
            self.reported[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a response that went out: the times to its first byte and to its end.
    pub(crate) fn answered(&self, first_byte: Duration, whole: Duration) {
        self.first_byte.add(first_byte);
        self.whole.add(whole);
    }

    fn render(&self, out: &mut String) {
        let models = self.models().clone();
        let labels = |(provider, model): &(String, String)| {
            format!("provider=\"{}\",model=\"{}\"", escaped(provider), escaped(model))
        };
        let name = "hearth_gateway_requests_total";
        head(out, name, "Requests that a model or provider was asked, by how they ended.", "counter");
        for (place, model) in &models {
            for (status, count) in &model.requests {
                let _ = writeln!(out, "{name}{{{},status=\"{status}\"}} {count}", labels(place));
            }
        }
        let name = "hearth_gateway_tokens_total";
        head(
            out,
            name,
            "Tokens by kind; cached_input and cache_write are part of input, reasoning of output.",
            "counter",
        );
        for (place, model) in &models {
            for (kind, count) in [
                ("input", model.input),
                ("cached_input", model.cached_input),
                ("cache_write", model.cache_write),
                ("output", model.output),
                ("reasoning", model.reasoning),
            ] {
                let _ = writeln!(out, "{name}{{{},kind=\"{kind}\"}} {count}", labels(place));
            }
        }
        let name = "hearth_gateway_cost_dollars_total";
        head(out, name, "What requests cost, where that is known.", "counter");
        for (place, model) in &models {
            let _ = writeln!(out, "{name}{{{}}} {}", labels(place), model.cost as f64 / 1e9);
        }
        let name = "hearth_gateway_unpriced_total";
        head(out, name, "Requests whose cost is not known.", "counter");
        for (place, model) in &models {
            let _ = writeln!(out, "{name}{{{}}} {}", labels(place), model.unpriced);
        }
        let name = "hearth_gateway_shadow_refusals_total";
        head(out, name, "Requests that a limit which only reports would have refused.", "counter");
        for ((_, limit), count) in Finder::LIMITS.iter().zip(&self.reported) {
            let _ = writeln!(out, "{name}{{limit=\"{limit}\"}} {}", count.load(Ordering::Relaxed));
        }
        let name = "hearth_gateway_first_byte_seconds";
        self.first_byte.render(out, name, "Time from a request to the first byte of its answer.");
        self.whole.render(
            out,
            "hearth_gateway_duration_seconds",
            "Time from a request to the end of its answer.",
        );
    }
}

impl Gateway {
    /// All that the gateway counts, in Prometheus' text form.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut out = String::new();
        self.0.metrics.render(&mut out);
        let (dropped, held) = self.logs().counts();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (sent, lost) = self.logs().spans();
        for (name, help, kind, value) in [
            (
                "hearth_gateway_logs_waiting",
                "Logs that the store has not taken yet.",
                "gauge",
                read(&dropped.waiting),
            ),
            (
                "hearth_gateway_logs_written_total",
                "Logs that the store took.",
                "counter",
                read(&dropped.written),
            ),
            (
                "hearth_gateway_logs_dropped_total",
                "Logs that were let go because the store was slow, full or refused them.",
                "counter",
                read(&dropped.records),
            ),
            (
                "hearth_gateway_log_payloads_dropped_total",
                "Payloads of logs that were let go for the same, or for want of memory.",
                "counter",
                read(&dropped.payloads),
            ),
            (
                "hearth_gateway_logs_beyond_cap_total",
                "Logs that were not kept because their gateway has as many as it may.",
                "counter",
                read(&dropped.beyond),
            ),
            (
                "hearth_gateway_log_write_retries_total",
                "Attempts to write logs that the store did not take.",
                "counter",
                read(&dropped.retries),
            ),
            ("hearth_gateway_log_payload_bytes", "Bytes of payloads held in memory.", "gauge", held),
            ("hearth_gateway_spans_sent_total", "Spans that collectors took.", "counter", sent),
            ("hearth_gateway_spans_dropped_total", "Spans that no collector took.", "counter", lost),
            (
                "hearth_gateway_ledger_waiting",
                "Ends of requests that the ledger's store has not taken yet.",
                "gauge",
                self.ledger().waiting(),
            ),
        ] {
            one(&mut out, name, help, kind, value);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_from_callers_do_not_grow_the_labels_without_end() {
        let metrics = Metrics::default();
        for number in 0..10_000 {
            metrics.count(
                &format!("p{number}"),
                &format!("m{number}\"\\\n"),
                Outcome::Failed(404),
                None,
                None,
            );
        }
        let mut out = String::new();
        metrics.render(&mut out);
        assert!(out.lines().count() < 10 * MODELS, "{}", out.lines().count());
        assert!(out.contains("provider=\"other\",model=\"other\",status=\"404\"} 9744"), "{out}");
        assert!(out.contains(r#"model="m0\"\\\n""#));
    }

    #[test]
    fn a_long_name_of_a_model_is_cut_in_its_label() {
        let metrics = Metrics::default();
        for length in [100, 5000] {
            metrics.count("p", &"x".repeat(length), Outcome::Whole, None, None);
        }
        let mut out = String::new();
        metrics.render(&mut out);
        assert!(out.lines().all(|line| line.len() < 400), "{out}");
        assert!(out.contains(&format!("model=\"{}\"", "x".repeat(100))));
        assert!(out.contains(&format!("model=\"{}…\"", "x".repeat(128))));
    }

    #[test]
    fn a_time_counts_in_each_bucket_from_its_own_on() {
        let histogram = Histogram::default();
        for time in [4, 5, 6, 200_000] {
            histogram.add(Duration::from_millis(time));
        }
        let mut out = String::new();
        histogram.render(&mut out, "h", "H.");
        for line in
            ["h_bucket{le=\"0.005\"} 2", "h_bucket{le=\"0.01\"} 3", "h_bucket{le=\"+Inf\"} 4", "h_count 4"]
        {
            assert!(out.contains(line), "{line} in {out}");
        }
        assert!(out.contains("h_sum 200.015"));
    }
}
