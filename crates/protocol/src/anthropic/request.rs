//! Bodies of `POST /v1/messages` and of its count of tokens.

use super::history::History;
use super::layout::Layout;
use super::tools;
use crate::fields::{Object, missing, unsupported, wrong_type};
use crate::openai::chat::template_variables;
use crate::openai::parameters as shared;
use crate::{Error, ErrorKind, GenerateRequest, Input, ResponseFormat, json};
use indexmap::IndexMap;
use serde_json::Value;

/// Hottest temperature of this dialect.
const HOTTEST: f64 = 1.0;

/// Fields that do not change an answer here: hints for caches, billing, labels, and betas that a header names too.
const HARMLESS: &[&str] = &[
    "cache_control",
    "service_tier",
    "speed",
    "inference_geo",
    "diagnostics",
    "user_profile_id",
    "workspace_id",
    "betas",
    "anthropic_beta",
    "anthropic_version",
];

/// A message as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagesRequest {
    /// What to generate.
    pub request: GenerateRequest,
    /// Whether the answer is wanted as it is made.
    pub stream: bool,
    /// Whether the text of thoughts is wanted; else the blocks come without it.
    pub thoughts: bool,
    /// Where the request's fields stood in the body.
    pub layout: Layout,
}

/// Reads the body of a request for a message.
pub fn parse(body: &[u8]) -> Result<MessagesRequest, Error> {
    read(body, true)
}

/// Reads the body of a request to count tokens: the same fields, and none that only an answer needs.
pub fn parse_count(body: &[u8]) -> Result<MessagesRequest, Error> {
    read(body, false)
}

fn read(body: &[u8], answer: bool) -> Result<MessagesRequest, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let model = shared::model(&mut fields)?;
    // 0 reads the prompt into the cache and answers nothing.
    let max_tokens = fields.integer("max_tokens", 0..=i64::from(i32::MAX))?.map(|tokens| tokens as u32);
    if answer && max_tokens.is_none() {
        return Err(missing("max_tokens"));
    }
    thread(&mut fields)?;
    let mut layout = Layout::default();
    let mut history = History::default();
    if let Some(system) = fields.take("system") {
        history.system(system)?;
    }
    let messages = fields.array("messages")?.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() {
        return Err(Error::invalid("messages", "at least one message is required"));
    }
    for (index, message) in messages.into_iter().enumerate() {
        history.message(index, message)?;
    }
    let (messages, written) = history.finish(answer)?;
    layout.messages = written;
    let tool_list = tools::tools(&mut fields)?;
    let (tool_choice, parallel_tool_calls) = tools::tool_choice(&mut fields, &tool_list)?;
    let thinking = thinking(&mut fields)?;
    let output = output(&mut fields)?;
    layout.format = output.place;
    layout.variables = fields.has("chat_template_kwargs");
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let session = session(&mut fields)?;
    let request = GenerateRequest {
        model,
        input: Input::Chat(messages),
        tools: tool_list,
        tool_choice,
        parallel_tool_calls,
        response_format: output.format,
        sampling: shared::sampling(&mut fields, HOTTEST)?,
        max_tokens,
        stop: shared::stops(&mut fields, "stop_sequences")?,
        choices: 1,
        template_variables: variables(&mut fields, thinking.on, output.effort)?,
        user: session.clone(),
        session,
        cache_salt: shared::label(&mut fields, "cache_salt")?,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        reasoning_budget: thinking.budget,
        reasoning_unsaid: thinking.unsaid,
        stream,
        ..GenerateRequest::default()
    };
    context_management(&mut fields)?;
    if fields.array("mcp_servers")?.is_some_and(|servers| !servers.is_empty()) {
        return Err(unsupported("mcp_servers"));
    }
    fields.refuse(&["container", "compaction", "fallbacks", "fallback_credit_token", "billing_policy"])?;
    fields.harmless(HARMLESS);
    fields.finish()?;
    Ok(MessagesRequest { request, stream, thoughts: thinking.shown, layout })
}

/// `thread`: a conversation that the server holds. None is held here. Clients that begin one are served, and told that
/// it is gone when they go on with it; they send all of it then, most of which is in the prefix cache.
fn thread(fields: &mut Object) -> Result<(), Error> {
    let Some(mut thread) = fields.object("thread")? else { return Ok(()) };
    let kind = thread.required_string("type")?;
    match kind.as_str() {
        "create" => thread.finish(),
        "continue" => {
            let path = thread.path("previous_message_id");
            thread.required_string("previous_message_id")?;
            let message = "This server holds no conversations; send all of its messages";
            Err(Error::new(ErrorKind::NotFound, message).at(path))
        }
        _ => Err(Error::invalid(thread.path("type"), "supported are 'create' and 'continue'")),
    }
}

struct Thinking {
    on: bool,
    unsaid: bool,
    shown: bool,
    budget: Option<u32>,
}

/// `thinking`. Where it is absent the model does not think, as in Anthropic's API. Models here keep no budget:
/// `max_tokens` holds for thoughts too.
fn thinking(fields: &mut Object) -> Result<Thinking, Error> {
    let Some(mut thinking) = fields.object("thinking")? else {
        return Ok(Thinking { on: false, unsaid: true, shown: true, budget: None });
    };
    let mut budget = None;
    let on = match thinking.required_string("type")?.as_str() {
        "enabled" => {
            let path = thinking.path("budget_tokens");
            let tokens = thinking.integer("budget_tokens", 1..=i64::from(i32::MAX))?;
            budget = Some(tokens.ok_or_else(|| missing(&path))? as u32);
            true
        }
        "adaptive" | "between_tools" => {
            thinking.harmless(&["budget_tokens"]);
            true
        }
        "disabled" => false,
        _ => {
            let message = "supported are 'enabled', 'adaptive', 'between_tools' and 'disabled'";
            return Err(Error::invalid(thinking.path("type"), message));
        }
    };
    let shown = match thinking.string("display")?.as_deref() {
        None | Some("summarized" | "full") => true,
        Some("omitted") => false,
        Some(_) => {
            return Err(Error::invalid(thinking.path("display"), "supported are 'summarized' and 'omitted'"));
        }
    };
    thinking.finish()?;
    Ok(Thinking { on, unsaid: false, shown, budget })
}

/// Variables for the template: the switches of the families that think. One that a template does not know changes
/// nothing. What the caller writes by name goes before.
fn variables(
    fields: &mut Object,
    thinks: bool,
    effort: Option<&'static str>,
) -> Result<IndexMap<String, Value>, Error> {
    let mut variables: IndexMap<String, Value> =
        ["enable_thinking", "thinking"].map(|name| (name.to_owned(), Value::from(thinks))).into();
    if let Some(effort) = effort {
        variables.insert("reasoning_effort".to_owned(), effort.into());
    }
    variables.extend(template_variables(fields)?);
    Ok(variables)
}

struct Output {
    format: ResponseFormat,
    place: &'static str,
    effort: Option<&'static str>,
}

/// `output_config`, and `output_format` as older betas have it.
fn output(fields: &mut Object) -> Result<Output, Error> {
    let mut output = Output { format: ResponseFormat::Text, place: "output_config.format", effort: None };
    if let Some(mut config) = fields.object("output_config")? {
        let effort = config.string("effort")?;
        output.effort = match effort.as_deref() {
            None => None,
            Some("low") => Some("low"),
            Some("medium") => Some("medium"),
            // Open models know no more.
            Some("high" | "xhigh" | "max") => Some("high"),
            Some(_) => {
                let message = "supported are 'low', 'medium', 'high', 'xhigh' and 'max'";
                return Err(Error::invalid("output_config.effort", message));
            }
        };
        if let Some(format) = config.object("format")? {
            output.format = json_schema(format)?;
        }
        config.refuse(&["task_budget"])?;
        config.finish()?;
    }
    if let Some(format) = fields.object("output_format")? {
        if output.format != ResponseFormat::Text {
            let message = "'output_format' and 'output_config.format' mean the same; send one of them";
            return Err(Error::invalid("output_format", message));
        }
        output.place = "output_format";
        output.format = json_schema(format)?;
    }
    Ok(output)
}

fn json_schema(mut format: Object) -> Result<ResponseFormat, Error> {
    if format.required_string("type")? != "json_schema" {
        return Err(Error::invalid(format.path("type"), "supported is 'json_schema'"));
    }
    let path = format.path("schema");
    let schema = format.take("schema").ok_or_else(|| missing(&path))?;
    if !schema.is_object() {
        return Err(wrong_type(&path, "an object", &schema));
    }
    let name = format.string("name")?;
    format.finish()?;
    Ok(ResponseFormat::JsonSchema { name, schema, strict: Some(true) })
}

/// `metadata.user_id`: the caller's user, into which agents put the session.
fn session(fields: &mut Object) -> Result<Option<String>, Error> {
    let Some(mut metadata) = fields.object("metadata")? else { return Ok(None) };
    let session = shared::label(&mut metadata, "user_id")?;
    metadata.finish()?;
    Ok(session)
}

/// `context_management`. Whether old thoughts are kept is the template's choice, and results of tools stay: the
/// model sees more than it would have, and nothing else. A summary in place of the history cannot be left out.
fn context_management(fields: &mut Object) -> Result<(), Error> {
    let Some(mut management) = fields.object("context_management")? else { return Ok(()) };
    let path = management.path("edits");
    for (index, edit) in management.array("edits")?.unwrap_or_default().into_iter().enumerate() {
        let mut edit = Object::at(format!("{path}.{index}"), edit)?;
        let kind = edit.required_string("type")?;
        if !kind.starts_with("clear_thinking_") && !kind.starts_with("clear_tool_uses_") {
            let shown: String = kind.chars().take(64).collect();
            let message = format!("edits of type '{shown}' are not supported by this server");
            return Err(Error::new(ErrorKind::Unsupported, message).at(edit.path("type")));
        }
    }
    management.finish()
}
