//! Traces of real or made-up traffic: when requests came, how long they were, and which blocks of text they shared.
//! Three forms are read, told apart by their first line:
//!
//! - Mooncake's JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of blocks of 512 tokens;
//! - AIPerf's, with `session_id`: the first line of a session has a `timestamp`, the later ones a `delay` (ms after the
//!   answer before) and only what is new since then;
//! - Azure's CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`, without blocks.
//!
//! What is sent for a trace is another file's business ([`super::replay`]).

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::BufRead;
use std::time::Duration;

/// Tokens that a block id stands for, in Mooncake's and AIPerf's traces.
pub const BLOCK_TOKENS: u32 = 512;
/// First line of Azure's form.
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// What a trace holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In the order of the file; none is empty.
    pub sessions: Vec<Session>,
}

/// Requests that follow each other; only one where the trace knows no sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// When the first request came, since the first of the trace.
    pub start: Duration,
    /// The requests; at least one.
    pub turns: Vec<Turn>,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Time since the answer before; zero for the first.
    pub pause: Duration,
    /// Tokens of the prompt that no earlier turn of the session had.
    pub input: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// Blocks that `input` begins with: equal ids are equal text.
    pub blocks: Vec<u64>,
}

#[derive(Deserialize)]
struct Line {
    session_id: Option<String>,
    timestamp: Option<f64>,
    delay: Option<f64>,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// Reads the first `limit` sessions; requests without session count as one each.
///
/// # Errors
/// When the text is in no form that is known; the line is told.
pub fn read(mut text: impl BufRead, limit: usize) -> anyhow::Result<Trace> {
    let head = text.fill_buf().context("cannot be read")?;
    if head.starts_with(b"\xfd7zXZ") || head.starts_with(b"\x1f\x8b") {
        bail!("is compressed; unpack it into a pipe (`xz -dc FILE | hearth bench load --trace - …`)");
    }
    let mut sessions: Vec<Session> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut azure = false;
    for (number, line) in text.lines().enumerate() {
        let at = || format!("line {}", number + 1);
        let line = line.context("cannot be read")?;
        let line = line.trim().trim_start_matches('\u{feff}');
        if number == 0 && line.eq_ignore_ascii_case(AZURE) {
            azure = true;
            continue;
        }
        if line.is_empty() {
            continue;
        }
        let line = if azure { azure_line(line) } else { json_line(line) }.with_context(at)?;
        match line.session_id.as_ref().and_then(|id| places.get(id)) {
            Some(place) => {
                let pause =
                    line.delay.context("a later turn of a session must have a delay").with_context(at)?;
                let turns = &mut sessions[*place].turns;
                turns.push(Turn { pause: milliseconds(pause).with_context(at)?, ..line.turn() });
            }
            None if sessions.len() >= limit => {
                // A session that was begun may still go on; requests of their own cannot.
                if line.session_id.is_none() {
                    break;
                }
            }
            None => {
                let start =
                    line.timestamp.context("a first request must have a timestamp").with_context(at)?;
                let start = milliseconds(start).with_context(at)?;
                sessions.push(Session { start, turns: vec![line.turn()] });
                if let Some(id) = line.session_id {
                    places.insert(id, sessions.len() - 1);
                }
            }
        }
    }
    let first = sessions.iter().map(|session| session.start).min().context("holds no request")?;
    sessions.iter_mut().for_each(|session| session.start -= first);
    Ok(Trace { sessions })
}

impl Line {
    fn turn(&self) -> Turn {
        Turn {
            pause: Duration::ZERO,
            input: self.input_length.max(1),
            output: self.output_length.max(1),
            blocks: self.hash_ids.clone(),
        }
    }
}

fn json_line(line: &str) -> anyhow::Result<Line> {
    serde_json::from_str(line).context(
        "is neither a JSON object with timestamp, input_length and output_length nor Azure's CSV with its first line",
    )
}

fn azure_line(line: &str) -> anyhow::Result<Line> {
    let fields: Vec<&str> = line.split(',').collect();
    let [time, input, output] = fields[..] else { bail!("has {} fields, not 3", fields.len()) };
    Ok(Line {
        session_id: None,
        timestamp: Some(
            clock_ms(time).with_context(|| format!("{time:?} is no time such as 2023-11-16 18:15:46.68"))?,
        ),
        delay: None,
        input_length: input.trim().parse().with_context(|| format!("{input:?} is no number of tokens"))?,
        output_length: output.trim().parse().with_context(|| format!("{output:?} is no number of tokens"))?,
        hash_ids: Vec::new(),
    })
}

/// `2023-11-16 18:15:46.6805900` as milliseconds since some day; only differences mean anything.
fn clock_ms(text: &str) -> Option<f64> {
    let (date, time) = text.trim().split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u32>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<u32>().ok()?, time.next()?.parse::<u32>().ok()?);
    // A time zone would change nothing, as long as all lines have the same.
    let second: f64 = time.next()?.split(['+', 'Z']).next()?.parse().ok()?;
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || !(0.0..61.0).contains(&second) {
        return None;
    }
    let leap = |year: u32| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before: u32 = (1..year).map(|year| 365 + u32::from(leap(year))).sum();
    let lengths = [31, 28 + u32::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = before + lengths[..month as usize - 1].iter().sum::<u32>() + day;
    Some((f64::from(days) * 86_400.0 + f64::from(hour * 3600 + minute * 60) + second) * 1e3)
}

fn milliseconds(ms: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(ms / 1e3).ok().with_context(|| format!("{ms} is no time in milliseconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(pause_ms: u64, input: u32, output: u32, blocks: &[u64]) -> Turn {
        Turn { pause: Duration::from_millis(pause_ms), input, output, blocks: blocks.to_vec() }
    }

    fn fails(text: &str) -> String {
        format!("{:#}", read(text.as_bytes(), 10).expect_err("a fault"))
    }

    #[test]
    fn mooncakes_lines_are_requests_of_their_own_counted_from_the_first() {
        let text = "{\"timestamp\": 3000, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [0, 7]}\n\n\
            {\"timestamp\": 4500, \"input_length\": 0, \"output_length\": 0, \"hash_ids\": []}\n";
        let trace = read(text.as_bytes(), 10).expect("read");
        let wanted = [
            Session { start: Duration::ZERO, turns: vec![turn(0, 700, 5, &[0, 7])] },
            Session { start: Duration::from_millis(1500), turns: vec![turn(0, 1, 1, &[])] },
        ];
        assert_eq!(trace.sessions, wanted);
        assert_eq!(read(text.as_bytes(), 1).expect("read").sessions, wanted[..1]);
    }

    #[test]
    fn aiperfs_later_lines_belong_to_their_session_and_a_limit_counts_sessions() {
        let text = r#"{"session_id":"a","input_length":600,"output_length":8,"hash_ids":[1,2],"timestamp":0.0,"group_id":7}
{"session_id":"b","input_length":512,"output_length":1,"hash_ids":[1],"timestamp":20.0}
{"session_id":"a","input_length":30,"output_length":9,"hash_ids":[3],"delay":1500.5}
"#;
        let trace = read(text.as_bytes(), 1).expect("read");
        let later = Turn { pause: Duration::from_micros(1_500_500), ..turn(0, 30, 9, &[3]) };
        let wanted = Session { start: Duration::ZERO, turns: vec![turn(0, 600, 8, &[1, 2]), later] };
        assert_eq!(trace.sessions, [wanted]);
        assert_eq!(read(text.as_bytes(), 2).expect("read").sessions.len(), 2);
    }

    #[test]
    fn azures_lines_have_a_clock_and_no_blocks() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-12-31 23:59:59.5000000,374,44\r\n\
            2024-01-01 00:00:01.2500000,396,109";
        let trace = read(text.as_bytes(), 10).expect("read");
        assert_eq!(trace.sessions[1].start, Duration::from_millis(1750), "over the end of a year");
        assert_eq!(trace.sessions[1].turns, [turn(0, 396, 109, &[])]);
    }

    #[test]
    fn leap_days_count() {
        let hours = |from, to| (clock_ms(to).expect("a time") - clock_ms(from).expect("a time")) / 3.6e6;
        assert_eq!(hours("2024-02-28 00:00:00", "2024-03-01 00:00:00"), 48.0);
        assert_eq!(hours("2023-02-28 00:00:00", "2023-03-01T01:00:00Z"), 25.0);
    }

    #[test]
    fn what_is_no_trace_is_told_with_its_line() {
        assert_eq!(fails(""), "holds no request");
        assert!(fails("\u{fffd}x").starts_with("line 1: is neither a JSON object"));
        assert!(fails("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,2").starts_with("line 2: "));
        assert!(
            fails("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-01 00:00:00,1,2").starts_with("line 2: ")
        );
        assert_eq!(
            fails("{\"input_length\":1,\"output_length\":1}"),
            "line 1: a first request must have a timestamp"
        );
        let later = "{\"session_id\":\"a\",\"input_length\":1,\"output_length\":1,\"timestamp\":0}\n";
        assert_eq!(fails(&later.repeat(2)), "line 2: a later turn of a session must have a delay");
        assert!(fails("{\"timestamp\":-1,\"input_length\":1,\"output_length\":1}").contains("no time"));
        let packed = read(&b"\xfd7zXZ\0..."[..], 1).expect_err("packed").to_string();
        assert!(packed.starts_with("is compressed"), "{packed}");
    }
}
