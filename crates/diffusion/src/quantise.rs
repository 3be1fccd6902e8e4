//! 8-bit weights, and weights with merged LoRA files: made once from a model's files, kept in cache files, and mapped
//! from then on.
//!
//! The files are safetensors files. A linear layer's matrix has 8 bits per number and one scale per output; it is
//! stored with one column per output, as the kernels read it. Everything else has 32 bits. Only tensors that the graph
//! uses are included, so a part runs from this file alone, without memory of its own. Merged weights have the type that
//! the graph computes with; their file only contains tensors that a LoRA changes, and the others stay in the model's
//! files.
//!
//! A file is written under a temporary name, synced, and renamed when complete, so that a finished file's name never
//! stands for half a file. Its header contains a digest of all its content, and the identity of the source weights. An
//! engine checks both when it starts, for the files that it needs.

mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::graph::Uses;
use crate::lora::Changes;
use crate::pipelines::Options;
use crate::weights::{Floats, Weights};
use crate::{Error, Pipeline, Precision, Result};

/// The extensions of cache files: in 8 bits, and merged.
const EXTENSION: &str = "w8a8";
const MERGED: &str = "merged";

/// The extension of an incomplete file.
const PARTIAL: &str = "partial";

/// The version of the file format and of the rules for making files. Files with another version are made again.
const VERSION: &str = "1";

/// Cache files with different LoRA files to keep per part. Each change of a weight makes another one.
const KEPT: usize = 4;

/// Metadata keys in the header.
const VERSION_KEY: &str = "tintype_w8a8";
const MERGED_KEY: &str = "tintype_merged";
const BITS_KEY: &str = "bits";
const SOURCE_KEY: &str = "source";
const DIGEST_KEY: &str = "sha256";

/// Inputs and outputs that a layer must have to be worth 8 bits. In known models, the first and last layers, which
/// process the few channels of a latent picture, have fewer, and would add the most error.
pub const SMALLEST: usize = 256;

/// The largest magnitude of a quantised weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// 63: two products of unsigned and signed bytes fit in 16 bits, in which processors without VNNI add them.
    Seven,
    /// 127.
    Eight,
}

impl Bits {
    /// As many bits as this machine's kernels add without overflow.
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

/// The rules for quantising weights.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The largest magnitude.
    pub bits: Bits,
    /// Inputs and outputs that a layer must have.
    pub smallest: usize,
}

impl Rules {
    /// The rules for real models on this machine.
    pub fn of_this_machine() -> Self {
        Self { bits: Bits::of_this_machine(), smallest: SMALLEST }
    }
}

/// The progress of quantising one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The name of the part's folder.
    pub part: String,
    /// Bytes written.
    pub done: u64,
    /// Bytes to write in total.
    pub total: u64,
}

/// Prepares each part's weights in the requested precision.
pub struct WeightPreparation<'a> {
    /// How the model is loaded.
    pub options: &'a Options,
    /// The rules for 8-bit weights.
    pub rules: Rules,
    /// Called with the progress.
    pub progress: &'a mut dyn FnMut(&Progress),
}

impl std::fmt::Debug for WeightPreparation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WeightPreparation({:?}, {:?})", self.options, self.rules)
    }
}

impl WeightPreparation<'_> {
    /// A part's weights for a graph with these `uses`, with the LoRA files from the options. Missing 8-bit or merged
    /// weights are made. Without a folder, merged weights are kept in memory.
    ///
    /// # Errors
    /// If 8 bits are requested without a folder, a LoRA file doesn't fit, the weights cannot be read, or the file
    /// cannot be written.
    pub fn weights(&mut self, part: &str, weights: Weights, uses: &Uses) -> Result<Weights> {
        let any_size = self.options.keeps_parts();
        Ok(self.precise(part, weights, uses)?.for_any_size(any_size))
    }

    /// An autoencoder's weights, unchanged. Unless the whole model computes with 32 bits, a device can use TF32 for it:
    /// as fast as 16 bits where products dominate, as precise as `f16`, and with the range of 32 bits, which Stable
    /// Diffusion XL's decoder needs.
    pub fn autoencoder(&self, weights: Weights) -> Weights {
        let short_products = self.options.precision != Precision::F32;
        weights.for_any_size(self.options.keeps_parts()).with_short_products(short_products)
    }

    /// The weights in the requested precision.
    fn precise(&mut self, part: &str, weights: Weights, uses: &Uses) -> Result<Weights> {
        let changes = Changes::read(&self.options.loras, part, &weights, uses)?;
        let folder = self.options.cache.as_deref();
        let floats = match self.options.precision {
            Precision::F32 => Floats::F32,
            Precision::F16 => Floats::F16,
            Precision::Bf16 => Floats::Bf16,
            Precision::W8A8 => {
                let folder =
                    folder.ok_or_else(|| Error::Unusable("8-bit weights need a folder for files of them".into()))?;
                let spec = FileSpec { rules: Some(self.rules), source: source(&weights, uses, self.rules, &changes) };
                let items = || write::items(&weights, uses, self.rules, &changes);
                return made(folder, part, &spec, !changes.is_empty(), items, self.progress);
            }
        };
        let weights = weights.computing_in(floats);
        if changes.is_empty() {
            return Ok(weights);
        }
        let spec = FileSpec { rules: None, source: merged_source(&weights, &changes) };
        let items = || write::merged(&weights, &changes);
        let merged = match folder {
            Some(folder) => made(folder, part, &spec, true, items, self.progress)?,
            None => {
                let bytes = write::in_memory(part, &items()?, &spec, self.progress)?;
                Weights::parse(format!("{} with LoRA files", weights.path()), bytes.leak())?
            }
        };
        Ok(weights.overlaid(&merged))
    }
}

/// A part's cache file, which is made if it is missing. A part `changed` by LoRA files gets its own file name, so that
/// engines with different LoRA files don't keep replacing it.
fn made<'w>(
    folder: &Path,
    part: &str,
    spec: &FileSpec,
    changed: bool,
    items: impl FnOnce() -> Result<Vec<write::Item<'w>>>,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Weights> {
    let stem = if changed { format!("{part}-{}", &spec.source[..16]) } else { part.to_owned() };
    let path = folder.join(format!("{stem}.{}", spec.extension()));
    if let Some(found) = spec.find(&path) {
        return Ok(found);
    }
    std::fs::create_dir_all(folder).map_err(|error| unwritable(&path, &error))?;
    // Two processes may need the same file. The lock ends with the process, so it doesn't survive a crash.
    let lock = File::open(folder).map_err(|error| unwritable(&path, &error))?;
    lock.lock().map_err(|error| unwritable(&path, &error))?;
    if let Some(found) = spec.find(&path) {
        return Ok(found);
    }
    if changed {
        forget(folder, part, spec.extension())?;
    }
    write::write(&path, part, items, spec, progress)?;
    lock.sync_all().map_err(|error| unwritable(&path, &error))?;
    spec.open(&path).ok_or_else(|| {
        let path = path.display();
        Error::Unusable(format!("{path} was written, but not as it was to be; the disk may be damaged"))
    })
}

/// Removes a part's oldest files with other LoRA files, to make room for one more, and partial files left by a crash.
/// Engines that use removed files have them mapped, and keep them until they end.
fn forget(folder: &Path, part: &str, extension: &str) -> Result<()> {
    let of_part = |path: &PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.strip_prefix(part));
        stem.is_some_and(|rest| rest.starts_with('-'))
    };
    let has = |path: &Path, extension: &str| path.extension().is_some_and(|found| found == extension);
    let all: Vec<_> = listed(folder)?.into_iter().filter(of_part).collect();
    let mut whole: Vec<_> = all.iter().filter(|path| has(path, extension)).collect();
    whole.sort_by_key(|path| std::fs::metadata(path).and_then(|about| about.modified()).ok());
    let many = (whole.len() + 1).saturating_sub(KEPT);
    // The folder is locked, so no partial file is being written now.
    let partial = all.iter().filter(|path| has(path, PARTIAL));
    let mut removed = whole.into_iter().take(many).chain(partial);
    removed.try_for_each(|path| std::fs::remove_file(path).map_err(|error| unwritable(path, &error)))
}

struct FileSpec {
    /// The rules for 8-bit weights; `None` for merged ones.
    rules: Option<Rules>,
    source: String,
}

impl FileSpec {
    fn extension(&self) -> &'static str {
        if self.rules.is_some() { EXTENSION } else { MERGED }
    }

    /// The file, if it is present, undamaged and suitable. Otherwise it is made again.
    fn find(&self, path: &Path) -> Option<Weights> {
        let found = self.open(path)?;
        // Nothing else reads the whole file, and damaged weights make pictures like a bad model's.
        verify_file(path).ok()?;
        touch(path);
        Some(found)
    }

    /// The file, if it is present and suitable.
    fn open(&self, path: &Path) -> Option<Weights> {
        let found = Weights::open(path).ok()?;
        let notes = self.notes();
        let mut notes = notes.iter().filter(|(key, _)| **key != DIGEST_KEY);
        notes.all(|(key, value)| found.note(key) == Some(value)).then_some(found)
    }

    fn notes(&self) -> BTreeMap<&'static str, String> {
        let blank = "0".repeat(64);
        let version = if self.rules.is_some() { VERSION_KEY } else { MERGED_KEY };
        let bits = self.rules.map(|rules| (BITS_KEY, rules.bits.word().to_owned()));
        let notes = [(version, VERSION.to_owned()), (SOURCE_KEY, self.source.clone()), (DIGEST_KEY, blank)];
        notes.into_iter().chain(bits).collect()
    }
}

/// Marks a file as used, so that [`forget`] removes it last. Does nothing if the file isn't writable.
#[expect(clippy::disallowed_methods, reason = "it is compared with times that the file system sets")]
fn touch(path: &Path) {
    drop(File::options().append(true).open(path).and_then(|file| file.set_modified(SystemTime::now())));
}

/// A digest of everything that determines a file's numbers.
fn source(weights: &Weights, uses: &Uses, rules: Rules, changes: &Changes) -> String {
    let mut digest = Sha256::new();
    digest.update(weights.identity());
    digest.update(rules.smallest.to_le_bytes());
    digest.update(format!("{uses:?}"));
    if !changes.is_empty() {
        digest.update(changes.digest());
    }
    hex(&digest.finalize())
}

/// A digest of everything that determines merged weights.
fn merged_source(weights: &Weights, changes: &Changes) -> String {
    let mut digest = Sha256::new();
    digest.update(weights.identity());
    digest.update(format!("{:?}", weights.computes_in()));
    digest.update(changes.digest());
    hex(&digest.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::Unusable(format!("cannot write {}: {error}", path.display()))
}

/// Makes a model's 8-bit files, if they are missing or damaged.
pub fn quantise(folder: &Path, cache: &Path, progress: &mut dyn FnMut(&Progress)) -> Result<()> {
    let options = Options { precision: Precision::W8A8, cache: Some(cache.into()), ..Options::default() };
    prepare(folder, &options, progress).map(drop)
}

/// Opens a model, and makes the cache files that it needs, if they are missing or damaged.
pub fn prepare(folder: &Path, options: &Options, progress: &mut dyn FnMut(&Progress)) -> Result<Pipeline> {
    Pipeline::open_with(folder, WeightPreparation { options, rules: Rules::of_this_machine(), progress })
}

/// Reads all cache files in a folder and compares their digests. Returns their names.
///
/// # Errors
/// If a file is damaged. It can be deleted, and is then made again.
pub fn verify(cache: &Path) -> Result<Vec<PathBuf>> {
    let found = files(cache)?;
    found.iter().try_for_each(|path| verify_file(path))?;
    Ok(found)
}

/// All cache files in a folder, sorted by name. Empty without the folder.
fn files(cache: &Path) -> Result<Vec<PathBuf>> {
    let mut found = listed(cache)?;
    found.retain(|path| path.extension().is_some_and(|found| [EXTENSION, MERGED].iter().any(|ours| found == *ours)));
    Ok(found)
}

fn listed(cache: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |error: std::io::Error| Error::Unusable(format!("cannot read {}: {error}", cache.display()));
    let entries = match std::fs::read_dir(cache) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>();
    let mut found = paths.map_err(unreadable)?;
    found.sort();
    Ok(found)
}

fn verify_file(path: &Path) -> Result<()> {
    let damaged = || Error::Unusable(format!("{} is damaged; delete it, and it is created again", path.display()));
    let unreadable = |error: std::io::Error| Error::Unusable(format!("cannot read {}: {error}", path.display()));
    let weights = Weights::open(path)?;
    let stated = weights.note(DIGEST_KEY).ok_or_else(damaged)?.to_owned();
    let header = weights.header();
    drop(weights);
    // The file is read and not mapped, so that a bad sector is an error rather than the end of the process.
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

/// A header with its digest blanked, as when the digest was computed, and the digest's position.
fn blank(header: &[u8]) -> Option<(Vec<u8>, usize)> {
    let key = format!("\"{DIGEST_KEY}\":\"");
    let at = header.windows(key.len()).position(|window| window == key.as_bytes())? + key.len();
    let mut header = header.to_vec();
    header.get_mut(at..at + 64)?.fill(b'0');
    Some((header, at))
}
