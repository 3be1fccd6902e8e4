//! The lock between readers of all result files (backups and audits) and processes that remove some.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A shared lock that prevents removals, or the exclusive lock of a removal.
#[derive(Debug)]
pub struct FilesLock {
    file: Option<File>,
}

impl FilesLock {
    /// Takes a shared lock; waits while another process holds the exclusive lock. Without a path there is nothing to
    /// lock.
    pub(super) fn share(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(open).transpose()?;
        file.as_ref().map_or(Ok(()), File::lock_shared)?;
        Ok(Self { file })
    }

    /// Takes the exclusive lock; `None` while another process holds a lock.
    pub(super) fn try_exclusive(path: Option<&Path>) -> io::Result<Option<Self>> {
        let file = path.map(open).transpose()?;
        match file.as_ref().map_or(Ok(()), File::try_lock) {
            Ok(()) => Ok(Some(Self { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for FilesLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that was just forked may keep it open a moment longer.
        if let Some(Err(error)) = self.file.as_ref().map(File::unlock) {
            tracing::error!(%error, "could not unlock the result files; the lock ends with this process");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map_err(|error| io::Error::new(error.kind(), format!("cannot open the lock {}: {error}", path.display())))
}
