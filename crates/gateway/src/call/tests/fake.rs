//! An upstream that does as it is told, byte by byte, over loopback.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// One thing that is done on a connection after a request came.
pub(super) enum Step {
    /// Sends bytes.
    Say(Vec<u8>),
    /// Waits until the test says so.
    Wait(Arc<Notify>),
    /// Closes without a word.
    Reset,
    /// Does nothing until the other side closes, and tells the test then.
    Hang(Arc<Notify>),
}

/// A request as it came.
pub(super) struct Request {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            line.split_once(": ").filter(|(found, _)| *found == name).map(|(_, value)| value)
        })
    }
}

/// Behaves by scripts, one a request.
pub(super) struct Fake {
    pub(super) address: SocketAddr,
    pub(super) requests: Arc<Mutex<Vec<Request>>>,
    /// Each request tells that it came.
    pub(super) came: Arc<Notify>,
    accepting: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Fake {
    pub(super) async fn new(scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scripts = Arc::new(Mutex::new(VecDeque::from(scripts)));
        let (requests, came) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let (seen, told) = (Arc::clone(&requests), Arc::clone(&came));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, Arc::clone(&scripts), Arc::clone(&seen), Arc::clone(&told)));
            }
        });
        Self { address, requests, came, accepting }
    }

    pub(super) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

async fn connection(
    mut stream: TcpStream,
    scripts: Arc<Mutex<VecDeque<Vec<Step>>>>,
    requests: Arc<Mutex<Vec<Request>>>,
    came: Arc<Notify>,
) {
    stream.set_nodelay(true).unwrap();
    while let Some(request) = read(&mut stream).await {
        requests.lock().unwrap().push(request);
        came.notify_one();
        let script = scripts.lock().unwrap().pop_front();
        for step in script.unwrap_or_else(|| vec![Step::Say(answer(500, &[], b"no script"))]) {
            match step {
                Step::Say(bytes) => {
                    // The other side may have left, which some tests want.
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::Wait(go) => go.notified().await,
                Step::Reset => return,
                Step::Hang(closed) => {
                    let mut byte = [0];
                    while stream.read(&mut byte).await.is_ok_and(|count| count > 0) {}
                    closed.notify_one();
                    return;
                }
            }
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = memchr::memmem::find(&bytes, b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
    let mut request = Request { head, body: bytes[end + 4..].to_vec() };
    let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    while request.body.len() < length {
        if stream.read_buf(&mut request.body).await.ok()? == 0 {
            return None;
        }
    }
    Some(request)
}

/// A whole answer.
pub(super) fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    [text.as_bytes(), b"\r\n", body].concat()
}

/// An answer of JSON.
pub(super) fn json(body: &str) -> Vec<Step> {
    vec![Step::Say(answer(200, &[("content-type", "application/json")], body.as_bytes()))]
}

/// The head of a stream of events.
pub(super) fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()
}

/// A chunk of a chunked body; an empty one ends it.
pub(super) fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A whole stream of events.
pub(super) fn events(text: &str) -> Vec<Step> {
    vec![Step::Say([stream_head(), chunk(text.as_bytes()), chunk(b"")].concat())]
}
