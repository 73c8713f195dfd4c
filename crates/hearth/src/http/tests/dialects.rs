//! The same answer and the same fault in each dialect, whole and streamed: tools, thoughts, JSON, tokens.

use super::*;
use serde_json::json;

const ACCOUNT: &str = "/client/v4/accounts/0123abc/ai";

/// A request whose answer is these deltas.
async fn told(server: &Server, path: &str, headers: &[&str], body: &Value, deltas: &[Delta]) -> Reply {
    let sender = server.tell();
    let say = async {
        for delta in deltas {
            if sender.send(Ok(delta.clone())).await.is_err() {
                return;
            }
        }
    };
    let body = body.to_string();
    let (reply, ()) = tokio::join!(server.send("POST", path, headers, body.as_bytes()), say);
    reply
}

fn start(index: u32, name: &str) -> Delta {
    Delta::ToolCallStart { choice: 0, index, id: format!("call_{index}"), name: name.to_owned() }
}

fn arguments(index: u32, arguments: &str) -> Delta {
    Delta::ToolCallArguments { choice: 0, index, arguments: arguments.to_owned() }
}

fn finish(reason: FinishReason) -> Delta {
    Delta::Finish { choice: 0, reason, stop_text: None }
}

/// Thoughts, text and two calls, the second with all its arguments in one piece.
fn two_calls() -> Vec<Delta> {
    vec![
        Delta::Started { prompt_tokens: 3, cached_tokens: 1 },
        Delta::Reasoning { choice: 0, text: "hm".to_owned() },
        text(0, "Let me see."),
        start(0, "look"),
        arguments(0, "{\"q\": \"a }"),
        arguments(0, "\\\"\"}"),
        start(1, "stop"),
        arguments(1, "{}"),
        finish(FinishReason::ToolCalls),
        usage(3, 7),
    ]
}

fn body(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "told"}]});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The chunks of a stream of OpenAI's, put together as its clients do.
fn assembled(reply: &Reply) -> Value {
    let mut message =
        json!({"content": "", "reasoning_content": "", "tool_calls": [], "malformed_tool_calls": []});
    let mut reasons = Vec::new();
    for event in reply.events().into_iter().filter(|event| *event != "[DONE]") {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let Some(choice) = chunk["choices"].get(0) else { continue };
        let delta = &choice["delta"];
        assert_ne!(delta.get("tool_calls"), Some(&json!([])), "no empty list of calls");
        for field in ["content", "reasoning_content"] {
            let text = format!("{}{}", message[field].as_str().unwrap(), delta[field].as_str().unwrap_or(""));
            message[field] = text.into();
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let calls = message["tool_calls"].as_array_mut().unwrap();
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert_eq!((&call["type"], &call["function"]["arguments"]), (&json!("function"), &json!("")));
                calls.push(json!({"id": call["id"], "type": "function", "function": call["function"]}));
            } else {
                assert!(call.get("id").is_none() && call["function"].get("name").is_none());
                let whole = &mut calls[index]["function"]["arguments"];
                let more = call["function"]["arguments"].as_str().unwrap();
                *whole = format!("{}{more}", whole.as_str().unwrap()).into();
            }
        }
        let malformed = delta["malformed_tool_calls"].as_array().cloned().unwrap_or_default();
        message["malformed_tool_calls"].as_array_mut().unwrap().extend(malformed);
        reasons.extend(choice["finish_reason"].as_str().map(str::to_owned));
    }
    assert_eq!(reasons.len(), 1, "one finish reason: {reply:?}");
    message["finish_reason"] = reasons.remove(0).into();
    message
}

#[tokio::test]
async fn calls_come_in_openais_form_whole_and_streamed() {
    let server = Server::start().await;
    let calls = json!([
        {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": "{\"q\": \"a }\\\"\"}"}},
        {"id": "call_1", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
    ]);
    for path in ["/v1/chat/completions".to_owned(), format!("{ACCOUNT}/v1/chat/completions")] {
        let whole = told(&server, &path, &[], &body(&json!({"model": "echo"})), &two_calls()).await.json();
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(
            choice["message"],
            json!({
                "role": "assistant", "content": "Let me see.", "refusal": null, "reasoning_content": "hm",
                "reasoning": "hm", "tool_calls": calls,
            })
        );
        let streamed = body(&json!({"model": "echo", "stream": true}));
        let message = assembled(&told(&server, &path, &[], &streamed, &two_calls()).await);
        assert_eq!(message["content"], "Let me see.");
        assert_eq!(message["reasoning_content"], "hm");
        assert_eq!(message["tool_calls"], calls);
        assert_eq!(message["finish_reason"], "tool_calls");
    }
    server.stop().await;
}

#[tokio::test]
async fn calls_come_in_the_native_form_by_rest_and_binding() {
    let server = Server::start().await;
    let (rest, run) = (format!("{ACCOUNT}/run/echo"), "/run?version=3".to_owned());
    for (path, bound) in [(rest, false), (run, true)] {
        let wrap = |inputs: Value| if bound { json!({"inputs": inputs}) } else { inputs };
        let headers: &[&str] = if bound { &["cf-consn-model-id: echo"] } else { &[] };
        let whole = told(&server, &path, headers, &wrap(body(&json!({}))), &two_calls()).await.json();
        let mut result = if bound { whole } else { whole["result"].clone() };
        result["usage"].take();
        assert_eq!(
            result,
            json!({
                "response": "Let me see.", "reasoning_content": "hm", "reasoning": "hm",
                "tool_calls": [
                    {"id": "call_0", "name": "look", "arguments": {"q": "a }\""}},
                    {"id": "call_1", "name": "stop", "arguments": {}},
                ],
                "usage": null, "finish_reason": "tool_calls",
            })
        );
        let streamed = wrap(body(&json!({"stream": true})));
        let reply = told(&server, &path, headers, &streamed, &two_calls()).await;
        let frames: Vec<Value> =
            reply.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let text: String = frames.iter().map(|frame| frame["response"].as_str().unwrap()).collect();
        assert_eq!(text, "Let me see.");
        let calls: Vec<&Value> = frames.iter().filter_map(|frame| frame.get("tool_calls")).collect();
        assert_eq!(
            calls[0],
            &json!([{"id": "call_0", "index": 0, "name": "look", "arguments": {"q": "a }\""}}])
        );
        assert_eq!(calls[1], &json!([{"id": "call_1", "index": 1, "name": "stop", "arguments": {}}]));
        let last = frames.last().unwrap();
        assert_eq!(
            (&last["finish_reason"], &last["usage"]["total_tokens"]),
            (&json!("tool_calls"), &json!(10))
        );
        assert_eq!(reply.events().last(), Some(&"[DONE]"));
    }
    server.stop().await;
}

#[tokio::test]
async fn fields_of_newer_models_get_openais_shape_from_ai_run() {
    let server = Server::start().await;
    let path = format!("{ACCOUNT}/run/echo");
    let asked = body(&json!({"reasoning_effort": "low"}));
    let whole = told(&server, &path, &[], &asked, &two_calls()).await.json();
    let result = &whole["result"];
    assert_eq!(result["object"], "chat.completion");
    assert_eq!(result["choices"][0]["message"]["reasoning_content"], "hm");
    assert_eq!(result["choices"][0]["message"]["tool_calls"][1]["id"], "call_1");
    assert_eq!(result["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
    let asked = body(&json!({"reasoning_effort": "low", "stream": true}));
    let reply = told(&server, &path, &[], &asked, &two_calls()).await;
    let events = reply.events();
    let last: Value = serde_json::from_str(events[events.len() - 2]).unwrap();
    assert_eq!((&last["response"], &last["usage"]["total_tokens"]), (&json!(""), &json!(10)));
    let first: Value = serde_json::from_str(events[0]).unwrap();
    assert_eq!(first["object"], "chat.completion.chunk");
    server.stop().await;
}

#[tokio::test]
async fn a_malformed_call_is_text_with_a_flag() {
    let server = Server::start().await;
    let deltas = [
        Delta::MalformedCall { choice: 0, why: "arguments are no JSON".to_owned() },
        text(0, "<tool_call>{\"name\": \"look\", \"arg"),
        finish(FinishReason::Stop),
        usage(3, 4),
    ];
    let whole =
        told(&server, "/v1/chat/completions", &[], &body(&json!({"model": "echo"})), &deltas).await.json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], "<tool_call>{\"name\": \"look\", \"arg");
    assert_eq!(message["malformed_tool_calls"], json!(["arguments are no JSON"]));
    assert!(message.get("tool_calls").is_none());
    let asked = body(&json!({"model": "echo", "stream": true}));
    let streamed = assembled(&told(&server, "/v1/chat/completions", &[], &asked, &deltas).await);
    assert_eq!(streamed["malformed_tool_calls"], json!(["arguments are no JSON"]));
    assert_eq!(streamed["content"], message["content"]);
    let native = told(&server, &format!("{ACCOUNT}/run/echo"), &[], &body(&json!({})), &deltas).await.json();
    assert_eq!(native["result"]["malformed_tool_calls"], json!(["arguments are no JSON"]));
    server.stop().await;
}

#[tokio::test]
async fn the_stop_text_that_ended_an_answer_is_told() {
    let server = Server::start().await;
    let deltas = [
        text(0, "a"),
        Delta::Finish { choice: 0, reason: FinishReason::Stop, stop_text: Some("END".to_owned()) },
        usage(3, 2),
    ];
    let whole =
        told(&server, "/v1/chat/completions", &[], &body(&json!({"model": "echo"})), &deltas).await.json();
    assert_eq!(whole["choices"][0]["stop_reason"], "END");
    let asked = body(&json!({"model": "echo", "stream": true}));
    let reply = told(&server, "/v1/chat/completions", &[], &asked, &deltas).await;
    let events = reply.events();
    let last: Value = serde_json::from_str(events[events.len() - 2]).unwrap();
    assert_eq!(
        (&last["choices"][0]["finish_reason"], &last["choices"][0]["stop_reason"]),
        (&json!("stop"), &json!("END"))
    );
    server.stop().await;
}

#[tokio::test]
async fn json_mode_gives_an_object_or_an_error_clients_know() {
    let server = Server::start().await;
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"type": "object"}}});
    let whole = [text(0, "{\"a\": "), text(0, "[1]}"), finish(FinishReason::Stop), usage(3, 4)];
    let cut = [text(0, "{\"a\": "), finish(FinishReason::Length), usage(3, 4)];
    let rest = format!("{ACCOUNT}/run/echo");
    let reply = told(&server, &rest, &[], &body(&format), &whole).await;
    assert_eq!(reply.json()["result"]["response"], json!({"a": [1]}));
    let reply = told(&server, &rest, &[], &body(&format), &cut).await;
    assert_eq!((reply.status, &reply.json()["errors"][0]["code"]), (400, &json!(5024)));
    let message = "AiError: JSON Mode couldn't be met: the answer was cut after 4 tokens; raise max_tokens";
    assert_eq!(reply.json()["errors"][0]["message"], message);
    let bound = json!({"inputs": body(&format)});
    let reply = told(&server, "/run", &["cf-consn-model-id: echo"], &bound, &cut).await;
    assert_eq!((reply.status, &reply.json()["internalCode"]), (400, &json!(5024)));
    // OpenAI's shape has a place for a cut document.
    let mut asked = body(&format);
    asked["model"] = "echo".into();
    let reply = told(&server, "/v1/chat/completions", &[], &asked, &cut).await.json();
    assert_eq!(
        (&reply["choices"][0]["message"]["content"], &reply["choices"][0]["finish_reason"]),
        (&json!("{\"a\": "), &json!("length"))
    );
    server.stop().await;
}

#[tokio::test]
async fn a_fault_inside_a_schema_is_named_where_the_caller_wrote_it() {
    let server = Server::start().await;
    let nested = json!([{"type": "function", "function": {"name": "f"}}]);
    let flat = json!([{"name": "f"}]);
    let asked = |tools: &Value| json!({"model": "echo", "messages": [{"role": "user", "content": "schema"}], "tools": tools});
    for (tools, at) in
        [(&nested, "tools[0].function.parameters/properties/x"), (&flat, "tools[0].parameters/properties/x")]
    {
        for path in ["/v1/chat/completions".to_owned(), format!("{ACCOUNT}/v1/chat/completions")] {
            let error = server.post(&path, asked(tools).to_string()).await.json();
            assert_eq!(error["error"]["param"], at, "{path}");
            assert_eq!(error["error"]["message"], format!("{at}: this keyword is not supported"));
        }
        let mut input = asked(tools);
        input.as_object_mut().unwrap().remove("model");
        let error = server.post(&format!("{ACCOUNT}/run/echo"), input.to_string()).await.json();
        assert!(
            error["errors"][0]["message"].as_str().unwrap().ends_with(&format!("(at '{at}')")),
            "{error}"
        );
        let named = json!({"model": "echo", "input": input}).to_string();
        let error = server.post(&format!("{ACCOUNT}/run"), named).await.json();
        assert!(
            error["errors"][0]["message"].as_str().unwrap().ends_with(&format!("(at 'input.{at}')")),
            "{error}"
        );
    }
    // Of tools that are not allowed the model learns nothing, and places stay the caller's.
    let tools = json!([{"type": "function", "function": {"name": "a"}}, {"name": "b"}]);
    let mut allowed = asked(&tools);
    let named = json!([{"type": "function", "function": {"name": "b"}}]);
    allowed["tool_choice"] =
        json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}});
    let error = server.post("/v1/chat/completions", allowed.to_string()).await.json();
    assert_eq!(error["error"]["param"], "tools[1].parameters/properties/x");
    assert_eq!(server.seen().tools.len(), 1);
    assert_eq!(server.seen().tool_choice, protocol::ToolChoice::Required);
    server.stop().await;
}

#[tokio::test]
async fn texts_conversations_and_tokens_turn_into_each_other() {
    let server = Server::start().await;
    for path in ["/v1/tokenize", "/tokenize"] {
        let reply = server.post(path, r#"{"model":"echo","prompt":"ab cde"}"#).await;
        assert_eq!(
            reply.json(),
            json!({"count": 3, "max_model_len": 2048, "tokens": [1, 2, 4], "token_strs": null})
        );
        let chat = json!({
            "model": "echo", "messages": [{"role": "user", "content": "ab cde"}], "return_token_strs": true,
        });
        let reply = server.post(path, chat.to_string()).await.json();
        assert_eq!(reply["token_strs"], json!(["ab", " cde"]));
    }
    for path in ["/v1/detokenize", "/detokenize"] {
        let reply = server.post(path, r#"{"model":"echo","tokens":[1,2]}"#).await;
        assert_eq!(reply.json(), json!({"prompt": "t1t2"}));
    }
    for (path, body, status, param) in [
        ("/v1/tokenize", r#"{"model":"nope","prompt":"a"}"#, 404, "model"),
        ("/v1/tokenize", r#"{"model":"echo"}"#, 400, "prompt"),
        ("/v1/detokenize", r#"{"model":"nope","tokens":[]}"#, 404, "model"),
        ("/v1/detokenize", r#"{"model":"echo","tokens":[1,"a"]}"#, 400, "tokens[1]"),
    ] {
        let reply = server.post(path, body).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (status, &json!(param)), "{path} {body}");
    }
    server.stop().await;
}
