//! The conversation as a chat template sees it: OpenAI's form, as `transformers` is given it, or, where a template knows
//! no tools, the same told in plain messages.
//!
//! Tools are given whatever `tool_choice` says, `none` too: the prompt then keeps its prefix when a loop of calls
//! ends with a turn that may make none.

use crate::template::{ChatTemplate, Conversation};
use crate::tools::Family;
use protocol::{Content, GenerateRequest, Message, Part, ReasoningEffort, Role, Tool, ToolCall};
use serde_json::{Map, Value as Json};
use std::collections::HashMap;

/// The conversation as templates know it.
pub(super) fn conversation(
    request: &GenerateRequest,
    messages: &[Message],
    template: &ChatTemplate,
    family: &Family,
    now: u64,
) -> Conversation {
    let mut variables: Map<String, Json> =
        request.template_variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    if let Some(effort) = request.reasoning_effort {
        let name = match effort {
            ReasoningEffort::None => "none",
            ReasoningEffort::Minimal => "minimal",
            ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
        };
        // A model that does not think does nothing with an effort: clients send one whatever the model.
        for (variable, value) in [
            ("reasoning_effort", Json::from(name)),
            ("enable_thinking", Json::from(effort != ReasoningEffort::None)),
        ] {
            if template.mentions(variable) {
                variables.entry(variable).or_insert(value);
            }
        }
        // The word alone is in many templates; this one asks for it.
        if template.takes("thinking") {
            variables.entry("thinking").or_insert((effort != ReasoningEffort::None).into());
        }
    }
    let known = family.knows_tools() && template.mentions("tools");
    let tools: Option<Vec<Json>> =
        (known && !request.tools.is_empty()).then(|| request.tools.iter().map(tool).collect());
    // SmolLM3's name for them, and the functions alone.
    if let Some(tools) = &tools
        && template.takes("xml_tools")
    {
        let functions = tools.iter().map(|tool| tool["function"].clone()).collect::<Json>();
        variables.entry("xml_tools").or_insert(functions);
    }
    let messages = if known && template.mentions("tool_calls") {
        let suited = super::calls::suited(messages, template, family);
        suited.iter().map(|said| message(said, template)).collect()
    } else {
        let told = fallback(messages, if known { &[] } else { &request.tools }, family);
        told.iter().map(|said| message(said, template)).collect()
    };
    // Another name for what is asked of the prompt's end, as in vLLM.
    let add_generation_prompt = variables.shift_remove("add_generation_prompt") != Some(Json::Bool(false));
    Conversation { messages, tools, variables, add_generation_prompt, now }
}

fn message(message: &Message, template: &ChatTemplate) -> Map<String, Json> {
    let mut out = Map::new();
    let role = match message.role {
        // Only some families tell the two apart.
        Role::Developer if !template.mentions("developer") => Role::System,
        role => role,
    };
    out.insert("role".into(), role.as_str().into());
    let mut content = message.content.joined_text();
    let mut reasoning = message.reasoning.clone();
    if role == Role::Assistant
        && reasoning.is_none()
        && template.mentions("reasoning_content")
        && let Some((thought, answer)) = content.split_once("</think>")
        && !answer.contains("</think>")
    {
        // As these templates themselves take it out of the content, which would hide whose text is whose.
        let thought = thought.trim_end_matches('\n').rsplit("<think>").next().unwrap_or_default();
        reasoning = Some(thought.trim_start_matches('\n').to_owned());
        content = answer.trim_start_matches('\n').to_owned();
    }
    let silent = message.content.0.is_empty() && !message.tool_calls.is_empty();
    out.insert("content".into(), if silent { Json::Null } else { content.into() });
    if let Some(reasoning) = reasoning {
        out.insert(thought_key(template).into(), reasoning.into());
    }
    if let Some(name) = &message.name {
        out.insert("name".into(), name.as_str().into());
    }
    if let Some(id) = &message.tool_call_id {
        out.insert("tool_call_id".into(), id.as_str().into());
    }
    if !message.tool_calls.is_empty() {
        out.insert("tool_calls".into(), message.tool_calls.iter().map(tool_call).collect());
    }
    out
}

/// A tool as `transformers` is given it: OpenAI's form, its schema as the caller wrote it.
fn tool(tool: &Tool) -> Json {
    let mut function = Map::new();
    function.insert("name".into(), tool.name.as_str().into());
    if let Some(description) = &tool.description {
        function.insert("description".into(), description.as_str().into());
    }
    // Templates look into it, and OpenAI takes none for this.
    let none = || serde_json::json!({"type": "object", "properties": {}});
    function.insert("parameters".into(), tool.parameters.clone().unwrap_or_else(none));
    serde_json::json!({"type": "function", "function": function})
}

/// Where a template knows thoughts, under the name it has for them.
fn thought_key(template: &ChatTemplate) -> &'static str {
    let key = ["reasoning_content", "reasoning", "thinking"].into_iter().find(|key| {
        let forms = [format!(".{key}"), format!("['{key}']"), format!("[\"{key}\"]"), format!("'{key}' in ")];
        forms.iter().any(|form| template.mentions(form))
    });
    key.unwrap_or("reasoning_content")
}

/// The conversation in words that a template without tools renders.
fn fallback(messages: &[Message], tools: &[Tool], family: &Family) -> Vec<Message> {
    let mut told: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    // Names of calls by id, the newest call of an id.
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut results = false;
    for message in messages {
        let follows = std::mem::replace(&mut results, message.role == Role::Tool);
        match message.role {
            Role::Tool => {
                let of_call = message.tool_call_id.as_deref().and_then(|id| names.get(id).copied());
                let name = message.name.as_deref().or(of_call);
                let text = family.result_text(name, &message.content.joined_text());
                match told.last_mut() {
                    // Results of one turn are one message: many templates want the roles to alternate.
                    Some(last) if follows => last.content.0.push(Part::Text(format!("\n{text}"))),
                    _ => told.push(Message::text(Role::User, text)),
                }
            }
            Role::Assistant if !message.tool_calls.is_empty() => {
                names.extend(message.tool_calls.iter().map(|call| (call.id.as_str(), call.name.as_str())));
                let mut content = message.content.joined_text();
                if !content.is_empty() {
                    content.push('\n');
                }
                content += &family.calls_text(&message.tool_calls);
                let content = Content(vec![Part::Text(content)]);
                told.push(Message { content, tool_calls: Vec::new(), ..message.clone() });
            }
            _ => told.push(message.clone()),
        }
    }
    if !tools.is_empty() {
        let text = family.instructions(tools);
        match told.first_mut() {
            Some(first) if matches!(first.role, Role::System | Role::Developer) => {
                first.content.0.push(Part::Text(format!("\n\n{text}")));
            }
            _ => told.insert(0, Message::text(Role::System, text)),
        }
    }
    told
}

/// The same where the template takes no system message: what it says begins the first message of a user.
pub(super) fn without_system(conversation: &Conversation) -> Option<Conversation> {
    let mut conversation = conversation.clone();
    let first = conversation.messages.first().filter(|message| message["role"] == "system")?;
    let text = first.get("content")?.as_str()?.to_owned();
    conversation.messages.remove(0);
    let user = conversation.messages.first_mut().filter(|message| message["role"] == "user")?;
    let said = user.get("content")?.as_str()?;
    let whole = format!("{text}\n\n{said}");
    user.insert("content".into(), whole.into());
    Some(conversation)
}

/// Templates want arguments as an object, which [`super::history`] made sure they are.
fn tool_call(call: &ToolCall) -> Json {
    let arguments = super::history::arguments(call);
    let arguments = arguments.map_or_else(|_| Json::from(call.arguments.as_str()), Json::Object);
    serde_json::json!({
        "id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::ControlTexts;
    use std::sync::Arc;
    use tokenizer::{GgufVocab, Tokenizer};

    fn tokenizer() -> Tokenizer {
        let tokens: Vec<&[u8]> = vec![b"a", b"<|im_end|>"];
        let vocab = GgufVocab {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens,
            types: vec![1, 3],
            eos: Some(1),
            ..GgufVocab::default()
        };
        Tokenizer::from_gguf(vocab).unwrap()
    }

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, None, None, Arc::new(ControlTexts::default())).unwrap()
    }

    fn one(message: Message, source: &str) -> Json {
        Json::Object(super::message(&message, &template(source)))
    }

    #[test]
    fn developers_speak_as_the_system_where_the_template_knows_no_other() {
        let said = || Message::text(Role::Developer, "x");
        assert_eq!(one(said(), "{{ messages }}")["role"], "system");
        assert_eq!(one(said(), "{% if role == 'developer' %}{% endif %}")["role"], "developer");
    }

    #[test]
    fn thoughts_in_content_are_taken_apart_where_the_template_would_do_so() {
        let said = || Message::text(Role::Assistant, "<think>\nEasy.\n</think>\n\nFour.");
        let taken = one(said(), "{{ message.reasoning_content }}");
        assert_eq!((&taken["reasoning_content"], &taken["content"]), (&"Easy.".into(), &"Four.".into()));
        let left = one(said(), "{{ message.content }}");
        assert_eq!(left["content"], "<think>\nEasy.\n</think>\n\nFour.");
    }

    #[test]
    fn arguments_become_an_object_and_silence_none() {
        let call =
            |arguments: &str| ToolCall { id: "i".into(), name: "f".into(), arguments: arguments.into() };
        let said = Message {
            content: Content::default(),
            tool_calls: vec![call("{\"b\": 1, \"a\": [2]}"), call("")],
            ..Message::text(Role::Assistant, "")
        };
        let made = one(said, "{{ tool_calls }}");
        assert_eq!(made["content"], Json::Null);
        assert_eq!(made["tool_calls"][0]["function"]["arguments"].to_string(), "{\"b\":1,\"a\":[2]}");
        assert_eq!(made["tool_calls"][1]["function"]["arguments"], Json::Object(Map::new()));
    }

    #[test]
    fn tools_go_under_the_name_that_the_template_has_for_them() {
        let source = "{% if xml_tools %}<tool_call>{{ xml_tools }}{% endif %}<think>";
        let tool = Tool { name: "f".into(), description: None, parameters: None, strict: None, cache: None };
        let request = GenerateRequest { tools: vec![tool], ..GenerateRequest::default() };
        let family = crate::tools::family(Some(source), &tokenizer());
        let made = conversation(&request, &[], &template(source), family, 0);
        assert_eq!(made.variables["xml_tools"][0]["name"], "f");
    }

    #[test]
    fn calls_that_a_template_names_by_id_alone_bear_ids_that_say_the_name_and_are_read_back() {
        use crate::tools::{Ask, Piece, Thinking};
        let source = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}\
                      <|tool_calls_section_begin|>{% for call in m.tool_calls %}<|tool_call_begin|>{{ call.id }}\
                      <|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>\
                      {% endfor %}<|tool_calls_section_end|>{% elif m.role == 'tool' %}=> {{ m.tool_call_id }};\
                      {% endif %}{% endfor %}";
        let calls = |calls: &[(&str, &str)]| Message {
            content: Content::default(),
            tool_calls: calls
                .iter()
                .map(|(id, name)| ToolCall { id: (*id).into(), name: (*name).into(), arguments: "{}".into() })
                .collect(),
            ..Message::text(Role::Assistant, "")
        };
        let result = |id: &str| Message { tool_call_id: Some(id.into()), ..Message::text(Role::Tool, "4") };
        let family = crate::tools::family(Some(source), &tokenizer());
        let tool = |name: &str| Tool {
            name: name.into(),
            description: None,
            parameters: None,
            strict: None,
            cache: None,
        };
        let request = GenerateRequest { tools: vec![tool("f"), tool("g")], ..GenerateRequest::default() };
        let messages = [
            calls(&[("call_1", "f"), ("call_1", "g")]),
            result("call_1"),
            result("call_1"),
            // As the model itself, behind another server, named it.
            calls(&[("functions.f:7", "f"), ("functions.f:8", "g")]),
            result("functions.f:8"),
            result("functions.f:7"),
            // An id that was there before.
            calls(&[("call_1", "g")]),
            result("call_1"),
        ];
        let template = template(source);
        let made = conversation(&request, &messages, &template, family, 0);
        let ids = |key: &str| {
            let of = |message: &Map<String, Json>| match key {
                "id" => message.get("tool_calls").and_then(Json::as_array).cloned().unwrap_or_default(),
                _ => message.get(key).map(|id| serde_json::json!({"id": id})).into_iter().collect(),
            };
            let all: Vec<String> =
                made.messages.iter().flat_map(of).map(|c| c["id"].as_str().unwrap().to_owned()).collect();
            all
        };
        let calls = ["functions.f:0", "functions.g:1", "functions.f:7", "functions.g:3", "functions.g:4"];
        assert_eq!(ids("id"), calls);
        let results = ["functions.f:0", "functions.g:1", "functions.g:3", "functions.f:7", "functions.g:4"];
        assert_eq!(ids("tool_call_id"), results);
        // The model reads its history in the form that its answers are read in.
        let text = template.render(&made).unwrap().text();
        let ask = Ask {
            tools: &request.tools,
            choice: &request.tool_choice,
            parallel: None,
            format: &request.response_format,
            thinking: Thinking::No,
            constrained: false,
        };
        let (mut parser, mut out) = (family.parser(&ask), Vec::new());
        parser.push(&text[text.find("<|tool").unwrap()..], &mut out);
        assert_eq!(parser.finish(&mut out).calls, 5);
        let names: String = out
            .iter()
            .filter_map(|piece| match piece {
                Piece::CallStart { name, .. } => Some(name.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(names, "fgfgg");
    }

    #[test]
    fn effort_reaches_the_variable_that_the_template_has() {
        let asked = |effort: ReasoningEffort, source: &str| {
            let request = GenerateRequest { reasoning_effort: Some(effort), ..GenerateRequest::default() };
            conversation(&request, &[], &template(source), crate::tools::family(None, &tokenizer()), 0)
                .variables
        };
        let none = |source: &str| asked(ReasoningEffort::None, source);
        assert_eq!(none("{{ enable_thinking }}")["enable_thinking"], false);
        assert_eq!(none("{{ reasoning_effort }}")["reasoning_effort"], "none");
        // A template that knows none is given none: an effort does nothing there.
        for idle in [none("{{ messages }}<think>"), asked(ReasoningEffort::High, "{{ messages }}")] {
            assert!(idle.is_empty(), "{idle:?}");
        }
    }
}
