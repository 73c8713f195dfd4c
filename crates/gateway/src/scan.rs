//! Reads a request's body once, without building it: where the members stand that a gateway must know, and whether the
//! whole is JSON.
//!
//! The body goes on byte for byte, so what is read here must be what the upstream will read: names are compared as they
//! are after unescaping, and a member that counts may stand only once. All of the grammar is checked (RFC 8259), strings
//! are not decoded, and invalid UTF-8 or half a surrogate inside a string is the upstream's to judge. A change to a body
//! is a list of [`Edits`]; every byte outside of them stays what and where it was.

use bytes::Bytes;
use protocol::{Error, ErrorKind};
use std::borrow::Cow;
use std::ops::Range;

/// Containers inside one another, the body's own object included; serde_json's limit, and so that of Hearth's parsers.
const DEPTH_MAX: u32 = 127;

/// Members of a request or an answer that a gateway reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `model`.
    Model,
    /// `stream`.
    Stream,
    /// `stream_options`.
    StreamOptions,
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
    /// `max_output_tokens`.
    MaxOutputTokens,
    /// `n`.
    N,
    /// `best_of`.
    BestOf,
    /// `prompt`.
    Prompt,
    /// `user`.
    User,
    /// `prompt_cache_key`.
    PromptCacheKey,
    /// `metadata`.
    Metadata,
    /// `service_tier`.
    ServiceTier,
    /// `store`.
    Store,
    /// `generationConfig`, of Gemini.
    GenerationConfig,
    /// `inferenceConfig`, of Bedrock's Converse.
    InferenceConfig,
    /// `usage`, of an answer.
    Usage,
    /// `usageMetadata`, of an answer of Gemini.
    UsageMetadata,
    /// `error`, of an answer.
    Error,
    /// `type`, of an answer.
    Type,
    /// `object`, of an answer.
    Object,
}

/// Every field with its name; the order is that of [`Field`].
const FIELDS: [(&str, Field); 21] = [
    ("model", Field::Model),
    ("stream", Field::Stream),
    ("stream_options", Field::StreamOptions),
    ("max_tokens", Field::MaxTokens),
    ("max_completion_tokens", Field::MaxCompletionTokens),
    ("max_output_tokens", Field::MaxOutputTokens),
    ("n", Field::N),
    ("best_of", Field::BestOf),
    ("prompt", Field::Prompt),
    ("user", Field::User),
    ("prompt_cache_key", Field::PromptCacheKey),
    ("metadata", Field::Metadata),
    ("service_tier", Field::ServiceTier),
    ("store", Field::Store),
    ("generationConfig", Field::GenerationConfig),
    ("inferenceConfig", Field::InferenceConfig),
    ("usage", Field::Usage),
    ("usageMetadata", Field::UsageMetadata),
    ("error", Field::Error),
    ("type", Field::Type),
    ("object", Field::Object),
];

impl Field {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        FIELDS[self as usize].0
    }

    /// The field of a name as it stands between its quotes.
    fn named(raw: &[u8]) -> Option<Self> {
        let find =
            |name: &[u8]| FIELDS.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, field)| *field);
        if memchr::memchr(b'\\', raw).is_none() {
            return find(raw);
        }
        // Escapes make a name up to six times longer.
        let longest = 6 * FIELDS.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        if raw.len() > longest {
            return None;
        }
        let quoted = [b"\"", raw, b"\""].concat();
        find(serde_json::from_slice::<String>(&quoted).ok()?.as_bytes())
    }
}

/// Why a body is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// It is no JSON.
    #[error("the body is not valid JSON: {expected} is expected at byte {at}{}", not(*.found))]
    Syntax {
        /// What should stand there.
        expected: &'static str,
        /// Where, from 0.
        at: usize,
        /// What stands there; nothing at the end.
        found: Option<u8>,
    },
    /// Its containers nest too deeply.
    #[error("the body nests more than {DEPTH_MAX} levels at byte {at}")]
    TooDeep {
        /// Where, from 0.
        at: usize,
    },
    /// A member that counts stands there twice.
    #[error("{} is given twice, which readers understand differently", .0.name())]
    Twice(Field),
    /// A member has the wrong type.
    #[error("{} must be {expected}", .field.name())]
    Type {
        /// Which.
        field: Field,
        /// What it must be.
        expected: &'static str,
    },
}

fn not(byte: Option<u8>) -> String {
    match byte {
        None => ", where the body ends".to_owned(),
        Some(byte) => format!(", not {:?}", char::from(byte)),
    }
}

impl From<ScanError> for Error {
    fn from(error: ScanError) -> Self {
        let message = error.to_string();
        match error {
            ScanError::Syntax { .. } | ScanError::TooDeep { .. } => Self::new(ErrorKind::Malformed, message),
            ScanError::Twice(field) | ScanError::Type { field, .. } => Self::invalid(field.name(), message),
        }
    }
}

/// Where things stand in a body that is one JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The values' bytes, by [`Field`].
    values: [Option<(usize, usize)>; FIELDS.len()],
    /// Where the names of members begin, by [`Field`], with their quotes.
    names: [usize; FIELDS.len()],
    /// Just after the opening brace.
    inside: usize,
    empty: bool,
}

/// Reads a body.
///
/// # Errors
/// When it is not one JSON object, or a member that counts is there twice.
pub fn scan(body: &[u8]) -> Result<Scan, ScanError> {
    let mut reader = Reader { bytes: body, at: 0 };
    reader.space();
    reader.expect(b'{', "an object")?;
    let mut scan =
        Scan { values: [None; FIELDS.len()], names: [0; FIELDS.len()], inside: reader.at, empty: false };
    reader.space();
    if reader.take(b'}') {
        scan.empty = true;
    } else {
        loop {
            let name = reader.key()?;
            reader.space();
            let start = reader.at;
            reader.value()?;
            if let Some(field) = Field::named(&body[name.clone()]) {
                scan.names[field as usize] = name.start - 1;
                if scan.values[field as usize].replace((start, reader.at)).is_some() {
                    return Err(ScanError::Twice(field));
                }
            }
            reader.space();
            if reader.take(b'}') {
                break;
            }
            reader.expect(b',', "a comma or }")?;
            reader.space();
        }
    }
    reader.space();
    match reader.peek() {
        None => Ok(scan),
        Some(_) => Err(reader.wrong("the end")),
    }
}

impl Scan {
    /// Where a member's value stands.
    #[must_use]
    pub fn span(&self, field: Field) -> Option<Range<usize>> {
        self.values[field as usize].map(|(start, end)| start..end)
    }

    /// A member's value as it stands there; nothing where it is `null`.
    #[must_use]
    pub fn raw<'a>(&self, body: &'a [u8], field: Field) -> Option<&'a [u8]> {
        self.span(field).map(|span| &body[span]).filter(|value| *value != b"null")
    }

    /// A string.
    ///
    /// # Errors
    /// When the member is something else.
    pub fn string<'a>(&self, body: &'a [u8], field: Field) -> Result<Option<Cow<'a, str>>, ScanError> {
        /// Borrows where nothing is escaped, which plain `Cow` never does.
        #[derive(serde::Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
        let read = |value| serde_json::from_slice::<Text<'a>>(value).map(|text| text.0);
        let wrong = |_| ScanError::Type { field, expected: "a string" };
        self.raw(body, field).map(read).transpose().map_err(wrong)
    }

    /// A truth value; false where it is absent or `null`.
    ///
    /// # Errors
    /// When the member is something else.
    pub fn flag(&self, body: &[u8], field: Field) -> Result<bool, ScanError> {
        match self.raw(body, field) {
            None | Some(b"false") => Ok(false),
            Some(b"true") => Ok(true),
            Some(_) => Err(ScanError::Type { field, expected: "true or false" }),
        }
    }

    /// A count.
    ///
    /// # Errors
    /// When the member is something else.
    pub fn count(&self, body: &[u8], field: Field) -> Result<Option<u64>, ScanError> {
        let wrong = |_| ScanError::Type { field, expected: "a whole number, not negative" };
        self.raw(body, field).map(serde_json::from_slice).transpose().map_err(wrong)
    }
}

/// Changes to a body.
#[derive(Clone, Debug, Default)]
pub struct Edits(Vec<(Range<usize>, Bytes)>);

impl Edits {
    /// No change.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Puts a member's value to this JSON, whether it is there or not.
    pub fn set(&mut self, scan: &Scan, field: Field, json: &str) {
        let edit = match scan.span(field) {
            Some(span) => (span, Bytes::copy_from_slice(json.as_bytes())),
            None => {
                let comma = if scan.empty { "" } else { "," };
                (scan.inside..scan.inside, format!("\"{}\":{json}{comma}", field.name()).into())
            }
        };
        self.0.push(edit);
    }

    /// Puts another member in the place of one, where it is there.
    pub fn replace(&mut self, scan: &Scan, field: Field, name: &str, json: &str) {
        if let Some((_, end)) = scan.values[field as usize] {
            let member = Bytes::from(format!("\"{name}\":{json}"));
            self.0.push((scan.names[field as usize]..end, member));
        }
    }

    /// The body with these changes, as pieces of the old one with the new between them.
    #[must_use]
    pub fn apply(mut self, body: &Bytes) -> Pieces {
        self.0.sort_by_key(|(span, _)| span.start);
        let mut pieces = Vec::with_capacity(2 * self.0.len() + 1);
        let mut done = 0;
        for (span, new) in self.0 {
            pieces.push(body.slice(done..span.start));
            pieces.push(new);
            done = span.end;
        }
        pieces.push(body.slice(done..));
        pieces.retain(|piece| !piece.is_empty());
        Pieces(pieces)
    }
}

/// A body in pieces, which are never joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces(pub Vec<Bytes>);

impl Pieces {
    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Pieces {
    fn from(body: Bytes) -> Self {
        Self(if body.is_empty() { Vec::new() } else { vec![body] })
    }
}

/// Goes over JSON and checks its grammar.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn wrong(&self, expected: &'static str) -> ScanError {
        ScanError::Syntax { expected, at: self.at, found: self.peek() }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), ScanError> {
        if self.take(byte) { Ok(()) } else { Err(self.wrong(what)) }
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// A name with its colon; gives where the name stands, without quotes.
    fn key(&mut self) -> Result<Range<usize>, ScanError> {
        self.expect(b'"', "a member's name in quotes")?;
        let start = self.at;
        self.string()?;
        let name = start..self.at - 1;
        self.space();
        self.expect(b':', "a colon")?;
        Ok(name)
    }

    /// One value of a member of the body, with all that is in it.
    fn value(&mut self) -> Result<(), ScanError> {
        // Bit n tells whether the container at depth n is an object. The body's own is not counted here.
        let mut objects = 0u128;
        let mut depth = 0;
        loop {
            self.space();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    self.string()?;
                }
                Some(open @ (b'{' | b'[')) => {
                    if depth + 2 > DEPTH_MAX {
                        return Err(ScanError::TooDeep { at: self.at });
                    }
                    self.at += 1;
                    self.space();
                    let object = open == b'{';
                    if !self.take(if object { b'}' } else { b']' }) {
                        objects = objects & !(1 << depth) | u128::from(object) << depth;
                        depth += 1;
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                _ => return Err(self.wrong("a value")),
            }
            // A value has ended, and with it perhaps what it stands in.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                self.space();
                let object = objects >> (depth - 1) & 1 == 1;
                if self.take(b',') {
                    if object {
                        self.space();
                        self.key()?;
                    }
                    break;
                }
                if object {
                    self.expect(b'}', "a comma or }")?;
                } else {
                    self.expect(b']', "a comma or ]")?;
                }
                depth -= 1;
            }
        }
    }

    fn literal(&mut self, literal: &'static [u8]) -> Result<(), ScanError> {
        if self.bytes[self.at..].starts_with(literal) {
            self.at += literal.len();
            return Ok(());
        }
        Err(self.wrong("a value"))
    }

    fn digits(&mut self) -> Result<(), ScanError> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.wrong("a digit"));
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), ScanError> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        Ok(())
    }

    /// The rest of a string, its closing quote included.
    fn string(&mut self) -> Result<(), ScanError> {
        loop {
            self.at = plain(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape()?;
                }
                Some(_) => return Err(self.wrong("an escape instead of a control character")),
                None => return Err(self.wrong("the end of a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), ScanError> {
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.wrong("a hexadecimal digit"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.wrong("an escape")),
        }
        Ok(())
    }
}

/// Where from `at` the first quote, backslash or control character stands, else the end. Found in eight bytes at a time,
/// once 32 together, which compilers make vectors of, have one.
fn plain(bytes: &[u8], mut at: usize) -> usize {
    const TOGETHER: usize = 32;
    let is_special = |byte: u8| u8::from(byte == b'"') | u8::from(byte == b'\\') | u8::from(byte < 0x20);
    while let Some(chunk) = bytes[at..].first_chunk::<TOGETHER>() {
        if chunk.iter().fold(0, |found, byte| found | is_special(*byte)) != 0 {
            break;
        }
        at += TOGETHER;
    }
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = ONES << 7;
    // The lowest high bit that these leave set belongs to the first byte that is below `n`, or zero; ones above it may
    // be wrong.
    let below = |word: u64, n: u64| word.wrapping_sub(ONES * n) & !word & HIGHS;
    while let Some(chunk) = bytes[at..].first_chunk() {
        let word = u64::from_le_bytes(*chunk);
        let special = below(word ^ (ONES * u64::from(b'"')), 1)
            | below(word ^ (ONES * u64::from(b'\\')), 1)
            | below(word, 0x20);
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    at + bytes[at..].iter().position(special).unwrap_or(bytes.len() - at)
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
