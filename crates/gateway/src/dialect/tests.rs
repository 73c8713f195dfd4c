//! Usage as each wire reports it, whole and streamed, and errors inside answers.

use super::*;
use crate::sse::Framer;
use bytes::Bytes;

fn usage(input: u64, cached_input: Option<u64>, output: u64) -> Usage {
    Usage { input, cached_input, output, ..Usage::default() }
}

/// The usage of a stream of these events' data, the same wherever it is cut.
#[track_caller]
fn streamed(dialect: Dialect, events: &[&str]) -> Option<Usage> {
    let stream: String = events
        .iter()
        .map(|data| {
            match serde_json::from_str::<Value>(data)
                .ok()
                .and_then(|data| data["type"].as_str().map(str::to_owned))
            {
                Some(name) => format!("event: {name}\ndata: {data}\n\n"),
                None => format!("data: {data}\n\n"),
            }
        })
        .collect();
    let found = |cut: usize| {
        let (mut framer, mut watcher) = (Framer::default(), Watcher::new(dialect));
        for piece in [&stream[..cut], &stream[cut..]] {
            for frame in framer.push(Bytes::copy_from_slice(piece.as_bytes())).unwrap().iter() {
                watcher.frame(&frame);
            }
        }
        watcher.reported().map(|reported| reported.usage)
    };
    let whole = found(0);
    for cut in 0..stream.len() {
        assert_eq!(found(cut), whole, "cut at {cut}");
    }
    whole
}

fn of_body(dialect: Dialect, body: &str) -> Option<Usage> {
    dialect.usage_of_body(body.as_bytes()).map(|reported| reported.usage)
}

const USAGE: &str = r#"{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100,"prompt_tokens_details":{"cached_tokens":600}}"#;

/// Row 1 of the public faults: usage beside a choice was dropped, and an estimate charged in its place.
#[test]
fn usage_counts_in_whichever_chunk_it_comes() {
    for choices in [
        "[]",
        r#"[{"index":0,"delta":{}}]"#,
        r#"[{"index":0,"delta":{},"finish_reason":"stop"}]"#,
        r#"[{"index":0,"delta":{"content":"x"}}]"#,
    ] {
        let chunk = format!(r#"{{"choices":{choices},"usage":{USAGE}}}"#);
        let events = [r#"{"choices":[{"delta":{"content":"a"}}],"usage":null}"#, chunk.as_str(), "[DONE]"];
        assert_eq!(streamed(Dialect::OpenAi, &events), Some(usage(1000, Some(600), 100)), "{choices}");
    }
}

#[test]
fn of_several_reports_the_last_one_counts() {
    let events = [
        r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}"#,
    ];
    assert_eq!(streamed(Dialect::OpenAi, &events), Some(usage(5, None, 9)));
}

/// Row 2: zero cached tokens became none told.
#[test]
fn no_cached_tokens_and_none_told_differ() {
    for (details, cached) in [
        (r#","prompt_tokens_details":{"cached_tokens":0}"#, Some(0)),
        (r#","prompt_tokens_details":{"cached_tokens":null}"#, None),
        (r#","prompt_tokens_details":{}"#, None),
        (r#","prompt_tokens_details":null"#, None),
        ("", None),
    ] {
        let raw = format!(r#"{{"prompt_tokens":7,"completion_tokens":2{details}}}"#);
        let chunk = format!(r#"{{"choices":[],"usage":{raw}}}"#);
        assert_eq!(streamed(Dialect::OpenAi, &[&chunk]), Some(usage(7, cached, 2)), "{details}");
        assert_eq!(of_body(Dialect::OpenAi, &chunk), Some(usage(7, cached, 2)), "{details}");
    }
}

/// Row 5: the cached tokens of local engines were not seen. vLLM and SGLang tell them as OpenAI does, DeepSeek and
/// Moonshot in places of their own.
#[test]
fn cached_tokens_are_seen_where_each_provider_tells_them() {
    for details in [
        r#""prompt_tokens_details":{"cached_tokens":4}"#,
        r#""prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":3"#,
        r#""cached_tokens":4"#,
    ] {
        let body = format!(r#"{{"usage":{{"prompt_tokens":7,"completion_tokens":2,{details}}}}}"#);
        assert_eq!(of_body(Dialect::OpenAi, &body), Some(usage(7, Some(4), 2)), "{details}");
    }
}

#[test]
fn a_response_tells_its_usage_in_its_last_event() {
    let response = r#"{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":16}}"#;
    let events = [
        r#"{"type":"response.created","response":{"usage":null}}"#.to_owned(),
        r#"{"type":"response.output_text.delta","delta":"\"usage\""}"#.to_owned(),
        format!(r#"{{"type":"response.completed","response":{response}}}"#),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let expected = Usage { reasoning: Some(5), ..usage(7, Some(4), 9) };
    assert_eq!(streamed(Dialect::OpenAi, &events), Some(expected));
    assert_eq!(of_body(Dialect::OpenAi, response), Some(expected));
}

#[test]
fn thoughts_that_stand_beside_the_answer_are_part_of_it() {
    for (total, output) in [(112, 105), (12, 5), (17, 5)] {
        let body = format!(
            r#"{{"usage":{{"prompt_tokens":7,"completion_tokens":5,"total_tokens":{total},"completion_tokens_details":{{"reasoning_tokens":100}}}}}}"#
        );
        let expected = Usage { reasoning: Some(100), ..usage(7, None, output) };
        assert_eq!(of_body(Dialect::OpenAi, &body), Some(expected), "{total}");
    }
}

#[test]
fn embeddings_put_nothing_out() {
    let body = r#"{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    assert_eq!(of_body(Dialect::OpenAi, body), Some(usage(8, None, 0)));
}

#[test]
fn half_a_report_is_none() {
    assert_eq!(of_body(Dialect::OpenAi, r#"{"usage":{"prompt_tokens":8}}"#), None);
    assert_eq!(of_body(Dialect::OpenAi, r#"{"usage":{"prompt_tokens":-8,"completion_tokens":1}}"#), None);
    assert_eq!(of_body(Dialect::OpenAi, r#"{"usage":{}}"#), None);
}

#[test]
fn anthropics_cached_tokens_are_added_to_the_prompt() {
    let whole = r#"{"input_tokens":10,"cache_creation_input_tokens":20,"cache_read_input_tokens":30,"output_tokens":5}"#;
    let expected = Usage { cache_write: Some(20), ..usage(60, Some(30), 5) };
    assert_eq!(
        of_body(Dialect::Anthropic, &format!(r#"{{"type":"message","usage":{whole}}}"#)),
        Some(expected)
    );
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":10,"cache_creation_input_tokens":20,"cache_read_input_tokens":30,"output_tokens":1}}}"#;
    // The delta tells the output only, or everything again.
    for delta in [r#"{"output_tokens":5}"#, whole, r#"{"output_tokens":5,"input_tokens":null}"#] {
        let delta = format!(r#"{{"type":"message_delta","delta":{{}},"usage":{delta}}}"#);
        let events = [start, &delta, r#"{"type":"message_stop"}"#];
        assert_eq!(streamed(Dialect::Anthropic, &events), Some(expected), "{delta}");
    }
    // Broken off: what was told so far.
    assert_eq!(streamed(Dialect::Anthropic, &[start]).map(|usage| usage.output), Some(1));
}

#[test]
fn words_of_an_answer_are_not_usage() {
    let quoted =
        r#"{"choices":[{"delta":{"content":"{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}"}}]}"#;
    let nested = r#"{"choices":[{"delta":{"usage":{"prompt_tokens":1,"completion_tokens":1}}}]}"#;
    assert_eq!(streamed(Dialect::OpenAi, &[quoted, nested]), None);
}

fn seen(dialect: Dialect, frame: &str) -> Seen {
    Watcher::new(dialect).frame(frame.as_bytes())
}

#[test]
fn the_chunk_of_usage_alone_and_the_last_event_are_known() {
    for choices in [r"[]", r#"[{"index":0,"delta":{}}]"#, r#"[{"delta":{},"finish_reason":null}]"#] {
        let usage = format!("data: {{\"choices\":{choices},\"usage\":{USAGE}}}\n\n");
        assert_eq!(seen(Dialect::OpenAi, &usage), Seen { usage_only: true, usage: true, ..Seen::default() });
    }
    let finish = format!("data: {{\"choices\":[{{\"finish_reason\":\"stop\"}}],\"usage\":{USAGE}}}\n\n");
    assert_eq!(seen(Dialect::OpenAi, &finish), Seen { usage: true, ..Seen::default() });
    assert!(seen(Dialect::OpenAi, "data: [DONE]\n\n").last);
    assert!(seen(Dialect::OpenAi, "event: response.completed\ndata: {}\n\n").last);
    assert!(seen(Dialect::Anthropic, "event: message_stop\ndata: {}\n\n").last);
    assert_eq!(seen(Dialect::OpenAi, ": waiting\n\n"), Seen::default());
}

/// Row 32: an error inside an answer of status 200 was taken for an answer.
#[test]
fn an_error_in_place_of_an_answer_is_seen() {
    let fault = |body: &str| Dialect::OpenAi.answer_of_body(None, body.as_bytes()).err();
    let told = |status, message: &str| Some(Fault { status, message: message.to_owned() });
    let is_told = |status, message: &str| told(status, message).map(Bad::Told);
    assert_eq!(fault(r#"{"error":{"message":"no","code":502}}"#), is_told(Some(502), "no"));
    assert_eq!(fault(r#"{"error":{"message":"no","code":"rate_limit"}}"#), is_told(None, "no"));
    assert_eq!(fault(r#"{"error":"no"}"#), is_told(None, "no"));
    assert_eq!(fault(r#"{"error":null,"choices":[]}"#), None);
    assert_eq!(fault("[1]"), None);
    assert_eq!(fault(r#"{"object":"response","status":"failed","error":{"code":"server_error"}}"#), None);
    for unreadable in [" ", "<html>", "{\"choices\":["] {
        assert!(matches!(fault(unreadable), Some(Bad::Unreadable(_))), "{unreadable}");
    }
    let mut watcher = Watcher::new(Dialect::OpenAi);
    let event = r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"no"},"usage":null}}"#;
    assert!(watcher.frame(format!("event: response.failed\ndata: {event}\n\n").as_bytes()).last);
    assert_eq!(watcher.fault().cloned(), told(None, "no"));
    let mut watcher = Watcher::new(Dialect::Anthropic);
    let event = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    watcher.frame(format!("event: error\ndata: {event}\n\n").as_bytes());
    assert_eq!(watcher.fault().cloned(), told(Some(529), "Overloaded"));
}

#[test]
fn the_tier_is_the_one_that_the_answer_tells_whole_and_streamed() {
    let told = |dialect: Dialect, body: &str| dialect.usage_of_body(body.as_bytes()).unwrap().usage.tier;
    let chat = |tier: &str| {
        format!(
            r#"{{"service_tier":{tier},"choices":[],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#
        )
    };
    for (word, tier) in [
        ("null", Tier::Standard),
        ("\"default\"", Tier::Standard),
        ("\"flex\"", Tier::Flex),
        ("\"priority\"", Tier::Priority),
        ("\"scale\"", Tier::Other),
    ] {
        let body = chat(word);
        assert_eq!(told(Dialect::OpenAi, &body), tier, "{word}");
        assert_eq!(streamed(Dialect::OpenAi, &[&body, "[DONE]"]).unwrap().tier, tier, "{word}");
    }
    let event = r#"{"type":"response.completed","response":{"service_tier":"flex","usage":{"input_tokens":3,"output_tokens":4}}}"#;
    assert_eq!(streamed(Dialect::OpenAi, &[event]).unwrap().tier, Tier::Flex);
    let message = r#"{"usage":{"input_tokens":3,"output_tokens":4,"service_tier":"batch"}}"#;
    assert_eq!(told(Dialect::Anthropic, message), Tier::Batch);
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1,"service_tier":"priority"}}}"#;
    let end = r#"{"type":"message_delta","usage":{"output_tokens":4}}"#;
    assert_eq!(streamed(Dialect::Anthropic, &[start, end]).unwrap().tier, Tier::Priority);
}

#[test]
fn tokens_of_images_and_sound_are_told_apart() {
    let other = |details: &str| {
        let body = format!(r#"{{"usage":{{"prompt_tokens":9,"completion_tokens":4,{details}}}}}"#);
        Dialect::OpenAi.usage_of_body(body.as_bytes()).unwrap().usage.other
    };
    assert!(!other(r#""prompt_tokens_details":{"audio_tokens":0,"cached_tokens":3}"#));
    assert!(other(r#""prompt_tokens_details":{"audio_tokens":2}"#));
    assert!(other(r#""completion_tokens_details":{"audio_tokens":2}"#));
    assert!(other(r#""input_tokens_details":{"image_tokens":2}"#));
}

#[test]
fn each_prompt_has_as_many_answers_as_n_or_best_of_say() {
    for (body, answers) in [
        (r#"{"prompt":"a"}"#, 1),
        (r#"{"prompt":[1,2,3]}"#, 1),
        (r#"{"prompt":["a","b"],"n":2,"best_of":5}"#, 10),
        (r#"{"prompt":[[1,2],[3]],"n":3}"#, 6),
        (r#"{"prompt":{"id":"p"},"best_of":null}"#, 1),
    ] {
        let found = crate::scan::scan(body.as_bytes()).unwrap();
        assert_eq!(Dialect::OpenAi.answers(&found, body.as_bytes()), Ok(answers), "{body}");
    }
}

#[test]
fn json_that_is_no_answer_to_what_was_asked_is_none_where_that_is_known() {
    for (dialect, form, good, bad) in [
        (Dialect::OpenAi, Form::Chat, r#"{"choices":[]}"#, "{}"),
        (Dialect::OpenAi, Form::Responses, r#"{"output":[]}"#, r#"{"message":"ok"}"#),
        (Dialect::OpenAi, Form::Embeddings, r#"{"data":[]}"#, "[]"),
        (Dialect::Anthropic, Form::Messages, r#"{"content":[]}"#, "\"hello\""),
        (
            Dialect::Gemini,
            Form::Gemini,
            r#"[{"candidates":[{"finishReason":"STOP"}]}]"#,
            r#"[{"candidates":[]}"#,
        ),
        (Dialect::Gemini, Form::Gemini, r#"{"promptFeedback":{}}"#, r#"[{"candidates":[]}]"#),
        (Dialect::Bedrock, Form::Converse, r#"{"output":{}}"#, "null"),
    ] {
        assert_eq!(dialect.answer_of_body(Some(form), good.as_bytes()), Ok(None), "{good}");
        assert!(
            matches!(dialect.answer_of_body(Some(form), bad.as_bytes()), Err(Bad::Unreadable(_))),
            "{bad}"
        );
    }
}
