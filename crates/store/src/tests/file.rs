//! What only a file has: its rights, its disk, and what is no database.

use super::*;

#[tokio::test]
async fn a_full_disk_is_told_and_leaves_nothing_half_written() {
    let place = Place::file();
    let store = place.open();
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
    let _store = Store::open(folder.path(), &[NOTES]).unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }
}
