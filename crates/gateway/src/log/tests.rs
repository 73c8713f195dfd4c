//! Logs over real stores, of both kinds.

use super::record::Keep;
use super::*;
use crate::ledger::{Entry, Opening, Question};
use crate::price::Book;
use crate::tests::Hand;
use crate::{Caller, DEFAULT, Gateway, Metadata, Usage};
use serde_json::{Map, Value, json};
use std::sync::mpsc as blocking;
use tempfile::TempDir;

const USAGE: Usage = Usage {
    input: 10,
    cached_input: Some(4),
    cache_write: None,
    cache_write_1h: None,
    output: 5,
    reasoning: None,
    tier: crate::Tier::Standard,
    other: false,
    told: None,
};

const BODY: &[u8] = br#"{"messages":[{"role":"user","content":"I am ada@example.com"}]}"#;

struct Fixture {
    _folder: TempDir,
    gateway: Gateway,
    store: Store,
    clock: Arc<Hand>,
    /// Runs as long as it is used.
    _server: Option<Arc<testdb::Server>>,
}

impl Fixture {
    async fn over(store: Store, folder: TempDir, defaults: Defaults) -> Self {
        let clock = Hand::new();
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        let gateway = Gateway::open(store.clone(), shared, Book::default()).await.unwrap();
        gateway.ledger().start(&folder.path().join("processes")).await.unwrap();
        gateway.logs().start(defaults, Allowed::default());
        Self { _folder: folder, gateway, store, clock, _server: None }
    }

    async fn sqlite(defaults: Defaults) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), &crate::PARTS).unwrap();
        Self::over(store, folder, defaults).await
    }

    /// On both databases, or on one where there is no Postgres here.
    async fn both(test: &str, defaults: Defaults) -> Vec<Self> {
        let mut fixtures = vec![Self::sqlite(defaults).await];
        if let Some(server) = testdb::Server::shared(test) {
            let address = server.database().parse().unwrap();
            let store = Store::connect(&address, &crate::PARTS).unwrap();
            let over = Self::over(store, tempfile::tempdir().unwrap(), defaults).await;
            fixtures.push(Self { _server: Some(server), ..over });
        }
        fixtures
    }

    async fn set(&self, settings: Value) {
        let fields = settings.as_object().unwrap();
        self.gateway.update_gateway(DEFAULT, DEFAULT, fields).await.unwrap();
    }

    async fn trace(&self, asked: Asked) -> Trace {
        let named = self.gateway.gateway(DEFAULT, DEFAULT).await.unwrap();
        let caller = Caller { metadata: Metadata::parse(r#"{"team":"red","n":1}"#), ..Caller::default() };
        self.gateway.logs().trace(&caller, &named, Asked { request_type: "chat", ..asked })
    }

    async fn enter(&self, trace: &Trace, id: &str) -> Entry {
        let opening = Opening {
            request: id.to_owned(),
            caller: Caller { trace: Some(trace.clone()), ..Caller::default() },
            provider: "openai".to_owned(),
            model: "m".to_owned(),
            price: None,
            most: None,
        };
        self.gateway.enter(opening).await.unwrap()
    }

    async fn drained(&self) {
        while self.gateway.logs().waiting() > 0 || self.gateway.ledger().waiting() > 0 {
            tokio::task::yield_now().await;
        }
    }

    async fn list(&self, query: &Query) -> Vec<Record> {
        self.drained().await;
        self.gateway.list_logs(query, 0, 10_000).await.unwrap()
    }

    async fn all(&self) -> Vec<Record> {
        let mut query = Query::new(DEFAULT, DEFAULT);
        query.order("created_at", Direction::Ascending).unwrap();
        self.list(&query).await
    }

    async fn ids(&self, filters: &[(&str, &str, &[&str])]) -> String {
        let mut query = Query::new(DEFAULT, DEFAULT);
        query.order("created_at", Direction::Ascending).unwrap();
        for (key, operator, values) in filters {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            query.filter(key, operator, &values, |text| text.parse().ok()).unwrap();
        }
        let found = self.list(&query).await;
        found.iter().map(|record| record.id.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Sends a record on its way as a request does.
    fn push(&self, record: Record, keep: Keep) {
        let pending = Pending { record, request: None, response: None, redact: true, keep };
        self.gateway.logs().push(pending);
    }

    async fn rows(&self, table: &'static str) -> i64 {
        let sql = format!("SELECT CAST(count(*) AS BIGINT) FROM {table}");
        self.store.read(move |work| work.query(&sql, &[])?[0].integer(0)).await.unwrap()
    }
}

const PLENTY: Keep = Keep { most: 1_000_000, strategy: Strategy::DeleteOldest };

fn record(id: &str, created: u64) -> Record {
    Record {
        id: id.to_owned(),
        account: DEFAULT.to_owned(),
        gateway: DEFAULT.to_owned(),
        created,
        provider: "openai".to_owned(),
        model: "gpt-x".to_owned(),
        model_type: "text-generation".to_owned(),
        path: "chat/completions".to_owned(),
        request_type: "chat".to_owned(),
        duration: 20,
        first_byte: Some(5),
        status: 200,
        cached: false,
        step: 0,
        tokens_in: Some(10),
        tokens_cached: Some(4),
        tokens_out: Some(5),
        cost: Some(base::NanoUsd(1500)),
        custom_cost: false,
        request_content_type: Some("application/json".to_owned()),
        response_content_type: Some("text/event-stream".to_owned()),
        request_size: 7,
        response_size: 8,
        request_head: Head { text: Some("{}".to_owned()), complete: true },
        response_head: Head::default(),
        user_agent: Some("curl".to_owned()),
        key: None,
        event_id: Some("e".to_owned()),
        authentication: true,
        compatibility: false,
        dlp_action: None,
        findings: Vec::new(),
        error: None,
        feedback: None,
        score: None,
        metadata: vec![("n".to_owned(), json!(1)), ("team".to_owned(), json!("red"))],
    }
}

fn fine(content_type: &str) -> Answered {
    Answered { status: 200, content_type: Some(content_type.to_owned()), ..Answered::default() }
}

#[tokio::test]
async fn a_record_comes_back_from_both_databases_as_it_was() {
    for fixture in Fixture::both("a_record_comes_back_from_both_databases", Defaults::default()).await {
        let sent = Record { model: "a\0b 你".to_owned(), error: Some("e".to_owned()), ..record("r", 7) };
        fixture.push(sent.clone(), PLENTY);
        assert_eq!(fixture.all().await, [Record { model: "a\u{fffd}b 你".to_owned(), ..sent }]);
    }
}

#[tokio::test]
async fn a_whole_answer_has_one_log_with_what_the_ledger_and_the_server_say() {
    let fixture = Fixture::sqlite(Defaults::default()).await;
    let asked = Asked { event_id: Some("mine".to_owned()), path: "/v1/x".to_owned(), ..Asked::default() };
    let trace = fixture.trace(asked).await;
    trace.request(&BODY.into());
    let entry = fixture.enter(&trace, "r").await;
    assert_eq!(trace.log_id().as_deref(), Some("r"));
    fixture.clock.advance(Duration::from_millis(30));
    trace.answered(fine("application/json"));
    trace.piece(&bytes::Bytes::from_static(b"{}"));
    entry.settle(Some(USAGE)).await;
    fixture.clock.advance(Duration::from_millis(10));
    trace.ended(false);
    trace.ended(true);
    let logs = fixture.all().await;
    assert_eq!(logs.len(), 1);
    let log = &logs[0];
    assert_eq!((log.id.as_str(), log.provider.as_str(), log.model.as_str()), ("r", "openai", "m"));
    assert_eq!((log.status, log.success(), log.duration, log.first_byte), (200, true, 40, Some(30)));
    assert_eq!((log.tokens_in, log.tokens_cached, log.tokens_out), (Some(10), Some(4), Some(5)));
    assert_eq!((log.request_size, log.response_size), (BODY.len() as u64, 2));
    assert_eq!((log.event_id.as_deref(), log.path.as_str()), (Some("mine"), "/v1/x"));
    assert_eq!(log.metadata, [("n".to_owned(), json!(1)), ("team".to_owned(), json!("red"))]);
    // Nothing of what was said is kept where nobody asked for it.
    assert_eq!((&log.request_head, fixture.rows("gateway_log_payloads").await), (&Head::default(), 0));
}

/// Row 16 of the public faults: a client that left has status 499 and what was used until then.
#[tokio::test]
async fn an_interrupted_answer_is_logged_with_499_and_its_partial_usage() {
    let fixture = Fixture::sqlite(Defaults::default()).await;
    // The body is dropped before the entry, or after it.
    for early in [true, false] {
        let trace = fixture.trace(Asked::default()).await;
        let mut entry = fixture.enter(&trace, if early { "early" } else { "late" }).await;
        entry.see(Usage { output: 2, ..USAGE });
        trace.answered(fine("text/event-stream"));
        if early {
            trace.ended(true);
            drop(entry);
        } else {
            drop(entry);
            trace.ended(true);
        }
    }
    let logs = fixture.all().await;
    assert_eq!(logs.len(), 2);
    for log in logs {
        assert_eq!(
            (log.status, log.success(), log.tokens_in, log.tokens_out),
            (499, false, Some(10), Some(2))
        );
    }
}

#[tokio::test]
async fn each_provider_that_was_asked_has_its_log_and_a_refused_request_one() {
    let fixture = Fixture::sqlite(Defaults::default()).await;
    let trace = fixture.trace(Asked::default()).await;
    trace.request(&BODY.into());
    fixture.enter(&trace, "a").await.fail(502, "no").await;
    fixture.clock.advance(Duration::from_millis(10));
    let entry = fixture.enter(&trace, "b").await;
    trace.answered(fine("application/json"));
    entry.settle(Some(USAGE)).await;
    trace.ended(false);
    let logs = fixture.all().await;
    let shown: Vec<_> = logs.iter().map(|log| (log.id.as_str(), log.step, log.status)).collect();
    assert_eq!(shown, [("a", 0, 502), ("b", 1, 200)]);

    let trace = fixture.trace(Asked { provider: Some("openai".to_owned()), ..Asked::default() }).await;
    let error = Some("The body is larger than 1 MiB".to_owned());
    trace.answered(Answered { status: 413, error, ..Answered::default() });
    trace.ended(false);
    let log = fixture.all().await.into_iter().find(|log| log.step == 0 && log.status != 502).unwrap();
    assert_eq!((log.status, log.provider.as_str(), log.model.as_str()), (413, "openai", ""));
    assert!(log.error.unwrap().contains("larger"));
}

#[tokio::test]
async fn gateway_and_request_decide_whether_a_log_and_its_payloads_are_kept() {
    let fixture = Fixture::sqlite(Defaults::default()).await;
    let logged = async |id: &str, collect: Collect| {
        let trace = fixture.trace(Asked {
            collect,
            content_type: Some("application/json".to_owned()),
            ..Asked::default()
        });
        let trace = trace.await;
        trace.request(&BODY.into());
        let entry = fixture.enter(&trace, id).await;
        trace.answered(fine("text/plain"));
        trace.piece(&bytes::Bytes::from_static(b"Hello, "));
        trace.piece(&bytes::Bytes::from_static(&[0xff, b'x']));
        entry.settle(None).await;
        trace.ended(false);
        fixture.drained().await;
        let payload = fixture.gateway.log_payload(DEFAULT, DEFAULT, id, "request").await;
        payload.ok().map(|payload| payload.is_some())
    };
    let of = |log, payloads| Collect { log, payloads, zero_retention: false };
    assert_eq!(logged("a", of(None, None)).await, Some(false));
    assert_eq!(logged("b", of(Some(false), None)).await, None);
    assert_eq!(logged("c", of(None, Some(true))).await, Some(true));
    fixture.set(json!({"collect_logs": false, "log_payloads": true})).await;
    assert_eq!(logged("d", of(None, None)).await, None);
    assert_eq!(logged("e", of(Some(true), None)).await, Some(true));
    assert_eq!(logged("f", of(Some(true), Some(false))).await, Some(false));
    assert_eq!(
        logged("g", Collect { zero_retention: true, ..of(Some(true), Some(true)) }).await,
        Some(false)
    );
    // Secrets and personal data are gone, and what is no text is there all the same.
    let payload =
        async |side| fixture.gateway.log_payload(DEFAULT, DEFAULT, "e", side).await.unwrap().unwrap();
    let (form, text) = payload("request").await;
    assert_eq!((form.as_str(), text.contains("[email]"), text.contains("ada@")), ("text", true, false));
    assert_eq!(payload("response").await, ("base64".to_owned(), "SGVsbG8sIP94".to_owned()));
    let log = fixture.gateway.log(DEFAULT, DEFAULT, "e").await.unwrap();
    assert!(log.request_head.complete && log.request_head.text.unwrap().contains("[email]"));
    fixture.set(json!({"collect_logs": true, "log_redaction": false, "log_payload_limit": 20})).await;
    assert_eq!(logged("h", of(None, None)).await, Some(true));
    let (_, text) = fixture.gateway.log_payload(DEFAULT, DEFAULT, "h", "request").await.unwrap().unwrap();
    assert_eq!(text.as_bytes(), &BODY[..20]);
}

#[tokio::test]
async fn filters_mean_the_same_on_both_databases() {
    for fixture in Fixture::both("filters_mean_the_same_on_both", Defaults::default()).await {
        fixture.push(record("a", 1000), PLENTY);
        let bad = Record {
            model: "Claude-y".to_owned(),
            provider: "anthropic".to_owned(),
            status: 500,
            cost: None,
            tokens_out: None,
            user_agent: None,
            metadata: vec![("team".to_owned(), json!("blue")), ("red".to_owned(), json!(true))],
            ..record("b", 2000)
        };
        fixture.push(bad, PLENTY);
        fixture.push(Record { duration: 900, metadata: Vec::new(), ..record("c", 3000) }, PLENTY);
        fixture.push(Record { gateway: "other".to_owned(), ..record("d", 4000) }, PLENTY);
        for (filters, found) in [
            (&[] as &[(&str, &str, &[&str])], "a b c"),
            (&[("id", "eq", &["b"])], "b"),
            (&[("id", "eq", &["a", "c", "d"])], "a c"),
            (&[("id", "neq", &["a", "c"])], "b"),
            (&[("model", "contains", &["CLAUDE"])], "b"),
            (&[("provider", "neq", &["anthropic"])], "a c"),
            (&[("success", "eq", &["true"])], "a c"),
            (&[("success", "eq", &["false"])], "b"),
            (&[("cost", "gt", &["0.000001"])], "a c"),
            (&[("cost", "eq", &["null"])], "b"),
            (&[("cost", "neq", &["1"])], "a b c"),
            (&[("tokens", "lt", &["15"])], "b"),
            (&[("tokens", "gt", &["14.5"])], "a c"),
            (&[("tokens", "eq", &["14.5"])], ""),
            (&[("duration", "gt", &["20"])], "c"),
            (&[("created_at", "lt", &["2000"])], "a"),
            (&[("created_at", "gt", &["1000"]), ("success", "eq", &["1"])], "c"),
            (&[("metadata.key", "eq", &["team"])], "a b"),
            (&[("metadata.value", "eq", &["red"])], "a"),
            (&[("metadata.value", "eq", &["1"])], "a"),
            // Key and value are about one entry.
            (&[("metadata.key", "eq", &["red"]), ("metadata.value", "eq", &["true"])], "b"),
            (&[("metadata.key", "eq", &["red"]), ("metadata.value", "eq", &["blue"])], ""),
            (
                &[
                    ("metadata.key", "eq", &["team"]),
                    ("metadata.value", "eq", &["blue"]),
                    ("metadata.key", "eq", &["red"]),
                    ("metadata.value", "contains", &["tru"]),
                ],
                "b",
            ),
            (&[("metadata.key", "neq", &["team"])], "c"),
            (&[("user_agent", "eq", &["null"])], "b"),
            (&[("user_agent", "contains", &["CU"])], "a c"),
            (&[("wholesale", "eq", &["false"])], "a b c"),
            (&[("wholesale", "eq", &["true"])], ""),
            (&[("dlp_action", "eq", &["FLAG"])], ""),
            (&[("authentication", "eq", &["true"])], "a b c"),
            (&[("compatibilityMode", "eq", &["true"])], ""),
        ] {
            assert_eq!(fixture.ids(filters).await, found, "{filters:?}");
        }
        let mut query = Query::new(DEFAULT, DEFAULT);
        query.search("BLUE");
        assert_eq!(fixture.list(&query).await.len(), 1);
        for (key, operator, value) in [
            ("colour", "eq", "1"),
            ("model", "like", "1"),
            ("cost", "eq", "much"),
            ("success", "eq", "maybe"),
            ("tokens", "contains", "1"),
            ("created_at", "gt", "soon"),
            ("metadata.x", "eq", "1"),
        ] {
            let refused = query.filter(key, operator, &[value.to_owned()], |text| text.parse().ok());
            assert!(refused.is_err(), "{key} {operator} {value}");
        }
        assert!(query.order("colour", Direction::Ascending).is_err());
        let totals = fixture.gateway.count_logs(&Query::new(DEFAULT, DEFAULT), true).await.unwrap();
        assert_eq!(totals.count, 3);
        assert_eq!(totals.ranges[1], ("duration", Some(20), Some(900)));
        let mut query = Query::new(DEFAULT, DEFAULT);
        query.order("duration", Direction::Descending).unwrap();
        let page = fixture.gateway.list_logs(&query, 1, 1).await.unwrap();
        assert_eq!(page[0].id, "b");
    }
}

#[tokio::test]
async fn a_judgement_is_kept_and_a_missing_log_is_said() {
    for fixture in Fixture::both("a_judgement_is_kept", Defaults::default()).await {
        fixture.push(record("a", 1), PLENTY);
        fixture.drained().await;
        let judge = async |json: Value| {
            fixture.gateway.judge_log(DEFAULT, DEFAULT, "a", json.as_object().unwrap()).await
        };
        let judged = judge(json!({"feedback": -1, "score": 0.5, "metadata": {"seen": true}})).await.unwrap();
        assert_eq!(fixture.all().await, std::slice::from_ref(&judged));
        assert_eq!((judged.feedback, judged.score), (Some(-1), Some(0.5)));
        assert_eq!(fixture.ids(&[("feedback", "eq", &["-1"])]).await, "a");
        judge(json!({"feedback": null})).await.unwrap();
        assert_eq!(fixture.all().await[0].metadata, [("seen".to_owned(), json!(true))]);
        for wrong in
            [json!({"feedback": 2}), json!({"score": "x"}), json!({"metadata": {"a": []}}), json!({"x": 1})]
        {
            assert!(judge(wrong.clone()).await.is_err(), "{wrong}");
        }
        for (gateway, id) in [(DEFAULT, "b"), ("other", "a")] {
            let error = fixture.gateway.judge_log(DEFAULT, gateway, id, &Map::new()).await.unwrap_err();
            assert_eq!(error.kind, protocol::ErrorKind::NotFound);
        }
    }
}

/// Row 34 of the public faults: a clean-up that read all rows at once.
#[tokio::test]
async fn logs_are_deleted_by_batches_with_all_that_belongs_to_them() {
    for fixture in Fixture::both("logs_are_deleted_by_batches", Defaults::default()).await {
        for number in 0..1203_u64 {
            fixture.push(record(&format!("{number:04}"), number), PLENTY);
        }
        fixture.drained().await;
        assert_eq!(fixture.rows("gateway_log_metadata").await, 2406);
        let mut query = Query::new(DEFAULT, DEFAULT);
        query.order("created_at", Direction::Ascending).unwrap();
        assert_eq!(fixture.gateway.delete_logs(&query, Some(3)).await.unwrap(), 3);
        assert_eq!(fixture.list(&query).await[0].id, "0003");
        query.filter("created_at", "lt", &["1200".to_owned()], |text| text.parse().ok()).unwrap();
        // More than two batches.
        assert_eq!(fixture.gateway.delete_logs(&query, None).await.unwrap(), 1197);
        assert_eq!((fixture.rows("gateway_logs").await, fixture.rows("gateway_log_metadata").await), (3, 6));
    }
}

#[tokio::test]
async fn a_gateway_that_is_full_stops_or_lets_its_oldest_go() {
    for fixture in Fixture::both("a_gateway_that_is_full", Defaults::default()).await {
        let stop = Keep { most: 3, strategy: Strategy::StopInserting };
        for id in ["a", "b", "c", "d", "e"] {
            fixture.push(record(id, 1), stop);
        }
        assert_eq!(fixture.ids(&[]).await, "a b c");
        let oldest = Keep { most: 3, strategy: Strategy::DeleteOldest };
        fixture.push(record("f", 2), oldest);
        fixture.push(record("g", 3), oldest);
        fixture.drained().await;
        assert_eq!(fixture.ids(&[]).await, "c f g");
        assert!(fixture.gateway.metrics().contains("hearth_gateway_logs_beyond_cap_total 2"));
    }
}

#[tokio::test]
async fn logs_end_with_their_retention_or_their_gateway() {
    for fixture in Fixture::both("logs_end_with_their_retention", Defaults::default()).await {
        let now = fixture.clock.unix_seconds() * 1000;
        let day = 86_400_000;
        fixture.push(record("old", now - 31 * day), PLENTY);
        fixture.push(record("young", now - 3 * day), PLENTY);
        fixture.push(Record { gateway: "gone".to_owned(), ..record("gone", now) }, PLENTY);
        fixture.drained().await;
        assert_eq!(fixture.gateway.sweep_logs(true).await.unwrap(), 2);
        assert_eq!(fixture.ids(&[]).await, "young");
        fixture.set(json!({"log_retention_days": 0})).await;
        assert_eq!(fixture.gateway.sweep_logs(true).await.unwrap(), 0);
        fixture.set(json!({"log_retention_days": 2})).await;
        assert_eq!(fixture.gateway.sweep_logs(false).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_store_that_is_locked_costs_payloads_first_then_records_and_never_entries() {
    let fixture = Fixture::sqlite(Defaults { payloads: true, ..Defaults::default() }).await;
    let trace = fixture.trace(Asked::default()).await;
    let first = fixture.enter(&trace, "first").await;
    let (go, wait) = blocking::channel::<()>();
    let (holds, held) = blocking::channel::<()>();
    let store = fixture.store.clone();
    let blocked = tokio::spawn(async move {
        store
            .write(move |_| {
                holds.send(()).unwrap();
                wait.recv().unwrap();
                Ok(())
            })
            .await
    });
    tokio::task::spawn_blocking(move || held.recv().unwrap()).await.unwrap();
    let many = QUEUE as u64 + 500;
    for number in 0..many {
        let trace = fixture.trace(Asked::default()).await;
        trace.request(&BODY.into());
        trace.answered(Answered { status: 429, ..Answered::default() });
        trace.ended(false);
        if number % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let (payloads, records) = fixture.gateway.logs().dropped();
    assert!(payloads > 7000, "{payloads} payloads were let go");
    assert!((300..=500).contains(&records), "{records} records were let go");
    assert!(fixture.gateway.logs().0.room.held() <= 1200 * BODY.len() as u64);
    // The answer itself waits for its entry at most, and its end is written when the store is there again.
    let settling = tokio::spawn(first.settle(Some(USAGE)));
    go.send(()).unwrap();
    blocked.await.unwrap().unwrap();
    settling.await.unwrap();
    fixture.drained().await;
    let lines = fixture.gateway.usage(Question::default()).await.unwrap();
    assert_eq!((lines[0].requests, lines[0].open), (1, 0));
    assert_eq!(fixture.rows("gateway_logs").await as u64, many - records);
    assert_eq!(fixture.gateway.logs().0.room.held(), 0);
}

#[tokio::test]
async fn a_store_that_is_full_costs_payloads_and_has_all_records_and_entries_when_there_is_room_again() {
    let fixture = Fixture::sqlite(Defaults { payloads: true, ..Defaults::default() }).await;
    let pages = async |most: &'static str| {
        let sql = format!("PRAGMA max_page_count = {most}");
        fixture.store.write(move |work| work.query(&sql, &[]).map(|_| ())).await.unwrap();
    };
    let fill = async || {
        let sql =
            "INSERT INTO gateway_log_payloads (log, side, form, body, cut) VALUES ('x', 'x', 'x', ?1, 0)";
        let body = [store::Value::from("x".repeat(1 << 20))];
        fixture.store.write(move |work| work.execute(sql, &body)).await
    };
    // No fewer than there are.
    pages("1").await;
    assert!(matches!(fill().await, Err(store::Error::Full)));
    let trace = fixture.trace(Asked::default()).await;
    let entry = fixture.enter(&trace, "r").await;
    trace.answered(fine("application/json"));
    let settling = tokio::spawn(entry.settle(Some(USAGE)));
    for _ in 0..300 {
        let trace = fixture.trace(Asked { path: "p".repeat(500), ..Asked::default() }).await;
        trace.request(&BODY.into());
        trace.answered(Answered { status: 429, ..Answered::default() });
        trace.ended(false);
    }
    trace.ended(false);
    // They gather first; the pause behind the first attempt is longer.
    while fixture.gateway.logs().retries() == 0 {
        assert!(matches!(fill().await, Err(store::Error::Full)));
    }
    assert!(fixture.gateway.logs().waiting() > 0);
    pages("1000000").await;
    settling.await.unwrap();
    assert_eq!(fixture.all().await.len(), 301);
    let (payloads, records) = fixture.gateway.logs().dropped();
    let kept = fixture.rows("gateway_log_payloads").await as u64;
    assert!(payloads > 0 && records == 0, "{payloads} payloads and {records} records were let go");
    assert_eq!(kept + payloads, 300);
    let lines = fixture.gateway.usage(Question::default()).await.unwrap();
    assert_eq!((lines[0].requests, lines[0].open), (1, 0));
}

#[tokio::test]
async fn records_that_wait_when_the_process_ends_are_written_first() {
    let fixture = Fixture::sqlite(Defaults::default()).await;
    for number in 0..200 {
        fixture.push(record(&format!("{number}"), 1), PLENTY);
    }
    fixture.gateway.logs().close(Duration::from_secs(60)).await;
    assert_eq!(fixture.rows("gateway_logs").await, 200);
    fixture.push(record("late", 1), PLENTY);
    assert_eq!(fixture.gateway.logs().waiting(), 0);
}

/// Metadata is what callers write to find their requests by, and holds the names and addresses of their users all the same.
#[tokio::test]
async fn metadata_is_redacted_as_payloads_are() {
    let test = "metadata_is_redacted";
    for fixture in Fixture::both(test, Defaults::default()).await {
        let json = r#"{"team":"red","user":"ada@example.com","password":"x","n":1,"ada@example.com":"y"}"#;
        for (redacted, expected) in [
            (true, ["y", "1", "[secret]", "red", "[email]"]),
            (false, ["y", "1", "x", "red", "ada@example.com"]),
        ] {
            fixture.set(json!({"log_redaction": redacted})).await;
            let named = fixture.gateway.gateway(DEFAULT, DEFAULT).await.unwrap();
            let caller = Caller { metadata: Metadata::parse(json), ..Caller::default() };
            fixture.gateway.logs().trace(&caller, &named, Asked::default()).ended(false);
            fixture.clock.advance(Duration::from_secs(1));
            let log = fixture.all().await.pop().unwrap();
            let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
            let shown: Vec<String> = log.metadata.iter().map(|(_, value)| text(value)).collect();
            assert_eq!(shown, expected, "{redacted}");
        }
    }
}

/// A rule of what may be spent that only reports: nobody is refused, also where the cost cannot be known.
#[tokio::test]
async fn what_is_beyond_a_spend_limit_that_only_reports_passes_and_is_found_in_the_logs() {
    for fixture in Fixture::both("a_spend_limit_that_only_reports", Defaults::default()).await {
        let rule = |id: &str, shadow: bool, limit: f64| json!({"id": id, "limit": limit, "limitType": "cost", "window": 86_400, "shadow": shadow});
        let limits = |rules: Vec<Value>| json!({"spend_limits": {"enabled": true, "rules": rules}});
        fixture.set(limits(vec![rule("wide", true, 1000.0), rule("tight", true, 0.000_001)])).await;
        fixture.clock.advance(Duration::from_secs(1));
        let ask = async |id: &str, price: Option<crate::price::Price>| {
            let trace = fixture.trace(Asked::default()).await;
            let opening = Opening {
                request: id.to_owned(),
                caller: Caller { trace: Some(trace.clone()), ..Caller::default() },
                provider: "openai".to_owned(),
                model: "m".to_owned(),
                price,
                most: Some((100, 100)),
            };
            let entered = fixture.gateway.enter(opening).await;
            let entered = entered.map(|mut entry| {
                entry.asked();
                entry
            });
            if let Ok(entry) = entered {
                entry.settle(Some(USAGE)).await;
                trace.answered(Answered { status: 200, ..Answered::default() });
                trace.ended(false);
                return true;
            }
            false
        };
        let dollar = Some(base::NanoUsd(1_000_000_000));
        let rates =
            crate::price::Rates { input: dollar, cached_input: dollar, output: dollar, ..Default::default() };
        let price = crate::price::Price { rates, ..Default::default() };
        assert!(
            ask("a", Some(price.clone())).await
                && ask("b", None).await
                && ask("c", Some(price.clone())).await
        );
        let found =
            Finding { by: Finder::Spend, action: crate::Action::Flag, names: vec!["tight".to_owned()] };
        let shown: Vec<_> = fixture.all().await.into_iter().map(|log| (log.id, log.findings)).collect();
        let expected = [("a", vec![found.clone()]), ("b", Vec::new()), ("c", vec![found])]
            .map(|(id, found)| (id.to_owned(), found));
        assert_eq!(shown, expected);
        assert_eq!(fixture.ids(&[("findings", "contains", &["tight"])]).await, "a c");
        assert_eq!(fixture.ids(&[("findings", "eq", &["null"])]).await, "b");
        let metrics = fixture.gateway.metrics();
        assert!(metrics.contains("hearth_gateway_shadow_refusals_total{limit=\"spend\"} 2\n"), "{metrics}");
        // What was spent is counted, so that the same limit holds at once when it is to.
        fixture.set(limits(vec![rule("tight", false, 0.000_001)])).await;
        fixture.clock.advance(Duration::from_secs(1));
        assert!(!ask("d", Some(price)).await);
    }
}
