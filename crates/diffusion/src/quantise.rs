//! Weights in 8 bits: made once from the files of a model, kept in a file of ours, mapped afterwards.
//!
//! The file is a safetensors file. A matrix of a linear layer has 8 bits for each number, and a scale for each output; it
//! is stored with one column for each output, as the kernels read it. All else has 32 bits. Only tensors that the graph uses
//! are in it, so a part runs from this file alone, without memory of its own.
//!
//! A file is written under another name, synced, and renamed when it is whole: the name of a finished file never stands
//! for half of one. Its header holds a digest of everything in it, which [`verify`] compares, and [`quantise`], which an
//! engine calls when it starts; opening compares only the length, the version, and the identity of the weights from which
//! it was made.

mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::graph::Uses;
use crate::pipelines::Options;
use crate::weights::{Floats, Weights};
use crate::{Error, Pipeline, Precision, Result};

/// The extension of files of ours.
const EXTENSION: &str = "w8a8";

/// The format of the file, and the rules by which it is made. A file of another version is made anew.
const VERSION: &str = "1";

/// Names of what the header says beside the tensors.
const VERSION_KEY: &str = "tintype_w8a8";
const BITS_KEY: &str = "bits";
const SOURCE_KEY: &str = "source";
const DIGEST_KEY: &str = "sha256";

/// Inputs and outputs that a layer must have to be worth 8 bits. The first and last layers of known models, which take
/// or give the few channels of a latent picture, have fewer, and would add the most error.
pub const SMALLEST: usize = 256;

/// The largest magnitude of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// 63: two products of unsigned and signed bytes fit in 16 bits, in which processors without VNNI add them.
    Seven,
    /// 127.
    Eight,
}

impl Bits {
    /// As many as the kernels of this machine add without an error.
    pub fn of_this_machine() -> Self {
        if rten_gemm::GemmExecutor::<u8, i8, i32>::new().may_saturate() { Self::Seven } else { Self::Eight }
    }

    fn largest(self) -> f32 {
        match self {
            Self::Seven => 63.0,
            Self::Eight => 127.0,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Seven => "7",
            Self::Eight => "8",
        }
    }
}

/// The rules by which weights are rounded.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The largest magnitude.
    pub bits: Bits,
    /// Inputs and outputs that a layer must have.
    pub smallest: usize,
}

impl Rules {
    /// Those for real models on this machine.
    pub fn of_this_machine() -> Self {
        Self { bits: Bits::of_this_machine(), smallest: SMALLEST }
    }
}

/// How far the quantising of one part is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The name of the part's folder.
    pub part: String,
    /// Bytes that are written.
    pub done: u64,
    /// Bytes that there will be.
    pub total: u64,
}

/// Gives each part of a model the weights for the precision that was asked for.
pub struct WeightPreparation<'a> {
    /// How the model is loaded.
    pub options: &'a Options,
    /// By which rules.
    pub rules: Rules,
    /// Hears of the work.
    pub progress: &'a mut dyn FnMut(&Progress),
}

impl std::fmt::Debug for WeightPreparation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WeightPreparation({:?}, {:?})", self.options, self.rules)
    }
}

impl WeightPreparation<'_> {
    /// The weights of a part, of which the graph makes such use. In 8 bits they are made if they are not there.
    ///
    /// # Errors
    /// If 8 bits are asked for without a folder for them, the weights cannot be read, or the file cannot be written.
    pub fn weights(&mut self, part: &str, weights: Weights, uses: &Uses) -> Result<Weights> {
        match self.options.precision {
            Precision::F32 => return Ok(weights),
            Precision::F16 => return Ok(weights.computing_in(Floats::F16)),
            Precision::Bf16 => return Ok(weights.computing_in(Floats::Bf16)),
            Precision::W8A8 => {}
        }
        let folder = self.options.cache.as_deref();
        let folder = folder.ok_or_else(|| Error::Model("8-bit weights need a folder for files of them".into()))?;
        let wanted = Wanted { rules: self.rules, source: source(&weights, uses, self.rules) };
        let path = folder.join(format!("{part}.{EXTENSION}"));
        if let Some(found) = wanted.find(&path) {
            return Ok(found);
        }
        std::fs::create_dir_all(folder).map_err(|error| unwritable(&path, &error))?;
        // Two processes may want the same file. The lock goes with the process, so a crash leaves none.
        let lock = File::open(folder).map_err(|error| unwritable(&path, &error))?;
        lock.lock().map_err(|error| unwritable(&path, &error))?;
        if let Some(found) = wanted.find(&path) {
            return Ok(found);
        }
        write::write(&path, part, &weights, uses, &wanted, self.progress)?;
        lock.sync_all().map_err(|error| unwritable(&path, &error))?;
        wanted.find(&path).ok_or_else(|| {
            let path = path.display();
            Error::Model(format!("{path} was written, but not as it was to be; the disk may be damaged"))
        })
    }
}

/// The rules and the source that a file must have.
struct Wanted {
    rules: Rules,
    source: String,
}

impl Wanted {
    /// The file, if it is there, whole, and suits. Anything else is made anew.
    fn find(&self, path: &Path) -> Option<Weights> {
        let found = Weights::open(path).ok()?;
        let says = |key: &str, value: &str| found.note(key) == Some(value);
        let suits =
            says(VERSION_KEY, VERSION) && says(BITS_KEY, self.rules.bits.word()) && says(SOURCE_KEY, &self.source);
        suits.then_some(found)
    }

    fn notes(&self) -> BTreeMap<&'static str, String> {
        let blank = "0".repeat(64);
        let bits = self.rules.bits.word().to_owned();
        [(VERSION_KEY, VERSION.to_owned()), (BITS_KEY, bits), (SOURCE_KEY, self.source.clone()), (DIGEST_KEY, blank)]
            .into()
    }
}

/// A digest of all that decides about the numbers in a file.
fn source(weights: &Weights, uses: &Uses, rules: Rules) -> String {
    let mut digest = Sha256::new();
    digest.update(weights.identity());
    digest.update(rules.smallest.to_le_bytes());
    digest.update(format!("{uses:?}"));
    hex(&digest.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::Model(format!("cannot write {}: {error}", path.display()))
}

/// Makes the files in 8 bits for a model, if they are not there or damaged.
///
/// # Errors
/// If the model cannot be used, or the files cannot be written.
pub fn quantise(folder: &Path, cache: &Path, progress: &mut dyn FnMut(&Progress)) -> Result<()> {
    let options = Options { precision: Precision::W8A8, cache: Some(cache.into()), ..Options::default() };
    // Nothing else reads all of them: a picture of damaged weights looks like one of a bad model.
    for path in files(cache)?.iter().filter(|path| verify_file(path).is_err()) {
        std::fs::remove_file(path).map_err(|error| unwritable(path, &error))?;
    }
    let suit = WeightPreparation { options: &options, rules: Rules::of_this_machine(), progress };
    Pipeline::open_with(folder, suit).map(|_| ())
}

/// Reads all files of ours in a folder and compares their digests. Gives their names.
///
/// # Errors
/// If one is damaged; it can be deleted, and is then made anew.
pub fn verify(cache: &Path) -> Result<Vec<PathBuf>> {
    let found = files(cache)?;
    found.iter().try_for_each(|path| verify_file(path))?;
    Ok(found)
}

/// All files of ours in a folder, by name. There are none without the folder.
fn files(cache: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |error: std::io::Error| Error::Model(format!("cannot read {}: {error}", cache.display()));
    let entries = match std::fs::read_dir(cache) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>();
    let mut found = paths.map_err(unreadable)?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    found.sort();
    Ok(found)
}

fn verify_file(path: &Path) -> Result<()> {
    let damaged = || Error::Model(format!("{} is damaged; delete it, and it is created again", path.display()));
    let unreadable = |error: std::io::Error| Error::Model(format!("cannot read {}: {error}", path.display()));
    let weights = Weights::open(path)?;
    let stated = weights.note(DIGEST_KEY).ok_or_else(damaged)?.to_owned();
    let header = weights.header();
    drop(weights);
    // The file is read and not mapped: a bad sector is then an error and not the end of the process.
    let mut file = File::open(path).map_err(unreadable)?;
    let mut begin = vec![0; header];
    file.read_exact(&mut begin).map_err(unreadable)?;
    let mut digest = Sha256::new();
    digest.update(blank(&begin).ok_or_else(damaged)?.0);
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes).map_err(unreadable)? {
            0 => break,
            count => digest.update(&bytes[..count]),
        }
    }
    if hex(&digest.finalize()) == stated { Ok(()) } else { Err(damaged()) }
}

/// A header whose digest is blank, as it was when the digest was taken, and where the digest stands.
fn blank(header: &[u8]) -> Option<(Vec<u8>, usize)> {
    let key = format!("\"{DIGEST_KEY}\":\"");
    let at = header.windows(key.len()).position(|window| window == key.as_bytes())? + key.len();
    let mut header = header.to_vec();
    header.get_mut(at..at + 64)?.fill(b'0');
    Some((header, at))
}
