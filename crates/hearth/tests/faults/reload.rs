//! Settings that are read again while requests run: none fails, and a file with a fault changes nothing.

use super::fake::{self, Fake};
use super::server::{Home, chat};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[test]
fn providers_are_replaced_under_load_and_no_request_fails() {
    let folder = tempfile::tempdir().expect("tempdir");
    let home = Home::new(folder.path());
    let fakes = ["one", "two"].map(|name| Fake::new(folder.path(), name, |asked| fake::chat(asked, 10, 5)));
    let to = |fake: &Fake| format!("[providers.custom-a]\nbase-url = \"http://{}/v1\"\n", fake.address);
    home.settings(&to(&fakes[0]));
    let running = home.start(&[]);
    let (done, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask = |number: usize, stream: bool| {
        let answer = chat(&running.address, "", &number.to_string(), "custom-a/m", stream).expect("sent");
        assert!(answer.whole && answer.status == 200, "{answer:?}");
    };
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (done, count, ask) = (&done, &count, &ask);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    ask(count.fetch_add(1, Ordering::SeqCst), client % 2 == 0);
                }
            });
        }
        for turn in 1..=10 {
            let fake = &fakes[turn % 2];
            let before = fake.seen().asked.len();
            home.settings(&to(fake));
            running.signal("-HUP");
            running.hears("read the settings again");
            fake.wait("a request by the new settings", |seen| seen.asked.len() > before + 4);
        }
        // The last named is the first of the two.
        home.settings("[providers.nobody]\n");
        running.signal("-HUP");
        assert!(running.hears("stay as they were").contains("nobody"));
        home.settings("listen = [");
        running.signal("-HUP");
        running.hears("stay as they were");
        let before = fakes[0].seen().asked.len();
        fakes[0].wait("a request by the old settings", |seen| seen.asked.len() > before + 4);
        done.store(true, Ordering::SeqCst);
    });
    home.settings(&format!("queue = 7\n{}", to(&fakes[1])));
    running.signal("-HUP");
    running.hears("from the next start on");
    let (before, old) = (fakes[1].seen().asked.len(), fakes[0].seen().asked.len());
    ask(usize::MAX, false);
    assert_eq!((fakes[1].seen().asked.len(), fakes[0].seen().asked.len()), (before + 1, old));
}
