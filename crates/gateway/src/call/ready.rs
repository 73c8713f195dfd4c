//! One who may answer, made ready to be asked: with keys and headers, let in by its breaker, entered in the ledger.

use super::attempt::{Begun, Failed};
use super::breaker::{Breakers, Outcome};
use super::{Call, KeyOf, Proxy, Signed, Target, headers};
use crate::credential::Credential;
use crate::ledger::{Entry, Opening};
use crate::provider::Configured;
use crate::{Gateway, byok, flags};
use base::Clock;
use hyper::http::header::AUTHORIZATION;
use hyper::http::{Method, StatusCode};
use protocol::{Error, ErrorKind};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// It is to be asked; what becomes of that must be told ([`Proxy::tell`], [`Proxy::give_back`]).
pub(super) struct Ready<'a> {
    /// Its place among the targets.
    pub(super) step: usize,
    pub(super) target: &'a Target,
    /// With the keys that are used.
    pub(super) provider: Arc<Configured>,
    pub(super) signed: Signed,
    pub(super) entry: Option<Entry>,
    /// When its breaker let it in; nothing where that hears nothing of it.
    admitted: Option<Duration>,
}

/// Why it is not asked.
pub(super) enum Unready {
    /// It may keep what it is sent.
    Keeps,
    /// It is left alone for so long.
    Rests(Duration),
    /// There is no key for it.
    NoKey(Error),
    /// Something else, which is no fault of its own.
    Other(Error),
}

/// Tells a breaker how an answer ends that has begun.
pub(super) struct Told {
    breakers: Arc<Breakers>,
    clock: Arc<dyn Clock>,
    circuit: String,
    model: String,
}

impl Told {
    pub(super) fn tell(self, outcome: Outcome) {
        self.breakers.tell(&self.circuit, &self.model, outcome, self.clock.now());
    }
}

impl Proxy {
    /// Makes the target of a step ready.
    pub(super) async fn ready<'a>(
        &self,
        ledger: Option<&Gateway>,
        call: &'a Call,
        step: usize,
    ) -> Result<Ready<'a>, Unready> {
        let target = &call.targets[step];
        if call.caller.zdr && !target.provider.zero_retention {
            return Err(Unready::Keeps);
        }
        let provider = with_keys(ledger, call, &target.provider).await.map_err(Unready::Other)?;
        let signed = self.headers(ledger, call, &provider).await.map_err(Unready::NoKey)?;
        // What becomes of a client's own key is nothing that others share.
        let admitted = if headers::has_clients_key(&signed.0, &call.headers, &provider) {
            None
        } else {
            let now = self.clock.now();
            self.breakers.admit(&provider.circuit, &target.model, now).map_err(Unready::Rests)?;
            Some(now)
        };
        let mut ready = Ready { step, target, provider, signed, entry: None, admitted };
        match enter(ledger, call, target).await {
            Ok(entry) => ready.entry = entry,
            Err(error) => {
                self.give_back(&ready);
                return Err(Unready::Other(error));
            }
        }
        Ok(ready)
    }

    /// Tells the breaker what became of it.
    pub(super) fn tell(&self, ready: &Ready<'_>, attempted: &mut Result<Begun, Failed>) {
        let circuit = &ready.provider.circuit;
        let outcome = match attempted {
            Ok(Begun::Events(_, events)) => {
                if ready.admitted.is_some() {
                    events.tell(Told {
                        breakers: Arc::clone(&self.breakers),
                        clock: Arc::clone(&self.clock),
                        circuit: circuit.to_string(),
                        model: ready.target.model.clone(),
                    });
                }
                Outcome::Begun
            }
            Ok(_) => Outcome::Answered,
            Err(failed) if failed.hurried => return self.give_back(ready),
            Err(failed) if failed.is_passing() && failed.status != StatusCode::CONFLICT => Outcome::Failed,
            Err(_) => Outcome::Refused,
        };
        if ready.admitted.is_some() {
            self.breakers.tell(circuit, &ready.target.model, outcome, self.clock.now());
        }
    }

    /// Says to the breaker that it will hear nothing.
    pub(super) fn give_back(&self, ready: &Ready<'_>) {
        if let Some(admitted) = ready.admitted {
            self.breakers.give_back(&ready.provider.circuit, &ready.target.model, admitted);
        }
    }

    /// The headers for a provider, and the keys that sign each attempt.
    async fn headers(
        &self,
        ledger: Option<&Gateway>,
        call: &Call,
        provider: &Configured,
    ) -> Result<Signed, Error> {
        let mut client = Cow::Borrowed(&call.headers);
        // A client's key is meant for whom it asked, and is nobody else's to see.
        if call.targets.first().is_some_and(|first| first.provider.slug != provider.slug) {
            let providers = call.targets.iter().map(|target| &*target.provider);
            headers::drop_keys(client.to_mut(), providers);
        }
        let key_of = key_of(call);
        let key = match ledger {
            Some(ledger) if provider.has_quotas() && headers::wants_key(&client, provider, key_of) => {
                Some(key_with_room(ledger, provider).await?)
            }
            _ => provider.next_key(),
        };
        let (mut headers, credential) = headers::to_provider(&client, provider, key_of, key)?;
        if let Some(Credential::Google(account)) = credential.as_deref() {
            let token = self.tokens.get(account, &self.upstream, &*self.clock).await;
            let named =
                |error: Error| Error { message: format!("{}: {}", provider.slug, error.message), ..error };
            headers.insert(AUTHORIZATION, token.map_err(named)?);
        }
        Ok((headers, credential))
    }
}

/// The provider with the keys that the caller's account keeps for it, where there are some.
async fn with_keys(
    ledger: Option<&Gateway>,
    call: &Call,
    provider: &Arc<Configured>,
) -> Result<Arc<Configured>, Error> {
    let alias = call.headers.get(byok::ALIAS).and_then(|alias| alias.to_str().ok());
    let kept = match ledger {
        Some(ledger) => {
            ledger.with_kept_keys(&call.caller.account, &call.caller.gateway, provider, alias).await?
        }
        None => None,
    };
    if let Some(kept) = kept {
        return Ok(kept);
    }
    let own_keys_only = call.caller.own_keys_only || flags::is_set(&call.headers, flags::NO_WHOLESALE);
    if !own_keys_only || provider.keys() == 0 {
        return Ok(Arc::clone(provider));
    }
    let bare = provider.withholding_keys(&call.caller.account).map(Arc::new);
    bare.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}

/// The next key in turn that may still be used, counted as used.
async fn key_with_room<'p>(ledger: &Gateway, provider: &'p Configured) -> Result<&'p Arc<Credential>, Error> {
    // When the first has room again, and which were looked at: a key stands there as often as its weight says.
    let (mut soonest, mut full) = (None::<Duration>, Vec::new());
    for (key, quota) in provider.keys_in_turn() {
        let Some(quota) = quota else { return Ok(key) };
        if full.contains(&&quota.name) {
            continue;
        }
        match ledger.take(&quota.name, quota.rule).await {
            Ok(()) => return Ok(key),
            Err(refused) => {
                soonest = Some(soonest.map_or(refused.after, |other| other.min(refused.after)));
                full.push(&quota.name);
            }
        }
    }
    let message =
        format!("Each key of {} that is kept here was used as often as its rate_limit says", provider.slug);
    Err(Error::new(ErrorKind::Limited, message).retry_after(soonest.unwrap_or(Duration::from_secs(1))))
}

/// Whose key goes first: who names a key that is kept means that one.
fn key_of(call: &Call) -> KeyOf {
    if call.headers.contains_key(byok::ALIAS) { KeyOf::Settings } else { call.key_of }
}

/// Enters a call that may cost something.
async fn enter(ledger: Option<&Gateway>, call: &Call, target: &Target) -> Result<Option<Entry>, Error> {
    let counts = target.provider.asked(target.url.path()).counts;
    let Some(ledger) = ledger.filter(|_| call.method == Method::POST && !counts) else { return Ok(None) };
    let opening = Opening {
        request: uuid::Uuid::now_v7().to_string(),
        caller: call.caller.clone(),
        provider: target.provider.slug.to_string(),
        model: target.model.clone(),
        price: ledger.price(&target.provider.slug, &target.model),
        most: target.most,
    };
    let mut entry = ledger.enter(opening).await?;
    // What comes next sends it.
    entry.asked();
    Ok(Some(entry))
}
