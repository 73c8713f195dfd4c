//! Asks this server's own routes again, behind the front: a step of a route, an entry of a universal request and a message
//! on a WebSocket are requests of their own, and go through policy and handlers like any other.
//!
//! Who asks is known by then. What is refused comes back as a response that carries the error for the front to write.

use super::body::Body;
use axum::Router;
use axum::body::Body as Sent;
use axum::extract::Request;
use axum::http::{Extensions, HeaderMap, Method, Uri, header};
use axum::response::Response;
use gateway::Caller;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use protocol::Error;

/// All routes, without the front. The front leaves it with each request.
#[derive(Clone)]
pub(super) struct Behind(Router);

/// Marks a request within a request.
#[derive(Clone)]
pub(super) struct Nested;

/// Marks what a step of a route asks, which must not lead to a route again.
#[derive(Clone)]
pub(super) struct InRoute;

/// A request within a request.
pub(super) struct Inner {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) caller: Caller,
    pub(super) body: Body,
    /// Whether a step of a route asks.
    pub(super) in_route: bool,
}

impl Behind {
    pub(super) const fn new(router: Router) -> Self {
        Self(router)
    }

    /// What the front left.
    pub(super) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().expect("the front leaves the routes with each request")
    }

    /// Asks; resolves with the head of the answer.
    pub(super) async fn ask(&self, inner: Inner) -> Response {
        let Inner { method, uri, headers, caller, body, in_route } = inner;
        let mut request = Request::new(Sent::empty());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        // The body lies ready, and its length may have changed.
        request.headers_mut().remove(header::CONTENT_LENGTH);
        request.headers_mut().remove(header::TRANSFER_ENCODING);
        let extensions = request.extensions_mut();
        extensions.insert(self.clone());
        extensions.insert(caller);
        extensions.insert(body);
        extensions.insert(Nested);
        if in_route {
            extensions.insert(InRoute);
        }
        match TowerToHyperService::new(self.0.clone()).call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// The status that the client will see.
pub(super) fn status(response: &Response) -> u16 {
    let refused = response.extensions().get::<Error>().map(|error| error.kind.status());
    refused.unwrap_or_else(|| response.status().as_u16())
}

/// Whether there is an answer.
pub(super) fn is_answer(response: &Response) -> bool {
    status(response) < 400
}
