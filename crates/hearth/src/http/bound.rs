//! The gateway that a Worker names in the options of `AI.run`: it holds for the call as if the path or the headers had
//! named it, before anything of a gateway is looked at. What the options say goes before what the headers say.

use super::App;
use super::body::Body;
use super::front::{described, through};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use gateway::Caller;
use protocol::workers_ai::binding;
use protocol::{Error, ErrorKind};

/// The routes of `AI.run`.
pub(super) const ROUTES: [&str; 2] = ["/run", "/ai-gateway/run"];

/// Puts what the options say into the request.
pub(super) async fn apply(app: &App, request: &mut Request, body: &Body) -> Result<(), Error> {
    // What is no text is refused behind.
    if !std::str::from_utf8(body.bytes()).is_ok_and(|body| body.contains("\"gateway\"")) {
        return Ok(());
    }
    let Some(asked) = binding::through(body.bytes())? else { return Ok(()) };
    let headers = request.headers_mut();
    for (name, value) in asked.headers {
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            let message = format!("A value of 'options.gateway' cannot be sent as the header {name}");
            Error::new(ErrorKind::InvalidRequest, message).at("options.gateway")
        })?;
        headers.insert(HeaderName::from_static(name), value);
    }
    let caller = request.extensions().get::<Caller>().cloned();
    let mut caller = caller.expect("the front says who asks");
    described(&mut caller, request.headers())?;
    if let Some(id) = asked.id {
        through(app, &mut caller, &id, "options.gateway.id").await?;
    }
    request.extensions_mut().insert(caller);
    Ok(())
}
