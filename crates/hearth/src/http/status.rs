//! Health, metrics and the page that greets people.

use super::refusal::{Answered, json};
use super::{App, routes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::sync::Arc;

/// What the server asks the process about itself.
pub trait Status: Send + Sync {
    /// Metrics in Prometheus' text form, each line ended.
    fn metrics(&self) -> String;
    /// Every model and how it does.
    fn health(&self) -> Vec<ModelHealth>;
}

/// How a model does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelHealth {
    /// The model's id.
    pub id: String,
    /// Whether it can answer, and why not.
    pub state: ModelState,
    /// More about it, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Whether a model can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// Its checkpoint is being read.
    Loading,
    /// It can answer.
    Ready,
    /// Its engine failed and starts again.
    Restarting,
}

/// 200 when at least one model can answer, or there is none and providers are all that is asked; else 503.
pub(super) async fn healthz(State(app): State<Arc<App>>) -> Answered {
    #[derive(Serialize)]
    struct Health {
        status: &'static str,
        models: Vec<ModelHealth>,
    }
    let models = app.status.health();
    // Without models of its own the server is a gateway, and providers can be asked from the start on, be it with keys
    // that only callers have. With models it has to wait for one.
    let gateway = models.is_empty() && app.config.proxy.is_some();
    let ready = gateway || models.iter().any(|model| model.state == ModelState::Ready);
    let health = Health { status: if ready { "ok" } else { "unavailable" }, models };
    let mut response = json(serde_json::to_string(&health).expect("health has no failing fields"));
    if !ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(response)
}

/// The process's metrics and the server's.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut text = app.status.metrics();
    text.push_str(&app.metrics.render());
    if let Some(gateway) = &app.gateway {
        text.push_str(&gateway.metrics());
    }
    if let Some(proxy) = &app.config.proxy {
        text.push_str(&proxy.metrics());
    }
    let mut response = text.into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Names the routes.
pub(super) async fn hello() -> String {
    let mut text = format!("Hearth {}\n\n", env!("CARGO_PKG_VERSION"));
    for route in routes::ROUTES {
        let (method, purpose) = route.about.split_once(' ').unwrap_or((route.about, ""));
        let path = route.path.replace("{*", "{");
        text.push_str(&format!("{method:<8}{path:<60}  {}\n", purpose.trim_start()));
    }
    text
}
