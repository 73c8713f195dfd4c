//! Takes tensors out of a checkpoint one at a time, checks their shapes and packs them for the device.
//!
//! Invariant: when [`Loader::finish`] is satisfied, every tensor of the checkpoint was either used or is
//! known to be inert; a tensor that nobody asked for would be a part of the model left out. At most one
//! tensor is in flight, and its pages of the file are given back once it is packed, so loading needs no
//! second copy of the weights. Matrices that were kept packed are not read from the checkpoint at all.

use crate::checkpoint::Checkpoint;
use crate::load::LoadError;
use crate::packed::{Backing, PackedFolder, PackedWrite, Shelf};
use device::{DType, Device, LoadFormat, MatrixSource, Product};
use half::{bf16, f16};
use std::collections::HashSet;

/// Named in an error, most tensors that are listed.
const LISTED: usize = 5;

/// How a matrix is used, which decides how far it may be quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Inside a layer.
    Layer,
    /// Embeddings and output, which 4 bits would hurt most: never below 8 at load.
    Vocabulary,
}

/// What a model is loaded from.
pub(crate) struct WeightSource<'a> {
    pub checkpoint: &'a Checkpoint,
    /// What float matrices become.
    pub format: LoadFormat,
    /// Where packed weights are kept, if they are.
    pub folder: Option<&'a PackedFolder>,
    /// Set to what is to be written there.
    pub write: &'a mut Option<PackedWrite>,
    /// Told the bytes done and their total.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

pub(crate) struct Loader<'a, D: Device> {
    checkpoint: &'a Checkpoint,
    device: &'a D,
    format: LoadFormat,
    shelf: Option<Shelf<D>>,
    write: &'a mut Option<PackedWrite>,
    used: HashSet<String>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<'a, D: Device> Loader<'a, D> {
    pub fn new<'s: 'a>(source: WeightSource<'s>, device: &'a D) -> Self {
        let WeightSource { checkpoint, format, folder, write, progress } = source;
        let mut total = 0;
        for name in checkpoint.tensor_names() {
            // A tensor that cannot be read matters only if it is asked for.
            total += checkpoint.tensor(name).map_or(0, |tensor| tensor.bytes.len() as u64);
        }
        progress(0, total);
        let shelf = folder.and_then(|folder| Shelf::open(folder, checkpoint, format));
        Self { checkpoint, device, format, shelf, write, used: HashSet::new(), done: 0, total, progress }
    }

    /// The first prefix under which a module has a weight.
    pub fn prefix(&self, prefixes: &[&'static str], module: &str) -> &'static str {
        let found = prefixes.iter().find(|prefix| self.checkpoint.has(&format!("{prefix}{module}.weight")));
        // With none, the error about the missing tensor shall show the usual name.
        found.or(prefixes.first()).copied().unwrap_or_default()
    }

    /// The device that tensors are packed for.
    pub fn device(&self) -> &D {
        self.device
    }

    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.has(name)
    }

    /// Rows of a matrix, before it is loaded: a table's size is what the checkpoint has.
    pub fn rows(&self, name: &str) -> Result<usize, LoadError> {
        Ok(self.checkpoint.tensor(name)?.shape.first().copied().unwrap_or(0))
    }

    /// `module.weight` as `[rows, cols]`.
    pub fn matrix(
        &mut self,
        module: &str,
        rows: usize,
        cols: usize,
        usage: Use,
    ) -> Result<D::Matrix, LoadError> {
        let name = format!("{module}.weight");
        let tensor = self.checkpoint.tensor(&name)?;
        check_shape(&name, &tensor.shape, &[rows, cols])?;
        let format = match (self.format, usage) {
            (LoadFormat::Int4, Use::Vocabulary) => LoadFormat::Int8,
            (format, _) => format,
        };
        let source = MatrixSource { name: &name, rows, cols, dtype: tensor.dtype, bytes: tensor.bytes };
        let packed = self.shelf.as_ref().and_then(|shelf| shelf.find(&name, format));
        // Bytes that do not fit are no reason to fail: they are packed anew.
        let kept = packed.and_then(|packed| self.device.unpack(&source, format, packed).ok());
        let fresh = kept.is_none();
        let matrix = match kept {
            Some(matrix) => matrix,
            None => self.device.matrix(&source, format)?,
        };
        if let Some(shelf) = &mut self.shelf {
            shelf.add(&name, format, &matrix, fresh);
        }
        if fresh {
            // The device has its own copy now.
            self.checkpoint.forget(&name);
        }
        self.took(name, tensor.bytes.len());
        Ok(matrix)
    }

    /// A whole name as a vector on the device, `offset` added to each element.
    pub fn vector(&mut self, name: &str, len: usize, offset: f32) -> Result<D::Vector, LoadError> {
        let mut data = self.host_vector(name, len)?;
        if offset != 0.0 {
            data.iter_mut().for_each(|x| *x += offset);
        }
        Ok(self.device.vector(&data))
    }

    /// `module.bias`, where the checkpoint has it or it is `required`.
    pub fn bias(&mut self, module: &str, len: usize, required: bool) -> Result<Option<D::Vector>, LoadError> {
        let name = format!("{module}.bias");
        if required || self.has(&name) { self.vector(&name, len, 0.0).map(Some) } else { Ok(None) }
    }

    /// A whole name as a vector on the host.
    pub fn host_vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.checkpoint.tensor(name)?;
        check_shape(name, &tensor.shape, &[len])?;
        let data = floats(tensor.dtype, tensor.bytes).ok_or_else(|| LoadError::Shape {
            tensor: name.to_owned(),
            expected: "F32, F16 or BF16 elements".to_owned(),
            found: tensor.dtype.name().to_owned(),
        })?;
        self.took(name.to_owned(), tensor.bytes.len());
        Ok(data)
    }

    /// Numbers that were worked out here, as a vector on the device.
    pub fn upload(&self, data: &[f32]) -> D::Vector {
        self.device.vector(data)
    }

    /// Marks a tensor as accounted for although its data is not needed.
    pub fn ignore(&mut self, name: &str) {
        if let Ok(tensor) = self.checkpoint.tensor(name) {
            self.took(name.to_owned(), tensor.bytes.len());
        }
    }

    /// Checks that nothing is left over and that the file did not change meanwhile. What comes back is to be
    /// checked after each use of the weights.
    pub fn finish(self, inert: &[&str]) -> Result<Backing, LoadError> {
        let known = |name: &str| inert.iter().any(|part| name.starts_with(part) || name.ends_with(part));
        let left: Vec<&str> = self
            .checkpoint
            .tensor_names()
            .filter(|name| !self.used.contains(*name) && !known(name))
            .collect();
        if !left.is_empty() {
            let more = if left.len() > LISTED { ", …" } else { "" };
            let names = format!("{}{more}", left[..left.len().min(LISTED)].join(", "));
            return Err(LoadError::UnusedTensors { count: left.len(), names });
        }
        self.checkpoint.verify()?;
        (self.progress)(self.total, self.total);
        let Some(shelf) = self.shelf else { return Ok(Backing::NONE) };
        let (backing, write) = shelf.finish();
        *self.write = write;
        Ok(backing)
    }

    fn took(&mut self, name: String, bytes: usize) {
        // A table that serves twice is counted once.
        if self.used.insert(name) {
            self.done += bytes as u64;
            (self.progress)(self.done, self.total);
        }
    }
}

/// A matrix inside a layer, with its optional bias.
pub(crate) struct Linear<D: Device> {
    weight: D::Matrix,
    bias: Option<D::Vector>,
}

impl<D: Device> Linear<D> {
    /// `module.weight` as `[rows, cols]`, and `module.bias` where it is there or `biased` requires it.
    pub fn load(
        loader: &mut Loader<'_, D>,
        module: &str,
        rows: usize,
        cols: usize,
        biased: bool,
    ) -> Result<Self, LoadError> {
        let weight = loader.matrix(module, rows, cols, Use::Layer)?;
        Ok(Self { weight, bias: loader.bias(module, rows, biased)? })
    }

    /// Bytes of the packed weight.
    pub fn bytes(&self, device: &D) -> u64 {
        device.matrix_bytes(&self.weight).0
    }

    /// Sets `out` to this of the product's input.
    pub fn product<'a>(&'a self, out: &'a mut D::Tensor) -> Product<'a, D> {
        Product { weight: &self.weight, bias: self.bias.as_ref(), out, accumulate: false }
    }
}

/// Dimensions of one are not told apart from their absence.
fn check_shape(name: &str, found: &[usize], expected: &[usize]) -> Result<(), LoadError> {
    let plain = |shape: &[usize]| shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
    if plain(found) == plain(expected) {
        return Ok(());
    }
    Err(LoadError::Shape {
        tensor: name.to_owned(),
        expected: format!("shape {expected:?}"),
        found: format!("{found:?}"),
    })
}

/// The elements of an unquantised tensor; `None` for other formats.
fn floats(dtype: DType, bytes: &[u8]) -> Option<Vec<f32>> {
    match dtype {
        DType::F32 => Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        DType::F16 => {
            Some(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect())
        }
        DType::Bf16 => {
            Some(bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_that_differs_is_refused_and_ones_do_not_matter() {
        assert!(check_shape("t", &[3, 4], &[3, 4]).is_ok());
        assert!(check_shape("t", &[1, 4], &[4]).is_ok());
        let error = check_shape("t", &[4, 3], &[3, 4]).unwrap_err().to_string();
        assert_eq!(error, "tensor t: expected shape [3, 4], found [4, 3]");
    }

    #[test]
    fn the_three_float_formats_read_alike() {
        let bytes16 = |bits: u16| bits.to_le_bytes();
        assert_eq!(floats(DType::F32, &1.5f32.to_le_bytes()), Some(vec![1.5]));
        assert_eq!(floats(DType::F16, &bytes16(f16::from_f32(1.5).to_bits())), Some(vec![1.5]));
        assert_eq!(floats(DType::Bf16, &bytes16(bf16::from_f32(1.5).to_bits())), Some(vec![1.5]));
        assert_eq!(floats(DType::Q8_0, &[0; 34]), None);
    }
}
