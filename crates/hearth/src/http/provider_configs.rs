//! The control plane of providers' keys that an account keeps for a gateway. What is kept is never shown again.

use super::App;
use super::gateways::{Named2, enveloped, fields, gateway, page, path, time_text};
use super::refusal::Answered;
use super::workers_ai::{Parameters, parameters};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use gateway::DEFAULT;
use gateway::byok::{KeptKey, KeyLimit, NewKept};
use protocol::{Error, ErrorKind};
use serde_json::{Map, Value, json as value};
use std::sync::Arc;

type Named3 = Result<Path<(String, String, String)>, PathRejection>;

/// `GET …/gateways/{id}/provider_configs`.
pub(super) async fn list(State(app): State<Arc<App>>, named: Named2, query: Parameters) -> Answered {
    let (gateway, (account, id), query) = (gateway(&app)?, path(named)?, parameters(query)?);
    gateway.gateway(&account, &id).await?;
    let kept = gateway.kept_keys(&account, &id).await?;
    page(&query, kept.iter().map(object))
}

/// `POST …/gateways/{id}/provider_configs`.
pub(super) async fn create(State(app): State<Arc<App>>, named: Named2, request: Request) -> Answered {
    let (account, id) = path(named)?;
    let fields = fields(&app, request).await?;
    let wish = NewKept {
        account,
        gateway: id,
        provider: String::new(),
        alias: DEFAULT.to_owned(),
        is_default: false,
        weight: 1,
        limit: None,
        secret: String::new().into(),
    };
    let kept = gateway(&app)?.keep_key(wished(wish, &fields, None)?).await?;
    Ok(enveloped(&object(&kept), None))
}

/// `GET …/gateways/{id}/provider_configs/{config}`.
pub(super) async fn get(State(app): State<Arc<App>>, named: Named3) -> Answered {
    let (account, id, config) = path(named)?;
    Ok(enveloped(&object(&gateway(&app)?.kept_key(&account, &id, &config).await?), None))
}

/// `PUT …/gateways/{id}/provider_configs/{config}`: changes what is named.
pub(super) async fn update(State(app): State<Arc<App>>, named: Named3, request: Request) -> Answered {
    let (account, id, config) = path(named)?;
    let fields = fields(&app, request).await?;
    let wish = move |old: &KeptKey| {
        let wish = NewKept {
            account: old.account.clone(),
            gateway: old.gateway.clone(),
            provider: old.provider.clone(),
            alias: old.alias.clone(),
            is_default: old.is_default,
            weight: old.weight,
            limit: old.limit,
            secret: String::new().into(),
        };
        wished(wish, &fields, Some(old))
    };
    let changed = gateway(&app)?.change_key(&account, &id, &config, wish).await?;
    Ok(enveloped(&object(&changed), None))
}

/// `DELETE …/gateways/{id}/provider_configs/{config}`.
pub(super) async fn delete(State(app): State<Arc<App>>, named: Named3) -> Answered {
    let (account, id, config) = path(named)?;
    let gone = gateway(&app)?.forget_key(&account, &id, &config).await?;
    Ok(enveloped(&object(&gone), None))
}

/// Seconds of a limit whose time nobody says.
const PERIOD: u64 = 60;

/// Reads the fields of a request over a wish. Of a key that is kept (`old`) a client may send back what it was shown.
fn wished(mut wish: NewKept, fields: &Map<String, Value>, old: Option<&KeptKey>) -> Result<NewKept, Error> {
    let (mut requests, mut period) =
        (wish.limit.map(|limit| limit.requests), wish.limit.map(|limit| limit.period));
    for (name, value) in fields {
        let wrong =
            |expected: &str| Error::invalid(name, format!("Invalid value for '{name}': expected {expected}"));
        let text = || value.as_str().map(str::to_owned).ok_or_else(|| wrong("a text"));
        // The SDK's numbers are floats.
        let whole = || {
            let number = value.as_u64().or_else(|| value.as_f64().and_then(whole_number));
            number.filter(|number| *number > 0).ok_or_else(|| wrong("a whole number, more than 0"))
        };
        match name.as_str() {
            "provider_slug" => wish.provider = text()?,
            "alias" => wish.alias = text()?,
            "secret" => wish.secret = text()?.into(),
            "default_config" => wish.is_default = value.as_bool().ok_or_else(|| wrong("true or false"))?,
            "weight" => {
                let weight = value.as_u64().and_then(|weight| u32::try_from(weight).ok());
                wish.weight = weight.ok_or_else(|| wrong("1 to 100"))?;
            }
            "rate_limit" => requests = if value.is_null() { None } else { Some(whole()?) },
            "rate_limit_period" => period = if value.is_null() { None } else { Some(whole()?) },
            "secret_id" if value.is_null() || old.is_some_and(|old| *value == *old.id) => {}
            "secret_id" => {
                let message = "'secret_id' names a secret of a secrets store, which this server does not have; send the key as \
                     'secret', and it is kept sealed";
                return Err(Error::new(ErrorKind::Unsupported, message).at(name));
            }
            "id" | "gateway_id" | "secret_preview" | "created_at" | "modified_at" if old.is_some() => {}
            _ => {
                let shown: String = name.chars().take(64).collect();
                return Err(Error::invalid(&shown, format!("There is no field '{shown}' here")));
            }
        }
    }
    if requests.is_none() && period.is_some() && fields.contains_key("rate_limit_period") {
        return Err(Error::invalid(
            "rate_limit",
            "'rate_limit' is missing, which 'rate_limit_period' is about",
        ));
    }
    wish.limit = requests.map(|requests| KeyLimit { requests, period: period.unwrap_or(PERIOD) });
    Ok(wish)
}

/// A float that is a whole number.
fn whole_number(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (0.0..=1e15).contains(&number)).then_some(number as u64)
}

fn object(kept: &KeptKey) -> Value {
    value!({
        "id": kept.id, "gateway_id": kept.gateway, "provider_slug": kept.provider, "alias": kept.alias,
        "default_config": kept.is_default, "weight": kept.weight, "secret_id": kept.id,
        "secret_preview": kept.preview, "rate_limit": kept.limit.map(|limit| limit.requests),
        "rate_limit_period": kept.limit.map(|limit| limit.period),
        "created_at": time_text(kept.created), "modified_at": time_text(kept.modified),
    })
}

/// `GET …/gateways/{id}/url/{provider}`: where a provider is called through a gateway.
pub(super) async fn url(State(app): State<Arc<App>>, named: Named3, headers: HeaderMap) -> Answered {
    let (account, id, slug) = path(named)?;
    gateway(&app)?.gateway(&account, &id).await?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // What ends TLS before this server says so.
    let scheme = header("x-forwarded-proto").filter(|scheme| *scheme == "https").unwrap_or("http");
    let host = header("host").unwrap_or("localhost");
    let base = format!("{scheme}://{host}/v1/{account}/{id}");
    let known = match slug.as_str() {
        "compat" => true,
        slug => app.providers(&account).await?.is_some_and(|providers| providers.get(slug).is_some()),
    };
    if slug == "universal" {
        return Ok(enveloped(&base.into(), None));
    }
    if !known {
        let shown: String = slug.chars().take(100).collect();
        let message = format!("Invalid provider: there is no {shown:?} here");
        return Err(Error::invalid("provider", message).into());
    }
    Ok(enveloped(&format!("{base}/{slug}").into(), None))
}
