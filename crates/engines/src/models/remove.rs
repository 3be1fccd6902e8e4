//! Removes an installed model.

use std::fs::{self, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;

use super::manifest::{MANIFEST, open};
use super::{directory, is_name, staging};

/// Removes a model, damaged or not, and everything that an unfinished pull of it has left. The files of a folder that
/// `tintype model add` named stay, and so does everything that a symbolic link leads to. Returns whether there was
/// anything.
///
/// # Errors
/// A sentence for the operator: a server uses the model, or something cannot be removed.
pub fn remove(data_dir: &Path, name: &str) -> Result<bool, String> {
    if !is_name(name) {
        return Err(format!("{name:?} is not a model name"));
    }
    let target = directory(data_dir).join(name);
    let gone = directory(data_dir).join(format!(".{name}.gone"));
    let failed = |error: io::Error| format!("cannot remove {}: {error}", target.display());
    let mut found = clear(&gone).map_err(failed)?;
    match fs::symlink_metadata(&target) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Ok(metadata) if metadata.is_dir() => {
            found = true;
            let manifest = open(&target, MANIFEST).ok();
            if let Some(Err(TryLockError::WouldBlock)) = manifest.as_ref().map(|manifest| manifest.try_lock()) {
                return Err(format!("a server uses the model {name}: stop it first"));
            }
            // Renamed first, so that a crash leaves no half of a model under its name.
            fs::rename(&target, &gone).map_err(failed)?;
            clear(&gone).map_err(failed)?;
        }
        // A link, for one: nothing that it leads to is touched.
        Ok(_) => {
            found = true;
            fs::remove_file(&target).map_err(failed)?;
        }
        Err(error) => return Err(failed(error)),
    }
    let part = staging(data_dir, name);
    if fs::symlink_metadata(&part).is_ok_and(|metadata| metadata.is_dir()) {
        let held = fs::File::open(&part).map_err(failed)?;
        if let Err(TryLockError::WouldBlock) = held.try_lock() {
            return Err(format!("another command is fetching {name}: wait for its end"));
        }
    }
    found |= clear(&part).map_err(failed)?;
    Ok(found)
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
