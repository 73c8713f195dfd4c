//! Routes in the store, on both databases: names, versions, rates.

use super::*;
use crate::ledger::Opening;
use crate::price::{CustomCost, Price, Rates};
use crate::{Caller, Metadata, Usage};
use base::NanoUsd;
use tempfile::TempDir;

/// A gateway over a database of its own.
struct Home {
    gateway: Gateway,
    clock: Arc<Hand>,
    folder: TempDir,
    /// Runs as long as it is used.
    _server: Option<Arc<testdb::Server>>,
}

impl Home {
    async fn over(store: Store, folder: TempDir, server: Option<Arc<testdb::Server>>) -> Self {
        let clock = Hand::new();
        clock.advance(Duration::from_secs(60 - clock.unix_seconds() % 60));
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let gateway = Gateway::open(store, shared, Book::default()).await.unwrap();
        Self { gateway, clock, folder, _server: server }
    }
}

/// On both databases, or on one where there is no Postgres here.
async fn both(test: &str) -> Vec<Home> {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), &crate::PARTS).unwrap();
    let mut homes = vec![Home::over(store, folder, None).await];
    if let Some(server) = testdb::Server::shared(test) {
        let store = Store::connect(&server.database().parse().unwrap(), &crate::PARTS).unwrap();
        homes.push(Home::over(store, tempfile::tempdir().unwrap(), Some(server)).await);
    }
    homes
}

fn plain(model_id: &str) -> Value {
    json!([start(model_id), model(model_id, None), end()])
}

#[tokio::test]
async fn a_version_holds_when_it_is_deployed_and_not_before() {
    for Home { gateway, .. } in both("a_version_holds_when_it_is_deployed_and_not_befo").await {
        let route = gateway.create_route("default", "default", "fast", &plain("one")).await.unwrap();
        let holds = async || gateway.deployed("default", "default", "fast").await.unwrap().version.clone();
        assert_eq!(holds().await, route.version.id);
        let second = gateway.create_route_version(&route, &plain("two")).await.unwrap();
        assert!(!second.active);
        assert_eq!(holds().await, route.version.id);
        let route = gateway.deploy_route(&route, &second.id).await.unwrap();
        assert_eq!((holds().await, route.version.active), (second.id.clone(), true));
        assert_eq!(gateway.route_versions(&route).await.unwrap().len(), 2);
        assert_eq!(gateway.route_deployments(&route).await.unwrap()[0].version, second.id);
        // Another name is found at once, and the old one no more.
        gateway.rename_route("default", "default", "fast", "quick").await.unwrap();
        assert!(gateway.deployed("default", "default", "fast").await.is_err());
        assert_eq!(gateway.deployed("default", "default", "quick").await.unwrap().id, route.id);
        gateway.delete_route("default", "default", "quick").await.unwrap();
        let error = gateway.deployed("default", "default", "quick").await.unwrap_err();
        assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::ModelNotFound, Some("model")));
    }
}

#[tokio::test]
async fn names_are_taken_once_and_a_wrong_version_changes_nothing() {
    for Home { gateway, .. } in both("names_are_taken_once_and_a_wrong_version_changes").await {
        let create = async |name: &str, elements: &Value| {
            gateway.create_route("default", "default", name, elements).await.map_err(|error| error.param)
        };
        create("fast", &plain("one")).await.unwrap();
        assert_eq!(create("fast", &plain("one")).await, Err(Some("name".to_owned())));
        assert_eq!(create("a/b", &plain("one")).await, Err(Some("name".to_owned())));
        assert_eq!(create("slow", &json!([end()])).await, Err(Some("elements".to_owned())));
        assert_eq!(gateway.routes("default", "default").await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_rate_lets_so_many_pass_for_each_value_and_window() {
    for Home { gateway, clock, .. } in both("a_rate_lets_so_many_pass_for_each_value_and_wind").await {
        for (technique, expected) in [
            ("fixed", [true, true, false, true, true, true]),
            ("sliding", [true, true, false, true, false, true]),
        ] {
            let properties =
                json!({"key": "metadata.user", "limit": 2, "window": 60, "technique": technique});
            let graph =
                Graph::parse(&json!([start("r"), rate("r", properties, "end", None), end()])).unwrap();
            let Element::Rate(rate) = &graph.elements["r"] else { panic!("a rate") };
            let facts = |user: &str| {
                let metadata = json!({"user": user}).as_object().unwrap().clone();
                Facts { metadata, ..Facts::default() }
            };
            let passes = async |user: &str, counts| {
                gateway.pass_rate(technique, "r", rate, &facts(user), counts).await.unwrap().passes
            };
            let mut found = vec![passes("a", true).await, passes("a", true).await, passes("a", true).await];
            found.push(passes("b", true).await);
            // A look changes nothing.
            assert!(!passes("a", false).await && passes("b", false).await && passes("c", false).await);
            // The next window, a second after it began; and one after which nothing of the first is left.
            clock.advance(Duration::from_secs(61));
            found.push(passes("a", true).await);
            clock.advance(Duration::from_secs(119));
            found.push(passes("a", true).await);
            assert_eq!(found, expected, "{technique}");
            let rest = 60 - clock.unix_seconds() % 60;
            clock.advance(Duration::from_secs(rest));
        }
    }
}

#[tokio::test]
async fn an_explanation_says_which_edges_and_why_and_counts_nothing() {
    for Home { gateway, .. } in both("an_explanation_says_which_edges_and_why_and_coun").await {
        let properties = json!({"key": "metadata.a", "limit": 1, "window": 60});
        let elements = json!([
            start("c"),
            conditional("c", "r", "cheap"),
            rate("r", properties, "dear", Some("cheap")),
            model("dear", Some("cheap")),
            model("cheap", None),
            end(),
        ]);
        let route = gateway.create_route("default", "default", "r", &elements).await.unwrap();
        let metadata =
            |a: i64| Facts { metadata: json!({"a": a}).as_object().unwrap().clone(), ..Facts::default() };
        let explain = async |a: i64, failing: &[&str]| {
            let failing: Vec<String> = failing.iter().map(|id| (*id).to_owned()).collect();
            gateway.explain_route(&route, &route.version, &metadata(a), &failing).await.unwrap()
        };
        for _ in 0..3 {
            let said = explain(5, &[]).await;
            assert_eq!((&said["outcome"], &said["model"]), (&"answered".into(), &"dear".into()), "{said}");
        }
        let said = explain(5, &["dear"]).await;
        assert_eq!(
            (&said["model"], &said["asked"]),
            (&"cheap".into(), &json!(["openai/dear", "openai/cheap"]))
        );
        assert_eq!(explain(5, &["dear", "cheap"]).await["outcome"], "failed");
        let said = explain(1, &[]).await;
        let edges: Vec<_> =
            said["path"].as_array().unwrap().iter().map(|taken| taken["edge"].clone()).collect();
        assert_eq!(edges, [json!("next"), json!("false"), json!("success"), json!(null)]);
        assert_eq!(said["path"][1]["why"], "the condition does not hold: metadata.a is 1");
    }
}

#[tokio::test]
async fn names_that_no_route_can_have_are_not_remembered() {
    for Home { gateway, .. } in both("names_that_no_route_can_have_are_not_remembered").await {
        for name in ["", "a/b", &"x".repeat(100_000)] {
            let error = gateway.deployed("default", "default", name).await.unwrap_err();
            assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::ModelNotFound, Some("model")));
        }
        assert!(gateway.ready().0.lock().unwrap().1.is_empty());
    }
}

#[tokio::test]
async fn what_a_rate_counts_by_is_not_kept_as_it_was_said() {
    for Home { gateway, .. } in both("what_a_rate_counts_by_is_not_kept_as_it_was_said").await {
        let properties = json!({"key": "metadata.user", "limit": 2, "window": 60});
        let graph = Graph::parse(&json!([start("r"), rate("r", properties, "end", None), end()])).unwrap();
        let Element::Rate(rate) = &graph.elements["r"] else { panic!("a rate") };
        let metadata = json!({"user": "somebody".repeat(1000)}).as_object().unwrap().clone();
        let facts = Facts { metadata, ..Facts::default() };
        let passed = gateway.pass_rate("route", "r", rate, &facts, true).await.unwrap();
        assert!(passed.passes && passed.after <= Duration::from_secs(60));
        let read = |work: &Work<'_>| work.query("SELECT value FROM gateway_route_counts", &[]);
        let rows = gateway.store().read(read).await.unwrap();
        assert_eq!(rows[0].text(0).unwrap().len(), 64);
    }
}

#[tokio::test]
async fn a_gateway_that_is_deleted_takes_its_routes_with_it() {
    for Home { gateway, .. } in both("a_gateway_that_is_deleted_takes_its_routes_with_").await {
        let elements = json!([
            start("r"),
            rate("r", json!({"key": "account", "limit": 2, "window": 60}), "one", None),
            model("one", None),
            end(),
        ]);
        gateway.create_gateway("default", "other", &serde_json::Map::new()).await.unwrap();
        for place in ["default", "other"] {
            let route = gateway.create_route("default", place, "fast", &elements).await.unwrap();
            let deployed = gateway.deployed("default", place, "fast").await.unwrap();
            let Element::Rate(rate) = &deployed.graph.elements["r"] else { panic!("a rate") };
            gateway.pass_rate(&route.id, "r", rate, &Facts::default(), true).await.unwrap();
        }
        gateway.delete_gateway("default", "other").await.unwrap();
        for table in
            ["gateway_routes", "gateway_route_versions", "gateway_route_deployments", "gateway_route_counts"]
        {
            let read = move |work: &Work<'_>| work.query(&format!("SELECT count(*) FROM {table}"), &[]);
            let rows = gateway.store().read(read).await.unwrap();
            assert_eq!(rows[0].integer(0).unwrap(), 1, "{table}");
        }
        gateway.create_gateway("default", "other", &serde_json::Map::new()).await.unwrap();
        assert!(gateway.deployed("default", "other", "fast").await.is_err());
    }
}

/// What the caller says that a request costs neither counts nor passes: else nobody would reach the limit, or anybody
/// could use up another's. Spend limits refuse such requests, too.
#[tokio::test]
async fn a_rate_by_cost_counts_what_requests_cost_and_lets_none_pass_that_names_its_own() {
    for Home { gateway, clock, folder, .. } in both("a_rate_by_cost_counts").await {
        gateway.ledger().start(&folder.path().join("processes")).await.unwrap();
        let dollar = Some(NanoUsd(1_000_000_000));
        let price =
            Price { rates: Rates { input: dollar, output: dollar, ..Rates::default() }, ..Price::default() };
        let number = std::cell::Cell::new(0);
        // Costs 15 tokens at a millionth of a dollar.
        let spend = async |team: &str, custom_cost: Option<CustomCost>| {
            number.set(number.get() + 1);
            let metadata = Metadata::parse(&json!({"team": team}).to_string());
            let mut entry = gateway
                .enter(Opening {
                    request: format!("r{}", number.get()),
                    caller: Caller { metadata, custom_cost, ..Caller::default() },
                    provider: "openai".to_owned(),
                    model: "m".to_owned(),
                    price: Some(price.clone()),
                    most: Some((100, 100)),
                })
                .await
                .unwrap();
            entry.asked();
            entry.settle(Some(Usage { input: 10, output: 5, ..Usage::default() })).await;
        };
        let dear = || CustomCost::parse(r#"{"total_cost":5}"#).unwrap();
        for technique in ["fixed", "sliding"] {
            let properties = json!({
                "key": "metadata.team", "limit": 0.000_02, "limitType": "cost", "window": 3600, "technique": technique,
            });
            let graph =
                Graph::parse(&json!([start("r"), rate("r", properties, "end", None), end()])).unwrap();
            let Element::Rate(rate) = &graph.elements["r"] else { panic!("a rate") };
            let passes = async |team: &str, custom_cost: Option<CustomCost>| {
                let metadata = Metadata::parse(&json!({"team": team}).to_string());
                let facts = Facts::of(&Caller { metadata, custom_cost, ..Caller::default() });
                gateway.pass_rate("route", "r", rate, &facts, true).await.unwrap().passes
            };
            let (one, other) = (format!("{technique} a"), format!("{technique} b"));
            spend(&one, Some(dear())).await;
            assert!(passes(&one, None).await && !passes(&one, Some(dear())).await, "{technique}");
            spend(&one, None).await;
            assert!(passes(&one, None).await, "{technique}: 15 of 20 millionths");
            spend(&one, None).await;
            assert!(!passes(&one, None).await && passes(&other, None).await, "{technique}");
            clock.advance(Duration::from_secs(7200));
            assert!(passes(&one, None).await, "{technique}: the window is over");
        }
    }
}
