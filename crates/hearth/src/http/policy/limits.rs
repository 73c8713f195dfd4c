//! How often may be asked: by a key, and through a gateway.

use super::super::refusal::Refusal;
use super::super::{App, front, routes};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use gateway::log::{Finder, Finding, Trace};
use gateway::policy::Refused;
use gateway::{Action, Caller, Gateway, KeyId, Named};

/// The key whose requests are counted.
pub(super) fn key(request: &Request, route: Option<&str>) -> Option<KeyId> {
    let key = request.extensions().get::<Caller>()?.key.as_ref()?;
    let manages = route.is_some_and(|route| route.starts_with(front::CONTROL));
    (!manages && !routes::OPEN.contains(&request.uri().path())).then(|| key.clone())
}

/// Counts a request of a key; a response where the key has had all of its minute, and what is beyond limits that only
/// report.
pub(super) async fn of_key(app: &App, key: &KeyId) -> Result<Option<&'static str>, Response> {
    let Some(gateway) = &app.gateway else { return Ok(None) };
    gateway.count(key).await.map_err(|refused| {
        let message = match refused.unit {
            "tokens" => format!("This key may use {} tokens a minute", refused.rule.limit),
            _ => format!("This key may ask {} times a minute", refused.rule.limit),
        };
        response(&refused, message)
    })
}

/// Counts a request through a gateway; a response where it may not be asked now.
pub(super) async fn of_gateway(gateway: &Gateway, named: &Named, trace: Option<&Trace>) -> Option<Response> {
    let rule = named.settings.rates.rule()?;
    let refused = gateway.take(&format!("gateway:{}/{}", named.account, named.id), rule).await.err()?;
    if named.settings.rates.rate_limiting_shadow {
        gateway.report(Finder::Gateway);
        if let Some(trace) = trace {
            let names = vec!["requests".to_owned()];
            trace.found(Finding { by: Finder::Gateway, action: Action::Flag, names });
        }
        return None;
    }
    let message = format!("This gateway may be asked {} times in {} seconds", rule.limit, rule.window);
    Some(response(&refused, message))
}

fn response(refused: &Refused, message: String) -> Response {
    let mut response = Refusal(refused.error(message)).into_response();
    let unit = refused.unit;
    for (what, value) in [
        ("limit", refused.rule.limit.to_string()),
        ("remaining", "0".to_owned()),
        ("reset", format!("{}s", refused.after.as_secs())),
    ] {
        let name = HeaderName::try_from(format!("x-ratelimit-{what}-{unit}")).expect("letters and '-'");
        let value = HeaderValue::try_from(value).expect("digits are a header value");
        response.headers_mut().insert(name, value);
    }
    response
}
