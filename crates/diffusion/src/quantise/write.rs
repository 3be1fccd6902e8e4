//! Writes a file of weights in 8 bits, one tensor at a time.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Progress, Wanted, blank, hex, unwritable};
use crate::graph::Uses;
use crate::weights::{Weights, floats, piece_name, scale_name};
use crate::{Error, Result};

/// Outputs that are rounded at a time: the bytes of one cache line.
const OUTPUTS: usize = 64;

/// One tensor to be written.
#[derive(Clone)]
struct Item<'w> {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    bytes: &'w [u8],
    form: Form,
}

/// The numbers that an item gets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// 8 bits. First in the file, so that the rows of matrices begin where lines of the cache do.
    Bytes,
    /// The scales of 8 bits.
    Scales,
    /// 32 bits.
    Floats,
}

impl Item<'_> {
    fn entry(&self) -> (String, Value, usize) {
        let count: usize = self.shape.iter().product();
        match self.form {
            Form::Bytes => (self.name.clone(), json!(["I8", [self.shape[1], self.shape[0]]]), count),
            Form::Scales => (scale_name(&self.name), json!(["F32", [self.shape[0]]]), self.shape[0] * 4),
            Form::Floats => (self.name.clone(), json!(["F32", self.shape]), count * 4),
        }
    }

    /// The bytes for the file.
    fn write(&self, wanted: &Wanted) -> Result<Vec<u8>> {
        let largest = wanted.rules.bits.largest();
        let stray = |_| Error::Model(format!("the tensor {:?} holds numbers that are not finite", self.name));
        Ok(match self.form {
            Form::Floats => floats(self.bytes, self.dtype).into_iter().flat_map(f32::to_le_bytes).collect(),
            Form::Bytes => self.round(largest).map_err(stray)?,
            Form::Scales => {
                let scales = self.scales(largest).map_err(stray)?;
                scales.into_iter().flat_map(f32::to_le_bytes).collect()
            }
        })
    }

    /// The numbers of a row of the source: the weights of one output.
    fn row(&self, at: usize) -> Vec<f32> {
        let bytes = self.bytes.len() / self.shape[0];
        floats(&self.bytes[at * bytes..(at + 1) * bytes], self.dtype)
    }

    fn scales(&self, largest: f32) -> std::result::Result<Vec<f32>, Stray> {
        (0..self.shape[0]).map(|at| scale(&self.row(at), largest)).collect()
    }

    /// The rounded matrix, with a column for each output.
    fn round(&self, largest: f32) -> std::result::Result<Vec<u8>, Stray> {
        let [outputs, inputs] = [self.shape[0], self.shape[1]];
        let mut all = vec![0; outputs * inputs];
        let mut block = vec![0_u8; OUTPUTS * inputs];
        for begin in (0..outputs).step_by(OUTPUTS) {
            let count = OUTPUTS.min(outputs - begin);
            for (at, rounded) in block.chunks_exact_mut(inputs).take(count).enumerate() {
                let row = self.row(begin + at);
                let inverse = scale(&row, largest)?.recip();
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

/// A number that is not finite.
struct Stray;

/// The scale of the weights of one output: all become at most `largest`. A row of zeros gets one that does no harm.
fn scale(row: &[f32], largest: f32) -> std::result::Result<f32, Stray> {
    let size = row.iter().fold(0.0_f32, |size, number| if number.is_nan() { f32::NAN } else { size.max(number.abs()) });
    if row.iter().any(|number| !number.is_finite()) {
        return Err(Stray);
    }
    Ok(if size < f32::MIN_POSITIVE * 256.0 { 1.0 } else { size / largest })
}

/// Writes the file for a part and gives it its name when it is whole.
///
/// # Errors
/// If a tensor is no fraction or not finite, or the disk is full or fails. Nothing is left then.
pub(super) fn write(
    path: &Path,
    part: &str,
    weights: &Weights,
    uses: &Uses,
    wanted: &Wanted,
    progress: &mut dyn FnMut(&Progress),
) -> Result<()> {
    let partial = path.with_extension("partial");
    // Left by a crash, or laid there as a link to somewhere else. The new file is one that was not there before.
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(unwritable(&partial, &error)),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).open(&partial);
    let result = file.map_err(|error| unwritable(&partial, &error)).and_then(|file| {
        let items = items(weights, uses, wanted)?;
        fill(file, &partial, part, &items, wanted, progress)?;
        std::fs::rename(&partial, path).map_err(|error| unwritable(path, &error))
    });
    if result.is_err() {
        // A failure to remove it is not worth more than the first error; the next try removes it too.
        let _ = std::fs::remove_file(&partial);
    }
    result
}

fn items<'w>(weights: &'w Weights, uses: &Uses, wanted: &Wanted) -> Result<Vec<Item<'w>>> {
    let mut items = Vec::new();
    for name in &uses.all {
        let entry = weights.get(name).ok_or_else(|| Error::Model(format!("the tensor {name:?} is missing")))?;
        if !matches!(entry.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(Error::Model(format!("the tensor {name:?} has the type {:?}", entry.dtype)));
        }
        let bytes = weights.bytes(entry);
        let whole =
            Item { name: name.clone(), shape: entry.shape.clone(), dtype: entry.dtype, bytes, form: Form::Floats };
        let (Some(ranges), [all, inputs]) = (uses.linear.get(name), entry.shape.as_slice()) else {
            items.push(whole);
            continue;
        };
        let smallest = ranges.iter().map(|(from, to)| to - from).chain([*inputs]).min();
        if smallest < Some(wanted.rules.smallest) {
            items.push(whole);
            continue;
        }
        let row = bytes.len() / all;
        for (from, to) in ranges {
            let name = piece_name(name, &(*from..*to), *all);
            let bytes = &bytes[from * row..to * row];
            let item = Item { name, shape: vec![to - from, *inputs], bytes, form: Form::Bytes, ..whole.clone() };
            items.extend([item.clone(), Item { form: Form::Scales, ..item }]);
        }
    }
    items.sort_by_key(|item| item.form);
    Ok(items)
}

fn header(items: &[Item<'_>], wanted: &Wanted) -> (Vec<u8>, u64) {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!(wanted.notes()));
    let mut end = 0;
    for item in items {
        let (name, kind, bytes) = item.entry();
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
    file: File,
    path: &Path,
    part: &str,
    items: &[Item<'_>],
    wanted: &Wanted,
    progress: &mut dyn FnMut(&Progress),
) -> Result<()> {
    let (header, data) = header(items, wanted);
    let mut now = Progress { part: part.into(), done: 0, total: header.len() as u64 + data };
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Error::Model(format!(
            "cannot write {}: {error}; the weights in 8 bits need {} MB",
            path.display(),
            (header.len() as u64 + data).div_ceil(1_000_000)
        )),
        _ => unwritable(path, &error),
    };
    let place = blank(&header).ok_or_else(|| Error::Run("the header lacks its digest".into()))?.1;
    let mut digest = Sha256::new();
    let mut file = BufWriter::new(file);
    let mut put = |file: &mut BufWriter<File>, bytes: &[u8]| {
        digest.update(bytes);
        file.write_all(bytes).map_err(failed)
    };
    put(&mut file, &header)?;
    now.done = header.len() as u64;
    for item in items {
        progress(&now);
        let bytes = item.write(wanted)?;
        put(&mut file, &bytes)?;
        now.done += bytes.len() as u64;
    }
    let digest = hex(&digest.finalize());
    file.seek(SeekFrom::Start(place as u64)).map_err(failed)?;
    file.write_all(digest.as_bytes()).map_err(failed)?;
    file.flush().map_err(failed)?;
    file.get_ref().sync_all().map_err(failed)?;
    progress(&now);
    Ok(())
}
