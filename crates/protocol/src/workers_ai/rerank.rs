//! Native rerank: `{"query", "contexts": [{"text"}], "top_k"}` in, `{"response": [{"id", "score"}]}` out, best first.

use super::{InputAt, input_object};
use crate::fields::wrong_type;
use crate::openai::to_json;
use crate::rerank::{best, query, text_object, texts, top};
use crate::{Error, Places, RerankRequest, Scores};
use serde::Serialize;
use serde_json::Value;

/// A rerank as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Rerank {
    /// What to score.
    pub request: RerankRequest,
    /// Most results that are wanted.
    pub top: usize,
    /// Where what the backend names was written.
    pub places: Places,
}

/// Reads an input for a model.
pub fn parse(model: &str, input: Value, at: InputAt) -> Result<Rerank, Error> {
    let mut places = at.places();
    places.moved("documents", "contexts");
    let mut fields = input_object(input, at)?;
    let query = query(&mut fields)?;
    let documents = texts(&mut fields, "contexts", |path, value| match value {
        Value::Object(_) => text_object(path, value),
        other => Err(wrong_type(path, "an object with 'text'", &other)),
    })?;
    let top = top(&mut fields, "top_k")?;
    crate::openai::chat::options(&mut fields)?;
    fields.finish()?;
    Ok(Rerank { request: RerankRequest { model: model.to_owned(), query, documents }, top, places })
}

#[derive(Serialize)]
struct Ranking {
    response: Vec<Ranked>,
    usage: RerankUsage,
}

#[derive(Serialize)]
struct Ranked {
    /// The context's place in the request.
    id: usize,
    score: f32,
}

#[derive(Serialize)]
struct RerankUsage {
    prompt_tokens: u32,
    total_tokens: u32,
}

/// The answer, without an envelope.
#[must_use]
pub fn result(top: usize, scores: &Scores) -> String {
    let tokens = scores.prompt_tokens;
    let ranked = best(&scores.scores, top).into_iter().map(|(id, score)| Ranked { id, score });
    to_json(&Ranking {
        response: ranked.collect(),
        usage: RerankUsage { prompt_tokens: tokens, total_tokens: tokens },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn contexts_come_back_as_ids_best_first() {
        let input = json!({"query": "q", "contexts": [{"text": "a"}, {"text": "b"}], "top_k": 5});
        let asked = parse("m", input, InputAt::Root).unwrap();
        assert_eq!(asked.request.documents, ["a", "b"]);
        let scores = Scores { scores: vec![0.25, 0.5], prompt_tokens: 4 };
        assert!(
            result(asked.top, &scores)
                .starts_with(r#"{"response":[{"id":1,"score":0.5},{"id":0,"score":0.25}],"usage":"#)
        );
    }

    #[test]
    fn wrong_inputs_are_named_where_the_caller_wrote_them() {
        for (input, param) in [
            (json!({"contexts": [{"text": "a"}]}), "input.query"),
            (json!({"query": "q"}), "input.contexts"),
            (json!({"query": "q", "contexts": ["a"]}), "input.contexts[0]"),
            (json!({"query": "q", "contexts": [{"text": "a"}, {}]}), "input.contexts[1].text"),
            (json!({"query": "q", "contexts": [{"text": "a"}], "top_k": 0}), "input.top_k"),
            (json!({"query": "q", "contexts": [{"text": "a"}], "top_n": 1}), "input.top_n"),
        ] {
            let error = parse("m", input.clone(), InputAt::Field).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{input}");
        }
        let input = json!({"query": "q", "contexts": [{"text": "a"}]});
        let places = parse("m", input, InputAt::Field).unwrap().places;
        assert_eq!(places.written("documents[3]"), "input.contexts[3]");
        assert_eq!(places.written("query"), "input.query");
    }
}
