//! OpenAI's Responses API, with what is kept between requests.

use super::*;
use crate::kept::Limits;
use protocol::{Message, Role};
use serde_json::json;
use tempfile::TempDir;

const PATH: &str = "/v1/responses";

/// A server that keeps responses in this folder.
async fn server(folder: &TempDir) -> Server {
    let limits = Limits { retention: Duration::from_secs(86_400), size: base::Bytes(1 << 30) };
    let clock = Arc::new(base::SystemClock::default());
    let store = store::Store::open(folder.path(), &[crate::kept::TABLES]).unwrap();
    Server::keeping(Config::default(), Kept::new(store, limits, clock)).await
}

fn body(input: impl Into<Value>, more: Value) -> String {
    let mut body = json!({"model": "echo", "input": input.into()});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string()
}

async fn ask(server: &Server, input: impl Into<Value>, more: Value) -> Value {
    let reply = server.post(PATH, body(input, more)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn events(reply: &Reply) -> Vec<(String, Value)> {
    let event = |event: &str| {
        let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
        Some((name.to_owned(), serde_json::from_str(data).unwrap()))
    };
    reply.body.split("\n\n").filter_map(event).collect()
}

fn said(message: &Message) -> (Role, String) {
    (message.role, message.content.joined_text())
}

/// The messages that the backend saw last.
fn seen(server: &Server) -> Vec<(Role, String)> {
    let Input::Chat(messages) = server.seen().input else { panic!("no chat") };
    messages.iter().map(said).collect()
}

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_response_can_be_had_again_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    let made = ask(&server, "hello world", json!({"instructions": "be brief", "metadata": {"a": "b"}})).await;
    assert_eq!(made["output"][0]["content"][0]["text"], "hello world");
    assert_eq!((&made["store"], &made["status"]), (&json!(true), &json!("completed")));
    assert!(made["completed_at"].as_u64() >= made["created_at"].as_u64());
    let path = format!("{PATH}/{}", id(&made));
    let workers = format!("/client/v4/accounts/a/ai{path}");
    for path in [&path, &workers] {
        assert_eq!(server.get(path).await.json(), made);
    }
    let cancel = server.post(&format!("{path}/cancel"), "").await;
    assert_eq!(
        (cancel.status, &cancel.json()["error"]["message"]),
        (400, &json!("Cannot cancel a synchronous response."))
    );
    assert_eq!(server.get(&format!("{path}?stream=true")).await.json()["error"]["param"], "stream");
    let deleted = server.send("DELETE", &path, &[], b"").await;
    assert_eq!(deleted.json(), json!({"id": made["id"], "object": "response", "deleted": true}));
    for reply in [server.get(&path).await, server.send("DELETE", &path, &[], b"").await] {
        let message = format!("Response with id '{}' not found.", id(&made));
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (404, &json!(message)));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_conversation_goes_on_after_a_restart_without_the_old_instructions() {
    let folder = tempfile::tempdir().unwrap();
    let first = server(&folder).await;
    let one = ask(&first, "one", json!({"instructions": "old"})).await;
    let two = ask(&first, "two", json!({"previous_response_id": one["id"]})).await;
    assert_eq!(two["previous_response_id"], one["id"]);
    first.stop().await;
    let second = server(&folder).await;
    ask(&second, "three", json!({"previous_response_id": two["id"], "instructions": "new"})).await;
    let expected = [
        (Role::System, "new"),
        (Role::User, "one"),
        (Role::Assistant, "one"),
        (Role::User, "two"),
        (Role::Assistant, "two"),
        (Role::User, "three"),
    ];
    assert_eq!(seen(&second), expected.map(|(role, text)| (role, text.to_owned())));
    second.stop().await;
}

#[tokio::test]
async fn an_unknown_previous_response_is_named_by_its_field() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    let reply = server.post(PATH, body("x", json!({"previous_response_id": "resp_nope"}))).await;
    assert_eq!(reply.status, 400);
    let error = &reply.json()["error"];
    assert_eq!(error["param"], "previous_response_id");
    assert_eq!(error["message"], "Previous response with id 'resp_nope' not found.");
    let one = ask(&server, "one", json!({})).await;
    let two = ask(&server, "two", json!({"previous_response_id": one["id"]})).await;
    server.send("DELETE", &format!("{PATH}/{}", id(&one)), &[], b"").await;
    let reply = server.post(PATH, body("x", json!({"previous_response_id": two["id"]}))).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("previous_response_id")));
    server.stop().await;
}

#[tokio::test]
async fn what_was_streamed_is_kept_before_its_last_event() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    let reply = server.post(PATH, body("hello world", json!({"stream": true}))).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events = events(&reply);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let response = &events.last().unwrap().1["response"];
    assert_eq!(server.get(&format!("{PATH}/{}", id(response))).await.json(), *response);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_an_error_and_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    for path in [PATH, "/client/v4/accounts/a/ai/v1/responses"] {
        let reply = server.post(path, body("fail later", json!({"stream": true}))).await;
        let events = events(&reply);
        let [.., (error, data), (failed, last)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((error.as_str(), failed.as_str()), ("error", "response.failed"));
        assert_eq!(data["message"], "the engine failed");
        assert_eq!(last["response"]["status"], "failed");
        assert_eq!(server.get(&format!("{PATH}/{}", id(&last["response"]))).await.status, 404);
    }
    let reply = server.post(PATH, body("fail later", json!({}))).await;
    assert_eq!(reply.status, 503);
    server.stop().await;
}

#[tokio::test]
async fn what_shall_not_be_kept_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    let made = ask(&server, "hello", json!({"store": false})).await;
    assert_eq!(made["store"], false);
    assert_eq!(server.get(&format!("{PATH}/{}", id(&made))).await.status, 404);
    let reply = server.post(PATH, body("x", json!({"previous_response_id": made["id"]}))).await;
    assert_eq!(reply.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn where_nothing_can_be_kept_only_who_asks_for_it_is_refused() {
    let server = Server::start().await;
    let made = ask(&server, "hello", json!({})).await;
    assert_eq!((&made["store"], &made["output"][0]["content"][0]["text"]), (&json!(false), &json!("hello")));
    for (more, param) in
        [(json!({"store": true}), "store"), (json!({"previous_response_id": "x"}), "previous_response_id")]
    {
        let reply = server.post(PATH, body("hello", more)).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)));
        assert!(reply.body.contains("it is a test"), "{reply:?}");
    }
    assert_eq!(server.get(&format!("{PATH}/{}", id(&made))).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_salt_keeps_responses_apart() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    let made = ask(&server, "secret", json!({"cache_salt": "s"})).await;
    let path = format!("{PATH}/{}", id(&made));
    let item = &made["output"][0]["id"];
    for salt in ["", "t"] {
        let more = json!({"cache_salt": salt, "previous_response_id": made["id"]});
        assert_eq!(server.post(PATH, body("x", more)).await.status, 400);
        let reference = json!([{"type": "item_reference", "id": item}]);
        assert_eq!(server.post(PATH, body(reference, json!({"cache_salt": salt}))).await.status, 404);
        assert_eq!(server.get(&format!("{path}?cache_salt={salt}")).await.status, 404);
        assert_eq!(server.get(&format!("{path}/input_items?cache_salt={salt}")).await.status, 404);
        assert_eq!(server.send("DELETE", &format!("{path}?cache_salt={salt}"), &[], b"").await.status, 404);
    }
    assert_eq!(server.get(&format!("{path}?cache_salt=s")).await.status, 200);
    ask(&server, "x", json!({"cache_salt": "s", "previous_response_id": made["id"]})).await;
    server.stop().await;
}

#[tokio::test]
async fn kept_items_can_be_referred_to() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    let one = ask(&server, "one", json!({})).await;
    let input = json!([
        {"role": "user", "content": "again"},
        {"type": "item_reference", "id": one["output"][0]["id"]},
        {"role": "user", "content": "two"},
    ]);
    let two = ask(&server, input, json!({})).await;
    let expected = [(Role::User, "again"), (Role::Assistant, "one"), (Role::User, "two")];
    assert_eq!(seen(&server), expected.map(|(role, text)| (role, text.to_owned())));
    // What was referred to is kept as what it is.
    server.send("DELETE", &format!("{PATH}/{}", id(&one)), &[], b"").await;
    ask(&server, "three", json!({"previous_response_id": two["id"]})).await;
    assert_eq!(seen(&server).len(), 5);
    for wrong in ["msg_1", "rs_0123456789abcdef0123456789abcdef0000", "msg_é"] {
        let reply =
            server.post(PATH, body(json!([{"type": "item_reference", "id": wrong}]), json!({}))).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (404, &json!("input[0].id")));
    }
    server.stop().await;
}

#[tokio::test]
async fn input_items_are_all_that_a_response_was_made_from_in_pages() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    let one = ask(&server, "one", json!({})).await;
    let items = json!([{"role": "user", "content": "two"}, {"role": "user", "content": "three"}]);
    let two = ask(&server, items, json!({"previous_response_id": one["id"]})).await;
    let path = format!("{PATH}/{}/input_items", id(&two));
    let list = server.get(&format!("{path}?order=asc")).await.json();
    let texts = |list: &Value| -> Vec<String> {
        let items = list["data"].as_array().unwrap();
        items.iter().map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts(&list), ["one", "one", "two", "three"]);
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    let mut pages = Vec::new();
    let mut after = String::new();
    loop {
        let list = server.get(&format!("{path}?limit=3{after}")).await.json();
        assert_eq!(
            (&list["first_id"], &list["last_id"]),
            (&list["data"][0]["id"], &list["data"].as_array().unwrap().last().unwrap()["id"])
        );
        pages.push(texts(&list));
        if list["has_more"] == false {
            break;
        }
        after = format!("&after={}", list["last_id"].as_str().unwrap());
    }
    assert_eq!(pages, [vec!["three", "two", "one"], vec!["one"]]);
    for wrong in ["limit=0", "limit=x", "order=up", "after=x"] {
        assert_eq!(server.get(&format!("{path}?{wrong}")).await.status, 400, "{wrong}");
    }
    server.stop().await;
}

#[tokio::test]
async fn tool_calls_are_items_and_their_outputs_go_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(&folder).await;
    let told = server.tell();
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}]);
    let deltas = [
        Delta::ToolCallStart { choice: 0, index: 0, id: "call_1".to_owned(), name: "f".to_owned() },
        Delta::ToolCallArguments { choice: 0, index: 0, arguments: "{\"a\":1}".to_owned() },
        Delta::Finish { choice: 0, reason: FinishReason::ToolCalls, stop_text: None },
        usage(3, 4),
    ];
    let telling = tokio::spawn(async move {
        for delta in deltas {
            told.send(Ok(delta)).await.unwrap();
        }
    });
    let made = ask(&server, "told", json!({"tools": tools})).await;
    telling.await.unwrap();
    let call = &made["output"][0];
    assert_eq!(
        (&call["type"], &call["call_id"], &call["arguments"]),
        (&json!("function_call"), &json!("call_1"), &json!("{\"a\":1}"))
    );
    assert_eq!(server.seen().tools.len(), 1);
    let output = json!([{"type": "function_call_output", "call_id": "call_1", "output": "sunny"}]);
    ask(&server, output, json!({"previous_response_id": made["id"]})).await;
    let Input::Chat(messages) = server.seen().input else { panic!("no chat") };
    assert_eq!(messages[1].tool_calls[0].arguments, "{\"a\":1}");
    assert_eq!((messages[2].role, messages[2].tool_call_id.as_deref()), (Role::Tool, Some("call_1")));
    let orphan = json!([{"type": "function_call_output", "call_id": "call_9", "output": "x"}]);
    let reply = server.post(PATH, body(orphan, json!({"previous_response_id": made["id"]}))).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("input[0].call_id")));
    server.stop().await;
}

#[tokio::test]
async fn errors_of_the_backend_name_the_fields_of_this_api() {
    let server = Server::start().await;
    for (prompt, status, param) in [("long", 400, "input"), ("toolless", 400, "tools")] {
        let reply = server.post(PATH, body(prompt, json!({}))).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (status, &json!(param)));
    }
    let reply = server.post(PATH, r#"{"model":"echo","input":"x","max_tokens":3}"#).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("max_tokens")));
    assert_eq!(server.get(PATH).await.status, 405);
    server.stop().await;
}
