//! Two texts as one input, `[CLS] query [SEP] document [SEP]`, for models that read them together.

use crate::Tokenizer;

/// Tokens, each with its type: which of two texts it belongs to, in most models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypedIds {
    /// The tokens.
    pub ids: Vec<u32>,
    /// The type of each.
    pub types: Vec<u32>,
}

impl TypedIds {
    pub(crate) fn of(ids: Vec<u32>, kind: u32) -> Self {
        Self { types: vec![kind; ids.len()], ids }
    }

    pub(crate) fn extend(&mut self, more: &Self) {
        self.ids.extend_from_slice(&more.ids);
        self.types.extend_from_slice(&more.types);
    }

    fn push(&mut self, ids: &[u32], kind: u32) {
        self.ids.extend_from_slice(ids);
        self.types.resize(self.ids.len(), kind);
    }
}

/// What a file says about pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairForm {
    pub before: TypedIds,
    pub first_type: u32,
    pub between: TypedIds,
    pub second_type: u32,
    pub after: TypedIds,
}

impl PairForm {
    /// All special tokens of the form.
    pub fn ids(&self) -> impl Iterator<Item = &u32> {
        [&self.before, &self.between, &self.after].into_iter().flat_map(|part| &part.ids)
    }

    fn around(&self, first: &[u32], second: &[u32]) -> TypedIds {
        let mut pair = TypedIds::default();
        pair.extend(&self.before);
        pair.push(first, self.first_type);
        pair.extend(&self.between);
        pair.push(second, self.second_type);
        pair.extend(&self.after);
        pair
    }
}

impl Tokenizer {
    /// Two texts, each as tokens, with what the model expects around and between them. `None` where the file does
    /// not say; nothing is cut.
    #[must_use]
    pub fn pair(&self, first: &[u32], second: &[u32]) -> Option<TypedIds> {
        Some(self.pair_form()?.around(first, second))
    }
}
