//! "Did you mean": the word closest to a mistyped one.

/// The candidate most like `word`, when it is close enough to be a slip of the finger.
#[must_use]
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_nonsense_is_not() {
        let words = ["kv-memory", "listen", "threads"];
        assert_eq!(closest("kv_memory", words), Some("kv-memory"));
        assert_eq!(closest("thread", words), Some("threads"));
        assert_eq!(closest("zzz", words), None);
    }
}
