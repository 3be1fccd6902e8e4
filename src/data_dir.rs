//! The data directory: made for its owner alone, and held by one server at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Held while a server runs on a data directory; dropping it lets the next one in.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

/// Creates the directory, readable by its owner alone, unless it exists.
///
/// # Errors
/// A sentence for the operator.
pub fn create(directory: &Path) -> Result<(), String> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    created.map_err(|error| format!("cannot create the directory {}: {error}", directory.display()))
}

/// Takes the directory for this process, which the operating system undoes when it ends, however.
///
/// # Errors
/// A sentence for the operator: another server has it, or it cannot be written.
pub fn lock(directory: &Path) -> Result<DataLock, String> {
    let path = directory.join("tintype.lock");
    let unusable = |error: io::Error| format!("cannot write in the data directory {}: {error}", directory.display());
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Only makes the sentence better, so a failure does not matter.
            drop(file.read_to_string(&mut holder));
            let who = if holder.trim().is_empty() { String::new() } else { format!(" (process {})", holder.trim()) };
            return Err(format!(
                "another server{who} is using the data directory {}: stop it, or choose another with --data",
                directory.display()
            ));
        }
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    file.set_len(0).map_err(unusable)?;
    file.rewind().map_err(unusable)?;
    write!(file, "{}", std::process::id()).map_err(unusable)?;
    Ok(DataLock { _file: file })
}

/// Whether a server holds the directory.
pub fn is_locked(directory: &Path) -> bool {
    let path: PathBuf = directory.join("tintype.lock");
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
