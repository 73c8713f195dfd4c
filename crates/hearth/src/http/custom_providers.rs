//! The control plane of an account's own providers, which are called as `custom-{slug}`.

use super::App;
use super::gateways::{Named1, Named2, enveloped, fields, find, gateway, page, path, time_text};
use super::refusal::Answered;
use super::workers_ai::{Parameters, parameters};
use axum::extract::{Request, State};
use axum::response::Response;
use gateway::custom::Custom;
use protocol::Error;
use serde_json::Value;
use std::sync::Arc;

fn one(custom: &Custom) -> Response {
    enveloped(&custom.object(time_text), None)
}

/// `GET …/custom-providers?search=&enable=`.
pub(super) async fn list(State(app): State<Arc<App>>, account: Named1, query: Parameters) -> Answered {
    let (gateway, account, query) = (gateway(&app)?, path(account)?, parameters(query)?);
    gateway.check_account(&account).await?;
    let mut found = gateway.customs(&account).await?;
    if let Some(wanted) = find(&query, "search") {
        found.retain(|custom| custom.slug.contains(wanted) || custom.about.name.contains(wanted));
    }
    if let Some(enabled) = find(&query, "enable") {
        found.retain(|custom| custom.enabled == (enabled == "true"));
    }
    page(&query, found.iter().map(|custom| custom.object(time_text)))
}

/// `POST …/custom-providers`.
pub(super) async fn create(State(app): State<Arc<App>>, account: Named1, request: Request) -> Answered {
    let account = path(account)?;
    let fields = fields(&app, request).await?;
    let slug = fields.get("slug").and_then(Value::as_str).map(|slug| format!("custom-{slug}"));
    // What a request to that name pays, and with whose key, must not change under those who use it.
    if let (Some(slug), Some(proxy)) = (slug, &app.config.proxy)
        && proxy.providers().get(&slug).is_some()
    {
        return Err(
            Error::invalid("slug", format!("There is a provider '{slug}' of this server already")).into()
        );
    }
    Ok(one(&*gateway(&app)?.create_custom(&account, &fields, app.config.reach).await?))
}

/// `GET …/custom-providers/{id}`.
pub(super) async fn get(State(app): State<Arc<App>>, named: Named2) -> Answered {
    let (account, id) = path(named)?;
    Ok(one(&*gateway(&app)?.custom(&account, &id).await?))
}

/// `PUT` and `PATCH …/custom-providers/{id}`: changes what is named.
pub(super) async fn update(State(app): State<Arc<App>>, named: Named2, request: Request) -> Answered {
    let (account, id) = path(named)?;
    let fields = fields(&app, request).await?;
    Ok(one(&*gateway(&app)?.update_custom(&account, &id, &fields, app.config.reach).await?))
}

/// `DELETE …/custom-providers/{id}`.
pub(super) async fn delete(State(app): State<Arc<App>>, named: Named2) -> Answered {
    let (account, id) = path(named)?;
    Ok(one(&*gateway(&app)?.delete_custom(&account, &id).await?))
}
