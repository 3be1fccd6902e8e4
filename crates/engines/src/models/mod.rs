//! Installed models. Each has a folder below `models` in the data directory:
//!
//! ```text
//! models/NAME/manifest.json      its origin, its licence and its files; written last
//! models/NAME/model_index.json   its files, as diffusers lays them out, unless the manifest names another folder or a
//!                                single file
//! models/NAME/cache/             made from its files, and made again if it is gone: quantised weights
//! models/.NAME.part/             an unfinished pull
//! models/.NAME.gone/             an unfinished removal
//! models/.NAME.busy              locked while a command adds or removes the model
//! ```
//!
//! A folder without a manifest isn't a model.

mod add;
mod busy;
pub mod catalogue;
mod download;
pub mod eight_bits;
pub mod hub;
pub mod library;
pub mod manifest;
mod missing_index;
pub mod pull;
mod remove;
mod selection;

pub use self::add::{add, name_of};
pub use self::busy::Busy;
pub use self::download::ProgressSink;
pub use self::remove::{NotRemoved, can_remove, remove};

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tintype_diffusion::pipelines::{KNOWN, Recognised, recognise};
use tintype_system::watched_files::FileVersion;

use self::manifest::{MANIFEST, Manifest, check_file_path};

/// The folder for all models in the data directory.
const MODELS: &str = "models";
/// A model's folder for files made from its own.
const CACHE: &str = "cache";
/// The result of checking a model with the engine, beside its manifest.
const CHECK: &str = "check.json";
/// The file that identifies a folder as a model.
pub const INDEX: &str = "model_index.json";
/// Suffix of an unfinished pull's name.
const PART: &str = ".part";
/// Most entries in the models folder.
const MAX_ENTRIES: usize = 1_000;
/// Most characters in a name.
const MAX_NAME: usize = 64;

/// A model that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The name of the installed model, folder or file.
    pub name: String,
    /// The folder with `model_index.json`, or with `file`.
    pub folder: PathBuf,
    /// The path in this folder of the file to open, if it is a single file.
    pub file: Option<String>,
    /// The folder for files made from its own; it may not exist yet. `None` if the model isn't installed.
    pub cache: Option<PathBuf>,
    /// Its manifest. `None` if the model isn't installed.
    pub manifest: Option<Manifest>,
    /// Why the engine could not open it when it was installed or last verified.
    pub unusable: Option<String>,
}

/// An installed model's current version, which distinguishes it from an earlier one with the same name; `None` if there
/// is none, or a command is adding or removing it.
pub fn version(data_dir: &Path, name: &str) -> Option<FileVersion> {
    let models = directory(data_dir);
    if !is_name(name) || busy::is_busy(&models, name) {
        return None;
    }
    FileVersion::of(&models.join(name).join(MANIFEST))
}

/// Prevents a model from being removed. The operating system releases it when the process ends.
#[derive(Debug)]
pub struct Hold {
    _file: Option<File>,
}

/// A model in the models folder, usable or not.
#[derive(Debug)]
pub struct ListedModel {
    /// The name of the model.
    pub name: String,
    /// The model, or a message for the operator about why it cannot be used.
    pub found: Result<Installed, String>,
}

/// The engine's result from the last check of a model.
#[derive(Debug, Serialize, Deserialize)]
struct Check {
    unusable: Option<String>,
}

impl Installed {
    /// Whether this release can render with it.
    ///
    /// # Errors
    /// A message for the operator with the reason why it can't.
    pub fn usable(&self) -> Result<(), String> {
        let pipeline = self.manifest.as_ref().map(|manifest| &manifest.pipeline);
        if let Some(pipeline) = pipeline.filter(|pipeline| !catalogue::is_usable(pipeline)) {
            let known = KNOWN.join(", ");
            return Err(format!("this release does not render with {pipeline}, but with {known} alone"));
        }
        self.unusable.clone().map_or(Ok(()), Err)
    }

    /// Checks that this user can read all of its files.
    pub fn readable(&self) -> Result<(), String> {
        self.manifest.iter().flat_map(|manifest| &manifest.files).try_for_each(|file| {
            let path = self.folder.join(&file.path);
            File::open(&path).map(drop).map_err(|error| format!("cannot read {}: {error}", path.display()))
        })
    }

    /// Saves whether the engine can open it. Only for installed models. The manifest stays unchanged, because servers
    /// hold a lock on it.
    ///
    /// # Errors
    /// A message for the operator: the file cannot be written.
    pub fn note_check(&mut self, data_dir: &Path, unusable: Option<String>) -> Result<(), String> {
        if self.unusable == unusable {
            return Ok(());
        }
        self.unusable.clone_from(&unusable);
        let text = serde_json::to_string(&Check { unusable }).expect("a text is always JSON");
        manifest::write(&directory(data_dir).join(&self.name), CHECK, &text)
    }

    /// The folder or single file to open.
    pub fn path(&self) -> PathBuf {
        self.file.as_ref().map_or_else(|| self.folder.clone(), |file| self.folder.join(file))
    }

    /// Prevents the model from being removed while the result lives.
    ///
    /// # Errors
    /// A message for the operator: a command is adding or removing it.
    pub fn hold(&self) -> Result<Hold, String> {
        let Some(cache) = &self.cache else { return Ok(Hold { _file: None }) };
        let manifest = cache.with_file_name(MANIFEST);
        let busy = format!("the model {} is being added or removed", self.name);
        let models = cache.parent().and_then(Path::parent);
        if models.is_some_and(|models| busy::is_busy(models, &self.name)) {
            return Err(busy);
        }
        let unusable = |error: io::Error| format!("cannot hold the model {}: {error}", self.name);
        let file = File::open(manifest).map_err(unusable)?;
        match file.try_lock_shared() {
            Ok(()) => Ok(Hold { _file: Some(file) }),
            Err(TryLockError::WouldBlock) => Err(busy),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }
}

/// A model in a file, and in files beside it.
#[derive(Debug)]
struct Single {
    /// The absolute path of the folder that contains its files, directly or in subfolders.
    folder: PathBuf,
    /// The file's path in that folder.
    file: String,
    /// All of its files in that folder.
    files: Vec<String>,
    pipeline: &'static str,
}

impl Single {
    /// Reads a file's header.
    ///
    /// # Errors
    /// A message for the operator: the file isn't a model, or isn't one for this release.
    fn recognise(path: &Path) -> Result<Self, String> {
        let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let Recognised { class, folder, files, .. } = recognise(&path).map_err(|error| error.to_string())?;
        let named = |file: &PathBuf| file.to_str().filter(|file| check_file_path(file).is_ok()).map(str::to_owned);
        let rename = |file: &PathBuf| format!("{}: give the file another name", folder.join(file).display());
        let files = files.iter().map(|file| named(file).ok_or_else(|| rename(file))).collect::<Result<Vec<_>, _>>()?;
        let file = files.first().cloned().unwrap_or_default();
        Ok(Self { folder, file, files, pipeline: class })
    }
}

/// The folder of all models.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join(MODELS)
}

/// Whether a text can be a model's name: up to 64 lower-case letters, digits, dots, hyphens and underscores, starting
/// with a letter or digit.
pub fn is_name(text: &str) -> bool {
    let letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= MAX_NAME
        && text.as_bytes().first().is_some_and(letter)
        && text.bytes().all(|byte| letter(&byte) || b"._-".contains(&byte))
}

/// Whether there is a model with this name, in any state.
pub fn is_taken(data_dir: &Path, name: &str) -> bool {
    is_name(name) && std::fs::symlink_metadata(directory(data_dir).join(name)).is_ok()
}

/// The folder for a model's files until it is complete.
fn staging(data_dir: &Path, name: &str) -> PathBuf {
    directory(data_dir).join(format!(".{name}{PART}"))
}

/// The names of models with an unfinished pull.
///
/// # Errors
/// A message for the operator: the folder cannot be read.
pub fn unfinished(data_dir: &Path) -> Result<Vec<String>, String> {
    let names = names(&directory(data_dir))?;
    let mut found: Vec<_> = names
        .iter()
        .filter_map(|name| name.strip_prefix('.')?.strip_suffix(PART))
        .filter(|name| is_name(name))
        .map(str::to_owned)
        .collect();
    found.sort();
    Ok(found)
}

/// The names of a folder's entries; none without the folder.
fn names(directory: &Path) -> Result<Vec<String>, String> {
    let unreadable = |error: io::Error| format!("cannot look into {}: {error}", directory.display());
    let inside = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        inside => inside.map_err(unreadable)?,
    };
    let mut names = Vec::new();
    for entry in inside {
        names.extend(entry.map_err(unreadable)?.file_name().into_string());
        if names.len() > MAX_ENTRIES {
            return Err(format!("{} holds more than {MAX_ENTRIES} entries", directory.display()));
        }
    }
    Ok(names)
}

/// Everything in the models folder, sorted by name. Empty without the folder.
///
/// # Errors
/// A message for the operator: the folder cannot be read, or contains more than 1,000 entries.
pub fn entries(data_dir: &Path) -> Result<Vec<ListedModel>, String> {
    let directory = directory(data_dir);
    let mut found: Vec<_> = names(&directory)?
        .into_iter()
        .filter(|name| is_name(name))
        .map(|name| ListedModel { found: open(&directory, &name), name })
        .collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// The model named by `--model`: an installed one, or else a folder or file.
///
/// # Errors
/// A message for the operator: there is no such model, or it is damaged.
pub fn find(data_dir: &Path, name_or_path: &str) -> Result<Installed, String> {
    let directory = directory(data_dir);
    if is_taken(data_dir, name_or_path) {
        return open(&directory, name_or_path);
    }
    let folder = Path::new(name_or_path);
    if folder.is_file() {
        let name = folder.file_name().map_or_else(|| name_or_path.into(), |name| name.to_string_lossy().into_owned());
        let Single { folder, file, .. } = Single::recognise(folder)?;
        return Ok(Installed { name, folder, file: Some(file), cache: None, manifest: None, unusable: None });
    }
    if folder.join(INDEX).is_file() {
        let folder = std::path::absolute(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let name = folder.file_name().map_or_else(|| name_or_path.into(), |name| name.to_string_lossy().into_owned());
        return Ok(Installed { name, folder, file: None, cache: None, manifest: None, unusable: None });
    }
    if folder.is_dir() {
        return Err(missing_index::explain(folder));
    }
    Err(missing(data_dir, name_or_path))
}

/// Whether a model or folder with this name exists, in any state.
pub fn exists(data_dir: &Path, name_or_folder: &str) -> bool {
    is_taken(data_dir, name_or_folder) || std::fs::symlink_metadata(name_or_folder).is_ok()
}

/// A message for the operator: there is no such model, and how to get it.
pub fn missing(data_dir: &Path, name: &str) -> String {
    let names: Vec<_> = entries(data_dir).unwrap_or_default().into_iter().map(|entry| entry.name).collect();
    let installed =
        if names.is_empty() { "none is installed".into() } else { format!("installed: {}", names.join(", ")) };
    format!("there is no model {name:?} ({installed}): {}", way_to(name))
}

/// How to get a model that is not on this machine.
fn way_to(name: &str) -> String {
    match (catalogue::find(name), pull::repository_name(name)) {
        (Some(_), _) => format!("`tintype model pull {name}` fetches it"),
        (None, Some(_)) => format!("if it is a repository of the hub, `tintype model pull {name}` fetches it"),
        (None, None) => "`tintype model list` shows the models that `tintype model pull` can fetch".to_owned(),
    }
}

/// An installed model from its manifest alone, regardless of its files.
///
/// # Errors
/// A message for the operator: there is no manifest, or it is damaged.
pub fn manifest_of(data_dir: &Path, name: &str) -> Result<Installed, String> {
    read(&directory(data_dir), name)
}

fn read(directory: &Path, name: &str) -> Result<Installed, String> {
    let own = directory.join(name);
    let manifest = Manifest::read(&own, name)?;
    let folder = manifest.folder.clone().unwrap_or_else(|| own.clone());
    let (name, file, cache) = (name.to_owned(), manifest.file.clone(), Some(own.join(CACHE)));
    let unusable = manifest::read_json(&own, CHECK).ok().and_then(|Check { unusable }| unusable);
    Ok(Installed { name, folder, file, cache, manifest: Some(manifest), unusable })
}

fn open(directory: &Path, name: &str) -> Result<Installed, String> {
    let installed = read(directory, name)?;
    // Lengths only: `tintype model verify` reads everything.
    for file in installed.manifest.iter().flat_map(|manifest| &manifest.files) {
        let path = installed.folder.join(&file.path);
        let found = std::fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        if !found.is_file() || found.len() != file.bytes {
            return Err(format!("{} has {} bytes instead of {}", path.display(), found.len(), file.bytes));
        }
    }
    Ok(installed)
}

#[cfg(test)]
mod tests {
    use super::manifest::ModelFile;
    use super::*;

    fn installed(data: &Path) -> Vec<Installed> {
        entries(data).expect("readable").into_iter().filter_map(|listed| listed.found.ok()).collect()
    }

    fn install(data: &Path, name: &str) -> PathBuf {
        let folder = directory(data).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join(INDEX), "{}").expect("written");
        let file = ModelFile { path: INDEX.into(), bytes: 2, sha256: None };
        std::fs::write(folder.join(MANIFEST), Manifest::new(name, "X", vec![file]).text()).expect("written");
        folder
    }

    #[test]
    fn a_model_that_a_server_uses_stays_after_a_check() {
        let data = tempfile::tempdir().expect("a folder");
        let folder = install(data.path(), "a");
        let manifest = std::fs::read(folder.join(MANIFEST)).expect("a manifest");
        let hold = find(data.path(), "a").expect("a model").hold().expect("held");
        for unusable in [Some("no"), None] {
            let unusable = unusable.map(str::to_owned);
            find(data.path(), "a").expect("a model").note_check(data.path(), unusable.clone()).expect("noted");
            assert_eq!(find(data.path(), "a").expect("a model").unusable, unusable);
            assert_eq!(std::fs::read(folder.join(MANIFEST)).expect("a manifest"), manifest);
            assert!(remove(data.path(), "a") == Err(NotRemoved::InUse("a".into())));
        }
        drop(hold);
        assert_eq!(remove(data.path(), "a"), Ok(true));
    }

    #[test]
    fn models_are_found_by_name_and_by_folder() {
        let data = tempfile::tempdir().expect("a folder");
        assert!(installed(data.path()).is_empty());
        let folder = install(data.path(), "one");
        install(data.path(), ".two.part");
        let found = installed(data.path());
        assert_eq!(found.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["one"]);
        assert_eq!(find(data.path(), "one"), Ok(found[0].clone()));
        assert_eq!(found[0].cache, Some(folder.join("cache")));
        let by_folder = find(data.path(), folder.to_str().expect("text")).expect("the folder");
        assert_eq!((by_folder.name.as_str(), by_folder.cache), ("one", None));
        assert!(find(data.path(), "two").is_err());
        assert!(find(data.path(), data.path().to_str().expect("text")).is_err());
    }

    #[test]
    fn a_damaged_model_is_named_and_not_used() {
        let data = tempfile::tempdir().expect("a folder");
        let folder = install(data.path(), "one");
        std::fs::write(folder.join(INDEX), "{ }").expect("written");
        let error = find(data.path(), "one").expect_err("damaged");
        assert!(error.ends_with("has 3 bytes instead of 2"), "{error}");
        assert!(installed(data.path()).is_empty());
        assert_eq!(entries(data.path()).expect("readable").len(), 1);
        std::fs::remove_dir_all(&folder).expect("removed");
        std::os::unix::fs::symlink("/", &folder).expect("a link");
        assert!(find(data.path(), "one").is_err());
    }

    #[test]
    fn names_are_plain() {
        for name in ["klein-4b", "sd-1.5", "a", "4", &"a".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", ".a", "-a", "a/b", "A", "a b", "a\0", "é", &"a".repeat(65)] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_model_in_use_is_held() {
        let data = tempfile::tempdir().expect("a folder");
        let folder = install(data.path(), "one");
        let found = find(data.path(), "one").expect("the model");
        let held = found.hold().expect("free");
        let remover = File::open(folder.join(MANIFEST)).expect("the manifest");
        assert!(matches!(remover.try_lock(), Err(TryLockError::WouldBlock)));
        drop(held);
        remover.try_lock().expect("free");
        assert!(found.hold().is_err());
    }
}
