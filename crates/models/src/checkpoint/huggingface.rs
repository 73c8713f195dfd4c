//! A folder as Hugging Face lays models out: `config.json`, weights in safetensors (one file, or shards
//! with an index), and small files for tokenizer and generation.
//!
//! Names inside the folder's files never lead out of it: a shard's name is a plain file name. Links are
//! followed, because the hub's own cache is made of links into a neighbour folder. Does not read other
//! weight formats (`pytorch_model.bin`).

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use indexmap::IndexMap;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::content::Content;
use super::error::{Fault, Place, Quoted};
use super::safetensors::{Measure, SafeTensors};
use super::{CheckpointError, Tensor};
use crate::mapped::open_regular;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Largest file that is read as a tree of JSON, whose memory can be a hundred times its size.
const MAX_TREE: u64 = 1 << 20;
/// Largest side file that is read at all; a tokenizer.json of 250,000 tokens has some 35 MiB.
const MAX_SIDE_FILE: u64 = 256 << 20;

/// An open model folder.
#[derive(Debug)]
pub struct HuggingFace {
    folder: PathBuf,
    config: Value,
    files: Vec<SafeTensors>,
    /// Tensor name to index in `files`.
    tensors: IndexMap<Box<str>, usize>,
    chat_template: Option<String>,
}

impl HuggingFace {
    /// Opens a folder with `config.json` and weights.
    ///
    /// # Errors
    /// A needed file is missing, cannot be read or breaks its format; the index names a file outside the
    /// folder, or a tensor that its file does not hold.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let files = weights(folder)?;
        Self::assemble(folder, files)
    }

    /// Opens a folder whose weights all lie in one named file of it.
    ///
    /// # Errors
    /// As for [`HuggingFace::open`].
    pub fn open_file(weights: &Path) -> Result<Self, CheckpointError> {
        let folder = match weights.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let file = SafeTensors::open(weights)?;
        let tensors = file.names().map(|name| (name.into(), 0)).collect();
        Self::assemble(folder, (vec![file], tensors))
    }

    fn assemble(
        folder: &Path,
        (files, tensors): (Vec<SafeTensors>, IndexMap<Box<str>, usize>),
    ) -> Result<Self, CheckpointError> {
        let config = tree(folder, "config.json")?.ok_or_else(|| CheckpointError::NotACheckpoint {
            path: folder.to_owned(),
            reason: "there is no config.json".to_owned(),
        })?;
        let chat_template = chat_template(folder)?;
        Ok(Self { folder: folder.to_owned(), config, files, tensors, chat_template })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// `config.json`, always an object.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The bytes of a file of the folder, by its name from there (`tokenizer.json`,
    /// `1_Pooling/config.json`); `None` where there is no such file, it cannot be read, or the name leads
    /// out of the folder.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<Vec<u8>> {
        read(&self.folder, name, MAX_SIDE_FILE).ok().flatten()
    }

    /// `generation_config.json`, where there is one; always an object.
    pub(super) fn generation_config(&self) -> Result<Option<Value>, CheckpointError> {
        tree(&self.folder, super::generation::HF_FILE)
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// There is none, or it is no weight that can be read.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        match self.tensors.get(name) {
            Some(file) => self.files[*file].tensor(name),
            None => Err(CheckpointError::MissingTensor { path: self.folder.clone(), name: name.to_owned() }),
        }
    }

    /// Whether there is a tensor with this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The names of the tensors.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(|name| &**name)
    }

    /// The sizes of the tensors, also of those that are no weights.
    pub(super) fn measures(&self) -> impl Iterator<Item = Measure<'_>> {
        self.tensors.iter().filter_map(|(name, file)| self.files[*file].measure(name))
    }

    /// The weight files.
    pub(super) fn contents(&self) -> impl Iterator<Item = &Content> {
        self.files.iter().map(SafeTensors::content)
    }

    /// Gives the memory of a tensor that was read back to the system.
    pub(super) fn forget(&self, name: &str) {
        if let Some(file) = self.tensors.get(name) {
            self.files[*file].forget(name);
        }
    }

    /// Whether the weight files still are what they were when they were opened.
    ///
    /// # Errors
    /// One changed, or the system does not say.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.files.iter().try_for_each(SafeTensors::verify)
    }

    /// The chat template: `chat_template.jinja`, else the one in `tokenizer_config.json` (of a list, the
    /// one named `default`), else the one in `chat_template.json`.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// An error about a key of one of the folder's JSON files, for those who read meaning into it.
    #[must_use]
    pub fn bad_key(&self, file: &str, key: &str, reason: impl Into<String>) -> CheckpointError {
        Fault::new(Place::Key(key.to_owned()), reason).at(self.folder.join(file))
    }
}

// === Weights

type Weights = (Vec<SafeTensors>, IndexMap<Box<str>, usize>);

fn weights(folder: &Path) -> Result<Weights, CheckpointError> {
    let single = folder.join(SINGLE);
    if fs::symlink_metadata(&single).is_ok() {
        let file = SafeTensors::open(&single)?;
        let tensors = file.names().map(|name| (name.into(), 0)).collect();
        return Ok((vec![file], tensors));
    }
    let Some(index) = read_side_file(folder, INDEX)? else {
        let mut reason = format!("there is neither {SINGLE} nor {INDEX}");
        if fs::symlink_metadata(folder.join("pytorch_model.bin")).is_ok() {
            reason.push_str("; weights in pytorch_model.bin are not read, convert them to safetensors");
        }
        return Err(CheckpointError::NotACheckpoint { path: folder.to_owned(), reason });
    };
    shards(folder, &index)
}

/// Opens the files of an index and checks that each holds the tensors it is said to hold.
fn shards(folder: &Path, index: &[u8]) -> Result<Weights, CheckpointError> {
    let path = folder.join(INDEX);
    let index: Index = serde_json::from_slice(index).map_err(|e| Fault::header(e.to_string()).at(&path))?;
    let mut files: IndexMap<&str, SafeTensors> = IndexMap::new();
    let mut tensors = IndexMap::with_capacity(index.weight_map.0.len());
    for (name, file) in &index.weight_map.0 {
        if !is_plain_file_name(file) {
            let reason = format!("lies in {}, which is not a file name in the folder", Quoted(file));
            return Err(Fault::tensor(name, reason).at(&path));
        }
        let at = match files.get_index_of(&**file) {
            Some(at) => at,
            None => files.insert_full(file, SafeTensors::open(&folder.join(&**file))?).0,
        };
        if !files[at].has(name) {
            let reason = format!("is not in {}, where the index says it is", Quoted(file));
            return Err(Fault::tensor(name, reason).at(&path));
        }
        tensors.insert(name.clone(), at);
    }
    if tensors.is_empty() {
        return Err(Fault::key("weight_map", "names no tensors").at(&path));
    }
    Ok((files.into_values().collect(), tensors))
}

/// Whether a name from an index is a file of the folder itself, whatever the system's separators.
fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0', ':'])
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// Tensor names to file names, each tensor once.
struct WeightMap(IndexMap<Box<str>, Box<str>>);

impl<'de> serde::Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut files = IndexMap::new();
        while let Some((name, file)) = map.next_entry::<Box<str>, Box<str>>()? {
            if let (at, Some(_)) = files.insert_full(name, file) {
                let name = files.get_index(at).map_or("", |(name, _)| name);
                return Err(A::Error::custom(format_args!("tensor {} is there twice", Quoted(name))));
            }
        }
        Ok(WeightMap(files))
    }
}

// === Side files

/// A JSON file of the folder as a tree, which must be an object.
fn tree(folder: &Path, name: &str) -> Result<Option<Value>, CheckpointError> {
    let path = folder.join(name);
    let Some(bytes) =
        read(folder, name, MAX_TREE).map_err(|error| CheckpointError::Io { path: path.clone(), error })?
    else {
        return Ok(None);
    };
    match serde_json::from_slice(&bytes) {
        Ok(object @ Value::Object(_)) => Ok(Some(object)),
        Ok(_) => Err(Fault::header("is not a JSON object").at(path)),
        Err(e) => Err(Fault::header(e.to_string()).at(path)),
    }
}

fn read_side_file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
    read(folder, name, MAX_SIDE_FILE).map_err(|error| CheckpointError::Io { path: folder.join(name), error })
}

/// Reads a file of the folder that must not have more than `limit` bytes.
fn read(folder: &Path, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !inside {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "leads out of the folder"));
    }
    let file = match open_regular(&folder.join(name)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    // One byte more than allowed, so that a file that grows meanwhile is seen too.
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("has more than {limit} bytes")));
    }
    Ok(Some(bytes))
}

fn chat_template(folder: &Path) -> Result<Option<String>, CheckpointError> {
    const JINJA: &str = "chat_template.jinja";
    if let Some(bytes) = read_side_file(folder, JINJA)? {
        return match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Fault::header("is not UTF-8").at(folder.join(JINJA))),
        };
    }
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let Some(bytes) = read_side_file(folder, name)? else { continue };
        let fault = |e: serde_json::Error| Fault::header(e.to_string()).at(folder.join(name));
        let holder: TemplateHolder = serde_json::from_slice(&bytes).map_err(fault)?;
        if holder.chat_template.0.is_some() {
            return Ok(holder.chat_template.0);
        }
    }
    Ok(None)
}

#[derive(serde::Deserialize)]
struct TemplateHolder {
    #[serde(default)]
    chat_template: ChatTemplate,
}

/// A template, or a list of named ones of which only `default` is kept.
#[derive(Default)]
struct ChatTemplate(Option<String>);

impl<'de> serde::Deserialize<'de> for ChatTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ChatTemplateVisitor)
    }
}

struct ChatTemplateVisitor;

impl<'de> Visitor<'de> for ChatTemplateVisitor {
    type Value = ChatTemplate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a chat template or a list of {name, template}")
    }

    fn visit_str<E>(self, text: &str) -> Result<ChatTemplate, E> {
        Ok(ChatTemplate(Some(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<ChatTemplate, E> {
        Ok(ChatTemplate(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ChatTemplate, A::Error> {
        let mut default = None;
        while let Some(named) = list.next_element::<NamedTemplate>()? {
            if named.name == "default" {
                default = Some(named.template);
            }
        }
        Ok(ChatTemplate(default))
    }
}

#[derive(serde::Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}
