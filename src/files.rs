//! Result files: PNGs under unguessable names, written once and never changed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt as _, PutPayload};

use crate::clock::Timestamp;
use crate::fault::{Effect, Faults, Point};
use crate::model::Id;

/// A day is written like `2026-11-21`.
const DAY_LENGTH: usize = 10;
/// Bytes of randomness in a name.
const RANDOM_BYTES: usize = 18;

/// The store of result files.
#[derive(Debug)]
pub struct Files {
    objects: Box<dyn ObjectStore>,
    directory: PathBuf,
    faults: Faults,
    guard: Option<PathBuf>,
    /// The day whose directory was last made to outlast a power cut.
    kept_day: Mutex<String>,
}

/// Held by whoever needs the files to stay as they are, or by whoever removes results.
#[derive(Debug)]
pub struct FilesLock {
    file: Option<File>,
}

impl Drop for FilesLock {
    fn drop(&mut self) {
        // Not left to closing it: a child process that was just forked may hold the file open a moment longer.
        if let Some(Err(error)) = self.file.as_ref().map(File::unlock) {
            tracing::error!(%error, "could not unlock the result files");
        }
    }
}

/// Why a file could not be read or written; the text is for the operator.
#[derive(Debug, thiserror::Error)]
#[error("files: {0}")]
pub struct FilesError(#[from] object_store::Error);

/// The name of a result file: `DAY/TASK-INDEX-RANDOM.png`.
///
/// The day keeps directories small, the task tells whose file it is, and 144 random bits make the
/// name unguessable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileName<'a> {
    text: &'a str,
    task_id: Id,
}

impl<'a> FileName<'a> {
    /// Reads a name; `None` unless it is one this module makes.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (day, file) = text.split_once('/')?;
        let (task, rest) = file.split_at_checked(21)?;
        let mut rest = rest.strip_suffix(".png")?.bytes();
        let well_formed = is_day(day)
            && rest.next() == Some(b'-')
            && rest.next().is_some_and(|index| index.is_ascii_digit())
            && rest.next() == Some(b'-')
            && rest.len() == RANDOM_BYTES * 4 / 3
            && rest.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        well_formed.then_some(())?;
        Some(Self { text, task_id: task.parse().ok()? })
    }

    fn random(task_id: Id, index: usize) -> String {
        let day = task_id.timestamp().to_string();
        let random = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; RANDOM_BYTES]>());
        format!("{}/{task_id}-{index}-{random}.png", &day[..DAY_LENGTH])
    }

    /// The whole name.
    pub fn as_str(self) -> &'a str {
        self.text
    }

    /// The task whose result it is.
    pub fn task_id(self) -> Id {
        self.task_id
    }
}

impl Files {
    /// Files in a directory, which must exist.
    ///
    /// # Errors
    /// [`FilesError`] when it does not.
    pub fn on_disk(directory: &Path) -> Result<Self, FilesError> {
        let objects = LocalFileSystem::new_with_prefix(directory)?.with_fsync(true);
        let objects = Box::new(objects);
        Ok(Self {
            objects,
            directory: directory.to_owned(),
            faults: Faults::default(),
            guard: None,
            kept_day: Mutex::default(),
        })
    }

    /// The same files, with what is to go wrong.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// The same files, with a lock in the file named: see [`Files::keep_all`] and [`Files::try_removal`].
    #[must_use]
    pub fn guarded_by(self, lock: PathBuf) -> Self {
        Self { guard: Some(lock), ..self }
    }

    /// Keeps every process from removing results until the lock is dropped, for a backup or an audit.
    /// Waits for a removal that is under way.
    ///
    /// # Errors
    /// [`FilesError`] when the lock cannot be had.
    pub fn keep_all(&self) -> Result<FilesLock, FilesError> {
        let file = self.guard.as_deref().map(open_lock).transpose()?;
        file.as_ref().map_or(Ok(()), File::lock_shared)?;
        Ok(FilesLock { file })
    }

    /// The right to remove files, held while that goes on; `None` while somebody needs all of them.
    ///
    /// # Errors
    /// [`FilesError`] when the lock cannot be had.
    pub fn try_removal(&self) -> Result<Option<FilesLock>, FilesError> {
        let file = self.guard.as_deref().map(open_lock).transpose()?;
        match file.as_ref().map_or(Ok(()), File::try_lock) {
            Ok(()) => Ok(Some(FilesLock { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// The directory that holds the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes one result durably and returns its name.
    ///
    /// # Errors
    /// [`FilesError`]; what is then left under some name is an orphan.
    pub async fn write(&self, task_id: Id, index: usize, png: Bytes) -> Result<String, FilesError> {
        let name = FileName::random(task_id, index);
        self.faults.pass(Point::before(Effect::WriteFile)).await?;
        self.keep_day(&name[..DAY_LENGTH]).await?;
        self.objects.put(&ObjectPath::from(name.as_str()), PutPayload::from(png)).await?;
        self.faults.pass(Point::after(Effect::WriteFile)).await?;
        Ok(name)
    }

    /// Makes the directory of a day, durably. The object store would, but another write may already be
    /// done in a directory that it has made and not yet synced, as may one after a start that was killed there.
    async fn keep_day(&self, day: &str) -> Result<(), FilesError> {
        let kept = || self.kept_day.lock().unwrap_or_else(PoisonError::into_inner);
        if *kept() == day {
            return Ok(());
        }
        match tokio::fs::create_dir(self.directory.join(day)).await {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            _ => tokio::fs::File::open(&self.directory).await?.sync_all().await?,
        }
        day.clone_into(&mut kept());
        Ok(())
    }

    /// Opens a file, or the byte range asked for; `None` when there is no such file.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn open(&self, name: FileName<'_>, range: Option<GetRange>) -> Result<Option<GetResult>, FilesError> {
        let options = GetOptions { range, ..GetOptions::default() };
        match self.objects.get_opts(&ObjectPath::from(name.as_str()), options).await {
            Ok(found) => Ok(Some(found)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The size of a file in bytes; `None` when there is no such file.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn size(&self, name: FileName<'_>) -> Result<Option<u64>, FilesError> {
        match self.objects.head(&ObjectPath::from(name.as_str())).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file that no task refers to; a missing one is no error.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn remove(&self, name: &str) -> Result<(), FilesError> {
        self.faults.pass(Point::before(Effect::RemoveFile)).await?;
        self.remove_now(name).await?;
        Ok(self.faults.pass(Point::after(Effect::RemoveFile)).await?)
    }

    async fn remove_now(&self, name: &str) -> Result<(), FilesError> {
        if name.contains('#') {
            // Left half written: the object store knows no such name.
            return Ok(std::fs::remove_file(self.directory.join(name))?);
        }
        match self.objects.delete(&ObjectPath::from(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The days that have result files, oldest first.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn days(&self) -> Result<Vec<String>, FilesError> {
        let listed = self.objects.list_with_delimiter(None).await?;
        let days = listed.common_prefixes.iter().map(ToString::to_string).filter(|name| is_day(name));
        Ok(days.collect())
    }

    /// Files of one day that were written before `cutoff`, with what a write left half done.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn written_before(&self, day: String, cutoff: Timestamp) -> Result<Vec<String>, FilesError> {
        let directory = self.directory.join(&day);
        // The object store hides the files it was writing when the process died.
        let walk = move || -> std::io::Result<Vec<String>> {
            let mut old = Vec::new();
            for entry in std::fs::read_dir(directory)? {
                let entry = entry?;
                let written = entry.metadata()?.modified()?;
                if Timestamp::from(written) < cutoff
                    && let Some(name) = entry.file_name().to_str()
                {
                    old.push(format!("{day}/{name}"));
                }
            }
            Ok(old)
        };
        tokio::task::spawn_blocking(walk).await.map_err(std::io::Error::other)?.map_err(FilesError::from)
    }
}

impl From<std::io::Error> for FilesError {
    fn from(error: std::io::Error) -> Self {
        Self(object_store::Error::Generic { store: "files", source: error.into() })
    }
}

fn open_lock(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Whether the text is written like `2026-11-21`.
fn is_day(text: &str) -> bool {
    let fits = |byte: u8, wanted: u8| if wanted == b'0' { byte.is_ascii_digit() } else { byte == wanted };
    text.len() == DAY_LENGTH && text.bytes().zip(*b"0000-00-00").all(|(byte, wanted)| fits(byte, wanted))
}
