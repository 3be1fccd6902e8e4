//! Weights in mapped safetensors files.
//!
//! A header from a stranger decides about offsets and shapes, so all of it is checked before use: the `safetensors` crate
//! refuses headers whose offsets overlap, leave gaps, overflow, or do not end with the file. [`crate::graph`] then compares
//! each shape with the one that the architecture demands.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::config::Config;
use crate::{Error, Result};

/// Most files of the weights of one part.
const MAX_FILES: usize = 64;

/// The numbers of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Their type.
    pub dtype: Dtype,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// The number of their file.
    pub file: usize,
    /// Their bytes in the file.
    pub bytes: Range<usize>,
}

/// The tensors of a part of a model, in one or several mapped files.
#[derive(Debug)]
pub struct Weights {
    path: String,
    files: Vec<&'static [u8]>,
    entries: HashMap<String, Entry>,
}

impl Weights {
    /// Maps a file and reads its header.
    ///
    /// The mapping lasts as long as the process, because the runtime takes weights without copying only if they are
    /// static. The pages are clean, so the kernel drops them when memory is short. A file that is cut short while it is
    /// mapped ends the process with SIGBUS, which is one reason why an engine has a process of its own.
    ///
    /// # Errors
    /// If the file cannot be mapped, or is no whole safetensors file.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let unreadable = |error: std::io::Error| Error::Model(format!("cannot read {name}: {error}"));
        let file = File::open(path).map_err(unreadable)?;
        #[expect(unsafe_code, reason = "mapping is unsafe because others can change the file; see above")]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(unreadable)?;
        let map: &'static memmap2::Mmap = Box::leak(Box::new(map));
        Self::parse(name, map)
    }

    /// Maps the weights in a part's folder: one file or several with an index, in full precision if they are there, else
    /// in half.
    ///
    /// # Errors
    /// If there are none, a file lacks what the index says, two have a tensor of one name, or as of [`Weights::open`].
    pub fn open_part(folder: &Path, stem: &str) -> Result<Self> {
        for variant in ["", ".fp16"] {
            let single = folder.join(format!("{stem}{variant}.safetensors"));
            if single.exists() {
                return Self::open(&single);
            }
            let index = folder.join(format!("{stem}.safetensors.index{variant}.json"));
            if index.exists() {
                return Self::open_shards(folder, &index);
            }
        }
        let folder = folder.display();
        Err(Error::Model(format!(
            "{folder} lacks {stem}.safetensors; weights in other formats (.bin, .ckpt) are not read"
        )))
    }

    fn open_shards(folder: &Path, index: &Path) -> Result<Self> {
        let config = Config::read(index)?;
        let wrong = |expected: &str| config.wrong("weight_map", expected);
        let map = config.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| wrong("an object is needed"))?;
        let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
        let names = names.filter(|names| (1..=MAX_FILES).contains(&names.len()));
        let names = names.ok_or_else(|| wrong(&format!("the names of 1 to {MAX_FILES} files are needed")))?;
        let mut all = Self { path: index.display().to_string(), files: Vec::new(), entries: HashMap::new() };
        for name in names {
            // A file of weights lies beside its index: a name that leads elsewhere is none that a model needs.
            if Path::new(name).file_name() != Some(OsStr::new(name)) {
                return Err(wrong("names of files without a folder are needed"));
            }
            let shard = Self::open(&folder.join(name))?;
            for (tensor, entry) in shard.entries {
                if map.get(&tensor).and_then(Value::as_str) != Some(name) {
                    let path = &all.path;
                    return Err(Error::Model(format!(
                        "{path}: the tensor {tensor:?} is in {name:?}, but not by the index"
                    )));
                }
                all.entries.insert(tensor, Entry { file: all.files.len(), ..entry });
            }
            all.files.extend(shard.files);
        }
        match map.keys().find(|tensor| !all.entries.contains_key(*tensor)) {
            None => Ok(all),
            Some(tensor) => Err(Error::Model(format!("{}: the tensor {tensor:?} is in none of the files", all.path))),
        }
    }

    /// Reads the header of a file's bytes.
    fn parse(path: String, data: &'static [u8]) -> Result<Self> {
        let damaged = |reason: String| Error::Model(format!("{path} is damaged or no safetensors file: {reason}"));
        let (header, metadata) = SafeTensors::read_metadata(data).map_err(|error| damaged(error.to_string()))?;
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
            entries.insert(name, Entry { dtype: info.dtype, shape: info.shape.clone(), file: 0, bytes: from..to });
        }
        if begin + metadata.data_len() != data.len() {
            return Err(damaged(format!("it has {} bytes instead of {}", data.len(), begin + metadata.data_len())));
        }
        Ok(Self { path, files: vec![data], entries })
    }

    /// The file, or the index of several, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The whole files.
    pub fn files(&self) -> &[&'static [u8]] {
        &self.files
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, entry: &Entry) -> &'static [u8] {
        &self.files[entry.file][entry.bytes.clone()]
    }

    /// One tensor.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
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
            assert!(matches!(error, Some(Error::Model(_))), "{start} with {data} bytes: {error:?}");
        }
        for length in [u64::MAX, u64::MAX - 7, 1 << 40, 100_000_001, 3] {
            assert!(parse_with_length(length, "{}", 0).is_err(), "a header of {length} bytes");
        }
        for short in 0..8 {
            assert!(Weights::parse("x".into(), vec![0; short].leak()).is_err(), "a file of {short} bytes");
        }
    }
}
