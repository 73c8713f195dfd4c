//! Data that may not pass, asked and answered, streamed and whole, on every surface. The fake answers with the prompt's
//! words.

use super::metering::Fixture;
use super::*;
use gateway::log::{Query, Record};
use gateway::{Action, DEFAULT};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";
const RUN: &str = "/client/v4/accounts/default/ai/run/echo";
const MAIL: &str = "write to ada@example.com";

async fn set(fixture: &Fixture, fields: Value) {
    fixture.gateway.update_gateway(DEFAULT, DEFAULT, fields.as_object().unwrap()).await.unwrap();
}

fn policy(action: &str, check: &[&str]) -> Value {
    json!({"dlp": {"enabled": true, "policies": [{"id": "p", "enabled": true, "action": action, "check": check,
        "profiles": ["contact"]}]}})
}

fn found(reply: &Reply) -> Value {
    reply.header("cf-aig-dlp").map_or(Value::Null, |found| serde_json::from_str(found).unwrap())
}

fn asked(fixture: &Fixture) -> usize {
    fixture.server.fake.requests.lock().unwrap().len()
}

/// The newest log, when there are so many.
async fn log(fixture: &Fixture, count: usize) -> Record {
    loop {
        let mut found = fixture.gateway.list_logs(&Query::new(DEFAULT, DEFAULT), 0, 100).await.unwrap();
        if found.len() == count {
            return found.remove(0);
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_request_with_data_that_is_blocked_reaches_nobody_and_is_refused_in_each_dialect() {
    let fixture = Fixture::start(Config::default()).await;
    set(&fixture, policy("BLOCK", &["REQUEST"])).await;
    let messages = json!({"model": "echo", "max_tokens": 9, "messages": [{"role": "user", "content": MAIL}]})
        .to_string();
    for (path, body, pointer, code) in [
        (CHAT, chat(MAIL, ""), "/error/code", json!("content_filter")),
        (CHAT, chat(MAIL, r#","stream":true"#), "/error/code", json!("content_filter")),
        (RUN, json!({"prompt": MAIL}).to_string(), "/errors/0/code", json!(2029)),
        ("/v1/messages", messages, "/error/type", json!("invalid_request_error")),
        ("/v1/default/default/compat/chat/completions", chat(MAIL, ""), "/error/0/code", json!(2029)),
    ] {
        let refused = fixture.server.post(path, body).await;
        assert_eq!(
            (refused.status, refused.json().pointer(pointer)),
            (400, Some(&code)),
            "{path} {refused:?}"
        );
        assert!(refused.body.contains("email") && !refused.body.contains("ada"), "{refused:?}");
        let found = found(&refused);
        assert_eq!(
            (&found["action"], &found["findings"][0]),
            (
                &json!("BLOCK"),
                &json!({"profile": {"context": {}, "entry_ids": ["email"], "profile_id": "contact"},
                    "policy_ids": ["p"], "check": "REQUEST"})
            )
        );
    }
    assert_eq!(asked(&fixture), 0);
    let log = log(&fixture, 5).await;
    assert_eq!((log.dlp_action, log.status), (Some(Action::Block), 400));
    let passed = fixture.server.post(CHAT, chat("write to nobody", "")).await;
    assert_eq!((passed.status, found(&passed)), (200, Value::Null));
}

#[tokio::test]
async fn an_answer_with_data_that_is_blocked_does_not_go_out_streamed_or_whole_nor_from_the_cache() {
    let fixture = Fixture::start(Config::default()).await;
    set(&fixture, json!({"cache_ttl": 60, "cache_invalidate_on_update": false})).await;
    let stream = chat(MAIL, r#","stream":true"#);
    assert_eq!(fixture.server.post(CHAT, stream.clone()).await.status, 200);
    set(&fixture, policy("BLOCK", &["RESPONSE"])).await;
    for (path, body, pointer, code) in [
        (CHAT, stream, "/error/code", json!("content_filter")),
        (CHAT, chat(MAIL, ""), "/error/code", json!("content_filter")),
        (RUN, json!({"prompt": MAIL}).to_string(), "/errors/0/code", json!(2030)),
        (RUN, json!({"prompt": MAIL, "stream": true}).to_string(), "/errors/0/code", json!(2030)),
    ] {
        let refused = fixture.server.post(path, body).await;
        assert_eq!(
            (refused.status, refused.json().pointer(pointer)),
            (400, Some(&code)),
            "{path} {refused:?}"
        );
        assert_eq!(found(&refused)["findings"][0]["check"], "RESPONSE");
        assert!(!refused.body.contains("ada"), "{refused:?}");
    }
    // What passes goes out as it was, all at once.
    let passed = fixture.server.post(CHAT, chat("write to nobody", r#","stream":true"#)).await;
    assert!(passed.status == 200 && passed.body.ends_with("data: [DONE]\n\n"), "{passed:?}");
}

#[tokio::test]
async fn data_that_is_flagged_passes_and_is_told_in_the_header_and_the_log() {
    let fixture = Fixture::start(Config::default()).await;
    set(&fixture, policy("FLAG", &["REQUEST", "RESPONSE"])).await;
    let whole = fixture.server.post(CHAT, chat(MAIL, "")).await;
    let found_both = found(&whole);
    assert_eq!((whole.status, &found_both["action"]), (200, &json!("FLAG")), "{whole:?}");
    assert_eq!(
        (&found_both["findings"][0]["check"], &found_both["findings"][1]["check"]),
        (&json!("REQUEST"), &json!("RESPONSE"))
    );
    assert_eq!(log(&fixture, 1).await.dlp_action, Some(Action::Flag));
    // A stream goes out as it comes, and what it held is in the log.
    set(&fixture, policy("FLAG", &["RESPONSE"])).await;
    let stream = fixture.server.post(CHAT, chat(MAIL, r#","stream":true"#)).await;
    assert_eq!((stream.status, found(&stream)), (200, Value::Null));
    assert_eq!(log(&fixture, 2).await.dlp_action, Some(Action::Flag));
    assert_eq!(fixture.server.post(CHAT, chat("to nobody", "")).await.status, 200);
    assert_eq!(log(&fixture, 3).await.dlp_action, None);
    let path = "/client/v4/accounts/default/ai-gateway/gateways/default/logs";
    let filter = |operator: &str| {
        format!("{path}?filters.key=dlp_action&filters.operator={operator}&filters.value=FLAG")
    };
    let logs = fixture.server.get(&filter("eq")).await.json();
    assert_eq!(
        (&logs["result_info"]["total_count"], &logs["result"][0]["dlp_action"]),
        (&json!(2), &json!("FLAG"))
    );
    assert_eq!(fixture.server.get(&filter("neq")).await.json()["result_info"]["total_count"], 1);
}

#[tokio::test]
async fn what_a_gateway_does_not_look_for_is_not_looked_for() {
    let fixture = Fixture::start(Config::default()).await;
    for dlp in [
        json!({"enabled": true, "action": "BLOCK", "profiles": ["financial", "phone"]}),
        json!({"enabled": false, "action": "BLOCK", "profiles": ["contact"]}),
    ] {
        set(&fixture, json!({"dlp": dlp})).await;
        let passed = fixture.server.post(CHAT, chat(MAIL, "")).await;
        assert_eq!((passed.status, found(&passed)), (200, Value::Null), "{dlp}");
    }
    set(&fixture, json!({"dlp": {"enabled": true, "action": "BLOCK", "profiles": ["financial"]}})).await;
    // In whatever member it stands, escaped or in a tool's arguments.
    let escaped = chat("4111 1111 1111 \\u0031111", "");
    let call = json!({"model": "echo", "messages": [{"role": "user", "content": "a"}, {"role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "pay",
        "arguments": json!({"card": "\n4111111111111111"}).to_string()}}]},
        {"role": "tool", "tool_call_id": "c", "content": "b"}]});
    for body in [escaped, call.to_string()] {
        let refused = fixture.server.post(CHAT, body).await;
        assert!(refused.status == 400 && refused.body.contains("card"), "{refused:?}");
    }
    let wrong = json!({"dlp": {"enabled": true, "action": "BLOCK", "profiles": ["no-such"]}});
    let path = "/client/v4/accounts/default/ai-gateway/gateways/default";
    let refused = fixture.server.send("PUT", path, &[], wrong.to_string().as_bytes()).await;
    assert!(refused.status == 400 && refused.body.contains("credentials, financial"), "{refused:?}");
}
