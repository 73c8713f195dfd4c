//! The HTTP server: reads requests in the caller's dialect, asks the [`Backend`], writes answers in the same dialect.
//!
//! Handlers call nothing but [`Backend`] (through `meter.rs`, which enters what is asked in the ledger), [`Gateway`] and [`Status`]. A handler gives back a response or a canonical error; the
//! error is put into words in one place (`refusal.rs`), in the dialect that the path belongs to. The routes are one
//! list (`routes.rs`). Not here: TLS, HTTP/2, compression, CORS.

mod anthropic;
mod billing;
mod binding;
mod body;
mod bound;
mod counting;
mod custom_providers;
mod dispatch;
mod front;
mod gateways;
mod invoices;
mod logged;
mod logs;
mod meter;
mod metrics;
mod openai;
mod patient;
mod policy;
mod provider_configs;
mod providers;
mod refusal;
mod rerank;
mod responses;
mod routed;
mod routes;
mod routes_of_gateways;
mod runs;
mod serve;
mod socket;
mod sse;
mod status;
mod tokenize;
mod trail;
mod universal;
mod workers_ai;

pub use serve::serve;
pub use status::{ModelHealth, ModelState, Status};

use crate::kept::Kept;
use base::{Bytes, Clock};
use gateway::Gateway;
use gateway::call::Proxy;
use gateway::custom::Reach;
use gateway::provider::{Configured, Providers};
use protocol::{Backend, Error, ModelInfo, no_such_model};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// How the server listens and what it lets in.
#[derive(Clone, Debug)]
pub struct Config {
    /// The key callers must show. Without one, only loopback Hosts and no foreign Origins are served.
    pub api_key: Option<String>,
    /// Largest body of a request.
    pub body_limit: Bytes,
    /// Bytes of bodies in memory at once, over all connections, from their arrival until they are parsed.
    pub body_budget: Bytes,
    /// How long a body may wait for room in the budget.
    pub body_wait: Duration,
    /// Longest pause in the arrival of a body.
    pub body_idle: Duration,
    /// Longest time a body may take in all.
    pub body_time: Duration,
    /// How long a connection may wait for its next request; longer than an agent thinks between two turns.
    pub keep_alive: Duration,
    /// How long a new connection may take to its first whole request head; anyone may open one.
    pub first_request: Duration,
    /// Longest time in which a client may take no byte of what is sent to it.
    pub write_idle: Duration,
    /// Longest silence of a stream before a comment is sent.
    pub stream_silence: Duration,
    /// How long a stream that can be read on is kept after its end, or without a reader.
    pub resume: Duration,
    /// How long running requests may go on after shutdown was asked for.
    pub grace: Duration,
    /// Connections open at once; more wait to be accepted.
    pub max_connections: usize,
    /// What asks providers; none where nobody is asked.
    pub proxy: Option<Arc<Proxy>>,
    /// Where providers may be that accounts make.
    pub reach: Reach,
    /// Who judges for guardrails whose gateway names nobody: a model, or the address of a webhook.
    pub judge: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            api_key: None,
            body_limit: Bytes(64 << 20),
            body_budget: Bytes(1 << 30),
            body_wait: Duration::from_secs(5),
            body_idle: Duration::from_secs(30),
            body_time: Duration::from_secs(600),
            keep_alive: Duration::from_secs(1800),
            first_request: Duration::from_secs(60),
            write_idle: Duration::from_secs(120),
            stream_silence: Duration::from_secs(15),
            resume: Duration::from_secs(330),
            grace: Duration::from_secs(10),
            max_connections: 4096,
            proxy: None,
            reach: Reach::Public,
            judge: None,
        }
    }
}

/// What handlers share.
struct App {
    config: Config,
    room: body::Room,
    backend: Arc<dyn Backend>,
    status: Arc<dyn Status>,
    kept: Kept,
    /// Keys, prices and the ledger; a server of this program always has them, tests of what needs none do not.
    gateway: Option<Gateway>,
    clock: Arc<dyn Clock>,
    metrics: metrics::Metrics,
    /// Streams that can be read on.
    runs: runs::Runs,
    /// Room for WebSockets, one permit each.
    sockets: Arc<Semaphore>,
    /// Ends when no more connections are taken.
    stopped: watch::Receiver<()>,
}

impl App {
    /// The model that goes by this name.
    fn model(&self, name: &str) -> Result<ModelInfo, Error> {
        let found = |model: &ModelInfo| model.id == name || model.aliases.iter().any(|alias| alias == name);
        let models = self.backend.models();
        models.iter().find(|model| found(model)).cloned().ok_or_else(|| {
            let here = models.iter().map(|model| model.id.as_str());
            let providers = self.config.proxy.as_ref().map(|proxy| proxy.providers());
            let of_providers = providers.iter().flat_map(|providers| providers.iter());
            let listed = of_providers.flat_map(|provider| provider.models.iter().map(String::as_str));
            let mut known: Vec<&str> = Vec::new();
            for model in here.chain(listed) {
                if !known.contains(&model) {
                    known.push(model);
                }
            }
            no_such_model(name, &known)
        })
    }

    /// Who can be asked in an account; nothing where nobody is.
    async fn providers(&self, account: &str) -> Result<Option<Arc<Providers>>, Error> {
        let Some(proxy) = &self.config.proxy else { return Ok(None) };
        let of_settings = proxy.providers();
        match &self.gateway {
            None => Ok(Some(of_settings)),
            Some(gateway) => gateway.providers(account, &of_settings).await.map(Some),
        }
    }

    /// Who has a model that is not here, each with the name by which it knows it.
    async fn elsewhere(&self, account: &str, model: &str) -> Result<Vec<(Arc<Configured>, String)>, Error> {
        if self.model(model).is_ok() {
            return Ok(Vec::new());
        }
        let Some(providers) = self.providers(account).await? else { return Ok(Vec::new()) };
        let offers = providers.of_model(model).into_iter();
        Ok(offers.map(|(provider, name)| (provider, name.to_owned())).collect())
    }

    /// The id a model is answered by; a name the backend alone knows stays as it is.
    fn model_id(&self, name: &str) -> String {
        self.model(name).map_or_else(|_| name.to_owned(), |model| model.id)
    }
}

/// A new id for a request or an answer, without a prefix.
fn fresh_id() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

#[cfg(test)]
mod tests;
