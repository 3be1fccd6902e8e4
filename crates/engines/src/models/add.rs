//! Makes a folder that is on this machine already an installed model.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use super::catalogue::all_parts;
use super::download::{Watch, sha256};
use super::manifest::{MANIFEST, Manifest, ModelFile, write};
use super::pull::pipeline_class;
use super::selection::{RemoteFile, select};
use super::{CACHE, INDEX, Installed, directory, is_name};
use tintype_system::data_dir;

/// The name of a model from that of its folder; `None` if that holds nothing usable.
pub fn name_of_folder(folder: &Path) -> Option<String> {
    let name = folder.file_name()?.to_str()?.to_ascii_lowercase();
    let letter = |letter: char| if letter.is_ascii_alphanumeric() || "._".contains(letter) { letter } else { '-' };
    let name: String = name.chars().map(letter).collect();
    let name = name.trim_matches(['-', '.', '_']).to_owned();
    is_name(&name).then_some(name)
}

/// Installs the model in `folder` under a name, without copying its files. With `hash`, `tintype model verify` can later
/// find damage that leaves the length of a file as it is.
///
/// # Errors
/// A sentence for the operator: the folder is no model, or the name is taken.
pub fn add(data_dir: &Path, folder: &Path, name: &str, hash: bool, watch: &dyn Watch) -> Result<Installed, String> {
    if !is_name(name) {
        return Err(format!(
            "{name:?} cannot be the name of a model: give one of lower-case letters, digits, dots and hyphens as --name"
        ));
    }
    let unreadable = |error: io::Error| format!("{}: {error}", folder.display());
    let folder = folder.canonicalize().map_err(unreadable)?;
    let pipeline = pipeline_class(&folder)?;
    let files = select(&listing(&folder)?, &all_parts(), false)
        .map_err(|reason| format!("{}: {}", folder.display(), reason.replace("repository", "folder")))?;
    let total = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
    watch.begin(if hash { total } else { 0 }, 0);
    let mut manifest = Manifest::new(name, &pipeline, Vec::new());
    for RemoteFile { path, bytes, .. } in files {
        let hashed = hash.then(|| File::open(folder.join(&path)).and_then(|mut file| sha256(&mut file, watch)));
        let sha256 = hashed.transpose().map_err(|error| format!("{path}: {error}"))?;
        manifest.files.push(ModelFile { path, bytes, sha256 });
    }
    manifest.folder = Some(folder.clone());
    manifest.check(name).map_err(|reason| format!("the model {reason}"))?;
    let models = directory(data_dir);
    let own = models.join(name);
    data_dir::create(&models)?;
    fs::create_dir(&own).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => format!("there is a model {name} already: give another name as --name"),
        _ => format!("cannot create {}: {error}", own.display()),
    })?;
    write(&own, MANIFEST, &manifest.text()).inspect_err(|_| drop(fs::remove_dir_all(&own)))?;
    File::open(&models).and_then(|models| models.sync_all()).map_err(|error| error.to_string())?;
    Ok(Installed { name: name.to_owned(), folder, cache: Some(own.join(CACHE)), manifest: Some(manifest) })
}

/// The files of a folder as a hub would list them.
fn listing(folder: &Path) -> Result<Vec<RemoteFile>, String> {
    let file = |path: String| {
        let metadata = fs::metadata(folder.join(&path)).ok().filter(fs::Metadata::is_file)?;
        // Nothing is downloaded, so nothing is compared.
        Some(RemoteFile { path, bytes: metadata.len(), sha256: Some("0".repeat(64)), git_sha1: None })
    };
    let mut found: Vec<_> = file(INDEX.into()).into_iter().collect();
    for part in all_parts() {
        let names = super::names(&folder.join(&part))?;
        found.extend(names.into_iter().filter_map(|name| file(format!("{part}/{name}"))));
    }
    Ok(found)
}
