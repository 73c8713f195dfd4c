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

/// Where a test's databases come from.
enum Databases {
    Files,
    Server(Arc<testdb::Server>),
}

/// One database.
enum Place {
    File(tempfile::TempDir),
    Server(store::Address),
}

impl Databases {
    fn server(test: &str) -> Option<Self> {
        testdb::Server::shared(test).map(Self::Server)
    }

    fn fixture(&self, size: u64) -> Fixture {
        let clock = Arc::new(Stopped(AtomicU64::new(1_000_000_000)));
        let limits = Limits { retention: Duration::from_secs(30 * DAY), size: Bytes(size) };
        let place = match self {
            Self::Files => Place::File(tempfile::tempdir().unwrap()),
            Self::Server(server) => Place::Server(server.database().parse().unwrap()),
        };
        Fixture { place, clock, limits }
    }
}

struct Fixture {
    place: Place,
    clock: Arc<Stopped>,
    limits: Limits,
}

impl Fixture {
    fn open(&self) -> Kept {
        let store = match &self.place {
            Place::File(folder) => Store::open(folder.path(), &[TABLES]),
            Place::Server(address) => Store::connect(address, &[TABLES]),
        };
        Kept::new(store.unwrap(), self.limits, Arc::clone(&self.clock) as Arc<dyn Clock>)
    }

    fn pass(&self, seconds: u64) {
        self.clock.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

/// Makes a test of each claim for each database.
macro_rules! on_both {
    ($($claim:ident)*) => {
        mod on_sqlite {
            $(#[tokio::test]
            async fn $claim() {
                super::$claim(super::Databases::Files).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test]
            async fn $claim() {
                let Some(databases) = super::Databases::server(stringify!($claim)) else { return };
                super::$claim(databases).await;
            })*
        }
    };
}

on_both! {
    a_conversation_is_there_after_the_store_was_opened_again
    a_deleted_turn_is_gone_and_what_follows_it_says_so
    a_turn_is_found_with_its_own_salt_only
    a_conversation_lives_from_its_last_turn_on
    when_room_runs_out_the_conversation_unused_for_longest_goes
    a_conversation_that_needs_all_room_loses_its_oldest_branches_and_never_gets_more
    a_sweep_deletes_all_that_expired_however_much
    the_size_of_what_is_read_is_that_of_its_turns
    what_one_server_kept_another_goes_on_from
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

async fn a_conversation_is_there_after_the_store_was_opened_again(databases: Databases) {
    let fixture = databases.fixture(1 << 20);
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

async fn a_deleted_turn_is_gone_and_what_follows_it_says_so(databases: Databases) {
    let fixture = databases.fixture(1 << 20);
    let kept = fixture.open();
    kept.keep(turn("a", None)).await.unwrap();
    kept.keep(turn("b", Some("a"))).await.unwrap();
    assert!(kept.delete("a", None).await.unwrap());
    assert!(!kept.delete("a", None).await.unwrap());
    assert!(!found(&kept, "a").await);
    assert!(found(&kept, "b").await);
    assert_eq!(kept.history("b", None).await.unwrap(), History::Broken("a".to_owned()));
}

async fn a_turn_is_found_with_its_own_salt_only(databases: Databases) {
    let fixture = databases.fixture(1 << 20);
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

async fn a_conversation_lives_from_its_last_turn_on(databases: Databases) {
    let fixture = databases.fixture(1 << 20);
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

async fn when_room_runs_out_the_conversation_unused_for_longest_goes(databases: Databases) {
    let fixture = databases.fixture(3 * one().await as u64);
    let kept = fixture.open();
    for (id, previous) in [("a", None), ("b", None), ("c", Some("a")), ("d", None)] {
        fixture.pass(1);
        kept.keep(turn(id, previous)).await.unwrap();
    }
    // `a` was used by `c` after `b`.
    assert!(!found(&kept, "b").await);
    assert!(found(&kept, "a").await && found(&kept, "c").await && found(&kept, "d").await);
}

async fn a_conversation_that_needs_all_room_loses_its_oldest_branches_and_never_gets_more(
    databases: Databases,
) {
    let fixture = databases.fixture(3 * one().await as u64);
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

async fn a_sweep_deletes_all_that_expired_however_much(databases: Databases) {
    let fixture = databases.fixture(1 << 20);
    let kept = fixture.open();
    for number in 0..=2 * BATCH {
        kept.keep(turn(&number.to_string(), None)).await.unwrap();
    }
    fixture.pass(31 * DAY);
    kept.sweep_once().await.unwrap();
    assert_eq!(sizes(&kept).await, (0, 0));
}

async fn the_size_of_what_is_read_is_that_of_its_turns(databases: Databases) {
    let fixture = databases.fixture(1 << 20);
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
    let fixture = Databases::Files.fixture(1 << 20);
    let kept = fixture.open();
    kept.keep(turn("new", None)).await.unwrap();
    sizes(&kept).await.1
}

async fn what_one_server_kept_another_goes_on_from(databases: Databases) {
    let fixture = databases.fixture(1 << 20);
    let (one, other) = (fixture.open(), fixture.open());
    one.keep(turn("a", None)).await.unwrap();
    other.keep(turn("b", Some("a"))).await.unwrap();
    assert_eq!(whole(one.history("b", None).await.unwrap()).len(), 2);
    assert!(other.delete("a", None).await.unwrap());
    assert!(!found(&one, "a").await);
}

#[tokio::test]
async fn turns_kept_by_an_earlier_version_stay_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let first = Part { steps: &TABLES.steps[..1], ..TABLES };
    let store = Store::open(folder.path(), &[first]).unwrap();
    let insert = store.write(|work| {
        work.execute("INSERT INTO responses_conversations (used) VALUES (1000000000)", &[])?;
        for id in ["c", "a", "b"] {
            let sql = "INSERT INTO responses_turns (id, conversation, salt, bytes, input, output, response)
                VALUES (?1, 1, '', 1, '[]', '[]', '{}')";
            work.execute(sql, &[id.into()])?;
        }
        Ok(())
    });
    insert.await.unwrap();
    drop(store);
    let store = Store::open(folder.path(), &[TABLES]).unwrap();
    let rows = store.read(|work| work.query("SELECT id FROM responses_turns ORDER BY number", &[])).await;
    let rows = rows.unwrap();
    assert_eq!(rows.iter().map(|row| row.text(0).unwrap()).collect::<Vec<_>>(), ["c", "a", "b"]);
}

async fn the_size_is_right_and_bounded_after(ops: Vec<(u8, u8)>, databases: &Databases) {
    let size = 6 * one().await;
    let fixture = databases.fixture(size.unsigned_abs());
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
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn ops() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec(any::<(u8, u8)>(), 1..40)
}

#[test]
fn whatever_happens_the_size_is_right_and_bounded() {
    proptest!(ProptestConfig::with_cases(24), |(ops in ops())| {
        run(the_size_is_right_and_bounded_after(ops, &Databases::Files));
    });
}

#[test]
fn whatever_happens_the_size_is_right_and_bounded_in_postgres_too() {
    let Some(databases) = Databases::server("whatever_happens") else { return };
    proptest!(ProptestConfig::with_cases(8), |(ops in ops())| {
        run(the_size_is_right_and_bounded_after(ops, &databases));
    });
}
