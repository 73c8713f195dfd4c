//! A server that speaks OpenAI's dialect, seen from `hearth chat`.

use super::talker::{Answer, Kind, Params, Sink, Stopwatch};
use crate::peer::{self, Lines};
use anyhow::{Context, anyhow, bail};
use protocol::{Message, Usage};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;

/// A server and the model to talk to.
pub(super) struct Remote {
    pub url: String,
    pub model: String,
    key: Option<String>,
    client: reqwest::Client,
}

/// Nobody listens there.
#[derive(Debug, thiserror::Error)]
#[error("no server answers at {0}")]
struct Absent(String);

/// Whether the error says that nobody listens there.
pub(super) fn is_absent(error: &anyhow::Error) -> bool {
    error.is::<Absent>()
}

/// Asks the server for its models and takes the one named, or the first that talks.
pub(super) async fn connect(url: &str, key: Option<&str>, model: Option<String>) -> anyhow::Result<Remote> {
    let (client, url) = (peer::client(url).build()?, peer::base_url(url));
    let mut remote = Remote { url, model: String::new(), key: key.map(str::to_owned), client };
    let request = remote.request(reqwest::Method::GET, "/v1/models").timeout(Duration::from_secs(10));
    let response = request.send().await.map_err(|error| {
        if error.is_builder() {
            anyhow!(
                "{:?} is not the address of a server; write for example http://127.0.0.1:8790",
                remote.url
            )
        } else if error.is_connect() {
            Absent(remote.url.clone()).into()
        } else {
            anyhow::Error::new(error)
        }
    })?;
    let list: Value = good(response).await?.json().await.context("the server's list of models is no JSON")?;
    let ids: Vec<&str> =
        list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str()).collect();
    remote.model = match model {
        Some(model) => model,
        None => {
            let first = list["data"].as_array().into_iter().flatten().find(|model| talks(model));
            first
                .and_then(|model| model["id"].as_str())
                .or(ids.first().copied())
                .with_context(|| format!("the server at {} has no model yet", remote.url))?
                .to_owned()
        }
    };
    Ok(remote)
}

/// Whether a model of the list makes text; a server that does not say is believed to.
fn talks(model: &Value) -> bool {
    !model["task"].as_str().is_some_and(|task| task.contains("embed"))
}

/// An error status with the server's own words.
async fn good(response: Response) -> anyhow::Result<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = response.text().await.unwrap_or_default();
    let told: Option<Value> = serde_json::from_str(&body).ok();
    let message = told.as_ref().and_then(|told| told["error"]["message"].as_str()).unwrap_or(body.trim());
    if status == StatusCode::UNAUTHORIZED {
        bail!("the server wants another key ({message}); give it with --api-key or HEARTH_API_KEY");
    }
    bail!("the server answered {status}: {message}")
}

impl Remote {
    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// The next answer of the conversation, streamed. Dropping the future closes the connection.
    pub async fn answer(
        &self,
        messages: &[Message],
        params: &Params,
        sink: Sink<'_>,
    ) -> anyhow::Result<Answer> {
        let mut body = json!({
            "model": self.model,
            "messages": messages
                .iter()
                .map(|message| json!({"role": message.role.as_str(), "content": message.content.joined_text()}))
                .collect::<Vec<_>>(),
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let wishes = [
            ("temperature", params.temperature.map(|value| json!(value))),
            ("max_tokens", params.max_tokens.map(|value| json!(value))),
            ("seed", params.seed.map(|value| json!(value))),
        ];
        for (name, value) in wishes {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        let mut stopwatch = Stopwatch::start();
        let request = self.request(reqwest::Method::POST, "/v1/chat/completions").json(&body);
        let mut response = good(request.send().await?).await?;
        let mut lines = Lines::default();
        let (mut usage, mut cut, mut done) = (None, false, false);
        while let Some(bytes) = response.chunk().await.context("the answer was cut off")? {
            lines.push(&bytes)?;
            while let Some(line) = lines.next() {
                let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
                if data == "[DONE]" {
                    done = true;
                    continue;
                }
                let event: Value =
                    serde_json::from_str(data).context("the server sent an event that is no JSON")?;
                if let Some(message) = event["error"]["message"].as_str() {
                    bail!("{message}");
                }
                let choice = &event["choices"][0];
                for (field, kind) in [("reasoning_content", Kind::Thought), ("content", Kind::Text)] {
                    if let Some(text) = choice["delta"][field].as_str().filter(|text| !text.is_empty()) {
                        stopwatch.text_came();
                        sink(kind, text)?;
                    }
                }
                cut |= choice["finish_reason"] == "length";
                usage = read_usage(&event["usage"]).or(usage);
            }
        }
        if !done {
            return Err(anyhow!("the answer was cut off"));
        }
        Ok(stopwatch.stop(usage.unwrap_or_default(), cut))
    }
}

fn read_usage(usage: &Value) -> Option<Usage> {
    let count = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    Some(Usage {
        prompt_tokens: count(&usage["prompt_tokens"])?,
        cached_tokens: count(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0),
        completion_tokens: count(&usage["completion_tokens"])?,
        reasoning_tokens: count(&usage["completion_tokens_details"]["reasoning_tokens"]).unwrap_or(0),
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_with_its_cached_tokens() {
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}});
        let usage = read_usage(&usage).expect("usage");
        assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (9, 8, 3));
        assert_eq!(read_usage(&Value::Null), None);
    }
}
