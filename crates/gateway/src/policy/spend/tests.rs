//! Limits of money over two processes: of keys, gateways and accounts.

use super::*;
use crate::ledger::Entry;
use crate::policy::credit::{Period, SpendingLimit};
use crate::price::{CustomCost, Price, Rates};
use crate::tests::{Hand, gateway, new_key};
use crate::{Budget, DEFAULT, Limits, Metadata, PARTS, Usage};
use base::Clock;
use serde_json::{Value, json};
use std::sync::Arc;
use store::Store;
use tempfile::TempDir;

/// What a request may cost at the most, in billionths: 100 tokens in and 10 out at 1000 and 2000.
const WORST: i64 = 120_000;

/// What it does cost.
const COST: i64 = 30_000;

const USAGE: Usage = Usage {
    input: 20,
    cached_input: None,
    cache_write: None,
    cache_write_1h: None,
    output: 5,
    reasoning: None,
    tier: crate::Tier::Standard,
    other: false,
    told: None,
};

fn opening(caller: Caller, provider: &str, model: &str) -> Opening {
    let dollars = |amount: i64| Some(NanoUsd(amount * 1_000_000_000));
    let rates = Rates { input: dollars(1), output: dollars(2), ..Rates::default() };
    Opening {
        request: uuid::Uuid::now_v7().to_string(),
        caller,
        provider: provider.to_owned(),
        model: model.to_owned(),
        price: Some(Price { rates, ..Price::default() }),
        most: Some((100, 10)),
    }
}

async fn on_sqlite(clock: &Arc<Hand>) -> (TempDir, [Gateway; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let gateways = [gateway(folder.path(), clock).await, gateway(folder.path(), clock).await];
    start(&folder, &gateways).await;
    (folder, gateways)
}

async fn on_postgres(server: &testdb::Server, clock: &Arc<Hand>) -> (TempDir, [Gateway; 2]) {
    let (folder, address) = (tempfile::tempdir().unwrap(), server.database().parse().unwrap());
    let open = async || {
        let store = Store::connect(&address, &PARTS).unwrap();
        let clock = Arc::clone(clock) as Arc<dyn Clock>;
        Gateway::open(store, clock, crate::price::Book::default()).await.unwrap()
    };
    let gateways = [open().await, open().await];
    start(&folder, &gateways).await;
    (folder, gateways)
}

async fn start(folder: &TempDir, gateways: &[Gateway; 2]) {
    for gateway in gateways {
        gateway.ledger().start(&folder.path().join("processes")).await.unwrap();
    }
}

async fn limit(gateway: &Gateway, rules: Value) {
    let fields = json!({"spend_limits": {"enabled": true, "rules": rules}});
    let Value::Object(fields) = fields else { unreachable!() };
    gateway.update_gateway(DEFAULT, DEFAULT, &fields).await.unwrap();
}

/// Asks 64 times at once over both processes; gives the entries that were let in, and the kind of the refusals.
async fn rush(gateways: &[Gateway; 2], caller: &Caller) -> (Vec<Entry>, Option<ErrorKind>) {
    let tasks: Vec<_> = (0..64)
        .map(|number| {
            let (gateway, opening) = (gateways[number % 2].clone(), opening(caller.clone(), "p", "m"));
            tokio::spawn(async move { gateway.enter(opening).await })
        })
        .collect();
    let (mut entries, mut kind) = (Vec::new(), None);
    for task in tasks {
        match task.await.unwrap() {
            Ok(entry) => entries.push(entry),
            Err(error) => kind = Some(error.kind),
        }
    }
    (entries, kind)
}

/// Row 14 of the public faults, for keys, spend limits of gateways, and credit: requests in parallel all pass a budget that
/// is nearly spent.
async fn check_rush(gateways: &[Gateway; 2], clock: &Hand) {
    let room = 3 * WORST + WORST / 2;
    let dollars = NanoUsd(room).dollars();
    let budget = Some(Budget { amount: NanoUsd(room), period: None });
    let (key, _) = gateways[0].create_key(new_key(Limits { budget, ..Limits::default() })).await.unwrap();
    clock.advance(Duration::from_secs(1));
    let keyed = Caller { key: Some(key.id), ..Caller::default() };
    let (entries, kind) = rush(gateways, &keyed).await;
    assert_eq!((entries.len(), kind), (3, Some(ErrorKind::Limited)));

    for technique in ["fixed", "sliding"] {
        let rule = json!([{"id": technique, "limit": dollars, "limitType": "cost", "window": 86_400, "technique": technique}]);
        limit(&gateways[0], rule).await;
        clock.advance(Duration::from_secs(1));
        let (entries, kind) = rush(gateways, &Caller::default()).await;
        assert_eq!((entries.len(), kind), (3, Some(ErrorKind::Limited)), "{technique}");
        let mut checked = gateways[1].check_spend(&Caller::default(), "p", "m").await;
        assert_eq!(checked, Ok(()));
        for entry in entries {
            entry.settle(Some(USAGE)).await;
        }
        // Three are settled, so there is room for two more and a half.
        let (entries, _) = rush(gateways, &Caller::default()).await;
        assert_eq!(entries.len(), (room - 3 * COST) as usize / WORST as usize, "{technique}");
        for entry in entries {
            // Not known: it counts with its worst case.
            entry.settle(None).await;
        }
        for _ in 0..3 {
            match gateways[0].enter(opening(Caller::default(), "p", "m")).await {
                Ok(entry) => drop(entry.settle(Some(USAGE)).await),
                Err(_) => break,
            }
        }
        checked = gateways[1].check_spend(&Caller::default(), "p", "m").await;
        assert_eq!(checked, Ok(()), "what is left is less than a request may cost, and more than nothing");
    }
    limit(&gateways[0], json!([])).await;

    gateways[0].create_account("paid", "Paid").await.unwrap();
    clock.advance(Duration::from_secs(1));
    let paying = Caller { account: "paid".into(), ..Caller::default() };
    drop(gateways[0].enter(opening(paying.clone(), "p", "m")).await.unwrap());
    assert_eq!(gateways[1].balance("paid").await, Ok(None), "it is off until there was credit");
    assert_eq!(gateways[0].credit("paid", NanoUsd(room), "first").await, Ok(NanoUsd(room)));
    clock.advance(Duration::from_secs(1));
    let (entries, kind) = rush(gateways, &paying).await;
    assert_eq!((entries.len(), kind), (3, Some(ErrorKind::Unpaid)));
    assert_eq!(gateways[1].balance("paid").await, Ok(Some(NanoUsd(room - 3 * WORST))));
    for entry in entries {
        entry.settle(Some(USAGE)).await;
    }
    assert_eq!(gateways[1].balance("paid").await, Ok(Some(NanoUsd(room - 3 * COST))));
    gateways[1].credit("paid", NanoUsd(WORST), "more").await.unwrap();
    let payments = gateways[0].payments("paid").await.unwrap();
    let notes: Vec<(&str, i64)> = payments.iter().map(|paid| (&*paid.note, paid.amount.0)).collect();
    assert_eq!(notes, [("first", room), ("more", WORST)]);
    clock.advance(Duration::from_secs(1));
    assert_eq!(rush(gateways, &paying).await.0.len(), 3);
}

#[tokio::test]
async fn parallel_requests_never_overspend_a_key_a_spend_limit_or_credit() {
    let clock = Hand::new();
    let (_folder, gateways) = on_sqlite(&clock).await;
    check_rush(&gateways, &clock).await;
}

#[tokio::test]
async fn parallel_requests_never_overspend_on_postgres_either() {
    let Some(server) = testdb::Server::shared("parallel_requests_never_overspend_on_postgres") else {
        return;
    };
    let clock = Hand::new();
    let (_folder, gateways) = on_postgres(&server, &clock).await;
    check_rush(&gateways, &clock).await;
}

#[tokio::test]
async fn rules_are_about_the_models_providers_keys_and_metadata_that_they_name() {
    let clock = Hand::new();
    let (_folder, gateways) = on_sqlite(&clock).await;
    let gateway = &gateways[0];
    let caller = |tags: &str| Caller { metadata: Metadata::parse(tags), ..Caller::default() };
    let dollars = NanoUsd(WORST).dollars();
    let rule = |more: Value| {
        let mut rule = json!({"limit": dollars, "limitType": "cost", "window": 3600});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule
    };
    let passes = async |tags: &str, provider: &str, model: &str| {
        gateway.enter(opening(caller(tags), provider, model)).await.is_ok()
    };
    // Each asks twice: what is under the rule passes once.
    for (more, asked, under) in [
        (json!({"model": {"mode": "filter", "values": ["m"]}}), ("", "p", "m"), true),
        (json!({"model": {"mode": "filter", "values": ["p/m"]}}), ("", "p", "m"), true),
        (json!({"model": {"mode": "filter", "values": ["n"]}}), ("", "p", "m"), false),
        (json!({"provider": {"mode": "filter", "values": ["q", "p"]}}), ("", "p", "m"), true),
        (json!({"provider": {"mode": "filter", "values": ["q"]}}), ("", "p", "m"), false),
        (
            json!({"metadata": {"team": {"mode": "filter", "values": ["red"]}}}),
            (r#"{"team":"red"}"#, "p", "m"),
            true,
        ),
        (
            json!({"metadata": {"team": {"mode": "filter", "values": ["red"]}}}),
            (r#"{"team":"blue"}"#, "p", "m"),
            false,
        ),
        (json!({"metadata": {"team": {"mode": "filter", "values": ["red"]}}}), ("", "p", "m"), false),
        (json!({"metadata": {"n": {"mode": "filter", "values": ["7"]}}}), (r#"{"n":7}"#, "p", "m"), true),
        (json!({"key": {"mode": "filter", "values": ["other"]}}), ("", "p", "m"), false),
        (json!({"enabled": false}), ("", "p", "m"), false),
    ] {
        limit(gateway, json!([rule(more.clone())])).await;
        let (tags, provider, model) = asked;
        assert!(passes(tags, provider, model).await, "{more}");
        assert_eq!(passes(tags, provider, model).await, !under, "{more}");
    }
    limit(gateway, json!([rule(json!({"metadata": {"team": {"mode": "partition"}}}))])).await;
    for tags in [r#"{"team":"red"}"#, r#"{"team":"blue"}"#, ""] {
        assert!(passes(tags, "p", "m").await && !passes(tags, "p", "m").await, "{tags}");
    }
    clock.advance(Duration::from_secs(3600));
    assert!(passes("", "p", "m").await, "the next window has its own");
}

#[tokio::test]
async fn who_is_held_to_money_names_no_cost_and_uses_nothing_without_a_price() {
    let (_folder, [gateway, _]) = on_sqlite(&Hand::new()).await;
    gateway.credit(DEFAULT, NanoUsd(WORST), "").await.unwrap();
    let named = Caller { custom_cost: Some(CustomCost::Total(NanoUsd(0))), ..Caller::default() };
    let unpriced = Opening { price: None, ..opening(Caller::default(), "p", "m") };
    for opening in [opening(named, "p", "m"), unpriced] {
        assert_eq!(gateway.enter(opening).await.err().map(|error| error.kind), Some(ErrorKind::Forbidden));
    }
    let empty = gateway.credit(DEFAULT, NanoUsd(-WORST), "back").await;
    assert_eq!(empty, Ok(NanoUsd(0)));
    let refused = gateway.enter(opening(Caller::default(), "p", "m")).await.err();
    assert_eq!(refused.map(|error| error.kind), Some(ErrorKind::Unpaid));
}

#[tokio::test]
async fn a_spending_limit_holds_for_its_day_and_can_be_taken_away() {
    let clock = Hand::new();
    let (_folder, [gateway, _]) = on_sqlite(&clock).await;
    let limit = |strategy| SpendingLimit { amount: NanoUsd(WORST), duration: Period::Daily, strategy };
    let passes = async || gateway.enter(opening(Caller::default(), "p", "m")).await.is_ok();
    for technique in [Technique::Fixed, Technique::Sliding] {
        gateway.set_spending_limit(DEFAULT, Some(limit(technique))).await.unwrap();
        assert_eq!(gateway.spending_limit(DEFAULT).await, Ok(Some(limit(technique))));
        clock.advance(Duration::from_secs(2 * 86_400));
        assert!(passes().await && !passes().await, "{technique:?}");
        clock.advance(Duration::from_secs(86_400 + 8640));
        assert!(passes().await, "{technique:?}");
    }
    gateway.set_spending_limit(DEFAULT, None).await.unwrap();
    assert!(passes().await && passes().await);
    assert_eq!(gateway.spending_limit(DEFAULT).await, Ok(None));
}

#[tokio::test]
async fn credit_that_no_sum_could_hold_is_refused() {
    let clock = Hand::new();
    let (_folder, [gateway, _]) = on_sqlite(&clock).await;
    let most = crate::policy::credit::CREDIT_MAX;
    assert_eq!(gateway.credit(DEFAULT, most, "").await, Ok(most));
    for (amount, kind) in
        [(1, Some(ErrorKind::InvalidRequest)), (i64::MAX, Some(ErrorKind::InvalidRequest)), (-1, None)]
    {
        let outcome = gateway.credit(DEFAULT, NanoUsd(amount), "").await;
        assert_eq!(outcome.err().map(|error| error.kind), kind, "{amount}");
    }
}

#[tokio::test]
async fn a_limit_without_room_says_what_is_left_and_what_was_needed() {
    let clock = Hand::new();
    let (_folder, gateways) = on_sqlite(&clock).await;
    let budget = Some(Budget { amount: NanoUsd(WORST / 2), period: None });
    let (key, _) = gateways[0].create_key(new_key(Limits { budget, ..Limits::default() })).await.unwrap();
    let caller = Caller { key: Some(key.id), ..Caller::default() };
    let refused = gateways[0].enter(opening(caller, "p", "m")).await.err().unwrap();
    let expected = "The budget of this key has no room: $0.00006 of $0.00006 is left, and this request may cost up to $0.00012";
    assert_eq!((refused.kind, refused.message.as_str()), (ErrorKind::Limited, expected));
}
