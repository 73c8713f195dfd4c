//! What the sessions of a load run say: made of seeded common English words, so that every server sees the same bytes.
//!
//! A text depends on the seed, the session and the turn only, never on answers or time. The history of a session
//! holds the answers that came; that is the caller's work.

use super::workload::Workload;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Short words that most vocabularies hold as one token.
const WORDS: &str = "time year people way day man thing woman life child world school state family student group \
country problem hand part place case week company system program question work government number night point home \
water room mother area money story fact month lot right study book eye job word business issue side kind head house \
service friend father power hour game line end member law car city community name";

/// Who the sessions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// One long system prompt with tools for all sessions; each turn adds about 120 tokens to a session's history
    Agents,
    /// A short system prompt; each turn adds about 40 tokens to a session's history
    Chat,
    /// Each turn asks about a new text of about 2,000 tokens, without history
    LongPrompt,
}

impl Kind {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Chat => "chat",
            Self::LongPrompt => "long-prompt",
        }
    }
}

/// A scenario with its seed.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Who the sessions are.
    pub kind: Kind,
    /// Makes other words of the same lengths.
    pub seed: u64,
}

impl Scenario {
    /// The system message, the same for all sessions.
    #[must_use]
    pub fn system(&self) -> Option<String> {
        match self.kind {
            Kind::Agents => {
                let mut text = "You are an agent that edits code.\n".to_owned();
                for tool in 0..12 {
                    let tool = json!({
                        "name": format!("tool_{tool}"),
                        "description": format!("does thing number {tool}"),
                        "parameters": {"path": "string", "text": "string"},
                    });
                    let _ = writeln!(text, "{tool}");
                }
                Some(text + &Words::new(self.seed, &[]).take(1150))
            }
            Kind::Chat => Some("You are a helpful assistant. Answer in short sentences.".to_owned()),
            Kind::LongPrompt => None,
        }
    }

    /// What a session says in a turn; both count from 0.
    #[must_use]
    pub fn user(&self, session: usize, turn: usize) -> String {
        let mut words = Words::new(self.seed, &[session as u64 + 1, turn as u64 + 1]);
        match self.kind {
            Kind::Agents => format!("Turn {turn} of session {session}: {}", words.take(110)),
            Kind::Chat => format!("{}?", words.take(35)),
            Kind::LongPrompt => {
                format!("Text {turn} of session {session}:\n{}\nWhat is this text about?", words.take(2000))
            }
        }
    }

    /// Whether a turn comes with the turns before it.
    #[must_use]
    pub fn keeps_history(&self) -> bool {
        self.kind != Kind::LongPrompt
    }
}

/// Sessions of a scenario that start together, each with one request at a time (a closed loop).
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// What sessions say.
    pub scenario: Scenario,
    /// Sessions at a time; at least 1.
    pub sessions: usize,
    /// Turns of each; at least 1.
    pub turns: usize,
    /// Tokens of each answer.
    pub max_tokens: u32,
    /// Pause of a session between its turns.
    pub think_time: Duration,
}

impl Workload for Crowd {
    fn sessions(&self) -> usize {
        self.sessions
    }

    fn turns(&self, _session: usize) -> usize {
        self.turns
    }

    fn start(&self, _session: usize) -> Duration {
        Duration::ZERO
    }

    fn pause(&self, _session: usize, _turn: usize) -> Duration {
        self.think_time
    }

    fn system(&self) -> Option<String> {
        self.scenario.system()
    }

    fn user(&self, session: usize, turn: usize) -> String {
        self.scenario.user(session, turn)
    }

    fn max_tokens(&self, _session: usize, _turn: usize) -> u32 {
        self.max_tokens
    }

    fn keeps_history(&self) -> bool {
        self.scenario.keeps_history()
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn settings(&self) -> BTreeMap<String, Value> {
        BTreeMap::from([
            ("scenario".to_owned(), self.scenario.kind.name().into()),
            ("seed".to_owned(), self.scenario.seed.into()),
            ("sessions".to_owned(), self.sessions.into()),
            ("turns".to_owned(), self.turns.into()),
            ("max-tokens".to_owned(), self.max_tokens.into()),
            ("think-time".to_owned(), self.think_time.as_secs_f64().into()),
        ])
    }
}

/// A counter-based stream of random numbers (the SplitMix64 finaliser).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// A stream for this seed and these parts of its name.
    pub fn new(seed: u64, name: &[u64]) -> Self {
        name.iter().fold(Self(seed), |stream, part| Self(stream.clone().next() ^ part.wrapping_mul(STEP)))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The golden ratio in 64 bits.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of words; equal names under one seed are equal words.
pub(super) struct Words {
    words: Vec<&'static str>,
    random: Random,
}

impl Words {
    pub fn new(seed: u64, name: &[u64]) -> Self {
        Self { words: WORDS.split(' ').collect(), random: Random::new(seed, name) }
    }

    /// So many words more, with spaces between them.
    pub fn take(&mut self, count: usize) -> String {
        let word = |_| self.words[self.random.below(self.words.len() as u64) as usize];
        (0..count).map(word).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const KINDS: [Kind; 3] = [Kind::Agents, Kind::Chat, Kind::LongPrompt];

    #[test]
    fn a_seed_gives_the_same_texts_each_time_and_another_seed_gives_others() {
        for kind in KINDS {
            let [a, again, b] = [7, 7, 8].map(|seed| Scenario { kind, seed });
            assert_eq!(a.system(), again.system());
            assert_eq!(a.user(3, 2), again.user(3, 2));
            assert_ne!(a.user(3, 2), b.user(3, 2));
        }
        let system = |seed| Scenario { kind: Kind::Agents, seed }.system();
        assert_ne!(system(7), system(8));
    }

    #[test]
    fn texts_stay_the_same_from_version_to_version() {
        let words = Words::new(1, &[1, 1]).take(6);
        assert_eq!(words, "night power game family child woman");
    }

    #[test]
    fn each_session_and_turn_says_something_of_its_own() {
        for kind in KINDS {
            let scenario = Scenario { kind, seed: 1 };
            let texts: HashSet<String> = (0..64)
                .map(|i| scenario.user(i / 8, i % 8))
                .map(|text| text.replace(char::is_numeric, ""))
                .collect();
            assert_eq!(texts.len(), 64);
        }
    }

    #[test]
    fn agents_share_a_system_prompt_with_tools() {
        let system = Scenario { kind: Kind::Agents, seed: 1 }.system().expect("one");
        assert_eq!(system.lines().filter(|line| line.starts_with('{')).count(), 12);
        assert_eq!(system.lines().last().expect("words").split(' ').count(), 1150);
    }
}
