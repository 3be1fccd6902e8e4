//! Models that a command is adding or removing. Running servers leave them alone.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tintype_system::data_dir;

use super::directory;

/// While this exists, no server starts using the model, and a server that uses it stops using it when its tasks have
/// ended. The lock ends with the process, so a crash leaves nothing behind.
#[derive(Debug)]
pub struct Busy {
    path: PathBuf,
    _locked: File,
}

impl Busy {
    /// Tells running servers that a command is adding or removing a model.
    ///
    /// # Errors
    /// A message for the operator: another command is doing so, or the models folder isn't writable.
    pub fn with(data_dir: &Path, name: &str) -> Result<Self, String> {
        let path = path(&directory(data_dir), name);
        let unusable = |error: std::io::Error| format!("cannot lock {}: {error}", path.display());
        data_dir::create(&directory(data_dir))?;
        let open = || OpenOptions::new().write(true).create_new(true).open(&path);
        // After a crash, the file may belong to another user. Locking doesn't require write permission.
        let locked = File::open(&path).or_else(|_| open()).map_err(unusable)?;
        // The server may run as another user, and must see the lock.
        drop(locked.set_permissions(Permissions::from_mode(0o644)));
        match locked.try_lock() {
            Ok(()) if leads_to(&path, &locked) => Ok(Self { path, _locked: locked }),
            // Locked by another command, or removed by one that has just ended.
            Ok(()) | Err(TryLockError::WouldBlock) => {
                Err(format!("another command is adding or removing {name}: wait for its end"))
            }
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Without its lock, a leftover file has no effect.
        drop(fs::remove_file(&self.path));
    }
}

/// Whether a path still refers to an open file.
pub(super) fn leads_to(path: &Path, open: &File) -> bool {
    let inode = |about: fs::Metadata| about.ino();
    let (there, own) = (fs::metadata(path).map(inode), open.metadata().map(inode));
    matches!((there, own), (Ok(there), Ok(own)) if there == own)
}

fn path(models: &Path, name: &str) -> PathBuf {
    models.join(format!(".{name}.busy"))
}

/// Whether a command is adding or removing this model of the models folder.
pub(super) fn is_busy(models: &Path, name: &str) -> bool {
    let locked = File::open(path(models, name)).map(|file| file.try_lock_shared());
    matches!(locked, Ok(Err(TryLockError::WouldBlock)))
}
