//! Dynamic routes: named graphs in a gateway that say which model answers, by whom asks, by chance, by what was used and
//! by what fails. Clients ask for the model `dynamic/NAME`.
//!
//! A route has versions, of which one is deployed; what a version says never changes. The graph is data ([`Graph`]), a walk
//! through it is a plain state machine ([`Walk`]), and what a rate counts is in the store. Not here: asking a model.

mod condition;
mod facts;
mod graph;
mod limit;
mod members;
mod walk;

pub use condition::{Condition, Test};
pub use facts::{Fact, Facts};
pub use graph::{Element, Graph, Limit, Model, Rate};
pub use limit::Passed;
pub use walk::{Taken, Turn, Walk, draw};

use crate::account::{check_id, number};
use crate::directory::changed;
use crate::{Gateway, unavailable};
use memchr::memmem::Finder;
use protocol::{Error, ErrorKind};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use store::{Part, Row, Work};

/// The tables.
pub const TABLES: Part = Part { name: "gateway_routes", steps: &[include_str!("tables_1.sql")] };

/// What stands before a route's name where a model is named.
pub const PREFIX: &str = "dynamic/";

/// Whether a body has the word with which a route is asked for; most have not, and need no closer look.
#[must_use]
pub fn mentioned(body: &[u8]) -> bool {
    static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("dynamic"));
    // Some write JSON with its slashes escaped.
    let is_it = |rest: &[u8]| rest.starts_with(b"/") || rest.starts_with(b"\\/");
    WORD.find_iter(body).any(|at| is_it(&body[at + WORD.needle().len()..]))
}

/// A version of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its id.
    pub id: String,
    /// Its elements, JSON as they were written.
    pub elements: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Whether it is the one that is deployed.
    pub active: bool,
}

/// That a version was made the one that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// Its id.
    pub id: String,
    /// The version.
    pub version: String,
    /// Seconds since 1970.
    pub created: u64,
}

/// A route, as it is deployed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub account: String,
    /// Where it is.
    pub gateway: String,
    /// Its name.
    pub name: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970.
    pub modified: u64,
    /// The version that holds.
    pub version: Version,
    /// How it came to hold.
    pub deployment: Deployment,
}

fn elements_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

impl Version {
    /// As AI Gateway's clients read it.
    #[must_use]
    pub fn object(&self, time: impl Fn(u64) -> String) -> Value {
        let active = if self.active { "true" } else { "false" };
        json!({
            "version_id": self.id, "active": active, "created_at": time(self.created), "data": self.elements,
            "is_valid": true,
        })
    }
}

impl Deployment {
    /// As AI Gateway's clients read it.
    #[must_use]
    pub fn object(&self, time: impl Fn(u64) -> String) -> Value {
        json!({"deployment_id": self.id, "version_id": self.version, "created_at": time(self.created)})
    }
}

impl Route {
    /// As AI Gateway's clients read it.
    #[must_use]
    pub fn object(&self, time: impl Fn(u64) -> String + Copy) -> Value {
        json!({
            "id": self.id, "name": self.name, "account_tag": self.account, "gateway_id": self.gateway,
            "created_at": time(self.created), "modified_at": time(self.modified),
            "elements": elements_of(&self.version.elements), "version": self.version.object(time),
            "deployment": self.deployment.object(time),
        })
    }

    /// One of its versions, as AI Gateway's clients read it.
    #[must_use]
    pub fn version_object(&self, version: &Version, time: impl Fn(u64) -> String + Copy) -> Value {
        let mut object = version.object(time);
        object["id"] = self.id.as_str().into();
        object["name"] = self.name.as_str().into();
        object["gateway_id"] = self.gateway.as_str().into();
        object["modified_at"] = time(self.modified).into();
        object["elements"] = elements_of(&version.elements);
        object
    }
}

/// A route ready to be walked.
#[derive(Debug)]
pub struct Deployed {
    /// The route's id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The version's id.
    pub version: String,
    /// What it says.
    pub graph: Graph,
}

/// By account, gateway and name; nothing where there is no such route.
type Found = HashMap<[String; 3], Option<Arc<Deployed>>>;

/// Deployed routes, as of one version of the directory.
#[derive(Default)]
pub(crate) struct Ready(Mutex<(i64, Found)>);

/// Names that nobody has are remembered too, up to so many.
const READY_MAX: usize = 10_000;

/// The columns that [`read`] reads, of routes with the deployment that holds.
const ROUTES: &str = "SELECT r.id, r.account, r.gateway, r.name, r.created, r.modified,
    v.id, v.elements, v.created, d.id, d.created
    FROM gateway_routes r
    JOIN gateway_route_deployments d ON d.route = r.id
    JOIN gateway_route_versions v ON v.id = d.version
    WHERE d.id = (SELECT max(l.id) FROM gateway_route_deployments l WHERE l.route = r.id) AND r.account = ?1 AND r.gateway = ?2";

fn read(row: &Row) -> Result<Route, store::Error> {
    let text = |column: usize| row.text(column).map(str::to_owned);
    let time = |column: usize| row.integer(column).map(i64::unsigned_abs);
    let version = Version { id: text(6)?, elements: text(7)?, created: time(8)?, active: true };
    Ok(Route {
        id: text(0)?,
        account: text(1)?,
        gateway: text(2)?,
        name: text(3)?,
        created: time(4)?,
        modified: time(5)?,
        deployment: Deployment { id: text(9)?, version: version.id.clone(), created: time(10)? },
        version,
    })
}

fn fresh() -> String {
    uuid::Uuid::now_v7().to_string()
}

fn missing(what: &str, id: &str) -> Error {
    let shown: String = id.chars().take(64).collect();
    Error::new(ErrorKind::NotFound, format!("There is no {what} '{shown}'"))
}

/// Enters a version.
fn insert_version(
    work: &Work<'_>,
    id: &str,
    route: &str,
    elements: &str,
    now: i64,
) -> Result<(), store::Error> {
    let sql = "INSERT INTO gateway_route_versions (id, route, elements, created) VALUES (?1, ?2, ?3, ?4)";
    work.execute(sql, &[id.into(), route.into(), elements.into(), now.into()]).map(|_| ())
}

/// Makes a version the one that holds.
fn insert_deployment(work: &Work<'_>, route: &str, version: &str, now: i64) -> Result<(), store::Error> {
    let sql = "INSERT INTO gateway_route_deployments (id, route, version, created) VALUES (?1, ?2, ?3, ?4)";
    work.execute(sql, &[fresh().into(), route.into(), version.into(), now.into()])?;
    let sql = "UPDATE gateway_routes SET modified = ?2 WHERE id = ?1";
    work.execute(sql, &[route.into(), now.into()])?;
    changed(work)
}

/// Removes the routes of a gateway that is removed, with all that belongs to them.
pub(crate) fn remove_of_gateway(work: &Work<'_>, place: &[store::Value; 2]) -> Result<(), store::Error> {
    for table in ["gateway_route_counts", "gateway_route_deployments", "gateway_route_versions"] {
        let sql = format!(
            "DELETE FROM {table} WHERE route IN (SELECT id FROM gateway_routes WHERE account = ?1 AND gateway = ?2)"
        );
        work.execute(&sql, place)?;
    }
    work.execute("DELETE FROM gateway_routes WHERE account = ?1 AND gateway = ?2", place).map(|_| ())
}

impl Gateway {
    /// The routes of a gateway, by name.
    ///
    /// # Errors
    /// When the gateway is not there, or the store fails.
    pub async fn routes(&self, account: &str, gateway: &str) -> Result<Vec<Route>, Error> {
        self.gateway(account, gateway).await?;
        let values = [account.into(), gateway.into()];
        let read = move |work: &Work<'_>| {
            work.query(&format!("{ROUTES} ORDER BY r.name"), &values)?.iter().map(read).collect()
        };
        self.store().read(read).await.map_err(|error| unavailable("Routes cannot be read", &error))
    }

    /// A route by its id or its name.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn route(&self, account: &str, gateway: &str, id: &str) -> Result<Route, Error> {
        let routes = self.routes(account, gateway).await?;
        let by_id = routes.iter().find(|route| route.id == id);
        by_id
            .or_else(|| routes.iter().find(|route| route.name == id))
            .cloned()
            .ok_or_else(|| missing("route", id))
    }

    /// Makes a route, whose first version is deployed.
    ///
    /// # Errors
    /// When the gateway is not there, the name cannot be one or is taken, an element is wrong, or the store fails.
    pub async fn create_route(
        &self,
        account: &str,
        gateway: &str,
        name: &str,
        elements: &Value,
    ) -> Result<Route, Error> {
        self.gateway(account, gateway).await?;
        check_id("name", name)?;
        members::check(elements)?;
        Graph::parse(elements)?;
        let (id, version, now) = (fresh(), fresh(), number(self.now()));
        let values =
            [id.as_str().into(), account.into(), gateway.into(), name.into(), store::Value::from(now)];
        let (elements, route) = (elements.to_string(), id.clone());
        let written = self.write("The route could not be made", move |work| {
            let sql = "INSERT INTO gateway_routes (id, account, gateway, name, created, modified)
                VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT (account, gateway, name) DO NOTHING";
            if work.execute(sql, &values)? == 0 {
                return Ok(false);
            }
            insert_version(work, &version, &route, &elements, now)?;
            insert_deployment(work, &route, &version, now)?;
            Ok(true)
        });
        if !written.await? {
            return Err(Error::invalid("name", format!("There is a route '{name}' already")));
        }
        self.route(account, gateway, &id).await
    }

    /// Gives a route another name.
    ///
    /// # Errors
    /// As [`Gateway::create_route`].
    pub async fn rename_route(
        &self,
        account: &str,
        gateway: &str,
        id: &str,
        name: &str,
    ) -> Result<Route, Error> {
        let route = self.route(account, gateway, id).await?;
        check_id("name", name)?;
        let values = [route.id.as_str().into(), name.into(), store::Value::from(number(self.now()))];
        let taken = Error::invalid("name", format!("There is a route '{name}' already"));
        let place = [account.into(), gateway.into(), name.into(), route.id.as_str().into()];
        let written = self.change("The route could not be changed", move |work| {
            let sql =
                "SELECT 1 FROM gateway_routes WHERE account = ?1 AND gateway = ?2 AND name = ?3 AND id <> ?4";
            if !work.query(sql, &place)?.is_empty() {
                return Ok(Err(taken.clone()));
            }
            work.execute("UPDATE gateway_routes SET name = ?2, modified = ?3 WHERE id = ?1", &values)?;
            changed(work).map(Ok)
        });
        written.await?;
        self.route(account, gateway, &route.id).await
    }

    /// Removes a route with all of its versions. Gives back what it was.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn delete_route(&self, account: &str, gateway: &str, id: &str) -> Result<Route, Error> {
        let route = self.route(account, gateway, id).await?;
        let id = route.id.clone();
        let deleted = self.write("The route could not be deleted", move |work| {
            for table in ["gateway_route_counts", "gateway_route_deployments", "gateway_route_versions"] {
                work.execute(&format!("DELETE FROM {table} WHERE route = ?1"), &[id.as_str().into()])?;
            }
            work.execute("DELETE FROM gateway_routes WHERE id = ?1", &[id.as_str().into()])?;
            changed(work)
        });
        deleted.await?;
        Ok(route)
    }

    /// A route's versions, the newest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn route_versions(&self, route: &Route) -> Result<Vec<Version>, Error> {
        let (id, active) = (route.id.clone(), route.version.id.clone());
        let read = move |work: &Work<'_>| {
            let sql =
                "SELECT id, elements, created FROM gateway_route_versions WHERE route = ?1 ORDER BY id DESC";
            let rows = work.query(sql, &[id.as_str().into()])?;
            rows.iter()
                .map(|row| {
                    let id = row.text(0)?.to_owned();
                    let active = id == active;
                    Ok(Version {
                        id,
                        elements: row.text(1)?.to_owned(),
                        created: row.integer(2)?.unsigned_abs(),
                        active,
                    })
                })
                .collect()
        };
        self.store().read(read).await.map_err(|error| unavailable("Versions cannot be read", &error))
    }

    /// One of a route's versions.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn route_version(&self, route: &Route, id: &str) -> Result<Version, Error> {
        let versions = self.route_versions(route).await?;
        versions.into_iter().find(|version| version.id == id).ok_or_else(|| missing("version", id))
    }

    /// Makes another version of a route, which does not hold before it is deployed.
    ///
    /// # Errors
    /// When an element is wrong, or the store fails.
    pub async fn create_route_version(&self, route: &Route, elements: &Value) -> Result<Version, Error> {
        members::check(elements)?;
        Graph::parse(elements)?;
        let (id, now) = (fresh(), number(self.now()));
        let (version, owner, elements) = (id.clone(), route.id.clone(), elements.to_string());
        let written = self.write("The version could not be made", move |work| {
            insert_version(work, &version, &owner, &elements, now)
        });
        written.await?;
        self.route_version(route, &id).await
    }

    /// What was deployed, the newest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn route_deployments(&self, route: &Route) -> Result<Vec<Deployment>, Error> {
        let id = route.id.clone();
        let read = move |work: &Work<'_>| {
            let sql = "SELECT id, version, created FROM gateway_route_deployments WHERE route = ?1 ORDER BY id DESC";
            let rows = work.query(sql, &[id.as_str().into()])?;
            rows.iter()
                .map(|row| {
                    Ok(Deployment {
                        id: row.text(0)?.to_owned(),
                        version: row.text(1)?.to_owned(),
                        created: row.integer(2)?.unsigned_abs(),
                    })
                })
                .collect()
        };
        self.store().read(read).await.map_err(|error| unavailable("Deployments cannot be read", &error))
    }

    /// Makes a version the one that holds; every server on the store walks by it within a second.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn deploy_route(&self, route: &Route, version: &str) -> Result<Route, Error> {
        let version = self.route_version(route, version).await?;
        let (id, now) = (route.id.clone(), number(self.now()));
        let written = self.write("The version could not be deployed", move |work| {
            insert_deployment(work, &id, &version.id, now)
        });
        written.await?;
        self.route(&route.account, &route.gateway, &route.id).await
    }

    /// The route of a name, ready to be walked.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn deployed(&self, account: &str, gateway: &str, name: &str) -> Result<Arc<Deployed>, Error> {
        let unknown = || {
            let shown: String = name.chars().take(64).collect();
            let message = format!("There is no route '{shown}' in the gateway '{gateway}'");
            Error::new(ErrorKind::ModelNotFound, message).at("model")
        };
        // What no route can be called is not remembered.
        check_id("name", name).map_err(|_| unknown())?;
        let version = self.directory().await?.version();
        let key = [account, gateway, name].map(str::to_owned);
        let lock = || self.ready().0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = {
            let ready = lock();
            if ready.0 == version { ready.1.get(&key).cloned() } else { None }
        };
        let found = match known {
            Some(found) => found,
            None => {
                let found = match self.routes(account, gateway).await {
                    Ok(routes) => routes.into_iter().find(|route| route.name == name),
                    Err(error) => return Err(error),
                };
                let found = found.map(|route| ready_to_walk(&route)).transpose()?.map(Arc::new);
                let mut ready = lock();
                if ready.0 != version || ready.1.len() >= READY_MAX {
                    *ready = (version, HashMap::new());
                }
                ready.1.insert(key, found.clone());
                found
            }
        };
        found.ok_or_else(unknown)
    }

    /// Says which way a request with these facts would take: nothing is asked and nothing counted. Models in `failing` are
    /// taken to fail, all others to answer.
    ///
    /// # Errors
    /// When one in `failing` is no model of the route, a version cannot be read, or the store fails.
    pub async fn explain_route(
        &self,
        route: &Route,
        version: &Version,
        facts: &Facts,
        failing: &[String],
    ) -> Result<Value, Error> {
        let graph = parsed(&version.elements)?;
        let is_model = |id: &&String| matches!(graph.elements.get(*id), Some(Element::Model(_)));
        if let Some(unknown) = failing.iter().find(|id| !is_model(id)) {
            let shown: String = unknown.chars().take(64).collect();
            let message =
                format!("Invalid value for 'failing': the route has no element '{shown}' that asks a model");
            return Err(Error::invalid("failing", message));
        }
        let mut walk = Walk::new(&graph, &route.id, facts);
        let (mut answers, mut refused, mut tried) = (None, false, Vec::new());
        loop {
            match walk.turn() {
                Turn::End => break,
                Turn::Count(element, rate) => {
                    let passed = self.pass_rate(&route.id, element, rate, facts, false).await?;
                    refused = !passed.passes && rate.fallback.is_none();
                    walk.told(passed.passes, passed.why);
                }
                Turn::Ask(element, model) => {
                    let fails = failing.iter().any(|id| id == element);
                    let named = format!("{}/{}", model.provider, model.model);
                    let why = if fails { "is taken to fail" } else { "is taken to answer" };
                    tried.push(Value::from(named.as_str()));
                    if !fails {
                        answers = Some(model.clone());
                    }
                    walk.told(!fails, format!("{named} {why}"));
                }
            }
        }
        let outcome = match (&answers, refused, tried.is_empty()) {
            (Some(_), _, _) => "answered",
            (None, true, true) => "rate_limited",
            (None, _, true) => "no_model",
            (None, _, false) => "failed",
        };
        Ok(json!({
            "route": route.name, "route_id": route.id, "version_id": version.id, "outcome": outcome,
            "provider": answers.as_ref().map(|model| &model.provider),
            "model": answers.as_ref().map(|model| &model.model),
            "asked": tried, "path": walk.taken().iter().map(Taken::object).collect::<Vec<_>>(),
        }))
    }
}

/// Reads what was checked when it was kept.
fn parsed(elements: &str) -> Result<Graph, Error> {
    Graph::parse(&elements_of(elements))
        .map_err(|error| Error::new(ErrorKind::Internal, format!("A kept route cannot be read: {error}")))
}

fn ready_to_walk(route: &Route) -> Result<Deployed, Error> {
    let graph = parsed(&route.version.elements)?;
    Ok(Deployed { id: route.id.clone(), name: route.name.clone(), version: route.version.id.clone(), graph })
}

#[cfg(test)]
mod tests;
