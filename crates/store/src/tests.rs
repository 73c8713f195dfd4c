//! The store over real files.

use super::*;
use rusqlite::TransactionBehavior;

const NOTES: Part = Part { name: "notes", steps: &["CREATE TABLE notes (text TEXT NOT NULL UNIQUE) STRICT"] };

fn open(folder: &Path) -> Store {
    Store::open(folder, &[NOTES]).unwrap()
}

fn note(text: &str) -> impl FnOnce(&Work<'_>) -> Result<u64, Error> + Send + use<> {
    let text = text.to_owned();
    move |work| work.execute("INSERT INTO notes VALUES (?1)", &[text.into()])
}

async fn notes(store: &Store) -> Vec<String> {
    let read = store.read(|work| {
        let rows = work.query("SELECT text FROM notes ORDER BY text", &[])?;
        rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
    });
    read.await.unwrap()
}

#[tokio::test]
async fn what_was_answered_is_there_after_the_store_was_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert_eq!(store.write(note("a")).await.unwrap(), 1);
    drop(store);
    assert_eq!(notes(&open(folder.path())).await, ["a"]);
}

#[tokio::test]
async fn a_write_that_fails_or_panics_undoes_itself_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let half = store.write(|work| {
        note("half")(work)?;
        note("half")(work)
    });
    let panics = store.write(|work| -> Result<(), Error> {
        note("panic")(work)?;
        panic!("told to")
    });
    let (a, half, panics, b) = tokio::join!(store.write(note("a")), half, panics, store.write(note("b")));
    assert!(a.is_ok() && b.is_ok());
    assert!(matches!(half, Err(Error::Failed(why)) if why.contains("UNIQUE")));
    assert!(matches!(panics, Err(Error::Closed)));
    assert_eq!(notes(&store).await, ["a", "b"]);
}

#[tokio::test]
async fn a_full_disk_is_told_and_leaves_nothing_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(note("before")).await.unwrap();
    // The database's own limit stands for the disk's: the same error at the same place.
    let limit = |pages: i64| {
        store.write(move |work| work.query(&format!("PRAGMA max_page_count = {pages}"), &[]).map(|_| ()))
    };
    limit(1).await.unwrap();
    let large = store.write(|work| {
        note("small")(work)?;
        note(&"x".repeat(1 << 20))(work)
    });
    assert!(matches!(large.await, Err(Error::Full)));
    assert_eq!(notes(&store).await, ["before"]);
    limit(1 << 30).await.unwrap();
    store.write(note("after")).await.unwrap();
    assert_eq!(notes(&store).await, ["after", "before"]);
}

#[tokio::test]
async fn reads_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert!(matches!(store.read(note("a")).await, Err(Error::Failed(_))));
}

#[tokio::test]
async fn reads_go_on_while_another_process_holds_the_file_and_writes_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut other = Connection::open(&folder.path().join(FILE), PATIENCE).unwrap();
    let held = other.0.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let write = tokio::spawn({
        let store = store.clone();
        async move { store.write(note("late")).await }
    });
    assert!(notes(&store).await.is_empty());
    drop(held);
    write.await.unwrap().unwrap();
    assert_eq!(notes(&store).await, ["late"]);
}

#[test]
fn each_step_is_done_once_and_in_order() {
    const MORE: Part = Part {
        name: "notes",
        steps: &[
            NOTES.steps[0],
            "ALTER TABLE notes ADD COLUMN made INTEGER NOT NULL DEFAULT 7; CREATE INDEX notes_made ON notes (made)",
        ],
    };
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    for _ in 0..2 {
        drop(Store::open(folder.path(), &[MORE]).unwrap());
    }
    let error = Store::open(folder.path(), &[NOTES]).err().unwrap();
    assert!(matches!(&error, Error::Newer { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("newer version"), "{error}");
}

#[test]
fn a_step_that_fails_leaves_the_file_as_it_was() {
    const BROKEN: Part =
        Part { name: "notes", steps: &[NOTES.steps[0], "CREATE TABLE x (a TEXT); NONSENSE"] };
    let folder = tempfile::tempdir().unwrap();
    assert!(Store::open(folder.path(), &[BROKEN]).is_err());
    drop(open(folder.path()));
}

#[test]
fn what_is_no_database_or_cannot_be_written_is_told_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), "this is a text, and long enough to be looked at".repeat(100))
        .unwrap();
    let error = Store::open(folder.path(), &[NOTES]).err().unwrap().to_string();
    assert!(error.contains(FILE) && error.contains("not a database"), "{error}");
    // A file where the folder should be.
    let inside = folder.path().join(FILE).join("data");
    assert!(matches!(Store::open(&inside, &[NOTES]), Err(Error::Open { .. })));
}

#[test]
fn others_cannot_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let _store = open(folder.path());
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }
}
