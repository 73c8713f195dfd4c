//! What a gateway's settings ask for between the front and the handler of a request to a model, for every surface alike:
//! the body is read here, so that each step may look at it, and the handler finds it read.
//!
//! The steps, each in a file of its own: limits of requests, what nobody may keep, data that may not pass, the guardrail
//! before the prompt, the cache, and behind the handler data again, the guardrail before the answer and the cache. Where none is asked for, nothing
//! of the request or the answer is looked at. Not here: who may come in (`front.rs`), limits of money (the ledger's), and
//! what a request to one provider goes through (`gateway::call`).

mod cache;
mod dlp;
mod guard;
mod limits;
pub(super) mod retention;

use super::body::{Body, ahead};
use super::dispatch::Nested;
use super::logged::Turned;
use super::refusal::{Dialect, Refusal};
use super::routed::Named;
use super::trail::Trail;
use super::{App, bound, logged, routed, routes, runs};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use gateway::{Caller, KeyId, Outcome};
use protocol::Error;
use std::sync::Arc;

/// Marks an answer that nobody may keep.
#[derive(Clone)]
pub(super) struct KeptByNobody;

/// What stands between the front and every handler.
pub(super) async fn policy(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let resumable = !retention::is_asked(request.headers())
        && route.as_deref().is_some_and(|route| runs::wanted(&app, route, &request));
    let kept = resumable
        .then(|| {
            let dialect = Dialect::spoken(request.uri().path(), request.headers());
            request.extensions().get::<Caller>().cloned().map(|caller| (caller, dialect))
        })
        .flatten();
    let passed = pass(&app, route.as_deref(), request, next).await;
    match (passed, kept) {
        (Err(error), _) => Refusal(error).into_response(),
        (Ok(response), None) => response,
        (Ok(response), Some((caller, dialect))) => runs::keep(&app, &caller, dialect, response),
    }
}

/// Counts what a key asks otherwise than by a request of its own; a response where it has had all of its minute, and what
/// is beyond limits that only report.
pub(super) async fn count(app: &App, key: &KeyId) -> Result<Option<&'static str>, Response> {
    limits::of_key(app, key).await
}

/// Passes a request on to its handler.
async fn pass(
    app: &Arc<App>,
    route: Option<&str>,
    mut request: Request,
    next: Next,
) -> Result<Response, Error> {
    // A key's limit counts what the client asks, and not what is asked for that.
    if request.extensions().get::<Nested>().is_none()
        && let Some(key) = limits::key(&request, route)
    {
        match limits::of_key(app, &key).await {
            Ok(None) => {}
            Ok(over) => caller(&mut request).over = over,
            Err(refused) => {
                return Ok(match Turned::of(route, &request) {
                    Some(turned) => Box::pin(turned.log(app, refused)).await,
                    None => refused,
                });
            }
        }
    }
    let Some(route) = route.filter(|route| routes::ASKING.contains(route)) else {
        return Ok(next.run(request).await);
    };
    let dialect = Dialect::spoken(request.uri().path(), request.headers());
    let named = routed::named(route, &request);
    let (mut request, body) = match ahead(app, request).await {
        Ok((request, body)) => (request, Ok(body)),
        Err((request, error)) => (request, Err(error)),
    };
    if let Ok(body) = &body {
        if bound::ROUTES.contains(&route)
            && let Err(error) = bound::apply(app, &mut request, body).await
        {
            let told = Refusal(error).into_response();
            return Ok(match Turned::of(Some(route), &request) {
                Some(turned) => Box::pin(turned.log(app, told)).await,
                None => told,
            });
        }
        // Each model that a route asks comes here again, as a request of its own, and is logged as such.
        let asked = match named {
            Named::No => None,
            Named::Yes(asked) => Some(asked),
            Named::InHeader(header) => {
                let account = caller(&mut request).account.clone();
                routed::in_header(app, &account, &header).await?
            }
            Named::InBody => routed::in_body(body).await,
        };
        if let Some(asked) = asked {
            // Rare and large: beside it a future that every request moves would be, too.
            return Box::pin(routed::answer(app, asked, request, body.clone())).await;
        }
    }
    let mut followed = logged::begin(app, route, &mut request).await;
    if let (Some(followed), Ok(body)) = (&mut followed, &body) {
        followed.body(body.bytes());
    }
    let answered = match body {
        Ok(body) => steps(app, request, body, next).await,
        Err(error) => Err(error),
    };
    match followed {
        Some(followed) if logged::is_refusal(&answered) => {
            Box::pin(followed.name(app)).await;
            followed.end(dialect, answered)
        }
        Some(followed) => followed.end(dialect, answered),
        None => answered,
    }
}

/// What stands between the log and the handler, in this order.
async fn steps(app: &Arc<App>, mut request: Request, mut body: Body, next: Next) -> Result<Response, Error> {
    let Some(gateway) = &app.gateway else {
        return Ok(handled(request, next).await);
    };
    let caller = caller(&mut request);
    // The front has looked for one that was named, and each account has the other.
    let named = gateway.gateway(&caller.account, &caller.gateway).await?;
    if let Some(refused) = limits::of_gateway(gateway, &named, caller.trace.as_ref()).await {
        return Ok(refused);
    }
    if named.settings.keys.byok_only {
        self::caller(&mut request).own_keys_only = true;
    }
    let nothing_kept = named.settings.guard.zdr || retention::is_asked(request.headers());
    let wish = if nothing_kept { None } else { cache::Wish::of(gateway, &named, &request)? };
    let rails = named.settings.guard.guardrails.as_ref();
    let dlp = named.settings.loss.dlp.as_ref().filter(|dlp| dlp.is_on());
    if !nothing_kept && wish.is_none() && rails.is_none() && dlp.is_none() {
        return Ok(handled(request, next).await);
    }
    self::caller(&mut request).zdr = nothing_kept;
    let outcome = self::caller(&mut request).outcome.get_or_insert_with(Outcome::default).clone();
    let caller = self::caller(&mut request).clone();
    if nothing_kept {
        body = retention::keeping_nothing(body, request.uri().path()).await?;
        request.extensions_mut().insert(body.clone());
    }
    let looked = match dlp {
        Some(dlp) => match dlp::Looked::before(dlp, &caller, request.headers(), &body).await {
            Ok(looked) => Some(looked),
            Err(refused) => return Ok(refused),
        },
        None => None,
    };
    let guard = match rails {
        Some(rails) => Some(Box::pin(guard::Guard::before(app, rails, &caller, &body)).await?),
        None => None,
    };
    let place = match wish {
        Some(wish) => {
            let asked = (request.uri(), request.headers());
            wish.place((gateway, &caller.account), asked, &body).await
        }
        None => None,
    };
    if let Some(place) = &place
        && let Some(hit) = place.look(gateway, &caller).await?
    {
        return Ok(match looked {
            Some(looked) => looked.after(hit).await,
            None => hit,
        });
    }
    drop(body);
    let mut response = handled(request, next).await;
    let failed = outcome.seen().failed;
    if let Some(looked) = looked {
        response = looked.after(response).await;
    }
    if let Some(guard) = guard {
        response = Box::pin(guard.after(app, response)).await?;
    }
    if nothing_kept {
        response.extensions_mut().insert(KeptByNobody);
    }
    match place {
        Some(place) => Ok(place.keep(gateway.clone(), outcome, failed, response).await),
        None => Ok(response),
    }
}

/// The handler's answer, with what it tells of who was asked.
async fn handled(mut request: Request, next: Next) -> Response {
    let trail = Trail::default();
    request.extensions_mut().insert(trail.clone());
    let mut response = trail.last_word(next.run(request).await);
    trail.tell(response.headers_mut());
    response
}

fn caller(request: &mut Request) -> &mut Caller {
    request.extensions_mut().get_mut().expect("the front says who asks")
}

/// Whether there is an answer: not a refusal, which the front has yet to put into words, nor any other failure.
fn is_answer(response: &Response) -> bool {
    response.status().is_success() && response.extensions().get::<Error>().is_none()
}
