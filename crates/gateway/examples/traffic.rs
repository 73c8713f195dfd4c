//! An upstream that answers at once, and a client that keeps a gateway busy; `bench/gateway.py` runs both.
//!
//! ```text
//! traffic upstream PORT
//! traffic drive ADDRESS PATH MODEL WHAT CONNECTIONS SECONDS RATE [HEADER: VALUE]…
//! ```
//!
//! `WHAT` is `small` (184 bytes asked, 370 answered), `large` (a body of 257 KB), `stream` (35 events, each written by
//! itself) or `paced` (the same, 5 ms apart). `RATE` is requests a second over all connections, and 0 as many as there is
//! room for. The client prints one line of JSON; times are in milliseconds. One thread each, so that each takes one core
//! at the most. Not here: starting gateways, and what they use.

#![allow(clippy::print_stdout, missing_docs)]

use std::env::args;
use std::error::Error;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Events of a stream: the text, its usage, the end.
const EVENTS: usize = 35;

/// Between two events of a paced stream.
const PACE: Duration = Duration::from_millis(5);

/// Bytes of a large body.
const LARGE: usize = 257 << 10;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match *arguments {
        ["upstream", port] => runtime.block_on(upstream(port.parse()?)),
        ["drive", address, path, model, what, connections, seconds, rate, ref headers @ ..] => {
            let ask = ask(address, path, model, what, headers);
            let load =
                Load { connections: connections.parse()?, seconds: seconds.parse()?, rate: rate.parse()? };
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, drive(address, ask, what == "stream" || what == "paced", load))
        }
        _ => {
            Err("traffic upstream PORT | traffic drive ADDRESS PATH MODEL WHAT CONNECTIONS SECONDS RATE"
                .into())
        }
    }
}

/// Where the head of a message ends.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// The value of a header, whose name is given in lower case.
fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

async fn upstream(port: u16) -> Outcome<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A client that leaves ends its connection, and nobody else's.
        tokio::spawn(async move { answer_all(stream).await.unwrap_or_default() });
    }
}

async fn answer_all(mut stream: TcpStream) -> std::io::Result<()> {
    let whole = {
        let text = "A river, another river, and a third one that is longer.";
        let body = format!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}","refusal":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":31,"completion_tokens":14,"total_tokens":45,"prompt_tokens_details":{{"cached_tokens":16}}}}}}"#
        );
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let events = events();
    let mut bytes = Vec::with_capacity(LARGE + 4096);
    loop {
        let end = loop {
            if let Some(end) = end_of_head(&bytes) {
                break end;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        let length =
            header(&bytes[..end], "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        while bytes.len() < end + length {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        }
        let body = &bytes[end..end + length];
        // What says how to answer stands in the last bytes of a large body, which so costs nothing here.
        let tail = &body[body.len().saturating_sub(4096)..];
        let has = |text: &str| memchr::memmem::find(tail, text.as_bytes()).is_some();
        let (streams, paced) = (has("\"stream\":true") || has("\"stream\": true"), has("paced"));
        bytes.drain(..end + length);
        if !streams {
            stream.write_all(whole.as_bytes()).await?;
            continue;
        }
        stream.write_all(HEAD).await?;
        for event in &events {
            if paced {
                tokio::time::sleep(PACE).await;
            }
            stream.write_all(event).await?;
        }
    }
}

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// The chunks of a stream, the last one empty.
fn events() -> Vec<Vec<u8>> {
    let about = r#""id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"mock""#;
    let text = |n: usize| {
        format!(
            r#"{{{about},"choices":[{{"index":0,"delta":{{"content":" word{n}"}},"finish_reason":null}}]}}"#
        )
    };
    let usage = r#""usage":{"prompt_tokens":31,"completion_tokens":33,"total_tokens":64}"#;
    let mut all: Vec<String> = (0..EVENTS - 2).map(text).collect();
    all.push(format!(r#"{{{about},"choices":[],{usage}}}"#));
    all.push("[DONE]".to_owned());
    let chunk = |data: String| format!("{:x}\r\ndata: {data}\n\n\r\n", data.len() + 8).into_bytes();
    let mut chunks: Vec<Vec<u8>> = all.into_iter().map(chunk).collect();
    chunks.push(b"0\r\n\r\n".to_vec());
    chunks
}

/// The bytes of a request.
fn ask(address: &str, path: &str, model: &str, what: &str, headers: &[&str]) -> Vec<u8> {
    let filler =
        if what == "large" { "lorem ipsum dolor sit amet, ".repeat(LARGE / 28) } else { String::new() };
    let options = match what {
        "stream" => r#","stream_options":{"include_usage":true},"stream":true"#,
        "paced" => r#","user":"paced","stream_options":{"include_usage":true},"stream":true"#,
        _ => "",
    };
    let body = format!(
        r#"{{"model":"{model}","messages":[{{"role":"system","content":"You are terse.{filler}"}},{{"role":"user","content":"Name three rivers of Europe."}}],"max_tokens":64,"temperature":0.2{options}}}"#
    );
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

#[derive(Clone, Copy)]
struct Load {
    connections: usize,
    seconds: f64,
    rate: f64,
}

/// What one request took.
struct Took {
    first: Duration,
    whole: Duration,
    events: usize,
}

#[derive(Default)]
struct Seen {
    took: Vec<Took>,
    failed: usize,
    why: Option<String>,
}

async fn drive(address: &str, ask: Vec<u8>, streams: bool, load: Load) -> Outcome<()> {
    let (ask, begun) = (std::rc::Rc::new(ask), Instant::now());
    let end = begun + Duration::from_secs_f64(load.seconds);
    let running: Vec<_> = (0..load.connections)
        .map(|number| {
            let (address, ask) = (address.to_owned(), std::rc::Rc::clone(&ask));
            tokio::task::spawn_local(async move {
                let mut seen = Seen::default();
                let every =
                    (load.rate > 0.0).then(|| Duration::from_secs_f64(load.connections as f64 / load.rate));
                let mut next =
                    begun + every.unwrap_or_default().mul_f64(number as f64 / load.connections as f64);
                let mut connection = None;
                while Instant::now() < end {
                    if let Some(every) = every {
                        tokio::time::sleep_until(next.into()).await;
                        next += every;
                    }
                    match once(&mut connection, &address, &ask, streams).await {
                        Ok(took) => seen.took.push(took),
                        Err(error) => {
                            connection = None;
                            seen.failed += 1;
                            seen.why = Some(error.to_string());
                        }
                    }
                }
                seen
            })
        })
        .collect();
    let mut all = Seen::default();
    for one in running {
        let one = one.await?;
        all.took.extend(one.took);
        all.failed += one.failed;
        all.why = all.why.or(one.why);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let ms = |part: f64, of: fn(&Took) -> Duration| {
        let mut all: Vec<Duration> = all.took.iter().map(of).collect();
        all.sort_unstable();
        let at = ((all.len() as f64 * part) as usize).min(all.len().saturating_sub(1));
        all.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
    };
    let events: usize = all.took.iter().map(|took| took.events).sum();
    println!(
        r#"{{"requests":{},"failed":{},"why":{:?},"seconds":{seconds:.3},"rate":{:.1},"events":{events},"first_p50":{:.3},"first_p99":{:.3},"whole_p50":{:.3},"whole_p99":{:.3}}}"#,
        all.took.len(),
        all.failed,
        all.why.unwrap_or_default(),
        all.took.len() as f64 / seconds,
        ms(0.5, |took| took.first),
        ms(0.99, |took| took.first),
        ms(0.5, |took| took.whole),
        ms(0.99, |took| took.whole),
    );
    Ok(())
}

/// A connection, and what came on it and is not read.
type Connection = (TcpStream, Vec<u8>);

/// Asks once, and reads all of the answer.
async fn once(
    connection: &mut Option<Connection>,
    address: &str,
    ask: &[u8],
    streams: bool,
) -> Outcome<Took> {
    if connection.is_none() {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        *connection = Some((stream, Vec::with_capacity(1 << 14)));
    }
    let Some((stream, bytes)) = connection else { return Err("no connection".into()) };
    let begun = Instant::now();
    stream.write_all(ask).await?;
    let end = loop {
        if let Some(end) = end_of_head(bytes) {
            break end;
        }
        if stream.read_buf(bytes).await? == 0 {
            return Err("closed before an answer".into());
        }
    };
    if !bytes.starts_with(b"HTTP/1.1 200") {
        let said = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
        return Err(said.into());
    }
    let length = header(&bytes[..end], "content-length").and_then(|length| length.parse::<usize>().ok());
    if let Some(length) = length {
        while bytes.len() < end + length {
            if stream.read_buf(bytes).await? == 0 {
                return Err("closed within an answer".into());
            }
        }
        bytes.drain(..end + length);
        let whole = begun.elapsed();
        return if streams {
            Err("a stream was asked for".into())
        } else {
            Ok(Took { first: whole, whole, events: 0 })
        };
    }
    let mut first = None;
    loop {
        if first.is_none() && memchr::memmem::find(&bytes[end..], b"data:").is_some() {
            first = Some(begun.elapsed());
        }
        if bytes.ends_with(b"0\r\n\r\n") && bytes.len() >= end + 5 {
            let events = memchr::memmem::find_iter(&bytes[end..], b"data:").count();
            bytes.clear();
            let whole = begun.elapsed();
            return Ok(Took { first: first.unwrap_or(whole), whole, events });
        }
        if stream.read_buf(bytes).await? == 0 {
            return Err("closed within a stream".into());
        }
    }
}
