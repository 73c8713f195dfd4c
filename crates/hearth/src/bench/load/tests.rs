//! Runs against a server that answers at once.

use super::super::probe::tests::example;
use super::super::replay::{Fit, Replay};
use super::super::scenario::{Crowd, Kind as Who, Scenario};
use super::super::trace;
use super::*;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::collections::BTreeMap;
use std::sync::Mutex;

type Seen = Arc<Mutex<Vec<Value>>>;

/// Answers "yes no", tells all but ten tokens as cached, is full for session 1 in its turn 1, and does not answer
/// who wants exactly nine tokens.
async fn complete(State(seen): State<Seen>, body: String) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap();
    let last = body["messages"].as_array().unwrap().last().unwrap().clone();
    let unanswered = body["max_tokens"] == 9;
    seen.lock().unwrap().push(body);
    if unanswered {
        return std::future::pending().await;
    }
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

fn crowd(kind: Who) -> impl Fn(u32) -> Arc<dyn Workload> {
    move |run| {
        let scenario = Scenario { kind, seed: 5 + u64::from(run) };
        Arc::new(Crowd { scenario, sessions: 2, turns: 3, max_tokens: 2, think_time: Duration::ZERO })
    }
}

const ONCE: Plan = Plan { runs: 1, repeats: 2, time_limit: None, pid: None };

fn value(report: &Report, name: &str) -> Option<f64> {
    report.rows.iter().find(|row| row.name == name).expect(name).value
}

async fn steady(server: &Server, texts: Texts<'_>, plan: &Plan) -> Report {
    run(server, texts, plan, &mut || example(30.0, 900.0), &mut |_| {}).await.expect("a report")
}

#[tokio::test]
async fn each_turn_brings_its_history_and_a_failed_one_is_counted_and_taken_back() {
    let (url, seen) = server().await;
    let server = Server::connect(&url, None, None).await.expect("a server");
    let mut told = Vec::new();
    let mut probe = || example(30.0, 900.0);
    let texts = crowd(Who::Agents);
    let report =
        run(&server, &texts, &ONCE, &mut probe, &mut |line| told.push(line.to_owned())).await.expect("one");
    assert_eq!(value(&report, "turns that ended well"), Some(5.0));
    assert_eq!(value(&report, "failed turns"), Some(1.0));
    assert_eq!(value(&report, "turns not ended in time"), Some(0.0));
    assert_eq!(value(&report, "cached share of prompts"), Some(90.0));
    assert_eq!(report.failures, BTreeMap::from([("HTTP 503: the queue is full".to_owned(), 1)]));
    assert_eq!(report.turns.len(), 6);
    assert_eq!(report.turns[4].failed.as_deref(), Some("HTTP 503: the queue is full"));
    assert!(told.contains(&"run 1 of 1: 6 of 6 turns, 1 failed".to_owned()), "{told:?}");
    assert_eq!((report.probes.len(), report.repeated, report.unsteady), (2, 0, 0));
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
    let report = steady(&server, &crowd(Who::LongPrompt), &ONCE).await;
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
    let report = steady(&server, &crowd(Who::Chat), &ONCE).await;
    assert_eq!(value(&report, "failed turns"), Some(6.0));
    assert_eq!(value(&report, "TTFT, first turn, p50"), None);
    assert_eq!(report.failures.values().sum::<usize>(), 6);
}

#[tokio::test]
async fn a_run_whose_probe_is_off_is_repeated_with_other_texts_and_dropped() {
    let (url, seen) = server().await;
    let server = Server::connect(&url, None, None).await.expect("a server");
    // The second run ends on a machine that has slowed down; its repetition does not.
    let mut rates = [30.0, 30.0, 30.0, 20.0, 30.0, 31.0, 30.0, 30.0].into_iter();
    let mut probe = || example(rates.next().expect("as many probes as wanted"), 900.0);
    let plan = Plan { runs: 3, ..ONCE };
    let report = run(&server, &crowd(Who::Chat), &plan, &mut probe, &mut |_| {}).await.expect("a report");
    assert_eq!((report.repeated, report.unsteady, report.probes.len()), (1, 0, 6));
    let mut runs: Vec<u32> = report.turns.iter().map(|turn| turn.run).collect();
    runs.dedup();
    assert_eq!(runs, [0, 3, 2], "run 1 gave way to run 3");
    assert_eq!(value(&report, "turns that ended well"), Some(18.0));
    let seen = seen.lock().unwrap();
    let firsts = seen.iter().filter(|body| body["messages"].as_array().unwrap().len() == 2);
    let mut texts: Vec<String> = firsts.map(|body| body["messages"][1]["content"].to_string()).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 8, "two sessions in four runs, none of them heard before");
}

#[tokio::test]
async fn a_machine_that_stays_off_is_told_after_a_bounded_number_of_repeats() {
    let (url, _) = server().await;
    let server = Server::connect(&url, None, None).await.expect("a server");
    let mut number = 0;
    let mut probe = || {
        number += 1;
        example(if number % 2 == 0 { 50.0 } else { 30.0 }, 900.0)
    };
    let report = run(&server, &crowd(Who::Chat), &ONCE, &mut probe, &mut |_| {}).await.expect("a report");
    assert_eq!((report.repeated, report.unsteady), (2, 1));
}

#[tokio::test]
async fn a_trace_is_replayed_with_its_history_and_lengths() {
    let (url, seen) = server().await;
    let server = Server::connect(&url, None, None).await.expect("a server");
    let text = r#"{"session_id":"a","input_length":6,"output_length":3,"hash_ids":[1],"timestamp":0}
{"session_id":"a","input_length":4,"output_length":5,"hash_ids":[2],"delay":1}
{"session_id":"b","input_length":8,"output_length":7,"hash_ids":[1],"timestamp":2}
"#;
    let trace = trace::read(text.as_bytes(), 9).expect("a trace");
    let fit = Fit { speed: 1.0, shrink: 1, input_max: None, output_max: None };
    let texts = |_| -> Arc<dyn Workload> { Arc::new(Replay::new("t", &trace, fit, 1)) };
    let report = steady(&server, &texts, &ONCE).await;
    assert_eq!(value(&report, "turns that ended well"), Some(3.0));
    assert!(value(&report, "sent late, max").is_some());
    assert!(report.turns[2].sent_s >= 0.002, "session b starts at its time");
    assert!(report.turns.iter().all(|turn| turn.late_s >= 0.0));
    let seen = seen.lock().unwrap();
    let asked = |max_tokens: u32| seen.iter().find(|body| body["max_tokens"] == max_tokens).expect("asked");
    assert_eq!(asked(5)["messages"].as_array().unwrap().len(), 3, "question, answer, question");
    let words = |body: &Value| body["messages"][0]["content"].as_str().unwrap().to_owned();
    assert!(words(asked(7)).starts_with(&words(asked(3))), "the same block in two sessions");
}

#[tokio::test]
async fn a_time_limit_ends_the_run_and_counts_what_is_missing() {
    let (url, _) = server().await;
    let server = Server::connect(&url, None, None).await.expect("a server");
    let texts = |_| -> Arc<dyn Workload> {
        let scenario = Scenario { kind: Who::Chat, seed: 1 };
        Arc::new(Crowd { scenario, sessions: 2, turns: 3, max_tokens: 9, think_time: Duration::ZERO })
    };
    let plan = Plan { time_limit: Some(Duration::from_millis(1)), ..ONCE };
    let report = steady(&server, &texts, &plan).await;
    assert_eq!(value(&report, "turns not ended in time"), Some(6.0));
    assert_eq!((report.turns.len(), &report.settings["time-limit"]), (0, &0.001.into()));
}

#[tokio::test]
async fn the_memory_of_a_process_is_told_before_and_after() {
    let (url, _) = server().await;
    let server = Server::connect(&url, None, None).await.expect("a server");
    let plan = Plan { pid: Some(std::process::id()), ..ONCE };
    let report = steady(&server, &crowd(Who::Chat), &plan).await;
    assert!(value(&report, "server memory before").is_some_and(|mib| mib > 1.0));
    assert!(value(&report, "server memory after").is_some_and(|mib| mib > 1.0));
    let gone = Plan { pid: Some(u32::MAX), ..ONCE };
    let mut probe = || example(30.0, 900.0);
    let error =
        run(&server, &crowd(Who::Chat), &gone, &mut probe, &mut |_| {}).await.expect_err("no process");
    assert!(format!("{error:#}").starts_with("--pid: no process 4294967295"), "{error:#}");
}
