//! Writes a file with 8-bit or merged weights, one tensor at a time.

use std::fs::OpenOptions;
use std::io::{BufWriter, Cursor, ErrorKind, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{FileSpec, PARTIAL, Progress, Rules, blank, hex, unwritable};
use crate::graph::Uses;
use crate::lora::{Change, Changes};
use crate::weights::float_formats::{self, SUPPORTED, to_f32};
use crate::weights::{Floats, TensorEntry, Weights, piece_name, scale_name};
use crate::{Error, Result};

/// Outputs rounded at a time: the bytes of a cache line.
const OUTPUTS: usize = 64;

#[derive(Clone)]
pub(super) struct Item<'w> {
    name: String,
    shape: Vec<usize>,
    entry: &'w TensorEntry,
    bytes: &'w [u8],
    /// What LoRA files add to the whole tensor, and the tensor's first row in this item.
    changes: &'w [Change],
    first: usize,
    form: Form,
    /// The largest magnitude in 8 bits.
    largest: f32,
}

/// The type of an item's numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// 8 bits. They come first in the file, so that matrix rows are aligned to cache lines.
    Bytes,
    Scales,
    /// Floating-point numbers of this type.
    Floats(Floats),
}

impl Form {
    fn rank(self) -> usize {
        match self {
            Self::Bytes => 0,
            Self::Scales => 1,
            Self::Floats(_) => 2,
        }
    }
}

impl<'w> Item<'w> {
    fn whole(name: &str, weights: &'w Weights, entry: &'w TensorEntry, changes: &'w Changes) -> Result<Self> {
        if float_formats::byte_size(entry.dtype).is_none() {
            return Err(Error::Model(format!("the tensor {name:?} has the type {:?}; {SUPPORTED}", entry.dtype)));
        }
        Ok(Self {
            name: name.to_owned(),
            shape: entry.shape.clone(),
            entry,
            bytes: weights.bytes(entry),
            changes: changes.of(name),
            first: 0,
            form: Form::Floats(Floats::F32),
            largest: 0.0,
        })
    }

    /// Its name, and its description: type, sizes and bytes in the file.
    fn described(&self) -> (String, Value, usize) {
        let count: usize = self.shape.iter().product();
        match self.form {
            Form::Bytes => (self.name.clone(), json!(["I8", [self.shape[1], self.shape[0]]]), count),
            Form::Scales => (scale_name(&self.name), json!(["F32", [self.shape[0]]]), self.shape[0] * 4),
            Form::Floats(floats) => {
                (self.name.clone(), json!([floats.dtype().to_string(), self.shape]), count * floats.size())
            }
        }
    }

    fn write(&self) -> Result<Vec<u8>> {
        let stray = |_| Error::Model(format!("the tensor {:?} holds numbers that are not finite", self.name));
        Ok(match self.form {
            Form::Floats(into) if self.changes.is_empty() => into.bytes(&self.entry.floats(self.bytes)),
            Form::Floats(into) => {
                let bytes = into.bytes(&self.rows(0..self.shape.first().copied().unwrap_or(1)));
                let is_finite = to_f32(&bytes, into.dtype()).iter().all(|number| number.is_finite());
                if !is_finite {
                    if !self.entry.floats(self.bytes).iter().all(|number| number.is_finite()) {
                        return Err(stray(NotFinite));
                    }
                    return Err(Error::Lora(format!(
                        "the tensor {:?} with its LoRA files has numbers beyond the range of their type: lower the \
                         weights of the LoRA files, or compute with 32 bits",
                        self.name
                    )));
                }
                bytes
            }
            Form::Bytes => self.round().map_err(stray)?,
            Form::Scales => self.scales().map_err(stray)?.into_iter().flat_map(f32::to_le_bytes).collect(),
        })
    }

    /// Some rows' numbers. A row contains an output's weights.
    fn rows(&self, rows: Range<usize>) -> Vec<f32> {
        let bytes = self.bytes.len() / self.shape.first().copied().unwrap_or(1).max(1);
        let mut numbers = self.entry.floats(&self.bytes[rows.start * bytes..rows.end * bytes]);
        for change in self.changes {
            change.add_to(self.first + rows.start..self.first + rows.end, &mut numbers);
        }
        numbers
    }

    /// All rows, a few at a time, each time with the index of the first.
    fn blocks(&self) -> impl Iterator<Item = (usize, Vec<f32>)> {
        let all = self.shape[0];
        (0..all).step_by(OUTPUTS).map(move |begin| (begin, self.rows(begin..all.min(begin + OUTPUTS))))
    }

    fn scales(&self) -> std::result::Result<Vec<f32>, NotFinite> {
        let mut scales = Vec::with_capacity(self.shape[0]);
        for (_, rows) in self.blocks() {
            for row in rows.chunks_exact(self.shape[1]) {
                scales.push(scale(row, self.largest)?);
            }
        }
        Ok(scales)
    }

    /// The rounded matrix, with one column per output.
    fn round(&self) -> std::result::Result<Vec<u8>, NotFinite> {
        let [outputs, inputs] = [self.shape[0], self.shape[1]];
        let mut all = vec![0; outputs * inputs];
        let mut block = vec![0_u8; OUTPUTS * inputs];
        for (begin, rows) in self.blocks() {
            let count = OUTPUTS.min(outputs - begin);
            for (rounded, row) in block.chunks_exact_mut(inputs).zip(rows.chunks_exact(inputs)) {
                let inverse = scale(row, self.largest)?.recip();
                for (byte, number) in rounded.iter_mut().zip(row) {
                    *byte = ((number * inverse).round_ties_even() as i8).cast_unsigned();
                }
            }
            for input in 0..inputs {
                let column = &mut all[input * outputs + begin..][..count];
                for (at, byte) in column.iter_mut().enumerate() {
                    *byte = block[at * inputs + input];
                }
            }
        }
        Ok(all)
    }
}

struct NotFinite;

/// The scale of an output's weights, so that they are at most `largest`. A row of zeros gets a harmless scale.
fn scale(row: &[f32], largest: f32) -> std::result::Result<f32, NotFinite> {
    let size = row.iter().fold(0.0_f32, |size, number| if number.is_nan() { f32::NAN } else { size.max(number.abs()) });
    if row.iter().any(|number| !number.is_finite()) {
        return Err(NotFinite);
    }
    Ok(if size < f32::MIN_POSITIVE * 256.0 { 1.0 } else { size / largest })
}

/// Writes a part's file, and renames it when complete.
///
/// # Errors
/// If a tensor isn't floating-point or contains a number that isn't finite, or the disk is full or fails. Nothing is
/// left behind then.
pub(super) fn write<'w>(
    path: &Path,
    part: &str,
    items: impl FnOnce() -> Result<Vec<Item<'w>>>,
    spec: &FileSpec,
    progress: &mut dyn FnMut(&Progress),
) -> Result<()> {
    let partial = path.with_extension(PARTIAL);
    // Left by a crash, or planted as a link to another file. Creating the new file fails if it exists.
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(unwritable(&partial, &error)),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).open(&partial);
    let result = file.map_err(|error| unwritable(&partial, &error)).and_then(|mut file| {
        fill(&mut file, &partial, part, &items()?, spec, progress)?;
        file.sync_all().map_err(|error| unwritable(&partial, &error))?;
        std::fs::rename(&partial, path).map_err(|error| unwritable(path, &error))
    });
    if result.is_err() {
        // A failure to remove it matters less than the first error; the next attempt removes it too.
        let _ = std::fs::remove_file(&partial);
    }
    result
}

/// Such a file's bytes.
///
/// # Errors
/// If a tensor isn't floating-point or contains a number that isn't finite.
pub(super) fn in_memory(
    part: &str,
    items: &[Item<'_>],
    spec: &FileSpec,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Vec<u8>> {
    let mut file = Cursor::new(Vec::new());
    fill(&mut file, Path::new(part), part, items, spec, progress)?;
    Ok(file.into_inner())
}

/// The tensors that LoRA files change, in the type that the graph computes with.
pub(super) fn merged<'w>(weights: &'w Weights, changes: &'w Changes) -> Result<Vec<Item<'w>>> {
    let item = |name: &str| {
        let entry = weights.get(name).ok_or_else(|| Error::Model(format!("the tensor {name:?} is missing")))?;
        let whole = Item::whole(name, weights, entry, changes)?;
        Ok(Item { form: Form::Floats(weights.computes_in()), ..whole })
    };
    changes.tensors().map(item).collect()
}

/// All tensors that a graph uses, with the large ones in 8 bits.
pub(super) fn items<'w>(
    weights: &'w Weights,
    uses: &Uses,
    rules: Rules,
    changes: &'w Changes,
) -> Result<Vec<Item<'w>>> {
    let mut items = Vec::new();
    for name in &uses.all {
        let entry = weights.get(name).ok_or_else(|| Error::Model(format!("the tensor {name:?} is missing")))?;
        let whole = Item { largest: rules.bits.largest(), ..Item::whole(name, weights, entry, changes)? };
        let (Some(ranges), [all, inputs]) = (uses.linear.get(name), entry.shape.as_slice()) else {
            items.push(whole);
            continue;
        };
        let smallest = ranges.iter().map(|(from, to)| to - from).chain([*inputs]).min();
        if smallest < Some(rules.smallest) {
            items.push(whole);
            continue;
        }
        let row = whole.bytes.len() / all;
        for (from, to) in ranges {
            let name = piece_name(name, &(*from..*to), *all);
            let bytes = &whole.bytes[from * row..to * row];
            let shape = vec![to - from, *inputs];
            let item = Item { name, shape, bytes, first: *from, form: Form::Bytes, ..whole.clone() };
            items.extend([item.clone(), Item { form: Form::Scales, ..item }]);
        }
    }
    items.sort_by_key(|item| item.form.rank());
    Ok(items)
}

fn header(items: &[Item<'_>], spec: &FileSpec) -> (Vec<u8>, u64) {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!(spec.notes()));
    let mut end = 0;
    for item in items {
        let (name, kind, bytes) = item.described();
        let begin = end;
        end += bytes;
        header.insert(name, json!({ "dtype": kind[0], "shape": kind[1], "data_offsets": [begin, end] }));
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize((text.len() + 8).next_multiple_of(64) - 8, b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    (bytes, end as u64)
}

fn fill(
    file: &mut (impl Write + Seek),
    path: &Path,
    part: &str,
    items: &[Item<'_>],
    spec: &FileSpec,
    progress: &mut dyn FnMut(&Progress),
) -> Result<()> {
    let (header, data) = header(items, spec);
    let mut now = Progress { part: part.into(), done: 0, total: header.len() as u64 + data };
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Error::Unusable(format!(
            "cannot write {}: {error}; these weights need {} MB",
            path.display(),
            (header.len() as u64 + data).div_ceil(1_000_000)
        )),
        _ => unwritable(path, &error),
    };
    let place = blank(&header).ok_or_else(|| Error::Run("the header lacks its digest".into()))?.1;
    let mut digest = Sha256::new();
    let mut file = BufWriter::new(file);
    digest.update(&header);
    file.write_all(&header).map_err(failed)?;
    now.done = header.len() as u64;
    for item in items {
        progress(&now);
        let bytes = item.write()?;
        digest.update(&bytes);
        file.write_all(&bytes).map_err(failed)?;
        now.done += bytes.len() as u64;
    }
    let digest = hex(&digest.finalize());
    file.seek(SeekFrom::Start(place as u64)).map_err(failed)?;
    file.write_all(digest.as_bytes()).map_err(failed)?;
    file.flush().map_err(failed)?;
    progress(&now);
    Ok(())
}
