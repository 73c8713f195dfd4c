//! Plain downloads and files of this machine.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A server whose first `bad` answers to `GET` are made by `how`, and the later ones are right.
fn stumbling(bytes: Vec<u8>, bad: usize, how: fn(Answer) -> Answer) -> Server {
    let count = AtomicUsize::new(0);
    Server::start(move |asked| {
        let answer = Answer::file(asked, &bytes);
        if count.fetch_add(1, Ordering::SeqCst) < bad { how(answer) } else { answer }
    })
}

#[tokio::test]
async fn a_download_that_is_cut_goes_on_where_it_stopped() {
    let bytes = content(300_000);
    let server = stumbling(bytes.clone(), 2, |answer| answer.cut(100_000));
    let world = World::new();
    let entry = world.entry(&facts(&bytes), &[format!("{}/m", server.url())]);
    let installed = world.pull(&entry).await.expect("pulled");
    assert_eq!(std::fs::read(&installed.path).expect("readable"), bytes);
    let from: Vec<_> = server.gets().iter().map(Asked::from).collect();
    assert_eq!(from, [None, Some(100_000), Some(200_000)]);
    assert!(!world.place().partial().exists(), "nothing unfinished is left");
}

#[tokio::test]
async fn a_later_pull_goes_on_from_the_kept_part() {
    let bytes = content(300_000);
    let server = stumbling(bytes.clone(), 3, |answer| {
        if answer.status == 200 { answer.cut(123_456) } else { Answer::status(503) }
    });
    let world = World::new();
    let entry = world.entry(&facts(&bytes), &[format!("{}/m", server.url())]);
    let error = world.puller(2).pull(&entry, &world.place(), &mut Silent).await.expect_err("cut");
    assert!(matches!(error.attempts[0].1, FetchError::Status(_)), "{error}");
    world.assert_nothing_in_place();
    assert_eq!(world.place().partial_bytes(), 123_456);
    world.pull(&entry).await.expect("pulled");
    assert_eq!(server.gets().last().and_then(Asked::from), Some(123_456));
}

#[tokio::test]
async fn a_length_beyond_all_bounds_is_a_wrong_size() {
    let bytes = content(100_000);
    let server = Server::start({
        let bytes = bytes.clone();
        move |asked| match asked.from() {
            None => Answer::file(asked, &bytes).cut(50_000),
            Some(_) => Answer::file(asked, &bytes).header("Content-Length", (u64::MAX - 2).to_string()),
        }
    });
    let world = World::new();
    let entry = world.entry(&facts(&bytes), &[format!("{}/m", server.url())]);
    let error = world.pull(&entry).await.expect_err("a lie");
    assert!(matches!(error.attempts[0].1, FetchError::WrongSize { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_ignores_ranges_is_read_from_the_start_again() {
    let bytes = content(200_000);
    let count = AtomicUsize::new(0);
    let body = bytes.clone();
    let server = Server::start(move |_| {
        let whole = Answer { status: 200, body: body.clone(), ..Answer::default() };
        if count.fetch_add(1, Ordering::SeqCst) == 0 { whole.cut(50_000) } else { whole }
    });
    let world = World::new();
    let entry = world.entry(&facts(&bytes), &[format!("{}/m", server.url())]);
    let installed = world.pull(&entry).await.expect("pulled");
    assert_eq!(std::fs::read(installed.path).expect("readable"), bytes);
}

#[tokio::test]
async fn a_file_of_the_wrong_content_is_thrown_away_and_the_next_source_tried() {
    let bytes = content(10_000);
    let mut other = bytes.clone();
    other[77] ^= 1;
    let (bad, good) = (stumbling(other, 0, |a| a), stumbling(bytes.clone(), 0, |a| a));
    let world = World::new();
    let sources = [format!("{}/m", bad.url()), format!("{}/m", good.url())];
    let installed = world.pull(&world.entry(&facts(&bytes), &sources)).await.expect("pulled");
    assert_eq!(installed.lock.files[0].source, sources[1]);

    let world = World::new();
    let error = world.pull(&world.entry(&facts(&bytes), &sources[..1])).await.expect_err("wrong");
    assert!(matches!(error.attempts[0].1, FetchError::WrongHash { .. }), "{error}");
    assert!(error.to_string().contains(&sha256(&bytes)), "{error}");
    world.assert_nothing_in_place();
    assert_eq!(world.place().partial_bytes(), 0);
}

#[tokio::test]
async fn a_file_of_the_wrong_size_is_refused_before_its_bytes_come() {
    let bytes = content(10_000);
    let server = stumbling(content(10_001), 0, |a| a);
    let world = World::new();
    let error =
        world.pull(&world.entry(&facts(&bytes), &[format!("{}/m", server.url())])).await.expect_err("size");
    assert!(
        matches!(error.attempts[0].1, FetchError::WrongSize { got: 10_001, expected: 10_000 }),
        "{error}"
    );
    world.assert_nothing_in_place();
}

#[tokio::test]
async fn offline_names_every_source_in_order() {
    let world = World::new();
    // Port 9 (discard) of this machine: nobody listens.
    let sources = ["https://127.0.0.1:9/m".to_owned(), "hf:owner/repo/m.gguf".to_owned()];
    let error = world.pull(&world.entry(&facts(b"x"), &sources)).await.expect_err("offline").to_string();
    let lines: Vec<_> = error.lines().collect();
    assert!(lines[0].contains("m.gguf") && lines[0].contains("tried, in order"), "{error}");
    assert!(lines[1].starts_with("  1. https://127.0.0.1:9/m: no connection"), "{error}");
    assert!(lines[2].starts_with("  2. hf:owner/repo/m.gguf: no connection"), "{error}");
    assert!(lines[3].contains("offline"), "{error}");
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_ends_the_pull() {
    let bytes = content(10_000);
    let server = stumbling(bytes.clone(), 0, |a| a);
    let world = World::new();
    let url = format!("{}/m", server.url());
    let entry = world.entry(&facts(&bytes), &[url.clone(), url]);
    let part = part_path(&world.place().partial(), "m.gguf", &sha256(&bytes));
    std::fs::create_dir_all(world.place().partial()).expect("mkdir");
    std::os::unix::fs::symlink("/dev/full", part).expect("symlink");
    let error = world.pull(&entry).await.expect_err("full");
    assert_eq!(error.attempts.len(), 1, "another source has no more room");
    assert!(error.to_string().contains("no room on the disk"), "{error}");
}

#[tokio::test]
async fn more_than_the_disk_holds_is_refused_before_the_first_byte() {
    let world = World::new();
    let server = stumbling(Vec::new(), 0, |a| a);
    let facts = format!("size = {}\nsha256 = {:?}", 1_u64 << 60, sha256(b""));
    let error =
        world.pull(&world.entry(&facts, &[format!("{}/m", server.url())])).await.expect_err("no room");
    assert!(matches!(error.attempts[0].1, FetchError::NoRoom { .. }), "{error}");
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn two_pulls_of_one_model_download_it_once() {
    let bytes = content(200_000);
    let server = stumbling(bytes.clone(), 0, |a| a);
    let world = World::new();
    let entry = world.entry(&facts(&bytes), &[format!("{}/m", server.url())]);
    let (first, second) = tokio::join!(world.pull(&entry), world.pull(&entry));
    assert_eq!(first.expect("pulled"), second.expect("pulled"));
    assert_eq!(server.gets().len(), 1);
    world.pull(&entry).await.expect("there already");
    assert_eq!(server.gets().len(), 1);
}

#[tokio::test]
async fn a_new_hash_in_the_catalog_replaces_the_file() {
    let (old, new) = (content(1000), content(1001));
    let server = {
        let (old, new) = (old.clone(), new.clone());
        Server::start(move |asked| Answer::file(asked, if asked.path == "/old" { &old } else { &new }))
    };
    let world = World::new();
    world.pull(&world.entry(&facts(&old), &[format!("{}/old", server.url())])).await.expect("pulled");
    let installed =
        world.pull(&world.entry(&facts(&new), &[format!("{}/new", server.url())])).await.expect("pulled");
    assert_eq!(std::fs::read(installed.path).expect("readable"), new);
}

#[tokio::test]
async fn a_dropped_pull_leaves_nothing_under_the_final_name() {
    let bytes = content(100_000);
    // Announces everything, sends a part, and then the connection stays open with nothing more coming.
    let (sent, received) = std::sync::mpsc::channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/m", listener.local_addr().expect("bound"));
    let body = bytes.clone();
    let server = std::thread::spawn(move || {
        use std::io::{BufRead, BufReader, Write};
        let (mut stream, _) = listener.accept().expect("a client");
        // An answer before the question would break the connection.
        let lines = BufReader::new(&stream).lines().map_while(Result::ok);
        assert!(lines.take_while(|line| !line.is_empty()).count() > 0, "a request came");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..60_000])).expect("sent");
        // Ends when the test drops its end.
        let _: Result<(), _> = received.recv();
    });
    let world = World::new();
    let entry = world.entry(&facts(&bytes), &[url]);
    let puller = world.puller(1);
    let place = world.place();
    {
        let mut progress = Silent;
        let mut pull = std::pin::pin!(puller.pull(&entry, &place, &mut progress));
        let arrived = async {
            while place.partial_bytes() < 60_000 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            result = &mut pull => panic!("ended: {result:?}"),
            () = arrived => {}
        }
    }
    drop(sent);
    server.join().expect("server thread");
    world.assert_nothing_in_place();
    assert!(place.try_guard().expect("io").is_some(), "the guard was freed");
}

#[tokio::test]
async fn a_file_of_this_machine_is_linked_and_not_copied() {
    let world = World::new();
    let bytes = content(1000);
    let path = world.dir.path().join("mine.gguf");
    std::fs::write(&path, &bytes).expect("write");
    let source = [format!("path:{}", path.display())];
    let installed = world.pull(&world.entry("", &source)).await.expect("linked");
    assert_eq!(std::fs::read_link(&installed.path).expect("a link"), path.canonicalize().expect("there"));
    world.place().remove(None).expect("removed");
    assert!(path.exists(), "removing the model leaves the file");
    let error = world.pull(&world.entry(&facts(b"other"), &source)).await.expect_err("other content");
    assert!(matches!(error.attempts[0].1, FetchError::WrongSize { .. }), "{error}");
}
