//! What a gateway's settings ask for between the front and the handler of a request to a model, for every surface alike:
//! the body is read here, so that each step may look at it, and the handler finds it read.
//!
//! Not here: who may come in (`front.rs`), and what a request to one provider goes through (`gateway::call`).

use super::body::ahead;
use super::{App, routes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use protocol::Error;

/// Passes a request on to its handler.
pub(super) async fn pass(
    app: &App,
    route: Option<&str>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    if !route.is_some_and(|route| routes::ASKING.contains(&route)) {
        return Ok(next.run(request).await);
    }
    let (request, _body) = ahead(app, request).await?;
    Ok(next.run(request).await)
}
