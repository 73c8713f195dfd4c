//! How likely a guess is right, learned from what came true.
//!
//! The longer a match, the likelier what followed it follows again; how much likelier depends on the text, so it is
//! learned for each sequence, by length of the match. Guesses are compared with what was chosen whether or not
//! they ran as rows, so a sequence whose drafts do not pay costs no rows to find out when they would again.

/// Upper ends of the classes of match lengths but the last.
const CLASSES: [usize; 6] = [2, 3, 5, 8, 14, 24];
/// What is believed before anything is known, from rewrites of source files.
const AT_FIRST: [f32; CLASSES.len() + 1] = [0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95];
/// Weight of the newest guess.
const NEWEST: f32 = 0.1;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    by_class: [f32; CLASSES.len() + 1],
}

impl Default for Trust {
    fn default() -> Self {
        Self { by_class: AT_FIRST }
    }
}

impl Trust {
    /// The same for all lengths.
    #[cfg(test)]
    pub fn same(p: f32) -> Self {
        Self { by_class: [p; CLASSES.len() + 1] }
    }

    /// The probability that the token after a match of this length follows again.
    pub fn of(&self, len: usize) -> f32 {
        self.by_class[class(len)]
    }

    /// Learns whether it did.
    pub fn learn(&mut self, len: usize, right: bool) {
        let p = &mut self.by_class[class(len)];
        *p += NEWEST * (f32::from(u8::from(right)) - *p);
    }
}

fn class(len: usize) -> usize {
    CLASSES.partition_point(|most| *most < len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_follows_what_came_true() {
        let mut trust = Trust::default();
        (0..40).for_each(|_| trust.learn(3, false));
        assert!(trust.of(3) < 0.02 && trust.of(4) == AT_FIRST[2], "by length");
        (0..40).for_each(|_| trust.learn(3, true));
        assert!(trust.of(3) > 0.97, "and back");
    }
}
