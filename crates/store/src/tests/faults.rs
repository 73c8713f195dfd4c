//! What only a server has: it dies, its line is cut, it refuses.

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};

/// Notes without a rule against having one twice.
const TWICE: Part = Part { name: "notes", steps: &["CREATE TABLE notes (text TEXT NOT NULL) STRICT"] };

/// A server's socket in its folder.
const SOCKET: &str = ".s.PGSQL.5432";

fn address(server: &Server) -> Address {
    server.database().parse().unwrap()
}

#[tokio::test]
async fn a_server_that_was_killed_in_the_middle_of_writes_has_what_was_answered_and_nothing_twice() {
    let Some(server) = Server::start("a_server_that_was_killed") else { return };
    let address = address(&server);
    // A second process that writes too.
    let stores = [Store::connect(&address, &[TWICE]).unwrap(), Store::connect(&address, &[TWICE]).unwrap()];
    let done = Arc::new(AtomicU32::new(0));
    let writers = (0..8).map(|writer: usize| {
        let (store, done) = (stores[writer % 2].clone(), Arc::clone(&done));
        tokio::spawn(async move {
            let (mut there, mut unsure) = (Vec::new(), Vec::new());
            let mut number = 0;
            while done.load(Ordering::Relaxed) < 4 {
                let text = format!("{writer}-{number}");
                number += 1;
                match store.write(note(&text)).await {
                    Ok(_) => there.push(text),
                    Err(Error::Unsure) => unsure.push(text),
                    Err(Error::Busy | Error::Away) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            (there, unsure)
        })
    });
    let writers: Vec<_> = writers.collect();
    for round in 0..4_u64 {
        // Each time after some more writes, so that it meets another moment of them.
        let enough = i64::try_from(20 + 37 * round).unwrap();
        let count = |work: &Work<'_>| work.query("SELECT count(*) FROM notes", &[])?[0].integer(0);
        let before = stores[0].read(count).await.unwrap();
        while stores[0].read(count).await.unwrap() < before + enough {}
        server.kill();
        server.start_again();
        done.fetch_add(1, Ordering::Relaxed);
    }
    let (mut there, mut unsure) = (Vec::new(), Vec::new());
    for writer in writers {
        let (more, doubtful) = writer.await.unwrap();
        there.extend(more);
        unsure.extend(doubtful);
    }
    let mut found = notes(&Store::connect(&address, &[TWICE]).unwrap()).await;
    found.retain(|text| !unsure.contains(text));
    there.sort();
    assert_eq!(found, there);
}

#[tokio::test]
async fn a_server_that_restarted_is_connected_to_again() {
    let Some(server) = Server::start("a_server_that_restarted") else { return };
    let store = Store::connect(&address(&server), &[NOTES]).unwrap();
    store.write(note("before")).await.unwrap();
    assert_eq!(notes(&store).await.len(), 1);
    server.kill();
    server.start_again();
    // Nothing was asked while it was away, so nobody need notice.
    assert_eq!(notes(&store).await.len(), 1);
    store.write(note("after")).await.unwrap();
    server.kill();
    let (write, read) = tokio::join!(store.write(note("away")), store.read(|_| Ok(())));
    assert!(matches!((write, read), (Err(Error::Away), Err(Error::Away))));
    server.start_again();
    // From a moment after that on it is there again.
    while let Err(error) = store.write(note("back")).await {
        assert!(matches!(error, Error::Away), "{error}");
    }
    assert_eq!(notes(&store).await, ["after", "back", "before"]);
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for_once_and_by_those_alone_who_need_it() {
    let Some(server) = Server::start("a_server_that_is_away") else { return };
    let store = Store::connect(&address(&server), &[NOTES]).unwrap();
    assert_eq!(notes(&store).await.len(), 0);
    server.kill();
    // Whoever can go on without does so, while another waits for the server to come back.
    let (waiting, other) = (store.clone(), store.clone());
    let waiting = tokio::spawn(async move { waiting.write(note("waited")).await });
    for _ in 0..20 {
        assert!(matches!(store.read_if_there(|_| Ok(())).await, Err(Error::Away | Error::Busy)));
    }
    assert!(!waiting.is_finished());
    server.start_again();
    waiting.await.unwrap().unwrap();
    // It is waited for in all as long as once. A limit that only an old code would meet, which waited each time.
    server.kill();
    let all = async {
        let write = || {
            let other = other.clone();
            tokio::spawn(async move { other.write(note("lost")).await })
        };
        for written in (0..8).map(|_| write()).collect::<Vec<_>>() {
            assert!(matches!(written.await.unwrap(), Err(Error::Away)));
        }
        for _ in 0..8 {
            assert!(matches!(store.read(|_| Ok(())).await, Err(Error::Away)));
            assert!(matches!(store.write(note("lost")).await, Err(Error::Away)));
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all).await.expect("nobody waits twice");
}

#[tokio::test]
async fn of_a_group_whose_connection_is_lost_what_ran_fails_and_the_rest_is_done() {
    let Some(server) = Server::shared("of_a_group_whose_connection_is_lost") else { return };
    let store = Store::connect(&address(&server), &[NOTES]).unwrap();
    // The first is alone in its group, and holds the writer until the others have gathered.
    let (go, gone) = sync_channel::<()>(1);
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let holder = store.clone();
    let first = tokio::spawn(async move {
        let write = holder.write(move |work| {
            begun.send(()).unwrap();
            gone.recv().unwrap();
            note("first")(work)
        });
        write.await
    });
    begins.recv().await.unwrap();
    let cuts = Arc::clone(&server);
    let cut = store.write(move |work| {
        note("cut")(work)?;
        let own = work.query("SELECT pg_backend_pid()", &[])?[0].integer(0)?;
        cuts.sql("postgres", &format!("SELECT pg_terminate_backend({own})"));
        note("cut too")(work)
    });
    let (first, ran, cut, waited, ()) =
        tokio::join!(first, store.write(note("ran")), cut, store.write(note("waited")), async {
            go.send(()).unwrap()
        });
    assert!(first.unwrap().is_ok() && waited.is_ok());
    assert!(matches!((ran, cut), (Err(Error::Busy), Err(Error::Busy))));
    assert_eq!(notes(&store).await, ["first", "waited"]);
}

/// Stands between the store and its server, and cuts the first connection that commits a note `cut`: before the server
/// hears of it, or after it has answered.
fn cutting(socket: PathBuf, folder: &Path, heard: bool) {
    let listener = UnixListener::bind(folder.join(SOCKET)).unwrap();
    let cut = Arc::new(AtomicU32::new(0));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (server, cut) = (UnixStream::connect(&socket).unwrap(), Arc::clone(&cut));
            pass(client, server, cut, heard);
        }
    });
}

/// Passes bytes both ways on threads of their own.
fn pass(mut client: UnixStream, mut server: UnixStream, cut: Arc<AtomicU32>, heard: bool) {
    let (mut back, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let swallow = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let swallows = Arc::clone(&swallow);
    std::thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        while let Ok(count @ 1..) = back.read(&mut bytes) {
            if swallows.load(Ordering::SeqCst) || to_client.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(std::net::Shutdown::Both);
    });
    std::thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        while let Ok(count @ 1..) = client.read(&mut bytes) {
            let said = String::from_utf8_lossy(&bytes[..count]).into_owned();
            if said.contains("cut") {
                cut.store(1, Ordering::SeqCst);
            }
            if said.contains("; COMMIT") && cut.swap(0, Ordering::SeqCst) == 1 {
                swallow.store(heard, Ordering::SeqCst);
                if !heard {
                    break;
                }
            }
            if server.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(std::net::Shutdown::Both);
        let _ = client.shutdown(std::net::Shutdown::Both);
    });
}

#[tokio::test]
async fn of_a_commit_whose_answer_is_lost_it_is_found_out_whether_it_was_done() {
    let Some(server) = Server::shared("of_a_commit_whose_answer_is_lost") else { return };
    for heard in [true, false] {
        let url = server.database();
        let (front, folder) = url.split_once("?host=").unwrap();
        let proxy = tempfile::tempdir().unwrap();
        cutting(Path::new(folder).join(SOCKET), proxy.path(), heard);
        let address = format!("{front}?host={}", proxy.path().display()).parse().unwrap();
        let store = Store::connect(&address, &[TWICE]).unwrap();
        store.write(note("before")).await.unwrap();
        let cut = store.write(note("cut")).await;
        if heard {
            assert!(cut.is_ok(), "it was done, and so it is told");
        } else {
            assert!(matches!(cut, Err(Error::Busy)), "it was not done");
        }
        store.write(note("after")).await.unwrap();
        let there: &[&str] = if heard { &["after", "before", "cut"] } else { &["after", "before"] };
        assert_eq!(notes(&store).await, there);
    }
}

#[tokio::test]
async fn who_is_not_let_in_is_told_by_what_and_not_with_which_password() {
    let Some(server) = Server::shared("who_is_not_let_in") else { return };
    let url = server.database();
    let folder = url.split_once("?host=").unwrap().1;
    for (url, expected) in [
        (format!("postgres://hearth:s3cret@/nowhere?host={folder}"), "does not exist"),
        (format!("postgres://nobody:s3cret@/postgres?host={folder}"), "nobody"),
    ] {
        let error = Store::connect(&url.parse().unwrap(), &[NOTES]).err().unwrap();
        assert!(matches!(error, Error::Connect { .. }), "{error}");
        let told = format!("{error} {error:?}");
        assert!(told.contains(expected) && told.contains(folder) && !told.contains("s3cret"), "{told}");
    }
}

#[tokio::test]
async fn over_the_network_a_server_is_encrypted_and_known() {
    let Some(server) = Server::start_encrypted("over_the_network") else { return };
    let url = server.database();
    let known = format!("{url}sslmode=verify-full&sslrootcert={}", Server::authority().display());
    let store = Store::connect(&known.parse().unwrap(), &[NOTES]).unwrap();
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(store.read(|work| work.query(encrypted, &[])).await.unwrap(), [Row(vec![1.into()])]);
    // Nobody vouches for it, or it is another than the one that was asked for.
    for url in [format!("{url}sslmode=verify-full"), known.replace("localhost", "127.0.0.1")] {
        let error = Store::connect(&url.parse().unwrap(), &[NOTES]).err().unwrap().to_string();
        assert!(error.contains("certificate"), "{error}");
    }
}
