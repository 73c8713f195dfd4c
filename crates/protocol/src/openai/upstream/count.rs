//! `POST /responses/input_tokens`: how many tokens a request's prompt has, without an answer. It takes a request as the
//! Responses API has it, which is written here as far as it counts.

use crate::openai::to_json;
use crate::upstream::{counted, effort, wordless};
use crate::{
    Content, Error, GenerateRequest, Input, Message, Part, ReasoningEffort, ResponseFormat, Role, Tool,
};
use serde_json::{Map, Value, json};

/// The body that has `model` count.
///
/// # Errors
/// When the request is no conversation.
pub fn write_count(request: &GenerateRequest, model: &str) -> Result<String, Error> {
    let Input::Chat(messages) = &request.input else { return Err(wordless("prompt", "OpenAI's Responses")) };
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("model", model.into());
    put("input", messages.iter().flat_map(items).collect());
    if !request.tools.is_empty() {
        put("tools", request.tools.iter().map(tool).collect());
    }
    if let ResponseFormat::JsonSchema { name, schema, strict } = &request.response_format {
        let name = name.as_deref().unwrap_or("answer");
        put(
            "text",
            json!({"format": {"type": "json_schema", "name": name, "schema": schema, "strict": strict}}),
        );
    }
    if let Some(effort) = effort(request).filter(|effort| *effort != ReasoningEffort::None) {
        put("reasoning", json!({"effort": effort.as_str()}));
    }
    Ok(to_json(&body))
}

/// The tokens that were counted.
///
/// # Errors
/// When the body tells none.
pub fn read_count(body: &[u8]) -> Result<u32, Error> {
    counted(body, "input_tokens")
}

/// A message is one item or several: its words, each call, a result.
fn items(message: &Message) -> Vec<Value> {
    if message.role == Role::Tool {
        let output = parts(&message.content, "input_text");
        return vec![
            json!({"type": "function_call_output", "call_id": message.tool_call_id, "output": output}),
        ];
    }
    let kind = if message.role == Role::Assistant { "output_text" } else { "input_text" };
    let said = parts(&message.content, kind);
    let words = json!({"type": "message", "role": message.role.as_str(), "content": said});
    let calls = message.tool_calls.iter().map(|call| {
        json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
    });
    Some(words).filter(|_| !message.content.0.is_empty()).into_iter().chain(calls).collect()
}

fn parts(content: &Content, kind: &str) -> Value {
    let part = |part: &Part| match part {
        Part::Text(text) => json!({"type": kind, "text": text}),
        Part::Image { url, detail } => {
            json!({"type": "input_image", "image_url": url, "detail": detail.as_deref().unwrap_or("auto")})
        }
    };
    content.0.iter().map(part).collect()
}

fn tool(tool: &Tool) -> Value {
    json!({
        "type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters,
        "strict": tool.strict.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::testing::asked;

    #[test]
    fn a_conversation_with_calls_is_items() {
        let body = json!({"model": "m", "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "d"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]});
        let written: Value = serde_json::from_str(&write_count(&asked(&body), "gpt-5").unwrap()).unwrap();
        let message = |role: &str, kind: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
        let expected = json!([
            message("user", "input_text", "a"), message("assistant", "output_text", "b"),
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "d"}]},
        ]);
        assert_eq!((&written["model"], &written["input"]), (&json!("gpt-5"), &expected));
        assert_eq!(written["tools"][0]["name"], "f");
        assert_eq!(read_count(br#"{"object":"response.input_tokens","input_tokens":7}"#).unwrap(), 7);
        assert!(read_count(b"[]").is_err());
    }
}
