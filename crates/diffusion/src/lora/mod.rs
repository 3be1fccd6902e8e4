//! LoRA files: for some layers of a model two thin matrices each, whose product is added to the weights.
//!
//! They come from strangers, as models do: names, shapes, types and numbers are checked before anything is merged. A
//! tensor that fits no layer of the model is refused, because a LoRA that is applied in part gives pictures that nobody
//! expects.

mod names;
mod peft;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::thread::available_parallelism;

use safetensors::Dtype;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use self::names::{Names, Place, Role};
use crate::formats::check_format;
use crate::graph::Uses;
use crate::models::clip::TRANSPOSED_PROJECTION;
use crate::weights::fractions::floats;
use crate::weights::{TensorEntry, Weights};
use crate::{Error, Result};

/// The largest weight of a LoRA, in both directions. Beyond it no picture is left.
pub const MAX_WEIGHT: f64 = 10.0;

/// Most LoRA files of a model.
pub const MAX_LORAS: usize = 16;

/// The largest rank. Most files have 4 to 128.
const MAX_RANK: usize = 2_048;

/// Products from which on a merge is worth several threads.
const MANY_PRODUCTS: usize = 1 << 22;

/// A note with the scales of a file that the PEFT library has written.
const SCALES_NOTE: &str = "lora_adapter_metadata";

/// A LoRA file, and how strongly it changes a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// The safetensors file.
    pub path: PathBuf,
    /// 1 changes the model as the file says, 0 not at all, and less than 0 the other way. From -10 to 10.
    pub weight: f64,
}

const NOT_FINITE: &str = "holds numbers that are not finite: the file is damaged, or its training failed";

/// Numbers in a mapped file.
#[derive(Debug, Clone)]
struct Numbers {
    bytes: &'static [u8],
    dtype: Dtype,
}

impl Numbers {
    /// Bytes of a number.
    fn size(&self) -> usize {
        if self.dtype == Dtype::F32 { 4 } else { 2 }
    }

    fn floats(&self, range: Range<usize>) -> Vec<f32> {
        let size = self.size();
        floats(&self.bytes[range.start * size..range.end * size], self.dtype)
    }

    /// This matrix of `columns` columns, transposed. Like the mapped files it lasts as long as the
    /// process, and it is small.
    fn turned(&self, columns: usize) -> Self {
        let (size, mut bytes) = (self.size(), Vec::with_capacity(self.bytes.len()));
        for column in 0..columns {
            for row in self.bytes.chunks_exact(columns * size) {
                bytes.extend_from_slice(&row[column * size..(column + 1) * size]);
            }
        }
        Self { bytes: bytes.leak(), dtype: self.dtype }
    }

    /// The same with the second half first. It lasts as [`Numbers::turned`] does.
    fn with_halves_swapped(&self) -> Self {
        let mut bytes = self.bytes.to_vec();
        bytes.rotate_left(self.bytes.len() / 2);
        Self { bytes: bytes.leak(), dtype: self.dtype }
    }
}

/// What is added to a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    scale: f32,
    rank: usize,
    /// The first row of `up` that belongs to the tensor.
    first: usize,
    /// A row for each output.
    up: Numbers,
    /// A column for each number of a row of the tensor.
    down: Numbers,
}

impl Change {
    /// Adds the change to some rows of the tensor.
    pub(crate) fn add_to(&self, rows: Range<usize>, numbers: &mut [f32]) {
        let (rank, count) = (self.rank, rows.len().max(1));
        let width = numbers.len() / count;
        if width == 0 {
            return;
        }
        let down = self.down.floats(0..rank * width);
        let up = self.up.floats((self.first + rows.start) * rank..(self.first + rows.end) * rank);
        let add = |numbers: &mut [f32], up: &[f32]| {
            for (row, up) in numbers.chunks_exact_mut(width).zip(up.chunks_exact(rank)) {
                for (factor, down) in up.iter().map(|up| up * self.scale).zip(down.chunks_exact(width)) {
                    row.iter_mut().zip(down).for_each(|(number, down)| *number += factor * down);
                }
            }
        };
        let threads =
            if numbers.len() * rank < MANY_PRODUCTS { 1 } else { available_parallelism().map_or(1, usize::from) };
        let each = count.div_ceil(threads);
        let parts = numbers.chunks_mut(each * width).zip(up.chunks(each * rank));
        if threads == 1 {
            parts.for_each(|(numbers, up)| add(numbers, up));
        } else {
            let add = &add;
            std::thread::scope(|scope| parts.for_each(|(numbers, up)| drop(scope.spawn(move || add(numbers, up)))));
        }
    }
}

/// What is added to the tensors of a part of a model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(BTreeMap<String, Vec<Change>>);

impl Changes {
    /// What some LoRA files change in a part.
    ///
    /// # Errors
    /// If a file cannot be used, or does not fit the part.
    pub(crate) fn read(loras: &[Lora], part: &str, weights: &Weights, uses: &Uses) -> Result<Self> {
        let mut changes = Self::default();
        if loras.is_empty() {
            return Ok(changes);
        }
        let names = Names::of(weights, uses);
        for lora in loras {
            LoraFile::open(lora)?.add_to(&mut changes, part, &names, weights)?;
        }
        Ok(changes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tensors that are changed.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// What is added to a tensor.
    pub(crate) fn of(&self, tensor: &str) -> &[Change] {
        self.0.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// A digest of all that is added.
    pub(crate) fn digest(&self) -> Vec<u8> {
        let mut digest = Sha256::new();
        for (tensor, changes) in &self.0 {
            digest.update((tensor.len() as u64).to_le_bytes());
            digest.update(tensor);
            digest.update((changes.len() as u64).to_le_bytes());
            for Change { scale, rank, first, up, down } in changes {
                digest.update(scale.to_le_bytes());
                digest.update(format!("{rank} {first} {:?} {:?} {}\n", up.dtype, down.dtype, up.bytes.len()));
                digest.update(up.bytes);
                digest.update(down.bytes);
            }
        }
        digest.finalize().to_vec()
    }
}

/// Compares the names in LoRA files with the parts of a model, before anything is made.
///
/// # Errors
/// If a file cannot be used, or changes a part that the model does not have.
pub(crate) fn check(loras: &[Lora], parts: &[&str]) -> Result<()> {
    if loras.len() > MAX_LORAS {
        return Err(Error::Lora(format!("{} LoRA files are too many: at most {MAX_LORAS} are used", loras.len())));
    }
    for lora in loras {
        let file = LoraFile::open(lora)?;
        let stray = file.layers.iter().find(|((part, _), _)| !parts.iter().any(|known| names::belongs(part, known)));
        if let Some((_, layer)) = stray {
            return Err(file.foreign(layer.key(), "changes a part that this model does not have"));
        }
    }
    Ok(())
}

/// The names of the tensors for one layer.
#[derive(Debug, Default)]
struct Layer {
    down: Option<String>,
    up: Option<String>,
    alpha: Option<String>,
    /// Whether names like these are known.
    is_known: bool,
    /// Whether PEFT has written the file itself.
    is_of_peft: bool,
}

/// The layers of a file by the part, if the name says it, and the rest of the name.
type Layers = BTreeMap<(&'static str, String), Layer>;

impl Layer {
    /// One of them.
    fn key(&self) -> &str {
        [&self.down, &self.up, &self.alpha].into_iter().flatten().next().map_or("", String::as_str)
    }
}

/// The tensors of a file by their layers.
fn layers(weights: &Weights) -> std::result::Result<Layers, String> {
    let mut layers = Layers::new();
    // In the order of their names, so that a refusal names the same one each time.
    let keys: BTreeSet<_> = weights.names().collect();
    let Some(first) = keys.first() else { return Err("the file holds no LoRA: it has no tensors".into()) };
    if let Some((key, way)) = keys.iter().find_map(|key| Some((key, names::other_way(key)?))) {
        return Err(format!("{key:?} belongs to {way}, which is not supported: use a plain LoRA"));
    }
    if !keys.iter().any(|key| names::split(key).is_some()) {
        return Err(match keys.iter().any(|key| key.starts_with("model.diffusion_model.")) {
            true => "the file is a checkpoint and not a LoRA: give it as --model".into(),
            false => format!(
                "{first:?} is not a tensor of a LoRA, and neither is any other: give a checkpoint as --model, a VAE as \
                 --engine-vae and an embedding as --engine-embedding"
            ),
        });
    }
    // Some programs count the steps of the training.
    let is_counter = |key: &str| {
        !key.contains('.') && weights.get(key).is_some_and(|entry| entry.shape.iter().product::<usize>() == 1)
    };
    for key in keys.into_iter().filter(|key| !is_counter(key)) {
        let Some((name, role)) = names::split(key) else {
            return Err(format!("{key:?} is not a tensor of a LoRA: use a LoRA, and not a model or another file"));
        };
        let Place { part, layer, is_known, is_of_peft } = names::place(name);
        let layer = layers.entry((part, layer.to_owned())).or_default();
        (layer.is_known, layer.is_of_peft) = (is_known, is_of_peft);
        let slot = match role {
            Role::Down => &mut layer.down,
            Role::Up => &mut layer.up,
            Role::Alpha => &mut layer.alpha,
        };
        if let Some(other) = slot.replace(key.to_owned()) {
            return Err(format!("{key:?} and {other:?} are for one layer: the file is damaged"));
        }
    }
    Ok(layers)
}

/// A LoRA file that is open.
#[derive(Debug)]
struct LoraFile {
    path: String,
    weight: f64,
    weights: Weights,
    layers: Layers,
    scales: Map<String, Value>,
}

impl LoraFile {
    fn open(lora: &Lora) -> Result<Self> {
        let path = lora.path.display().to_string();
        let wrong = |what: String| Error::Lora(format!("{path}: {what}"));
        if !(-MAX_WEIGHT..=MAX_WEIGHT).contains(&lora.weight) {
            return Err(wrong(format!(
                "the weight {} of a LoRA is not from -{MAX_WEIGHT} to {MAX_WEIGHT}",
                lora.weight
            )));
        }
        let unreadable = |error: Error| error.beside(Error::Lora);
        check_format(&lora.path).map_err(unreadable)?;
        let weights = Weights::open(&lora.path).map_err(unreadable)?;
        let layers = layers(&weights).map_err(wrong)?;
        let scales = match weights.note(SCALES_NOTE) {
            Some(note) => {
                serde_json::from_str(note).map_err(|error| format!("its note {SCALES_NOTE:?} is damaged: {error}"))
            }
            None => peft::scales(&lora.path, &layers, &weights),
        };
        let scales = scales.map_err(wrong)?;
        Ok(Self { weight: lora.weight, weights, layers, scales, path })
    }

    fn wrong(&self, key: &str, what: &str) -> Error {
        Error::Lora(format!("{}: {key:?} {what}", self.path))
    }

    /// The refusal of a layer that the model does not have.
    fn misplaced(&self, key: &str, layer: &Layer) -> Error {
        if layer.is_known {
            return self.foreign(key, "fits no layer of this model");
        }
        self.wrong(
            key,
            "fits no layer of this model, and names like this one are not known to this release: use a LoRA for this model \
             with the names of kohya's scripts, of PEFT or of diffusers",
        )
    }

    /// The refusal of a file that was made for another model.
    fn foreign(&self, key: &str, what: &str) -> Error {
        let why = "the LoRA was made for another family of models";
        self.wrong(key, &format!("{what}: {why}, so use one for this model or leave it out"))
    }

    /// Adds what the file changes in a part.
    fn add_to(&self, changes: &mut Changes, part: &str, names: &Names, weights: &Weights) -> Result<()> {
        let mut seen = BTreeSet::new();
        for ((named, name), layer) in &self.layers {
            if !names::belongs(named, part) {
                continue;
            }
            let missing = |which: &str| self.wrong(layer.key(), &format!("has no {which}: the file is not complete"));
            let down = layer.down.as_deref().ok_or_else(|| missing("matrix to go down"))?;
            let up = layer.up.as_deref().ok_or_else(|| missing("matrix to go up"))?;
            let tensors = names.find(name).ok_or_else(|| self.misplaced(down, layer))?;
            let shares = tensors.len();
            for (share, tensor) in tensors.into_iter().enumerate() {
                if !seen.insert(tensor.to_owned()) {
                    return Err(self.wrong(down, &format!("changes {tensor:?}, as another tensor of the file does")));
                }
                let entry = weights.get(tensor).ok_or_else(|| self.foreign(down, "fits no tensor of this model"))?;
                let mut change = self.change(down, up, tensor, entry, [share, shares])?;
                change.scale = self.scale(part, name, layer.alpha.as_deref(), change.rank)?;
                // Without a weight the file is only looked at.
                if change.scale.abs() > 0.0 {
                    changes.0.entry(tensor.to_owned()).or_default().push(change);
                }
            }
        }
        Ok(())
    }

    /// The change of a tensor that has one of several shares of the outputs.
    fn change(
        &self,
        down: &str,
        up: &str,
        tensor: &str,
        entry: &TensorEntry,
        [share, shares]: [usize; 2],
    ) -> Result<Change> {
        let shape = |key: &str| self.weights.get(key).map(|entry| matrix(&entry.shape)).unwrap_or_default();
        let (down_shape, up_shape, mut whole) = (shape(down), shape(up), matrix(&entry.shape));
        let is_turned = tensor == TRANSPOSED_PROJECTION;
        if is_turned {
            whole.reverse();
        }
        let misfit = |key: &str, shape: &[usize]| {
            let layer = format!("has the shape {shape:?}, which does not fit {tensor:?} of {:?}", entry.shape);
            self.foreign(key, &layer)
        };
        let (Some(rank), Some(outputs)) = (down_shape.first().copied(), whole.first().copied()) else {
            return Err(misfit(down, &down_shape));
        };
        if down_shape[1..] != whole[1..] || whole.len() < 2 {
            return Err(misfit(down, &down_shape));
        }
        if up_shape.len() != 2 || up_shape[0] != outputs * shares {
            return Err(misfit(up, &up_shape));
        }
        if up_shape[1] != rank {
            return Err(
                self.wrong(up, &format!("has the rank {}, but {down:?} has {rank}: the file is damaged", up_shape[1]))
            );
        }
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(self.wrong(down, &format!("has the rank {rank}; ranks from 1 to {MAX_RANK} are supported")));
        }
        let (up_key, mut down, mut up) = (up, self.numbers(down)?, self.numbers(up)?);
        if is_turned {
            (down, up) = (up.turned(rank), down.turned(whole[1]));
        }
        if names::swaps_halves(up_key, tensor) {
            up = up.with_halves_swapped();
        }
        Ok(Change { scale: 0.0, rank, first: share * outputs, up, down })
    }

    /// The numbers of a tensor, all of which are finite.
    fn numbers(&self, key: &str) -> Result<Numbers> {
        let entry = self.weights.get(key).ok_or_else(|| self.wrong(key, "is missing"))?;
        if !matches!(entry.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            let what = format!("has the type {:?}; F32, F16 and BF16 are supported", entry.dtype);
            return Err(self.wrong(key, &what));
        }
        let bytes = self.weights.bytes(entry);
        let is_finite = |bytes: &[u8]| floats(bytes, entry.dtype).iter().all(|number| number.is_finite());
        if !bytes.chunks(1 << 16).all(is_finite) {
            return Err(self.wrong(key, NOT_FINITE));
        }
        Ok(Numbers { bytes, dtype: entry.dtype })
    }

    /// How much of the product of a layer's matrices is added. Without a number in the file it is all of it.
    fn scale(&self, part: &str, layer: &str, alpha: Option<&str>, rank: usize) -> Result<f32> {
        let rank = rank as f64;
        let part_of = |alpha: f64| alpha / rank;
        let share = match alpha {
            Some(key) => {
                let entry = self.weights.get(key).ok_or_else(|| self.wrong(key, "is missing"))?;
                let alpha = single_number(self.weights.bytes(entry), entry.dtype);
                let alpha = alpha.ok_or_else(|| self.wrong(key, "is not a single number: the file is damaged"))?;
                if !alpha.is_finite() {
                    return Err(self.wrong(key, NOT_FINITE));
                }
                part_of(alpha)
            }
            None => self.noted_share(part, layer, rank).unwrap_or(1.0),
        };
        let scale = (self.weight * share) as f32;
        if scale.is_finite() { Ok(scale) } else { Err(self.wrong(layer, "has an alpha that is too large")) }
    }

    /// How much of the product is added, as the file's metadata says.
    fn noted_share(&self, part: &str, layer: &str, rank: f64) -> Option<f64> {
        let note = |key: &str| self.scales.get(&format!("{part}.{key}"));
        let ends = |name: &str| layer == name || layer.ends_with(&format!(".{name}"));
        let of_layer = note("alpha_pattern").and_then(Value::as_object);
        let of_layer = of_layer.and_then(|all| all.iter().find(|(name, _)| ends(name)).and_then(|(_, x)| x.as_f64()));
        let alpha = of_layer.or_else(|| note("lora_alpha").and_then(Value::as_f64))?;
        let by_root = note("use_rslora").and_then(Value::as_bool).unwrap_or(false);
        Some(alpha / if by_root { rank.sqrt() } else { rank })
    }
}

/// The number of a tensor that has one. Trainers also write whole numbers and fractions of 64 bits.
fn single_number(bytes: &[u8], dtype: Dtype) -> Option<f64> {
    Some(match dtype {
        Dtype::F64 => f64::from_le_bytes(bytes.try_into().ok()?),
        Dtype::I64 => i64::from_le_bytes(bytes.try_into().ok()?) as f64,
        Dtype::U64 => u64::from_le_bytes(bytes.try_into().ok()?) as f64,
        Dtype::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::I16 => i16::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::I8 => i8::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => match floats(bytes, dtype)[..] {
            [number] => number.into(),
            _ => return None,
        },
        _ => return None,
    })
}

/// The sizes of a kernel of one pixel without its sides.
fn matrix(shape: &[usize]) -> Vec<usize> {
    match shape {
        [outputs, inputs, 1, 1] => vec![*outputs, *inputs],
        other => other.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(numbers: &[f32]) -> Numbers {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Numbers { bytes: bytes.leak(), dtype: Dtype::F32 }
    }

    #[test]
    fn a_change_of_a_turned_matrix_is_the_turned_change() {
        let (up, down) = (numbers(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), numbers(&[7.0, 8.0, 9.0, 10.0]));
        // Three outputs, two inputs, and the rank 2.
        let change =
            |up: &Numbers, down: &Numbers| Change { scale: 0.5, rank: 2, first: 0, up: up.clone(), down: down.clone() };
        let (mut usual, mut turned) = ([0.0; 6], [0.0; 6]);
        change(&up, &down).add_to(0..3, &mut usual);
        change(&down.turned(2), &up.turned(2)).add_to(0..2, &mut turned);
        let at = |row: usize, column: usize| (usual[row * 2 + column], turned[column * 3 + row]);
        for (one, other) in (0..3).flat_map(|row| (0..2).map(move |column| (row, column))).map(|(r, c)| at(r, c)) {
            assert_eq!(one.to_bits(), other.to_bits());
        }
        assert!(usual[0] > 0.0);
    }
}
