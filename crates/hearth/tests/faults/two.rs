//! Two servers on one Postgres: a budget that is nearly spent, and a server that dies with requests under way.

use super::fake::{self, Fake};
use super::server::{Home, chat};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Requests at once.
const REQUESTS: usize = 64;

/// What each uses: two dollars for 10 tokens of prompt and one dollar for each of 5 of the answer.
const PRICES: &str =
    r#"{"m": {"litellm_provider": "custom-a", "input_cost_per_token": 0.2, "output_cost_per_token": 1.0}}"#;

/// Of one request, in dollars.
const COST: u64 = 7;

fn home(folder: &std::path::Path, database: String, fake: &Fake) -> Home {
    let home = Home { folder: folder.to_owned(), database: Some(database) };
    std::fs::write(folder.join("prices.json"), PRICES).expect("written");
    home.settings(&format!(
        "prices = [\"prices.json\"]\n[providers.custom-a]\nbase-url = \"http://{}/v1\"\n",
        fake.address
    ));
    home
}

#[test]
fn parallel_requests_at_two_servers_overspend_a_nearly_spent_budget_by_one_at_most() {
    let Some(postgres) = testdb::Server::shared("two servers and a budget") else { return };
    let folder = tempfile::tempdir().expect("tempdir");
    let fake = Fake::new(folder.path(), "custom-a", |asked| fake::chat(asked, 10, 5));
    let home = home(folder.path(), postgres.database(), &fake);
    // The worst case of one is some 100 dollars for the answer and 30 for the prompt: room for a few at once.
    let budget = 500;
    let key = home.key(&["--budget", &budget.to_string()]);
    let servers = [home.start(&[]), home.start(&[])];
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..REQUESTS {
            let (servers, key, answered) = (&servers, &key, &answered);
            scope.spawn(move || {
                let answer =
                    chat(&servers[number % 2].address, key, &number.to_string(), "custom-a/m", false);
                let answer = answer.expect("sent");
                match answer.status {
                    200 => drop(answered.fetch_add(1, Ordering::SeqCst)),
                    429 => assert!(answer.text.contains("budget"), "{answer:?}"),
                    _ => panic!("{answer:?}"),
                }
            });
        }
    });
    let answered = answered.into_inner();
    assert!(answered > 0, "nothing fits into the budget");
    assert_eq!(fake.seen().asked.len(), answered, "what was refused was not sent");
    let line = home.usage("").remove(0);
    assert_eq!(line["requests"].as_u64(), Some(answered as u64), "{line}");
    assert_eq!(line["cost"].as_f64(), Some((answered as u64 * COST) as f64), "{line}");
    assert!(answered as u64 * COST <= budget + COST, "{line}");
    println!("{answered} of {REQUESTS} requests fitted into a budget of {budget} dollars, {COST} each");
}

#[test]
fn when_one_of_two_servers_is_killed_under_load_its_requests_are_interrupted_and_the_budget_holds() {
    let Some(postgres) = testdb::Server::shared("one of two servers is killed") else { return };
    let folder = tempfile::tempdir().expect("tempdir");
    let fake = Fake::new(folder.path(), "custom-a", |asked| fake::chat(asked, 10, 5));
    let home = home(folder.path(), postgres.database(), &fake);
    let budget = 3_000;
    let key = home.key(&["--budget", &budget.to_string()]);
    let (mut dies, lives) = (home.start(&[]), home.start(&[]));
    let addresses = [dies.address.clone(), lives.address.clone()];
    let (next, count, whole) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for client in 0..16 {
            let (addresses, key, next, count, whole) = (&addresses, &key, &next, &count, &whole);
            scope.spawn(move || {
                loop {
                    let id = next.fetch_add(1, Ordering::SeqCst).to_string();
                    let answer = chat(&addresses[client % 2], key, &id, "custom-a/m", client % 4 < 2);
                    match answer {
                        Some(answer) if answer.whole && answer.status == 200 => {
                            whole.lock().expect("whole").push(id);
                            count.fetch_add(1, Ordering::SeqCst);
                        }
                        // The budget is spent, or the server died.
                        Some(answer) if answer.whole => return assert_eq!(answer.status, 429, "{answer:?}"),
                        _ => return,
                    }
                }
            });
        }
        while count.load(Ordering::SeqCst) < 40 {
            std::thread::yield_now();
        }
        dies.kill();
    });
    // Another server that starts on this machine says what became of the dead one's.
    let third = home.start(&[]);
    let entries = home.entries();
    let mut cost = 0.0;
    for ((id, _), line) in &entries {
        assert_eq!((&line["requests"], &line["open"]), (&1.into(), &0.into()), "{id}: {line}");
        cost += line["cost"].as_f64().expect("a number");
    }
    for asked in &fake.seen().asked {
        assert!(
            entries.contains_key(&(asked.id.clone(), "custom-a".to_owned())),
            "{} has no entry",
            asked.id
        );
    }
    for id in whole.into_inner().expect("whole") {
        let line = &entries[&(id.clone(), "custom-a".to_owned())];
        assert_eq!((&line["interrupted"], &line["input_tokens"]), (&0.into(), &10.into()), "{id}: {line}");
    }
    let saw = fake.seen().asked.len() as u64;
    assert!(cost <= (budget + COST) as f64 && saw * COST <= budget + COST, "{cost} dollars, {saw} requests");
    drop((lives, third));
}
