//! A provider that does as it is told, request by request, and keeps a log on disk of what it saw.

use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for what must come; only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub body: Value,
    /// What the client calls it: what stands in its text between `id:` and `;`, which no translation loses.
    pub id: String,
    /// How many came before it with the same number.
    pub before: usize,
}

impl Asked {
    pub fn streams(&self) -> bool {
        self.body["stream"] == true
    }
}

/// What the provider does.
pub enum Manner {
    /// Says this, whole, piece by piece, and keeps the connection.
    Say(Vec<Vec<u8>>),
    /// Says this and ends the connection.
    Break(Vec<u8>),
    /// Says this and waits until the other side ends the connection.
    Hold(Vec<u8>),
}

/// What was seen so far.
#[derive(Default)]
pub struct Seen {
    /// Numbers, in the order in which they came.
    pub asked: Vec<Asked>,
    /// Connections that are held.
    pub held: usize,
    /// Connections that were held and that the other side ended.
    pub ended: usize,
}

struct Shared {
    name: String,
    log: Mutex<File>,
    seen: Mutex<Seen>,
    changed: Condvar,
    manner: Box<dyn Fn(&Asked) -> Manner + Send + Sync>,
}

/// The provider. It listens as long as the process lives.
pub struct Fake {
    pub address: String,
    shared: Arc<Shared>,
}

impl Fake {
    /// One that answers in this manner and writes to `FOLDER/NAME.log`.
    pub fn new(folder: &Path, name: &str, manner: impl Fn(&Asked) -> Manner + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let log = OpenOptions::new().create(true).append(true).open(folder.join(format!("{name}.log")));
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            log: Mutex::new(log.expect("a log")),
            seen: Mutex::default(),
            changed: Condvar::new(),
            manner: Box::new(manner),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || connection(&shared, stream));
            }
        });
        Self { address, shared }
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this is so.
    #[track_caller]
    pub fn wait(&self, what: &str, so: impl Fn(&Seen) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut seen = self.seen();
        while !so(&seen) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} never came: {} held, {} ended", seen.held, seen.ended);
            seen = self.shared.changed.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn connection(shared: &Shared, mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut bytes = Vec::new();
    while let Some((path, body)) = request(&mut stream, &mut bytes) {
        let text = String::from_utf8_lossy(&body).into_owned();
        let id = text.split("id:").nth(1).and_then(|rest| rest.split(';').next()).unwrap_or_default();
        let id = id.replace("\\/", "/");
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let asked = {
            let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let before = seen.asked.iter().filter(|asked| asked.id == id).count();
            let asked = Asked { path, body, id, before };
            // Before any answer, so that no answer is missing in it.
            let mut log = shared.log.lock().unwrap_or_else(PoisonError::into_inner);
            writeln!(log, "{} {} {}", shared.name, asked.id, asked.before).expect("a log");
            seen.asked.push(asked.clone());
            shared.changed.notify_all();
            asked
        };
        match (shared.manner)(&asked) {
            Manner::Say(pieces) => {
                for piece in pieces {
                    if stream.write_all(&piece).is_err() {
                        return;
                    }
                }
            }
            Manner::Break(bytes) => {
                let _ = stream.write_all(&bytes);
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
            Manner::Hold(bytes) => {
                shared.seen.lock().unwrap_or_else(PoisonError::into_inner).held += 1;
                let _ = stream.write_all(&bytes);
                shared.changed.notify_all();
                let mut rest = [0; 64];
                while stream.read(&mut rest).is_ok_and(|count| count > 0) {}
                let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
                (seen.held, seen.ended) = (seen.held - 1, seen.ended + 1);
                shared.changed.notify_all();
                return;
            }
        }
    }
}

/// The next request of a connection: its path and its body, whose length it tells.
fn request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let mut more = |bytes: &mut Vec<u8>| {
        let mut piece = [0; 16 << 10];
        let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&piece[..count]);
        Some(())
    };
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        more(bytes)?;
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let whole = end + 4 + length.map_or(0, |length| length.trim().parse().expect("a length"));
    while bytes.len() < whole {
        more(bytes)?;
    }
    let body = bytes[end + 4..whole].to_vec();
    bytes.drain(..whole);
    Some((path, body))
}

/// A whole answer.
pub fn answer(status: u16, headers: &[&str], body: &str) -> Vec<u8> {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

pub const JSON: &str = "content-type: application/json";

/// The head of a stream of events.
pub fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()
}

/// A chunk; an empty one ends the body.
pub fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

/// One event of each dialect's stream.
pub fn event(path: &str) -> String {
    let (name, data) = match path.rsplit('/').next().unwrap_or_default() {
        "messages" => (
            "event: message_start\n",
            r#"{"type":"message_start","message":{"id":"a","type":"message","role":"assistant","content":[],"model":"m","usage":{"input_tokens":7,"output_tokens":1}}}"#,
        ),
        "responses" => (
            "event: response.created\n",
            r#"{"type":"response.created","sequence_number":0,"response":{"id":"r","object":"response","status":"in_progress"}}"#,
        ),
        "completions" if !path.ends_with("chat/completions") => {
            ("", r#"{"object":"text_completion","choices":[{"index":0,"text":"a"}]}"#)
        }
        _ => ("", r#"{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}"#),
    };
    format!("{name}data: {data}\n\n")
}

/// A whole answer to a chat, streamed or not, that used so many tokens.
pub fn chat(asked: &Asked, input: u64, output: u64) -> Manner {
    let usage = format!(
        r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{}}}"#,
        input + output
    );
    if !asked.streams() {
        let body = format!(
            r#"{{"id":"c","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"a"}},"finish_reason":"stop"}}],"usage":{usage}}}"#
        );
        return Manner::Say(vec![answer(200, &[JSON], &body)]);
    }
    let mut pieces = vec![stream_head()];
    pieces.extend((0..12).map(|_| chunk(&event(&asked.path))));
    pieces.push(chunk(&format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n")));
    pieces.push(chunk("data: [DONE]\n\n"));
    pieces.push(chunk(""));
    Manner::Say(pieces)
}
