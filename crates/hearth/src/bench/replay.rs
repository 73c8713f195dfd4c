//! A trace as a load: requests start when the trace says, whether or not the earlier ones have been answered (an open
//! loop), and equal block ids are equal text, so that a prefix cache hits where it did for those who recorded it.
//!
//! Lengths are in words that most vocabularies hold as one token, so they are right to a few percent and a chat
//! template's own tokens come on top. Within a session the history holds the answers that really came.

use super::scenario::Words;
use super::trace::{BLOCK_TOKENS, Session, Trace, Turn};
use super::workload::Workload;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// How a trace is fitted to a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Times are divided by this; above 0.
    pub speed: f64,
    /// Lengths are divided by this, blocks included, so that what is shared stays shared; at least 1.
    pub shrink: u32,
    /// Longest prompt, history included: a single prompt is cut, a session ends before it would grow beyond.
    pub input_max: Option<u32>,
    /// Longest answer.
    pub output_max: Option<u32>,
}

/// A trace that was fitted, with a seed for its texts.
#[derive(Clone, Debug)]
pub struct Replay {
    sessions: Vec<Session>,
    block_words: u32,
    seed: u64,
    settings: BTreeMap<String, Value>,
}

/// Names of the streams of words, so that a block never says what the rest of a prompt says.
const BLOCK: u64 = 1;
const OWN: u64 = 2;

impl Replay {
    /// Fits a trace; `name` tells it apart from others.
    #[must_use]
    pub fn new(name: &str, trace: &Trace, fit: Fit, seed: u64) -> Self {
        let block_words = BLOCK_TOKENS.div_ceil(fit.shrink.max(1));
        let mut counts = Counts::default();
        let sessions: Vec<Session> = trace
            .sessions
            .iter()
            .map(|session| fit_session(session, fit, block_words, &mut counts))
            .collect();
        let requests: usize = sessions.iter().map(|session| session.turns.len()).sum();
        let cap = |cap: Option<u32>| cap.map_or("none".into(), Value::from);
        let settings = BTreeMap::from([
            ("trace".to_owned(), name.into()),
            ("seed".to_owned(), seed.into()),
            ("sessions".to_owned(), sessions.len().into()),
            ("requests".to_owned(), requests.into()),
            ("speed".to_owned(), fit.speed.into()),
            ("shrink".to_owned(), fit.shrink.into()),
            ("input-max".to_owned(), cap(fit.input_max)),
            ("output-max".to_owned(), cap(fit.output_max)),
            ("prompts-cut".to_owned(), counts.cut.into()),
            ("requests-left-out".to_owned(), counts.left_out.into()),
        ]);
        Self { sessions, block_words, seed, settings }
    }

    fn request(&self, session: usize, turn: usize) -> &Turn {
        &self.sessions[session].turns[turn]
    }
}

/// What did not fit.
#[derive(Default)]
struct Counts {
    cut: usize,
    left_out: usize,
}

fn fit_session(session: &Session, fit: Fit, block_words: u32, counts: &mut Counts) -> Session {
    let mut turns: Vec<Turn> = Vec::new();
    let mut history = 0u64;
    for turn in &session.turns {
        // Whole blocks shrink alike, so that what follows them stays in its place.
        let whole = (turn.input / BLOCK_TOKENS).saturating_mul(block_words);
        let rest = (turn.input % BLOCK_TOKENS).div_ceil(fit.shrink.max(1)).min(block_words);
        let mut input = whole.saturating_add(rest).max(1);
        let output = turn.output.div_ceil(fit.shrink.max(1)).min(fit.output_max.unwrap_or(u32::MAX)).max(1);
        if let Some(most) = fit.input_max
            && history + u64::from(input) > u64::from(most)
        {
            if !turns.is_empty() {
                break;
            }
            counts.cut += 1;
            input = most.max(1);
        }
        history += u64::from(input) + u64::from(output);
        let pause = turn.pause.div_f64(fit.speed);
        turns.push(Turn { pause, input, output, blocks: turn.blocks.clone() });
    }
    counts.left_out += session.turns.len() - turns.len();
    Session { start: session.start.div_f64(fit.speed), turns }
}

impl Workload for Replay {
    fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn turns(&self, session: usize) -> usize {
        self.sessions[session].turns.len()
    }

    fn start(&self, session: usize) -> Duration {
        self.sessions[session].start
    }

    fn pause(&self, session: usize, turn: usize) -> Duration {
        self.request(session, turn).pause
    }

    fn system(&self) -> Option<String> {
        None
    }

    fn user(&self, session: usize, turn: usize) -> String {
        let request = self.request(session, turn);
        let mut left = request.input;
        let mut parts = Vec::new();
        for block in &request.blocks {
            let words = left.min(self.block_words);
            left -= words;
            if words > 0 {
                parts.push(Words::new(self.seed, &[BLOCK, *block]).take(words as usize));
            }
        }
        if left > 0 {
            let name = [OWN, session as u64, turn as u64];
            parts.push(Words::new(self.seed, &name).take(left as usize));
        }
        parts.join(" ")
    }

    fn max_tokens(&self, session: usize, turn: usize) -> u32 {
        self.request(session, turn).output
    }

    fn keeps_history(&self) -> bool {
        true
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn settings(&self) -> BTreeMap<String, Value> {
        self.settings.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AS_RECORDED: Fit = Fit { speed: 1.0, shrink: 1, input_max: None, output_max: None };

    fn turn(pause_ms: u64, input: u32, output: u32, blocks: &[u64]) -> Turn {
        Turn { pause: Duration::from_millis(pause_ms), input, output, blocks: blocks.to_vec() }
    }

    fn trace() -> Trace {
        let session = |ms, turns| Session { start: Duration::from_millis(ms), turns };
        Trace {
            sessions: vec![
                session(0, vec![turn(0, 1030, 100, &[0, 1, 2])]),
                session(
                    2000,
                    vec![turn(0, 1536, 10, &[0, 1, 3]), turn(500, 40, 9, &[4]), turn(0, 2000, 9, &[])],
                ),
                session(3000, vec![turn(0, 7, 9, &[])]),
            ],
        }
    }

    fn words(replay: &Replay, session: usize, turn: usize) -> Vec<String> {
        replay.user(session, turn).split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn equal_blocks_are_equal_text_and_other_blocks_are_not() {
        let replay = Replay::new("t", &trace(), AS_RECORDED, 1);
        let (first, second) = (words(&replay, 0, 0), words(&replay, 1, 0));
        assert_eq!((first.len(), second.len()), (1030, 1536));
        assert_eq!(first[..1024], second[..1024], "blocks 0 and 1");
        assert_ne!(first[1024..], second[1024..1030], "blocks 2 and 3");
        assert_ne!(first[..512], first[512..1024], "blocks 0 and 1");
        assert_ne!(words(&replay, 2, 0), words(&replay, 1, 2)[..7], "no blocks, nothing shared");
        let other = Replay::new("t", &trace(), AS_RECORDED, 2);
        assert_ne!(words(&other, 0, 0), first, "another seed");
    }

    #[test]
    fn shrinking_keeps_what_is_shared() {
        let replay = Replay::new("t", &trace(), Fit { shrink: 16, ..AS_RECORDED }, 1);
        let (first, second) = (words(&replay, 0, 0), words(&replay, 1, 0));
        assert_eq!((first.len(), second.len()), (65, 96));
        assert_eq!(first[..64], second[..64]);
        assert_eq!((replay.max_tokens(0, 0), replay.max_tokens(1, 0)), (7, 1));
    }

    /// The times at which a server that takes a second for each answer gets the requests of each session.
    fn times(replay: &Replay) -> Vec<Vec<f64>> {
        let session = |session| {
            let mut due = replay.start(session);
            let turns = 0..replay.turns(session);
            let time = |turn| {
                due += if turn > 0 {
                    Duration::from_secs(1) + replay.pause(session, turn)
                } else {
                    Duration::ZERO
                };
                due.as_secs_f64()
            };
            turns.map(time).collect()
        };
        (0..replay.sessions()).map(session).collect()
    }

    #[test]
    fn requests_start_at_their_times_whatever_the_others_do_and_speed_divides_all_waiting() {
        let replay = Replay::new("t", &trace(), AS_RECORDED, 1);
        assert_eq!(times(&replay), [vec![0.0], vec![2.0, 3.5, 4.5], vec![3.0]]);
        let fast = Replay::new("t", &trace(), Fit { speed: 4.0, ..AS_RECORDED }, 1);
        assert_eq!(times(&fast), [vec![0.0], vec![0.5, 1.625, 2.625], vec![0.75]]);
    }

    #[test]
    fn a_prompt_beyond_the_cap_is_cut_and_a_session_ends_before_it() {
        let fit = Fit { input_max: Some(1600), output_max: Some(20), ..AS_RECORDED };
        let replay = Replay::new("t", &trace(), fit, 1);
        assert_eq!(replay.turns(1), 2, "1536 + 10 + 40 fit, 2000 more do not");
        assert_eq!(replay.max_tokens(0, 0), 20);
        let settings = replay.settings();
        assert_eq!((&settings["prompts-cut"], &settings["requests-left-out"]), (&0.into(), &1.into()));
        assert_eq!((&settings["requests"], replay.planned()), (&4.into(), 4));
        let short = Replay::new("t", &trace(), Fit { input_max: Some(600), ..AS_RECORDED }, 1);
        assert_eq!(words(&short, 0, 0).len(), 600);
        assert_eq!(words(&short, 0, 0), words(&short, 1, 0), "cut at its end, so the shared start stays");
        assert_eq!(short.settings()["prompts-cut"], 2);
    }
}
