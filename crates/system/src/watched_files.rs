//! Files that are read again when they change.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tintype_domain::timestamp::Timestamp;

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for files. A pipe or a dead network file system may never answer.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// What differs between two versions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    inode: u64,
    bytes: u64,
    /// The last change of its content, in seconds since 1970 and nanoseconds.
    modified: (i64, i64),
}

impl FileVersion {
    /// The present version of a file that can be read again: no pipe and no device.
    pub fn of(path: &Path) -> Option<Self> {
        Self::in_metadata(&fs::metadata(path).ok()?)
    }

    /// The version that this metadata is of.
    pub fn in_metadata(metadata: &Metadata) -> Option<Self> {
        metadata.is_file().then(|| Self {
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }

    /// When its content was last changed.
    pub fn modified_at(&self) -> Timestamp {
        let (seconds, nanoseconds) = self.modified;
        Timestamp::from_millis(seconds.saturating_mul(1_000).saturating_add(nanoseconds / 1_000_000))
    }
}

/// A file, and its version when it was looked at.
#[derive(Debug, Clone)]
pub struct SeenFile {
    /// Its path.
    pub path: PathBuf,
    /// `None` if there was no file.
    pub version: Option<FileVersion>,
}

impl SeenFile {
    /// Looks at a file. To miss no change, look before you read.
    pub fn now(path: &Path) -> Self {
        Self { path: path.to_owned(), version: FileVersion::of(path) }
    }
}

/// Files, and their versions when they were last read.
#[derive(Debug, Clone, Default)]
pub struct WatchedFiles(
    /// Locked while the files are read.
    Arc<Mutex<Vec<SeenFile>>>,
);

impl WatchedFiles {
    /// Files that have been read in these versions.
    pub fn new(seen: Vec<SeenFile>) -> Self {
        Self(Arc::new(Mutex::new(seen)))
    }

    /// Calls `read`, on a thread that may wait, if one of the files has changed or none was read yet. `read` notes the
    /// versions it read, and returns whether anything is new. If an earlier call is still reading, returns `false`.
    /// `path` is the first file, for the message.
    ///
    /// # Errors
    /// A message for the operator: that of `read`, or that it takes longer than 10 s. In that case it continues.
    pub async fn refresh(
        &self,
        path: &Path,
        read: impl FnOnce(&mut Vec<SeenFile>) -> Result<bool, String> + Send + 'static,
    ) -> Result<bool, String> {
        let seen = self.0.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut seen = match seen.try_lock() {
                Ok(seen) => seen,
                Err(TryLockError::Poisoned(seen)) => seen.into_inner(),
                Err(TryLockError::WouldBlock) => return Ok(false),
            };
            let is_unchanged = |seen: &SeenFile| FileVersion::of(&seen.path) == seen.version;
            if !seen.is_empty() && seen.iter().all(is_unchanged) { Ok(false) } else { read(&mut seen) }
        });
        match tokio::time::timeout(READ_LIMIT, reading).await {
            Ok(read) => read.unwrap_or_else(|error| Err(format!("reading {} failed: {error}", path.display()))),
            Err(_) => Err(format!(
                "reading {} or a file that belongs to it takes longer than {} s: are they files, and is the file system \
                 there?",
                path.display(),
                READ_LIMIT.as_secs()
            )),
        }
    }
}

/// Calls `refresh` every second, forever, and logs what it returns. `what` names what is made of the files.
pub async fn follow<F: Future<Output = Result<bool, String>>>(what: &str, refresh: impl Fn() -> F) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        match refresh().await {
            Ok(false) => {}
            Ok(true) => tracing::info!("{what} reloaded"),
            Err(error) => tracing::error!(error, "could not reload the {what}; keeping the previous one: fix the file"),
        }
    }
}
