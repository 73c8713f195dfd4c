//! Every route that takes a body, and every fault that any of them can have: status and shape are those which the
//! clients of the route's dialect read. What the words are, other files look at.

use super::*;
use crate::http::refusal::Dialect;
use serde_json::json;

const ACCOUNT: &str = "/client/v4/accounts/0123abc/ai";
const MODEL: &str = "cf-consn-model-id: echo";

/// A route that generates: how it is asked, and where its fields stand.
struct Route {
    path: String,
    dialect: Dialect,
    /// The body that asks this, with these fields more.
    body: fn(&str, Value) -> Value,
    /// What its dialect calls an argument of the first call, and the schema of the first tool.
    arguments: &'static str,
    parameters: &'static str,
}

fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("fields") };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn chat(said: &str, more: Value) -> Value {
    with(json!({"model": "echo"}), input(said, more))
}

fn input(said: &str, more: Value) -> Value {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    with(json!({"messages": [{"role": "user", "content": said}], "tools": tools}), more)
}

fn responses(said: &str, more: Value) -> Value {
    let items = json!([
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"role": "user", "content": said},
    ]);
    let tools = json!([{"type": "function", "name": "f"}]);
    with(json!({"model": "echo", "input": items, "tools": tools}), more)
}

fn messages(said: &str, more: Value) -> Value {
    let messages = json!([
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": "1"}, {"type": "text", "text": said},
        ]},
    ]);
    let tools = json!([{"name": "f", "input_schema": {}}]);
    with(json!({"model": "echo", "max_tokens": 5, "messages": messages, "tools": tools}), more)
}

fn routes() -> Vec<Route> {
    let route = |path: &str, dialect, body, arguments, parameters| Route {
        path: path.to_owned(),
        dialect,
        body,
        arguments,
        parameters,
    };
    let (history, tool) = ("messages[0].tool_calls[0].function.arguments", "tools[0].function.parameters");
    let of_items = ("input[0].arguments", "tools[0].parameters");
    let of_blocks = ("messages.0.content.0.input", "tools.0.input_schema");
    let named: fn(&str, Value) -> Value = |said, more| json!({"model": "echo", "input": input(said, more)});
    let bound: fn(&str, Value) -> Value = |said, more| json!({"inputs": input(said, more)});
    let mut routes = vec![
        route("/v1/chat/completions", Dialect::OpenAi, chat, history, tool),
        route("/v1/responses", Dialect::OpenAi, responses, of_items.0, of_items.1),
        route("/v1/messages", Dialect::Anthropic, messages, of_blocks.0, of_blocks.1),
    ];
    for (path, dialect) in [
        ("v1/chat/completions", Dialect::WorkersCompatible),
        ("v1/responses", Dialect::WorkersCompatible),
        ("v1/messages", Dialect::Anthropic),
    ] {
        let same = routes.iter().find(|route| route.path.ends_with(path)).unwrap();
        let route = route(&format!("{ACCOUNT}/{path}"), dialect, same.body, same.arguments, same.parameters);
        routes.push(route);
    }
    routes.extend([
        route(&format!("{ACCOUNT}/run/echo"), Dialect::WorkersNative, input, history, tool),
        route(
            &format!("{ACCOUNT}/run"),
            Dialect::WorkersNative,
            named,
            "input.messages[0].tool_calls[0].function.arguments",
            "input.tools[0].function.parameters",
        ),
        route("/run?version=3", Dialect::Binding, bound, history, tool),
        route("/ai-gateway/run?version=3", Dialect::Binding, bound, history, tool),
    ]);
    routes
}

/// Routes that are asked for something else than words, or in an older form.
fn others() -> Vec<Route> {
    let route = |path: &str, dialect, body| Route {
        path: path.to_owned(),
        dialect,
        body,
        arguments: "",
        parameters: "",
    };
    let embeddings: fn(&str, Value) -> Value =
        |said, more| with(json!({"model": "vectors", "input": said}), more);
    let completions: fn(&str, Value) -> Value =
        |said, more| with(json!({"model": "echo", "prompt": said}), more);
    let counted: fn(&str, Value) -> Value =
        |said, more| with(json!({"model": "echo", "messages": [{"role": "user", "content": said}]}), more);
    let ranked: fn(&str, Value) -> Value =
        |said, more| with(json!({"model": "ranker", "query": said, "documents": ["a"]}), more);
    let tokens: fn(&str, Value) -> Value = |_, more| with(json!({"model": "echo", "tokens": [1]}), more);
    vec![
        route("/v1/completions", Dialect::OpenAi, completions),
        route(&format!("{ACCOUNT}/v1/completions"), Dialect::WorkersCompatible, completions),
        route("/v1/embeddings", Dialect::OpenAi, embeddings),
        route(&format!("{ACCOUNT}/v1/embeddings"), Dialect::WorkersCompatible, embeddings),
        route("/v1/tokenize", Dialect::OpenAi, completions),
        route("/tokenize", Dialect::OpenAi, counted),
        route("/v1/detokenize", Dialect::OpenAi, tokens),
        route("/detokenize", Dialect::OpenAi, tokens),
        route("/v1/rerank", Dialect::OpenAi, ranked),
        route("/v2/rerank", Dialect::OpenAi, ranked),
        route("/rerank", Dialect::OpenAi, ranked),
        route(&format!("{ACCOUNT}/v1/rerank"), Dialect::WorkersCompatible, ranked),
        route("/v1/messages/count_tokens", Dialect::Anthropic, counted),
        route(&format!("{ACCOUNT}/v1/messages/count_tokens"), Dialect::Anthropic, counted),
    ]
}

impl Server {
    async fn ask(&self, path: &str, body: impl AsRef<[u8]>) -> Reply {
        self.send("POST", path, &[MODEL], body.as_ref()).await
    }
}

/// What stands in an error of this dialect: its text, and its name or number. Checks that nothing is missing.
#[track_caller]
fn read(dialect: Dialect, body: &Value) -> (String, Value) {
    let keys = |value: &Value| {
        let mut keys: Vec<String> =
            value.as_object().unwrap_or_else(|| panic!("{body}")).keys().cloned().collect();
        keys.sort();
        keys.join(" ")
    };
    let envelope = |with: &str| {
        assert_eq!(keys(body), format!("{with}errors messages result success"), "{body}");
        assert_eq!((&body["result"], &body["success"]), (&Value::Null, &json!(false)));
        assert_eq!(keys(&body["errors"][0]), "code message");
        (body["errors"][0]["message"].as_str().unwrap().to_owned(), body["errors"][0]["code"].clone())
    };
    match dialect {
        Dialect::OpenAi | Dialect::WorkersCompatible => {
            if dialect == Dialect::OpenAi {
                assert_eq!(keys(body), "error", "{body}");
            } else {
                envelope("error ");
            }
            assert_eq!(keys(&body["error"]), "code message param type", "{body}");
            assert!(body["error"]["type"].is_string(), "{body}");
            (body["error"]["message"].as_str().unwrap().to_owned(), body["error"]["code"].clone())
        }
        Dialect::WorkersNative | Dialect::Control => envelope(""),
        Dialect::AiGateway => {
            assert_eq!(
                keys(body),
                "error errors httpCode internalCode messages name result success",
                "{body}"
            );
            (body["error"][0]["message"].as_str().unwrap().to_owned(), body["internalCode"].clone())
        }
        Dialect::Binding => {
            assert_eq!(keys(body), "description errors internalCode message name", "{body}");
            (body["description"].as_str().unwrap().to_owned(), body["internalCode"].clone())
        }
        Dialect::Anthropic => {
            assert_eq!(
                (&body["type"], keys(&body["error"]).contains("type")),
                (&json!("error"), true),
                "{body}"
            );
            (body["error"]["message"].as_str().unwrap().to_owned(), body["error"]["type"].clone())
        }
    }
}

#[track_caller]
fn refused(route: &Route, reply: &Reply, status: u16, names: [Value; 3], said: &str) {
    let body = reply.json();
    let [openai, workers, anthropic] = names;
    let name = match route.dialect {
        Dialect::OpenAi | Dialect::WorkersCompatible => openai,
        Dialect::WorkersNative | Dialect::Binding | Dialect::AiGateway | Dialect::Control => workers,
        Dialect::Anthropic => anthropic,
    };
    let (message, found) = read(route.dialect, &body);
    assert_eq!((reply.status, found), (status, name), "{}: {reply:?}", route.path);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(message.contains(said), "{}: '{said}' is not in {message}", route.path);
    let id = reply.header("x-request-id").unwrap();
    match route.dialect {
        Dialect::Anthropic => {
            assert_eq!((body["request_id"].as_str(), reply.header("request-id")), (Some(id), Some(id)));
        }
        Dialect::OpenAi | Dialect::AiGateway => {}
        Dialect::WorkersNative | Dialect::WorkersCompatible | Dialect::Binding | Dialect::Control => {
            assert_eq!(reply.header("cf-ai-req-id"), Some(id));
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_body_is_told_in_each_dialect() {
    let server = Server::start().await;
    for route in routes() {
        let native = matches!(route.dialect, Dialect::WorkersNative | Dialect::Binding);
        let check = |reply: &Reply, status, names, said: &str| refused(&route, reply, status, names, said);
        let whole = (route.body)("hi", json!({})).to_string();
        assert_eq!(server.ask(&route.path, &whole).await.status, 200, "{}", route.path);
        for bad in [&whole.as_bytes()[..whole.len() - 1], b"", b"\xff{}", b"{} {}"] {
            let names = [json!("invalid_json"), json!(3003), json!("invalid_request_error")];
            let reply = server.ask(&route.path, bad).await;
            let code = reply.json()["error"]["code"].clone();
            let names = if native || route.dialect == Dialect::Anthropic {
                names
            } else {
                [code, names[1].clone(), names[2].clone()]
            };
            check(&reply, 400, names, "");
        }
        let invalid = |openai: &str| [json!(openai), json!(5006), json!("invalid_request_error")];
        let reply = server.ask(&route.path, (route.body)("hi", json!({"bogus": 1})).to_string()).await;
        check(&reply, 400, invalid("invalid_value"), "bogus");
        let reply =
            server.ask(&route.path, (route.body)("hi", json!({"temperature": "hot"})).to_string()).await;
        check(&reply, 400, invalid("invalid_value"), "temperature");
        let names = [json!("context_length_exceeded"), json!(5021), json!("invalid_request_error")];
        let said = if route.dialect == Dialect::Anthropic { "prompt is too long" } else { "10 tokens" };
        let status = ErrorKind::ContextLength.status();
        check(
            &server.ask(&route.path, (route.body)("long", json!({})).to_string()).await,
            status,
            names,
            said,
        );
        let at = format!("{}/properties/x", route.parameters);
        let reply = server.ask(&route.path, (route.body)("schema", json!({})).to_string()).await;
        check(&reply, 400, invalid("invalid_value"), &at);
        let failed = [json!("service_unavailable"), json!(5001), json!("overloaded_error")];
        let reply = server.ask(&route.path, (route.body)("fail later", json!({})).to_string()).await;
        let code = reply.json()["error"]["code"].clone();
        let failed = [code, failed[1].clone(), failed[2].clone()];
        let status = if route.dialect == Dialect::Anthropic { 529 } else { 503 };
        check(&reply, status, failed, "the engine failed");
    }
    server.stop().await;
}

#[tokio::test]
async fn bodies_of_the_other_routes_are_looked_at_as_closely() {
    let server = Server::start().await;
    for route in others() {
        let whole = (route.body)("hi", json!({})).to_string();
        assert_eq!(server.ask(&route.path, &whole).await.status, 200, "{}", route.path);
        for (body, said) in [
            (whole[..whole.len() - 1].to_owned(), ""),
            ((route.body)("hi", json!({"bogus": 1})).to_string(), "bogus"),
            ((route.body)("hi", json!({"model": 5})).to_string(), "model"),
            ((route.body)("hi", json!({"model": null})).to_string(), "model"),
        ] {
            let reply = server.ask(&route.path, &body).await;
            let names = [reply.json()["error"]["code"].clone(), json!(5006), json!("invalid_request_error")];
            refused(&route, &reply, 400, names, said);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_model_that_is_not_there_is_told_in_each_dialect() {
    let server = Server::start().await;
    for route in routes().into_iter().chain(others()) {
        let mut body = (route.body)("hi", json!({}));
        let names = [json!("model_not_found"), json!(5007), json!("not_found_error")];
        let path = route.path.replace("/run/echo", "/run/nope");
        if body.get("model").is_some() {
            body["model"] = "nope".into();
        }
        let reply =
            server.send("POST", &path, &["cf-consn-model-id: nope"], body.to_string().as_bytes()).await;
        let native = matches!(route.dialect, Dialect::WorkersNative | Dialect::Binding);
        refused(&route, &reply, if native { 400 } else { 404 }, names, "model");
    }
    server.stop().await;
}

#[tokio::test]
async fn routes_methods_and_keys_are_told_in_each_dialect() {
    let server = Server::start().await;
    let locked = Server::with(Config { api_key: Some("k".to_owned()), ..Config::default() }).await;
    for route in routes().into_iter().chain(others()) {
        let path = route.path.split('?').next().unwrap();
        let reply = server.send("PUT", path, &[], b"").await;
        let names = [reply.json()["error"]["code"].clone(), json!(7001), json!("invalid_request_error")];
        refused(&route, &reply, 405, names, "PUT");
        if path.starts_with("/client") || path.starts_with("/v1/messages") {
            // Two segments more behind /v1/messages would be a path of AI Gateway.
            let more = if path.starts_with("/client") { "no/such" } else { "no" };
            let reply = server.ask(&format!("{}/{more}", path.replace("/ai/run", "/ai/none")), "{}").await;
            let names = [reply.json()["error"]["code"].clone(), json!(7000), json!("not_found_error")];
            refused(&route, &reply, 404, names, "No route");
        }
        let reply = locked.ask(&route.path, (route.body)("hi", json!({})).to_string()).await;
        let names = [reply.json()["error"]["code"].clone(), json!(10000), json!("authentication_error")];
        refused(&route, &reply, 401, names, "");
    }
    server.stop().await;
    locked.stop().await;
}

/// The request that the test answers, with this error behind its first words.
async fn failed(server: &Server, route: &Route, more: Value, error: Error) -> Reply {
    let sender = server.tell();
    let say = async {
        for delta in [Ok(STARTED), Ok(text(0, "one")), Err(error)] {
            if sender.send(delta).await.is_err() {
                return;
            }
        }
    };
    let body = (route.body)("told", more).to_string();
    let (reply, ()) = tokio::join!(server.ask(&route.path, body), say);
    reply
}

#[tokio::test]
async fn a_fault_in_the_middle_names_the_field_as_the_caller_wrote_it() {
    let server = Server::start().await;
    for route in routes() {
        for (canonical, written) in [
            ("messages[0].tool_calls[0].function.arguments", route.arguments.to_owned()),
            ("tools[0].function.parameters/items", format!("{}/items", route.parameters)),
        ] {
            let error = || Error::invalid(canonical, format!("'{canonical}' is at fault"));
            let whole = failed(&server, &route, json!({}), error()).await;
            assert_eq!(whole.status, 400, "{whole:?}");
            let (message, _) = read(route.dialect, &whole.json());
            assert!(message.contains(&written), "{}: {message}", route.path);
            let streamed = failed(&server, &route, json!({"stream": true}), error()).await;
            assert_eq!(streamed.status, 200);
            assert!(streamed.body.contains("one"), "{streamed:?}");
            // What went wrong is in the last event, and nothing says that the answer is whole.
            let last = streamed.body.trim_end().rsplit("\n\n").next().unwrap();
            let data = last.split_once("data: ").unwrap().1;
            let data: Value = serde_json::from_str(data).unwrap_or_else(|_| panic!("{streamed:?}"));
            let message = if route.path.ends_with("responses") {
                assert_eq!(data["type"], "response.failed");
                data["response"]["error"]["message"].as_str().unwrap().to_owned()
            } else {
                let native = route.dialect == Dialect::WorkersNative;
                read(if native { Dialect::WorkersCompatible } else { route.dialect }, &data).0
            };
            assert!(message.contains(&written), "{}: {message}", route.path);
            assert!(!streamed.body.contains("[DONE]"), "{streamed:?}");
        }
    }
    server.stop().await;
}
