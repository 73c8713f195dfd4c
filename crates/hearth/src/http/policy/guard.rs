//! Guardrails: prompts and answers are judged by a model or a webhook before they go on.
//!
//! A guardrail before the answer holds the answer back until it is judged, a stream too, which then goes out at once. The
//! judge's own request is in the ledger under the account and no key, and passes no policy. What the judge says is
//! in the request's log.

use super::super::body::Body;
use super::super::{App, openai};
use super::is_answer;
use axum::body::{Body as Sent, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::response::Response;
use bytes::Bytes;
use gateway::log::{Finder, Finding};
use gateway::policy::guard::{Decision, Verdict, words, words_of_request};
use gateway::{Action, Caller, Guardrails, Hazards};
use protocol::{Error, ErrorKind};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Longest time to a verdict.
const JUDGE_TIME: Duration = Duration::from_secs(30);

/// Largest answer that is held back; larger ones count as not judged.
const ANSWER_MAX: usize = 64 << 20;

/// Most of a judge's answer.
const VERDICT_MAX: usize = 1 << 20;

/// A guardrail that the prompt has passed.
pub(super) struct Guard {
    rails: Guardrails,
    caller: Caller,
    prompt: String,
}

impl Guard {
    /// Judges the prompt.
    ///
    /// # Errors
    /// When it may not pass.
    pub(super) async fn before(
        app: &Arc<App>,
        rails: &Guardrails,
        caller: &Caller,
        body: &Body,
    ) -> Result<Self, Error> {
        let prompt = body.clone().parse(|bytes| {
            let value = serde_json::from_slice::<Value>(bytes).ok();
            let prompt = value.map(|value| words_of_request(&value).join("\n"));
            // Without words there is nothing to judge, which is not the same as nothing to fear.
            Ok(prompt.filter(|prompt| !prompt.is_empty()))
        });
        let prompt = prompt.await?;
        let guard =
            Self { rails: rails.clone(), caller: caller.clone(), prompt: prompt.clone().unwrap_or_default() };
        let messages = prompt.map(|prompt| vec![("user", prompt)]);
        guard.judge(app, "prompt", &guard.rails.prompt, messages).await?;
        Ok(guard)
    }

    /// Judges the answer.
    ///
    /// # Errors
    /// When it may not pass.
    pub(super) async fn after(self, app: &Arc<App>, response: Response) -> Result<Response, Error> {
        if self.rails.response.is_empty() || !is_answer(&response) {
            return Ok(response);
        }
        let (mut head, body) = response.into_parts();
        let bytes = to_bytes(body, ANSWER_MAX).await.map_err(|error| {
            Error::new(
                ErrorKind::Upstream,
                format!("The answer broke off or is too large to be judged: {error}"),
            )
        })?;
        let kind =
            head.headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec()).unwrap_or_default();
        let said = said(&kind, &bytes);
        let messages = said.map(|said| vec![("user", self.prompt.clone()), ("assistant", said)]);
        self.judge(app, "response", &self.rails.response, messages).await?;
        head.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(head, Sent::from(bytes)))
    }

    /// Has something judged and says what follows; `messages` is nothing where there are no words to judge.
    async fn judge(
        &self,
        app: &Arc<App>,
        what: &str,
        hazards: &Hazards,
        messages: Option<Vec<(&str, String)>>,
    ) -> Result<(), Error> {
        if hazards.is_empty() {
            return Ok(());
        }
        let verdict = match messages {
            None => Err("it holds no text that could be judged".to_owned()),
            Some(messages) => {
                let judged = tokio::time::timeout(JUDGE_TIME, self.ask(app, what, hazards, messages)).await;
                judged.unwrap_or_else(|_| Err("the judge did not answer in time".to_owned()))
            }
        };
        if let Err(why) = &verdict {
            let (account, gateway) = (&*self.caller.account, &*self.caller.gateway);
            tracing::warn!(what, account, gateway, why, "a guardrail could not judge");
        }
        let names = match Decision::of(hazards, verdict.as_ref().ok()) {
            Decision::Pass => return Ok(()),
            Decision::Flag(names) => {
                self.note(what, Action::Flag, names);
                return Ok(());
            }
            Decision::Block(names) => names,
        };
        self.note(what, Action::Block, names.clone());
        let (kind, whose) = match what {
            "prompt" => (ErrorKind::PromptBlocked, "Prompt"),
            _ => (ErrorKind::AnswerBlocked, "Response"),
        };
        // The words of AI Gateway, and what they leave out.
        let because = match verdict {
            Err(why) => why,
            Ok(_) if names.is_empty() => "it was judged unsafe".to_owned(),
            Ok(_) => names.join(", "),
        };
        Err(Error::new(kind, format!("{whose} blocked due to security configurations: {because}")))
    }

    fn note(&self, what: &str, action: Action, names: Vec<String>) {
        if let Some(trace) = &self.caller.trace {
            let by = if what == "prompt" { Finder::Prompt } else { Finder::Response };
            trace.found(Finding { by, action, names });
        }
    }

    async fn ask(
        &self,
        app: &Arc<App>,
        what: &str,
        hazards: &Hazards,
        messages: Vec<(&str, String)>,
    ) -> Result<Verdict, String> {
        let judge = self.rails.judge.as_ref().or(app.config.judge.as_ref());
        let judge = judge.ok_or("no judge is set, neither guardrail-judge nor the gateway's own")?;
        if judge.contains("://") {
            // The texts alone, too, for those who need not know who said which.
            let texts: Vec<&str> = messages.iter().map(|(_, text)| text.as_str()).collect();
            let body = json!({
                "kind": what, "account": &*self.caller.account, "gateway": &*self.caller.gateway,
                "categories": hazards.keys().collect::<Vec<_>>(), "messages": said_by(&messages), "texts": texts,
            });
            let proxy = app.config.proxy.as_ref().ok_or("no webhook can be asked here")?;
            let answer = proxy.post(judge, body.to_string().into(), VERDICT_MAX).await.map_err(|why| {
                // Where it is is the operator's business.
                tracing::warn!(why, "the webhook of a guardrail failed");
                "the webhook failed".to_owned()
            })?;
            return Verdict::of_webhook(&answer).ok_or_else(|| "the webhook gave no verdict".to_owned());
        }
        let body =
            json!({"model": judge, "messages": said_by(&messages), "max_tokens": 64, "temperature": 0.0});
        let mut request = Request::new(Sent::from(body.to_string()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = axum::http::Uri::from_static("/v1/chat/completions");
        let json_type = header::HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json_type);
        let Caller { account, gateway, zdr, own_keys_only, .. } = self.caller.clone();
        // A judge that the operator set is asked with the operator's key.
        let own_keys_only = own_keys_only && self.rails.judge.is_some();
        request.extensions_mut().insert(Caller { account, gateway, zdr, own_keys_only, ..Caller::default() });
        let refused = |error: &Error| format!("the judge refused: {error}");
        let response =
            openai::chat(State(Arc::clone(app)), request).await.map_err(|error| refused(&error.0))?;
        if !is_answer(&response) {
            let told = response.extensions().get::<Error>().map(refused);
            return Err(told.unwrap_or_else(|| format!("the judge answered {}", response.status())));
        }
        let bytes = to_bytes(response.into_body(), VERDICT_MAX).await.map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        Verdict::of_model(text).ok_or_else(|| "the judge said neither safe nor unsafe".to_owned())
    }
}

/// Who said what, in the form of a conversation.
fn said_by(messages: &[(&str, String)]) -> Vec<Value> {
    messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// The words of an answer; nothing where it is none of words. Where none stand at the places that are known, they are
/// looked for everywhere.
fn said(kind: &[u8], bytes: &Bytes) -> Option<String> {
    if !kind.starts_with(b"text/event-stream") {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let said = words(&value).join("\n");
        return Some(if said.is_empty() { words_of_request(&value).join("\n") } else { said });
    }
    let events = std::str::from_utf8(bytes).ok()?.lines().filter_map(|line| {
        // What ends a stream is no JSON.
        serde_json::from_str::<Value>(line.strip_prefix("data:")?).ok()
    });
    let events: Vec<Value> = events.collect();
    let said: String = events.iter().flat_map(words).collect();
    Some(if said.is_empty() { events.iter().flat_map(words_of_request).collect() } else { said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_stream_are_put_together_as_they_were_said() {
        let events = "data: {\"choices\":[{\"delta\":{\"content\":\"un\"}}]}\n\n: keep\n\n\
                      event: x\ndata: {\"choices\":[{\"delta\":{\"content\":\"safe\"}}]}\n\ndata: [DONE]\n\n";
        assert_eq!(said(b"text/event-stream", &Bytes::from(events)).as_deref(), Some("unsafe"));
        let whole = r#"{"choices":[{"message":{"role":"assistant","content":"a b"}}]}"#;
        assert_eq!(said(b"application/json", &Bytes::from(whole)).as_deref(), Some("a b"));
        let other = r#"{"translated":{"words":"a b"}}"#;
        assert_eq!(said(b"application/json", &Bytes::from(other)).as_deref(), Some("a b"));
        assert_eq!(said(b"audio/mpeg", &Bytes::from_static(&[0, 1])), None);
    }
}
