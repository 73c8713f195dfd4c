//! Accepts connections and serves each until it ends; shuts down in two steps.
//!
//! Shutdown: no more connections, idle ones are closed, running requests may go on for the grace time; what is
//! left then is dropped, which cancels its work. `serve` returns when no connection is left.

use super::metrics::Metrics;
use super::patient::Patient;
use super::runs::Runs;
use super::socket::SOCKETS_MAX;
use super::{App, Config, Status, binding, body, routes};
use crate::kept::Kept;
use axum::Router;
use base::SystemClock;
use gateway::Gateway;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use protocol::Backend;
use rustix::net::sockopt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// How long the last ends may wait for the store.
const LEDGER_LIMIT: Duration = Duration::from_secs(5);

/// Pause after a failed accept: most likely there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection that has been silent for so long is asked whether it is still there, so often, with such pauses: a
/// machine that vanished without a word would else be waited for while nothing is to be sent to it.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBES: u32 = 4;
const PROBE_PAUSE: Duration = Duration::from_secs(15);

/// Serves until `shutdown` resolves and connections have ended.
pub async fn serve(
    config: Config,
    backend: Arc<dyn Backend>,
    status: Arc<dyn Status>,
    kept: Kept,
    gateway: Option<Gateway>,
    listener: TcpListener,
    shutdown: impl Future,
) -> anyhow::Result<()> {
    let (stop, stopped) = watch::channel(());
    let app = Arc::new(App {
        room: body::Room::new(&config),
        config,
        backend,
        status,
        kept,
        gateway,
        clock: Arc::new(SystemClock::default()),
        metrics: Metrics::default(),
        runs: Runs::default(),
        sockets: Arc::new(Semaphore::new(SOCKETS_MAX as usize)),
        stopped: stopped.clone(),
    });
    let sweeping = Arc::clone(&app);
    let sweeping = tokio::spawn(async move {
        let watching = async {
            match &sweeping.gateway {
                Some(gateway) => drop(tokio::join!(gateway.ledger().watch(), gateway.watch_logs())),
                None => std::future::pending().await,
            }
        };
        tokio::join!(sweeping.kept.sweep(), watching)
    });
    let router = routes::router(Arc::clone(&app));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            _ = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < app.config.max_connections => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, router.clone(), app.config.clone(), stopped.clone()));
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
    let all_ended = async {
        while connections.join_next().await.is_some() {}
        // A connection that became a WebSocket has left its task.
        let _ = app.sockets.acquire_many(SOCKETS_MAX).await;
    };
    if tokio::time::timeout(app.config.grace, all_ended).await.is_err() {
        tracing::warn!(count = connections.len(), "connections were cut after the grace time");
        connections.shutdown().await;
    }
    app.runs.close();
    if let Some(gateway) = &app.gateway {
        gateway.ledger().close(LEDGER_LIMIT).await;
        gateway.logs().close(LEDGER_LIMIT).await;
    }
    sweeping.abort();
    // The store is closed when the last holder of it is gone.
    let _ = sweeping.await;
    Ok(())
}

async fn connection(stream: TcpStream, router: Router, config: Config, mut stopped: watch::Receiver<()>) {
    if let Err(error) = set_options(&stream, config.write_idle) {
        tracing::debug!(%error, "an option of a socket could not be set");
    }
    let asked = AtomicBool::new(false);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request| {
        asked.store(true, Ordering::Relaxed);
        binding::readdress(&mut request);
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Also the time an idle connection waits for its next request.
        .header_read_timeout(config.keep_alive)
        .serve_connection(TokioIo::new(Patient::new(stream, config.write_idle)), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let mut first = pin!(tokio::time::sleep(config.first_request));
    let (mut patient, mut serving) = (true, true);
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            // Ends when the sender is dropped.
            _ = stopped.changed(), if serving => {
                serving = false;
                connection.as_mut().graceful_shutdown();
            }
            () = first.as_mut(), if patient => {
                patient = false;
                if !asked.load(Ordering::Relaxed) {
                    tracing::debug!("a connection asked nothing");
                    return;
                }
            }
        }
    };
    if let Err(error) = ended {
        // Clients that vanish or speak no HTTP are everyday matters.
        tracing::debug!(%error, "a connection ended early");
    }
}

fn set_options(stream: &TcpStream, write_idle: Duration) -> rustix::io::Result<()> {
    // Events are small and must not wait for each other.
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_PAUSE)?;
    // What was sent and is not confirmed; probes do not run then.
    sockopt::set_tcp_user_timeout(stream, u32::try_from(write_idle.as_millis()).unwrap_or(u32::MAX))
}
