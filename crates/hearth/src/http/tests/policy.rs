//! What gateways' settings ask for around the handlers: limits, the cache, guardrails, zero retention, money.

use super::metering::Fixture;
use super::*;
use gateway::policy::guard::Verdict;
use gateway::{DEFAULT, Limits};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

async fn set(fixture: &Fixture, fields: Value) {
    let Value::Object(fields) = fields else { unreachable!() };
    fixture.gateway.update_gateway(DEFAULT, DEFAULT, &fields).await.unwrap();
}

async fn ask(fixture: &Fixture, path: &str, headers: &[&str], body: &str) -> Reply {
    fixture.server.send("POST", path, headers, body.as_bytes()).await
}

fn status(reply: &Reply) -> Option<&str> {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.header("cf-aig-cache-status")
}

fn asked(fixture: &Fixture) -> usize {
    fixture.server.fake.requests.lock().unwrap().len()
}

#[tokio::test]
async fn a_server_that_is_told_nothing_caches_and_limits_nothing() {
    let fixture = Fixture::start(Config::default()).await;
    for _ in 0..2 {
        assert_eq!(status(&ask(&fixture, CHAT, &[], &chat("a", "")).await), None);
    }
    assert_eq!(asked(&fixture), 2);
}

#[tokio::test]
async fn an_answer_is_given_again_on_every_surface_streamed_or_whole() {
    let fixture = Fixture::start(Config::default()).await;
    set(&fixture, json!({"cache_ttl": 60})).await;
    let messages = r#"{"model":"echo","max_tokens":100,"messages":[{"role":"user","content":"one two"}]"#;
    for (path, body) in [
        (CHAT, chat("one two", "")),
        ("/v1/completions", r#"{"model":"echo","prompt":"one two"}"#.to_owned()),
        ("/v1/messages", format!("{messages}}}")),
        ("/v1/responses", r#"{"model":"echo","input":"one two"}"#.to_owned()),
        ("/client/v4/accounts/default/ai/run/echo", r#"{"prompt":"one two"}"#.to_owned()),
        ("/v1/embeddings", r#"{"model":"vectors","input":"a"}"#.to_owned()),
        ("/v1/rerank", r#"{"model":"ranker","query":"q","documents":["a"]}"#.to_owned()),
    ] {
        for stream in [false, true] {
            if stream && (path.contains("embed") || path.contains("rerank")) {
                continue;
            }
            let body = body.replacen('{', &format!("{{\"stream\":{stream},"), 1);
            let body = if path.contains("embed") || path.contains("rerank") {
                body.replace("\"stream\":false,", "")
            } else {
                body
            };
            let first = ask(&fixture, path, &[], &body).await;
            assert_eq!(status(&first), Some("MISS"), "{path} {stream}");
            let before = asked(&fixture);
            let again = ask(&fixture, path, &[], &body).await;
            assert_eq!(status(&again), Some("HIT"), "{path} {stream}");
            assert_eq!((asked(&fixture), &again.body), (before, &first.body), "{path} {stream}");
            assert_eq!(again.header("content-type"), first.header("content-type"));
            assert_ne!(again.header("cf-aig-log-id"), None);
        }
    }
}

#[tokio::test]
async fn what_is_not_the_same_is_not_given_again() {
    let fixture = Fixture::start(Config { api_key: Some("root".to_owned()), ..Config::default() }).await;
    fixture.gateway.create_account("acme", "Acme").await.unwrap();
    set(&fixture, json!({"cache_ttl": 60})).await;
    let fields = serde_json::Map::from_iter([("cache_ttl".to_owned(), json!(60))]);
    fixture.gateway.update_gateway("acme", DEFAULT, &fields).await.unwrap();
    let (_, ours) = fixture.key(DEFAULT, "inference", Limits::default()).await;
    let (_, theirs) = fixture.key("acme", "inference", Limits::default()).await;
    let bearer = |key: &gateway::Secret| format!("cf-aig-authorization: Bearer {}", key.0);
    let (ours, theirs) = (bearer(&ours), bearer(&theirs));
    let body = chat("a", "");
    assert_eq!(status(&ask(&fixture, CHAT, &[&ours], &body).await), Some("MISS"));
    for (headers, body) in [
        (vec![&*theirs], body.clone()),
        (vec![&*ours, "authorization: Bearer of-a-provider"], body.clone()),
        (vec![&*ours], chat("a", r#","stream":true"#)),
        // One more byte, which means nothing.
        (vec![&*ours], body.replacen('{', "{ ", 1)),
    ] {
        assert_eq!(status(&ask(&fixture, CHAT, &headers, &body).await), Some("MISS"), "{headers:?}");
    }
    assert_eq!(status(&ask(&fixture, CHAT, &[&ours], &body).await), Some("HIT"));
    // Another key of the account has the same cache.
    let (_, second) = fixture.key(DEFAULT, "inference", Limits::default()).await;
    assert_eq!(status(&ask(&fixture, CHAT, &[&bearer(&second)], &body).await), Some("HIT"));
    // A change of the gateway empties it.
    set(&fixture, json!({"collect_logs": false})).await;
    assert_eq!(status(&ask(&fixture, CHAT, &[&ours], &body).await), Some("MISS"));
}

#[tokio::test]
async fn headers_say_how_long_and_whether_and_by_which_key() {
    let fixture = Fixture::start(Config::default()).await;
    let get = async |headers: &[&str], prompt: &str| {
        let reply = ask(&fixture, CHAT, headers, &chat(prompt, "")).await;
        status(&reply).map(str::to_owned)
    };
    let [hit, miss] = ["HIT", "MISS"].map(|word| Some(word.to_owned()));
    for ttl in ["cf-aig-cache-ttl: 60", "cf-cache-ttl: 60"] {
        assert_eq!(get(&[ttl], ttl).await, miss);
        assert_eq!(get(&[ttl], ttl).await, hit);
        for skip in [
            "cf-aig-skip-cache: true",
            "cf-skip-cache: true",
            "cache-control: no-store",
            "cf-aig-cache-ttl: 0",
        ] {
            assert_eq!(get(&[skip, ttl], ttl).await, None, "{skip}");
        }
        assert_eq!(get(&[], ttl).await, None);
    }
    // The key stands for the body, and is enough to keep an answer for five minutes.
    let key = "cf-aig-cache-key: mine";
    assert_eq!(get(&[key], "a").await, miss);
    assert_eq!(get(&[key], "b").await, hit);
    assert_eq!(get(&["cf-aig-cache-key: other"], "b").await, miss);
    // A stream is no whole answer.
    let streamed = ask(&fixture, CHAT, &[key], &chat("a", r#","stream":true"#)).await;
    assert_eq!(status(&streamed), Some("MISS"));
    for wrong in ["cf-aig-cache-ttl: 59", "cf-aig-cache-ttl: soon", "cf-aig-cache-ttl: 2678401"] {
        assert_eq!(ask(&fixture, CHAT, &[wrong], &chat("a", "")).await.status, 400, "{wrong}");
    }
    let kept = r#"{"model":"echo","input":"x","store":false}"#;
    for _ in 0..2 {
        assert_eq!(status(&ask(&fixture, "/v1/responses", &["cf-aig-cache-ttl: 60"], kept).await), None);
    }
}

#[tokio::test]
async fn what_failed_or_broke_off_or_lost_its_client_is_not_kept() {
    let fixture = Fixture::start(Config::default()).await;
    set(&fixture, json!({"cache_ttl": 60})).await;
    for (prompt, stream) in
        [("full", ""), ("fail later", ""), ("fail later", r#","stream":true"#), ("cut", r#","stream":true"#)]
    {
        for _ in 0..2 {
            let reply = ask(&fixture, CHAT, &[], &chat(prompt, stream)).await;
            assert_ne!(reply.header("cf-aig-cache-status"), Some("HIT"), "{prompt}");
        }
    }
    let mut wire = fixture.server.connect().await;
    wire.request("POST", CHAT, &[], chat("hang", r#","stream":true"#).as_bytes()).await;
    assert_eq!(wire.head().await.0, 200);
    while !wire.chunk().await.contains("one") {}
    drop(wire);
    fixture.server.fake.drop_seen.notified().await;
    let mut wire = fixture.server.connect().await;
    wire.request("POST", CHAT, &[], chat("hang", r#","stream":true"#).as_bytes()).await;
    let (_, headers) = wire.head().await;
    assert!(headers.contains(&("cf-aig-cache-status".to_owned(), "MISS".to_owned())));
}

#[tokio::test]
async fn a_hit_costs_nothing_and_says_what_it_saved() {
    let fixture = Fixture::start(Config::default()).await;
    set(&fixture, json!({"cache_ttl": 60})).await;
    let cost = r#"cf-aig-custom-cost: {"total_cost":0.25}"#;
    for expected in ["MISS", "HIT", "HIT"] {
        assert_eq!(status(&ask(&fixture, CHAT, &[cost], &chat("a", "")).await), Some(expected));
    }
    let line = loop {
        let line = fixture.gateway.usage(Default::default()).await.unwrap().remove(0);
        if line.requests == 3 && line.open == 0 {
            break line;
        }
        tokio::task::yield_now().await;
    };
    let quarter = 250_000_000;
    assert_eq!(
        (line.cost, line.saved, line.unpriced),
        (base::NanoUsd(quarter), base::NanoUsd(2 * quarter), 0)
    );
}

#[tokio::test]
async fn a_gateway_and_a_key_are_held_to_their_limits_and_told_them() {
    let fixture = Fixture::start(Config::default()).await;
    set(&fixture, json!({"rate_limiting_interval": 3600, "rate_limiting_limit": 2})).await;
    for _ in 0..2 {
        status(&ask(&fixture, CHAT, &[], &chat("a", "")).await);
    }
    let refused = ask(&fixture, CHAT, &[], &chat("a", "")).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert_eq!(refused.header("x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), Some("0"));
    assert!(
        refused.header("retry-after").is_some() && refused.header("x-ratelimit-reset-requests").is_some()
    );
    let refused = ask(&fixture, "/client/v4/accounts/default/ai/run/echo", &[], r#"{"prompt":"a"}"#).await;
    assert_eq!((refused.status, &refused.json()["errors"][0]["code"]), (429, &json!(3040)));
    assert_eq!(fixture.server.get("/v1/models").await.status, 200, "only models are limited");
    set(&fixture, json!({"rate_limiting_limit": 0})).await;
    status(&ask(&fixture, CHAT, &[], &chat("a", "")).await);

    let limits = Limits { tokens_per_minute: Some(3), ..Limits::default() };
    let (_, secret) = fixture.key(DEFAULT, "inference", limits).await;
    let key = format!("authorization: Bearer {}", secret.0);
    // Two minutes' worth where the minute ends in between.
    let refused = loop {
        let reply = ask(&fixture, CHAT, &[&key], &chat("one two three", "")).await;
        if reply.status != 200 {
            break reply;
        }
    };
    assert_eq!((refused.status, refused.header("x-ratelimit-limit-tokens")), (429, Some("3")));
}

#[tokio::test]
async fn credit_and_spend_limits_refuse_in_the_words_of_each_dialect() {
    let fixture = Fixture::start(Config::default()).await;
    fixture.gateway.credit(DEFAULT, base::NanoUsd(1), "").await.unwrap();
    // A model without a price could spend without end.
    let unknown = ask(&fixture, CHAT, &[], &chat("a", "")).await;
    assert_eq!(unknown.status, 403, "{unknown:?}");
    let billing = "/client/v4/accounts/default/ai-gateway/billing";
    let balance = fixture.server.get(&format!("{billing}/credit-balance")).await.json();
    assert_eq!(
        (&balance["result"]["balance_nano_usd"], &balance["result"]["enabled"]),
        (&json!(1), &json!(true))
    );
    let added =
        fixture.server.post(&format!("{billing}/topup"), r#"{"amount":1000,"note":"paid"}"#).await.json();
    assert_eq!(added["result"]["balance_nano_usd"], json!(10_000_000_001_i64));
    assert!(added["result"]["payment_intent_id"].is_string());
    assert_eq!(fixture.server.post(&format!("{billing}/topup"), r#"{"amount":-1}"#).await.status, 400);
}

#[tokio::test]
async fn billing_routes_keep_a_limit_and_tell_what_was_spent() {
    let fixture = Fixture::start(Config::default()).await;
    let cost = r#"cf-aig-custom-cost: {"total_cost":0.25}"#;
    status(&ask(&fixture, CHAT, &[cost], &chat("a", "")).await);
    let billing = "/client/v4/accounts/default/ai-gateway/billing";
    let history = fixture
        .server
        .get(&format!("{billing}/usage-history?value_grouping_window=hour&start_time=1000"))
        .await;
    let hours = &history.json()["result"]["history"];
    assert_eq!((hours.as_array().unwrap().len(), &hours[0]["aggregated_value"]), (1, &json!(25.0)));
    assert_eq!(fixture.server.get(&format!("{billing}/usage-history")).await.status, 400);
    let limit = format!("{billing}/spending-limit");
    assert_eq!(fixture.server.get(&limit).await.json()["result"], json!({"enabled": false, "config": {}}));
    let wish = r#"{"amount":500,"duration":"daily","strategy":"fixed"}"#;
    let set = fixture.server.post(&limit, wish).await.json();
    let config = json!({"amount": 500.0, "duration": "daily", "strategy": "fixed"});
    assert_eq!(set["result"], json!({"enabled": true, "config": config}));
    assert_eq!(
        fixture.server.post(&limit, r#"{"amount":1,"duration":"yearly","strategy":"fixed"}"#).await.status,
        400
    );
    let removed = fixture.server.send("DELETE", &limit, &[], b"").await.json();
    assert_eq!(removed["result"]["enabled"], false);
}

#[tokio::test]
async fn invoices_are_sums_of_the_ledger_and_no_card_is_ever_asked_for() {
    let fixture = Fixture::start(Config::default()).await;
    let cost = r#"cf-aig-custom-cost: {"total_cost":0.25}"#;
    status(&ask(&fixture, CHAT, &[cost], &chat("a", "")).await);
    let billing = "/client/v4/accounts/default/ai-gateway/billing";
    let get =
        async |path: &str| fixture.server.get(&format!("{billing}/{path}")).await.json()["result"].clone();
    let post = async |path: &str, body: &str| fixture.server.post(&format!("{billing}/{path}"), body).await;
    let preview = get("invoice-preview").await;
    assert_eq!((&preview["status"], &preview["amount_due"]), (&json!("draft"), &json!(25.0)));
    let line = &preview["invoice_lines"][0];
    assert_eq!((&line["description"], &line["quantity"]), (&json!("local/echo"), &json!(1)));
    let none = get("invoice-history").await;
    assert_eq!((&none["invoices"], &none["pagination"]["has_more"]), (&json!([]), &json!(false)));
    let paid = post("topup", r#"{"amount":1000,"note":"invoice 7"}"#).await.json()["result"].clone();
    let manual = get("invoice-history?type=manual").await["invoices"][0].clone();
    assert_eq!((&manual["id"], &manual["amount_paid"]), (&paid["payment_intent_id"], &json!(1000.0)));
    let id = json!({"payment_intent_id": paid["payment_intent_id"]}).to_string();
    assert_eq!(post("topup/status", &id).await.json()["result"]["status"], "completed");
    assert_eq!(post("topup/status", r#"{"payment_intent_id":"pi_1"}"#).await.status, 404);
    assert_eq!(get("topup/config").await, json!({}));
    for (path, body) in [
        ("topup/config", r#"{"amount":1000,"threshold":500}"#),
        ("topup", r#"{"amount":1000,"payment_method_id":"pm_1"}"#),
    ] {
        let refused = post(path, body).await;
        assert!(refused.status == 400 && refused.body.contains("card"), "{path} {refused:?}");
    }
    assert_eq!(fixture.server.get(&format!("{billing}/invoice-history?type=x")).await.status, 400);
}

#[tokio::test]
async fn an_accounts_own_manager_cannot_give_it_credit() {
    let fixture = Fixture::start(Config { api_key: Some("root".to_owned()), ..Config::default() }).await;
    let (_, manager) = fixture.key(DEFAULT, "admin", Limits::default()).await;
    let path = "/client/v4/accounts/default/ai-gateway/billing/topup";
    let body = r#"{"amount":1000}"#;
    assert_eq!(
        ask(&fixture, path, &[&format!("authorization: Bearer {}", manager.0)], body).await.status,
        403
    );
    assert_eq!(ask(&fixture, path, &["authorization: Bearer root"], body).await.status, 200);
}

#[tokio::test]
async fn a_guardrail_blocks_what_its_judge_calls_unsafe_and_fails_closed() {
    // The fake answers with the prompt's words, so the words are their own verdict.
    let fixture = Fixture::start(Config { judge: Some("echo".to_owned()), ..Config::default() }).await;
    assert!(Verdict::of_model("safe").is_some());
    set(&fixture, json!({"guardrails": {"prompt": {"S1": "BLOCK", "S2": "FLAG"}, "response": {}}})).await;
    status(&ask(&fixture, CHAT, &[], &chat("safe", "")).await);
    status(&ask(&fixture, CHAT, &[], &chat("unsafe\\nS2", "")).await);
    let blocked = ask(&fixture, CHAT, &[], &chat("unsafe\\nS1", "")).await;
    assert_eq!((blocked.status, &blocked.json()["error"]["code"]), (400, &json!("content_filter")));
    let run = "/client/v4/accounts/default/ai/run/echo";
    let blocked = ask(&fixture, run, &[], r#"{"prompt":"unsafe\nS1"}"#).await;
    assert_eq!(blocked.json()["errors"][0]["code"], 2016, "{blocked:?}");
    let message = blocked.json()["errors"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("Prompt blocked due to security configurations"), "{message}");
    // Neither safe nor unsafe.
    assert_eq!(ask(&fixture, CHAT, &[], &chat("who knows", "")).await.status, 400);
    set(&fixture, json!({"guardrails": {"prompt": {"S1": "FLAG"}, "response": {}}})).await;
    status(&ask(&fixture, CHAT, &[], &chat("who knows", "")).await);
    set(&fixture, json!({"guardrails": {"prompt": {}, "response": {"S1": "BLOCK"}, "judge": "nobody"}}))
        .await;
    let blocked = ask(&fixture, run, &[], r#"{"prompt":"safe"}"#).await;
    assert_eq!(blocked.json()["errors"][0]["code"], 2017, "{blocked:?}");
}

#[tokio::test]
async fn an_answer_is_held_back_until_it_is_judged_and_a_blocked_one_is_not_kept() {
    let webhook = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = webhook.local_addr().unwrap();
    let told = tokio::spawn(async move {
        let mut told = Vec::new();
        for verdict in [r#"{"verdict":"safe"}"#, r#"{"verdict":"unsafe","categories":["S4"]}"#] {
            let (stream, _) = webhook.accept().await.unwrap();
            let mut wire = Wire(BufReader::new(stream));
            wire.line().await;
            let mut length = 0;
            loop {
                let line = wire.line().await.to_lowercase();
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            wire.0.read_exact(&mut body).await.unwrap();
            told.push(serde_json::from_slice::<Value>(&body).unwrap());
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", verdict.len());
            wire.write(&[head.as_bytes(), verdict.as_bytes()].concat()).await;
        }
        told
    });
    let providers = gateway::provider::Providers::new(Default::default()).unwrap();
    let upstream = gateway::upstream::Upstream::new().unwrap();
    let proxy = gateway::call::Proxy::new(providers, upstream, Arc::new(base::SystemClock::default()));
    let config = Config {
        judge: Some(format!("http://{address}/judge")),
        proxy: Some(Arc::new(proxy)),
        ..Config::default()
    };
    let fixture = Fixture::start(config).await;
    set(&fixture, json!({"cache_ttl": 60, "guardrails": {"prompt": {}, "response": {"S4": "BLOCK"}}})).await;
    let streamed = ask(&fixture, CHAT, &[], &chat("one two", r#","stream":true"#)).await;
    assert_eq!(status(&streamed), Some("MISS"));
    assert_eq!(streamed.events().last(), Some(&"[DONE]"));
    let blocked = ask(&fixture, CHAT, &[], &chat("three", "")).await;
    assert_eq!((blocked.status, blocked.json()["error"]["code"].clone()), (400, json!("content_filter")));
    let told = told.await.unwrap();
    assert_eq!(told[0]["texts"], json!(["one two", "one two"]));
    let said = |role: &str| json!({"role": role, "content": "one two"});
    assert_eq!(told[0]["messages"], json!([said("user"), said("assistant")]), "who said what");
    assert_eq!((&told[1]["kind"], &told[1]["categories"]), (&json!("response"), &json!(["S4"])));
    // The first is given again and not judged anew; the second was not kept, and now nobody judges it.
    assert_eq!(status(&ask(&fixture, CHAT, &[], &chat("one two", r#","stream":true"#)).await), Some("HIT"));
    assert_eq!(ask(&fixture, CHAT, &[], &chat("three", "")).await.status, 400);
}

#[tokio::test]
async fn a_request_that_nobody_may_keep_is_neither_cached_nor_kept_nor_sent_to_who_might_keep_it() {
    let upstream = Server::start().await;
    let wish = |slug: &str, zero_retention| {
        let base_url = Some(format!("http://{}/v1", upstream.address));
        (slug.to_owned(), gateway::provider::Wishes { base_url, zero_retention, ..Default::default() })
    };
    let wishes =
        [wish("openai", false), wish("custom-bound", true), wish("custom-other", false), wish("vllm", false)];
    let mut wishes: std::collections::BTreeMap<_, _> = wishes.into();
    let key = gateway::provider::ProviderKey { secret: "k".to_owned(), weight: 1 };
    wishes.get_mut("openai").unwrap().keys = vec![key];
    let providers = gateway::provider::Providers::new(wishes).unwrap();
    let clock = Arc::new(base::SystemClock::default());
    let proxy = gateway::call::Proxy::new(providers, gateway::upstream::Upstream::new().unwrap(), clock);
    let fixture = Fixture::start(Config { proxy: Some(Arc::new(proxy)), ..Config::default() }).await;
    set(&fixture, json!({"cache_ttl": 60})).await;
    let zdr = "cf-aig-zdr: true";
    for _ in 0..2 {
        assert_eq!(status(&ask(&fixture, CHAT, &[zdr], &chat("a", "")).await), None);
    }
    for (slug, expected) in [("openai", 403), ("custom-other", 403), ("custom-bound", 200), ("vllm", 200)] {
        let body = chat("a", "").replace("\"echo\"", &format!("\"{slug}/echo\""));
        let reply = ask(&fixture, CHAT, &[zdr], &body).await;
        assert_eq!(reply.status, expected, "{slug}: {reply:?}");
        assert!(expected == 200 || reply.body.contains(slug), "{reply:?}");
        assert_eq!(ask(&fixture, CHAT, &[], &body).await.status, 200, "{slug}");
    }
    set(&fixture, json!({"zdr": true})).await;
    let reply = ask(&fixture, "/v1/responses", &[], r#"{"model":"echo","input":"x"}"#).await;
    assert_eq!((status(&reply), &reply.json()["store"]), (None, &json!(false)));
    let id = reply.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(fixture.server.get(&format!("/v1/responses/{id}")).await.status, 404);
}

#[tokio::test]
async fn a_header_that_says_neither_yes_nor_no_or_no_metadata_is_refused_by_name_and_nobody_is_asked() {
    let fixture = Fixture::start(Config::default()).await;
    for (name, values) in [
        ("cf-aig-zdr", &["yes", "ture", "2"][..]),
        ("cf-aig-collect-log", &["no"]),
        ("cf-aig-collect-log-payload", &["off"]),
        ("cf-aig-skip-cache", &["always"]),
        ("cf-aig-no-wholesale", &["yes"]),
        ("cf-aig-resumable", &["on"]),
        ("cf-aig-request-timeout-strict", &["maybe"]),
        ("cf-aig-metadata", &["x", "[]", "1", "{", "null"]),
    ] {
        for value in values {
            let reply = ask(&fixture, CHAT, &[&format!("{name}: {value}")], &chat("a", "")).await;
            assert_eq!(reply.status, 400, "{name}: {value}");
            assert!(reply.json()["error"]["message"].as_str().unwrap().contains(name), "{reply:?}");
            // An entry of a list is held to the same.
            let query = chat("a", "");
            let entry = json!({"provider": "workers-ai", "endpoint": "v1/chat/completions",
                "headers": {name: value}, "query": serde_json::from_str::<Value>(&query).unwrap()});
            let reply = ask(&fixture, "/v1/default/default", &[], &entry.to_string()).await;
            assert_eq!(reply.status, 400, "an entry's {name}: {value}");
        }
    }
    assert_eq!(asked(&fixture), 0);
    for value in ["1", "TRUE", "0", "False"] {
        let reply = ask(&fixture, CHAT, &[&format!("cf-aig-zdr: {value}")], &chat("a", "")).await;
        assert_eq!(reply.status, 200, "{value}");
    }
}

#[tokio::test]
async fn a_webhook_that_fails_blocks_without_telling_the_caller_where_it_is() {
    let clock = Arc::new(base::SystemClock::default());
    let providers = gateway::provider::Providers::new(Default::default()).unwrap();
    let proxy = gateway::call::Proxy::new(providers, gateway::upstream::Upstream::new().unwrap(), clock);
    let (judge, proxy) = (Some("http://127.0.0.1:1/hidden".to_owned()), Some(Arc::new(proxy)));
    let fixture = Fixture::start(Config { judge, proxy, ..Config::default() }).await;
    set(&fixture, json!({"guardrails": {"prompt": {"S1": "BLOCK"}}})).await;
    let reply = ask(&fixture, CHAT, &[], &chat("a", "")).await;
    assert!(reply.status >= 400 && reply.body.contains("the webhook failed"), "{reply:?}");
    assert!(!reply.body.contains("hidden") && !reply.body.contains("127.0.0.1"), "{reply:?}");
}
