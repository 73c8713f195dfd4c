//! The built binary as a person or a script calls it, without a model but those that replay scripts: messages, exit codes, and what a kill leaves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

fn hearth(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hearth"));
    // Nothing of the developer's own settings may reach a test.
    command.env_clear().env("HOME", data).env("HEARTH_DATA_DIR", data).current_dir(data).stdin(Stdio::null());
    command
}

fn run(data: &TempDir, args: &[&str]) -> Output {
    hearth(data.path()).args(args).output().expect("hearth runs")
}

#[track_caller]
fn fails(data: &TempDir, args: &[&str], parts: &[&str]) {
    let output = run(data, args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{args:?} succeeded");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("tempdir")
}

/// Ends the process when the test does, however it does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server without models on a free port; gives its address once it says so. Nobody reads its standard error from
/// then on, as when its terminal was closed.
fn serve(data: &TempDir, args: &[&str]) -> (Running, String) {
    let child = hearth(data.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"])
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .expect("hearth runs");
    let mut running = Running(child);
    let stderr = running.0.stderr.take().expect("piped");
    let mut seen = String::new();
    for line in BufReader::new(stderr).lines() {
        let line = line.expect("readable");
        if let Some((_, rest)) = line.split_once("http://") {
            let address = rest.split('/').next().expect("an address").to_owned();
            return (running, address);
        }
        seen.push_str(&line);
        seen.push('\n');
    }
    panic!("no address was told:\n{seen}");
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

#[test]
fn a_signal_ends_a_start_that_is_reading_a_file() {
    let data = folder();
    let pipe = data.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
    let (hash, source) = ("a".repeat(64), format!("path:{}", pipe.display()));
    let catalog = format!(
        "[[model]]\nid = \"m\"\n[[model.file]]\nname = \"m.gguf\"\nsha256 = {hash:?}\nsources = [{source:?}]\n"
    );
    std::fs::write(data.path().join("catalog.toml"), catalog).expect("write");
    let args = ["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--model", "m"];
    let mut running =
        Running(hearth(data.path()).args(args).stderr(Stdio::null()).spawn().expect("hearth runs"));
    // Opens when the other end does; then the file is being hashed, and never comes to its end.
    let _unwritten = std::fs::File::options().write(true).open(&pipe).expect("opened");
    let id = running.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    assert!(running.0.wait().expect("ends").success());
}

#[test]
fn a_proxy_of_the_environment_is_not_asked_for_this_machine() {
    let data = folder();
    let (_running, address) = serve(&data, &[]);
    let mut chat = hearth(data.path());
    chat.args(["chat", "-p", "hi", "--url", &format!("http://{address}")]);
    // Nobody listens on port 1.
    let output = chat.env("http_proxy", "http://127.0.0.1:1").output().expect("hearth runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("has no model yet"), "{error}");
}

#[test]
fn an_open_address_without_a_key_is_refused_in_one_sentence() {
    let data = folder();
    let output = run(&data, &["serve", "--listen", "0.0.0.0:0"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("needs a key") && error.trim().lines().count() == 1, "{error}");
    assert!(error.contains("hearth keys create") && error.contains("--api-key"), "{error}");
}

#[test]
fn an_open_address_starts_without_an_api_key_when_there_are_keys() {
    let data = folder();
    assert!(run(&data, &["keys", "create", "laptop"]).status.success());
    let mut child = hearth(data.path())
        .args(["serve", "--listen", "0.0.0.0:0", "--threads", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("hearth runs");
    let stderr = child.stderr.take().expect("piped");
    let listens = BufReader::new(stderr).lines().any(|line| line.is_ok_and(|line| line.contains("http://")));
    let _ = child.kill();
    let _ = child.wait();
    assert!(listens);
    // By its name, where no other key that is taken has it.
    assert!(run(&data, &["keys", "revoke", "laptop"]).status.success());
    for _ in 0..2 {
        assert!(run(&data, &["keys", "create", "laptop"]).status.success());
    }
    let output = run(&data, &["keys", "revoke", "laptop"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("More than one key"), "{error}");
}

#[test]
fn what_a_key_cannot_be_is_told_by_its_flag() {
    let data = folder();
    for (args, words) in [
        (["keys", "create", "x", "--days", "0"], "--days"),
        (["keys", "create", "x", "--days", "99999999999"], "--days"),
        (["keys", "create", "x", "--requests-per-minute", "0"], "--requests-per-minute"),
        (["keys", "create", "x", "--budget", "-5"], "expected an amount of dollars"),
        (["keys", "create", "x", "--expires", "2001-01-01"], "'expires'"),
        (["keys", "create", "", "--budget", "1"], "'name'"),
        (["usage", "--by", "day", "--key", "nobody"], "There is no key 'nobody'"),
        (["gateways", "show", "default", "--account", "nog"], "There is no account 'nog'"),
        (["providers", "set-key", "custom-nope", "--env", "PATH"], "there is no provider custom-nope"),
    ] {
        let output = run(&data, &args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(words), "{args:?}: {error}");
    }
    let listed = run(&data, &["providers", "list", "--all"]);
    let table = String::from_utf8_lossy(&listed.stdout);
    let openai = table.lines().find(|line| line.starts_with("openai ")).expect("a line");
    assert!(openai.contains("built in"), "{table}");
}

#[test]
fn a_taken_port_is_told_in_one_sentence() {
    let data = folder();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    fails(&data, &["serve", "--listen", &address], &[&address, "is taken"]);
}

#[test]
fn a_mistyped_setting_and_a_mistyped_model_get_suggestions() {
    let data = folder();
    fails(&data, &["serve", "--model", "smollm2-135m-instuct"], &["did you mean \"smollm2-135m-instruct\"?"]);
    fails(&data, &["serve", "--model", "./nothing.gguf"], &["there is no model at ./nothing.gguf"]);
    std::fs::write(data.path().join("hearth.toml"), "\nthread = 2\n").expect("write");
    fails(&data, &["serve"], &["hearth.toml, line 2", "did you mean \"threads\"?"]);
}

#[test]
fn a_server_without_models_starts_is_healthy_as_a_gateway_and_stops_when_asked() {
    let data = folder();
    let (mut running, address) = serve(&data, &[]);
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/metrics").contains("hearth_kv_memory_limit_bytes"));
    let pid = running.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    let status = running.0.wait().expect("it ends");
    assert!(status.success(), "{status}");
}

#[test]
fn a_bad_model_file_ends_the_start_with_its_name() {
    let data = folder();
    std::fs::write(data.path().join("bad.gguf"), b"GGUF but no more").expect("write");
    fails(
        &data,
        &["serve", "--listen", "127.0.0.1:0", "--model", "./bad.gguf"],
        &["cannot load", "bad.gguf"],
    );
}

fn post(address: &str, path: &str, body: &serde_json::Value) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    write!(stream, "{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

/// The JSON of an answer that came in one piece.
fn json(answer: &str) -> serde_json::Value {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[test]
fn the_documented_tool_loop_of_a_script_is_played() {
    let data = folder();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/scripts/tool-loop.json");
    let (_running, address) = serve(&data, &["--model", &format!("agent=script:{}", script.display())]);
    let models = json(&get(&address, "/v1/models"));
    assert_eq!(models["data"][0]["id"], "agent");
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scripts.md");
    let document = std::fs::read_to_string(document).expect("the document is there");
    let file = std::fs::read_to_string(script).expect("the script is there");
    let shown =
        document.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a script");
    let turns = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON")["turns"].clone();
    assert_eq!(turns(shown), turns(&file), "the document shows the file");
    let bodies: Vec<serde_json::Value> = document
        .split("-d '")
        .skip(1)
        .map(|rest| serde_json::from_str(rest.split('\'').next().expect("an end")).expect("JSON"))
        .collect();
    assert_eq!(bodies.len(), 2);
    let first = json(&post(&address, "/v1/chat/completions", &bodies[0]));
    let choice = &first["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{first}");
    assert_eq!(choice["message"]["content"], "Let me look.");
    assert_eq!(choice["message"]["reasoning_content"], "The user wants the weather, so I ask the tool.");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(
        (&function["name"], &function["arguments"]),
        (&"get_weather".into(), &"{\"city\": \"Paris\"}".into())
    );
    let second = json(&post(&address, "/v1/chat/completions", &bodies[1]));
    assert_eq!(second["choices"][0]["message"]["content"], "It is 18 degrees in Paris.", "{second}");
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count");
    assert!(cached * 2 > first["usage"]["prompt_tokens"].as_u64().expect("a count"), "{second}");
    let mut streamed = bodies[1].clone();
    streamed["stream"] = true.into();
    let events = post(&address, "/v1/chat/completions", &streamed);
    let text: String = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .filter_map(|rest| serde_json::from_str::<serde_json::Value>(&format!("{{{rest}")).ok())
        .filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert_eq!(text, "It is 18 degrees in Paris.");
    assert!(events.contains("data: [DONE]"), "{events}");
}

#[test]
fn a_faulty_history_is_named_as_each_dialect_writes_it() {
    let data = folder();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/scripts/tool-loop.json");
    let (_running, address) = serve(&data, &["--model", &format!("agent=script:{}", script.display())]);
    let account = "/client/v4/accounts/a/ai";
    let user = serde_json::json!({"role": "user", "content": "hi"});
    let message = |arguments: &str| {
        let function = serde_json::json!({"name": "f", "arguments": arguments});
        let call = serde_json::json!({"id": "c", "type": "function", "function": function});
        serde_json::json!({"role": "assistant", "content": null, "tool_calls": [call]})
    };
    let item = |arguments: &str| serde_json::json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments});
    let flat = serde_json::json!({"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "{"}]});
    let tool = serde_json::json!({"role": "tool", "content": "1", "tool_call_id": "c"});
    let output = serde_json::json!({"type": "function_call_output", "call_id": "c", "output": "1"});
    let block = serde_json::json!({"type": "tool_use", "id": "c", "name": "f", "input": {}});
    let used = serde_json::json!({"role": "assistant", "content": [block]});
    for (path, field, history, place) in [
        ("/v1/chat/completions", "messages", [&user, &message("{}"), &user], "messages[1].tool_calls[0].id"),
        (
            "/v1/chat/completions",
            "messages",
            [&user, &message("{"), &tool],
            "tool_calls[0].function.arguments",
        ),
        ("/v1/responses", "input", [&user, &item("{}"), &user], "input[1].call_id"),
        ("/v1/responses", "input", [&user, &item("{"), &output], "input[1].arguments"),
        ("/v1/messages", "messages", [&user, &used, &user], "messages.1.content.0: `tool_use` ids"),
        (
            &format!("{account}/run/agent"),
            "messages",
            [&user, &flat, &tool],
            "'messages[1].tool_calls[0].arguments'",
        ),
    ] {
        let mut body = serde_json::json!({"max_tokens": 5, field: history});
        if path == "/v1/responses" {
            body.as_object_mut().expect("an object").remove("max_tokens");
        }
        if !path.starts_with(account) {
            body["model"] = "agent".into();
        }
        let answer = post(&address, path, &body);
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(place), "{path} {place}: {answer}");
    }
}

#[test]
fn a_script_with_a_fault_ends_the_start_with_its_place() {
    let data = folder();
    let start = |model: &str, parts: &[&str]| {
        fails(&data, &["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--model", model], parts);
    };
    std::fs::write(data.path().join("bad.json"), "{\n\"turns\": [{\"says\": 1}]\n}").expect("write");
    start("script:bad.json", &["cannot load bad", "unknown field `says`", "line 2"]);
    start("x=script:none.json", &["there is no script at none.json"]);
    start("script:", &["script: names no file"]);
}

#[test]
fn a_script_tells_its_tokens_and_talks_in_the_terminal() {
    let data = folder();
    std::fs::write(data.path().join("s.json"), "{\"turns\": [{\"text\": \"Good day.\"}]}").expect("write");
    std::fs::write(data.path().join("hearth.toml"), "models = [\"a=script:s.json\"]\n").expect("write");
    let output = run(&data, &["tokenize", "--model", "script:s.json", "--json", "--special", "<think>"]);
    assert_eq!(json_tokens(&output).len(), 1, "markers are tokens");
    let output = run(&data, &["chat", "--model", "script:s.json", "--threads", "1", "-p", "Hello"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "Good day.", "{output:?}");
    let (_running, address) = serve(&data, &[]);
    assert_eq!(
        json(&get(&address, "/v1/models"))["data"][0]["id"],
        "a",
        "the file's path starts at its folder"
    );
    fails(&data, &["bench", "model", "--model", "script:s.json"], &["is a script"]);
}

#[test]
fn a_server_is_measured_its_result_saved_drawn_and_compared() {
    let data = folder();
    std::fs::write(data.path().join("s.json"), "{\"turns\": [{\"text\": \"Good day to you all.\"}]}")
        .expect("write");
    let (running, address) = serve(&data, &["--model", "script:s.json"]);
    let url = format!("http://{address}");
    let pid = running.0.id().to_string();
    let load =
        ["bench", "load", "--url", &url, "--scenario", "long-prompt", "--sessions", "2", "--turns", "2"];
    let outputs = ["--repeats", "0", "--pid", &pid, "--json", "a.json", "--report", "a.html"];
    let output = run(&data, &[&load[..], &outputs].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for part in ["TTFT, first turn, p50", "server memory after", "int8"] {
        assert!(table.contains(part), "{part} is not in: {table}");
    }
    let well = table.lines().find(|line| line.starts_with("turns that ended well")).expect("a count");
    assert!(well.ends_with(" 4"), "{table}");
    let trace = "{\"timestamp\":0,\"input_length\":5,\"output_length\":3,\"hash_ids\":[1]}\n";
    std::fs::write(data.path().join("t.jsonl"), trace.repeat(2)).expect("write");
    let replay = ["bench", "load", "--url", &url, "--trace", "t.jsonl", "--repeats", "0", "--json", "b.json"];
    let output = run(&data, &replay);
    assert!(String::from_utf8_lossy(&output.stdout).contains("sent late, max"), "{output:?}");
    let output = run(&data, &["bench", "compare", "a.json", "b.json", "--report", "c.html"]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("differs: trace is - in A, t.jsonl in B"), "{output:?}");
    for page in ["a.html", "c.html"] {
        let page = std::fs::read_to_string(data.path().join(page)).expect("drawn");
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"), "{page}");
    }
}

#[test]
fn what_is_wrong_with_a_measurement_is_told_before_it_with_the_flag() {
    let data = folder();
    let load = |args: &[&str], parts: &[&str]| {
        fails(&data, &[&["bench", "load", "--url", "http://127.0.0.1:1"], args].concat(), parts);
    };
    load(&["--limit", "3"], &["--trace"]);
    load(&["--trace", "t", "--turns", "3"], &["--turns", "--trace"]);
    load(&["--trace", "none.jsonl"], &["--trace: none.jsonl"]);
    load(&["--report", "none/a.html"], &["--report: cannot write"]);
    load(&["--pid", "4294967295"], &["--pid: no process"]);
    load(&[], &["--url: no server answers at http://127.0.0.1:1"]);
    load(&["--speed", "0"], &["--speed", "a number from 0.001"]);
}

fn json_tokens(output: &Output) -> Vec<serde_json::Value> {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn what_no_machine_can_give_is_refused_before_anything_starts() {
    let data = folder();
    fails(&data, &["serve", "--threads", "100000"], &["a whole number from 1 to 1024"]);
    fails(&data, &["serve", "--context", "0"], &["a whole number above 0"]);
    let listen = ["serve", "--listen", "127.0.0.1:0", "--kv-memory"];
    fails(
        &data,
        &[&listen[..], &["4000000GiB"]].concat(),
        &["the KV memory of", "more than this machine has"],
    );
}

#[test]
fn chat_refuses_an_empty_question_and_an_address_that_is_none() {
    let data = folder();
    fails(&data, &["chat", "-p", " "], &["the question is empty"]);
    fails(&data, &["chat", "--url", "banana", "-p", "x"], &["\"banana\" is not the address of a server"]);
}

#[test]
fn models_are_listed_shown_and_removed() {
    let data = folder();
    std::fs::write(data.path().join("file.gguf"), "content").expect("write");
    let source = format!("path:{}", data.path().join("file.gguf").display());
    let catalog = format!(
        "[[model]]\nid = \"mine\"\nlicence = \"MIT\"\n[[model.file]]\nname = \"m.gguf\"\nsources = [{source:?}]\n"
    );
    std::fs::write(data.path().join("catalog.toml"), catalog).expect("write");
    assert!(run(&data, &["models", "pull", "mine"]).status.success());
    let list = String::from_utf8(run(&data, &["models", "list", "--json"]).stdout).expect("UTF-8");
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let mine = list.as_array().expect("a list").iter().find(|row| row["id"] == "mine").expect("mine");
    assert_eq!((&mine["state"], &mine["size"]), (&"pulled".into(), &7.into()));
    let shown = String::from_utf8(run(&data, &["models", "show", "mine"]).stdout).expect("UTF-8");
    assert!(shown.contains(&source) && shown.contains("MIT"), "{shown}");
    fails(&data, &["models", "rm", "mine"], &["--yes"]);
    assert!(run(&data, &["models", "rm", "mine", "--yes"]).status.success());
    assert!(!data.path().join("models/mine").exists());
    assert!(data.path().join("file.gguf").exists());
}

#[test]
fn a_killed_pull_leaves_only_a_part_and_the_next_one_goes_on() {
    let data = folder();
    let body: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let hub = format!("http://{}", listener.local_addr().expect("bound"));
    let command = |data: &TempDir| {
        let mut command = hearth(data.path());
        command.args(["models", "pull", "hf:owner/repo/m.gguf"]).env("HF_ENDPOINT", &hub);
        command.stderr(Stdio::null()).stdout(Stdio::null());
        command
    };
    let mut pull = Running(command(&data).spawn().expect("hearth runs"));
    answer(&listener, &body, 0);
    let mut held = answer(&listener, &body, 120_000);
    let target = data.path().join("models/m/m.gguf");
    let part = || {
        let folder = std::fs::read_dir(data.path().join("models/m/.partial-m"));
        folder
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.metadata().map_or(0, |data| data.len()))
            .sum::<u64>()
    };
    // The bytes are on their way; the kill must come after some have been written.
    while part() == 0 {
        std::thread::yield_now();
    }
    pull.0.kill().expect("killed");
    pull.0.wait().expect("ended");
    held.flush().expect("the server's end is still ours");
    drop(held);
    assert!(!target.exists(), "no half file under the final name");
    let kept = part();
    let mut pull = Running(command(&data).spawn().expect("hearth runs"));
    answer(&listener, &body, 0);
    drop(answer_range(&listener, &body, kept));
    assert!(pull.0.wait().expect("ends").success());
    assert_eq!(std::fs::read(target).expect("there"), body);
}

/// Answers one request with the head of a file and so many of its bytes.
fn answer(listener: &TcpListener, body: &[u8], bytes: usize) -> TcpStream {
    let (mut stream, _) = listener.accept().expect("a client");
    read_head(&mut stream);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nETag: \"v1\"\r\n", body.len());
    write!(stream, "{head}Connection: close\r\n\r\n").expect("sent");
    stream.write_all(&body[..bytes]).expect("sent");
    stream
}

/// Answers one request for the rest of a file.
fn answer_range(listener: &TcpListener, body: &[u8], from: u64) -> TcpStream {
    let (mut stream, _) = listener.accept().expect("a client");
    let head = read_head(&mut stream).to_ascii_lowercase();
    assert!(head.contains(&format!("range: bytes={from}-")), "{head}");
    let rest = &body[usize::try_from(from).expect("small")..];
    let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
    let head =
        format!("HTTP/1.1 206 Partial\r\nContent-Length: {}\r\nContent-Range: {range}\r\n", rest.len());
    write!(stream, "{head}Connection: close\r\n\r\n").expect("sent");
    stream.write_all(rest).expect("sent");
    stream
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("readable") == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("UTF-8")
}

/// Serves the model in `m` of the data folder until it is ready, and stops.
fn serve_once(data: &TempDir, args: &[&str]) {
    let (mut running, _) = serve(data, &[&["--model", "m=./m"], args].concat());
    let pid = running.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    assert!(running.0.wait().expect("it ends").success());
}

#[test]
fn packed_weights_are_kept_unless_that_is_off_and_pruned_when_their_model_is_gone() {
    let data = folder();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/llama");
    std::fs::create_dir(data.path().join("m")).expect("mkdir");
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture.join(name), data.path().join("m").join(name)).expect("copy");
    }
    let packed = data.path().join("packed");
    let files = || std::fs::read_dir(&packed).map_or(0, Iterator::count);
    serve_once(&data, &["--packed-weights", "off"]);
    assert_eq!(files(), 0);
    serve_once(&data, &[]);
    assert_eq!(files(), 1);
    let prune = |args: &[&str]| {
        let output = run(&data, &[&["models", "prune"], args].concat());
        assert!(output.status.success());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert_eq!(prune(&[]).trim(), "nothing to prune");
    std::fs::remove_dir_all(data.path().join("m")).expect("remove");
    let told = prune(&["--dry-run"]);
    assert!(told.contains("its model is gone") && told.contains("would free"), "{told}");
    assert_eq!(files(), 1);
    assert!(prune(&[]).contains("freed"));
    assert_eq!(files(), 0);
}

#[test]
fn two_servers_on_one_database_go_on_from_each_others_responses() {
    let test = "two_servers_on_one_database_go_on_from_each_others_responses";
    let Some(server) = testdb::Server::shared(test) else { return };
    let database = server.database();
    let (data, other_data) = (folder(), folder());
    let script = data.path().join("script.json");
    std::fs::write(&script, r#"{"turns": [{"text": "one"}, {"text": "two"}]}"#).expect("write");
    let model = format!("agent=script:{}", script.display());
    let args = ["--model", &model, "--database", &database];
    let ((_one, one), (_other, other)) = (serve(&data, &args), serve(&other_data, &args));
    let mut body = serde_json::json!({"model": "agent", "input": "first"});
    let first = json(&post(&one, "/v1/responses", &body));
    body["previous_response_id"] = first["id"].clone();
    let second = json(&post(&other, "/v1/responses", &body));
    assert_eq!(second["output"][0]["content"][0]["text"], "two", "{second}");
    let id = second["id"].as_str().expect("an id");
    let items = json(&get(&one, &format!("/v1/responses/{id}/input_items")));
    assert_eq!(items["data"].as_array().map(Vec::len), Some(3), "{items}");
    assert!(!data.path().join("hearth.db").exists(), "nothing is kept in the folder");
}

#[test]
fn a_database_that_cannot_be_used_ends_the_start_and_its_password_is_not_told() {
    let data = folder();
    // Nothing is there to connect to; that it may come is waited for, but not for a folder.
    let url = format!(
        "postgres://me:s3cret@/d?host={}&sslmode=verify-full&sslrootcert=/none",
        data.path().display()
    );
    for url in [url.as_str(), "postgres://me:s3cret@localhost:none/d"] {
        let output = hearth(data.path())
            .args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"])
            .env("HEARTH_DATABASE", url)
            .output()
            .expect("hearth runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(error.contains("database") && !error.contains("s3cret"), "{error}");
    }
}

#[test]
fn a_server_whose_store_cannot_be_opened_does_not_start_instead_of_letting_everybody_in() {
    let spoil: [fn(&Path); 3] = [
        |file| {
            // A key was made; then the file's head was damaged.
            let mut bytes = std::fs::read(file).expect("read");
            bytes[..4].copy_from_slice(b"\0\0\0\0");
            std::fs::write(file, bytes).expect("write");
        },
        |file| {
            std::fs::remove_file(file).expect("remove");
            std::fs::create_dir(file).expect("mkdir");
        },
        // As for another user's file, which root could read all the same.
        |file| {
            std::fs::remove_file(file).expect("remove");
            std::os::unix::fs::symlink("/proc/none/hearth.db", file).expect("link");
        },
    ];
    for spoil in spoil {
        let data = folder();
        assert!(run(&data, &["keys", "create", "alice"]).status.success());
        let file = data.path().join("hearth.db");
        for beside in ["hearth.db-wal", "hearth.db-shm"] {
            let _ = std::fs::remove_file(data.path().join(beside));
        }
        spoil(&file);
        let output = run(&data, &["serve", "--listen", "127.0.0.1:0", "--threads", "1"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        for part in ["hearth.db", "nothing is served without it", "--data-dir"] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}
