//! LoRA files: for some layers of a model two thin matrices each, whose product is added to the weights.
//!
//! LoHa and LoKr multiply two such products (element by element, or as a Kronecker product), and convolutions can have
//! a third matrix (`lycoris/functional` of LyCORIS). DoRA then sets the magnitudes of rows or columns.
//!
//! Like models, LoRA files are untrusted: names, shapes, types and numbers are checked before anything is merged. A
//! tensor that fits no layer of the model is rejected, because a partly applied LoRA makes unexpected pictures.

mod change;
mod names;
mod peft;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use self::change::{Dora, Factor, Numbers};
use self::names::{Algorithm, MatrixRole, Names, Place, Role};
use crate::formats::check_format;
use crate::graph::Uses;
use crate::models::clip::TRANSPOSED_PROJECTION;
use crate::weights::float_formats::{self, SUPPORTED, single_number};
use crate::weights::{TensorEntry, Weights};
use crate::{Error, Result};

pub(crate) use self::change::Change;

/// The largest weight of a LoRA, in both directions. Beyond it nothing recognisable is left.
pub const MAX_WEIGHT: f64 = 10.0;

/// Most LoRA files of a model.
pub const MAX_LORAS: usize = 16;

/// The largest rank. Most files have 4 to 128.
const MAX_RANK: usize = 2_048;

/// Numbers allowed in a third matrix's product for any layer, because some ranks exceed a small layer's outputs.
const SMALL_PRODUCT: usize = 1 << 22;

/// Metadata with the scales of a file written by the PEFT library.
const SCALES_NOTE: &str = "lora_adapter_metadata";

/// A LoRA file, and how strongly it changes a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// The safetensors file.
    pub path: PathBuf,
    /// 1 applies the file as it is, 0 not at all, and a negative weight in the opposite direction. From -10 to 10.
    pub weight: f64,
}

const NOT_FINITE: &str = "holds numbers that are not finite: the file is damaged, or its training failed";

/// What is added to the tensors of a model's part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(BTreeMap<String, Vec<Change>>);

impl Changes {
    /// What some LoRA files change in a part.
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

    pub(crate) fn tensors(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// What is added to a tensor.
    pub(crate) fn of(&self, tensor: &str) -> &[Change] {
        self.0.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// A digest of everything that is added.
    pub(crate) fn digest(&self) -> Vec<u8> {
        let mut digest = Sha256::new();
        for (tensor, changes) in &self.0 {
            digest.update((tensor.len() as u64).to_le_bytes());
            digest.update(tensor);
            digest.update((changes.len() as u64).to_le_bytes());
            changes.iter().for_each(|change| change.digest(&mut digest));
        }
        digest.finalize().to_vec()
    }
}

/// Compares the names in LoRA files with a model's parts, before anything is computed.
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
    matrices: BTreeMap<(Algorithm, usize, MatrixRole), String>,
    alpha: Option<String>,
    /// The DoRA magnitudes, and whether their name is PEFT's.
    magnitudes: Option<(String, bool)>,
    /// Whether names like these are known.
    is_known: bool,
    /// Whether the PEFT library itself wrote the file.
    is_of_peft: bool,
}

/// A file's layers, by part (empty if the name doesn't say) and the rest of the name.
type Layers = BTreeMap<(&'static str, String), Layer>;

impl Layer {
    fn key(&self) -> &str {
        let magnitudes = self.magnitudes.as_ref().map(|(key, _)| key);
        self.matrices.values().chain(&self.alpha).chain(magnitudes).next().map_or("", String::as_str)
    }

    fn down(&self) -> Option<&str> {
        self.matrices.get(&(Algorithm::Lora, 0, MatrixRole::Down)).map(String::as_str)
    }

    /// The magnitudes, if their name is PEFT's.
    fn magnitudes_of_peft(&self) -> Option<&str> {
        self.magnitudes.as_ref().and_then(|(key, is_of_peft)| is_of_peft.then_some(key.as_str()))
    }

    /// Assigns a tensor to its role. Returns the tensor that had it before.
    fn put(&mut self, role: Role, key: String) -> Option<String> {
        match role {
            Role::Matrix(algorithm, number, role) => self.matrices.insert((algorithm, number, role), key),
            Role::Alpha => self.alpha.replace(key),
            Role::PeftMagnitude | Role::DoraScale => {
                self.magnitudes.replace((key, role == Role::PeftMagnitude)).map(|(other, _)| other)
            }
        }
    }
}

fn layers(weights: &Weights) -> std::result::Result<Layers, String> {
    let mut layers = Layers::new();
    // Sorted by name, so that the same tensor is named each time a file is rejected.
    let keys: BTreeSet<_> = weights.names().collect();
    let Some(first) = keys.first() else { return Err("the file holds no LoRA: it has no tensors".into()) };
    if let Some((key, way)) = keys.iter().find_map(|key| Some((key, names::other_way(key)?))) {
        return Err(format!("{key:?} belongs to {way}, which is not supported: use a LoRA without it"));
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
    // Some programs store the number of training steps.
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
        if let Some(other) = layer.put(role, key.to_owned()) {
            return Err(format!("{key:?} and {other:?} are for one layer: the file is damaged"));
        }
    }
    Ok(layers)
}

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
            Some(note) => serde_json::from_str(note)
                .map_err(|error| format!("its note {SCALES_NOTE:?} is damaged: {error}"))
                .and_then(|scales| peft::check_magnitudes(&scales, &layers).map(|()| scales)),
            None => peft::scales(&lora.path, &layers, &weights),
        };
        let scales = scales.map_err(wrong)?;
        Ok(Self { weight: lora.weight, weights, layers, scales, path })
    }

    fn wrong(&self, key: &str, what: &str) -> Error {
        Error::Lora(format!("{}: {key:?} {what}", self.path))
    }

    /// The error for a layer that the model doesn't have.
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

    /// The error for a file made for another model.
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
            let key = layer.key();
            let tensors = names.find(name).ok_or_else(|| self.misplaced(key, layer))?;
            let shares = tensors.len();
            for (share, tensor) in tensors.into_iter().enumerate() {
                if !seen.insert(tensor.to_owned()) {
                    return Err(self.wrong(key, &format!("changes {tensor:?}, as another tensor of the file does")));
                }
                let entry = weights.get(tensor).ok_or_else(|| self.foreign(key, "fits no tensor of this model"))?;
                let mut change = self.change(layer, tensor, (entry, Numbers::of(weights, entry)), [share, shares])?;
                // LoKr's rank is the rank of its second matrix.
                let rank = change.factors.iter().rev().find_map(Factor::rank);
                change.scale = self.scale(part, name, layer.alpha.as_deref(), rank)?;
                let strength = change.weight * if change.dora.is_some() { 1.0 } else { change.scale };
                // With a strength of 0 the file is only validated.
                if strength.abs() > 0.0 {
                    changes.0.entry(tensor.to_owned()).or_default().push(change);
                }
            }
        }
        Ok(())
    }

    /// The matrices of a layer with this many outputs and inputs, kernel pixels included.
    fn factors(&self, layer: &Layer, size: [usize; 2]) -> Result<(Algorithm, Vec<Factor>)> {
        let algorithm = layer.matrices.keys().next().map_or(Algorithm::Lora, |(algorithm, ..)| *algorithm);
        if let Some((_, key)) = layer.matrices.iter().find(|((other, ..), _)| *other != algorithm) {
            return Err(self.wrong(key, &format!("and {:?} are for one layer: the file is damaged", layer.key())));
        }
        let count = if algorithm == Algorithm::Lora { 1 } else { 2 };
        let factors = (0..count).map(|number| self.factor(layer, algorithm, number, size));
        let factors = factors.collect::<Result<Vec<_>>>()?;
        // Both share one alpha.
        if let (Algorithm::Loha, [Some(one), Some(other)]) =
            (algorithm, &factors.iter().map(Factor::rank).collect::<Vec<_>>()[..])
            && one != other
        {
            let key = layer.matrices.get(&(algorithm, 1, MatrixRole::Down)).map_or(layer.key(), String::as_str);
            let what =
                format!("has the rank {other}, but the first matrix of the layer has {one}: the file is damaged");
            return Err(self.wrong(key, &what));
        }
        Ok((algorithm, factors))
    }

    fn factor(
        &self,
        layer: &Layer,
        algorithm: Algorithm,
        number: usize,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Factor> {
        let key = |role| layer.matrices.get(&(algorithm, number, role)).map(String::as_str);
        let shape = |key: &str| self.weights.get(key).map(|entry| matrix(&entry.shape)).unwrap_or_default();
        let size = |key: &str, shape: &[usize]| {
            let size = shape.iter().try_fold(1_usize, |size, next| size.checked_mul(*next));
            size.ok_or_else(|| self.wrong(key, "is too large: the file is damaged"))
        };
        if let Some(whole) = key(MatrixRole::Full) {
            if let Some(other) = [MatrixRole::Down, MatrixRole::Up, MatrixRole::Mid].into_iter().find_map(key) {
                return Err(self.wrong(other, &format!("and {whole:?} are for one layer: the file is damaged")));
            }
            let (shape, up) = (shape(whole), self.numbers(whole)?);
            let rows = shape.first().copied().unwrap_or(0);
            let columns = size(whole, shape.get(1..).unwrap_or(&[]))?;
            return Ok(Factor { rows, columns, up, down: None });
        }
        let missing = |which: &str| self.wrong(layer.key(), &format!("has no {which}: the file is not complete"));
        let down_key = key(MatrixRole::Down).ok_or_else(|| missing("matrix to go down"))?;
        let up_key = key(MatrixRole::Up).ok_or_else(|| missing("matrix to go up"))?;
        let (down_shape, mut up_shape) = (shape(down_key), shape(up_key));
        let (mut down, mut up) = (self.numbers(down_key)?, self.numbers(up_key)?);
        let [mut rank, ..] = down_shape[..] else {
            return Err(self.foreign(down_key, &format!("has the shape {down_shape:?}, which fits no layer")));
        };
        let mut columns = size(down_key, &down_shape[1..])?;
        if let Some(key) = key(MatrixRole::Mid) {
            let middle = shape(key);
            let [to, from, ref kernel @ ..] = middle[..] else {
                return Err(self.wrong(key, &format!("has the shape {middle:?}: the file is damaged")));
            };
            let kernel = size(key, kernel)?;
            let wide = columns.checked_mul(kernel).filter(|wide| (1..=inputs).contains(wide));
            // The product stays in memory: it must not be larger than the layer, unless it is small.
            let most = outputs.saturating_mul(inputs).max(SMALL_PRODUCT);
            let wide = wide.filter(|wide| to.checked_mul(*wide).is_some_and(|count| count <= most));
            let ranks = 1..=MAX_RANK;
            let (Some(wide), true) = (wide, from == rank && ranks.contains(&from) && ranks.contains(&to)) else {
                let what = format!("has the shape {middle:?}, which does not fit {down_key:?} of {down_shape:?}");
                return Err(self.foreign(key, &what));
            };
            down = tucker_product(&self.numbers(key)?.all(), &down.all(), [to, from, kernel, columns]);
            (rank, columns) = (to, wide);
            if algorithm != Algorithm::Lora
                && let [rows, outputs] = up_shape[..]
            {
                up = up.transposed(outputs);
                up_shape = vec![outputs, rows];
            }
        }
        let [rows, found] = up_shape[..] else {
            return Err(self.foreign(up_key, &format!("has the shape {up_shape:?}, which fits no layer")));
        };
        if found != rank {
            let what = format!("has the rank {found}, but {down_key:?} has {rank}: the file is damaged");
            return Err(self.wrong(up_key, &what));
        }
        if !(1..=MAX_RANK).contains(&rank) {
            let what = format!("has the rank {rank}; ranks from 1 to {MAX_RANK} are supported");
            return Err(self.wrong(down_key, &what));
        }
        Ok(Factor { rows, columns, up, down: Some((rank, down)) })
    }

    /// The change of a tensor, before scaling. The tensor has one of several shares of the layer's outputs.
    fn change(
        &self,
        layer: &Layer,
        tensor: &str,
        (entry, base): (&TensorEntry, Numbers),
        [share, shares]: [usize; 2],
    ) -> Result<Change> {
        let is_transposed = tensor == TRANSPOSED_PROJECTION;
        let [rows, columns] = match matrix(&entry.shape)[..] {
            [columns, rows] if is_transposed => [rows, columns],
            [rows, ref others @ ..] => [rows, others.iter().product()],
            [] => [0, 0],
        };
        let (algorithm, mut factors) = self.factors(layer, [rows * shares, columns])?;
        let sizes = factors.iter().map(|factor| [factor.rows, factor.columns]).collect::<Vec<_>>();
        let fits = match (algorithm, &sizes[..]) {
            (Algorithm::Lokr, [one, other]) => {
                let product = |at: usize| one[at].checked_mul(other[at]);
                product(0) == Some(rows * shares) && product(1) == Some(columns)
            }
            _ => sizes.iter().all(|size| *size == [rows * shares, columns]),
        };
        if !fits || rows == 0 || columns == 0 {
            let is_wide = sizes.iter().any(|[_, width]| *width != columns);
            let keys = || layer.matrices.iter().filter(|((.., role), _)| (*role == MatrixRole::Up) != is_wide);
            let key = keys().next().map_or(layer.key(), |(_, key)| key.as_str());
            let shape = self.weights.get(key).map(|entry| &entry.shape);
            let shape = shape.map_or(&[][..], Vec::as_slice);
            let what = format!("has the shape {shape:?}, which does not fit {tensor:?} of {:?}", entry.shape);
            return Err(self.foreign(key, &what));
        }
        if is_transposed {
            factors = factors.into_iter().map(Factor::transposed).collect();
        }
        let swapped = layer.matrices.values().any(|key| names::swaps_halves(key, tensor)).then_some(rows);
        let dora = match &layer.magnitudes {
            Some((key, is_of_peft)) => {
                // A kernel's pixels share their input's magnitude.
                let inputs = entry.shape.get(usize::from(!is_transposed)).copied().unwrap_or(0);
                Some(self.dora(key, *is_of_peft, [rows * shares, inputs], shares, is_transposed, base)?)
            }
            None => None,
        };
        Ok(Change { weight: self.weight as f32, scale: 0.0, algorithm, factors, first: share * rows, swapped, dora })
    }

    /// The magnitudes of the rows or columns of a layer.
    fn dora(
        &self,
        key: &str,
        is_of_peft: bool,
        [outputs, inputs]: [usize; 2],
        shares: usize,
        is_transposed: bool,
        base: Numbers,
    ) -> Result<Dora> {
        let shape = self.weights.get(key).map(|entry| entry.shape.clone()).unwrap_or_default();
        let count: usize = shape.iter().product();
        let is_of_outputs = count == outputs && (is_of_peft || shape.first() == Some(&outputs));
        let is_of_inputs = count == inputs && !is_of_peft && shape.first() == Some(&1);
        if !is_of_outputs && !is_of_inputs {
            let what =
                format!("has the shape {shape:?}, which does not fit a layer of {outputs} outputs and {inputs} inputs");
            return Err(self.foreign(key, &what));
        }
        if !is_of_outputs && shares > 1 {
            let what = format!(
                "has magnitudes of inputs, but this model has {shares} layers in place of this one: use a LoRA with magnitudes \
                 of outputs"
            );
            return Err(self.wrong(key, &what));
        }
        let magnitudes = self.numbers(key)?.all();
        Ok(Dora { magnitudes, is_by_row: is_of_outputs != is_transposed, base, column_factors: OnceLock::new() })
    }

    /// A tensor's numbers, checked to be finite.
    fn numbers(&self, key: &str) -> Result<Numbers> {
        let entry = self.weights.get(key).ok_or_else(|| self.wrong(key, "is missing"))?;
        if float_formats::byte_size(entry.dtype).is_none() {
            return Err(self.wrong(key, &format!("has the type {:?}; {SUPPORTED}", entry.dtype)));
        }
        let is_finite = |bytes: &[u8]| entry.floats(bytes).iter().all(|number| number.is_finite());
        if !self.weights.bytes(entry).chunks(1 << 16).all(is_finite) {
            return Err(self.wrong(key, NOT_FINITE));
        }
        Ok(Numbers::of(&self.weights, entry))
    }

    /// The factor of a layer's matrix product: 1 if the file has no number for it, or there is no rank.
    fn scale(&self, part: &str, layer: &str, alpha: Option<&str>, rank: Option<usize>) -> Result<f32> {
        let Some(rank) = rank.map(|rank| rank as f64) else { return Ok(1.0) };
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
        let scale = share as f32;
        if (self.weight as f32 * scale).is_finite() {
            Ok(scale)
        } else {
            Err(self.wrong(layer, "has an alpha that is too large"))
        }
    }

    /// The factor of a layer's matrix product, according to the file's metadata.
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

/// A kernel's sizes, without its sides if they are one pixel.
fn matrix(shape: &[usize]) -> Vec<usize> {
    match shape {
        [outputs, inputs, 1, 1] => vec![*outputs, *inputs],
        other => other.to_vec(),
    }
}

/// The product of the middle matrix (`to` x `from` x `kernel`) and the down matrix (`from` x `inputs`).
fn tucker_product(middle: &[f32], down: &[f32], [to, from, kernel, inputs]: [usize; 4]) -> Numbers {
    let mut product = vec![0.0; to * inputs * kernel];
    for (at, weights) in middle.chunks_exact(kernel.max(1)).enumerate() {
        let (to, from) = (at / from, at % from);
        for (input, factor) in down[from * inputs..][..inputs].iter().enumerate() {
            let numbers = &mut product[(to * inputs + input) * kernel..][..kernel];
            numbers.iter_mut().zip(weights).for_each(|(number, weight)| *number += factor * weight);
        }
    }
    Numbers::from_f32(&product)
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn a_third_matrix_makes_nothing_larger_than_the_layer() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("some.safetensors");
        let bytes = vec![0; 2_048 * 9 * 4];
        let tensors =
            [("down", vec![1, 256]), ("up", vec![8, 2_048]), ("mid", vec![2_048, 1, 3, 3])].map(|(name, shape)| {
                let bytes = &bytes[..shape.iter().product::<usize>() * 4];
                (
                    format!("lora_unet_a.lora_{name}.weight"),
                    TensorView::new(Dtype::F32, shape, bytes).expect("a tensor"),
                )
            });
        safetensors::serialize_to_file(tensors, None, &path).expect("a file");
        let file = LoraFile::open(&Lora { path, weight: 0.0 }).expect("a LoRA");
        let layer = file.layers.values().next().expect("a layer");
        let error = file.factors(layer, [8, 2_304]).expect_err("more than the layer").to_string();
        assert!(error.contains("lora_mid") && error.contains("does not fit"), "{error}");
        assert!(file.factors(layer, [2_048, 2_304]).is_ok());
    }
}
