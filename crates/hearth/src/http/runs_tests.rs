//! How much is kept of runs, and of how many.

use super::*;
use futures::StreamExt;

const PIECE: usize = 64 << 10;

fn run() -> Arc<Run> {
    Arc::new(Run {
        account: "default".into(),
        dialect: Dialect::of("/v1/chat/completions"),
        state: Mutex::default(),
        changes: watch::channel(0).0,
        ended_by_request: watch::channel(false).0,
    })
}

/// So many events, of [`PIECE`] bytes each, with their numbers; none is made before it is asked for.
fn events(count: usize) -> Body {
    let events = (0..count).map(|number| {
        let mut event = format!("data: {number} ");
        event.push_str(&"x".repeat(PIECE - event.len() - 2));
        Ok::<_, Infallible>(Bytes::from(event + "\n\n"))
    });
    Body::from_stream(futures::stream::iter(events))
}

#[tokio::test]
async fn a_stream_that_nobody_reads_ends_when_it_has_grown_to_4_mib() {
    let run = run();
    drop(run.read(0).unwrap());
    run.pump(events(1000), &Config::default()).await;
    let state = run.state();
    assert_eq!(state.end, Some(End::Dropped));
    assert!(state.bytes <= RUN_MAX + PIECE, "{}", state.bytes);
    drop(state);
    assert!(run.read(0).is_none());
}

#[tokio::test]
async fn a_reader_gets_all_of_a_longer_stream_of_which_4_mib_are_kept_for_the_next_one() {
    let run = run();
    let mut reader = run.read(0).unwrap().into_data_stream();
    let pumped = Arc::clone(&run);
    let pump = tokio::spawn(async move { pumped.pump(events(1000), &Config::default()).await });
    for number in 0..1000 {
        let event = reader.next().await.unwrap().unwrap();
        assert!(event.starts_with(format!("data: {number} ").as_bytes()) && event.len() == PIECE);
        assert!(run.state().bytes <= RUN_MAX + PIECE);
    }
    assert!(reader.next().await.is_none());
    pump.await.unwrap();
    // What is forgotten cannot be read again, the rest can.
    let first = run.state().first;
    assert!(first > 0 && run.read(first - 1).is_none());
    assert_eq!(run.read(first).unwrap().into_data_stream().count().await, 1000 - first);
}

#[test]
fn of_256_runs_one_that_is_over_makes_room_for_the_next_and_none_that_goes_on_does() {
    let runs = Runs::default();
    let all: Vec<_> = (0..RUNS_MAX).map(|_| run()).collect();
    for (number, run) in all.iter().enumerate() {
        assert!(runs.enter(&number.to_string(), run));
    }
    assert!(!runs.enter("more", &run()));
    all[7].end(End::Whole);
    assert!(runs.enter("more", &run()));
    assert!(runs.find("7", "default").is_none() && runs.find("more", "default").is_some());
    assert!(runs.find("8", "default").is_some() && runs.find("8", "other").is_none());
    assert!(!runs.enter("one more", &run()));
}
