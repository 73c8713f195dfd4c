//! Accepts connections and serves each until it ends; shuts down in two steps.
//!
//! Shutdown: no more connections, idle ones are closed, running requests may go on for the grace time; what is
//! left then is dropped, which cancels its work. `serve` returns when no connection is left.

use super::metrics::Metrics;
use super::{App, Config, Status, routes};
use axum::Router;
use base::SystemClock;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use protocol::Backend;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Pause after a failed accept: most likely there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` resolves and connections have ended.
pub async fn serve(
    config: Config,
    backend: Arc<dyn Backend>,
    status: Arc<dyn Status>,
    listener: TcpListener,
    shutdown: impl Future,
) -> anyhow::Result<()> {
    let app = Arc::new(App {
        config,
        backend,
        status,
        clock: Arc::new(SystemClock::default()),
        metrics: Metrics::default(),
    });
    let router = routes::router(Arc::clone(&app));
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            _ = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < app.config.max_connections => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, router.clone(), app.config.keep_alive, stopped.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    drop(stop);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(app.config.grace, all_ended).await.is_err() {
        tracing::warn!(count = connections.len(), "connections were cut after the grace time");
        connections.shutdown().await;
    }
    Ok(())
}

async fn connection(
    stream: TcpStream,
    router: Router,
    keep_alive: Duration,
    mut stopped: watch::Receiver<()>,
) {
    // Events are small and must not wait for each other.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Also the time an idle connection waits for its next request.
        .header_read_timeout(keep_alive)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Ends when the sender is dropped.
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Clients that vanish or speak no HTTP are everyday matters.
        tracing::debug!(%error, "a connection ended early");
    }
}
