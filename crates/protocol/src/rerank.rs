//! Rerank in the form that Jina, Cohere and vLLM share: a query and documents in, scores out, best first.
//!
//! OpenAI has none. What would change the scores and is not built is refused by name.

use crate::fields::{Object, element, missing, wrong_type};
use crate::openai::parameters as shared;
use crate::openai::to_json;
use crate::{Error, RerankRequest, Scores, json};
use serde::Serialize;
use serde_json::Value;

/// Most documents of one request.
pub(crate) const MAX_DOCUMENTS: usize = 1000;
/// Most bytes of a query or a document.
pub(crate) const MAX_TEXT: usize = 1 << 20;

/// A rerank as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Rerank {
    /// What to score.
    pub request: RerankRequest,
    /// Most results that are wanted.
    pub top: usize,
    /// Whether results hold the documents.
    pub documents: bool,
}

/// Reads a body.
pub fn parse(body: &[u8]) -> Result<Rerank, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let model = shared::model(&mut fields)?;
    let query = query(&mut fields)?;
    let documents = texts(&mut fields, "documents", |path, value| match value {
        Value::String(text) => Ok(text),
        Value::Object(_) => text_object(path, value),
        other => Err(wrong_type(path, "a string or an object with 'text'", &other)),
    })?;
    let top = top(&mut fields, "top_n")?;
    let with_documents = fields.boolean("return_documents")?.unwrap_or(false);
    fields.refuse(&[
        "rank_fields",
        "max_chunks_per_doc",
        "max_tokens_per_doc",
        "truncate_prompt_tokens",
        "relevant_spans",
        "return_embeddings",
    ])?;
    fields.harmless(&["user", "priority"]);
    // A document that is too long is always cut.
    if fields.boolean("truncation")? == Some(false) {
        return Err(crate::fields::unsupported("truncation"));
    }
    fields.finish()?;
    Ok(Rerank { request: RerankRequest { model, query, documents }, top, documents: with_documents })
}

/// The field `query`.
pub(crate) fn query(fields: &mut Object) -> Result<String, Error> {
    let path = fields.path("query");
    let query = fields.required_string("query")?;
    if query.trim().is_empty() {
        return Err(Error::invalid(&path, format!("Invalid value for '{path}': the text is empty")));
    }
    bounded(&path, query)
}

/// A list of texts; `read` makes a text of an element. Documents may be empty: lists that searches find hold such.
pub(crate) fn texts(
    fields: &mut Object,
    name: &'static str,
    read: impl Fn(&str, Value) -> Result<String, Error>,
) -> Result<Vec<String>, Error> {
    let path = fields.path(name);
    let values = fields.array(name)?.ok_or_else(|| missing(&path))?;
    if values.is_empty() || values.len() > MAX_DOCUMENTS {
        let count = values.len();
        let message = format!("Invalid value for '{path}': {count} texts, 1 to {MAX_DOCUMENTS} are allowed");
        return Err(Error::invalid(path, message));
    }
    let text = |(index, value)| {
        let path = element(&path, index);
        bounded(&path, read(&path, value)?)
    };
    values.into_iter().enumerate().map(text).collect()
}

/// `{"text": …}`; what stands beside the text is the caller's own and is not read.
pub(crate) fn text_object(path: &str, value: Value) -> Result<String, Error> {
    Object::at(path.to_owned(), value)?.required_string("text")
}

/// How many results are wanted; more than there are means all.
pub(crate) fn top(fields: &mut Object, name: &'static str) -> Result<usize, Error> {
    let top = fields.integer(name, 1..=i64::from(u32::MAX))?;
    Ok(top.and_then(|top| usize::try_from(top).ok()).unwrap_or(usize::MAX))
}

fn bounded(path: &str, text: String) -> Result<String, Error> {
    if text.len() <= MAX_TEXT {
        return Ok(text);
    }
    let bytes = text.len();
    Err(Error::invalid(
        path,
        format!("Invalid value for '{path}': {bytes} bytes, at most {MAX_TEXT} are allowed"),
    ))
}

/// Indexes of the best scores with them, best first; equal ones in the documents' order.
pub(crate) fn best(scores: &[f32], top: usize) -> Vec<(usize, f32)> {
    let mut ranked: Vec<(usize, f32)> = scores.iter().copied().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(top);
    ranked
}

#[derive(Serialize)]
struct Ranking<'a> {
    id: &'a str,
    model: &'a str,
    results: Vec<Ranked<'a>>,
    usage: RerankUsage,
}

#[derive(Serialize)]
struct Ranked<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document<'a>>,
}

#[derive(Serialize)]
struct Document<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct RerankUsage {
    prompt_tokens: u32,
    total_tokens: u32,
}

/// What an answer says of its request.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    top: usize,
    /// The documents, where results hold them.
    documents: Option<Vec<String>>,
}

impl From<&Rerank> for Form {
    fn from(asked: &Rerank) -> Self {
        Self { top: asked.top, documents: asked.documents.then(|| asked.request.documents.clone()) }
    }
}

/// The answer; `model` is the model's id.
#[must_use]
pub fn ranking(id: &str, model: &str, form: &Form, scores: &Scores) -> String {
    let text = |index: usize| Some(Document { text: form.documents.as_ref()?.get(index)? });
    let ranked = best(&scores.scores, form.top).into_iter().map(|(index, relevance_score)| Ranked {
        index,
        relevance_score,
        document: text(index),
    });
    let tokens = scores.prompt_tokens;
    to_json(&Ranking {
        id,
        model,
        results: ranked.collect(),
        usage: RerankUsage { prompt_tokens: tokens, total_tokens: tokens },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: &Value) -> Result<Rerank, Error> {
        parse(body.to_string().as_bytes())
    }

    #[test]
    fn documents_are_texts_or_objects_with_one() {
        let body = json!({"model": "m", "query": "q", "documents": ["a", {"text": "b", "id": 7}, ""]});
        let asked = read(&body).unwrap();
        assert_eq!(asked.request.documents, ["a", "b", ""]);
        assert_eq!((asked.top, asked.documents), (usize::MAX, false));
    }

    #[test]
    fn wrong_bodies_are_named() {
        let long = "x".repeat(MAX_TEXT + 1);
        for (amendment, param) in [
            (json!({"model": null}), "model"),
            (json!({"query": null}), "query"),
            (json!({"query": " "}), "query"),
            (json!({"query": ["a"]}), "query"),
            (json!({"query": long}), "query"),
            (json!({"documents": null}), "documents"),
            (json!({"documents": "a"}), "documents"),
            (json!({"documents": []}), "documents"),
            (json!({"documents": vec!["a"; MAX_DOCUMENTS + 1]}), "documents"),
            (json!({"documents": ["a", 3]}), "documents[1]"),
            (json!({"documents": ["a", {"title": "b"}]}), "documents[1].text"),
            (json!({"documents": ["a", {"text": 3}]}), "documents[1].text"),
            (json!({"documents": [long]}), "documents[0]"),
            (json!({"top_n": 0}), "top_n"),
            (json!({"top_n": "1"}), "top_n"),
            (json!({"return_documents": 1}), "return_documents"),
            (json!({"rank_fields": ["title"]}), "rank_fields"),
            (json!({"truncation": false}), "truncation"),
            (json!({"top_k": 1}), "top_k"),
        ] {
            let mut body = json!({"model": "m", "query": "q", "documents": ["a"]});
            body.as_object_mut().unwrap().extend(amendment.as_object().unwrap().clone());
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{param}");
        }
    }

    #[test]
    fn results_are_sorted_and_cut_and_equal_ones_keep_their_order() {
        let scores = Scores { scores: vec![0.25, 0.5, 0.25, 0.75], prompt_tokens: 9 };
        let documents = Some(["a", "b", "c", "d"].map(str::to_owned).to_vec());
        assert_eq!(
            ranking("rerank-1", "m", &Form { top: 2, documents }, &scores),
            concat!(
                r#"{"id":"rerank-1","model":"m","results":["#,
                r#"{"index":3,"relevance_score":0.75,"document":{"text":"d"}},"#,
                r#"{"index":1,"relevance_score":0.5,"document":{"text":"b"}}],"#,
                r#""usage":{"prompt_tokens":9,"total_tokens":9}}"#
            )
        );
        let order: Vec<usize> = best(&scores.scores, usize::MAX).iter().map(|(index, _)| *index).collect();
        assert_eq!(order, [3, 1, 0, 2]);
    }
}
