//! AI Gateway's universal endpoint on a WebSocket: `universal.create` asks, `universal.created`, `universal.stream` and
//! `universal.done` answer; several requests may run at once, told apart by their `eventId`.
//!
//! Each message is one entry of the universal endpoint, and goes the same way. What fails is told by `universal.error`, a
//! message of ours, also behind the pieces of a stream that broke off. Amazon's events go as `{"NAME": …}`, as its own
//! clients show them. A client that leaves ends everything that it asked for. Bounded are messages, which have room in the
//! budget of bodies before the next one is read, requests at once, what waits to be sent, and sockets.

use super::body::{Body, Held};
use super::dispatch::{Behind, status};
use super::logged::Turned;
use super::refusal::{Answered, Dialect};
use super::universal::Entry;
use super::{App, policy, routes};
use axum::body::to_bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use gateway::sse::{self, Framer};
use gateway::{Caller, Outcome, eventstream};
use protocol::{Error, ErrorKind};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

/// Sockets open at once.
pub(super) const SOCKETS_MAX: u32 = 1024;

/// Requests that run on one socket at once.
const REQUESTS_MAX: usize = 32;

/// Messages that wait to be sent on one socket, and their bytes; a larger one waits alone.
const WAITING_MAX: usize = 64;
const WAITING_BYTES: u32 = 1 << 20;

/// Largest answer that is not streamed.
const ANSWER_MAX: usize = 64 << 20;

/// Largest frame; a message may have several.
const FRAME_MAX: usize = 16 << 20;

/// What stands before a key where browsers can show one.
pub(super) const KEY_PROTOCOL: &str = "cf-aig-authorization.";

/// The protocol that showed the key, which the answer must name; the front takes the header away.
#[derive(Clone)]
pub(super) struct Shown(pub(super) HeaderValue);

/// Where messages wait to be sent.
#[derive(Clone)]
struct Out {
    messages: mpsc::Sender<(Message, OwnedSemaphorePermit)>,
    /// Their bytes, one permit each.
    room: Arc<Semaphore>,
}

impl Out {
    async fn send(&self, message: Message) -> Result<(), Error> {
        let bytes = match &message {
            Message::Text(text) => u32::try_from(text.len()).unwrap_or(u32::MAX),
            _ => 0,
        };
        let room = Arc::clone(&self.room).acquire_many_owned(bytes.min(WAITING_BYTES)).await.map_err(gone)?;
        self.messages.send((message, room)).await.map_err(gone)
    }
}

/// What all requests of a socket have in common.
struct Session {
    app: Arc<App>,
    behind: Behind,
    caller: Caller,
    headers: HeaderMap,
}

/// `GET /v1/{account}/{gateway}` with an upgrade.
pub(super) async fn open(State(app): State<Arc<App>>, request: Request) -> Answered {
    let (mut parts, _) = request.into_parts();
    let behind = Behind::of(&parts.extensions);
    let caller: Caller = parts.extensions.get().cloned().expect("the front says who asks");
    let shown = parts.extensions.get::<Shown>().map(|shown| shown.0.clone());
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await;
    let mut upgrade = upgrade.map_err(|error| {
        let message = format!("POST a list of requests here, or open a WebSocket ({})", error.body_text());
        Error::new(ErrorKind::InvalidRequest, message)
    })?;
    let full = |_| Error::new(ErrorKind::Overloaded, "Too many WebSockets are open");
    let place = Arc::clone(&app.sockets).try_acquire_owned().map_err(full)?;
    let asked =
        upgrade.requested_protocols().find(|name| name.as_bytes().starts_with(KEY_PROTOCOL.as_bytes()));
    if let Some(protocol) = shown.or_else(|| asked.cloned()) {
        upgrade.set_selected_protocol(protocol);
    }
    let limit = usize::try_from(app.config.body_limit.0).unwrap_or(usize::MAX);
    let mut headers = parts.headers;
    let of_the_socket: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("sec-websocket-")).cloned().collect();
    for name in of_the_socket.into_iter().chain([header::CONNECTION, header::UPGRADE, header::ORIGIN]) {
        headers.remove(name);
    }
    let session = Arc::new(Session { app, behind, caller, headers });
    let upgrade = upgrade.max_message_size(limit).max_frame_size(limit.min(FRAME_MAX));
    Ok(upgrade.on_upgrade(move |socket| talk(socket, session, place)))
}

/// Reads and sends until the client leaves or the server stops.
async fn talk(mut socket: WebSocket, session: Arc<Session>, _place: OwnedSemaphorePermit) {
    let (messages, mut waiting) = mpsc::channel(WAITING_MAX);
    let out = Out { messages, room: Arc::new(Semaphore::new(WAITING_BYTES as usize)) };
    // A message that waits for room; nothing else is read meanwhile.
    let mut coming: Option<BoxFuture<'static, (Bytes, Result<Held, Error>)>> = None;
    let mut asked = JoinSet::new();
    let mut stopped = session.app.stopped.clone();
    let mut silence = tokio::time::interval(session.app.config.stream_silence);
    silence.reset();
    let mut stopping = false;
    loop {
        // What was sent gives its room back.
        let (message, _room) = tokio::select! {
            (bytes, held) = async { coming.as_mut().expect("it waits").await }, if coming.is_some() => {
                coming = None;
                match held {
                    Ok(held) => {
                        let (session, out) = (Arc::clone(&session), out.clone());
                        asked.spawn(async move { ask(&session, Body::holding(bytes, held), &out).await });
                        continue;
                    }
                    Err(error) => (failed(&event_of(&bytes), &error), None),
                }
            }
            message = socket.recv(), if coming.is_none() => match message {
                Some(Ok(Message::Text(text))) => {
                    let bytes = Bytes::from(text);
                    if asked.len() >= REQUESTS_MAX {
                        let error = Error::new(ErrorKind::Overloaded, format!("{REQUESTS_MAX} requests run on this socket"));
                        (failed(&event_of(&bytes), &error), None)
                    } else if stopping {
                        let error = Error::new(ErrorKind::Unavailable, "The server is shutting down");
                        (failed(&event_of(&bytes), &error), None)
                    } else {
                        let app = Arc::clone(&session.app);
                        coming = Some(Box::pin(async move {
                            let held = app.room.hold(&app.config, bytes.len() as u64).await;
                            (bytes, held)
                        }));
                        continue;
                    }
                }
                Some(Ok(Message::Binary(_))) => {
                    (failed(&Value::Null, &Error::new(ErrorKind::Malformed, "Messages are text")), None)
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                // What still runs is dropped with the set, and that ends its work.
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
            Some((message, room)) = waiting.recv() => (message, Some(room)),
            Some(_) = asked.join_next(), if !asked.is_empty() => {
                if stopping && asked.is_empty() && waiting.is_empty() && coming.is_none() {
                    let _ = socket.send(Message::Close(None)).await;
                    return;
                }
                continue;
            }
            _ = silence.tick() => (Message::Ping(Bytes::new()), None),
            // Ends when the sender is dropped.
            _ = stopped.changed(), if !stopping => {
                stopping = true;
                if asked.is_empty() && coming.is_none() {
                    let _ = socket.send(Message::Close(None)).await;
                    return;
                }
                continue;
            }
        };
        silence.reset();
        if socket.send(message).await.is_err() {
            return;
        }
        if stopping && asked.is_empty() && waiting.is_empty() && coming.is_none() {
            let _ = socket.send(Message::Close(None)).await;
            return;
        }
    }
}

fn event(kind: &str, metadata: Value, more: Option<(&str, &RawValue)>) -> Message {
    let mut text = format!("{{\"type\":\"{kind}\",\"metadata\":{metadata}");
    if let Some((name, raw)) = more {
        text.push_str(&format!(",\"{name}\":{}", raw.get()));
    }
    text.push('}');
    Message::Text(text.into())
}

fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Tells a failure of our own.
fn failed(event_id: &Value, error: &Error) -> Message {
    let body = Dialect::AiGateway.words(error);
    let metadata = json!({"eventId": event_id, "status": error.kind.status()});
    event("universal.error", metadata, Some(("error", &raw(body))))
}

/// The event that a message is about, however the rest of it reads.
fn event_of(bytes: &[u8]) -> Value {
    #[derive(Deserialize)]
    struct About<'a> {
        #[serde(borrow)]
        request: Event<'a>,
    }
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "eventId", borrow)]
        id: &'a RawValue,
    }
    let about = serde_json::from_slice::<About<'_>>(bytes).ok();
    about.and_then(|about| serde_json::from_str(about.request.id.get()).ok()).unwrap_or_default()
}

/// What a message asks.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Create<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: &'a RawValue,
}

/// One request, from its message to its last one.
async fn ask(session: &Session, body: Body, out: &Out) {
    let event_id = event_of(body.bytes());
    if let Err(error) = answer(session, body, &event_id, out).await {
        // Nobody waits for it when the socket is gone.
        let _ = out.send(failed(&event_id, &error)).await;
    }
}

/// The socket is gone; whoever wrote to it ends.
fn gone<T>(_: T) -> Error {
    Error::new(ErrorKind::Unavailable, "The client has left")
}

/// Whether who opened the socket may still ask: what was shown then may be taken no more.
async fn check(session: &Session) -> Result<(), Error> {
    let Some(gateway) = &session.app.gateway else { return Ok(()) };
    let taken = match &session.caller.key {
        Some(key) => gateway.is_taken(key).await?,
        // The server's own key, or none was needed.
        None => session.app.config.api_key.is_some() || !gateway.has_keys().await?,
    };
    let why = "The key of this socket is not taken any more; open another one with a valid key";
    if taken { Ok(()) } else { Err(Error::new(ErrorKind::Unauthorized, why)) }
}

async fn answer(session: &Session, body: Body, event_id: &Value, out: &Out) -> Result<(), Error> {
    let app = &session.app;
    let bytes = body.bytes();
    check(session).await?;
    let create: Create<'_> = serde_json::from_slice(bytes)
        .map_err(|error| Error::new(ErrorKind::Malformed, format!("This is no universal.create: {error}")))?;
    if create.kind != "universal.create" {
        return Err(Error::invalid("type", "Invalid value for 'type': expected universal.create"));
    }
    let entry = Entry::parse(bytes, create.request, "request")?;
    let mut caller = session.caller.clone();
    let counted = match &caller.key {
        Some(key) => policy::count(app, key).await,
        None => Ok(None),
    };
    caller.over = *counted.as_ref().unwrap_or(&None);
    if let Err(limited) = counted {
        let uri = entry.uri(&session.caller, "request")?;
        let turned = Turned::new(Some(routes::PROVIDER), uri.path(), &session.headers, &session.caller);
        let limited = match turned {
            Some(turned) => turned.log(app, limited).await,
            None => limited,
        };
        let (_, metadata) = about(&limited, event_id);
        return refused(limited, metadata, out).await;
    }
    let outcome = Outcome::default();
    caller.outcome = Some(outcome.clone());
    let response = entry.ask(app, &session.behind, &caller, &session.headers, &body, "request").await?;
    drop(body);
    let (kind, metadata) = about(&response, event_id);
    if status(&response) >= 400 {
        return refused(response, metadata, out).await;
    }
    let amazons = kind.starts_with("application/vnd.amazon.eventstream");
    if amazons || kind.starts_with("text/event-stream") {
        let failed = outcome.seen().failed;
        out.send(event("universal.created", metadata.clone(), None)).await?;
        let last = stream(response, amazons, event_id, out).await?;
        if outcome.seen().failed > failed {
            return Err(Error::new(ErrorKind::Upstream, said(&last)));
        }
    } else {
        let body = whole(response).await?;
        let body = String::from_utf8(body.into()).ok().and_then(|text| RawValue::from_string(text).ok());
        let body = body.ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("An answer of the type {kind} cannot go over this socket"),
            )
        })?;
        out.send(event("universal.created", metadata.clone(), Some(("response", &body)))).await?;
    }
    out.send(event("universal.done", metadata, None)).await
}

/// The type of an answer, and what is told about it.
fn about(response: &Response, event_id: &Value) -> (String, Value) {
    let told = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let kind = told("content-type").unwrap_or("application/json").to_owned();
    let metadata = json!({
        "cacheStatus": told("cf-aig-cache-status"), "eventId": event_id, "logId": told("cf-aig-log-id"), "step": "0",
        "contentType": kind,
    });
    (kind, metadata)
}

async fn whole(response: Response) -> Result<Bytes, Error> {
    to_bytes(response.into_body(), ANSWER_MAX)
        .await
        .map_err(|error| Error::new(ErrorKind::Upstream, format!("The answer broke off: {error}")))
}

/// Tells that there is no answer, in the words of who refused.
async fn refused(mut response: Response, mut metadata: Value, out: &Out) -> Result<(), Error> {
    if let Some(error) = response.extensions_mut().remove::<Error>() {
        metadata["status"] = error.kind.status().into();
        let words = raw(Dialect::AiGateway.words(&error));
        return out.send(event("universal.error", metadata, Some(("error", &words)))).await;
    }
    metadata["status"] = response.status().as_u16().into();
    let body = whole(response).await?;
    let text = String::from_utf8_lossy(&body).into_owned();
    let words = RawValue::from_string(text.clone()).unwrap_or_else(|_| raw(Value::from(text).to_string()));
    out.send(event("universal.error", metadata, Some(("error", &words)))).await
}

/// What the last event of a stream that failed says.
fn said(last: &str) -> String {
    let last: Value = serde_json::from_str(last).unwrap_or_default();
    let errors = [&last["error"], &last["response"]["error"]];
    let said = errors.into_iter().find_map(|error| error["message"].as_str());
    said.unwrap_or("The answer broke off").to_owned()
}

/// Cuts a stream into the texts of its events.
enum Cutter {
    Sent(Framer),
    Amazons(eventstream::Framer),
}

impl Cutter {
    /// The texts that these bytes complete; in words why they cannot be read.
    fn push(&mut self, bytes: Bytes) -> Result<Vec<String>, String> {
        match self {
            Self::Sent(framer) => {
                let frames = framer.push(bytes).map_err(|error| error.to_string())?;
                let data = |frame: Bytes| Some(String::from_utf8_lossy(&sse::data(&frame)?).into_owned());
                Ok(frames.iter().filter_map(data).filter(|data| data != "[DONE]").collect())
            }
            Self::Amazons(framer) => {
                let frames = framer.push(bytes).map_err(|error| error.to_string())?;
                let text = |frame: Bytes| {
                    let message = eventstream::decode(&frame)?;
                    let said = String::from_utf8_lossy(message.payload);
                    let said = RawValue::from_string(said.into_owned()).ok()?;
                    // An exception is told as others tell errors.
                    let name = if message.is_error { "error" } else { message.name };
                    Some(format!("{{{}:{said}}}", Value::from(name)))
                };
                Ok(frames.iter().filter_map(text).collect())
            }
        }
    }
}

/// Sends a stream on, event by event; the last of them.
async fn stream(response: Response, amazons: bool, event_id: &Value, out: &Out) -> Result<String, Error> {
    let mut body = response.into_body().into_data_stream();
    let mut cutter = if amazons {
        Cutter::Amazons(eventstream::Framer::default())
    } else {
        Cutter::Sent(Framer::default())
    };
    let mut last = String::new();
    while let Some(piece) = body.next().await {
        let broke = |error: String| Error::new(ErrorKind::Upstream, format!("The answer broke off: {error}"));
        let piece = piece.map_err(|error| broke(error.to_string()))?;
        for text in cutter.push(piece).map_err(broke)? {
            let chunk =
                RawValue::from_string(text.clone()).unwrap_or_else(|_| raw(Value::from(&*text).to_string()));
            let metadata = json!({"eventId": event_id});
            out.send(event("universal.stream", metadata, Some(("response", &chunk)))).await?;
            last = text;
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_messages_event_is_found_and_the_rest_of_it_is_not_looked_at() {
        for (message, event) in [
            (r#"{"type":"t","request":{"query":{"a":[1]},"eventId":"\u0065"}}"#, json!("e")),
            (r#"{"request":{"eventId":7}}"#, json!(7)),
            (r#"{"request":{"query":{}}}"#, Value::Null),
            (r#"{"request":1}"#, Value::Null),
            ("no JSON", Value::Null),
        ] {
            assert_eq!(event_of(message.as_bytes()), event, "{message}");
        }
    }

    #[tokio::test]
    async fn what_waits_to_be_sent_is_bounded_by_its_bytes_and_a_larger_message_waits_alone() {
        let (messages, mut waiting) = mpsc::channel(WAITING_MAX);
        let out = Out { messages, room: Arc::new(Semaphore::new(WAITING_BYTES as usize)) };
        let text = |bytes: u32| Message::Text("x".repeat(bytes as usize).into());
        out.send(text(WAITING_BYTES / 2)).await.unwrap();
        out.send(text(WAITING_BYTES / 2)).await.unwrap();
        let mut larger = Box::pin(out.send(text(WAITING_BYTES + 1)));
        for _ in 0..2 {
            assert!(futures::poll!(larger.as_mut()).is_pending());
            // It is sent, and gives its room back.
            drop(waiting.recv().await);
        }
        larger.await.unwrap();
        assert!(futures::poll!(Box::pin(out.send(text(1)))).is_pending());
    }
}
