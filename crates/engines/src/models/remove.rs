//! Removes an installed model.

use std::fmt;
use std::fs::{self, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::manifest::{MANIFEST, open};
use super::{directory, is_name, staging};

/// Why a model was not removed.
#[derive(Debug, PartialEq, Eq)]
pub enum NotRemoved {
    /// A server or another command is using this model.
    InUse(String),
    /// A message for the operator.
    Failed(String),
}

impl fmt::Display for NotRemoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(name) => write!(f, "the model {name} is in use: stop the server or the command that uses it"),
            Self::Failed(message) => f.write_str(message),
        }
    }
}

impl From<String> for NotRemoved {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

/// Removes a model, damaged or not, and everything left by an unfinished pull of it. The files in a folder added with
/// `tintype model add` stay, and so does everything behind a symbolic link. Returns whether there was anything.
///
/// # Errors
/// [`NotRemoved`].
pub fn remove(data_dir: &Path, name: &str) -> Result<bool, NotRemoved> {
    if !is_name(name) {
        return Err(format!("{name:?} is not a model name").into());
    }
    let target = directory(data_dir).join(name);
    let gone = half_removed(data_dir, name);
    let failed = |error: io::Error| format!("cannot remove {}: {error}", target.display());
    let mut found = clear(&gone).map_err(failed)?;
    match fs::symlink_metadata(&target) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Ok(metadata) if metadata.is_dir() => {
            found = true;
            let manifest = open(&target, MANIFEST).ok();
            if let Some(Err(TryLockError::WouldBlock)) = manifest.as_ref().map(|manifest| manifest.try_lock()) {
                return Err(NotRemoved::InUse(name.to_owned()));
            }
            // Renamed first, so that a crash doesn't leave half a model under its name.
            fs::rename(&target, &gone).map_err(failed)?;
            clear(&gone).map_err(failed)?;
        }
        // A link, for example: its target isn't touched.
        Ok(_) => {
            found = true;
            fs::remove_file(&target).map_err(failed)?;
        }
        Err(error) => return Err(failed(error).into()),
    }
    let part = staging(data_dir, name);
    if fs::symlink_metadata(&part).is_ok_and(|metadata| metadata.is_dir()) {
        let held = fs::File::open(&part).map_err(failed)?;
        if let Err(TryLockError::WouldBlock) = held.try_lock() {
            return Err(format!("another command is fetching {name}: wait for its end").into());
        }
    }
    found |= clear(&part).map_err(failed)?;
    Ok(found)
}

/// Whether there is anything to remove: the model, or what an unfinished pull or removal left.
pub fn can_remove(data_dir: &Path, name: &str) -> bool {
    let places = [directory(data_dir).join(name), staging(data_dir, name), half_removed(data_dir, name)];
    is_name(name) && places.iter().any(|place| fs::symlink_metadata(place).is_ok())
}

fn half_removed(data_dir: &Path, name: &str) -> PathBuf {
    directory(data_dir).join(format!(".{name}.gone"))
}

/// Removes a folder and everything in it, or a link. Returns whether there was anything.
fn clear(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path).map(|()| true),
        Ok(_) => fs::remove_file(path).map(|()| true),
    }
}
