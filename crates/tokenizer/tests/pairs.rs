//! Two texts as one input are what the reference makes of them.

#![allow(clippy::unwrap_used, reason = "test code outside of #[test] functions")]

mod support;

use serde_json::Value;
use std::path::Path;
use support::{json, tiny};
use tokenizer::{Error, Tokenizer};

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[track_caller]
fn check(tokenizer: &Tokenizer, cases: &Value, limit: usize) {
    let around = tokenizer.pair(&[], &[]).unwrap().ids.len();
    let cases = cases.as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let encode = |key: &str| tokenizer.encode_ordinary(case[key].as_str().unwrap());
        let (first, mut second) = (encode("query"), encode("document"));
        second.truncate(limit - around - first.len());
        let pair = tokenizer.pair(&first, &second).unwrap();
        assert_eq!((pair.ids, pair.types), (ids(&case["ids"]), ids(&case["types"])), "{}", case["query"]);
    }
}

#[test]
fn pairs_of_rerankers_equal_the_reference() {
    for name in ["bert-reranker", "roberta-reranker"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name);
        let tokenizer =
            Tokenizer::from_json(&std::fs::read(folder.join("tokenizer.json")).unwrap(), None).unwrap();
        let golden: Value =
            serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        check(&tokenizer, &golden["variants"][0]["cases"], 64);
    }
}

#[test]
fn pairs_of_bert_s_and_roberta_s_own_processors_equal_the_reference() {
    let golden = json("golden/tiny-pairs.json");
    check(&tiny("wordpiece"), &golden["wordpiece"], usize::MAX);
    check(&tiny("unigram"), &golden["unigram"], usize::MAX);
}

#[test]
fn pairs_of_xlm_roberta_s_template_equal_the_reference() {
    let golden = json("golden/tiny-pairs.json");
    for name in ["xlm-roberta", "xlm-roberta-new"] {
        let tokenizer = tiny(name);
        check(&tokenizer, &golden[name], usize::MAX);
        // <s> a </s></s> b </s>
        assert_eq!(tokenizer.pair(&[7], &[8, 9]).unwrap().ids, [0, 7, 2, 2, 8, 9, 2]);
    }
}

/// The tiny WordPiece tokenizer with another post-processor.
fn with(processor: Value) -> Result<Tokenizer, Error> {
    let mut file = json("tiny/wordpiece.json");
    file["post_processor"] = processor;
    Tokenizer::from_json(file.to_string().as_bytes(), None)
}

fn template(pair: Value) -> Value {
    serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": pair,
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
    })
}

#[test]
fn a_form_of_pairs_that_is_not_built_is_none_and_does_not_keep_a_tokenizer_from_loading() {
    let sequence = |id: &str| serde_json::json!({"Sequence": {"id": id, "type_id": 0}});
    let good = template(serde_json::json!([sequence("A"), sequence("B")]));
    assert_eq!(with(good.clone()).unwrap().pair(&[7], &[8]).unwrap().ids, [7, 8]);
    let twice = serde_json::json!({"type": "Sequence", "processors": [good, good]});
    for processor in [
        Value::Null,
        serde_json::json!({"type": "ByteLevel"}),
        template(serde_json::json!([])),
        template(serde_json::json!([sequence("B"), sequence("A")])),
        template(serde_json::json!([sequence("A"), sequence("A")])),
        template(serde_json::json!([sequence("A"), sequence("B"), sequence("B")])),
        twice,
    ] {
        assert_eq!(with(processor.clone()).unwrap().pair(&[7], &[8]), None, "{processor}");
    }
    let unknown = template(serde_json::json!([{"SpecialToken": {"id": "[SEP]", "type_id": 0}}]));
    assert!(with(unknown).is_err());
}
