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
    assert!(running.hears("from the next start on").contains("queue changed"));
    let (before, old) = (fakes[1].seen().asked.len(), fakes[0].seen().asked.len());
    ask(usize::MAX, false);
    assert_eq!((fakes[1].seen().asked.len(), fakes[0].seen().asked.len()), (before + 1, old));
}

#[test]
fn prices_and_what_holds_for_logs_are_taken_too_and_a_fault_in_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("tempdir");
    let home = Home::new(folder.path());
    let fake = Fake::new(folder.path(), "one", |asked| fake::chat(asked, 10, 5));
    let settings =
        |more: &str| format!("{more}\n[providers.custom-a]\nbase-url = \"http://{}/v1\"\n", fake.address);
    let prices = |dollars: &str| {
        let book = format!(
            r#"{{"m": {{"litellm_provider": "custom-a", "input_cost_per_token": {dollars}, "output_cost_per_token": 0}}}}"#
        );
        std::fs::write(folder.path().join("prices.json"), book).expect("written");
    };
    prices("1");
    home.settings(&settings("prices = [\"prices.json\"]"));
    let running = home.start(&[]);
    let cost = |id: &str| {
        let answer = chat(&running.address, "", id, "custom-a/m", false).expect("sent");
        assert!(answer.whole && answer.status == 200, "{answer:?}");
        home.entries()[&(id.to_owned(), "custom-a".to_owned())]["cost"].as_f64()
    };
    assert_eq!(cost("1"), Some(10.0));
    prices("2");
    running.signal("-HUP");
    running.hears("read the settings again");
    assert_eq!(cost("2"), Some(20.0));
    // A fault in the prices leaves providers as they were as well.
    std::fs::write(folder.path().join("prices.json"), "no prices").expect("written");
    home.settings("prices = [\"prices.json\"]\nqueue = 7\n");
    running.signal("-HUP");
    assert!(running.hears("stay as they were").contains("prices.json"));
    assert_eq!(cost("3"), Some(20.0));
    prices("3");
    home.settings(&settings(
        "prices = [\"prices.json\"]\n[logs]\npayloads = true\ncollectors = [\"http://127.0.0.1:1/\"]",
    ));
    running.signal("-HUP");
    assert!(running.hears("from the next start on").contains("logs.collectors changed"));
    assert_eq!(cost("4"), Some(30.0));
    // The log of the last request has its payload, when it is written.
    let kept = |logs: &str| logs.contains("\"request_head\": \"{") || logs.contains("\"request_head\":\"{");
    assert!((0..1000).any(|_| kept(&home.run(&["logs", "--format", "json"]))));
}
