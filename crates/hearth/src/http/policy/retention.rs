//! Requests of which nobody may keep anything. Here the body is made to say so; that nothing is cached and that only
//! providers are asked that keep nothing (`gateway::call`) follows from `Caller::zdr`.

use super::super::body::Body;
use axum::http::HeaderMap;
use gateway::flags;
use gateway::scan::{Edits, Field};
use protocol::Error;

/// Whether a request asks for it; it cannot ask for less than its gateway. A value that is neither yes nor no, which the
/// front refuses, would be a yes.
pub(in crate::http) fn is_asked(headers: &HeaderMap) -> bool {
    flags::flag(headers, flags::ZERO_RETENTION).map_or(true, |said| said == Some(true))
}

/// The body with `store: false` where it would be kept else: always in Responses, which are kept where nothing is said,
/// and in any dialect where it asks for that.
pub(super) async fn keeping_nothing(body: Body, path: &str) -> Result<Body, Error> {
    // What is no JSON asks for nothing of the kind.
    let Ok(found) = body.scan().await else { return Ok(body) };
    let is_responses = path.trim_end_matches('/').ends_with("/responses");
    if !is_responses && found.raw(body.bytes(), Field::Store).is_none() {
        return Ok(body);
    }
    let mut edits = Edits::none();
    edits.set(&found, Field::Store, "false");
    let bytes = edits.apply(body.bytes()).0.concat();
    Ok(body.saying(bytes.into()))
}
