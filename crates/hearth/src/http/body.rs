//! Reads the body of a request, bounded in size and time, and all bodies together in size.
//!
//! A body has room in one budget for what it holds until it is parsed. Nobody waits for room while having some, so
//! half-read bodies cannot wait for each other: a body takes room for its whole announced length before it is read,
//! one of unknown length for its first chunk, and what goes beyond that is there at once or refused. What a parsed
//! request takes is not counted here.

use super::trail::Trail;
use super::{App, Config};
use axum::body::{Body as Sent, BodyDataStream};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use gateway::Caller;
use gateway::scan::{Scan, scan};
use protocol::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

/// How long and how much of a body that is refused is still read before the answer. A client that is cut off
/// while it sends sees a broken connection instead of the answer.
const DRAIN_TIME: Duration = Duration::from_secs(5);
const DRAIN_SIZE: u64 = 256 << 20;

/// Bodies up to this size are parsed where they are read: at some hundred megabytes a second nobody waits.
const PARSE_HERE: usize = 256 << 10;

/// Those up to this size are scanned there, which is several times as quick.
const SCAN_HERE: usize = 1 << 20;

/// Room for the bodies of all connections, one permit a byte.
pub(super) struct Room(Arc<Semaphore>);

impl Room {
    /// All of it.
    pub(super) fn new(config: &Config) -> Self {
        let bytes = usize::try_from(config.body_budget.0).unwrap_or(usize::MAX);
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// Room for so many bytes of text that is taken from elsewhere.
    pub(super) async fn hold(&self, config: &Config, bytes: u64) -> Result<Held, Error> {
        let mut held = Held::default();
        // What is larger than all the room gets all of it.
        let bytes = usize::try_from(bytes.min(config.body_budget.0)).unwrap_or(usize::MAX);
        self.take(&mut held, bytes, config.body_wait).await?;
        Ok(held)
    }

    /// Makes `held` at least so many bytes; waits only where it is nothing yet.
    async fn take(&self, held: &mut Held, bytes: usize, wait: Duration) -> Result<(), Error> {
        let full = || Error::new(ErrorKind::Overloaded, "Too many large requests are coming in; try again");
        let have = held.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Some(more) = bytes.checked_sub(have).filter(|more| *more > 0) else { return Ok(()) };
        let more = u32::try_from(more).map_err(|_| full())?;
        let room = Arc::clone(&self.0);
        match &mut held.0 {
            Some(held) => held.merge(room.try_acquire_many_owned(more).map_err(|_| full())?),
            none => {
                let taken = timeout(wait, room.acquire_many_owned(more)).await.map_err(|_| full())?;
                *none = Some(taken.expect("the semaphore is never closed"));
            }
        }
        Ok(())
    }
}

/// The room that a body has; dropping it gives it back.
#[derive(Default)]
pub(super) struct Held(Option<OwnedSemaphorePermit>);

/// A whole body and its room, which is given back with the last clone.
#[derive(Clone)]
pub(super) struct Body {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl Body {
    pub(super) const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The same with other words, in the same room.
    pub(super) fn saying(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }

    /// Finds the members that a gateway must know, in a large body on a thread that nobody else waits for.
    pub(super) async fn scan(&self) -> Result<Scan, Error> {
        if self.bytes.len() <= SCAN_HERE {
            return Ok(scan(&self.bytes)?);
        }
        let bytes = self.bytes.clone();
        aside(move || Ok(scan(&bytes)?)).await
    }

    /// Parses it, a large one on a thread that nobody else waits for. The room is given back when that is done,
    /// also where the caller has gone meanwhile.
    pub(super) async fn parse<T: Send + 'static>(
        self,
        parse: impl FnOnce(&[u8]) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if !self.is_large() {
            return parse(self.bytes());
        }
        // The method makes the closure hold all of the body, the room included.
        aside(move || parse(self.bytes())).await
    }

    /// Bytes that came another way, with their room.
    pub(super) fn holding(bytes: Bytes, held: Held) -> Self {
        Self { bytes, _held: Arc::new(held) }
    }

    /// Other bytes in its place, which hold its room on.
    pub(super) fn edited(&self, bytes: Bytes) -> Self {
        Self { bytes, _held: Arc::clone(&self._held) }
    }

    /// Whether what is in it takes long to look at.
    pub(super) const fn is_large(&self) -> bool {
        self.bytes.len() > PARSE_HERE
    }
}

/// Does what takes long on a thread that nobody else waits for.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "The server is shutting down")),
        },
    }
}

/// What stands before a body: the headers, and who asks.
pub(super) struct Head {
    pub(super) headers: HeaderMap,
    pub(super) caller: Caller,
    /// Where what becomes of it is told.
    pub(super) trail: Trail,
}

/// The head and the whole body.
pub(super) async fn read(app: &App, request: Request) -> Result<(Head, Body), Error> {
    let (mut parts, body) = request.into_parts();
    let body = match parts.extensions.remove::<Body>() {
        Some(body) => body,
        None => body_of(&app.config, &app.room, &parts.headers, body.into_data_stream()).await?,
    };
    let caller = parts.extensions.remove().expect("the front says who asks");
    let trail = parts.extensions.remove().unwrap_or_default();
    Ok((Head { headers: parts.headers, caller, trail }, body))
}

/// Reads the body of a request before its handler does, which then finds it there. What cannot be read leaves the request
/// without it.
pub(super) async fn ahead(app: &App, request: Request) -> Result<(Request, Body), (Request, Error)> {
    // A request within a request brings it.
    if let Some(body) = request.extensions().get::<Body>() {
        let body = body.clone();
        return Ok((request, body));
    }
    let (mut parts, body) = request.into_parts();
    match body_of(&app.config, &app.room, &parts.headers, body.into_data_stream()).await {
        Ok(body) => {
            parts.extensions.insert(body.clone());
            Ok((Request::from_parts(parts, Sent::empty()), body))
        }
        Err(error) => Err((Request::from_parts(parts, Sent::empty()), error)),
    }
}

async fn body_of(
    config: &Config,
    room: &Room,
    headers: &HeaderMap,
    mut data: BodyDataStream,
) -> Result<Body, Error> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(Error::new(
            ErrorKind::UnsupportedEncoding,
            "Compressed bodies are not read; send the body without Content-Encoding",
        ));
    }
    // What is larger than all the room would never get it.
    let limit = config.body_limit.min(config.body_budget);
    let too_large = || Error::new(ErrorKind::TooLarge, format!("The body is larger than {limit}"));
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let announced = announced.unwrap_or(0);
    if announced > limit.0 {
        drain(headers, data).await;
        return Err(too_large());
    }
    let announced = usize::try_from(announced).map_err(|_| too_large())?;
    let mut held = Held::default();
    if let Err(error) = room.take(&mut held, announced, config.body_wait).await {
        drain(headers, data).await;
        return Err(error);
    }
    let mut body = BytesMut::with_capacity(announced);
    let end = Instant::now() + config.body_time;
    loop {
        let next = timeout_at(end, timeout(config.body_idle, data.next()));
        let Ok(Ok(chunk)) = next.await else {
            return Err(Error::new(ErrorKind::Timeout, "The body did not arrive in time"));
        };
        let chunk = match chunk {
            None => return Ok(Body { bytes: body.freeze(), _held: Arc::new(held) }),
            Some(Err(error)) => {
                return Err(Error::new(ErrorKind::Malformed, format!("The body broke off: {error}")));
            }
            Some(Ok(chunk)) => chunk,
        };
        let length = body.len() + chunk.len();
        let room = if length as u64 > limit.0 {
            Err(too_large())
        } else {
            room.take(&mut held, length, config.body_wait).await
        };
        if let Err(error) = room {
            drop((body, chunk, held));
            drain(headers, data).await;
            return Err(error);
        }
        body.extend_from_slice(&chunk);
    }
}

/// Reads on for a while and keeps nothing.
async fn drain(headers: &HeaderMap, mut data: BodyDataStream) {
    // A client that asked first has not begun to send.
    if headers.contains_key(header::EXPECT) {
        return;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use std::convert::Infallible;

    const LONG: Duration = Duration::from_secs(100_000);

    fn config(wait: Duration) -> Config {
        Config { body_budget: base::Bytes(1000), body_wait: wait, ..Config::default() }
    }

    /// A body without an announced length.
    fn chunks(sizes: &[usize]) -> BodyDataStream {
        let chunks: Vec<_> =
            sizes.iter().map(|size| Ok::<_, Infallible>(Bytes::from(vec![b'x'; *size]))).collect();
        Sent::from_stream(stream::iter(chunks)).into_data_stream()
    }

    #[tokio::test]
    async fn a_half_read_body_does_not_wait_for_room() {
        let config = config(LONG);
        let room = Room::new(&config);
        let mut other = Held::default();
        room.take(&mut other, 500, LONG).await.unwrap();
        let refused = body_of(&config, &room, &HeaderMap::new(), chunks(&[400, 200])).await;
        assert_eq!(refused.err().map(|error| error.kind), Some(ErrorKind::Overloaded));
        // What it had is free again.
        assert_eq!(room.0.available_permits(), 500);
        let read = body_of(&config, &room, &HeaderMap::new(), chunks(&[400, 100])).await.unwrap();
        assert_eq!((read.bytes().len(), room.0.available_permits()), (500, 0));
        read.parse(|_| Ok(())).await.unwrap();
        assert_eq!(room.0.available_permits(), 500);
    }

    #[tokio::test]
    async fn a_body_that_has_nothing_yet_waits_for_room() {
        let config = config(LONG);
        let room = Room::new(&config);
        let mut other = Held::default();
        room.take(&mut other, 1000, LONG).await.unwrap();
        let headers = HeaderMap::new();
        let read = body_of(&config, &room, &headers, chunks(&[400, 600]));
        let mut read = std::pin::pin!(read);
        assert!(futures::poll!(read.as_mut()).is_pending());
        drop(other);
        assert_eq!(read.await.unwrap().bytes().len(), 1000);
    }

    #[tokio::test]
    async fn text_from_elsewhere_takes_room_like_a_body_and_at_the_most_all_of_it() {
        let config = config(Duration::ZERO);
        let room = Room::new(&config);
        let some = room.hold(&config, 600).await.unwrap();
        assert_eq!(room.0.available_permits(), 400);
        let refused = room.hold(&config, 401).await;
        assert_eq!(refused.err().map(|error| error.kind), Some(ErrorKind::Overloaded));
        drop(some);
        let all = room.hold(&config, 5000).await.unwrap();
        assert_eq!(room.0.available_permits(), 0);
        drop(all);
        assert_eq!(room.0.available_permits(), 1000);
    }

    #[tokio::test]
    async fn a_body_larger_than_all_room_is_too_large() {
        let config = config(LONG);
        let room = Room::new(&config);
        let refused = body_of(&config, &room, &HeaderMap::new(), chunks(&[400, 601])).await;
        assert_eq!(refused.err().map(|error| error.kind), Some(ErrorKind::TooLarge));
    }

    #[tokio::test]
    async fn a_large_body_has_its_room_until_it_is_parsed_though_nobody_waits_for_it() {
        let config = Config { body_budget: base::Bytes(1 << 20), ..config(LONG) };
        let room = Room::new(&config);
        let size = PARSE_HERE + 1;
        let read = body_of(&config, &room, &HeaderMap::new(), chunks(&[size])).await.unwrap();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mut parsing = Box::pin(read.parse(move |_| Ok(wait.recv())));
        assert!(futures::poll!(parsing.as_mut()).is_pending());
        drop(parsing);
        assert_eq!(room.0.available_permits(), (1 << 20) - size);
        go.send(()).unwrap();
        let mut all = Held::default();
        room.take(&mut all, 1 << 20, LONG).await.unwrap();
    }
}
