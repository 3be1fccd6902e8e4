//! The names and sizes of a file's tensors, without their numbers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::formats::{MAX_HEADER_BYTES, check_format, unreadable};
use crate::weights::Weights;
use crate::{Error, Result};

/// The most layers, levels or blocks that are counted. The supported architectures have fewer.
const MAX_COUNT: usize = 64;

#[derive(Debug)]
pub(super) struct Tensors {
    /// The file, for messages.
    pub path: String,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl Tensors {
    pub(super) fn of(weights: &Weights) -> Self {
        Self { path: weights.path().to_owned(), shapes: weights.shapes().into_iter().collect() }
    }

    #[cfg(test)]
    pub(super) fn named(names: &[&str]) -> Self {
        let shapes = names.iter().map(|name| ((*name).to_owned(), vec![0])).collect();
        Self { path: "a file".into(), shapes }
    }

    /// Reads only a file's header, and checks the file's length.
    pub(super) fn read(path: &Path) -> Result<Self> {
        check_format(path)?;
        let name = path.display().to_string();
        let unreadable = |error| unreadable(path, &error);
        let damaged = || Error::Files(format!("{name} is damaged or not a safetensors file: download it again"));
        let mut file = File::open(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| damaged())?;
        let length =
            Some(u64::from_le_bytes(length)).filter(|length| *length <= MAX_HEADER_BYTES).ok_or_else(damaged)?;
        let mut header = Vec::new();
        file.take(length).read_to_end(&mut header).map_err(unreadable)?;
        let header: Map<String, Value> = serde_json::from_slice(&header).map_err(|_| damaged())?;
        let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
        let tensors = tensors.map(|(name, tensor)| Some((name, numbers(&tensor, "shape")?, end(&tensor)?)));
        let tensors = tensors.collect::<Option<Vec<_>>>().ok_or_else(damaged)?;
        let whole = tensors.iter().map(|(.., end)| *end).max().unwrap_or(0).saturating_add(8 + length);
        if found != whole {
            return Err(Error::Files(format!(
                "{name} is damaged: it has {found} bytes instead of {whole}: download it again"
            )));
        }
        Ok(Self { path: name, shapes: tensors.into_iter().map(|(name, shape, _)| (name, shape)).collect() })
    }

    pub(super) fn with(mut self, other: Self) -> Self {
        self.shapes.extend(other.shapes);
        self
    }

    pub(super) fn has(&self, prefix: &str) -> bool {
        self.shapes.range(prefix.to_owned()..).next().is_some_and(|(name, _)| name.starts_with(prefix))
    }

    pub(super) fn mentions(&self, parts: &[&str]) -> bool {
        self.shapes.keys().any(|name| parts.iter().any(|part| name.contains(part)))
    }

    /// What precedes `suffix` in the first name that ends with it.
    pub(super) fn before(&self, suffix: &str) -> Option<&str> {
        self.shapes.keys().find_map(|name| name.strip_suffix(suffix))
    }

    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shapes.get(name).map(Vec::as_slice)
    }

    /// One of a tensor's sizes.
    ///
    /// # Errors
    /// If it is missing, or has fewer sizes.
    pub(super) fn size(&self, name: &str, axis: usize) -> Result<usize> {
        let size = self.shape(name).and_then(|shape| shape.get(axis).copied());
        size.ok_or_else(|| {
            let path = &self.path;
            let why = "the file is of another architecture, or not complete";
            Error::Model(format!("{path}: the tensor {name:?} is missing or has too few sizes; {why}"))
        })
    }

    /// How many names continue `prefix` with consecutive numbers, from 0.
    pub(super) fn count(&self, prefix: &str) -> usize {
        (0..MAX_COUNT).take_while(|number| self.has(&format!("{prefix}{number}."))).count()
    }

    /// The last size of the first tensor with this prefix and suffix.
    pub(super) fn last_size(&self, prefix: &str, suffix: &str) -> Option<usize> {
        let mut inside = self.shapes.range(prefix.to_owned()..).take_while(|(name, _)| name.starts_with(prefix));
        inside.find(|(name, _)| name.ends_with(suffix)).and_then(|(_, shape)| shape.last().copied())
    }
}

/// A list of integers in a tensor's description.
fn numbers(tensor: &Value, key: &str) -> Option<Vec<usize>> {
    let numbers = tensor.get(key)?.as_array()?.iter();
    numbers.map(|number| number.as_u64().and_then(|number| usize::try_from(number).ok())).collect()
}

/// Where a tensor's numbers end.
fn end(tensor: &Value) -> Option<u64> {
    numbers(tensor, "data_offsets")?.get(1).map(|end| *end as u64)
}
