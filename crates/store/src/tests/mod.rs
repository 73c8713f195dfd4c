//! The store over real files and real servers: what holds for both, and what each has for itself.

mod faults;
mod file;

use super::*;
use std::sync::mpsc::sync_channel;
use testdb::Server;

const NOTES: Part = Part { name: "notes", steps: &["CREATE TABLE notes (text TEXT NOT NULL UNIQUE) STRICT"] };

/// A store of a test's own.
enum Place {
    File(tempfile::TempDir),
    Server { address: Address, _running: Arc<Server> },
}

impl Place {
    fn file() -> Self {
        Self::File(tempfile::tempdir().unwrap())
    }

    fn server(test: &str) -> Option<Self> {
        let server = Server::shared(test)?;
        let address = server.database().parse().unwrap();
        Some(Self::Server { address, _running: server })
    }

    fn try_open(&self, parts: &[Part]) -> Result<Store, Error> {
        match self {
            Self::File(folder) => Store::open(folder.path(), parts),
            Self::Server { address, .. } => Store::connect(address, parts),
        }
    }

    fn open(&self) -> Store {
        self.try_open(&[NOTES]).unwrap()
    }

    /// Keeps others from writing, as another process would, until it is dropped.
    fn hold(&self) -> Box<dyn std::any::Any> {
        match self {
            Self::File(folder) => {
                let other = Connection::open(&folder.path().join(FILE), PATIENCE).unwrap();
                other.0.execute_batch("BEGIN IMMEDIATE").unwrap();
                Box::new(other)
            }
            Self::Server { address, .. } => {
                let address = address.clone();
                let held = std::thread::spawn(move || postgres::hold(&address)).join();
                Box::new(held.unwrap())
            }
        }
    }
}

/// Makes a test of each claim for each database.
macro_rules! on_both {
    ($($claim:ident)*) => {
        mod on_sqlite {
            $(#[tokio::test]
            async fn $claim() {
                super::$claim(super::Place::file()).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test]
            async fn $claim() {
                let Some(place) = super::Place::server(stringify!($claim)) else { return };
                super::$claim(place).await;
            })*
        }
    };
}

on_both! {
    what_was_answered_is_there_after_the_store_was_opened_again
    whatever_of_a_group_fails_after_or_before_it_changed_something_each_write_is_there_once
    a_write_that_fails_or_panics_undoes_itself_and_nothing_else
    a_statement_that_failed_fails_its_work_even_if_that_goes_on
    of_many_writes_at_once_exactly_those_that_succeeded_are_there
    writes_of_two_stores_are_done_alone
    reads_cannot_write
    a_read_sees_one_moment
    reads_go_on_while_another_process_holds_the_store_and_writes_wait_for_it
    what_one_store_wrote_another_reads
    values_come_back_as_they_went_in
    texts_are_ordered_by_their_bytes
    what_sql_may_say_means_the_same
    each_step_is_done_once_and_in_order
    a_step_that_fails_leaves_the_store_as_it_was
    stores_that_start_together_do_each_step_once
}

fn note(text: &str) -> impl Fn(&Work<'_>) -> Result<u64, Error> + Send + use<> {
    let text = text.to_owned();
    move |work| work.execute("INSERT INTO notes VALUES (?1)", &[text.as_str().into()])
}

async fn notes(store: &Store) -> Vec<String> {
    let read = store.read(|work| {
        let rows = work.query("SELECT text FROM notes ORDER BY text", &[])?;
        rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
    });
    read.await.unwrap()
}

async fn what_was_answered_is_there_after_the_store_was_opened_again(place: Place) {
    let store = place.open();
    assert_eq!(store.write(note("a")).await.unwrap(), 1);
    drop(store);
    assert_eq!(notes(&place.open()).await, ["a"]);
}

async fn a_write_that_fails_or_panics_undoes_itself_and_nothing_else(place: Place) {
    let store = place.open();
    let half = store.write(|work| {
        note("half")(work)?;
        note("half")(work)
    });
    let undone = store.write(|work| -> Result<(), Error> {
        note("undone")(work)?;
        Err(Error::Undone("told to".to_owned()))
    });
    let panics = store.write(|work| -> Result<(), Error> {
        note("panic")(work)?;
        panic!("told to")
    });
    let (a, half, undone, panics, b) =
        tokio::join!(store.write(note("a")), half, undone, panics, store.write(note("b")));
    assert!(a.is_ok() && b.is_ok());
    assert!(matches!(half, Err(Error::Failed(why)) if why.to_lowercase().contains("unique")));
    assert!(matches!(undone, Err(Error::Undone(why)) if why == "told to"));
    assert!(matches!(panics, Err(Error::Closed)));
    assert_eq!(notes(&store).await, ["a", "b"]);
}

async fn whatever_of_a_group_fails_after_or_before_it_changed_something_each_write_is_there_once(
    place: Place,
) {
    let store = place.open();
    for round in 0..20 {
        let writes = (0..30).map(|number| {
            let (store, text) = (store.clone(), format!("{round:02} {number:02}"));
            async move {
                let write = store.write(move |work| {
                    // A third fails having done something, another one having done nothing.
                    if number % 3 == 1 {
                        return Err(Error::Undone("at once".to_owned()));
                    }
                    note(&text)(work)?;
                    if number % 3 == 2 && round % 2 == 0 {
                        return Err(Error::Undone("half way".to_owned()));
                    }
                    work.query("SELECT count(*) FROM notes", &[])?[0].integer(0)
                });
                (number, write.await)
            }
        });
        let before = notes(&store).await.len();
        let writes: tokio::task::JoinSet<_> = writes.collect();
        let mut counts = Vec::new();
        for (number, written) in writes.join_all().await {
            let fails = number % 3 == 1 || (number % 3 == 2 && round % 2 == 0);
            assert_eq!(written.is_err(), fails, "{round} {number}");
            counts.extend(written.ok());
        }
        // Each saw exactly those that came before it.
        counts.sort_unstable();
        let expected: Vec<i64> = (1..=counts.len()).map(|more| (before + more) as i64).collect();
        assert_eq!(counts, expected);
        assert_eq!(notes(&store).await.len(), before + counts.len());
    }
}

async fn a_statement_that_failed_fails_its_work_even_if_that_goes_on(place: Place) {
    let store = place.open();
    let goes_on = store.write(|work| {
        note("a")(work)?;
        assert!(note("a")(work).is_err());
        assert!(note("b")(work).is_err(), "nothing can be done after it");
        Ok(())
    });
    assert!(matches!(goes_on.await, Err(Error::Failed(why)) if why.to_lowercase().contains("unique")));
    assert!(notes(&store).await.is_empty());
}

async fn of_many_writes_at_once_exactly_those_that_succeeded_are_there(place: Place) {
    let store = place.open();
    let writes = (0..300).map(|number| {
        let store = store.clone();
        // Of each three, the second and third have the same text.
        let text = format!("{:03}", number - usize::from(number % 3 == 2));
        tokio::spawn(async move { store.write(note(&text)).await.is_ok().then_some(text) })
    });
    let mut expected = Vec::new();
    for write in writes.collect::<Vec<_>>() {
        expected.extend(write.await.unwrap());
    }
    expected.sort();
    assert_eq!(expected.len(), 200);
    assert_eq!(notes(&store).await, expected);
}

async fn writes_of_two_stores_are_done_alone(place: Place) {
    const COUNT: Part = Part {
        name: "count",
        steps: &["CREATE TABLE count (number INTEGER NOT NULL) STRICT; INSERT INTO count VALUES (0)"],
    };
    let stores = [place.try_open(&[COUNT]).unwrap(), place.try_open(&[COUNT]).unwrap()];
    let count = |work: &Work<'_>| work.query("SELECT number FROM count", &[])?[0].integer(0);
    let adds = (0..100).map(|number| {
        let store = stores[number % 2].clone();
        tokio::spawn(async move {
            let add = store.write(move |work| {
                let number = count(work)? + 1;
                work.execute("UPDATE count SET number = ?1", &[number.into()])?;
                Ok(number)
            });
            add.await.unwrap()
        })
    });
    let mut numbers = Vec::new();
    for add in adds.collect::<Vec<_>>() {
        numbers.push(add.await.unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
}

async fn reads_cannot_write(place: Place) {
    let store = place.open();
    assert!(matches!(store.read(note("a")).await, Err(Error::Failed(_))));
    assert!(notes(&store).await.is_empty());
}

async fn a_read_sees_one_moment(place: Place) {
    let store = place.open();
    store.write(note("before")).await.unwrap();
    let (begun, begins) = sync_channel(1);
    let (written, writes) = sync_channel(1);
    let reading = tokio::spawn({
        let store = store.clone();
        async move {
            let count = |work: &Work<'_>| work.query("SELECT count(*) FROM notes", &[])?[0].integer(0);
            let read = store.read(move |work| {
                let first = count(work)?;
                begun.send(()).unwrap();
                writes.recv().unwrap();
                Ok((first, count(work)?))
            });
            read.await.unwrap()
        }
    });
    tokio::task::spawn_blocking(move || begins.recv().unwrap()).await.unwrap();
    store.write(note("meanwhile")).await.unwrap();
    written.send(()).unwrap();
    assert_eq!(reading.await.unwrap(), (1, 1));
    assert_eq!(notes(&store).await.len(), 2);
}

async fn reads_go_on_while_another_process_holds_the_store_and_writes_wait_for_it(place: Place) {
    let store = place.open();
    let held = place.hold();
    let write = tokio::spawn({
        let store = store.clone();
        async move { store.write(note("late")).await }
    });
    assert!(notes(&store).await.is_empty());
    drop(held);
    write.await.unwrap().unwrap();
    assert_eq!(notes(&store).await, ["late"]);
}

async fn what_one_store_wrote_another_reads(place: Place) {
    let (one, other) = (place.open(), place.open());
    for text in ["a", "b"] {
        one.write(note(text)).await.unwrap();
        assert_eq!(notes(&other).await.last().unwrap(), text);
    }
}

async fn values_come_back_as_they_went_in(place: Place) {
    const THINGS: Part = Part {
        name: "things",
        steps: &["CREATE TABLE things (id INTEGER PRIMARY KEY, number INTEGER, text TEXT) STRICT"],
    };
    let store = place.try_open(&[THINGS]).unwrap();
    let long = "x".repeat(1 << 20);
    let values: Vec<[Value; 2]> = vec![
        [0.into(), "".into()],
        [i64::MAX.into(), "'quoted' \"twice\" \\ ?1 $1".into()],
        [i64::MIN.into(), "größer 💥\u{7f}\r\n".into()],
        [Value::Null, Value::Null],
        [1.into(), long.into()],
    ];
    let written = values.clone();
    let write = store.write(move |work| {
        written
            .iter()
            .map(|pair| {
                let sql = "INSERT INTO things (number, text) VALUES (?1, ?2) RETURNING id, number, text";
                let row = &work.query(sql, pair)?[0];
                assert_eq!(row.0[1..], *pair);
                row.integer(0)
            })
            .collect::<Result<Vec<_>, _>>()
    });
    assert_eq!(write.await.unwrap(), [1, 2, 3, 4, 5]);
    let read = store.read(move |work| work.query("SELECT number, text FROM things ORDER BY id", &[]));
    assert_eq!(read.await.unwrap(), values.into_iter().map(|pair| Row(pair.into())).collect::<Vec<_>>());
    let nul = store.write(|work| work.execute("INSERT INTO things (text) VALUES (?1)", &["a\0b".into()]));
    assert!(matches!(nul.await, Err(Error::Failed(why)) if why.contains("NUL")));
}

async fn texts_are_ordered_by_their_bytes(place: Place) {
    let store = place.open();
    for text in ["b", "B", "_", "a", "é", "A", "Z"] {
        store.write(note(text)).await.unwrap();
    }
    assert_eq!(notes(&store).await, ["A", "B", "Z", "_", "a", "b", "é"]);
    let read = store.read(|work| work.query("SELECT count(*) FROM notes WHERE text < ?1", &["_".into()]));
    assert_eq!(read.await.unwrap()[0].integer(0).unwrap(), 3);
}

/// The examples of the crate's head.
async fn what_sql_may_say_means_the_same(place: Place) {
    const PAYMENTS: Part = Part {
        name: "payments",
        steps: &["CREATE TABLE payments (who TEXT PRIMARY KEY, paid INTEGER NOT NULL, sum INTEGER) STRICT"],
    };
    let store = place.try_open(&[PAYMENTS]).unwrap();
    let asked = store.write(|work| {
        let insert = "INSERT INTO payments VALUES (?1, ?2, ?3) ON CONFLICT (who)
            DO UPDATE SET sum = payments.sum + excluded.sum";
        for (who, paid, sum) in [("a", 1, Some(7)), ("b", 0, None), ("a", 1, Some(4)), ("c", 1, Some(0))] {
            work.execute(insert, &[who.into(), i64::from(paid).into(), sum.map(i64::from).into()])?;
        }
        let rows = [
            ("SELECT sum(sum), count(*), max(who), count(*) FILTER (WHERE paid = 1) FROM payments", vec![]),
            ("SELECT CAST(sum(sum) AS INTEGER) / 2, coalesce(sum(paid), 0), min(sum) = 0 FROM payments", vec![]),
            ("SELECT who FROM payments WHERE sum IS NOT DISTINCT FROM ?1", vec![Value::Null]),
            ("SELECT who FROM payments WHERE CAST(?1 AS TEXT) IS NULL OR who = ?1 ORDER BY sum NULLS FIRST LIMIT ?2", vec![
                Value::Null,
                1.into(),
            ]),
            ("SELECT sum(part.sum) OVER (ORDER BY part.who) FROM (SELECT * FROM payments) AS part
                WHERE part.who != 'b' ORDER BY part.who LIMIT 1", vec![]),
            ("WITH RECURSIVE up (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM up WHERE n < 5)
                SELECT max(n), ?2 FROM up", vec![1.into(), "text".into()]),
            ("DELETE FROM payments WHERE who = ?1 RETURNING sum, CASE WHEN paid = 1 THEN 'yes' ELSE 'no' END", vec![
                "a".into(),
            ]),
        ];
        rows.into_iter().map(|(sql, values)| work.query(sql, &values)).collect::<Result<Vec<_>, _>>()
    });
    let rows = asked.await.unwrap();
    let expected: [&[Value]; 7] = [
        &[11.into(), 3.into(), "c".into(), 2.into()],
        &[5.into(), 2.into(), 1.into()],
        &["b".into()],
        &["b".into()],
        &[11.into()],
        &[5.into(), "text".into()],
        &[11.into(), "yes".into()],
    ];
    for (rows, expected) in rows.iter().zip(expected) {
        assert_eq!(rows, &[Row(expected.to_vec())]);
    }
}

async fn each_step_is_done_once_and_in_order(place: Place) {
    const MORE: Part = Part {
        name: "notes",
        steps: &[
            NOTES.steps[0],
            "ALTER TABLE notes ADD COLUMN made INTEGER NOT NULL DEFAULT 7; CREATE INDEX notes_made ON notes (made)",
        ],
    };
    drop(place.open());
    for _ in 0..2 {
        drop(place.try_open(&[MORE]).unwrap());
    }
    let error = place.try_open(&[NOTES]).err().unwrap();
    assert!(matches!(&error, Error::Newer { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("newer version"), "{error}");
}

async fn a_step_that_fails_leaves_the_store_as_it_was(place: Place) {
    const BROKEN: Part =
        Part { name: "notes", steps: &[NOTES.steps[0], "CREATE TABLE x (a TEXT); NONSENSE"] };
    assert!(place.try_open(&[BROKEN]).is_err());
    drop(place.open());
}

async fn stores_that_start_together_do_each_step_once(place: Place) {
    const PARTS: [Part; 2] = [
        NOTES,
        Part {
            name: "first",
            steps: &["CREATE TABLE first (a INTEGER) STRICT", "INSERT INTO first VALUES (1)"],
        },
    ];
    let stores = std::thread::scope(|scope| {
        let opened: Vec<_> = (0..4).map(|_| scope.spawn(|| place.try_open(&PARTS).unwrap())).collect();
        opened.into_iter().map(|store| store.join().unwrap()).collect::<Vec<_>>()
    });
    for store in stores {
        let count = store.read(|work| work.query("SELECT count(*) FROM first", &[])).await.unwrap();
        assert_eq!(count[0].integer(0).unwrap(), 1);
    }
}
