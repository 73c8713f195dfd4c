//! The ledger of the built binary when it is killed: one entry for each request, and what a client received whole is
//! settled.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// Rounds of traffic that end with a kill; `HEARTH_KILL_ROUNDS` asks for more.
const ROUNDS: usize = 4;

/// Clients at once.
const CLIENTS: usize = 8;

/// Words of an answer.
const WORDS: usize = 40;

fn hearth(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth"));
    command.env_clear().env("HOME", data).env("HEARTH_DATA_DIR", data).current_dir(data).stdin(Stdio::null());
    command
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(data: &TempDir) -> (Running, String) {
    let child = hearth(data.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--model", "agent=script:./script.json"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("hearth runs");
    let mut running = Running(child);
    let stderr = running.0.stderr.take().expect("piped");
    for line in BufReader::new(stderr).lines() {
        if let Some((_, rest)) = line.expect("readable").split_once("http://") {
            return (running, rest.split('/').next().expect("an address").to_owned());
        }
    }
    panic!("no address was told");
}

fn usage(data: &TempDir) -> serde_json::Value {
    let output =
        hearth(data.path()).args(["usage", "--by", "", "--format", "json"]).output().expect("hearth runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")[0].clone()
}

/// Asks once; tells whether all of the answer came.
fn ask(address: &str, stream: bool) -> bool {
    let body =
        format!(r#"{{"model":"agent","stream":{stream},"messages":[{{"role":"user","content":"Go on."}}]}}"#);
    let Ok(mut connection) = TcpStream::connect(address) else { return false };
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    let sent = write!(connection, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let mut answer = String::new();
    if sent.is_err() || connection.read_to_string(&mut answer).is_err() {
        return false;
    }
    if stream { answer.contains("data: [DONE]") } else { answer.trim_end().ends_with('}') }
}

#[test]
fn after_a_kill_no_entry_is_open_and_every_whole_answer_is_settled_once() {
    let data = tempfile::tempdir().expect("tempdir");
    let words: Vec<String> = (0..WORDS).map(|number| format!("word{number}")).collect();
    let script = serde_json::json!({"turns": [{"text": words.join(" ")}]});
    std::fs::write(data.path().join("script.json"), script.to_string()).expect("write");
    let rounds =
        std::env::var("HEARTH_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let mut whole = 0;
    let mut each = None;
    for round in 0..rounds {
        let (mut running, address) = serve(&data);
        let received = AtomicUsize::new(0);
        // The kill comes after some answers, wherever the others are then.
        let enough = 3 + round * 5 % 17;
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (received, address) = (&received, &address);
                scope.spawn(move || {
                    while ask(address, client % 2 == 0) {
                        received.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            while received.load(Ordering::SeqCst) < enough {
                std::thread::yield_now();
            }
            running.0.kill().expect("it runs");
            running.0.wait().expect("it ended");
        });
        whole += received.load(Ordering::SeqCst);

        // The next start says what became of the rest.
        let (running, address) = serve(&data);
        let line = usage(&data);
        let count = |name: &str| line[name].as_u64().expect("a count") as usize;
        assert_eq!((count("open"), count("failed")), (0, 0), "{line}");
        let settled = count("requests") - count("interrupted");
        assert!(settled >= whole, "round {round}: {whole} whole answers, {line}");
        assert!(settled <= whole + CLIENTS * (round + 1), "round {round}: {whole} whole answers, {line}");
        // Every answer is the same, so nothing is there twice or in part.
        let each = *each.get_or_insert_with(|| {
            assert!(ask(&address, false));
            whole += 1;
            usage(&data)["output_tokens"].as_u64().expect("a count")
                - line["output_tokens"].as_u64().expect("a count")
        });
        let line = usage(&data);
        let settled =
            line["requests"].as_u64().expect("a count") - line["interrupted"].as_u64().expect("a count");
        assert_eq!(line["output_tokens"].as_u64(), Some(settled * each), "{line}");
        drop(running);
    }
}
