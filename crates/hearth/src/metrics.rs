//! The models' metrics in Prometheus' text form. One list of families; the numbers are serving's.

use engine::Stats;
use serving::metrics::HistogramStats;
use serving::{Local, ModelStats};
use std::fmt::{Display, Write};

/// Writes one family after another.
struct Page<'a> {
    text: String,
    models: &'a [ModelStats],
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
        let _ = match labels.is_empty() {
            true => writeln!(self.text, "{name} {value}"),
            false => writeln!(self.text, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    /// One number of each model.
    fn family(&mut self, name: &str, kind: &str, help: &str, value: impl Fn(&ModelStats) -> u64) {
        self.head(name, kind, help);
        for model in self.models {
            self.sample(name, &[("model", &model.id)], value(model));
        }
    }

    /// One number of each language model.
    fn engine(&mut self, name: &str, kind: &str, help: &str, value: impl Fn(&Stats) -> u64) {
        self.head(name, kind, help);
        for model in self.models {
            if let Some(stats) = &model.engine {
                self.sample(name, &[("model", &model.id)], value(stats));
            }
        }
    }

    /// Several numbers of each language model, told apart by one label.
    fn labelled<const N: usize>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        label: &str,
        values: impl Fn(&Stats) -> [(&'static str, u64); N],
    ) {
        self.head(name, kind, help);
        for model in self.models {
            for (word, value) in model.engine.iter().flat_map(&values) {
                self.sample(name, &[("model", &model.id), (label, word)], value);
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&ModelStats) -> &HistogramStats) {
        self.head(name, "histogram", help);
        for model in self.models {
            let stats = of(model);
            let mut total = 0;
            for (bound, count) in &stats.buckets {
                total += count;
                let le = bound.to_string();
                self.sample(&format!("{name}_bucket"), &[("model", &model.id), ("le", &le)], total);
            }
            self.sample(&format!("{name}_bucket"), &[("model", &model.id), ("le", "+Inf")], stats.count());
            self.sample(&format!("{name}_sum"), &[("model", &model.id)], stats.sum);
            self.sample(&format!("{name}_count"), &[("model", &model.id)], stats.count());
        }
    }
}

/// Label values may hold anything but these three as they are.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// All of them.
#[must_use]
pub fn render(local: &Local) -> String {
    let models = local.stats();
    let mut text = page(&models);
    let budget = local.kv_budget();
    for (name, help, value) in [
        (
            "hearth_kv_memory_limit_bytes",
            "Memory that the KV pages of all models may take.",
            budget.total().0,
        ),
        ("hearth_kv_memory_used_bytes", "Memory that the KV pages of all models take.", budget.used().0),
    ] {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
    text
}

fn page(models: &[ModelStats]) -> String {
    let (gauge, counter) = ("gauge", "counter");
    let mut page = Page { text: String::new(), models };
    page.family("hearth_model_ready", gauge, "1 when the model can answer.", |model| u64::from(model.ready));
    page.engine("hearth_requests_queued", gauge, "Requests not yet admitted.", |stats| stats.queued as u64);
    page.engine("hearth_requests_running", gauge, "Sequences that run.", |stats| stats.running as u64);
    page.engine(
        "hearth_sequences_waiting",
        gauge,
        "Sequences that wait, preempted ones included.",
        |stats| stats.waiting as u64,
    );
    page.engine("hearth_queued_prompt_tokens", gauge, "Prompt tokens of queued requests.", |stats| {
        u64::from(stats.queued_tokens.0)
    });
    page.head("hearth_requests_total", counter, "Requests by how they ended.");
    for model in models {
        for (outcome, count) in &model.requests.outcomes {
            page.sample(
                "hearth_requests_total",
                &[("model", &model.id), ("outcome", outcome.as_str())],
                count,
            );
        }
    }
    let tokens =
        ("hearth_tokens_total", counter, "Tokens: prompts' computed, prompts' found in the cache, answers'.");
    page.labelled(tokens, "kind", |stats| {
        [
            ("prompt_computed", stats.counters.prompt_tokens_computed),
            ("prompt_cached", stats.counters.cached_tokens),
            ("completion", stats.counters.completion_tokens),
        ]
    });
    page.family(
        "hearth_embedding_tokens_total",
        counter,
        "Tokens of inputs of embedding models and rerankers.",
        |model| model.requests.input_tokens,
    );
    let pages = ("hearth_kv_pages", gauge, "KV pages: free, cached but idle, held by sequences.");
    page.labelled(pages, "state", |stats| {
        [
            ("free", stats.pages.free as u64),
            ("cached", stats.pages.cached as u64),
            ("held", stats.pages.held as u64),
        ]
    });
    page.engine("hearth_kv_page_bytes", gauge, "Memory of one KV page.", |stats| stats.pages.bytes.0);
    page.engine("hearth_kv_pages_evicted_total", counter, "Cached KV pages that were evicted.", |stats| {
        stats.counters.evicted_pages
    });
    page.engine("hearth_preemptions_total", counter, "Sequences set back and computed again.", |stats| {
        stats.counters.preemptions
    });
    page.engine("hearth_steps_total", counter, "Steps of the engine.", |stats| stats.counters.steps);
    page.engine("hearth_step_rows_total", counter, "Rows of all steps.", |stats| stats.counters.rows);
    page.engine("hearth_drafted_tokens_total", counter, "Drafted tokens that ran as rows.", |stats| {
        stats.counters.drafted_tokens
    });
    page.engine(
        "hearth_accepted_draft_tokens_total",
        counter,
        "Drafted tokens that were the answer's.",
        |stats| stats.counters.accepted_tokens,
    );
    page.family("hearth_engine_restarts_total", counter, "Engines started again after a failure.", |model| {
        model.requests.restarts
    });
    page.histogram(
        "hearth_time_to_first_token_seconds",
        "From a request's arrival to its first token.",
        |model| &model.requests.ttft,
    );
    page.histogram("hearth_inter_token_seconds", "Between two tokens of one request.", |model| {
        &model.requests.gap
    });
    page.text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serving::metrics::{Metrics, Outcome};
    use std::time::Duration;

    fn model() -> ModelStats {
        let metrics = Metrics::default();
        metrics.first_token(Duration::from_millis(20));
        metrics.first_token(Duration::from_secs(1000));
        metrics.ended(Outcome::Finished);
        let mut engine = Stats { running: 2, ..Stats::default() };
        engine.counters.cached_tokens = 7;
        ModelStats { id: "a\"b".into(), ready: true, engine: Some(engine), requests: metrics.stats() }
    }

    #[test]
    fn samples_carry_escaped_labels_and_stand_under_their_family() {
        let text = page(&[model()]);
        for line in [
            r#"hearth_requests_running{model="a\"b"} 2"#,
            r#"hearth_tokens_total{model="a\"b",kind="prompt_cached"} 7"#,
            r#"hearth_requests_total{model="a\"b",outcome="finished"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().expect("a name");
            } else if !line.starts_with('#') {
                assert!(line.starts_with(family), "{line} stands under {family}");
            }
        }
    }

    #[test]
    fn every_family_is_documented() {
        let document = include_str!("../../../docs/api.md");
        for line in page(&[model()]).lines() {
            let Some(family) = line.strip_prefix("# TYPE hearth_") else { continue };
            let name = family.split(' ').next().expect("a name");
            assert!(document.contains(&format!("`{name}")), "docs/api.md does not name {name}");
        }
    }

    #[test]
    fn buckets_of_a_histogram_add_up() {
        let text = page(&[model()]);
        let buckets: Vec<u64> = text
            .lines()
            .filter(|line| line.starts_with("hearth_time_to_first_token_seconds_bucket"))
            .map(|line| line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a count"))
            .collect();
        assert!(buckets.is_sorted());
        assert_eq!((buckets.first(), buckets.last()), (Some(&0), Some(&2)), "{buckets:?}");
    }

    #[test]
    fn an_embedding_model_has_no_engine_samples() {
        let text = page(&[ModelStats { engine: None, ..model() }]);
        assert!(!text.contains("hearth_kv_pages{"), "{text}");
        assert!(text.contains("hearth_model_ready{"));
    }
}
