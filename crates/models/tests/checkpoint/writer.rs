//! Writes small checkpoint files, right or wrong in every way that a test asks for.

use std::path::Path;

/// A GGUF file in the making. The counts and offsets are right unless a test sets them.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    pub version: u32,
    pub alignment: usize,
    pub entries: Vec<Vec<u8>>,
    pub tensors: Vec<GgufTensor>,
    /// In place of the number of entries.
    pub claimed_entries: Option<u64>,
    /// In place of the number of tensors.
    pub claimed_tensors: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct GgufTensor {
    pub name: String,
    /// Innermost first, as in the file.
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub data: Vec<u8>,
    /// In place of where the data is.
    pub claimed_offset: Option<u64>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            entries: Vec::new(),
            tensors: Vec::new(),
            claimed_entries: None,
            claimed_tensors: None,
        }
    }
}

impl GgufWriter {
    /// Adds an entry of which the value's bytes are given.
    pub fn raw(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.entries.push([&string(key.as_bytes()), &type_id.to_le_bytes()[..], value].concat());
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    pub fn str(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &string(value.as_bytes()))
    }

    pub fn strs(self, key: &str, values: &[&str]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| string(value.as_bytes())).collect();
        self.raw(key, 9, &array(8, values.len() as u64, &elements))
    }

    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(key, 9, &array(6, values.len() as u64, &elements))
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(key, 9, &array(5, values.len() as u64, &elements))
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, data: &[u8]) -> Self {
        self.tensors.push(GgufTensor {
            name: name.to_owned(),
            dims: dims.to_vec(),
            type_id,
            data: data.to_vec(),
            claimed_offset: None,
        });
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.claimed_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        file.extend(self.claimed_entries.unwrap_or(self.entries.len() as u64).to_le_bytes());
        for entry in &self.entries {
            file.extend(entry);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            file.extend(string(tensor.name.as_bytes()));
            file.extend((tensor.dims.len() as u32).to_le_bytes());
            file.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            file.extend(tensor.type_id.to_le_bytes());
            file.extend(tensor.claimed_offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        if !data.is_empty() {
            file.resize(file.len().next_multiple_of(self.alignment), 0);
            file.extend(data);
        }
        file
    }
}

pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

pub fn array(element: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&element.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

/// A small file with every kind of content.
pub fn small_gguf() -> GgufWriter {
    let f32s = |n: usize| (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect::<Vec<u8>>();
    GgufWriter::default()
        .str("general.architecture", "llama")
        .str("general.license", "apache-2.0")
        .u32("llama.context_length", 2048)
        .f32("llama.rope.freq_base", 10_000.0)
        .f32("general.sampling.temp", 0.7)
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "smollm")
        .strs("tokenizer.ggml.tokens", &["a", "b", "ab", "</s>"])
        .f32s("tokenizer.ggml.scores", &[0.0, -1.0, -2.0, 0.0])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 3])
        .strs("tokenizer.ggml.merges", &["a b"])
        .u32("tokenizer.ggml.eos_token_id", 3)
        .bool("tokenizer.ggml.add_bos_token", false)
        .str("tokenizer.chat_template", "{{ messages }}")
        .tensor("token_embd.weight", &[32, 4], 8, &[7; 4 * 34])
        .tensor("output_norm.weight", &[32], 0, &f32s(32))
        .tensor("blk.0.attn_q.weight", &[32, 2], 2, &[1; 2 * 18])
}

/// A safetensors file with this header and so many bytes of data.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..data).map(|i| i as u8));
    file
}

/// A safetensors file with these float tensors.
pub fn float_tensors(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let mut at = 0;
    let lines: Vec<String> = tensors
        .iter()
        .map(|(name, shape)| {
            let from = at;
            at += 4 * shape.iter().product::<usize>();
            format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{from},{at}]}}"#)
        })
        .collect();
    safetensors(&format!("{{{}}}", lines.join(",")), at)
}

/// A folder with a configuration and these further files.
pub fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "config.json", br#"{"model_type":"llama","max_position_embeddings":2048}"#);
    for (name, bytes) in files {
        write(folder.path(), name, bytes);
    }
    folder
}

pub fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join(name), bytes).unwrap();
}
