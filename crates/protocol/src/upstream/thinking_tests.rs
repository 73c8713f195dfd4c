//! How long a model shall think, and what may stand beside it, in the words of each dialect.

use crate::openai::upstream::Speaker;
use crate::{GenerateRequest, anthropic, bedrock, gemini, openai};
use serde_json::{Value, json};

const CLAUDE: &str = "anthropic.claude-sonnet-4-5-20250929-v1:0";

fn with(mut body: Value, more: &Value) -> Vec<u8> {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string().into_bytes()
}

fn chat(more: &Value) -> GenerateRequest {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
    openai::chat::parse(&with(body, more)).unwrap().request
}

fn messages(more: &Value) -> GenerateRequest {
    let body = json!({"model": "m", "max_tokens": 9000, "messages": [{"role": "user", "content": "a"}]});
    anthropic::parse(&with(body, more)).unwrap().request
}

fn to_anthropic(request: &GenerateRequest) -> Value {
    serde_json::from_str(&anthropic::upstream::write(request, "m").unwrap()).unwrap()
}

fn to_bedrock(request: &GenerateRequest) -> Value {
    serde_json::from_str(&bedrock::upstream::write(request, CLAUDE).unwrap()).unwrap()
}

fn to_gemini(request: &GenerateRequest, model: &str) -> Value {
    let body: Value = serde_json::from_str(&gemini::upstream::write(request, model).unwrap()).unwrap();
    body["generationConfig"]["thinkingConfig"].clone()
}

#[test]
fn thought_by_effort_leaves_at_least_half_of_the_limit_to_the_answer() {
    // Limit, and the budgets of Claude and of Gemini 2.5 Flash, Flash-Lite and Pro.
    for (limit, claude, flash, lite, pro) in [
        (None, Some(4096), 4096, 4096, 4096),
        (Some(9000), Some(4096), 4096, 4096, 4096),
        (Some(2048), Some(1024), 1024, 1024, 1024),
        // Less than the least is none; Pro cannot do without.
        (Some(2000), None, 1000, 1000, 1000),
        (Some(1000), None, 500, 0, 500),
        (Some(5), None, 0, 0, 128),
    ] {
        let request = chat(&json!({"reasoning_effort": "high", "max_tokens": limit}));
        let thinking = &to_anthropic(&request)["thinking"]["budget_tokens"];
        assert_eq!(thinking.as_u64(), claude, "{limit:?}");
        let thinking = &to_bedrock(&request)["additionalModelRequestFields"]["thinking"]["budget_tokens"];
        assert_eq!(thinking.as_u64(), claude, "{limit:?}");
        for (model, budget) in
            [("gemini-2.5-flash", flash), ("gemini-2.5-flash-lite", lite), ("gemini-2.5-pro", pro)]
        {
            assert_eq!(to_gemini(&request, model)["thinkingBudget"], budget, "{model} {limit:?}");
        }
    }
}

#[test]
fn a_budget_that_the_caller_wrote_holds_as_far_as_it_fits() {
    for (limit, budget) in [(9000, 6000), (6000, 5999)] {
        let more = json!({"max_tokens": limit, "thinking": {"type": "enabled", "budget_tokens": 6000}});
        let request = messages(&more);
        assert_eq!(to_bedrock(&request)["additionalModelRequestFields"]["thinking"]["budget_tokens"], budget);
        assert_eq!(to_gemini(&request, "gemini-2.5-pro")["thinkingBudget"], budget);
    }
}

#[test]
fn an_effort_of_messages_holds_without_thinking_too() {
    let request = messages(&json!({"output_config": {"effort": "low"}}));
    let body = openai::upstream::write(&request, "m", &Speaker::OPENAI, true).unwrap();
    assert!(body.contains(r#""reasoning_effort":"low""#), "{body}");
    let body = to_bedrock(&request);
    assert_eq!(body["outputConfig"], json!({"effort": "low"}));
    // It is none to think by.
    assert_eq!(body.get("additionalModelRequestFields"), None);
    let told = to_gemini(&request, "gemini-3.1-pro-preview");
    assert_eq!(told, json!({"thinkingLevel": "LOW", "includeThoughts": false}));
    let told = to_gemini(&request, "gemini-2.5-pro");
    assert_eq!(told, json!({"thinkingBudget": 1024, "includeThoughts": false}));
    let error = bedrock::upstream::write(&request, "amazon.nova-pro-v1:0").unwrap_err();
    assert_eq!(error.param.as_deref(), Some("reasoning_effort"));
    // Who says that the model shall not think has said how long.
    let request = messages(&json!({"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}}));
    let body = openai::upstream::write(&request, "m", &Speaker::OPENAI, true).unwrap();
    assert!(!body.contains("reasoning_effort"), "{body}");
    assert_eq!(to_bedrock(&request).get("outputConfig"), None);
}

#[test]
fn gemini_is_told_nothing_of_thought_where_it_would_refuse_it() {
    for more in [json!({}), json!({"thinking": {"type": "disabled"}})] {
        let request = messages(&more);
        assert_eq!(to_gemini(&request, "gemini-2.0-flash"), Value::Null);
        let told = to_gemini(&request, "gemini-3.1-pro-preview");
        assert_eq!(told, json!({"thinkingLevel": "LOW", "includeThoughts": false}));
    }
    for effort in ["none", "minimal"] {
        let request = chat(&json!({"reasoning_effort": effort}));
        assert_eq!(to_gemini(&request, "gemini-3-pro-preview")["thinkingLevel"], "LOW");
        assert_eq!(to_gemini(&request, "gemini-3-flash-preview")["thinkingLevel"], "MINIMAL");
    }
}

#[test]
fn claude_is_told_one_of_temperature_and_top_p_and_beside_thought_what_it_takes() {
    for (more, temperature, top_p) in [
        (json!({"temperature": 0.5, "top_p": 0.9}), Some(0.5), None),
        (json!({"temperature": 1.0, "top_p": 0.5}), None, Some(0.5)),
        (json!({"top_p": 0.5}), None, Some(0.5)),
        (json!({"temperature": 0.5}), Some(0.5), None),
        (json!({"reasoning_effort": "low", "temperature": 0.5, "top_p": 0.5}), None, None),
        (json!({"reasoning_effort": "low", "temperature": 1.0, "top_p": 0.5}), Some(1.0), None),
        (json!({"reasoning_effort": "low", "top_p": 0.96875}), None, Some(0.96875)),
    ] {
        let request = chat(&more);
        let body = to_anthropic(&request);
        let found = (body["temperature"].as_f64(), body["top_p"].as_f64());
        assert_eq!(found, (temperature, top_p), "{more}");
        let body = to_bedrock(&request);
        let config = &body["inferenceConfig"];
        assert_eq!((config["temperature"].as_f64(), config["topP"].as_f64()), (temperature, top_p), "{more}");
    }
    let both = chat(&json!({"temperature": 0.5, "top_p": 0.25}));
    let body = bedrock::upstream::write(&both, "amazon.nova-pro-v1:0").unwrap();
    assert!(body.contains(r#""temperature":0.5"#) && body.contains(r#""topP":0.25"#), "{body}");
}

#[test]
fn one_call_at_a_time_is_no_reason_to_refuse_where_there_is_no_word_for_it() {
    let tools =
        json!([{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}]);
    for choice in ["auto", "any"] {
        let more =
            json!({"tools": tools, "tool_choice": {"type": choice, "disable_parallel_tool_use": true}});
        let request = messages(&more);
        for model in ["gemini-2.5-flash", "gemini-3-flash-preview"] {
            gemini::upstream::write(&request, model).unwrap();
        }
        bedrock::upstream::write(&request, "amazon.nova-pro-v1:0").unwrap();
        // Claude has one.
        let told = &to_bedrock(&request)["additionalModelRequestFields"]["tool_choice"];
        assert_eq!(told["disable_parallel_tool_use"], true);
    }
}
