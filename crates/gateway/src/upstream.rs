//! The HTTP client that providers are asked with: one pool of connections for all, HTTP/2 where the provider offers it,
//! bodies in pieces that are never joined.
//!
//! A request or an answer that is dropped closes its connection, or its stream of HTTP/2, at once: that is how a client
//! that left stops the work upstream. Not here: retries (`call/`), and proxies of the environment.

use crate::custom::is_public;
use crate::scan::Pieces;
use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Longest time to a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a connection may rest in the pool; most servers wait for a minute or more.
const IDLE: Duration = Duration::from_secs(50);

/// A connection that has been silent for so long is asked whether it is still there.
const PROBE: Duration = Duration::from_secs(30);

/// Connections that rest for one provider.
const IDLE_MAX: usize = 256;

/// A body that is sent in pieces.
#[derive(Debug)]
pub struct Sent {
    pieces: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl From<Pieces> for Sent {
    fn from(pieces: Pieces) -> Self {
        Self { left: pieces.len() as u64, pieces: pieces.0.into_iter() }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.next();
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Resolves names to public addresses alone. Addresses that are written out are not asked about here.
#[derive(Clone, Copy, Debug)]
struct PublicOnly;

impl tower_service::Service<Name> for PublicOnly {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let public: Vec<SocketAddr> =
                found.iter().copied().filter(|address| is_public(address.ip())).collect();
            if public.is_empty() && !found.is_empty() {
                return Err(io::Error::other("its name points into a private network"));
            }
            Ok(public.into_iter())
        })
    }
}

type Connections<R> = Client<HttpsConnector<HttpConnector<R>>, Sent>;

/// The client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Upstream {
    anywhere: Connections<GaiResolver>,
    public: Connections<PublicOnly>,
}

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
#[error("{}", words(.0))]
pub struct SendError(#[from] hyper_util::client::legacy::Error);

fn words(error: &hyper_util::client::legacy::Error) -> String {
    if !error.is_connect() {
        return plainly(error);
    }
    // The causes too: the outermost says little.
    let mut text = "it cannot be reached".to_owned();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = without_number(inner.to_string());
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// What went wrong on a connection, in words for whoever knows nothing of how it is used here.
pub(crate) fn plainly(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    loop {
        let of_http = innermost.downcast_ref::<hyper::Error>();
        if of_http.is_some_and(hyper::Error::is_incomplete_message) {
            return "the connection was closed".to_owned();
        }
        if of_http.is_some_and(|error| error.is_parse() || error.is_parse_status()) {
            return "what came is no HTTP".to_owned();
        }
        match innermost.source() {
            Some(inner) => innermost = inner,
            None => break,
        }
    }
    let kind = innermost.downcast_ref::<io::Error>().map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof) => {
            "the connection was closed".to_owned()
        }
        _ => without_number(innermost.to_string()),
    }
}

/// Without the system's own number of an error.
fn without_number(text: String) -> String {
    match text.rfind(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

impl Upstream {
    /// With the certificates that this machine trusts.
    ///
    /// # Errors
    /// When the TLS library cannot be set up.
    pub fn new() -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            tracing::warn!("this machine trusts no certificates: providers can be asked over http only");
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            anywhere: connections(GaiResolver::new(), tls.clone()),
            public: connections(PublicOnly, tls),
        })
    }

    /// Sends a request; resolves with the head of the answer. With `public_only` a name that points into a private
    /// network is not connected to.
    ///
    /// # Errors
    /// When no head came.
    pub async fn send(
        &self,
        request: Request<Sent>,
        public_only: bool,
    ) -> Result<Response<Incoming>, SendError> {
        Ok(if public_only {
            self.public.request(request).await
        } else {
            self.anywhere.request(request).await
        }?)
    }
}

fn connections<R>(resolver: R, tls: ClientConfig) -> Connections<R>
where
    HttpsConnector<HttpConnector<R>>: Connect + Clone,
{
    let mut http = HttpConnector::new_with_resolver(resolver);
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http.set_keepalive(Some(PROBE));
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_all_versions();
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_MAX)
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .http2_adaptive_window(true)
        .http2_keep_alive_interval(PROBE)
        .build(https.wrap_connector(http))
}

/// The next bytes of an answer's body.
pub(crate) async fn chunk(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await? {
            Err(error) => return Some(Err(error)),
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
        }
    }
}
