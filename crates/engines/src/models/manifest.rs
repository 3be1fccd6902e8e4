//! An installed model's manifest: where its files come from, and what each must contain.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// Format version. Others are rejected.
const FORMAT: u32 = 1;
/// Most bytes in a manifest (a file takes about 200 bytes) or index.
pub(super) const MAX_JSON_BYTES: u64 = 1 << 20;
/// Most files of a model.
pub const MAX_FILES: usize = 1_000;
/// Most characters in a file's path.
const MAX_PATH: usize = 255;

/// A model's files, origin and licence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    /// Its name.
    pub name: String,
    /// Its pipeline's class, as in `model_index.json`.
    pub pipeline: String,
    /// The absolute path of the folder with its files, if added from there with `tintype model add`. Otherwise the
    /// files lie beside the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The path in `folder` of the file to open, if a single file was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The repository that the files were downloaded from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The licence; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<Licence>,
    /// Every file.
    pub files: Vec<ModelFile>,
}

/// A repository on a hub, at one commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// URL of the hub.
    pub endpoint: String,
    /// Owner and name.
    pub repository: String,
    /// The commit.
    pub commit: String,
}

/// A licence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Licence {
    /// Its usual name.
    pub name: String,
    /// Where its text is.
    pub url: String,
    /// Whether it allows commercial use; `None` if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commercial: Option<bool>,
    /// When the operator accepted it.
    pub accepted_at: String,
}

/// A model's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Its path in the model's folder, with `/`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal; `None` if it wasn't hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl Manifest {
    /// A manifest for files that lie beside it.
    pub fn new(name: &str, pipeline: &str, files: Vec<ModelFile>) -> Self {
        let (name, pipeline) = (name.to_owned(), pipeline.to_owned());
        Self { format: FORMAT, name, pipeline, folder: None, file: None, source: None, licence: None, files }
    }

    /// The total length of all files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Reads the manifest in the folder of the model `name`. Doesn't follow a symbolic link in place of that folder or
    /// the file, and doesn't wait for pipes.
    ///
    /// # Errors
    /// A message for the operator: it cannot be read, or an entry cannot be trusted.
    pub fn read(folder: &Path, name: &str) -> Result<Self, String> {
        let manifest: Self = read_json(folder, MANIFEST)?;
        manifest.check(name).map_err(|reason| format!("{}: {reason}", folder.join(MANIFEST).display()))?;
        Ok(manifest)
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a manifest is JSON");
        text.push('\n');
        text
    }

    /// Checks everything that later code relies on.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self, name: &str) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("has the format {}, and this release knows {FORMAT}", self.format));
        }
        if self.name != name {
            return Err(format!("is of the model {:?}", self.name));
        }
        if self.folder.as_ref().is_some_and(|folder| !folder.is_absolute()) {
            return Err("names a folder without an absolute path".into());
        }
        if self.files.is_empty() || self.files.len() > MAX_FILES {
            return Err(format!("names {} files; 1 to {MAX_FILES} are allowed", self.files.len()));
        }
        if let Some(name) = &self.file
            && (self.folder.is_none() || !self.files.iter().any(|file| file.path == *name))
        {
            return Err(format!("names the single file {name:?}, which is not one of its files in a folder"));
        }
        let mut known = BTreeSet::new();
        for file in &self.files {
            // An operator's files can have any name, and lie in the operator's folder.
            if self.file.is_some() { check_file_path(&file.path) } else { check_path(&file.path) }?;
            if !known.insert(&file.path) {
                return Err(format!("names {:?} twice", file.path));
            }
            if file.sha256.as_deref().is_some_and(|hash| !is_sha256(hash)) {
                return Err(format!("has no SHA-256 for {:?}", file.path));
            }
        }
        Ok(())
    }
}

/// Reads a file of up to 1 MiB in a model's folder.
///
/// # Errors
/// A message for the operator: it cannot be read, or contains something else.
pub(super) fn read_json<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<T, String> {
    parse(&folder.join(name), open(folder, name))
}

/// Reads an operator's file of up to 1 MiB. It can be a symbolic link, as all files in a hub's cache are.
pub(super) fn read_operators_json<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    parse(path, openat(CWD, path, flags, Mode::empty()).map(File::from))
}

fn parse<T: DeserializeOwned>(path: &Path, file: rustix::io::Result<File>) -> Result<T, String> {
    let wrong = |reason: String| format!("{}: {reason}", path.display());
    let file = file.map_err(|error| wrong(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if !metadata.is_file() {
        return Err(wrong("is not a file".into()));
    }
    let mut text = String::new();
    file.take(MAX_JSON_BYTES + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > MAX_JSON_BYTES {
        return Err(wrong("is larger than 1 MiB".into()));
    }
    let text = text.trim_start_matches('\u{feff}');
    serde_json::from_str(text).map_err(|error| wrong(format!("is damaged: {error}")))
}

/// Opens a file through its folder. Neither may be a symbolic link.
pub(super) fn open(folder: &Path, name: &str) -> rustix::io::Result<File> {
    let inside = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(CWD, folder, inside | OFlags::DIRECTORY, Mode::empty())?;
    // A pipe planted here must not block its reader.
    openat(folder, name, inside | OFlags::NONBLOCK, Mode::empty()).map(File::from)
}

/// Writes a file in a model's folder, completely or not at all.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    let (path, new) = (folder.join(name), folder.join(format!(".{name}.new")));
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let mut file = options.open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|error: std::io::Error| format!("cannot write {}: {error}", path.display()))
}

/// Whether a file's path stays in its model's folder, is normalised, and isn't one of our own files.
///
/// # Errors
/// The reason if it isn't valid.
pub fn check_path(path: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+/".contains(&byte);
    let short: String = path.chars().take(80).collect();
    if path.is_empty() || path.len() > MAX_PATH || !path.bytes().all(plain) {
        return Err(format!("names {short:?}, which is not the path of a model file"));
    }
    let names = |path: &str| path.split('/').all(|name| !name.is_empty() && !name.starts_with('.'));
    let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let first = path.split('/').next().unwrap_or_default();
    if !names(path) || !inside || [MANIFEST, super::CHECK, super::CACHE].contains(&first) {
        return Err(format!("names {short:?}, which is not the path of a model file"));
    }
    Ok(())
}

/// Whether a file's path stays in its folder and is normalised. Its names can contain any characters.
///
/// # Errors
/// The reason if it isn't valid.
pub fn check_file_path(path: &str) -> Result<(), String> {
    let short: String = path.chars().take(80).collect();
    let is_name = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.chars().any(char::is_control);
    if path.len() > MAX_PATH || !path.split('/').all(is_name) {
        return Err(format!("names {short:?}, which is not the path of a model file"));
    }
    Ok(())
}

/// Whether a text is a lower-case hexadecimal SHA-256.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let file = ModelFile { path: "unet/a.safetensors".into(), bytes: 3, sha256: Some("ab".repeat(32)) };
        Manifest::new("sd-1.5", "StableDiffusionPipeline", vec![file])
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(MANIFEST), manifest().text()).expect("written");
        assert_eq!(Manifest::read(folder.path(), "sd-1.5"), Ok(manifest()));
        let error = Manifest::read(folder.path(), "other").expect_err("another name");
        assert!(error.ends_with("is of the model \"sd-1.5\""), "{error}");
    }

    #[test]
    fn a_manifest_that_leads_elsewhere_is_refused() {
        let hostile = ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\0b", "a\nb", "a\\b", ".part/x"];
        for path in hostile.into_iter().chain([MANIFEST, "cache/x", &"a".repeat(256)]) {
            let mut manifest = manifest();
            manifest.files[0].path = path.into();
            assert!(manifest.check("sd-1.5").is_err(), "{path:?}");
        }
        let mut twice = manifest();
        twice.files.push(twice.files[0].clone());
        assert!(twice.check("sd-1.5").is_err());
        let mut relative = manifest();
        relative.folder = Some("here".into());
        assert!(relative.check("sd-1.5").is_err());
        for hash in ["AB".repeat(32), "ab".repeat(31), "zz".repeat(32)] {
            let mut manifest = manifest();
            manifest.files[0].sha256 = Some(hash);
            assert!(manifest.check("sd-1.5").is_err());
        }
        let mut other = manifest();
        other.format = 2;
        assert!(other.check("sd-1.5").is_err());
    }

    #[test]
    fn an_opened_file_has_any_name_and_lies_in_a_folder() {
        let single = |name: &str| {
            let mut manifest = manifest();
            manifest.files[0].path = name.into();
            (manifest.folder, manifest.file) = (Some("/srv/models".into()), Some(name.into()));
            manifest
        };
        for name in ["model.safetensors", "Épic Model (v6) [fp16].safetensors", "模型.safetensors", "a/b (1)"] {
            assert_eq!(single(name).check("sd-1.5"), Ok(()), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/../x",
            "/etc/passwd",
            "a//b",
            ".hidden",
            "a/.b",
            "a\0b",
            "a\nb",
            &"a".repeat(256),
        ] {
            assert!(single(name).check("sd-1.5").is_err(), "{name:?}");
        }
        let mut nowhere = single("model.safetensors");
        nowhere.folder = None;
        assert!(nowhere.check("sd-1.5").is_err());
        let mut other = single("model.safetensors");
        other.file = Some("other.safetensors".into());
        assert!(other.check("sd-1.5").is_err());
    }

    #[test]
    fn links_pipes_and_endless_files_are_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(MANIFEST);
        let read = || Manifest::read(folder.path(), "sd-1.5").expect_err("no manifest");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert!(read().contains("symbolic links"), "{}", read());
        std::fs::remove_file(&path).expect("removed");
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR).expect("a pipe");
        assert!(read().ends_with("is not a file"), "{}", read());
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, " ".repeat(2 << 20)).expect("written");
        assert!(read().ends_with("is larger than 1 MiB"), "{}", read());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).expect("a link");
        assert!(Manifest::read(&link, "sd-1.5").is_err());
    }
}
