//! Load on a server: sessions that start together, each with one request at a time (a closed loop), each request with
//! the history of its session as the server really answered it.
//!
//! A turn that fails is counted with its reason; what was said in it is taken back from the history, and the session
//! goes on with its next turn.

use super::Progress;
use super::client::{Answer, Server};
use super::probe::Probe;
use super::report::{Better, Kind, Report, Row};
use super::scenario::Scenario;
use super::statistics::percentile;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What sessions say.
    pub scenario: Scenario,
    /// Sessions at a time; at least 1.
    pub sessions: usize,
    /// Turns of each; at least 1.
    pub turns: usize,
    /// Tokens of each answer.
    pub max_tokens: u32,
    /// Pause of a session between its turns.
    pub think_time: Duration,
}

/// What became of a turn.
#[derive(Debug)]
struct Turn {
    session: usize,
    turn: usize,
    result: Result<Answer, String>,
}

/// Runs the plan against a server.
pub async fn run(server: &Server, plan: &Plan, probe: Probe, progress: Progress<'_>) -> Report {
    let start = Instant::now();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    for session in 0..plan.sessions {
        tokio::spawn(talk(server.clone(), *plan, session, sender.clone()));
    }
    drop(sender);
    let (mut turns, mut failed) = (Vec::new(), 0);
    while let Some(turn) = receiver.recv().await {
        failed += usize::from(turn.result.is_err());
        turns.push(turn);
        progress(&format!("{} of {} turns, {failed} failed", turns.len(), plan.sessions * plan.turns));
    }
    let wall = start.elapsed().as_secs_f64();
    // In the order of the plan, so that two files can be read side by side.
    turns.sort_by_key(|turn| (turn.session, turn.turn));
    Report {
        kind: Kind::Load,
        subject: format!("{}, model {}", server.url(), server.model()),
        hearth: env!("CARGO_PKG_VERSION").to_owned(),
        settings: settings(plan),
        probe,
        rows: rows(&turns, wall),
        failures: failures(&turns),
        turns: turns.iter().map(record).collect(),
    }
}

/// One session.
async fn talk(server: Server, plan: Plan, session: usize, sender: mpsc::UnboundedSender<Turn>) {
    let system = plan.scenario.system();
    let first: Vec<Value> =
        system.into_iter().map(|text| json!({"role": "system", "content": text})).collect();
    let mut messages = first.clone();
    for turn in 0..plan.turns {
        if turn > 0 && !plan.think_time.is_zero() {
            tokio::time::sleep(plan.think_time).await;
        }
        messages.push(json!({"role": "user", "content": plan.scenario.user(session, turn)}));
        let result = server.ask(&messages, plan.max_tokens).await;
        match &result {
            _ if !plan.scenario.keeps_history() => messages.clone_from(&first),
            Ok(answer) => messages.push(json!({"role": "assistant", "content": answer.text})),
            Err(_) => drop(messages.pop()),
        }
        if sender.send(Turn { session, turn, result }).is_err() {
            return;
        }
    }
}

fn settings(plan: &Plan) -> BTreeMap<String, Value> {
    BTreeMap::from([
        ("scenario".to_owned(), plan.scenario.kind.name().into()),
        ("seed".to_owned(), plan.scenario.seed.into()),
        ("sessions".to_owned(), plan.sessions.into()),
        ("turns".to_owned(), plan.turns.into()),
        ("max-tokens".to_owned(), plan.max_tokens.into()),
        ("think-time".to_owned(), plan.think_time.as_secs_f64().into()),
    ])
}

fn rows(turns: &[Turn], wall: f64) -> Vec<Row> {
    let good: Vec<(usize, &Answer)> =
        turns.iter().filter_map(|turn| Some((turn.turn, turn.result.as_ref().ok()?))).collect();
    let first_text = |later: bool| -> Vec<f64> {
        good.iter().filter(|(turn, _)| (*turn > 0) == later).map(|(_, answer)| answer.times[0]).collect()
    };
    let gaps: Vec<f64> =
        good.iter().flat_map(|(_, answer)| answer.times.windows(2).map(|w| (w[1] - w[0]) * 1e3)).collect();
    let mut rows = Vec::new();
    for (name, times) in [("first", first_text(false)), ("later", first_text(true))] {
        for share in [50, 95] {
            let value = percentile(&times, f64::from(share) / 100.0);
            rows.push(Row::new(format!("TTFT, {name} turn, p{share}"), "s", Better::Lower, value));
        }
    }
    for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)] {
        rows.push(Row::new(format!("gap, {name}"), "ms", Better::Lower, percentile(&gaps, share)));
    }
    let output: u64 = good.iter().map(|(_, answer)| answer.completion).sum();
    rows.push(Row::new("wall", "s", Better::Lower, Some(wall)));
    rows.push(Row::new("output", "tok/s", Better::Higher, Some(output as f64 / wall)));
    rows.push(Row::new("cached share of prompts", "%", Better::Higher, cached(&good)));
    rows.push(Row::new("turns that ended well", "", Better::Higher, Some(good.len() as f64)));
    rows.push(Row::new("failed turns", "", Better::Lower, Some((turns.len() - good.len()) as f64)));
    rows
}

/// Over the turns whose server tells both; percent.
fn cached(good: &[(usize, &Answer)]) -> Option<f64> {
    let told = good.iter().filter_map(|(_, answer)| Some((answer.prompt?, answer.cached?)));
    let (prompt, cached) = told.fold((0, 0), |sum, (prompt, cached)| (sum.0 + prompt, sum.1 + cached));
    (prompt > 0).then(|| cached as f64 / prompt as f64 * 100.0)
}

fn failures(turns: &[Turn]) -> BTreeMap<String, usize> {
    let mut failures = BTreeMap::new();
    for reason in turns.iter().filter_map(|turn| turn.result.as_ref().err()) {
        *failures.entry(reason.clone()).or_default() += 1;
    }
    failures
}

fn record(turn: &Turn) -> Value {
    let (session, number) = (turn.session, turn.turn);
    match &turn.result {
        Ok(answer) => json!({
            "session": session,
            "turn": number,
            "text_at_s": answer.times,
            "end_s": answer.end,
            "prompt_tokens": answer.prompt,
            "cached_tokens": answer.cached,
            "completion_tokens": answer.completion,
        }),
        Err(reason) => json!({"session": session, "turn": number, "failed": reason}),
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario;
    use super::*;
    use axum::Router;
    use axum::extract::State;
    use axum::response::{IntoResponse, Response};
    use axum::routing::{get, post};
    use std::sync::{Arc, Mutex};

    type Seen = Arc<Mutex<Vec<Value>>>;

    /// Answers "yes no", tells all but ten tokens as cached, and is full for session 1 in its turn 1.
    async fn complete(State(seen): State<Seen>, body: String) -> Response {
        let body: Value = serde_json::from_str(&body).unwrap();
        let last = body["messages"].as_array().unwrap().last().unwrap().clone();
        seen.lock().unwrap().push(body);
        if last["content"].as_str().unwrap().starts_with("Turn 1 of session 1:") {
            let full = json!({"error": {"message": "the queue is full"}});
            return (axum::http::StatusCode::SERVICE_UNAVAILABLE, full.to_string()).into_response();
        }
        let events = [
            json!({"choices": [{"delta": {"content": "yes"}}]}),
            json!({"choices": [{"delta": {"content": " no"}, "finish_reason": "length"}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 90}}}),
        ];
        let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        ([("content-type", "text/event-stream")], events + "data: [DONE]\n\n").into_response()
    }

    async fn server() -> (String, Seen) {
        let seen = Seen::default();
        let app = Router::new()
            .route("/v1/models", get(|| async { json!({"data": [{"id": "m"}]}).to_string() }))
            .route("/v1/chat/completions", post(complete))
            .with_state(Arc::clone(&seen));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (url, seen)
    }

    const PROBE: Probe = Probe { threads: 1, read_gb_s: 1.0, f32_gflop_s: 1.0 };

    fn plan(kind: scenario::Kind) -> Plan {
        let scenario = Scenario { kind, seed: 5 };
        Plan { scenario, sessions: 2, turns: 3, max_tokens: 2, think_time: Duration::ZERO }
    }

    fn value(report: &Report, name: &str) -> Option<f64> {
        report.rows.iter().find(|row| row.name == name).expect(name).value
    }

    #[tokio::test]
    async fn each_turn_brings_its_history_and_a_failed_one_is_counted_and_taken_back() {
        let (url, seen) = server().await;
        let server = Server::connect(&url, None, None).await.expect("a server");
        let mut told = Vec::new();
        let report =
            run(&server, &plan(scenario::Kind::Agents), PROBE, &mut |line| told.push(line.to_owned())).await;
        assert_eq!(value(&report, "turns that ended well"), Some(5.0));
        assert_eq!(value(&report, "failed turns"), Some(1.0));
        assert_eq!(value(&report, "cached share of prompts"), Some(90.0));
        assert_eq!(report.failures, BTreeMap::from([("HTTP 503: the queue is full".to_owned(), 1)]));
        assert_eq!(report.turns.len(), 6);
        assert_eq!(report.turns[4]["failed"], "HTTP 503: the queue is full");
        assert_eq!(told.last().map(String::as_str), Some("6 of 6 turns, 1 failed"));
        let seen = seen.lock().unwrap();
        let roles = |session: usize| {
            let text = format!("Turn 2 of session {session}:");
            let mine = |body: &&Value| body.to_string().contains(&text);
            let body = seen.iter().find(mine).expect("the last turn");
            let roles = body["messages"].as_array().unwrap().iter();
            roles.map(|message| message["role"].as_str().unwrap().chars().next().unwrap()).collect::<String>()
        };
        assert_eq!((roles(0), roles(1)), ("suauau".to_owned(), "suau".to_owned()));
        assert!(seen.iter().all(|body| body["model"] == "m" && body["max_tokens"] == 2));
        assert!(seen.iter().all(|body| body["messages"][0] == seen[0]["messages"][0]), "one system prompt");
    }

    #[tokio::test]
    async fn long_prompts_come_without_history() {
        let (url, seen) = server().await;
        let server = Server::connect(&url, None, Some("other".into())).await.expect("a server");
        let report = run(&server, &plan(scenario::Kind::LongPrompt), PROBE, &mut |_| {}).await;
        assert_eq!(value(&report, "failed turns"), Some(0.0));
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 6);
        assert!(seen.iter().all(|body| body["messages"].as_array().unwrap().len() == 1));
        assert!(seen.iter().all(|body| body["model"] == "other"));
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_told_before_the_run_and_counted_in_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let error = Server::connect(&url, None, None).await.expect_err("nobody").to_string();
        assert!(error.starts_with(&format!("no server answers at {url}: ")), "{error}");
        let server = Server::connect(&url, None, Some("m".into())).await.expect("a name is enough");
        let report = run(&server, &plan(scenario::Kind::Chat), PROBE, &mut |_| {}).await;
        assert_eq!(value(&report, "failed turns"), Some(6.0));
        assert_eq!(value(&report, "TTFT, first turn, p50"), None);
        assert_eq!(report.failures.values().sum::<usize>(), 6);
    }

    #[test]
    fn times_are_kept_apart_by_turn_and_gaps_are_between_pieces_of_one_answer() {
        let answer = |times: &[f64]| Ok(Answer { times: times.to_vec(), completion: 3, ..Answer::default() });
        let turns = [
            Turn { session: 0, turn: 0, result: answer(&[4.0, 4.1, 4.3]) },
            Turn { session: 0, turn: 1, result: answer(&[0.5, 0.75]) },
            Turn { session: 1, turn: 0, result: Err("x".into()) },
        ];
        let rows = rows(&turns, 2.0);
        let value = |name: &str| rows.iter().find(|row| row.name == name).expect(name).value;
        assert_eq!(value("TTFT, first turn, p95"), Some(4.0));
        assert_eq!(value("TTFT, later turn, p50"), Some(0.5));
        assert_eq!(value("gap, max"), Some(250.0));
        assert_eq!(value("output"), Some(3.0));
        assert_eq!(value("cached share of prompts"), None, "the server told nothing");
    }
}
