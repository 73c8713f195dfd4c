//! What is written and read here beside what LiteLLM makes of the same, conversation by conversation. Where the two
//! differ, `differences.json` says why and by what source; one that nobody explained fails, and so does an explanation
//! of what is no difference any more. How the other side was made: `fixtures/translation/README.md`.

use crate::openai::chat::{self, Asked};
use crate::openai::upstream::Speaker;
use crate::openai::{self, Head};
use crate::upstream::testing::gathered;
use crate::{AnswerReader, GenerateRequest, anthropic, bedrock, gemini};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;

fn load(name: &str) -> Value {
    let path = format!("{}/../../fixtures/translation/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()
}

/// Why one place differs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explanation {
    /// Names of pairs; one that ends with ` *` is all that begin so, and one that begins with `* ` all that end so.
    pairs: Vec<String>,
    /// The place: members and indices behind slashes, where `*` is any one. What stands below it belongs to it.
    path: String,
    /// The conversations; all where there are none.
    #[serde(default)]
    cases: Vec<String>,
    /// Who does as the source says; `both` where it allows either. Where it was LiteLLM, this program was mended.
    right: Right,
    /// What differs.
    why: String,
    /// Who says so.
    source: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Right {
    Hearth,
    Both,
}

impl Explanation {
    fn holds(&self, pair: &str, case: &str, path: &str) -> bool {
        let of = |pattern: &String| match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
            (Some(start), _) => pair.starts_with(start),
            (_, Some(end)) => pair.ends_with(end),
            _ => pattern == pair,
        };
        let mut found = path.split('/');
        let place =
            self.path.split('/').all(|wanted| found.next().is_some_and(|one| wanted == "*" || wanted == one));
        self.pairs.iter().any(of)
            && (self.cases.is_empty() || self.cases.iter().any(|one| one == case))
            && place
    }
}

/// The places at which two values differ. Lists of different lengths differ as a whole.
fn compare(ours: &Value, theirs: &Value, path: &str, found: &mut Vec<(String, Value, Value)>) {
    match (ours, theirs) {
        // Who refuses does so in its own words; where only one does, nothing else can be compared.
        (Value::Object(left), Value::Object(right))
            if left.contains_key("refused") || right.contains_key("refused") =>
        {
            let said = |side: &Map<String, Value>| side.get("refused").cloned().unwrap_or(Value::Null);
            if left.contains_key("refused") != right.contains_key("refused") {
                found.push((format!("{path}/refused"), said(left), said(right)));
            }
        }
        (Value::Object(left), Value::Object(right)) => {
            let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for name in names {
                let of = |side: &Map<String, Value>| side.get(name).cloned().unwrap_or(Value::Null);
                compare(&of(left), &of(right), &format!("{path}/{name}"), found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (at, (left, right)) in left.iter().zip(right).enumerate() {
                compare(left, right, &format!("{path}/{at}"), found);
            }
        }
        (Value::Number(left), Value::Number(right)) if left.as_f64() == right.as_f64() => {}
        _ if ours == theirs => {}
        _ => found.push((path.to_owned(), ours.clone(), theirs.clone())),
    }
}

/// Pairs of sides, by their name and that of the conversation.
struct Outcome {
    pairs: Vec<(String, String, Value, Value)>,
}

impl Outcome {
    /// Compares all; what nobody explained, or need not explain, fails.
    fn check(&self, direction: &str) {
        let explanations: Vec<Explanation> =
            serde_json::from_value(load("differences.json")[direction].clone()).unwrap();
        let mut used = vec![false; explanations.len()];
        let mut unexplained = String::new();
        let (mut same, mut only_free) = (0, 0);
        for (pair, case, ours, theirs) in &self.pairs {
            let mut found = Vec::new();
            compare(ours, theirs, "", &mut found);
            let mut free = !found.is_empty();
            same += usize::from(found.is_empty());
            for (path, ours, theirs) in found {
                // The one that says most of the place.
                let fits = (0..explanations.len()).filter(|at| explanations[*at].holds(pair, case, &path));
                let explained = fits.max_by_key(|at| {
                    let one = &explanations[*at];
                    (one.path.split('/').count(), !one.cases.is_empty())
                });
                match explained {
                    Some(at) => {
                        used[at] = true;
                        free &= explanations[at].right == Right::Both;
                    }
                    None => {
                        writeln!(unexplained, "{pair} | {case} | {path}\n    {ours}\n    {theirs}").unwrap()
                    }
                }
            }
            only_free += usize::from(free);
        }
        let all = self.pairs.len();
        println!("{direction}: {same} of {all} are the same, {only_free} differ in what is free alone");
        assert!(unexplained.is_empty(), "ours, then LiteLLM's:\n{unexplained}");
        let idle: Vec<&str> = explanations
            .iter()
            .zip(&used)
            .filter(|(one, used)| !**used || one.why.is_empty() || one.source.is_empty())
            .map(|(one, _)| one.path.as_str())
            .collect();
        assert!(idle.is_empty(), "explanations of what is no difference: {idle:?}");
    }
}

/// A request as the target has it, or what it is refused for.
fn written(target: &str, request: &GenerateRequest, thinks: bool) -> Value {
    let body = match target {
        "openai" => {
            let model = if thinks { "gpt-5" } else { "gpt-4.1" };
            openai::upstream::write(request, model, &Speaker::OPENAI, true)
        }
        "anthropic" => anthropic::upstream::write(request, "claude-sonnet-4-5-20250929"),
        "gemini-2.5" => gemini::upstream::write(request, "gemini-2.5-flash"),
        "gemini-3" => gemini::upstream::write(request, "gemini-3-flash-preview"),
        "bedrock" => bedrock::upstream::write(request, "anthropic.claude-sonnet-4-5-20250929-v1:0"),
        "nova" => bedrock::upstream::write(request, "amazon.nova-pro-v1:0"),
        other => panic!("no target {other}"),
    };
    body.map_or_else(|error| json!({"refused": error.param}), |body| serde_json::from_str(&body).unwrap())
}

#[test]
fn requests_are_as_litellm_writes_them_but_for_what_is_explained() {
    let theirs = load("litellm.json");
    let mut pairs = Vec::new();
    for (pair, cases) in theirs["asked"].as_object().unwrap() {
        let (client, target) = pair.split_once(" to ").unwrap();
        let bodies = load(&format!("asked-{client}.json"));
        let like = match target {
            "gemini-3" => "gemini-2.5",
            "nova" => "bedrock",
            other => other,
        };
        for (case, body) in bodies.as_object().unwrap() {
            let theirs =
                cases.get(case).unwrap_or_else(|| &theirs["asked"][format!("{client} to {like}")][case]);
            let mut body = body.clone();
            let thinks = body.get("thinking").is_some();
            body["model"] = "m".into();
            let body = body.to_string();
            let request = match client {
                "openai" => chat::parse(body.as_bytes()).map(|read| read.request),
                _ => anthropic::parse(body.as_bytes()).map(|read| read.request),
            };
            let ours = request.map_or_else(
                |error| json!({"refused": error.param}),
                |request| written(target, &request, thinks),
            );
            let theirs = if target.starts_with("gemini") { camel(theirs) } else { theirs.clone() };
            pairs.push((pair.clone(), case.clone(), plain(&ours, None), plain(&theirs, None)));
        }
    }
    Outcome { pairs }.check("asked");
}

/// Members of messages by their names in JSON; readers of Google's take those of its definitions for the same. What the
/// caller wrote stays.
fn camel(value: &Value) -> Value {
    let name = |name: &String| {
        let mut words = name.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |all, word| all + &word[..1].to_uppercase() + &word[1..])
    };
    match value {
        Value::Object(members) => {
            let member = |(key, inner): (&String, &Value)| match key.as_str() {
                "args" | "response" | "properties" | "response_json_schema" => (name(key), inner.clone()),
                _ => (name(key), camel(inner)),
            };
            members.iter().map(member).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(camel).collect(),
        other => other.clone(),
    }
}

fn reader(dialect: &str) -> Box<dyn AnswerReader> {
    match dialect {
        "openai" => Box::new(openai::upstream::Reader::new(1)),
        "anthropic" => Box::new(anthropic::upstream::Reader::new()),
        "gemini" => Box::new(gemini::upstream::Reader::new(1)),
        "bedrock" => Box::new(bedrock::upstream::Reader::new()),
        other => panic!("no dialect {other}"),
    }
}

/// The deltas of an answer, whole or streamed.
fn read(dialect: &str, answer: &Value, streamed: bool) -> Result<Vec<crate::Delta>, crate::Error> {
    let mut reader = reader(dialect);
    if !streamed {
        return reader.whole(answer["whole"].to_string().as_bytes());
    }
    let mut deltas = Vec::new();
    for event in answer["events"].as_array().unwrap() {
        let (name, data) = match event.as_array() {
            Some(pair) => (pair[0].as_str(), &pair[1]),
            None => (event["type"].as_str(), event),
        };
        deltas.extend(reader.event(name, &data.to_string())?);
    }
    if dialect == "openai" {
        deltas.extend(reader.event(None, "[DONE]")?);
    }
    deltas.extend(reader.end()?);
    Ok(deltas)
}

/// Without what says nothing.
fn tidy(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, inner)| (name, tidy(inner)));
            members.filter(|(_, inner)| !says_nothing(inner)).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.into_iter().map(tidy).collect(),
        other => other,
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(_) => false,
    }
}

/// An answer as a client of OpenAI's has it.
fn as_chat(deltas: Vec<crate::Delta>) -> Value {
    let answer = gathered(deltas);
    let head = Head { id: "chatcmpl-1".into(), created: 1, model: "m".into() };
    let asked = Asked { choices: 1, logprobs: false, include_usage: true };
    let told: Value = serde_json::from_str(&chat::completion(&head, &asked, &answer)).unwrap();
    let (choice, usage) = (&told["choices"][0], &told["usage"]);
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
        json!({"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]})
    });
    let thoughts =
        message["reasoning_details"].as_array().into_iter().flatten().map(|thought| match thought["data"] {
            Value::Null => {
                json!({"type": "thinking", "thinking": thought["text"], "signature": thought["signature"]})
            }
            ref data => json!({"type": "redacted_thinking", "data": data}),
        });
    tidy(json!({
        "content": message["content"], "reasoning": message["reasoning_content"],
        "calls": calls.collect::<Vec<_>>(), "thoughts": thoughts.collect::<Vec<_>>(),
        "finish": choice["finish_reason"],
        "usage": {"prompt": usage["prompt_tokens"], "completion": usage["completion_tokens"],
            "cached": usage["prompt_tokens_details"]["cached_tokens"],
            "written": usage["prompt_tokens_details"]["cache_write_tokens"],
            "reasoning": usage["completion_tokens_details"]["reasoning_tokens"]},
    }))
}

/// An answer as a client of Anthropic's has it.
fn as_message(deltas: Vec<crate::Delta>) -> Value {
    let head = anthropic::Head { id: "msg_1".into(), model: "m".into(), thoughts: true };
    let mut writer = anthropic::MessageWriter::new(head);
    deltas.into_iter().for_each(|delta| writer.push(delta));
    let told: Value = serde_json::from_str(&writer.finish()).unwrap();
    let usage = ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    let usage = usage.map(|name| (name.to_owned(), told["usage"][name].clone()));
    tidy(json!({
        "content": told["content"], "stop_reason": told["stop_reason"], "stop_sequence": told["stop_sequence"],
        "usage": Map::from_iter(usage),
    }))
}

/// What does not count: how ids begin, and spaces in JSON that is a text. Of an answer, by the provider's, ids that were
/// not given are made up, each in its own way.
fn plain(value: &Value, told: Option<&str>) -> Value {
    match value {
        Value::Object(members) => {
            let member = |(name, inner): (&String, &Value)| {
                let text = inner.as_str();
                let inner = match (name.as_str(), text) {
                    ("id" | "tool_use_id" | "tool_call_id" | "toolUseId", Some(text)) => {
                        let bare = ["call_", "toolu_"]
                            .iter()
                            .find_map(|start| text.strip_prefix(start))
                            .unwrap_or(text);
                        let given = told.is_none_or(|told| told.contains(&format!("_{bare}\"")));
                        if given { bare } else { "made up" }.into()
                    }
                    ("arguments" | "schema", Some(text)) => {
                        serde_json::from_str(text).unwrap_or_else(|_| inner.clone())
                    }
                    _ => plain(inner, told),
                };
                (name.clone(), inner)
            };
            members.iter().map(member).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(|item| plain(item, told)).collect(),
        other => other.clone(),
    }
}

#[test]
fn answers_are_as_litellm_reads_them_but_for_what_is_explained() {
    let mut pairs = Vec::new();
    for (pair, cases) in load("litellm.json")["answered"].as_object().unwrap() {
        let (dialect, client) = pair.split_once(" to ").unwrap();
        for (case, answer) in load(&format!("answered-{dialect}.json")).as_object().unwrap() {
            for (way, streamed) in [("whole", false), ("stream", true)] {
                let theirs = cases[case].get(way).unwrap_or_else(|| &cases[case]["whole"]);
                let ours = read(dialect, answer, streamed)
                    .map(if client == "openai" { as_chat } else { as_message })
                    .unwrap_or_else(|error| json!({"refused": error.message}));
                let told = answer.to_string();
                pairs.push((
                    pair.clone(),
                    format!("{case}, {way}"),
                    plain(&ours, Some(&told)),
                    plain(theirs, Some(&told)),
                ));
            }
        }
    }
    Outcome { pairs }.check("answered");
}
