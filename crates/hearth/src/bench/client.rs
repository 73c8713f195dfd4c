//! One streamed chat completion of a server that speaks OpenAI's dialect, with the times at which its text came.
//!
//! Each request has a connection of its own. A turn that fails says why in words that leave out what differs from turn
//! to turn, so that reasons can be counted.

use crate::peer::{self, Lines};
use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A server that sends nothing for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// A server and the model to measure.
#[derive(Clone, Debug)]
pub struct Server {
    client: reqwest::Client,
    url: String,
    key: Option<String>,
    model: String,
}

/// What came back for a request. Times are seconds since it was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The whole text, reasoning left out.
    pub text: String,
    /// When each piece of text came; at least one.
    pub times: Vec<f64>,
    /// When the stream ended.
    pub end: f64,
    /// Tokens of the prompt, when the server tells.
    pub prompt: Option<u64>,
    /// Of these, found in a cache, when the server tells.
    pub cached: Option<u64>,
    /// Tokens of the answer; the pieces of text where the server does not tell.
    pub completion: u64,
}

impl Server {
    /// Asks the server for its models and takes the one named, or the first.
    pub async fn connect(url: &str, key: Option<&str>, model: Option<String>) -> anyhow::Result<Self> {
        let client = peer::client(url).pool_max_idle_per_host(0).read_timeout(SILENCE_MAX).build()?;
        let mut server =
            Self { client, url: peer::base_url(url), key: key.map(str::to_owned), model: String::new() };
        server.model = match model {
            Some(model) => model,
            None => server.first_model().await?,
        };
        Ok(server)
    }

    /// The model's name as the server knows it.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The address without `/v1`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn first_model(&self) -> anyhow::Result<String> {
        let response = self.request(reqwest::Method::GET, "/v1/models").send().await.map_err(|error| {
            if error.is_builder() {
                let url = &self.url;
                anyhow!("{url:?} is not the address of a server; write for example http://127.0.0.1:8790")
            } else {
                anyhow!("no server answers at {}: {}", self.url, cause(&error))
            }
        })?;
        let status = response.status();
        let body = response.text().await.context("the server's list of models was cut off")?;
        if !status.is_success() {
            bail!("the server does not list its models: {}", refusal(status, &body));
        }
        let list: Value = serde_json::from_str(&body).context("the server's list of models is no JSON")?;
        let first = list["data"][0]["id"].as_str();
        Ok(first.with_context(|| format!("the server at {} has no model yet", self.url))?.to_owned())
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// The answer to these messages, or the reason why there is none.
    pub async fn ask(&self, messages: &[Value], max_tokens: u32) -> Result<Answer, String> {
        let body = json!({
            "model": self.model,
            "messages": messages,
            "stream": true,
            "stream_options": {"include_usage": true},
            "temperature": 0,
            "max_tokens": max_tokens,
            "ignore_eos": true,
        });
        let start = Instant::now();
        let request = self.request(reqwest::Method::POST, "/v1/chat/completions").json(&body);
        let mut response = request.send().await.map_err(|error| format!("no answer: {}", cause(&error)))?;
        let status = response.status();
        if !status.is_success() {
            return Err(refusal(status, &response.text().await.unwrap_or_default()));
        }
        let mut stream = Stream::default();
        loop {
            match response.chunk().await {
                Ok(Some(bytes)) => stream.push(&bytes, start.elapsed().as_secs_f64())?,
                Ok(None) => return stream.finish(start.elapsed().as_secs_f64()),
                Err(error) => return Err(format!("the stream broke off: {}", cause(&error))),
            }
        }
    }
}

/// The innermost cause, which names no address or port.
fn cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// An error status with the server's own words.
fn refusal(status: reqwest::StatusCode, body: &str) -> String {
    let told: Option<Value> = serde_json::from_str(body).ok();
    let message = told.as_ref().and_then(message).unwrap_or_else(|| body.trim().to_owned());
    format!("HTTP {}: {message}", status.as_u16())
}

/// The words of an error, in any of the forms that servers use.
fn message(body: &Value) -> Option<String> {
    let error = &body["error"];
    let text = error["message"].as_str().or(error.as_str()).or(body["message"].as_str());
    text.map(str::to_owned).or_else(|| (!error.is_null()).then(|| error.to_string()))
}

/// Reads an answer's event stream, whatever its pieces.
#[derive(Debug, Default)]
struct Stream {
    lines: Lines,
    answer: Answer,
    completion: Option<u64>,
    done: bool,
}

impl Stream {
    /// Bytes that came at this time.
    fn push(&mut self, bytes: &[u8], at: f64) -> Result<(), String> {
        self.lines.push(bytes).map_err(|error| error.to_string())?;
        while let Some(line) = self.lines.next() {
            // Some servers tell errors in a field of that name.
            let data = line.strip_prefix("data:").or_else(|| line.strip_prefix("error:"));
            let Some(data) = data.map(str::trim) else { continue };
            if data == "[DONE]" {
                self.done = true;
                continue;
            }
            let event: Value = serde_json::from_str(data)
                .map_err(|_| "the server sent an event that is no JSON".to_owned())?;
            if line.starts_with("error:") || !event["error"].is_null() {
                let told = message(&event).unwrap_or_else(|| event.to_string());
                return Err(format!("error in the stream: {told}"));
            }
            self.event(&event, at);
        }
        Ok(())
    }

    fn event(&mut self, event: &Value, at: f64) {
        let delta = &event["choices"][0]["delta"];
        let text = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
        let content = text("content");
        if content.or_else(|| text("reasoning_content")).or_else(|| text("reasoning")).is_some() {
            self.answer.times.push(at);
        }
        self.answer.text.push_str(content.unwrap_or_default());
        let usage = &event["usage"];
        self.answer.prompt = usage["prompt_tokens"].as_u64().or(self.answer.prompt);
        self.completion = usage["completion_tokens"].as_u64().or(self.completion);
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        self.answer.cached = cached.or(event["timings"]["cache_n"].as_u64()).or(self.answer.cached);
    }

    fn finish(mut self, at: f64) -> Result<Answer, String> {
        if !self.done {
            return Err("the stream ended without [DONE]".to_owned());
        }
        if self.answer.times.is_empty() {
            return Err("the answer has no text".to_owned());
        }
        self.answer.end = at;
        self.answer.completion = self.completion.unwrap_or(self.answer.times.len() as u64);
        Ok(self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"Grün\"}}]}\n\n: keep-alive\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\" tee\"}}]}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\
        \"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn an_answer_is_the_same_wherever_its_bytes_are_cut() {
        for cut in 0..=STREAM.len() {
            let mut stream = Stream::default();
            let (head, tail) = STREAM.as_bytes().split_at(cut);
            stream.push(head, 1.0).expect("good");
            stream.push(tail, 2.0).expect("good");
            let answer = stream.finish(3.0).expect("whole");
            assert_eq!(answer.text, "Grün tee", "cut at {cut}");
            assert_eq!((answer.prompt, answer.cached, answer.completion), (Some(9), Some(8), 3));
            assert_eq!((answer.times.len(), answer.end), (2, 3.0));
            assert!(answer.times.is_sorted());
        }
    }

    #[test]
    fn cached_tokens_are_read_from_llama_cpps_timings() {
        let mut stream = Stream::default();
        let events = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5},\"timings\":{\"cache_n\":4}}\ndata: [DONE]\n";
        stream.push(events.as_bytes(), 0.5).expect("good");
        let answer = stream.finish(1.0).expect("whole");
        assert_eq!((answer.prompt, answer.cached, answer.completion), (Some(5), Some(4), 1));
    }

    #[test]
    fn errors_and_cut_streams_are_failures_with_a_reason() {
        let fails = |text: &str| {
            let mut stream = Stream::default();
            stream.push(text.as_bytes(), 0.0).and_then(|()| stream.finish(1.0)).expect_err("a failure")
        };
        assert_eq!(fails("data: {\"error\":{\"message\":\"full\"}}\n"), "error in the stream: full");
        assert_eq!(fails("error: {\"message\":\"full\"}\n"), "error in the stream: full");
        assert_eq!(fails("data: x\n"), "the server sent an event that is no JSON");
        assert_eq!(fails("data: {\"choices\":[]}\n"), "the stream ended without [DONE]");
        assert_eq!(fails("data: [DONE]\n"), "the answer has no text");
    }

    #[test]
    fn a_refusal_tells_the_servers_own_words() {
        let status = reqwest::StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(refusal(status, "{\"error\":{\"message\":\"busy\"}}"), "HTTP 503: busy");
        assert_eq!(refusal(status, "{\"error\":\"busy\"}"), "HTTP 503: busy");
        assert_eq!(refusal(status, "busy\n"), "HTTP 503: busy");
    }
}
