//! The control plane of dynamic routes, as Cloudflare's clients call it: routes, their versions and what was deployed; and
//! `explain`, which is ours.

use super::App;
use super::gateways::{Page, enveloped, fields, gateway, path, time_text};
use super::refusal::{Answered, json};
use super::workers_ai::{Parameters, parameters};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use gateway::route::{Facts, Route, Version};
use protocol::Error;
use serde_json::{Map, Value, json as value};
use std::sync::Arc;

/// Account and gateway; then the route; then a version.
type Two = Result<Path<(String, String)>, PathRejection>;
type Three = Result<Path<(String, String, String)>, PathRejection>;
type Four = Result<Path<(String, String, String, String)>, PathRejection>;

/// A list as this API has it: not in `result`, as elsewhere, but under a name in `data`.
fn listed(name: &str, query: Parameters, all: Vec<Value>) -> Result<Response, Error> {
    let page = Page::of(&parameters(query)?)?;
    let mut data = value!({"page": page.page, "per_page": page.per_page, "order_by": "created_at", "order_by_direction": "desc"});
    data[name] = Value::Array(page.cut(all).0);
    Ok(json(value!({"success": true, "data": data}).to_string()))
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a str, Error> {
    let found = fields.get(name).and_then(Value::as_str);
    found.ok_or_else(|| Error::invalid(name, format!("Invalid value for '{name}': expected a text")))
}

/// Refuses fields that are none, which would be passed over.
fn only(fields: &Map<String, Value>, known: &[&str]) -> Result<(), Error> {
    let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let shown: String = unknown.chars().take(64).collect();
    Err(Error::invalid(&shown, format!("There is no field '{shown}' here; there are: {}", known.join(", "))))
}

fn elements(fields: &Map<String, Value>) -> Value {
    fields.get("elements").cloned().unwrap_or_default()
}

fn one(route: &Route) -> Response {
    enveloped(&route.object(time_text), None)
}

/// Refuses a model of a provider that is nobody's name. One of the account's own may be made later.
async fn check_providers(app: &App, account: &str, elements: &Value) -> Result<(), Error> {
    let Some(providers) = app.providers(account).await? else { return Ok(()) };
    for (index, element) in elements.as_array().into_iter().flatten().enumerate() {
        let slug = element["properties"]["provider"].as_str().filter(|_| element["type"] == "model");
        let is_known = |slug: &str| {
            // What is no name of a provider at all is refused behind.
            ["workers-ai", "local", "dynamic"].contains(&slug)
                || slug.contains('/')
                || slug.starts_with("custom-")
                || providers.get(slug).is_some()
        };
        if let Some(slug) = slug.filter(|slug| !is_known(slug)) {
            let place = format!("elements[{index}].properties.provider");
            let shown: String = slug.chars().take(100).collect();
            let message = format!("Invalid value for '{place}': there is no provider {shown:?}");
            return Err(Error::invalid(place, message));
        }
    }
    Ok(())
}

async fn named(app: &App, named: Three) -> Result<Route, Error> {
    let (account, id, route) = path(named)?;
    gateway(app)?.route(&account, &id, &route).await
}

/// `GET …/routes`.
pub(super) async fn list(State(app): State<Arc<App>>, named: Two, query: Parameters) -> Answered {
    let (account, id) = path(named)?;
    let routes = gateway(&app)?.routes(&account, &id).await?;
    Ok(listed("routes", query, routes.iter().map(|route| route.object(time_text)).collect())?)
}

/// `POST …/routes`.
pub(super) async fn create(State(app): State<Arc<App>>, named: Two, request: Request) -> Answered {
    let (account, id) = path(named)?;
    let fields = fields(&app, request).await?;
    only(&fields, &["name", "elements"])?;
    check_providers(&app, &account, &elements(&fields)).await?;
    let route =
        gateway(&app)?.create_route(&account, &id, text(&fields, "name")?, &elements(&fields)).await?;
    Ok(one(&route))
}

/// `GET …/routes/{route}`, by id or name.
pub(super) async fn get(State(app): State<Arc<App>>, route: Three) -> Answered {
    Ok(one(&named(&app, route).await?))
}

/// `PATCH …/routes/{route}`: another name.
pub(super) async fn update(State(app): State<Arc<App>>, named: Three, request: Request) -> Answered {
    let (account, id, route) = path(named)?;
    let fields = fields(&app, request).await?;
    only(&fields, &["name"])?;
    let route = gateway(&app)?.rename_route(&account, &id, &route, text(&fields, "name")?).await?;
    // Clients read `route` here, and `result` elsewhere.
    let object = route.object(time_text);
    Ok(json(
        value!({"success": true, "route": object, "result": object, "errors": [], "messages": []})
            .to_string(),
    ))
}

/// `DELETE …/routes/{route}`.
pub(super) async fn delete(State(app): State<Arc<App>>, named: Three) -> Answered {
    let (account, id, route) = path(named)?;
    Ok(one(&gateway(&app)?.delete_route(&account, &id, &route).await?))
}

/// `GET …/routes/{route}/versions`.
pub(super) async fn versions(State(app): State<Arc<App>>, route: Three, query: Parameters) -> Answered {
    let route = named(&app, route).await?;
    let versions = gateway(&app)?.route_versions(&route).await?;
    Ok(listed("versions", query, versions.iter().map(|version| version.object(time_text)).collect())?)
}

/// `POST …/routes/{route}/versions`.
pub(super) async fn create_version(State(app): State<Arc<App>>, route: Three, request: Request) -> Answered {
    let account = route.as_ref().map(|Path((account, ..))| account.clone()).unwrap_or_default();
    let route = named(&app, route).await?;
    let fields = fields(&app, request).await?;
    only(&fields, &["elements"])?;
    check_providers(&app, &account, &elements(&fields)).await?;
    let version = gateway(&app)?.create_route_version(&route, &elements(&fields)).await?;
    Ok(enveloped(&route.version_object(&version, time_text), None))
}

/// `GET …/routes/{route}/versions/{version}`.
pub(super) async fn version(State(app): State<Arc<App>>, named: Four) -> Answered {
    let (account, id, route, version) = path(named)?;
    let route = gateway(&app)?.route(&account, &id, &route).await?;
    let version = gateway(&app)?.route_version(&route, &version).await?;
    Ok(enveloped(&route.version_object(&version, time_text), None))
}

/// `GET …/routes/{route}/deployments`.
pub(super) async fn deployments(State(app): State<Arc<App>>, route: Three, query: Parameters) -> Answered {
    let route = named(&app, route).await?;
    let deployments = gateway(&app)?.route_deployments(&route).await?;
    let all = deployments.iter().map(|deployment| deployment.object(time_text)).collect();
    Ok(listed("deployments", query, all)?)
}

/// `POST …/routes/{route}/deployments`: a version holds from now on.
pub(super) async fn deploy(State(app): State<Arc<App>>, route: Three, request: Request) -> Answered {
    let route = named(&app, route).await?;
    let fields = fields(&app, request).await?;
    Ok(one(&gateway(&app)?.deploy_route(&route, text(&fields, "version_id")?).await?))
}

/// `POST …/routes/{route}/explain`: which way a request would take.
pub(super) async fn explain(State(app): State<Arc<App>>, route: Three, request: Request) -> Answered {
    let route = named(&app, route).await?;
    let fields = fields(&app, request).await?;
    let (facts, failing) = supposed(&route, &fields)?;
    let gateway = gateway(&app)?;
    let version: Version = match fields.get("version_id") {
        None | Some(Value::Null) => route.version.clone(),
        Some(_) => gateway.route_version(&route, text(&fields, "version_id")?).await?,
    };
    Ok(enveloped(&gateway.explain_route(&route, &version, &facts, &failing).await?, None))
}

/// The request that is supposed.
fn supposed(route: &Route, fields: &Map<String, Value>) -> Result<(Facts, Vec<String>), Error> {
    let mut facts =
        Facts { account: route.account.clone(), gateway: route.gateway.clone(), ..Facts::default() };
    let object = |name: &str, value: &Value| match value {
        Value::Object(object) => Ok(object.clone()),
        _ => Err(Error::invalid(name, format!("Invalid value for '{name}': expected an object"))),
    };
    let mut failing = Vec::new();
    for (name, value) in fields {
        match name.as_str() {
            "metadata" => facts.metadata = object(name, value)?,
            "headers" => {
                for (header, value) in object(name, value)? {
                    facts.header(&header, &value.as_str().map_or_else(|| value.to_string(), str::to_owned));
                }
            }
            "body" => facts.body = value.clone(),
            "key" => facts.key = Some(text(fields, name)?.to_owned()),
            "session" => text(fields, name)?.clone_into(&mut facts.session),
            "failing" => {
                let list =
                    value.as_array().map(|ids| ids.iter().map(|id| id.as_str().map(str::to_owned)).collect());
                let wrong =
                    || Error::invalid(name, "Invalid value for 'failing': expected a list of elements' ids");
                failing = list.flatten().ok_or_else(wrong)?;
            }
            "version_id" => {}
            _ => {
                let shown: String = name.chars().take(64).collect();
                return Err(Error::invalid(&shown, format!("There is no field '{shown}' here")));
            }
        }
    }
    Ok((facts, failing))
}
