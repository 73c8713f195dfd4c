//! The life of one call: entered in the ledger, sent, sent again or to another provider, passed back, settled.
//!
//! Each provider that is asked has an entry of its own, opened before it sees anything; attempts at the same provider
//! share it. The next target is asked only when one fails in a way that is not the client's fault, and only before the
//! client has a byte. Dropping a call, or the answer's body, closes what is open upstream at once and leaves its entry
//! interrupted. Not here: which targets there are, and HTTP towards the client.

mod attempt;
pub mod breaker;
mod framing;
mod generate;
mod headers;
mod hedge;
mod ready;
pub mod retry;
mod stream;
mod turn;

pub use generate::{Asking, Fetched, Generated};
pub use headers::KeyOf;
pub(crate) use headers::may_be_set;

use crate::credential::{Credential, aws, google};
use crate::dialect::{Dialect, Form};
use crate::ledger::Entry;
use crate::provider::{Auth, Configured, Providers};
use crate::scan::Pieces;
use crate::upstream::{Sent, Upstream};
use crate::{Caller, Gateway};
use attempt::{Begun, Failed, attempt};
use base::{Clock, rng};
use breaker::Breakers;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use hyper::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use protocol::{Error, ErrorKind};
use ready::Unready;
use retry::Policy;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use std::{fmt, io};

/// What is asked.
#[derive(Debug)]
pub struct Call {
    /// Who asks.
    pub caller: Caller,
    /// The request's method.
    pub method: Method,
    /// The client's headers, without the key that it showed to Hearth.
    pub headers: HeaderMap,
    /// Whose key goes before.
    pub key_of: KeyOf,
    /// Who may answer, in the order in which they are asked; at least one.
    pub targets: Vec<Target>,
    /// How often each is asked.
    pub policy: Policy,
}

/// Who may answer.
#[derive(Debug)]
pub struct Target {
    /// The provider.
    pub provider: Arc<Configured>,
    /// What is spoken at the address.
    pub dialect: Dialect,
    /// The model by the name it has there; empty where the request names none.
    pub model: String,
    /// The address.
    pub url: Uri,
    /// The body that goes there.
    pub body: Pieces,
    /// Whether the body asks for a chunk of usage that the client did not ask for.
    pub strip_usage: bool,
    /// The most tokens of prompt and answer that it may take, where that can be said.
    pub most: Option<(u64, u64)>,
}

impl Target {
    /// What a whole answer to a `POST` is there, where that is known.
    fn form(&self) -> Option<Form> {
        Form::of(self.dialect, self.url.path())
    }
}

/// Headers, and the keys that sign a request.
type Signed = (HeaderMap, Option<Arc<Credential>>);

/// The body of an answer.
pub enum AnswerBody {
    /// All of it.
    Whole(Bytes),
    /// As it comes.
    Stream(BoxStream<'static, io::Result<Bytes>>),
}

/// Says of what has begun why it cannot be read.
type Reads<'r> = &'r (dyn Fn(&Target, &Begun) -> Result<(), String> + Sync);

/// Who answered, or refused.
struct Reached<'a> {
    /// Its place among the targets.
    step: usize,
    /// Its entry's id.
    id: Option<String>,
    target: &'a Target,
    /// Open where there is an answer.
    entry: Option<Entry>,
    outcome: Result<Begun, Failed>,
}

/// Asks providers.
pub struct Proxy {
    providers: RwLock<Arc<Providers>>,
    upstream: Upstream,
    breakers: Arc<Breakers>,
    /// How long first bytes took.
    first_bytes: hedge::FirstBytes,
    tokens: google::Tokens,
    clock: Arc<dyn Clock>,
    /// How many pauses were drawn.
    draws: AtomicU32,
    /// How often a provider was asked again.
    retries: AtomicU64,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Proxy").field(&self.providers()).finish()
    }
}

impl Proxy {
    /// Over these providers.
    #[must_use]
    pub fn new(providers: Providers, upstream: Upstream, clock: Arc<dyn Clock>) -> Self {
        let providers = RwLock::new(Arc::new(providers));
        Self {
            providers,
            upstream,
            breakers: Arc::default(),
            first_bytes: hedge::FirstBytes::default(),
            tokens: google::Tokens::default(),
            clock,
            draws: AtomicU32::new(0),
            retries: AtomicU64::new(0),
        }
    }

    /// The providers of the settings, as they are now. Those of an account are [`Gateway::providers`].
    #[must_use]
    pub fn providers(&self) -> Arc<Providers> {
        Arc::clone(&self.providers.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts other providers in their place. Calls that run keep those that they began with.
    pub fn replace(&self, providers: Providers) {
        *self.providers.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(providers);
    }

    /// What happened towards providers, in Prometheus' text form.
    #[must_use]
    pub fn metrics(&self) -> String {
        let (retries, resting) = ("hearth_gateway_retries_total", "hearth_gateway_breakers_open");
        format!(
            "# HELP {retries} Attempts at a provider after its first.\n# TYPE {retries} counter\n{retries} {}\n\
             # HELP {resting} Models of providers that are left alone now.\n# TYPE {resting} gauge\n{resting} {}\n",
            self.retries.load(Ordering::Relaxed),
            self.breakers.resting(self.clock.now()),
        )
    }

    /// Makes a call. What a provider refuses comes back as it said it; where none said anything, there is an error.
    /// `ledger` enters it; without one it is not accounted for.
    ///
    /// # Errors
    /// When the ledger does not take the call, no key is there, or nobody answered.
    pub async fn call(&self, ledger: Option<&Gateway>, call: Call) -> Result<Response<AnswerBody>, Error> {
        let Reached { step, id, target, entry, outcome } = self.reach(ledger, &call, None).await?;
        let mut response = match outcome {
            Ok(begun) => answer(begun, entry).await,
            Err(failed) => {
                let error = failed.error(&target.provider);
                let Some((headers, body)) = failed.response else { return Err(error) };
                let mut response = Response::new(AnswerBody::Whole(body));
                *response.status_mut() = failed.status;
                *response.headers_mut() = headers::to_client(&headers);
                response
            }
        };
        let headers = response.headers_mut();
        headers.insert(HeaderName::from_static("cf-aig-step"), HeaderValue::from(step));
        if let Some(id) = id.and_then(|id| HeaderValue::from_str(&id).ok()) {
            headers.insert(HeaderName::from_static("cf-aig-log-id"), id);
        }
        Ok(response)
    }

    /// Asks one target after the other, until one answers or refuses.
    async fn reach<'a>(
        &self,
        ledger: Option<&Gateway>,
        call: &'a Call,
        reads: Option<Reads<'_>>,
    ) -> Result<Reached<'a>, Error> {
        let (mut resting, mut keeps) = (None::<(usize, Duration)>, None);
        // Says more than that those behind it could not be asked.
        let mut before: Option<Reached<'a>> = None;
        let (mut step, steps) = (0, call.targets.len());
        while step < steps {
            let slug = &*call.targets[step].provider.slug;
            let ready = match self.ready(ledger, call, step).await {
                Ok(ready) => ready,
                Err(why) => {
                    match why {
                        Unready::Keeps => keeps = Some(slug),
                        Unready::Rests(rest) => {
                            resting = Some((step, resting.map_or(rest, |(_, least)| rest.min(least))));
                        }
                        Unready::NoKey(_) if before.is_some() || step + 1 < steps => {}
                        Unready::Other(_) if before.is_some() => {}
                        Unready::NoKey(error) | Unready::Other(error) => return Err(error),
                    }
                    step += 1;
                    continue;
                }
            };
            let hedge::Asked { mut ready, mut attempted, last: asked } =
                self.hedged(ledger, call, ready).await;
            if let (Some(reads), Ok(begun)) = (reads, &attempted)
                && let Err(why) = reads(ready.target, begun)
            {
                attempted = Err(Failed::broken(why));
            }
            self.tell(&ready, &mut attempted);
            let entry = ready.entry.take();
            let id = entry.as_ref().map(|entry| entry.request().to_owned());
            let (step_of, target) = (ready.step, ready.target);
            let failed = match attempted {
                Ok(begun) => return Ok(Reached { step: step_of, id, target, entry, outcome: Ok(begun) }),
                Err(failed) => failed,
            };
            if let Some(entry) = entry {
                entry.fail(failed.status.as_u16(), &failed.why()).await;
            }
            let (passing, status) = (failed.is_passing(), failed.status.as_u16());
            let reached = Reached { step: step_of, id, target, entry: None, outcome: Err(failed) };
            step = asked + 1;
            if !passing || step == steps {
                return Ok(reached);
            }
            tracing::warn!(provider = &*target.provider.slug, status, "another is asked");
            before = Some(reached);
        }
        if let Some(before) = before {
            return Ok(before);
        }
        if let (None, Some(slug)) = (resting, keeps) {
            let message = format!(
                "{slug} may keep what it is sent, and this request allows that to nobody; where it is bound to keep \
                 nothing, set zero-retention = true for it"
            );
            return Err(Error::new(ErrorKind::Forbidden, message));
        }
        let Some((step, rest)) = resting else {
            return Err(Error::new(ErrorKind::Internal, "The call has nobody to ask"));
        };
        let Target { provider, model, .. } = &call.targets[step];
        let message =
            format!("{}/{model} failed several times and is left alone for a moment", provider.slug);
        Err(Error::new(ErrorKind::Unavailable, message).retry_after(rest))
    }

    /// Sends JSON to an address and reads the answer, which may have so many bytes; why there is none is in words.
    ///
    /// # Errors
    /// When nobody answers there, or with another status than 200.
    pub async fn post(&self, address: &str, body: Bytes, most: usize) -> Result<Bytes, String> {
        let uri: Uri = address.parse().map_err(|_| format!("{address} is no address"))?;
        let json = HeaderValue::from_static("application/json");
        let request = Request::post(uri).header(hyper::http::header::CONTENT_TYPE, json);
        let request = request.body(Sent::from(Pieces::from(body))).map_err(|error| error.to_string())?;
        let response = self.upstream.send(request, false).await.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("{address} answered {}", response.status()));
        }
        let (mut body, mut all) = (response.into_body(), Vec::new());
        while let Some(piece) = crate::upstream::chunk(&mut body).await {
            all.extend_from_slice(&piece.map_err(|error| error.to_string())?);
            if all.len() > most {
                return Err(format!("the answer of {address} is too large"));
            }
        }
        Ok(all.into())
    }

    /// The request of an attempt.
    fn request(&self, call: &Call, target: &Target, (headers, credential): &Signed) -> Request<Sent> {
        let mut request = Request::new(Sent::from(target.body.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = target.url.clone();
        let mut headers = headers.clone();
        if let (Some(Credential::Aws(keys)), Auth::Aws(service)) =
            (credential.as_deref(), target.provider.auth)
        {
            let place = aws::Place { region: target.provider.region_of(&target.url), service };
            let body = &target.body.0;
            let signed =
                keys.sign(place, &call.method, &target.url, &mut headers, body, self.clock.unix_seconds());
            assert!(
                signed.is_some(),
                "an address without a host, or a key that no header can hold, was let in"
            );
        }
        *request.headers_mut() = headers;
        request
    }

    async fn attempts(&self, call: &Call, target: &Target, signed: &Signed) -> Result<Begun, Failed> {
        let policy = &call.policy;
        let limits = target.provider.timeouts;
        for done in 1.. {
            // The last of several waits as long as it takes.
            let limit = policy.first_byte;
            let limit = limit.filter(|_| policy.strict || done < policy.attempts || policy.attempts == 1);
            let request = self.request(call, target, signed);
            let limit = limit.unwrap_or(limits.first_byte);
            let attempted = attempt(&self.upstream, request, target, limit).await;
            let failed = match attempted {
                Err(failed) if failed.is_passing() => failed,
                other => return other,
            };
            let draw = self.draws.fetch_add(1, Ordering::Relaxed);
            let seed = u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX);
            let Some(pause) = policy.pause(done, failed.asked, rng::uniform(seed, 0, draw)) else {
                return Err(failed);
            };
            tracing::debug!(
                provider = &*target.provider.slug,
                status = failed.status.as_u16(),
                ?pause,
                "again"
            );
            tokio::time::sleep(pause).await;
            self.retries.fetch_add(1, Ordering::Relaxed);
        }
        unreachable!("a policy's attempts end")
    }
}

async fn answer(begun: Begun, entry: Option<Entry>) -> Response<AnswerBody> {
    let (head, body) = match begun {
        Begun::Whole(head, body, reported) => {
            if let Some(entry) = entry {
                entry.settle(reported.map(|reported| reported.usage)).await;
            }
            (head, AnswerBody::Whole(body))
        }
        Begun::Events(head, events) => (head, AnswerBody::Stream(events.stream(entry).boxed())),
        Begun::Raw(head, raw) => (head, AnswerBody::Stream(raw.stream(entry).boxed())),
    };
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = headers::to_client(&head.headers);
    response
}

#[cfg(test)]
mod tests;
