//! The built binary, and clients of it.

use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

/// Where a server keeps its things: a folder, and perhaps a database.
pub struct Home {
    pub folder: PathBuf,
    pub database: Option<String>,
}

impl Home {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), database: None }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearth"));
        // Nothing of the developer's own settings may reach a test.
        command.env_clear().env("HOME", &self.folder).env("HEARTH_DATA_DIR", &self.folder);
        if let Some(database) = &self.database {
            command.env("HEARTH_DATABASE", database);
        }
        command.current_dir(&self.folder).stdin(Stdio::null()).args(args);
        command
    }

    /// Runs a command to its end; what it wrote.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("hearth runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    pub fn settings(&self, toml: &str) {
        // In one step: a server may read it at any moment.
        let beside = self.folder.join("hearth.toml.new");
        std::fs::write(&beside, toml).expect("written");
        std::fs::rename(beside, self.folder.join("hearth.toml")).expect("renamed");
    }

    /// A key of the default account.
    pub fn key(&self, more: &[&str]) -> String {
        self.run(&[&["keys", "create", "test"], more].concat()).trim().to_owned()
    }

    /// What was used, by these groups.
    pub fn usage(&self, by: &str) -> Vec<Value> {
        let text = self.run(&["usage", "--by", by, "--format", "json"]);
        serde_json::from_str(&text).expect("JSON")
    }

    /// Entries by the number that clients gave and the provider.
    pub fn entries(&self) -> HashMap<(String, String), Value> {
        let lines = self.usage("metadata.id,provider").into_iter();
        let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
        lines.map(|line| ((text(&line, "metadata.id"), text(&line, "provider")), line)).collect()
    }

    pub fn start(&self, more: &[&str]) -> Running {
        let args = [&["serve", "--listen", "127.0.0.1:0", "--threads", "1"], more].concat();
        let mut child = self.command(&args).stderr(Stdio::piped()).spawn().expect("hearth runs");
        let stderr = child.stderr.take().expect("piped");
        let (say, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // Read to the end, so that the server never waits for a reader.
                let _ = say.send(line);
            }
        });
        let mut running = Running { child, address: String::new(), said: Mutex::new(said) };
        let line = running.hears("http://");
        let rest = line.split_once("http://").expect("an address").1;
        running.address = rest.split('/').next().expect("an address").to_owned();
        running
    }
}

/// A server that runs; it ends with the test, however that ends.
pub struct Running {
    pub child: Child,
    pub address: String,
    said: Mutex<Receiver<String>>,
}

impl Running {
    /// Waits for a line of its standard error that has this part.
    #[track_caller]
    pub fn hears(&self, part: &str) -> String {
        let mut before = Vec::new();
        let said = self.said.lock().expect("one listens");
        while let Ok(line) = said.recv_timeout(std::time::Duration::from_secs(60)) {
            if line.contains(part) {
                return line;
            }
            before.push(line);
        }
        panic!("{part:?} was not told, but {before:?}");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ended");
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(name).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill runs").success());
    }

    /// Resident memory in bytes, and how many files and sockets are open.
    pub fn holds(&self) -> (u64, usize) {
        let process = Path::new("/proc").join(self.child.id().to_string());
        let pages = std::fs::read_to_string(process.join("statm")).expect("Linux");
        let pages: u64 = pages.split(' ').nth(1).expect("a number").parse().expect("a number");
        (pages * 4096, std::fs::read_dir(process.join("fd")).expect("Linux").count())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request and leaves the connection to the caller.
pub fn send(
    address: &str,
    path: &str,
    key: &str,
    id: &str,
    more: &str,
    body: &str,
) -> std::io::Result<TcpStream> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_nodelay(true)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         cf-aig-authorization: Bearer {key}\r\ncf-aig-metadata: {{\"id\":\"{id}\"}}\r\n\
         cf-aig-retry-delay: 1\r\n{more}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(head.as_bytes())?;
    Ok(connection)
}

/// An answer, as far as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub text: String,
    /// Whether nothing of it is missing.
    pub whole: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let head = self.text.split("\r\n\r\n").next()?;
        head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Reads all of an answer.
pub fn receive(mut connection: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let ended = connection.read_to_end(&mut bytes).is_ok();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    let mut answer = Answer { status, text, whole: false };
    let body = answer.text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    answer.whole = ended
        && match answer.header("content-length") {
            Some(length) => length.parse() == Ok(body.len()),
            None => body.ends_with("0\r\n\r\n"),
        };
    answer
}

/// Asks for a chat, whole or streamed, and reads all of the answer.
pub fn chat(address: &str, key: &str, id: &str, model: &str, stream: bool) -> Option<Answer> {
    let body = chat_body(id, model, stream);
    send(address, "/v1/chat/completions", key, id, "", &body).ok().map(receive)
}

pub fn chat_body(id: &str, model: &str, stream: bool) -> String {
    format!(
        r#"{{"model":"{model}","stream":{stream},"max_tokens":100,"messages":[{{"role":"user","content":"id:{id};"}}]}}"#
    )
}
