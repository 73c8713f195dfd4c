//! A web server with behaviour: it records what it was asked, and can cut, redirect, refuse and ignore ranges.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What it was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First byte of a `Range: bytes=N-`.
    pub fn from(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What it answers.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Closes the connection after so many bytes of the body.
    pub cut: Option<usize>,
}

impl Answer {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// A file, or its rest when a range was asked for.
    pub fn file(asked: &Asked, content: &[u8]) -> Self {
        match asked.from() {
            Some(from) if from < content.len() => Self {
                status: 206,
                headers: vec![(
                    "Content-Range",
                    format!("bytes {from}-{}/{}", content.len() - 1, content.len()),
                )],
                body: content[from..].to_vec(),
                cut: None,
            },
            Some(_) => Self::status(416),
            None => Self { status: 200, body: content.to_vec(), ..Self::default() },
        }
    }

    pub fn cut(mut self, after: usize) -> Self {
        self.cut = Some(after);
        self
    }
}

type Handler = dyn Fn(&Asked) -> Answer + Send + Sync;

/// The server; stops being asked when the test ends.
pub struct Server {
    address: SocketAddr,
    log: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub fn start(handler: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let log = Arc::new(Mutex::new(Vec::new()));
        let handler: Arc<Handler> = Arc::new(handler);
        let log_of_thread = log.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (handler, log) = (handler.clone(), log_of_thread.clone());
                std::thread::spawn(move || serve(stream, &*handler, &log));
            }
        });
        Self { address, log }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.log.lock().expect("no panic while held").clone()
    }

    /// The `GET`s among what it was asked.
    pub fn gets(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.method == "GET").collect()
    }
}

fn serve(stream: TcpStream, handler: &Handler, log: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
    let mut writer = stream;
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let asked = Asked { method, path, headers };
    let answer = handler(&asked);
    log.lock().expect("no panic while held").push(asked.clone());
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", answer.status);
    if !answer.headers.iter().any(|(name, _)| *name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", answer.body.len());
    }
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    let body =
        if asked.method == "HEAD" { &[] } else { &answer.body[..answer.cut.unwrap_or(answer.body.len())] };
    // The client may have gone; that is its right.
    let _ = writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(body));
}
