//! The lock between those who need all result files and those who remove some.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Held by whoever needs the files to stay as they are, or by whoever removes results.
#[derive(Debug)]
pub struct FilesLock {
    file: Option<File>,
}

impl FilesLock {
    /// Keeps the file locked together with others who do; waits for who has it alone. Without a file there
    /// is nothing to lock.
    pub(super) fn share(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(open).transpose()?;
        file.as_ref().map_or(Ok(()), File::lock_shared)?;
        Ok(Self { file })
    }

    /// Takes the file alone; `None` while others have it.
    pub(super) fn try_alone(path: Option<&Path>) -> io::Result<Option<Self>> {
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
        // Not left to closing it: a child process that was just forked may hold the file open a moment longer.
        if let Some(Err(error)) = self.file.as_ref().map(File::unlock) {
            tracing::error!(%error, "could not unlock the result files");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
