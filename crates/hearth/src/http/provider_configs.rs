//! The control plane of providers' keys that an account keeps for a gateway. What is kept is never shown again.

use super::App;
use super::gateways::{Named2, enveloped, fields, gateway, page, path, time_text};
use super::refusal::Answered;
use super::workers_ai::{Parameters, parameters};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use gateway::DEFAULT;
use gateway::byok::{KeptKey, NewKept};
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
    let kept = gateway(&app)?.keep_key(wish(account, id, &fields)?).await?;
    Ok(enveloped(&object(&kept), None))
}

/// `DELETE …/gateways/{id}/provider_configs/{config}`.
pub(super) async fn delete(State(app): State<Arc<App>>, named: Named3) -> Answered {
    let (account, id, config) = path(named)?;
    let gone = gateway(&app)?.forget_key(&account, &id, &config).await?;
    Ok(enveloped(&object(&gone), None))
}

fn wish(account: String, gateway: String, fields: &Map<String, Value>) -> Result<NewKept, Error> {
    let mut wish = NewKept {
        account,
        gateway,
        provider: String::new(),
        alias: DEFAULT.to_owned(),
        is_default: false,
        weight: 1,
        secret: String::new().into(),
    };
    for (name, value) in fields {
        let wrong =
            |expected: &str| Error::invalid(name, format!("Invalid value for '{name}': expected {expected}"));
        let text = || value.as_str().map(str::to_owned).ok_or_else(|| wrong("a text"));
        match name.as_str() {
            "provider_slug" => wish.provider = text()?,
            "alias" => wish.alias = text()?,
            "secret" => wish.secret = text()?.into(),
            "default_config" => wish.is_default = value.as_bool().ok_or_else(|| wrong("true or false"))?,
            "weight" => {
                let weight = value.as_u64().and_then(|weight| u32::try_from(weight).ok());
                wish.weight = weight.ok_or_else(|| wrong("1 to 100"))?;
            }
            "rate_limit" | "rate_limit_period" | "secret_id" if value.is_null() => {}
            "rate_limit" | "rate_limit_period" | "secret_id" => {
                let message = format!("'{name}' asks for something that this server does not do yet");
                return Err(Error::new(ErrorKind::Unsupported, message).at(name));
            }
            _ => {
                let shown: String = name.chars().take(64).collect();
                return Err(Error::invalid(&shown, format!("There is no field '{shown}' here")));
            }
        }
    }
    Ok(wish)
}

fn object(kept: &KeptKey) -> Value {
    value!({
        "id": kept.id, "gateway_id": kept.gateway, "provider_slug": kept.provider, "alias": kept.alias,
        "default_config": kept.is_default, "weight": kept.weight, "secret_id": kept.id,
        "secret_preview": kept.preview, "rate_limit": null, "rate_limit_period": null,
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
