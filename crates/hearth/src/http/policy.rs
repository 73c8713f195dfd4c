//! What a gateway's settings ask for between the front and the handler of a request to a model, for every surface alike:
//! the body is read here, so that each step may look at it, and the handler finds it read.
//!
//! Not here: who may come in (`front.rs`), and what a request to one provider goes through (`gateway::call`).

use super::body::ahead;
use super::refusal::Dialect;
use super::trail::Trail;
use super::{App, logged, routes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use protocol::Error;

/// Passes a request on to its handler.
pub(super) async fn pass(
    app: &App,
    route: Option<&str>,
    mut request: Request,
    next: Next,
) -> Result<Response, Error> {
    let Some(route) = route.filter(|route| routes::ASKING.contains(route)) else {
        return Ok(next.run(request).await);
    };
    let dialect = Dialect::spoken(request.uri().path(), request.headers());
    let followed = logged::begin(app, route, &mut request).await;
    let answered = steps(app, request, next, followed.as_ref()).await;
    match followed {
        Some(followed) => followed.end(dialect, answered),
        None => answered,
    }
}

/// What stands between the log and the handler, in this order.
async fn steps(
    app: &App,
    request: Request,
    next: Next,
    followed: Option<&logged::Followed>,
) -> Result<Response, Error> {
    let (mut request, body) = ahead(app, request).await?;
    if let Some(followed) = followed {
        followed.body(body.bytes());
    }
    let trail = Trail::default();
    request.extensions_mut().insert(trail.clone());
    let mut response = next.run(request).await;
    trail.tell(response.headers_mut());
    Ok(response)
}
