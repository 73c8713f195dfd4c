//! Legacy completions: prompts in every form, echo, and logprobs whose offsets fit the text.

use super::*;
use crate::{ErrorKind, TokenLogprob};
use serde_json::json;

fn parsed(more: &Value) -> Result<CompletionRequest, Error> {
    let mut body = json!({"model": "m"});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    parse(body.to_string().as_bytes())
}

fn entry(bytes: &[u8]) -> Logprobs {
    let token = String::from_utf8_lossy(bytes).into_owned();
    Logprobs { chosen: TokenLogprob { token, bytes: bytes.to_vec(), id: 1, logprob: -1.0 }, top: Vec::new() }
}

#[test]
fn prompts_are_texts_or_token_ids_one_or_many() {
    let prompts = |prompt: Value| -> Vec<Prompt> {
        let requests = parsed(&json!({"prompt": prompt})).unwrap().requests;
        requests
            .into_iter()
            .map(|request| match request.input {
                Input::Prompt(prompt) => prompt,
                Input::Chat(_) => panic!("a raw prompt"),
            })
            .collect()
    };
    let text = |text: &str| Prompt::Text(text.to_owned());
    assert_eq!(prompts(json!("a")), [text("a")]);
    assert_eq!(prompts(json!(["a", "b"])), [text("a"), text("b")]);
    assert_eq!(prompts(json!([1, 2])), [Prompt::Tokens(vec![1, 2])]);
    assert_eq!(prompts(json!([[1], [2, 3]])), [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]);
}

#[test]
fn wrong_values_are_named() {
    for (more, kind, param) in [
        (json!({}), ErrorKind::InvalidRequest, "prompt"),
        (json!({"prompt": []}), ErrorKind::InvalidRequest, "prompt"),
        (json!({"prompt": {}}), ErrorKind::InvalidRequest, "prompt"),
        (json!({"prompt": ["a", 1]}), ErrorKind::InvalidRequest, "prompt[1]"),
        (json!({"prompt": [1, "a"]}), ErrorKind::InvalidRequest, "prompt[1]"),
        (json!({"prompt": [[]]}), ErrorKind::InvalidRequest, "prompt[0]"),
        (json!({"prompt": [[1, -1]]}), ErrorKind::InvalidRequest, "prompt[0][1]"),
        (json!({"prompt": vec!["a"; 513]}), ErrorKind::InvalidRequest, "prompt"),
        (json!({"prompt": "a", "logprobs": true}), ErrorKind::InvalidRequest, "logprobs"),
        (json!({"prompt": "a", "logprobs": 21}), ErrorKind::InvalidRequest, "logprobs"),
        (json!({"prompt": "a", "max_tokens": 0}), ErrorKind::InvalidRequest, "max_tokens"),
        (json!({"prompt": "a", "best_of": 2}), ErrorKind::Unsupported, "best_of"),
        (json!({"prompt": "a", "suffix": "z"}), ErrorKind::Unsupported, "suffix"),
        (json!({"prompt": "a", "messages": []}), ErrorKind::InvalidRequest, "messages"),
    ] {
        let error = parsed(&more).expect_err(&more.to_string());
        assert_eq!((error.kind, error.param.as_deref()), (kind, Some(param)), "{more}");
    }
    assert!(parsed(&json!({"prompt": "a", "best_of": 2, "n": 2, "suffix": ""})).is_ok());
}

#[test]
fn reading_a_prompt_without_an_answer_needs_echo() {
    let asked = parsed(&json!({"prompt": "a", "max_tokens": 0, "echo": true, "logprobs": 2})).unwrap();
    assert_eq!(asked.requests[0].max_tokens, Some(0));
    assert_eq!(asked.requests[0].prompt_logprobs, Some(2));
    // The text of token ids is learnt from their log-probabilities.
    let asked = parsed(&json!({"prompt": [1], "echo": true})).unwrap();
    assert_eq!(asked.requests[0].prompt_logprobs, Some(0));
}

/// The whole answer and the joined stream to one request.
fn answers(more: &Value, deltas: &[Delta]) -> (Value, Vec<Value>) {
    let asked = Asked::from(&parsed(more).unwrap());
    let head = Head { id: "cmpl-1".to_owned(), created: 1, model: "m".to_owned() };
    let mut answer = Answer::new(1);
    let mut writer = ChunkWriter::new(head.clone(), asked.clone(), 1);
    let mut events = Vec::new();
    for delta in deltas {
        answer.push(delta.clone());
        events.extend(writer.delta(0, delta.clone()));
    }
    let whole: Value = serde_json::from_str(&completion(&head, &asked, &[answer])).unwrap();
    let chunks = events
        .iter()
        .map(|event| serde_json::from_str::<Value>(&event.data).unwrap()["choices"][0].take())
        .collect();
    (whole["choices"][0].clone(), chunks)
}

#[test]
fn offsets_count_characters_of_the_echoed_text() {
    let deltas = [
        Delta::Started { prompt_tokens: 3, cached_tokens: 2 },
        // A begin token and a leading space do not stand in the prompt's text.
        Delta::PromptLogprobs(vec![entry(b"<s>"), entry(" é".as_bytes())]),
        Delta::PromptLogprobs(vec![entry(b" b")]),
        Delta::Text { choice: 0, text: " ü".to_owned(), logprobs: vec![entry(b" \xc3"), entry(b"\xbc")] },
        Delta::Text { choice: 0, text: "!".to_owned(), logprobs: vec![entry(b"!")] },
        Delta::Finish { choice: 0, reason: FinishReason::Length, stop_text: None },
        Delta::Usage(Usage::default()),
    ];
    let (whole, chunks) = answers(&json!({"prompt": "é b", "echo": true, "logprobs": 0}), &deltas);
    assert_eq!(whole["text"], "é b ü!");
    assert_eq!(
        whole["logprobs"]["tokens"],
        json!(["<s>", " é", " b", "bytes:\\x20\\xc3", "bytes:\\xbc", "!"])
    );
    assert_eq!(whole["logprobs"]["text_offset"], json!([0, 0, 1, 3, 5, 5]));
    assert_eq!(whole["finish_reason"], "length");
    let joined: String = chunks.iter().map(|chunk| chunk["text"].as_str().unwrap()).collect();
    assert_eq!(joined, "é b ü!");
    let offsets: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["logprobs"]["text_offset"].as_array()).flatten().collect();
    assert_eq!(json!(offsets), whole["logprobs"]["text_offset"]);
}

#[test]
fn token_ids_are_echoed_by_their_text() {
    let deltas = [
        Delta::Started { prompt_tokens: 3, cached_tokens: 2 },
        Delta::PromptLogprobs(vec![entry(b"h\xc3"), entry(b"\xa9")]),
        Delta::Finish { choice: 0, reason: FinishReason::Length, stop_text: None },
        Delta::Usage(Usage::default()),
    ];
    let (whole, chunks) = answers(&json!({"prompt": [1, 2], "echo": true, "max_tokens": 0}), &deltas);
    assert_eq!((&whole["text"], &whole["logprobs"]), (&json!("hé"), &Value::Null));
    assert_eq!(chunks[0]["text"], "hé");
}

#[test]
fn prompt_logprobs_come_in_the_choice() {
    let deltas = [
        Delta::Started { prompt_tokens: 3, cached_tokens: 2 },
        Delta::PromptLogprobs(vec![entry(b"a")]),
        Delta::Text { choice: 0, text: "b".to_owned(), logprobs: Vec::new() },
        Delta::Usage(Usage::default()),
    ];
    let (whole, _) = answers(&json!({"prompt": "a", "prompt_logprobs": 0}), &deltas);
    assert_eq!(whole["text"], "b");
    assert_eq!(
        whole["prompt_logprobs"],
        json!([{"1": {"logprob": -1.0, "rank": null, "decoded_token": "a"}}])
    );
}

#[test]
fn minus_one_takes_what_fits_in_place_of_the_default() {
    let limit = |more: &str| {
        let body = format!(r#"{{"model": "m", "prompt": "a"{more}}}"#);
        parse(body.as_bytes()).unwrap().requests[0].max_tokens
    };
    assert_eq!((limit(""), limit(r#", "max_tokens": -1"#)), (Some(16), None));
}
