//! The public tokenizer: the way of a prompt through added tokens, normalizers, pre-tokenizers and model.
//!
//! Invariant: an id that [`Tokenizer::is_control`] knows comes out of [`Tokenizer::encode`] only from a
//! trusted piece that holds its whole text, or from [`Piece::Tokens`].

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::added::Matcher;
use crate::decoder::{Decoder, Progress};
use crate::model::{Model, Scratch};
use crate::pair::PairForm;
use crate::pretokenizer::{Place, VISIBLE_SPACE};
use crate::vocab::{Kind, Vocab};
use crate::{Detokenizer, Error, GgufVocab, normalizer, pretokenizer};

/// Part of a prompt. Text that adjoins is tokenised as one text, whoever it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text of the chat template: may hold control tokens.
    Trusted(&'a str),
    /// Text of a message: never becomes a control token, whatever it says.
    Untrusted(&'a str),
    /// Ids as they are. Closes the text on both sides.
    Tokens(&'a [u32]),
}

/// Whether decoding writes control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// Leave them out.
    Skip,
    /// Write their text.
    Show,
}

/// The prompt has more tokens than the limit. Encoding stopped there, so the exact count is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prompt has at least {at_least} tokens")]
pub struct TooLong {
    /// A lower bound of the prompt's tokens, above the limit.
    pub at_least: usize,
}

/// A tokenizer. Cheap to clone; all clones share one vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

/// What a file reader knows, and what follows from it.
pub(crate) struct Inner {
    pub(crate) parts: Parts,
    end_tokens: Vec<u32>,
    /// Most bytes of raw text that one token can stand for, where that is known.
    bytes_per_token: Option<usize>,
}

/// What a user-defined token is to the text around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddedStyle {
    /// A border: the text behind it begins anew.
    Border,
    /// Part of the text, as in SentencePiece: it neither begins nor ends one. At the beginning of a text it
    /// comes after the space that is put in front of texts, where that is a visible one.
    Inside { space_in_front: bool },
}

/// Texts of control tokens with which models end an answer.
const END_TEXTS: [&str; 12] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|eot|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<|return|>",
    "<|call|>",
];

/// What a file reader knows.
pub(crate) struct Parts {
    pub(crate) vocab: Vocab,
    pub(crate) model: Model,
    /// Found in the text as it is.
    pub(crate) added: Matcher,
    /// Found in the normalised text; holds no control token.
    pub(crate) added_normalized: Matcher,
    pub(crate) normalizers: Vec<normalizer::Step>,
    pub(crate) pretokenizers: Vec<pretokenizer::Step>,
    pub(crate) decoder: Decoder,
    pub(crate) added_style: AddedStyle,
    /// What `add_special` puts around a prompt.
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
    /// How two texts become one input, where the file says so.
    pub(crate) pair: Option<PairForm>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// End tokens that the file names beside `eos`.
    pub(crate) ends: Vec<u32>,
}

impl Parts {
    pub(crate) fn assemble(self) -> Result<Tokenizer, Error> {
        let size = self.vocab.len();
        let named = [("the bos token", self.bos), ("the eos token", self.eos)];
        let paired = self.pair.iter().flat_map(PairForm::ids);
        let listed = self.before.iter().chain(&self.after).chain(&self.ends).chain(paired);
        let ids = named.into_iter().filter_map(|(what, id)| Some((what, id?)));
        for (what, id) in ids.chain(listed.map(|id| ("a special token", *id))) {
            if id as usize >= size {
                return Err(Error::IdOutOfRange { what: what.into(), id, size });
            }
        }
        let mut end_tokens: Vec<u32> = self.eos.into_iter().chain(self.ends.iter().copied()).collect();
        let controls = || self.added.entries().iter().filter(|entry| entry.control);
        // Where `<|return|>` ends an answer, `<|end|>` only ends one of its messages.
        let has_return = controls().any(|entry| entry.text == "<|return|>");
        end_tokens.extend(
            controls()
                .filter(|entry| END_TEXTS.contains(&entry.text.as_str()))
                .filter(|entry| !(has_return && entry.text == "<|end|>"))
                .map(|entry| entry.id),
        );
        end_tokens.sort_unstable();
        end_tokens.dedup();
        let bytes_per_token = self.bytes_per_token();
        Ok(Tokenizer { inner: Arc::new(Inner { parts: self, end_tokens, bytes_per_token }) })
    }

    fn bytes_per_token(&self) -> Option<usize> {
        let added = self.added.entries().iter().chain(self.added_normalized.entries());
        if !self.model.covers_all()
            || self.pretokenizers.iter().any(pretokenizer::Step::drops_text)
            || added.clone().any(|entry| entry.lstrip || entry.rstrip)
        {
            return None;
        }
        let longest = added.map(|entry| entry.text.len()).max().unwrap_or(0).max(self.vocab.longest());
        self.normalizers.iter().try_fold(longest, |bytes, step| Some(bytes * step.shrinks_at_most()?))
    }
}

impl Inner {
    pub(crate) fn is_hidden(&self, id: u32) -> bool {
        self.parts.vocab.kind(id).is_hidden()
    }

    /// Whether the text behind the token begins anew.
    fn is_border(&self, id: u32) -> bool {
        match self.parts.vocab.kind(id) {
            Kind::Control | Kind::Unknown => true,
            Kind::UserDefined | Kind::Added => self.parts.added_style == AddedStyle::Border,
            Kind::Normal | Kind::Unused | Kind::Byte => false,
        }
    }
}

impl Tokenizer {
    /// Makes a tokenizer from the metadata of a GGUF file.
    pub fn from_gguf(vocab: GgufVocab<'_>) -> Result<Self, Error> {
        crate::gguf::read(vocab)?.assemble()
    }

    /// Makes a tokenizer from a `tokenizer.json`, and `tokenizer_config.json` where there is one (it alone
    /// names the end token).
    pub fn from_json(tokenizer_json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self, Error> {
        crate::json::read(tokenizer_json, tokenizer_config)?.assemble()
    }

    /// Ids are below this. Some may be holes.
    #[must_use]
    pub fn vocab_size(&self) -> u32 {
        u32::try_from(self.inner.parts.vocab.len()).expect("the size of a vocabulary is bounded")
    }

    /// The token with this text: an added token (control tokens are such), else an ordinary token, given as
    /// plain text or as the file writes it.
    #[must_use]
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let added =
            self.inner.parts.added.entries().iter().chain(self.inner.parts.added_normalized.entries());
        added
            .filter(|entry| entry.text == text)
            .map(|entry| entry.id)
            .next()
            .or_else(|| self.inner.parts.vocab.get(text.as_bytes()))
            .or_else(|| {
                let mut bytes = Vec::new();
                crate::bytelevel::decode(text.as_bytes(), &mut bytes);
                self.inner.parts.vocab.get(&bytes)
            })
    }

    /// The bytes that the token stands for inside a text; for control tokens their text. Empty for holes and
    /// for ids beyond the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.inner.parts.decoder.bytes.get(id)
    }

    /// Whether the token means something that no text may say.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.inner.parts.vocab.kind(id) == Kind::Control
    }

    /// The texts that `encode` takes as control tokens in trusted pieces.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.inner.parts.added.entries().iter().filter(|entry| entry.control).map(|entry| entry.text.as_str())
    }

    /// The token that begins a prompt.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.inner.parts.bos
    }

    /// The token that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.inner.parts.eos
    }

    /// Whether `add_special` begins a prompt with `bos`.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.inner.parts.bos.is_some() && self.inner.parts.before.first() == self.inner.parts.bos.as_ref()
    }

    /// All tokens that end an answer, ascending: `eos` and those that end a turn.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.inner.end_tokens
    }

    /// Tokens of a prompt, nothing added around it. Stops with [`TooLong`] once it is certain that there are
    /// more than `limit`, which for a huge text is before most of it is read.
    pub fn encode(&self, pieces: &[Piece<'_>], limit: Option<usize>) -> Result<Vec<u32>, TooLong> {
        let limit = limit.unwrap_or(usize::MAX);
        self.refuse_by_length(pieces, limit)?;
        let bytes = pieces.iter().map(|piece| piece.text().map_or(0, str::len)).sum();
        let mut encoding = Encoding {
            inner: &self.inner,
            limit,
            place: Place { first: true, fresh: true },
            scratch: Scratch::for_text(bytes),
            ids: Vec::with_capacity((bytes / 4).min(1 << 16)),
        };
        let mut text = Joined::default();
        let mut each = |piece: &Piece<'_>| {
            match piece {
                Piece::Trusted(part) => text.push(part, true),
                Piece::Untrusted(part) => text.push(part, false),
                Piece::Tokens(ids) => {
                    encoding.joined(&std::mem::take(&mut text))?;
                    encoding.tokens(ids)?;
                }
            }
            ControlFlow::Continue(())
        };
        let flow = pieces.iter().try_for_each(&mut each).is_continue();
        let flow = if flow { encoding.joined(&text) } else { ControlFlow::Break(()) };
        match flow {
            ControlFlow::Continue(()) => Ok(encoding.ids),
            ControlFlow::Break(()) => Err(TooLong { at_least: encoding.ids.len() }),
        }
    }

    /// Tokens of a text without control tokens, nothing added around it.
    #[must_use]
    pub fn encode_ordinary(&self, text: &str) -> Vec<u32> {
        self.encode(&[Piece::Untrusted(text)], None).expect("no limit was given")
    }

    /// Puts around a prompt what the model expects of a raw one: `bos`, or `[CLS]` and `[SEP]`.
    #[must_use]
    pub fn add_special(&self, ids: Vec<u32>) -> Vec<u32> {
        let Parts { before, after, .. } = &self.inner.parts;
        if before.is_empty() && after.is_empty() {
            return ids;
        }
        [before, ids.as_slice(), after].concat()
    }

    pub(crate) fn pair_form(&self) -> Option<&PairForm> {
        self.inner.parts.pair.as_ref()
    }

    /// The text of a row of tokens. Bytes that are no characters become U+FFFD; ids beyond the vocabulary
    /// add nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32], specials: Specials) -> String {
        let (mut progress, mut bytes) = (Progress::default(), Vec::new());
        for id in ids {
            if specials == Specials::Show || !self.inner.is_hidden(*id) {
                self.inner.parts.decoder.write(*id, &mut progress, &mut bytes);
            }
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// A decoder that takes the tokens of one text one by one.
    #[must_use]
    pub fn detokenizer(&self) -> Detokenizer {
        self.detokenizer_showing(Arc::default())
    }

    /// The same, which writes the text of these control tokens: the marks that a model sets in its answer.
    #[must_use]
    pub fn detokenizer_showing(&self, shown: Arc<[u32]>) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.inner), shown)
    }

    /// Refuses by length alone what cannot fit.
    fn refuse_by_length(&self, pieces: &[Piece<'_>], limit: usize) -> Result<(), TooLong> {
        let Some(per_token) = self.inner.bytes_per_token else { return Ok(()) };
        let (mut at_least, mut bytes) = (0usize, 0usize);
        for piece in pieces {
            match piece {
                Piece::Trusted(text) | Piece::Untrusted(text) => bytes += text.len(),
                Piece::Tokens(ids) => {
                    at_least += bytes.div_ceil(per_token) + ids.len();
                    bytes = 0;
                }
            }
        }
        at_least += bytes.div_ceil(per_token);
        if at_least > limit { Err(TooLong { at_least }) } else { Ok(()) }
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.inner.parts.vocab.len()).finish_non_exhaustive()
    }
}

impl<'a> Piece<'a> {
    fn text(&self) -> Option<&'a str> {
        match self {
            Self::Trusted(text) | Self::Untrusted(text) => Some(text),
            Self::Tokens(_) => None,
        }
    }
}

/// Texts that adjoin, and where in them the trusted ones are. Adjoining trusted texts are one range.
#[derive(Default)]
struct Joined {
    text: String,
    trusted: Vec<Range<usize>>,
}

impl Joined {
    fn push(&mut self, part: &str, trusted: bool) {
        let start = self.text.len();
        self.text.push_str(part);
        let end = self.text.len();
        if !trusted || part.is_empty() {
            return;
        }
        match self.trusted.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.trusted.push(start..end),
        }
    }
}

/// One call of `encode`.
struct Encoding<'a> {
    inner: &'a Inner,
    limit: usize,
    place: Place,
    scratch: Scratch,
    ids: Vec<u32>,
}

impl Encoding<'_> {
    fn full(&self) -> ControlFlow<()> {
        if self.ids.len() > self.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn tokens(&mut self, ids: &[u32]) -> ControlFlow<()> {
        self.ids.extend_from_slice(ids);
        if let Some(last) = ids.last() {
            self.place = Place { first: false, fresh: self.inner.is_border(*last) };
        }
        self.full()
    }

    fn joined(&mut self, joined: &Joined) -> ControlFlow<()> {
        let text = joined.text.as_str();
        let mut at = 0;
        while let Some(found) = self.inner.parts.added.find(text, at, &joined.trusted) {
            self.normalize(&text[at..found.range.start])?;
            self.special(found.id)?;
            at = found.range.end;
        }
        self.normalize(&text[at..])
    }

    fn special(&mut self, id: u32) -> ControlFlow<()> {
        let border = self.inner.is_border(id);
        if !border
            && self.place.fresh
            && self.inner.parts.added_style == (AddedStyle::Inside { space_in_front: true })
        {
            self.words(VISIBLE_SPACE.encode_utf8(&mut [0; 4]))?;
        }
        self.ids.push(id);
        self.place = Place { first: false, fresh: border };
        self.full()
    }

    fn normalize(&mut self, text: &str) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        let text = normalizer::run(&self.inner.parts.normalizers, text, self.place);
        if self.inner.parts.added_normalized.is_empty() {
            return self.words(&text);
        }
        let mut at = 0;
        while let Some(found) = self.inner.parts.added_normalized.find(&text, at, &[]) {
            self.words(&text[at..found.range.start])?;
            self.special(found.id)?;
            at = found.range.end;
        }
        self.words(&text[at..])
    }

    fn words(&mut self, text: &str) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        let Self { inner, limit, place, scratch, ids } = self;
        pretokenizer::run(&inner.parts.pretokenizers, text, *place, &mut |word| {
            inner.parts.model.encode(&inner.parts.vocab, word, *limit, scratch, ids)
        })?;
        *place = Place { first: false, fresh: false };
        ControlFlow::Continue(())
    }
}
