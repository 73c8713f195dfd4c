//! Reads the body of a request, bounded in size and time.

use super::Config;
use axum::body::BodyDataStream;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use base::Bytes as Size;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use protocol::{Error, ErrorKind};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How long and how much of a body that is too large is still read before the answer. A client that is cut off
/// while it sends sees a broken connection instead of the answer.
const DRAIN_TIME: Duration = Duration::from_secs(5);
const DRAIN_SIZE: u64 = 256 << 20;

/// The headers and the whole body.
pub(super) async fn read(config: &Config, request: Request) -> Result<(HeaderMap, Bytes), Error> {
    let (parts, body) = request.into_parts();
    let body = body_of(config, &parts.headers, body.into_data_stream()).await?;
    Ok((parts.headers, body))
}

/// Bodies up to this size are parsed where they are read: at some hundred megabytes a second nobody waits.
const PARSE_HERE: usize = 256 << 10;

/// Parses a body, a large one on a thread that nobody else waits for.
pub(super) async fn parse<T: Send + 'static>(
    body: Bytes,
    parse: impl FnOnce(&[u8]) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    if body.len() <= PARSE_HERE {
        return parse(&body);
    }
    match tokio::task::spawn_blocking(move || parse(&body)).await {
        Ok(parsed) => parsed,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "The server is shutting down")),
        },
    }
}

async fn body_of(config: &Config, headers: &HeaderMap, mut data: BodyDataStream) -> Result<Bytes, Error> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(Error::new(
            ErrorKind::UnsupportedEncoding,
            "Compressed bodies are not read; send the body without Content-Encoding",
        ));
    }
    let limit = config.body_limit.0;
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large(config.body_limit, headers, data).await);
    }
    let mut body = BytesMut::with_capacity(announced.unwrap_or(0).min(1 << 20) as usize);
    let end = Instant::now() + config.body_time;
    loop {
        let next = timeout_at(end, timeout(config.body_idle, data.next()));
        let Ok(Ok(chunk)) = next.await else {
            return Err(Error::new(ErrorKind::Timeout, "The body did not arrive in time"));
        };
        match chunk {
            None => return Ok(body.freeze()),
            Some(Err(error)) => {
                return Err(Error::new(ErrorKind::Malformed, format!("The body broke off: {error}")));
            }
            Some(Ok(chunk)) if body.len() as u64 + chunk.len() as u64 > limit => {
                drop(body);
                return Err(too_large(config.body_limit, headers, data).await);
            }
            Some(Ok(chunk)) => body.extend_from_slice(&chunk),
        }
    }
}

async fn too_large(limit: Size, headers: &HeaderMap, mut data: BodyDataStream) -> Error {
    // A client that asked first has not begun to send.
    if !headers.contains_key(header::EXPECT) {
        let drain = async {
            let mut left = DRAIN_SIZE;
            while let Some(Ok(chunk)) = data.next().await {
                left = left.saturating_sub(chunk.len() as u64);
                if left == 0 {
                    break;
                }
            }
        };
        // Whether all of it came makes no difference to the answer.
        let _ = timeout(DRAIN_TIME, drain).await;
    }
    Error::new(ErrorKind::TooLarge, format!("The body is larger than {limit}"))
}
