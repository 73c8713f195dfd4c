//! Spans of answers, sent to collectors of OpenTelemetry over OTLP/HTTP, as JSON or protobuf.
//!
//! One span for each log, with the attributes of the semantic conventions for generative AI (`gen_ai.*`, in the names they
//! have had since version 1.37: <https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/>) and no content. A
//! request that came with a `traceparent` is a part of that trace. Spans wait in a bounded queue for one task, which sends
//! them in batches, tries a batch that fails once more, and then lets it go, counted. Not here: metrics or logs over OTLP.

use super::{Record, protobuf};
use crate::custom::{Reach, address};
use crate::upstream::{Sent, Upstream};
use bytes::Bytes;
use hyper::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Spans that may wait.
const QUEUE: usize = 2048;

/// Spans of one request.
const BATCH: usize = 256;

/// How long a batch may gather after its first span.
const GATHER: Duration = Duration::from_secs(1);

/// How long a collector may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Pause before the second attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// How spans are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentType {
    /// As JSON.
    #[default]
    Json,
    /// In protobuf's wire format.
    Protobuf,
}

/// A collector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// Where spans go, with the path.
    pub url: String,
    /// Headers that go along; they may hold secrets.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// How spans are written.
    #[serde(default)]
    pub content_type: ContentType,
}

/// The collectors of a gateway, shared by its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Endpoint>", into = "Vec<Endpoint>")]
pub struct Endpoints(pub(crate) Arc<[Endpoint]>);

impl From<Vec<Endpoint>> for Endpoints {
    fn from(endpoints: Vec<Endpoint>) -> Self {
        Self(endpoints.into())
    }
}

impl From<Endpoints> for Vec<Endpoint> {
    fn from(endpoints: Endpoints) -> Self {
        endpoints.0.to_vec()
    }
}

/// Which collectors may be reached: those at public addresses over HTTPS, as for providers that accounts make, and more
/// where the operator says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Whether plain HTTP and private networks are allowed.
    pub reach: Reach,
    /// Addresses that are allowed whatever they are.
    pub collectors: Vec<String>,
}

impl Allowed {
    /// Whether a collector may be reached at public addresses alone, else nothing where it may not be reached.
    fn public_only(&self, endpoint: &Endpoint) -> Option<bool> {
        if self.reach == Reach::Private || self.collectors.contains(&endpoint.url) {
            return Some(false);
        }
        address::check(&endpoint.url, Reach::Public).is_ok().then_some(true)
    }

    /// Refuses collectors that may not be reached.
    ///
    /// # Errors
    /// Names the first.
    pub(super) fn check(&self, endpoints: &Endpoints) -> Result<(), Error> {
        match endpoints.0.iter().position(|endpoint| self.public_only(endpoint).is_none()) {
            None => Ok(()),
            Some(number) => {
                let at = format!("otel[{number}].url");
                let message = format!("Invalid value for '{at}': {NOT_ALLOWED}");
                Err(Error::invalid(&at, message))
            }
        }
    }
}

const NOT_ALLOWED: &str =
    "this server sends spans to public addresses over https only, and to those that its settings list";

impl Endpoint {
    /// Reads one of a gateway's setting.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub(crate) fn parse(number: usize, value: &Value) -> Result<Self, Error> {
        let at = |field: &str| format!("otel[{number}].{field}");
        let wrong = |field: &str, expected: &str| {
            let at = at(field);
            Err(Error::invalid(&at, format!("Invalid value for '{at}': expected {expected}")))
        };
        let Some(object) = value.as_object() else { return wrong("url", "an object with a url") };
        let mut endpoint =
            Self { url: String::new(), headers: Vec::new(), content_type: ContentType::default() };
        for (name, value) in object {
            match (name.as_str(), value) {
                ("url", Value::String(url)) => endpoint.url.clone_from(url),
                ("headers", Value::Null) | ("authorization" | "content_type", Value::Null) => {}
                ("headers", Value::Object(headers)) => {
                    for (name, value) in headers {
                        let Some(value) = value.as_str() else { return wrong("headers", "texts") };
                        endpoint.headers.push((name.clone(), value.to_owned()));
                    }
                }
                ("authorization", Value::String(value)) => {
                    endpoint.headers.push(("authorization".to_owned(), value.clone()));
                }
                ("content_type", value) if *value == "json" => endpoint.content_type = ContentType::Json,
                ("content_type", value) if *value == "protobuf" => {
                    endpoint.content_type = ContentType::Protobuf;
                }
                ("url" | "headers" | "authorization" | "content_type", _) => {
                    return wrong(name, "a url, headers as an object of texts, and json or protobuf");
                }
                _ => return Err(Error::invalid(at(name), format!("There is no setting '{}'", at(name)))),
            }
        }
        let fits =
            |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some();
        if !endpoint.url.parse::<Uri>().is_ok_and(|uri| fits(&uri)) {
            return wrong("url", "an address that begins with http:// or https://");
        }
        if endpoint.request_headers().is_none() {
            return wrong("headers", "names and values that HTTP allows");
        }
        Ok(endpoint)
    }

    /// The endpoint as clients read it.
    pub(crate) fn object(&self) -> Value {
        let headers: Map<String, Value> =
            self.headers.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        json!({"url": self.url, "headers": headers, "content_type": self.content_type})
    }

    fn request_headers(&self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            headers.insert(name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?);
        }
        let kind = match self.content_type {
            ContentType::Json => "application/json",
            ContentType::Protobuf => "application/x-protobuf",
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        Some(headers)
    }
}

/// One span, in OTLP's JSON.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span(Value);

impl Span {
    /// The span of a log, below the one that the client names.
    pub(super) fn of(record: &Record, parent: Option<&str>) -> Self {
        let id = uuid::Uuid::now_v7();
        // The last bits of such an id are the random ones.
        let fresh_span = format!("{:016x}", id.as_u128() as u64);
        let (trace, parent) = parent
            .and_then(read_parent)
            .unwrap_or_else(|| (format!("{:032x}", uuid::Uuid::now_v7().as_u128()), String::new()));
        let operation = match record.request_type.as_str() {
            "embeddings" => "embeddings",
            "completions" => "text_completion",
            "rerank" => "rerank",
            _ => "chat",
        };
        let mut attributes = vec![
            text("gen_ai.operation.name", operation),
            text("gen_ai.provider.name", well_known(&record.provider)),
            text("gen_ai.request.model", &record.model),
            number("http.response.status_code", i64::from(record.status)),
            text("hearth.log.id", &record.id),
            text("hearth.account", &record.account),
            text("hearth.gateway", &record.gateway),
            number("hearth.step", i64::from(record.step)),
            json!({"key": "hearth.cached", "value": {"boolValue": record.cached}}),
        ];
        let tokens = [
            ("gen_ai.usage.input_tokens", record.tokens_in),
            ("gen_ai.usage.cache_read.input_tokens", record.tokens_cached),
            ("gen_ai.usage.output_tokens", record.tokens_out),
            ("hearth.first_byte_ms", record.first_byte),
        ];
        for (name, count) in tokens {
            attributes.extend(count.map(|count| number(name, crate::account::number(count))));
        }
        attributes.extend(record.key.as_ref().map(|key| text("hearth.key.id", &key.0)));
        if let Some(cost) = record.cost {
            attributes.push(json!({"key": "hearth.cost_usd", "value": {"doubleValue": cost.dollars()}}));
        }
        for (name, value) in &record.metadata {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            attributes.push(text(&format!("hearth.metadata.{name}"), &shown));
        }
        if !record.success() {
            attributes.push(text("error.type", &record.status.to_string()));
        }
        let nanos = |millis: u64| (u128::from(millis) * 1_000_000).to_string();
        let mut span = json!({
            "traceId": trace, "spanId": fresh_span, "name": format!("{operation} {}", record.model).trim_end(),
            // A client's span: what asks a provider.
            "kind": 3,
            "startTimeUnixNano": nanos(record.created),
            "endTimeUnixNano": nanos(record.created + record.duration),
            "attributes": attributes,
            "status": if record.success() { json!({}) } else {
                json!({"code": 2, "message": record.error.as_deref().unwrap_or_default()})
            },
        });
        if !parent.is_empty() {
            span["parentSpanId"] = parent.into();
        }
        Self(span)
    }
}

fn text(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}

/// OTLP's JSON writes whole numbers of 64 bits as texts.
fn number(name: &str, value: i64) -> Value {
    json!({"key": name, "value": {"intValue": value.to_string()}})
}

/// The provider by the name that the conventions have for it, where they have one.
fn well_known(slug: &str) -> &str {
    match slug {
        "google-ai-studio" => "gcp.gemini",
        "google-vertex-ai" => "gcp.vertex_ai",
        "azure-openai" => "azure.ai.openai",
        "aws-bedrock" => "aws.bedrock",
        "mistral" => "mistral_ai",
        "grok" => "x_ai",
        "perplexity-ai" => "perplexity",
        "local" => "hearth",
        other => other,
    }
}

/// Trace and span of a `traceparent`: `00-TRACE-SPAN-FLAGS` (W3C Trace Context).
fn read_parent(text: &str) -> Option<(String, String)> {
    let mut parts = text.trim().split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, length: usize| {
        part.len() == length
            && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
            && part.bytes().any(|byte| byte != b'0')
    };
    let version_fits =
        version.len() == 2 && version.bytes().all(|byte| byte.is_ascii_hexdigit()) && version != "ff";
    (version_fits && hex(trace, 32) && hex(span, 16)).then(|| (trace.to_owned(), span.to_owned()))
}

/// A span and where it goes.
type Queued = (Arc<[Endpoint]>, Span);

/// Sends spans, once it was started.
#[derive(Default)]
pub(super) struct Exporter {
    running: Mutex<Option<(mpsc::Sender<Queued>, JoinHandle<()>)>>,
    counts: Arc<Counts>,
}

/// What became of spans.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: AtomicU64,
    pub(super) dropped: AtomicU64,
}

impl Exporter {
    fn running(&self) -> MutexGuard<'_, Option<(mpsc::Sender<Queued>, JoinHandle<()>)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn start(&self, allowed: Allowed) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let task = tokio::spawn(run(receiver, allowed, Arc::clone(&self.counts)));
        *self.running() = Some((sender, task));
    }

    /// Sends what waits, but not for ever.
    pub(super) async fn close(&self, limit: Duration) {
        let Some((sender, mut task)) = self.running().take() else { return };
        drop(sender);
        if tokio::time::timeout(limit, &mut task).await.is_err() {
            task.abort();
        }
    }

    /// Sends a span on its way; nobody waits.
    pub(super) fn push(&self, endpoints: &Arc<[Endpoint]>, span: Span) {
        let running = self.running();
        let Some((sender, _)) = &*running else { return };
        if sender.try_send((Arc::clone(endpoints), span)).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn run(mut queue: mpsc::Receiver<Queued>, allowed: Allowed, counts: Arc<Counts>) {
    let mut upstream = None;
    let mut batch = Vec::new();
    while let Some(first) = queue.recv().await {
        batch.push(first);
        let gather = tokio::time::sleep(GATHER);
        let mut gather = std::pin::pin!(gather);
        while batch.len() < BATCH {
            tokio::select! {
                more = queue.recv_many(&mut batch, BATCH) => if more == 0 { break },
                () = &mut gather => break,
            }
        }
        // Made with the first span: most gateways send none.
        let client = match &upstream {
            Some(client) => client,
            None => match Upstream::new() {
                Ok(client) => upstream.insert(client),
                Err(error) => {
                    tracing::warn!(%error, "spans cannot be sent");
                    counts.dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
                    batch.clear();
                    continue;
                }
            },
        };
        let mut by_endpoint: HashMap<&Endpoint, Vec<&Value>> = HashMap::new();
        for (endpoints, span) in &batch {
            for endpoint in endpoints.iter() {
                by_endpoint.entry(endpoint).or_default().push(&span.0);
            }
        }
        let sending =
            by_endpoint.iter().map(|(endpoint, spans)| send(client, &allowed, endpoint, spans, &counts));
        futures::future::join_all(sending).await;
        batch.clear();
    }
}

async fn send(client: &Upstream, allowed: &Allowed, endpoint: &Endpoint, spans: &[&Value], counts: &Counts) {
    let Some(public_only) = allowed.public_only(endpoint) else {
        counts.dropped.fetch_add(spans.len() as u64, Ordering::Relaxed);
        tracing::warn!(url = endpoint.url, count = spans.len(), "spans were dropped: {NOT_ALLOWED}");
        return;
    };
    let body = json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", "hearth"), text("service.version", env!("CARGO_PKG_VERSION"))]},
        "scopeSpans": [{"scope": {"name": "hearth.gateway", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]});
    let body = Bytes::from(match endpoint.content_type {
        ContentType::Json => body.to_string().into_bytes(),
        ContentType::Protobuf => protobuf::request(&body),
    });
    let mut why = String::new();
    for attempt in 0..2 {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let Some(headers) = endpoint.request_headers() else { break };
        let mut request = Request::new(Sent::from(crate::scan::Pieces::from(body.clone())));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers;
        let Ok(uri) = endpoint.url.parse() else { break };
        *request.uri_mut() = uri;
        why = match tokio::time::timeout(LIMIT, client.send(request, public_only)).await {
            Err(_) => "it did not answer in time".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(response)) if response.status().is_success() => {
                counts.sent.fetch_add(spans.len() as u64, Ordering::Relaxed);
                return;
            }
            // What it refuses once it refuses again.
            Ok(Ok(response)) if response.status().is_client_error() && response.status() != 429 => {
                why = format!("it answered {}", response.status());
                break;
            }
            Ok(Ok(response)) => format!("it answered {}", response.status()),
        };
    }
    counts.dropped.fetch_add(spans.len() as u64, Ordering::Relaxed);
    tracing::warn!(url = endpoint.url, why, count = spans.len(), "spans were dropped");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_inside_a_private_network_must_be_allowed_by_the_operator() {
        let of = |url: &str| {
            Endpoints(Arc::new([Endpoint {
                url: url.to_owned(),
                headers: Vec::new(),
                content_type: ContentType::Json,
            }]))
        };
        let listed =
            Allowed { collectors: vec!["http://10.0.0.1:4318/v1/traces".to_owned()], ..Allowed::default() };
        let private = Allowed { reach: Reach::Private, ..Allowed::default() };
        for (url, allowed, is) in [
            ("https://collector.example.com/v1/traces", &Allowed::default(), true),
            ("http://collector.example.com/v1/traces", &Allowed::default(), false),
            ("https://169.254.169.254/latest", &Allowed::default(), false),
            ("https://localhost:4318/v1/traces", &Allowed::default(), false),
            ("http://10.0.0.1:4318/v1/traces", &listed, true),
            ("http://10.0.0.1:4318/other", &listed, false),
            ("http://127.0.0.1:4318/v1/traces", &private, true),
        ] {
            assert_eq!(allowed.check(&of(url)).is_ok(), is, "{url}");
        }
        let error = Allowed::default().check(&of("http://10.0.0.1/")).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("otel[0].url"));
    }

    #[test]
    fn a_parent_that_is_none_is_not_taken() {
        let fine = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(read_parent(fine).is_some());
        for text in [
            "",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-short-b7ad6b7169203331-01",
        ] {
            assert_eq!(read_parent(text), None, "{text}");
        }
    }
}
