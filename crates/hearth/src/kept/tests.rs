//! What is kept, how long, and who finds it.

use super::*;
use proptest::prelude::*;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that stands until it is told.
#[derive(Default)]
struct Stopped(AtomicU64);

impl Clock for Stopped {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn unix_seconds(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

const DAY: u64 = 86_400;

struct Fixture {
    folder: tempfile::TempDir,
    clock: Arc<Stopped>,
    limits: Limits,
}

impl Fixture {
    fn new(size: u64) -> Self {
        let clock = Arc::new(Stopped(AtomicU64::new(1_000_000_000)));
        let limits = Limits { retention: Duration::from_secs(30 * DAY), size: Bytes(size) };
        Self { folder: tempfile::tempdir().unwrap(), clock, limits }
    }

    fn open(&self) -> Kept {
        Kept::open(self.folder.path(), self.limits, Arc::clone(&self.clock) as Arc<dyn Clock>).unwrap()
    }

    fn pass(&self, seconds: u64) {
        self.clock.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

fn turn(id: &str, previous: Option<&str>) -> Turn {
    Turn {
        id: id.to_owned(),
        previous: previous.map(str::to_owned),
        salt: None,
        input: vec![json!({"in": id})],
        output: vec![json!({"out": id})],
        response: json!({"id": id, "output": ["x"], "status": "completed"}),
    }
}

async fn found(kept: &Kept, id: &str) -> bool {
    kept.response(id, None).await.unwrap().is_some()
}

fn whole(history: History) -> Vec<String> {
    let History::Whole(turns) = history else { panic!("{history:?}") };
    turns.iter().map(|turn| format!("{}>{}", turn.input[0]["in"], turn.output[0]["out"])).collect()
}

#[tokio::test]
async fn a_conversation_is_there_after_the_store_was_opened_again() {
    let fixture = Fixture::new(1 << 20);
    let kept = fixture.open();
    for (id, previous) in [("a", None), ("b", Some("a")), ("other", Some("a")), ("c", Some("b"))] {
        kept.keep(turn(id, previous)).await.unwrap();
    }
    drop(kept);
    let kept = fixture.open();
    let history = kept.history("c", None).await.unwrap();
    assert_eq!(whole(history), ["\"a\">\"a\"", "\"b\">\"b\"", "\"c\">\"c\""]);
    let response = kept.response("c", None).await.unwrap().unwrap();
    assert_eq!(response, json!({"id": "c", "output": [{"out": "c"}], "status": "completed"}));
    assert_eq!(kept.history("nobody", None).await.unwrap(), History::Unknown);
}

#[tokio::test]
async fn a_deleted_turn_is_gone_and_what_follows_it_says_so() {
    let fixture = Fixture::new(1 << 20);
    let kept = fixture.open();
    kept.keep(turn("a", None)).await.unwrap();
    kept.keep(turn("b", Some("a"))).await.unwrap();
    assert!(kept.delete("a", None).await.unwrap());
    assert!(!kept.delete("a", None).await.unwrap());
    assert!(!found(&kept, "a").await);
    assert!(found(&kept, "b").await);
    assert_eq!(kept.history("b", None).await.unwrap(), History::Broken("a".to_owned()));
}

#[tokio::test]
async fn a_turn_is_found_with_its_own_salt_only() {
    let fixture = Fixture::new(1 << 20);
    let kept = fixture.open();
    kept.keep(Turn { salt: Some("s".to_owned()), ..turn("a", None) }).await.unwrap();
    for salt in [None, Some(""), Some("t")] {
        assert_eq!(kept.response("a", salt).await.unwrap(), None);
        assert_eq!(kept.history("a", salt).await.unwrap(), History::Unknown);
        assert!(kept.turns(vec!["a".to_owned()], salt).await.unwrap().is_empty());
        assert!(!kept.delete("a", salt).await.unwrap());
    }
    assert!(kept.response("a", Some("s")).await.unwrap().is_some());
    assert_eq!(kept.turns(vec!["a".to_owned()], Some("s")).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_conversation_lives_from_its_last_turn_on() {
    let fixture = Fixture::new(1 << 20);
    let kept = fixture.open();
    kept.keep(turn("a", None)).await.unwrap();
    kept.keep(turn("lone", None)).await.unwrap();
    fixture.pass(20 * DAY);
    kept.keep(turn("b", Some("a"))).await.unwrap();
    fixture.pass(20 * DAY);
    assert!(found(&kept, "a").await && found(&kept, "b").await);
    assert!(!found(&kept, "lone").await);
    fixture.pass(11 * DAY);
    assert_eq!(kept.history("b", None).await.unwrap(), History::Unknown);
    assert_eq!(sizes(&kept).await.0, 3, "still there, and given to nobody");
    kept.keep(turn("new", None)).await.unwrap();
    kept.sweep_once().await.unwrap();
    assert_eq!(sizes(&kept).await, (1, one().await));
}

#[tokio::test]
async fn when_room_runs_out_the_conversation_unused_for_longest_goes() {
    let fixture = Fixture::new(3 * one().await as u64);
    let kept = fixture.open();
    for (id, previous) in [("a", None), ("b", None), ("c", Some("a")), ("d", None)] {
        fixture.pass(1);
        kept.keep(turn(id, previous)).await.unwrap();
    }
    // `a` was used by `c` after `b`.
    assert!(!found(&kept, "b").await);
    assert!(found(&kept, "a").await && found(&kept, "c").await && found(&kept, "d").await);
}

#[tokio::test]
async fn a_conversation_that_needs_all_room_loses_its_oldest_branches_and_never_gets_more() {
    let fixture = Fixture::new(3 * one().await as u64);
    let kept = fixture.open();
    kept.keep(turn("other", None)).await.unwrap();
    for (id, previous) in [("a", None), ("b", Some("a")), ("c", Some("a")), ("d", Some("a"))] {
        kept.keep(turn(id, previous)).await.unwrap();
    }
    assert!(!found(&kept, "other").await && !found(&kept, "b").await);
    assert!(found(&kept, "a").await && found(&kept, "c").await && found(&kept, "d").await);
    // A chain that is as long as all the room cannot become longer, and stays as it is.
    kept.keep(turn("e", Some("d"))).await.unwrap();
    assert!(!found(&kept, "c").await);
    let error = kept.keep(turn("f", Some("e"))).await.unwrap_err();
    assert!(error.message.contains("need more room than all of"), "{error}");
    assert_eq!(whole(kept.history("e", None).await.unwrap()).len(), 3);
    assert!(!found(&kept, "f").await);
}

#[tokio::test]
async fn a_sweep_deletes_all_that_expired_however_much() {
    let fixture = Fixture::new(1 << 20);
    let kept = fixture.open();
    for number in 0..=2 * BATCH {
        kept.keep(turn(&number.to_string(), None)).await.unwrap();
    }
    fixture.pass(31 * DAY);
    kept.sweep_once().await.unwrap();
    assert_eq!(sizes(&kept).await, (0, 0));
}

#[tokio::test]
async fn the_size_of_what_is_read_is_that_of_its_turns() {
    let fixture = Fixture::new(1 << 20);
    let kept = fixture.open();
    for (id, previous) in [("a", None), ("b", Some("a")), ("o", Some("a"))] {
        kept.keep(turn(id, previous)).await.unwrap();
    }
    let one = kept.size(Some("a"), Vec::new(), None).await.unwrap();
    for (last, single, salt, turns) in [
        (Some("b"), vec![], None, 2),
        (Some("b"), vec!["o", "nobody"], None, 3),
        (None, vec!["a", "b"], None, 2),
        (Some("nobody"), vec![], None, 0),
        (Some("b"), vec!["a"], Some("s"), 0),
    ] {
        let single = single.into_iter().map(str::to_owned).collect();
        assert_eq!(kept.size(last, single, salt).await.unwrap(), turns * one, "{last:?}");
    }
}

#[tokio::test]
async fn where_nothing_is_kept_nothing_is_found() {
    let kept = Kept::nothing("told so", Arc::new(Stopped::default()));
    assert_eq!(kept.off(), Some("told so"));
    kept.keep(turn("a", None)).await.unwrap();
    assert!(!found(&kept, "a").await);
    assert_eq!(kept.history("a", None).await.unwrap(), History::Unknown);
}

/// Turns, and the size that is written down; checks that it is the sum of theirs.
async fn sizes(kept: &Kept) -> (i64, i64) {
    let read = kept.store.as_ref().unwrap().read(|work| {
        let sum = work.query("SELECT count(*), coalesce(sum(bytes), 0) FROM responses_turns", &[])?;
        let size = work.query("SELECT bytes FROM responses_size", &[])?;
        Ok((sum[0].integer(0)?, sum[0].integer(1)?, size[0].integer(0)?))
    });
    let (count, sum, size) = read.await.unwrap();
    assert_eq!(sum, size);
    (count, size)
}

/// Bytes of one turn with an id of one character or so.
async fn one() -> i64 {
    let fixture = Fixture::new(1 << 20);
    let kept = fixture.open();
    kept.keep(turn("new", None)).await.unwrap();
    sizes(&kept).await.1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_happens_the_size_is_right_and_bounded(ops in prop::collection::vec(any::<(u8, u8)>(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let size = 6 * one().await;
            let fixture = Fixture::new(size.unsigned_abs());
            let kept = fixture.open();
            for (number, (what, which)) in ops.into_iter().enumerate() {
                let named = (number > 0).then(|| format!("{}", usize::from(which) % number));
                match what % 4 {
                    0 => kept.keep(turn(&number.to_string(), None)).await.unwrap(),
                    // A conversation that fills all the room cannot grow.
                    1 => drop(kept.keep(turn(&number.to_string(), named.as_deref())).await),
                    2 => {
                        if let Some(id) = named {
                            kept.delete(&id, None).await.unwrap();
                            assert!(!found(&kept, &id).await);
                        }
                    }
                    _ => fixture.pass(u64::from(which) * 7200),
                }
                assert!(sizes(&kept).await.1 <= size);
            }
        });
    }
}
