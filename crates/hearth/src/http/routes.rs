//! The routes: one list, from which the router and the page at `/` are made.

use super::dispatch::Behind;
use super::front::Front;
use super::refusal::Refusal;
use super::{
    App, anthropic, billing, binding, custom_providers, front, gateways, invoices, logs, openai, policy,
    provider_configs, providers, rerank, responses, routes_of_gateways, runs, socket, status, tokenize,
    universal, workers_ai,
};
use axum::Router;
use axum::extract::Request;
use axum::routing::{MethodRouter, any, delete, get, post};
use protocol::{Error, ErrorKind};
use std::sync::Arc;

/// One route.
pub(super) struct Route {
    /// Its path; `{name}` is one segment, `{*name}` the rest, slashes included.
    pub(super) path: &'static str,
    /// Method and purpose, for people.
    pub(super) about: &'static str,
    handler: fn() -> MethodRouter<Arc<App>>,
}

/// All routes, in the order in which they are shown.
pub(super) const ROUTES: &[Route] = &[
    Route { path: "/", about: "GET   this page", handler: || get(status::hello) },
    Route {
        path: "/v1/chat/completions",
        about: "POST  OpenAI chat completions",
        handler: || post(openai::chat),
    },
    Route {
        path: "/v1/completions",
        about: "POST  OpenAI completions",
        handler: || post(openai::completions),
    },
    Route { path: "/v1/responses", about: "POST  OpenAI responses", handler: || post(responses::create) },
    Route {
        path: "/v1/responses/{id}",
        about: "GET   a kept response; DELETE deletes it",
        handler: || get(responses::get).delete(responses::delete),
    },
    Route {
        path: "/v1/responses/{id}/input_items",
        about: "GET   what a kept response was made from",
        handler: || get(responses::input_items),
    },
    Route {
        path: "/v1/responses/{id}/cancel",
        about: "POST  refused: nothing runs in the background",
        handler: || post(responses::cancel),
    },
    Route { path: "/v1/embeddings", about: "POST  OpenAI embeddings", handler: || post(openai::embeddings) },
    Route {
        path: "/v1/rerank",
        about: "POST  scores of texts for a query",
        handler: || post(rerank::rerank),
    },
    Route {
        path: "/v2/rerank",
        about: "POST  as /v1/rerank, for Cohere's clients",
        handler: || post(rerank::rerank),
    },
    Route { path: "/rerank", about: "POST  as /v1/rerank", handler: || post(rerank::rerank) },
    Route { path: "/v1/messages", about: "POST  Anthropic messages", handler: || post(anthropic::messages) },
    Route {
        path: "/v1/messages/count_tokens",
        about: "POST  tokens of an Anthropic message",
        handler: || post(anthropic::count_tokens),
    },
    Route {
        path: "/v1/runs/{run}",
        about: "DELETE  ends a stream that can be read on",
        handler: || delete(runs::end),
    },
    Route {
        path: "/v1/runs/{run}/resume",
        about: "GET   a stream from event ?from=n on",
        handler: || get(runs::resume),
    },
    Route { path: "/v1/models", about: "GET   models", handler: || get(anthropic::models) },
    Route { path: "/v1/models/{*model}", about: "GET   one model", handler: || get(anthropic::model) },
    Route {
        path: "/v1/tokenize",
        about: "POST  tokens of a text or conversation",
        handler: || post(tokenize::tokenize),
    },
    Route {
        path: "/v1/detokenize",
        about: "POST  the text of tokens",
        handler: || post(tokenize::detokenize),
    },
    Route { path: "/tokenize", about: "POST  as /v1/tokenize", handler: || post(tokenize::tokenize) },
    Route { path: "/detokenize", about: "POST  as /v1/detokenize", handler: || post(tokenize::detokenize) },
    Route {
        path: "/client/v4/accounts/{account}/ai/run",
        about: "POST  Workers AI, the model named in the body",
        handler: || post(workers_ai::run_named),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/run/{*model}",
        about: "POST  Workers AI",
        handler: || post(workers_ai::run),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/runs/{run}",
        about: "DELETE  ends a stream that can be read on",
        handler: || delete(runs::end),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/runs/{run}/resume",
        about: "GET   a stream from event ?from=n on",
        handler: || get(runs::resume),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/models/search",
        about: "GET   Workers AI catalog",
        handler: || get(workers_ai::search),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/chat/completions",
        about: "POST  as /v1/chat/completions",
        handler: || post(openai::chat),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/completions",
        about: "POST  as /v1/completions",
        handler: || post(openai::completions),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/responses",
        about: "POST  as /v1/responses",
        handler: || post(responses::create),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/responses/{id}",
        about: "GET   as /v1/responses/{id}",
        handler: || get(responses::get).delete(responses::delete),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/responses/{id}/input_items",
        about: "GET   as /v1/responses/{id}/input_items",
        handler: || get(responses::input_items),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/responses/{id}/cancel",
        about: "POST  as /v1/responses/{id}/cancel",
        handler: || post(responses::cancel),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/embeddings",
        about: "POST  as /v1/embeddings",
        handler: || post(openai::embeddings),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/rerank",
        about: "POST  as /v1/rerank",
        handler: || post(rerank::rerank),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/messages",
        about: "POST  as /v1/messages",
        handler: || post(anthropic::messages),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/messages/count_tokens",
        about: "POST  as /v1/messages/count_tokens",
        handler: || post(anthropic::count_tokens),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai/v1/models",
        about: "GET   as /v1/models",
        handler: || get(anthropic::models),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways",
        about: "GET   gateways; POST makes one",
        handler: || get(gateways::list).post(gateways::create),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}",
        about: "GET   one gateway; PUT changes, DELETE removes it",
        handler: || get(gateways::get).put(gateways::update).delete(gateways::delete),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/provider_configs",
        about: "GET   kept keys of providers; POST keeps one",
        handler: || get(provider_configs::list).post(provider_configs::create),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/provider_configs/{config}",
        about: "GET   a kept key, without its secret; PUT changes, DELETE forgets it",
        handler: || get(provider_configs::get).put(provider_configs::update).delete(provider_configs::delete),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/url/{provider}",
        about: "GET   where a provider is called through a gateway",
        handler: || get(provider_configs::url),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/custom-providers",
        about: "GET   the account's own providers; POST makes one",
        handler: || get(custom_providers::list).post(custom_providers::create),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/custom-providers/{id}",
        about: "GET   one of them; PUT or PATCH changes, DELETE removes it",
        handler: || {
            get(custom_providers::get)
                .put(custom_providers::update)
                .patch(custom_providers::update)
                .delete(custom_providers::delete)
        },
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/logs",
        about: "GET   logs of a gateway; DELETE deletes some",
        handler: || get(logs::list).delete(logs::delete),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/logs/{log}",
        about: "GET   one log; PATCH judges it",
        handler: || get(logs::get).patch(logs::judge),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/logs/{log}/request",
        about: "GET   the raw request of a log, where it is stored",
        handler: || get(logs::request),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/logs/{log}/response",
        about: "GET   the raw response of a log",
        handler: || get(logs::response),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/routes",
        about: "GET   dynamic routes; POST makes one",
        handler: || get(routes_of_gateways::list).post(routes_of_gateways::create),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/routes/{route}",
        about: "GET   one route; PATCH renames, DELETE removes it",
        handler: || {
            get(routes_of_gateways::get).patch(routes_of_gateways::update).delete(routes_of_gateways::delete)
        },
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/routes/{route}/versions",
        about: "GET   a route's versions; POST makes one",
        handler: || get(routes_of_gateways::versions).post(routes_of_gateways::create_version),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/routes/{route}/versions/{version}",
        about: "GET   one version",
        handler: || get(routes_of_gateways::version),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/routes/{route}/deployments",
        about: "GET   what was deployed; POST deploys a version",
        handler: || get(routes_of_gateways::deployments).post(routes_of_gateways::deploy),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/gateways/{id}/routes/{route}/explain",
        about: "POST  which way a request would take, and why",
        handler: || post(routes_of_gateways::explain),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/usage",
        about: "GET   what was used and what it cost",
        handler: || get(gateways::usage),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/billing/credit-balance",
        about: "GET   what is left of an account's credit",
        handler: || get(billing::balance),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/billing/usage-history",
        about: "GET   what an account spent, by day or hour",
        handler: || get(billing::history),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/billing/spending-limit",
        about: "GET   what an account may spend; POST sets, DELETE removes it",
        handler: || get(billing::limit).post(billing::set_limit).delete(billing::remove_limit),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/billing/topup",
        about: "POST  adds to an account's credit, for the server's own key",
        handler: || post(billing::topup),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/billing/topup/status",
        about: "POST  whether a payment is there",
        handler: || post(billing::topup_status),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/billing/topup/config",
        about: "GET   nothing: credit does not top up by itself; POST is refused",
        handler: || {
            get(billing::no_auto_topup).post(billing::refuse_auto_topup).delete(billing::no_auto_topup)
        },
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/billing/invoice-history",
        about: "GET   what an account spent in each month, by model",
        handler: || get(invoices::history),
    },
    Route {
        path: "/client/v4/accounts/{account}/ai-gateway/billing/invoice-preview",
        about: "GET   the same of this month",
        handler: || get(invoices::preview),
    },
    Route {
        path: "/v1/{account}/{gateway}",
        about: "POST  AI Gateway's universal endpoint: requests to providers, tried in order; GET opens a WebSocket",
        handler: || get(socket::open).post(universal::universal),
    },
    Route {
        path: PROVIDER,
        about: "ANY   AI Gateway: a provider's own API, or compat/chat/completions for every provider",
        handler: || any(providers::pass),
    },
    Route {
        path: "/run",
        about: "POST  AI binding: AI.run",
        handler: || get(binding::socket).post(binding::run),
    },
    Route {
        path: "/ai-gateway/run",
        about: "POST  AI binding: AI.run with a gateway named",
        handler: || post(binding::run),
    },
    Route {
        path: "/ai-api/models/search",
        about: "GET   AI binding: AI.models",
        handler: || get(workers_ai::search),
    },
    Route {
        path: "/ai-gateway/gateways/{id}/logs/{log}",
        about: "GET   AI binding: getLog; PATCH: patchLog",
        handler: || get(logs::get_own).patch(logs::judge_own),
    },
    Route {
        path: "/ai-gateway/run/{run}",
        about: "DELETE  ends a stream that can be read on",
        handler: || delete(runs::end),
    },
    Route {
        path: "/ai-gateway/run/{run}/resume",
        about: "GET   AI binding: a stream from event ?from=n on",
        handler: || get(runs::resume),
    },
    Route {
        path: "/ai-gateway/gateways/{gateway}/run/{run}/resume",
        about: "GET   as /ai-gateway/run/{run}/resume",
        handler: || get(runs::resume),
    },
    Route {
        path: "/ai-gateway/universal/run/{gateway}",
        about: "POST  AI binding: AI.gateway(id).run",
        handler: || post(universal::universal),
    },
    Route {
        path: "/ai-gateway/gateways/{gateway}/url/{provider}",
        about: "GET   AI binding: AI.gateway(id).getUrl",
        handler: || get(binding::url),
    },
    Route {
        path: "/ai-gateway/{*rest}",
        about: "ANY   AI binding: AI.gateway, which says that it is not here",
        handler: || any(binding::no_gateway),
    },
    Route {
        path: "/to-everything/{*rest}",
        about: "ANY   AI binding: AI.toMarkdown, which says that it is not here",
        handler: || any(binding::no_markdown),
    },
    Route {
        path: HEALTH,
        about: "GET   200 when requests can be answered",
        handler: || get(status::healthz),
    },
    Route { path: METRICS, about: "GET   Prometheus metrics", handler: || get(status::metrics) },
];

/// Routes that ask a model for something.
pub(super) const ASKING: &[&str] = &[
    PROVIDER,
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/messages",
    "/client/v4/accounts/{account}/ai/run",
    "/client/v4/accounts/{account}/ai/run/{*model}",
    "/client/v4/accounts/{account}/ai/v1/chat/completions",
    "/client/v4/accounts/{account}/ai/v1/completions",
    "/client/v4/accounts/{account}/ai/v1/responses",
    "/client/v4/accounts/{account}/ai/v1/embeddings",
    "/client/v4/accounts/{account}/ai/v1/rerank",
    "/client/v4/accounts/{account}/ai/v1/messages",
    "/run",
    "/ai-gateway/run",
];

/// AI Gateway's way to a provider.
pub(super) const PROVIDER: &str = "/v1/{account}/{gateway}/{provider}/{*path}";

/// Where lists of requests to models are asked.
pub(super) const UNIVERSAL: &[&str] = &["/v1/{account}/{gateway}", "/ai-gateway/universal/run/{gateway}"];

/// Routes that need no key: they tell nothing worth protecting and probes have none.
pub(super) const OPEN: &[&str] = &["/", HEALTH];

/// What all accounts did.
pub(super) const METRICS: &str = "/metrics";

/// Where probes ask.
pub(super) const HEALTH: &str = "/healthz";

/// The router over the list, with the front before every route and behind none.
pub(super) fn router(app: Arc<App>) -> Router {
    let behind = ROUTES
        .iter()
        .fold(Router::new(), |router, route| router.route(route.path, (route.handler)()))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), policy::policy))
        .with_state(Arc::clone(&app));
    let front = Front { app, behind: Behind::new(behind.clone()) };
    behind.layer(axum::middleware::from_fn_with_state(front, front::front))
}

async fn no_route(request: Request) -> Refusal {
    let path: String = request.uri().path().chars().take(200).collect();
    let method = request.method();
    Refusal(Error::new(ErrorKind::RouteNotFound, format!("No route for that URI ({method} {path})")))
}

async fn no_method(request: Request) -> Refusal {
    let method = request.method();
    Refusal(Error::new(ErrorKind::MethodNotAllowed, format!("Method {method} not available for that URI")))
}
