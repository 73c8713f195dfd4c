//! `kill -9` at any moment of traffic with streams, retries and fallback: after the next start each request that a
//! provider saw has one entry, settled with the usage that it reported, or failed, or interrupted.

use super::fake::{self, Asked, Fake, JSON, Manner, answer};
use super::server::{Home, chat};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Rounds of traffic that end with a kill; `HEARTH_KILL_ROUNDS` asks for more.
const ROUNDS: u64 = 10;

/// Clients at once.
const CLIENTS: usize = 8;

/// What a request of this number uses, so that a usage tells whose it is.
fn used(id: u64) -> (u64, u64) {
    (1_000 + id, 1 + id % 97)
}

fn number(asked: &Asked) -> u64 {
    asked.id.parse().expect("a number")
}

fn whole(asked: &Asked) -> Manner {
    let (input, output) = used(number(asked));
    fake::chat(asked, input, output)
}

fn busy() -> Manner {
    Manner::Say(vec![answer(503, &[JSON], r#"{"error":{"message":"busy"}}"#)])
}

/// Some requests succeed at the second attempt, some only at the other provider, some break off after a beginning.
fn first(asked: &Asked) -> Manner {
    match number(asked) % 8 {
        1 if asked.before == 0 => busy(),
        2 => busy(),
        3 if asked.before == 0 && asked.streams() => Manner::Break(fake::stream_head()),
        _ => whole(asked),
    }
}

#[test]
fn after_a_kill_each_request_that_a_provider_saw_has_one_entry_with_its_usage() {
    let folder = tempfile::tempdir().expect("tempdir");
    let home = Home::new(folder.path());
    let fakes = [
        ("custom-a", Fake::new(folder.path(), "custom-a", first)),
        ("custom-b", Fake::new(folder.path(), "custom-b", whole)),
    ];
    let section = |(slug, fake): &(&str, Fake)| {
        format!("[providers.{slug}]\nbase-url = \"http://{}/v1\"\nmodels = [\"m\"]\n", fake.address)
    };
    home.settings(&fakes.iter().map(section).collect::<String>());
    let key = home.key(&[]);
    let rounds = std::env::var("HEARTH_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let (ids, whole) = (AtomicU64::new(0), Mutex::new(HashSet::new()));
    for round in 0..rounds.unwrap_or(ROUNDS) {
        let mut running = home.start(&[]);
        let address = running.address.clone();
        let count = AtomicUsize::new(0);
        // The kill comes after some answers, wherever the others are then.
        let enough = usize::try_from(2 + round * 7919 % 61).expect("small");
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (ids, whole, count, address, key) = (&ids, &whole, &count, &address, &key);
                scope.spawn(move || {
                    loop {
                        let id = ids.fetch_add(1, Ordering::SeqCst);
                        let answer = chat(address, key, &id.to_string(), "m", client % 2 == 0);
                        match answer {
                            Some(answer) if answer.whole && answer.status == 200 => {
                                whole.lock().expect("whole").insert(id);
                                count.fetch_add(1, Ordering::SeqCst);
                            }
                            // It refuses nobody while it lives.
                            Some(answer) if answer.whole => panic!("{answer:?}"),
                            _ => return,
                        }
                    }
                });
            }
            while count.load(Ordering::SeqCst) < enough {
                std::thread::yield_now();
            }
            running.kill();
        });
    }
    // The next start says what became of the rest.
    drop(home.start(&[]));
    let entries = home.entries();
    let of = |line: &serde_json::Value, name: &str| line[name].as_u64().expect("a count");
    let mut states: HashMap<&str, usize> = HashMap::new();
    let mut settled = HashSet::new();
    for ((id, provider), line) in &entries {
        assert_eq!((of(line, "requests"), of(line, "open")), (1, 0), "{id} at {provider}: {line}");
        let state = ["failed", "interrupted"].into_iter().find(|state| of(line, state) == 1);
        *states.entry(state.unwrap_or("settled")).or_default() += 1;
        if state.is_none() {
            let id: u64 = id.parse().expect("a number");
            assert_eq!((of(line, "input_tokens"), of(line, "output_tokens")), used(id), "{id}: {line}");
            assert!(settled.insert(id), "{id} is settled at two providers");
        }
    }
    let mut saw = 0;
    for (slug, fake) in &fakes {
        let log = std::fs::read_to_string(folder.path().join(format!("{slug}.log"))).expect("a log");
        assert_eq!(log.lines().count(), fake.seen().asked.len());
        for line in log.lines() {
            let id = line.split(' ').nth(1).expect("a number").to_owned();
            assert!(
                entries.contains_key(&(id.clone(), (*slug).to_owned())),
                "{slug} saw {id}, which has no entry"
            );
            saw += 1;
        }
    }
    let whole = whole.into_inner().expect("whole");
    let lost: Vec<_> = whole.difference(&settled).collect();
    assert!(lost.is_empty(), "answers that came whole and are not settled: {lost:?}");
    println!("providers saw {saw} requests, clients had {} whole answers; entries: {states:?}", whole.len());
}
