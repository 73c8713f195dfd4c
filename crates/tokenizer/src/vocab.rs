//! The vocabulary: token texts in one arena, their kinds, and a hash table from text to id.
//!
//! Invariant: the table holds only tokens that ordinary text may become ([`Kind::is_ordinary`]), so no
//! model can produce a control token by looking up text. What it does not do: matching of added tokens
//! (`added`), and decoding (`decoder`).

use std::hash::Hasher;

use crate::Error;

/// Most tokens of a vocabulary; the largest real ones have about 260,000.
pub(crate) const TOKENS_MAX: usize = 1 << 22;
/// Probes of an insertion that we accept. At half load a longer run means hashes chosen to collide.
const PROBES_MAX: usize = 512;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ordinary text.
    Normal,
    /// Stands for what the vocabulary cannot express.
    Unknown,
    /// Means something to the model that no text may say.
    Control,
    /// Text that is always one token, wherever it occurs.
    UserDefined,
    /// The same, and the model does not know it: only a search of the text for it finds it.
    Added,
    /// A hole.
    Unused,
    /// One byte of a character that has no token.
    Byte,
}

impl Kind {
    /// Whether a model may produce the token from ordinary text by looking the text up.
    pub(crate) fn is_ordinary(self) -> bool {
        matches!(self, Self::Normal | Self::UserDefined)
    }

    /// Whether decoding leaves the token out unless asked to show it.
    pub(crate) fn is_hidden(self) -> bool {
        matches!(self, Self::Control | Self::Unknown | Self::Unused)
    }
}

/// Byte strings by id, in one allocation.
#[derive(Default)]
pub(crate) struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    pub(crate) fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(count) }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds a string that `write` appends to the buffer.
    pub(crate) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn push(&mut self, string: &[u8]) {
        self.push_with(|bytes| bytes.extend_from_slice(string));
    }

    /// The string of `id`; empty beyond the end.
    #[inline]
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let Some(&end) = self.ends.get(at) else { return &[] };
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..end]
    }

    /// The same for text that is known to be whole characters; anything else reads as empty.
    pub(crate) fn text(&self, id: u32) -> &str {
        std::str::from_utf8(self.get(id)).unwrap_or_default()
    }
}

/// Open-addressing table from byte string to id over a [`Strings`].
struct Table {
    /// Hash tag and id + 1; id 0 marks a free slot.
    slots: Vec<(u32, u32)>,
}

/// Hash of a byte string; also used by the word cache.
#[inline]
pub(crate) fn hash(key: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(key);
    hasher.finish()
}

impl Table {
    fn with_capacity(count: usize) -> Self {
        Self { slots: vec![(0, 0); (count * 2).next_power_of_two().max(16)] }
    }

    /// Enters `id`; a later entry replaces an earlier one with the same text.
    fn insert(&mut self, strings: &Strings, id: u32) -> Result<(), Error> {
        let key = strings.get(id);
        let hash = hash(key);
        let (tag, mask) = ((hash >> 32) as u32, self.slots.len() - 1);
        for probe in 0..PROBES_MAX.min(self.slots.len()) {
            let slot = &mut self.slots[(hash as usize).wrapping_add(probe) & mask];
            if slot.1 == 0 || (slot.0 == tag && strings.get(slot.1 - 1) == key) {
                *slot = (tag, id + 1);
                return Ok(());
            }
        }
        Err(Error::Contradiction { what: format!("token {id} (its hash collides with hundreds of others)") })
    }

    #[inline]
    fn get(&self, strings: &Strings, key: &[u8]) -> Option<u32> {
        let hash = hash(key);
        let (tag, mask) = ((hash >> 32) as u32, self.slots.len() - 1);
        let mut at = hash as usize & mask;
        // Ends: the table is at most half full.
        loop {
            let (found, id) = self.slots[at];
            if id == 0 {
                return None;
            }
            if found == tag && strings.get(id - 1) == key {
                return Some(id - 1);
            }
            at = (at + 1) & mask;
        }
    }
}

/// Texts and kinds of all tokens, and the way from ordinary text to id.
pub(crate) struct Vocab {
    strings: Strings,
    kinds: Vec<Kind>,
    table: Table,
    /// Bytes of the longest ordinary token.
    longest: usize,
}

impl Vocab {
    /// Makes the table. `strings` holds the texts as the model sees them (plain bytes for byte-level BPE).
    pub(crate) fn new(strings: Strings, kinds: Vec<Kind>) -> Result<Self, Error> {
        assert_eq!(strings.len(), kinds.len(), "one kind per token");
        check_size(strings.len())?;
        let mut table = Table::with_capacity(strings.len());
        let mut longest = 0;
        for (id, kind) in (0u32..).zip(&kinds) {
            let len = strings.get(id).len();
            if kind.is_ordinary() && len > 0 {
                table.insert(&strings, id)?;
                longest = longest.max(len);
            }
        }
        Ok(Self { strings, kinds, table, longest })
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The ordinary token with exactly this text.
    #[inline]
    pub(crate) fn get(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest { None } else { self.table.get(&self.strings, text) }
    }

    /// The token's text as the model sees it.
    #[inline]
    pub(crate) fn text(&self, id: u32) -> &[u8] {
        self.strings.get(id)
    }

    /// The kind of a token; ids beyond the vocabulary are unused.
    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Unused)
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Texts of the tokens that ordinary text cannot become by a look-up.
    pub(crate) fn others(&self) -> impl Iterator<Item = &[u8]> {
        (0u32..).zip(&self.kinds).filter(|(_, kind)| !kind.is_ordinary()).map(|(id, _)| self.text(id))
    }

    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The ids of the byte tokens `<0x00>` to `<0xFF>`, where all are there.
    pub(crate) fn byte_tokens(&self) -> Option<Box<[u32; 256]>> {
        let mut ids = Box::new([u32::MAX; 256]);
        for (id, kind) in (0u32..).zip(&self.kinds) {
            if *kind == Kind::Byte
                && let Some(byte) = byte_of(self.strings.get(id))
            {
                ids[usize::from(byte)] = id;
            }
        }
        ids.iter().all(|id| *id != u32::MAX).then_some(ids)
    }
}

/// The byte that a text of the form `<0x0A>` stands for.
pub(crate) fn byte_of(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high @ (b'0'..=b'9' | b'A'..=b'F'), low @ (b'0'..=b'9' | b'A'..=b'F'), b'>'] =
        text
    else {
        return None;
    };
    let digit = |c: u8| if c <= b'9' { c - b'0' } else { c - b'A' + 10 };
    Some(digit(*high) * 16 + digit(*low))
}

/// Refuses vocabularies that no model has, before memory is asked for.
pub(crate) fn check_size(tokens: usize) -> Result<(), Error> {
    if tokens == 0 {
        return Err(Error::Missing { what: "tokens".into() });
    }
    if tokens > TOKENS_MAX {
        return Err(Error::TooLarge { what: "the vocabulary".into(), found: tokens, limit: TOKENS_MAX });
    }
    Ok(())
}

/// Gemma's marks of a turn, which have no form of their own.
const TURN_TEXTS: [&str; 2] = ["<start_of_turn>", "<end_of_turn>"];

/// Whether a text has the form that all families keep for control tokens (`<|…|>`, `<｜…｜>`) or marks a
/// turn, whatever the file says of it. Files often mark some of these as ordinary added tokens.
pub(crate) fn looks_like_control(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    if TURN_TEXTS.contains(&text) {
        return true;
    }
    let inner = text
        .strip_prefix("<|")
        .and_then(|rest| rest.strip_suffix("|>"))
        .or_else(|| text.strip_prefix("<｜").and_then(|rest| rest.strip_suffix("｜>")));
    inner.is_some_and(|inner| {
        !inner.is_empty()
            && !inner.contains(|c: char| c.is_whitespace() || matches!(c, '<' | '>' | '|' | '｜'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocab(texts: &[(&str, Kind)]) -> Vocab {
        let mut strings = Strings::default();
        texts.iter().for_each(|(text, _)| strings.push(text.as_bytes()));
        Vocab::new(strings, texts.iter().map(|(_, kind)| *kind).collect()).expect("a small vocabulary")
    }

    #[test]
    fn a_control_token_is_not_found_by_its_text() {
        let vocab = vocab(&[("a", Kind::Normal), ("<|end|>", Kind::Control), ("<b>", Kind::UserDefined)]);
        assert_eq!(vocab.get(b"a"), Some(0));
        assert_eq!(vocab.get(b"<|end|>"), None);
        assert_eq!(vocab.get(b"<b>"), Some(2));
    }

    #[test]
    fn the_last_of_two_equal_texts_wins() {
        assert_eq!(vocab(&[("a", Kind::Normal), ("a", Kind::Normal)]).get(b"a"), Some(1));
    }

    #[test]
    fn byte_tokens_are_read_in_upper_case_hex_only() {
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0xFF>"), Some(255));
        assert_eq!(byte_of(b"<0xff>"), None);
        assert_eq!(byte_of(b"<0x0A> "), None);
    }

    #[test]
    fn control_looking_texts_are_known_by_their_bars_or_as_marks_of_a_turn() {
        for text in ["<|im_end|>", "<|endoftext|>", "<｜begin▁of▁sentence｜>", "<start_of_turn>"] {
            assert!(looks_like_control(text.as_bytes()), "{text}");
        }
        for text in ["<|>", "<||>", "<b>", "<| a |>", "|>", "<|a|><|b|>"] {
            assert!(!looks_like_control(text.as_bytes()), "{text}");
        }
    }
}
