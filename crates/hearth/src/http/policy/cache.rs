//! Answers that are given again: what a request wishes, where its answer would be kept, and keeping one as it goes out.
//!
//! Kept are answers that are whole, streams as the events that they were; the ledger knows whether one is. A client that
//! leaves in the middle leaves nothing behind.

use super::super::body::Body;
use super::is_answer;
use axum::body::{Body as Sent, BodyDataStream, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::unfold;
use gateway::ledger::Opening;
use gateway::policy::cache::{ANSWER_MAX, Answer, Head, Id, IdOf};
use gateway::scan::Field;
use gateway::{Cache, Caller, Gateway, Named, Outcome, flags};
use protocol::Error;

const TTL: [&str; 2] = ["cf-aig-cache-ttl", "cf-cache-ttl"];
const KEY: &str = "cf-aig-cache-key";
const STATUS: HeaderName = HeaderName::from_static("cf-aig-cache-status");

/// Where the AI binding names the model.
const MODEL: &str = "cf-consn-model-id";

/// What the names of accounts' own providers begin with.
const OWN: &[u8] = b"custom-";

/// Seconds for which an answer is kept under a key of the caller's own where the gateway keeps none.
const KEYED_TTL: u32 = 300;

/// Headers of a request that its answer depends on: whose key goes to a provider, and what is spoken.
const PARTS: &[&str] = &[
    "accept",
    "anthropic-beta",
    "anthropic-version",
    "api-key",
    "authorization",
    "cf-aig-byok-alias",
    MODEL,
    "content-type",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "x-api-key",
    "x-goog-api-key",
];

/// Headers of an answer that are kept with it.
const KEPT: &[&str] = &["cf-aig-model", "cf-aig-provider", "cf-aig-step", "content-type"];

/// What a request wishes of the cache.
pub(super) struct Wish {
    seconds: u32,
    /// What stands for the body, in the caller's words.
    key: Option<Vec<u8>>,
    id: IdOf,
}

fn first<'a>(headers: &'a HeaderMap, names: &[&str]) -> Option<(String, &'a HeaderValue)> {
    names.iter().find_map(|name| Some(((*name).to_owned(), headers.get(*name)?)))
}

fn has(value: &HeaderValue, word: &[u8]) -> bool {
    value.as_bytes().split(|byte| *byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(word))
}

impl Wish {
    /// None where nothing is looked for, nor kept.
    pub(super) fn of(gateway: &Gateway, named: &Named, request: &Request) -> Result<Option<Self>, Error> {
        let headers = request.headers();
        let asked = match first(headers, &TTL) {
            None => None,
            Some((name, value)) => {
                let seconds = value.to_str().ok().and_then(|text| Cache::ttl(text.trim().parse().ok()?));
                Some(seconds.ok_or_else(|| {
                    let message = format!("Invalid value for '{name}': expected 0, or 60 to 2678400 seconds");
                    Error::invalid(name, message)
                })?)
            }
        };
        let key = headers.get(KEY).map(|key| key.as_bytes().to_vec());
        let seconds = match (asked, named.settings.cache.cache_ttl) {
            (Some(seconds), _) => seconds,
            (None, 0) if key.is_some() => KEYED_TTL,
            (None, seconds) => seconds,
        };
        let skips =
            [flags::SKIP_CACHE, flags::SKIP_CACHE_OLD].iter().any(|name| flags::is_set(headers, name))
                || headers.get("cache-control").is_some_and(|value| has(value, b"no-store"));
        if seconds == 0 || skips || request.method() != Method::POST || !gateway.caches() {
            return Ok(None);
        }
        Ok(Some(Self { seconds, key, id: IdOf::new(named) }))
    }

    /// Where the answer would be kept; none where the body says that nothing is.
    pub(super) async fn place(
        self,
        (gateway, account): (&Gateway, &str),
        (uri, headers): (&Uri, &HeaderMap),
        body: &Body,
    ) -> Option<Place> {
        let Self { seconds, key, mut id } = self;
        let bytes = body.bytes();
        // What is no JSON, such as sound, says nothing.
        let found = body.scan().await.ok();
        if let Some(found) = &found
            && found.flag(bytes, Field::Store) == Ok(false)
            && found.raw(bytes, Field::Store).is_some()
        {
            return None;
        }
        id.part("path", uri.path().as_bytes());
        id.part("query", uri.query().unwrap_or_default().as_bytes());
        // An edit of an account's own provider empties what is kept of it.
        let model = found.as_ref().and_then(|found| found.raw(bytes, Field::Model)).unwrap_or_default();
        let named = [uri.path().as_bytes(), model, headers.get(MODEL).map_or(b"", |model| model.as_bytes())];
        if named.iter().any(|name| name.windows(OWN.len()).any(|part| part == OWN)) {
            id.part("customs", gateway.customs_stamp(account).await.ok()?.as_bytes());
        }
        for name in PARTS {
            for value in headers.get_all(*name) {
                id.part(name, value.as_bytes());
            }
        }
        match key {
            None => id.part("body", bytes),
            Some(key) => {
                id.part("key", &key);
                for field in [Field::Model, Field::Stream] {
                    let raw = found.as_ref().and_then(|found| found.raw(bytes, field));
                    id.part(field.name(), raw.unwrap_or_default());
                }
            }
        }
        Some(Place { id: id.done(), seconds })
    }
}

/// Where an answer is kept.
pub(super) struct Place {
    id: Id,
    seconds: u32,
}

impl Place {
    /// The answer that is there, entered in the ledger as one that cost nothing.
    pub(super) async fn look(&self, gateway: &Gateway, caller: &Caller) -> Result<Option<Response>, Error> {
        let Some(answer) = gateway.answer(&self.id).await else { return Ok(None) };
        if let Some(outcome) = &caller.outcome {
            outcome.note(|seen| seen.cached = true);
        }
        let request = uuid::Uuid::now_v7().to_string();
        let opening = Opening {
            request: request.clone(),
            caller: Caller { custom_cost: None, ..caller.clone() },
            provider: answer.head.provider.clone(),
            model: answer.head.model.clone(),
            price: None,
            most: None,
        };
        gateway.enter_hit(opening, answer.cost())?;
        let mut response = Response::new(Sent::from(answer.body.clone()));
        let headers = response.headers_mut();
        for (name, value) in &answer.head.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        headers.insert(STATUS, HeaderValue::from_static("HIT"));
        headers.insert("cf-aig-log-id", HeaderValue::try_from(request).expect("an id is a header value"));
        Ok(Some(response))
    }

    /// The answer that goes out, which is kept when it has gone out whole. `failed` entries failed before it began.
    pub(super) async fn keep(
        self,
        gateway: Gateway,
        outcome: Outcome,
        failed: u32,
        mut response: Response,
    ) -> Response {
        if !is_answer(&response) {
            return response;
        }
        response.headers_mut().insert(STATUS, HeaderValue::from_static("MISS"));
        let (head, body) = response.into_parts();
        let text =
            |name: &&str| Some(((*name).to_owned(), head.headers.get(*name)?.to_str().ok()?.to_owned()));
        let headers = KEPT.iter().filter_map(text).collect();
        let keeping = Keeping { place: self, gateway, outcome, failed, headers };
        if body.size_hint().exact().is_none() {
            return Response::from_parts(head, keeping.stream(body.into_data_stream()));
        }
        // It is here already, all of it.
        let Ok(bytes) = to_bytes(body, usize::MAX).await else {
            return Response::from_parts(head, Sent::empty());
        };
        keeping.keep(bytes.clone());
        Response::from_parts(head, Sent::from(bytes))
    }
}

struct Keeping {
    place: Place,
    gateway: Gateway,
    outcome: Outcome,
    failed: u32,
    headers: Vec<(String, String)>,
}

impl Keeping {
    fn keep(self, body: Bytes) {
        let seen = self.outcome.seen();
        if !seen.is_whole(self.failed) {
            return;
        }
        let (provider, model) = seen.last.map(|(_, provider, model)| (provider, model)).unwrap_or_default();
        let cost = seen.cost.map(|cost| cost.0);
        let head = Head { headers: self.headers, provider, model, cost };
        self.gateway.keep_answer(self.place.id, Answer { head, body }, self.place.seconds);
    }

    fn stream(self, stream: BodyDataStream) -> Sent {
        let state = (stream, Some((self, BytesMut::new())));
        Sent::from_stream(unfold(state, async |(mut stream, mut keeping)| match stream.next().await {
            None => {
                if let Some((keeping, bytes)) = keeping {
                    keeping.keep(bytes.freeze());
                }
                None
            }
            Some(Err(error)) => Some((Err(error), (stream, None))),
            Some(Ok(piece)) => {
                let fits = keeping.as_ref().is_some_and(|(_, bytes)| bytes.len() + piece.len() <= ANSWER_MAX);
                keeping = keeping.filter(|_| fits);
                // A comment says that the connection lives, and is no part of the answer.
                if let Some((_, bytes)) = keeping.as_mut().filter(|_| !piece.starts_with(b":")) {
                    bytes.extend_from_slice(&piece);
                }
                Some((Ok(piece), (stream, keeping)))
            }
        }))
    }
}
