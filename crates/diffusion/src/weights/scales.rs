//! The scales of 8-bit floating-point weights, which are stored beside them as single-number tensors.
//!
//! ComfyUI (`comfy/ops.py`, `comfy/quant_ops.py` and `convert_old_quants` in `comfy/utils.py`) and Black Forest Labs
//! (`FLUX.2-klein-4b-fp8`) write such files: a layer's weight is the product of both. Other tensors beside it say how
//! its inputs may be rounded, and which format it has.

use super::float_formats::{self, SUPPORTED, single_number};
use super::{TensorEntry, Weights};
use crate::{Error, Result};

/// Name suffixes of scales. ComfyUI has changed its mind.
const SCALE_SUFFIXES: [&str; 2] = [".scale_weight", ".weight_scale"];

/// Name suffixes of scales in formats that scale blocks.
pub(crate) const BLOCK_SCALE_SUFFIXES: [&str; 3] = [".weight_scale_inv", ".weight_scale_2", ".weight_scalar"];

/// Name suffixes of tensors that aren't needed.
const IGNORED_SUFFIXES: [&str; 3] = [".scale_input", ".input_scale", ".comfy_quant"];

/// A tensor with this name, or suffix, marks a file with scales.
const MARKER: &str = "scaled_fp8";

impl Weights {
    /// Applies the scales stored beside the tensors.
    ///
    /// # Errors
    /// If a scale isn't a single number, a weight has two scales, or its format isn't supported.
    pub(super) fn scaled(mut self) -> Result<Self> {
        let mut names: Vec<_> = self.entries.keys().cloned().collect();
        // Sorted by name, so that the same tensor is named each time a file is rejected.
        names.sort_unstable();
        for name in names {
            let of = |ends: &[&str]| {
                let layer = ends.iter().find_map(|end| name.strip_suffix(end))?;
                Some(format!("{layer}.weight")).filter(|weight| self.entries.contains_key(weight))
            };
            if of(&BLOCK_SCALE_SUFFIXES).is_some() {
                return Err(self.unusable(&name, "belongs to a format that scales blocks"));
            }
            if let Some(weight) = of(&SCALE_SUFFIXES) {
                let scale = Some(self.scale(&name, &weight)?);
                if let Some(entry) = self.entries.get_mut(&weight) {
                    entry.scale = scale;
                }
            } else if of(&IGNORED_SUFFIXES).is_none() && name.strip_suffix(MARKER).is_none_or(|rest| !is_level(rest)) {
                continue;
            }
            self.entries.remove(&name);
        }
        Ok(self)
    }

    fn scale(&self, name: &str, weight: &str) -> Result<f32> {
        let [scale, weight_entry]: [&TensorEntry; 2] = [name, weight].map(|name| &self.entries[name]);
        if float_formats::byte_size(weight_entry.dtype).is_none() {
            return Err(self.unusable(weight, &format!("has the type {:?}; {SUPPORTED}", weight_entry.dtype)));
        }
        if weight_entry.scale.is_some() {
            return Err(self.unusable(name, "is a second scale of its weight"));
        }
        let number = single_number(self.bytes(scale), scale.dtype).map(|number| number as f32);
        let number = number.ok_or_else(|| {
            let is_single = scale.shape.iter().product::<usize>() == 1;
            let what = match is_single {
                true => format!("has the type {:?}; {SUPPORTED}", scale.dtype),
                false => format!("has the shape {:?}, so it scales blocks", scale.shape),
            };
            self.unusable(name, &what)
        })?;
        if number.is_finite() { Ok(number) } else { Err(self.unusable(name, "is not finite")) }
    }

    fn unusable(&self, name: &str, what: &str) -> Error {
        let remedy = "use the file in F16 or BF16, or in FP8 with one scale for each layer";
        Error::Unusable(format!("{}: the tensor {name:?} {what}: {remedy}", self.path))
    }
}

/// Whether what precedes the marker is empty or ends a level of the name.
fn is_level(name: &str) -> bool {
    name.is_empty() || name.ends_with('.')
}
