//! Stop strings: finds the first of several texts in a stream of pieces, wherever the borders of the pieces
//! fall, and holds back only what could still become one of them.
//!
//! Invariant: what [`StopMatcher::push`] has given out, plus [`StopMatcher::held`], is the whole text so far;
//! what is held is the longest end of the text that begins a stop text. The stop that is complete first ends
//! the text; of several that are complete at the same character, the one that begins first. So the outcome
//! depends on the text alone and not on how it was cut into pieces.

/// Looks for stop texts in a growing text.
#[derive(Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What a piece came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// No stop text so far; this much more may be shown.
    No(String),
    /// A stop text was completed, and nothing comes after it.
    Stop {
        /// What came before it and may be shown.
        before: String,
        /// The stop text.
        stop: String,
    },
}

impl StopMatcher {
    /// A matcher for these texts; empty ones are left out.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> Matched {
        if self.stops.is_empty() {
            return Matched::No(piece.to_owned());
        }
        self.held.push_str(piece);
        let places = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at + stop.len(), at, stop)));
        if let Some((_, at, stop)) = places.min() {
            let stop = stop.clone();
            self.held.truncate(at);
            return Matched::Stop { before: std::mem::take(&mut self.held), stop };
        }
        let keep = self.open_end();
        let shown = self.held.len() - keep;
        Matched::No(self.held.drain(..shown).collect())
    }

    /// Text that is held back.
    #[must_use]
    pub fn held(&self) -> &str {
        &self.held
    }

    /// The text has ended: gives what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of `held` that begins a stop text.
    fn open_end(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        (from..self.held.len())
            .filter(|at| self.held.is_char_boundary(*at))
            .find(|at| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..])))
            .map_or(0, |at| self.held.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut shown = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                Matched::No(text) => shown += &text,
                Matched::Stop { before, stop } => {
                    assert!(stops.contains(&stop));
                    return (shown + &before, true);
                }
            }
        }
        (shown + &matcher.finish(), false)
    }

    #[test]
    fn a_stop_over_three_pieces_is_found_and_dropped() {
        assert_eq!(run(&["STOP"], &["go S", "TO", "P on"]), ("go ".into(), true));
        assert_eq!(run(&["STOP"], &["go S", "TO", "X"]), ("go STOX".into(), false));
        assert_eq!(run(&["é!"], &["caf", "é", "!"]), ("caf".into(), true));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), true));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), false));
    }

    #[test]
    fn only_what_could_become_a_stop_is_held_back() {
        let mut matcher = StopMatcher::new(&["END".into(), "\n\n".into()]);
        assert_eq!(matcher.push("text E"), Matched::No("text ".into()));
        assert_eq!(matcher.push("x\n"), Matched::No("Ex".into()));
        assert_eq!(matcher.held(), "\n");
        assert_eq!(matcher.push("y"), Matched::No("\ny".into()));
        assert_eq!(matcher.held(), "");
    }

    proptest! {
        #[test]
        fn every_split_finds_what_a_search_of_the_whole_text_finds(
            text in "[abé]{0,20}", stops in prop::collection::vec("[abé]{1,4}", 0..4), cuts in any::<u32>(),
        ) {
            let mut pieces = Vec::new();
            let mut piece = String::new();
            for (i, c) in text.chars().enumerate() {
                piece.push(c);
                if cuts >> (i % 32) & 1 == 1 {
                    pieces.push(std::mem::take(&mut piece));
                }
            }
            pieces.push(piece);
            let ends = text.char_indices().map(|(i, c)| i + c.len_utf8());
            let expected = ends.into_iter().find_map(|end| {
                let seen = &text[..end];
                stops.iter().filter(|s| seen.ends_with(s.as_str())).map(|s| seen[..end - s.len()].to_owned()).min_by_key(String::len)
            });
            let expected = expected.map_or((text.clone(), false), |text| (text, true));
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), expected);
        }
    }
}
