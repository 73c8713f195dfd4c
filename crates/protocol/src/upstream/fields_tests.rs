//! Faults of a request that a provider's dialect has no words for: the field is the one that the client wrote.

use crate::openai::{self, responses};
use crate::workers_ai::{InputAt, generation};
use crate::{Error, GenerateRequest, anthropic, bedrock};
use serde_json::{Value, json};
use std::collections::HashMap;

fn to_nova(request: &GenerateRequest) -> Error {
    bedrock::upstream::write(request, "amazon.nova-pro-v1:0").unwrap_err()
}

fn with(mut body: Value, more: &Value) -> Vec<u8> {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string().into_bytes()
}

#[track_caller]
fn check(error: &Error, field: &str) {
    assert_eq!(error.param.as_deref(), Some(field), "{error}");
    assert!(error.message.contains(&format!("'{field}'")), "{error}");
}

#[test]
fn messages_are_told_their_own_fields() {
    let body = json!({"model": "m", "max_tokens": 9000, "messages": [{"role": "user", "content": "a"}]});
    let schema = json!({"type": "object", "properties": {}});
    for (more, field) in [
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            "output_config.format",
        ),
        (json!({"output_config": {"effort": "low"}}), "output_config.effort"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 2048}}), "thinking"),
    ] {
        let asked = anthropic::parse(&with(body.clone(), &more)).unwrap();
        check(&asked.layout.locate(to_nova(&asked.request)), field);
    }
}

#[test]
fn responses_are_told_their_own_fields() {
    let body = json!({"model": "m", "input": "a"});
    for (more, field) in [
        (json!({"text": {"format": {"type": "json_object"}}}), "text.format"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"include": ["message.output_text.logprobs"]}), "include"),
        (json!({"reasoning": {"effort": "low"}}), "reasoning.effort"),
    ] {
        let mut asked = responses::parse(&with(body.clone(), &more)).unwrap();
        asked.converse(Vec::new(), &HashMap::new()).unwrap();
        let error = to_nova(&asked.request);
        check(&asked.locate(error), field);
    }
}

#[test]
fn switches_of_templates_and_raw_prompts_are_named_as_they_were_sent() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
    let more = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let asked = openai::chat::parse(&with(body, &more)).unwrap();
    check(&asked.places.locate(to_nova(&asked.request)), "chat_template_kwargs");
    let asked = generation::parse("m", json!({"prompt": "a", "raw": true}), InputAt::Root).unwrap();
    check(&asked.places.locate(to_nova(&asked.request)), "raw");
}
