//! Weights in mapped safetensors files.
//!
//! An untrusted header determines offsets and shapes, so all of it is checked before use: the `safetensors` crate
//! rejects headers whose offsets overlap, leave gaps, overflow, or don't end with the file. [`crate::graph`] then
//! compares each shape with the architecture.

pub mod float_formats;
mod scales;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::formats::{check_beginning, unreadable};
use crate::variants::{Layout, unread};
use crate::{Error, Result};

use self::float_formats::{SUPPORTED, scaled_f32};

pub(crate) use self::scales::BLOCK_SCALE_SUFFIXES;

/// The most weights files of a part.
const MAX_FILES: usize = 64;

/// The most folder entries that are read.
const MAX_ENTRIES: usize = 1_000;

/// A tensor's numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorEntry {
    /// Their type.
    pub dtype: Dtype,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its file's number.
    pub file: usize,
    /// The bytes in the file.
    pub bytes: Range<usize>,
    /// The factor for all numbers.
    pub scale: Option<f32>,
}

impl TensorEntry {
    /// Some of its bytes as 32-bit numbers. Empty for unsupported types.
    pub fn floats(&self, bytes: &[u8]) -> Vec<f32> {
        scaled_f32(bytes, self.dtype, self.scale)
    }
}

/// A file's header.
#[derive(Debug)]
pub struct Header {
    /// Where the numbers begin.
    pub begin: usize,
    /// The tensors by their names, within the file.
    pub entries: HashMap<String, TensorEntry>,
    /// The metadata besides the tensors.
    pub notes: HashMap<String, String>,
}

impl Header {
    /// Reads the header from a file's bytes.
    ///
    /// # Errors
    /// If the bytes aren't a complete safetensors file. The message begins with `path`.
    pub fn read(path: &str, data: &[u8]) -> Result<Self> {
        let damaged = |reason: String| Error::Files(format!("{path} is damaged or no safetensors file: {reason}"));
        check_beginning(path, data)?;
        let (header, metadata) = SafeTensors::read_metadata(data).map_err(|error| match error {
            SafeTensorError::MetadataIncompleteBuffer => {
                let found = data.len();
                damaged(format!("its header does not describe a file of {found} bytes: download it again"))
            }
            error => damaged(error.to_string()),
        })?;
        let begin = header.checked_add(8).filter(|begin| *begin <= data.len());
        let begin = begin.ok_or_else(|| damaged("the header is longer than the file".into()))?;
        let mut entries = HashMap::new();
        for (name, info) in metadata.tensors() {
            let (from, to) = info.data_offsets;
            let from = begin.checked_add(from);
            let to = begin.checked_add(to).filter(|to| *to <= data.len());
            let (Some(from), Some(to)) = (from, to) else {
                return Err(damaged(format!("the file is too short for the tensor {name:?}")));
            };
            let (dtype, shape) = (info.dtype, info.shape.clone());
            entries.insert(name, TensorEntry { dtype, shape, file: 0, bytes: from..to, scale: None });
        }
        if begin + metadata.data_len() != data.len() {
            return Err(damaged(format!("it has {} bytes instead of {}", data.len(), begin + metadata.data_len())));
        }
        Ok(Self { begin, entries, notes: metadata.metadata().clone().unwrap_or_default() })
    }
}

/// The error for a part's folder without usable weights.
fn without_weights(folder: &Path, stem: &str) -> Error {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let names: Vec<_> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let folder = folder.display();
    match unread(&[stem], names.iter().map(String::as_str)) {
        None => Error::Files(format!("{folder} lacks {stem}.safetensors")),
        Some(other) => Error::Unusable(format!("{folder} holds its weights as {other}")),
    }
}

/// The floating-point type that a graph computes with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Floats {
    /// 32 bits.
    #[default]
    F32,
    /// IEEE 16 bits: numbers up to 65,504, with 11 bits of precision.
    F16,
    /// 16 bits with the range of 32 bits and 8 bits of precision.
    Bf16,
}

impl Floats {
    /// This type's name in weights files.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::BF16,
        }
    }

    /// Bytes of a number.
    pub fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// Numbers as bytes of this type, each rounded to nearest.
    pub fn bytes(self, numbers: &[f32]) -> Vec<u8> {
        // Flattening arrays is free; collecting single bytes takes several times as long.
        let halves = |half: fn(f32) -> [u8; 2]| numbers.iter().map(|x| half(*x)).collect::<Vec<_>>().into_flattened();
        match self {
            Self::F32 => numbers.iter().map(|number| number.to_le_bytes()).collect::<Vec<_>>().into_flattened(),
            Self::F16 => halves(|number| float_formats::to_f16(number).to_le_bytes()),
            Self::Bf16 => halves(|number| float_formats::to_bf16(number).to_le_bytes()),
        }
    }
}

/// The tensors of a model's part, in one or several mapped files.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    path: String,
    /// The floating-point type that graphs with these weights compute with.
    computes_in: Floats,
    /// Whether such graphs have the same operators for all picture sizes.
    any_size: bool,
    /// Whether products in such graphs can have fewer bits.
    short_products: bool,
    direct_convolutions: bool,
    files: Vec<&'static [u8]>,
    /// Bytes of the first file before its first tensor.
    header: usize,
    identity: Vec<u8>,
    entries: HashMap<String, TensorEntry>,
    notes: HashMap<String, String>,
}

impl Weights {
    /// Maps a file and reads its header.
    ///
    /// The mapping lives as long as the process, because the runtime can only use weights without copying if they are
    /// static. The pages are clean, so the kernel drops them when memory is short. If a file is truncated while mapped,
    /// the process ends with SIGBUS, which is one reason why engines have their own process.
    ///
    /// # Errors
    /// If the file cannot be mapped, isn't a complete safetensors file, or has an unsupported scale.
    pub fn open(path: &Path) -> Result<Self> {
        Self::map(path)?.scaled()
    }

    fn map(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let unreadable = |error| unreadable(path, &error);
        // Opening a pipe would wait for its other end.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(Error::Files(format!("{name} is not a file")));
        }
        let file = File::open(path).map_err(unreadable)?;
        let modified = file.metadata().and_then(|about| about.modified()).ok();
        #[expect(unsafe_code, reason = "mapping is unsafe because others can change the file; see above")]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(unreadable)?;
        let map: &'static memmap2::Mmap = Box::leak(Box::new(map));
        let mut weights = Self::parse(name, map)?;
        weights.identity = identity(&map[..weights.header], map.len(), modified);
        Ok(weights)
    }

    /// Maps the weights in a part's folder that [`Layout::choose`] selects.
    ///
    /// # Errors
    /// If there are none, a file lacks a tensor in the index, two tensors have the same name, or as [`Weights::open`].
    pub fn open_part(folder: &Path, stem: &str) -> Result<Self> {
        // A link to a file that is gone counts too, and is named when it is opened.
        let Some(layout) = Layout::choose(stem, |name| folder.join(name).symlink_metadata().is_ok()) else {
            return Err(without_weights(folder, stem));
        };
        let path = folder.join(layout.file());
        if layout.sharded { Self::open_shards(folder, &path) } else { Self::open(&path) }
    }

    fn open_shards(folder: &Path, index: &Path) -> Result<Self> {
        let config = Config::read(index)?;
        let wrong = |expected: &str| config.wrong("weight_map", expected);
        let map = config.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| wrong("an object is needed"))?;
        let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
        let names = names.filter(|names| (1..=MAX_FILES).contains(&names.len()));
        let names = names.ok_or_else(|| wrong(&format!("the names of 1 to {MAX_FILES} files are needed")))?;
        let mut all = Self { path: index.display().to_string(), ..Self::default() };
        for name in names {
            // A weights file lies beside its index. No model needs a name that leads elsewhere.
            if Path::new(name).file_name() != Some(OsStr::new(name)) {
                return Err(wrong("names of files without a folder are needed"));
            }
            let shard = Self::map(&folder.join(name))?;
            for (tensor, entry) in shard.entries {
                if map.get(&tensor).and_then(Value::as_str) != Some(name) {
                    let path = &all.path;
                    return Err(Error::Files(format!(
                        "{path}: the tensor {tensor:?} is in {name:?}, but not by the index"
                    )));
                }
                all.entries.insert(tensor, TensorEntry { file: all.files.len(), ..entry });
            }
            all.files.extend(shard.files);
            all.identity.extend(shard.identity);
        }
        match map.keys().find(|tensor| !all.entries.contains_key(*tensor)) {
            None => all.scaled(),
            Some(tensor) => Err(Error::Files(format!("{}: the tensor {tensor:?} is in none of the files", all.path))),
        }
    }

    /// The tensors of a file in memory.
    pub(crate) fn parse(path: String, data: &'static [u8]) -> Result<Self> {
        let Header { begin, entries, notes } = Header::read(&path, data)?;
        let files = vec![data];
        Ok(Self { path, files, header: begin, entries, notes, ..Self::default() })
    }

    /// The same weights for graphs that compute with another type.
    #[must_use]
    pub fn computing_in(self, floats: Floats) -> Self {
        Self { computes_in: floats, ..self }
    }

    /// The floating-point type that graphs with these weights compute with.
    pub fn computes_in(&self) -> Floats {
        self.computes_in
    }

    /// The same weights for graphs that have the same operators for all picture sizes, if `any_size`: they pad even
    /// where nothing is missing, and work on all rows at once. A GPU then loads the weights once (see
    /// [`crate::graph::template`]). The processor is better off with graphs for one size.
    #[must_use]
    pub fn for_any_size(self, any_size: bool) -> Self {
        Self { any_size, ..self }
    }

    /// The same weights for 32-bit graphs whose products a device can compute with 10 bits of precision (TF32), if
    /// `short_products`. The range stays at 32 bits, and so do sums and all other operators.
    #[must_use]
    pub fn with_short_products(self, short_products: bool) -> Self {
        Self { short_products, ..self }
    }

    /// The same weights for graphs that leave every convolution to the runtime, so that benchmarks can compare both.
    #[must_use]
    pub fn with_direct_convolutions(self) -> Self {
        Self { direct_convolutions: true, ..self }
    }

    /// Whether every convolution is left to the runtime.
    pub fn direct_convolutions(&self) -> bool {
        self.direct_convolutions
    }

    /// Whether products can have fewer bits.
    pub fn short_products(&self) -> bool {
        self.short_products
    }

    /// Whether graphs with these weights have the same operators for all picture sizes.
    pub fn any_size(&self) -> bool {
        self.any_size
    }

    /// The file, or the index of several files, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The whole files.
    pub fn files(&self) -> &[&'static [u8]] {
        &self.files
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, entry: &TensorEntry) -> &'static [u8] {
        &self.files[entry.file][entry.bytes.clone()]
    }

    /// Bytes of the first file before its first tensor.
    pub fn header(&self) -> usize {
        self.header
    }

    /// Metadata in a single file's header.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.notes.get(key).map(String::as_str)
    }

    /// Everything that distinguishes these files without reading them whole: lengths, modification times, and headers.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Some of the tensors, under other names. If two get the same name, the first by old name counts. In attention
    /// layers, 1x1 convolutions become matrices: older programs wrote matrices that way.
    pub fn renamed(&self, name: impl Fn(&str) -> Option<String>) -> Self {
        let mut old: Vec<_> = self.entries.iter().collect();
        // On collecting, the last one wins.
        old.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
        let renamed = old.into_iter().filter_map(|(old, entry)| {
            let name = name(old)?;
            let mut entry = entry.clone();
            if [".to_q.", ".to_k.", ".to_v.", ".to_out."].iter().any(|layer| name.contains(layer))
                && let [outputs, inputs, 1, 1] = entry.shape[..]
            {
                entry.shape = vec![outputs, inputs];
            }
            Some((name, entry))
        });
        Self { entries: renamed.collect(), ..self.clone() }
    }

    /// Splits each tensor that `names` knows into tensors with equal numbers of rows, the first rows first. A tensor
    /// whose rows cannot be split evenly stays whole.
    #[must_use]
    pub fn cut<const N: usize>(mut self, names: impl Fn(&str) -> Option<[String; N]>) -> Self {
        let cut: Vec<_> = self.entries.keys().filter_map(|name| Some((name.clone(), names(name)?))).collect();
        for (whole, parts) in cut {
            let Some(rows) = self.entries[&whole].shape.first().copied().filter(|rows| rows.is_multiple_of(N)) else {
                continue;
            };
            let Some(entry) = self.entries.remove(&whole) else { continue };
            let each = entry.bytes.len() / N;
            for (at, name) in parts.into_iter().enumerate() {
                let begin = entry.bytes.start + at * each;
                let shape = [&[rows / N], &entry.shape[1..]].concat();
                self.entries.insert(name, TensorEntry { shape, bytes: begin..begin + each, ..entry.clone() });
            }
        }
        self
    }

    /// The same tensors, replaced by `other`'s where it has them.
    #[must_use]
    pub(crate) fn overlaid(mut self, other: &Self) -> Self {
        let before = self.files.len();
        self.files.extend(&other.files);
        for (name, entry) in &other.entries {
            self.entries.insert(name.clone(), TensorEntry { file: before + entry.file, ..entry.clone() });
        }
        self.identity.extend(Sha256::digest(&other.files[0][..other.header]));
        self
    }

    /// One tensor.
    pub fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.entries.get(name)
    }

    /// The numbers of a small tensor.
    ///
    /// # Errors
    /// If it is missing, or has another shape or a type that is not supported.
    pub fn numbers(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.rows(name, [len, 1], &(0..i32::try_from(len).unwrap_or(i32::MAX)).collect::<Vec<_>>())
    }

    /// Some rows of a table, leaving most of it unread.
    ///
    /// # Errors
    /// If the table is missing, has another shape or a type that is not supported, or lacks a row.
    pub fn rows(&self, name: &str, shape: [usize; 2], rows: &[i32]) -> Result<Vec<f32>> {
        let wrong = |what: String| Error::Model(format!("{}: the tensor {name:?} {what}", self.path));
        let entry = self.get(name).ok_or_else(|| wrong("is missing".into()))?;
        if entry.shape != shape && (shape[1] != 1 || entry.shape != shape[..1]) {
            return Err(wrong(format!("has the shape {:?}, but the configuration asks for {shape:?}", entry.shape)));
        }
        let size = float_formats::byte_size(entry.dtype);
        let size = size.ok_or_else(|| wrong(format!("has the type {:?}; {SUPPORTED}", entry.dtype)))?;
        let (bytes, width) = (self.bytes(entry), shape[1] * size);
        let mut numbers = Vec::with_capacity(rows.len() * shape[1]);
        for row in rows {
            let row = usize::try_from(*row).ok().filter(|row| *row < shape[0]);
            let from = row.ok_or_else(|| wrong(format!("has {} rows, too few", shape[0])))? * width;
            numbers.extend(entry.floats(&bytes[from..from + width]));
        }
        Ok(numbers)
    }

    /// The sizes of all tensors, by their names.
    pub fn shapes(&self) -> HashMap<String, Vec<usize>> {
        self.entries.iter().map(|(name, entry)| (name.clone(), entry.shape.clone())).collect()
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }
}

fn identity(header: &[u8], length: usize, modified: Option<SystemTime>) -> Vec<u8> {
    let since = modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let nanos = since.map_or(0, |since| since.as_nanos());
    let mut digest = Sha256::new();
    digest.update((length as u64).to_le_bytes());
    digest.update(nanos.to_le_bytes());
    digest.update(header);
    digest.finalize().to_vec()
}

/// The name for some of a tensor's `all` rows.
pub fn piece_name(tensor: &str, rows: &Range<usize>, all: usize) -> String {
    if rows.len() == all { tensor.to_owned() } else { format!("{tensor}[{}..{}]", rows.start, rows.end) }
}

/// The name of an 8-bit matrix's scales.
pub fn scale_name(matrix: &str) -> String {
    format!("{matrix}.scale")
}

#[cfg(test)]
mod tests {
    use super::float_formats::to_f32;
    use super::*;

    fn parse(header: &str, data: usize) -> Result<Weights> {
        parse_with_length(header.len() as u64, header, data)
    }

    fn parse_with_length(length: u64, header: &str, data: usize) -> Result<Weights> {
        let mut file = length.to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(vec![0; data]);
        Weights::parse("x.safetensors".into(), file.leak())
    }

    #[test]
    fn a_whole_file_is_read() {
        let header = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"__metadata__":{"format":"pt"}}"#;
        let weights = parse(header, 24).expect("a whole file");
        let entry = weights.get("a").expect("the tensor");
        assert_eq!((entry.dtype, entry.shape.as_slice()), (Dtype::F32, [2, 3].as_slice()));
        assert_eq!(entry.bytes, 8 + header.len()..8 + header.len() + 24);
    }

    #[test]
    fn a_tensor_is_cut_by_its_rows() {
        let header = r#"{"a":{"dtype":"F32","shape":[6,2],"data_offsets":[0,48]}}"#;
        let parts = |name: &str| (name == "a").then(|| ["x", "y", "z"].map(str::to_owned));
        let weights = parse(header, 48).expect("a whole file").cut(parts);
        let begin = 8 + header.len();
        for (at, name) in ["x", "y", "z"].into_iter().enumerate() {
            let entry = weights.get(name).expect("a part");
            let from = begin + at * 16;
            assert_eq!((entry.shape.as_slice(), entry.bytes.clone()), ([2, 2].as_slice(), from..from + 16));
        }
        assert!(weights.get("a").is_none());
        let odd = parse(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#, 16).expect("a whole file");
        assert!(odd.cut(parts).get("a").is_some());
    }

    #[test]
    fn halves_are_widened_exactly() {
        let cases = [(0x0000, 0.0), (0x8000, -0.0), (0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0)];
        for (bits, number) in cases.into_iter().chain([
            (0x0001, 2.0_f32.powi(-24)),
            (0x83ff, -1023.0 * 2.0_f32.powi(-24)),
            (0x0400, 2.0_f32.powi(-14)),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ]) {
            assert_eq!(to_f32(&u16::to_le_bytes(bits), Dtype::F16)[0].to_bits(), number.to_bits(), "{bits:x}");
        }
        assert!(to_f32(&u16::to_le_bytes(0x7c01), Dtype::F16)[0].is_nan());
        assert_eq!(to_f32(&[0x80, 0x3f, 0, 0xc0], Dtype::BF16), [1.0, -2.0]);
    }

    #[test]
    fn hostile_headers_are_refused() {
        let one = |shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let twice = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
        let gap = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;
        for (header, data) in [
            (one("[2,3]", "[0,24]"), 23),
            (one("[2,3]", "[0,24]"), 25),
            (one("[2,3]", "[0,20]"), 24),
            (one("[2,3]", "[24,0]"), 24),
            (one("[2,3]", "[8,32]"), 32),
            (one("[2,-3]", "[0,24]"), 24),
            (one("[2,1.5]", "[0,12]"), 12),
            (one("[4611686018427387904,4]", "[0,0]"), 0),
            (one("[18446744073709551615,2]", "[0,8]"), 8),
            (one("[1]", "[18446744073709551612,18446744073709551615]"), 4),
            (twice.into(), 12),
            (gap.into(), 12),
            ("[]".into(), 0),
            ("{".into(), 0),
            (String::new(), 0),
            ("[".repeat(100_000), 0),
            (r#"{"a":{"dtype":"F99","shape":[],"data_offsets":[0,4]}}"#.into(), 4),
        ] {
            let error = parse(&header, data).err();
            let start: String = header.chars().take(80).collect();
            assert!(matches!(error, Some(Error::Files(_))), "{start} with {data} bytes: {error:?}");
        }
        for length in [u64::MAX, u64::MAX - 7, 1 << 40, 100_000_001, 3] {
            assert!(parse_with_length(length, "{}", 0).is_err(), "a header of {length} bytes");
        }
        for short in 0..8 {
            assert!(Weights::parse("x".into(), vec![0; short].leak()).is_err(), "a file of {short} bytes");
        }
    }
}
