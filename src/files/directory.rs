//! Result files in a directory.

use std::error::Error as _;
use std::fs::ReadDir;
use std::io::{self, ErrorKind};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutMode, PutPayload};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::name::{DAY_LENGTH, FileName};
use super::{FilesError, MARKER, NAME_BATCH, NameBatches};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::locked::Locked as _;
use tintype_system::owner;

/// Time limit of a look at the marker.
const MARKER_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Directory {
    pub(super) objects: LocalFileSystem,
    pub(super) path: PathBuf,
    /// The day whose directory was most recently created and synced.
    synced_day: Mutex<String>,
    /// Held while the marker is checked.
    marker_check: Arc<tokio::sync::Mutex<()>>,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, FilesError> {
        let objects = LocalFileSystem::new_with_prefix(path)?.with_fsync(true);
        Ok(Self { objects, path: path.to_owned(), synced_day: Mutex::default(), marker_check: Arc::default() })
    }

    /// Writes a file durably under a new name.
    pub(super) async fn write(&self, task_id: Id, index: usize, png: Bytes) -> Result<String, FilesError> {
        let name = FileName::random(task_id, index);
        self.create_day(&name[..DAY_LENGTH]).await?;
        self.objects.put(&ObjectPath::from(name.as_str()), PutPayload::from(png)).await?;
        Ok(name)
    }

    /// Creates a file durably unless it exists. Without hard links, as on exFAT, two processes may both succeed with
    /// the same file at the same time.
    pub(super) async fn create(&self, key: &ObjectPath, payload: PutPayload) -> object_store::Result<()> {
        match self.objects.put_opts(key, payload.clone(), PutMode::Create.into()).await {
            Err(error) if is_about_links(&error) => {}
            created => return created.map(drop),
        }
        match self.objects.head(key).await {
            Err(object_store::Error::NotFound { .. }) => self.objects.put(key, payload).await.map(drop),
            Ok(_) => Err(object_store::Error::AlreadyExists { path: key.to_string(), source: "it is there".into() }),
            Err(error) => Err(error),
        }
    }

    /// Creates and syncs the directory of a day. The object store would create it too, but then a concurrent write, or
    /// a write after a restart, could finish in a directory that is not synced yet.
    async fn create_day(&self, day: &str) -> Result<(), FilesError> {
        let synced = || self.synced_day.locked();
        if *synced() == day {
            return Ok(());
        }
        let directory = self.path.join(day);
        match tokio::fs::create_dir(&directory).await {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(FilesError(format!("cannot create {}: {error}", directory.display()).into()));
            }
            _ => tokio::fs::File::open(&self.path).await?.sync_all().await?,
        }
        day.clone_into(&mut synced());
        Ok(())
    }

    /// Checks that the marker is there. A network file system that hangs holds one thread, however often it is asked.
    pub(super) async fn check_marker(&self) -> Result<(), FilesError> {
        let marker = self.path.join(MARKER);
        let fault = |error: io::Error| format!("{}: {error}; is its file system mounted?", marker.display());
        let found = tokio::time::timeout(MARKER_LIMIT, async {
            let (marker, turn) = (marker.clone(), self.marker_check.clone().lock_owned().await);
            let look = move || {
                let _turn = turn;
                std::fs::metadata(marker).map(drop)
            };
            tokio::task::spawn_blocking(look).await?
        });
        found.await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())).map_err(|error| FilesError(fault(error).into()))
    }

    /// Checks that this process may write files of this day.
    pub(super) fn check_day(&self, today: Timestamp) -> Result<(), String> {
        let day = self.path.join(&today.to_string()[..DAY_LENGTH]);
        let written = if day.exists() { &day } else { &self.path };
        match accessat(CWD, written, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
            Err(Errno::ACCESS) => Err(owner::denied(written)),
            Err(error @ Errno::ROFS) => Err(format!("cannot write in {}: {error}", written.display())),
            _ => Ok(()),
        }
    }

    /// Removes the temporary file of an interrupted write, which the object store cannot address.
    pub(super) fn remove_temporary(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    /// Files of one day that were written before `cutoff`, including temporary files, which the object store hides.
    pub(super) fn written_before(&self, day: String, cutoff: Timestamp) -> NameBatches {
        let walk = Walk { directory: self.path.join(&day), day, cutoff, entries: None };
        let step = |mut walk: Walk| async move {
            let walked = tokio::task::spawn_blocking(move || (walk.next(), walk)).await;
            let (names, walk) = walked.map_err(io::Error::other)?;
            let names = names?;
            Ok((!names.is_empty()).then_some((names, walk)))
        };
        stream::try_unfold(walk, step).boxed()
    }
}

/// Whether the file system rejects hard links, which a local store uses to create files that must not exist yet.
fn is_about_links(error: &object_store::Error) -> bool {
    let mut causes = iter::successors(error.source(), |&cause| cause.source());
    causes.any(|cause| {
        let error = cause.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        matches!(error, Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS))
    })
}

struct Walk {
    directory: PathBuf,
    day: String,
    cutoff: Timestamp,
    entries: Option<ReadDir>,
}

impl Walk {
    /// The next batch of names; empty at the end.
    fn next(&mut self) -> io::Result<Vec<String>> {
        let entries = match &mut self.entries {
            Some(entries) => entries,
            None => self.entries.insert(std::fs::read_dir(&self.directory)?),
        };
        let mut old = Vec::new();
        for entry in entries {
            let entry = entry?;
            let written = match entry.metadata().and_then(|metadata| metadata.modified()) {
                Ok(written) => Timestamp::from(written),
                // The file was renamed or removed since it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if written < self.cutoff
                && let Some(name) = entry.file_name().to_str()
            {
                old.push(format!("{}/{name}", self.day));
            }
            if old.len() == NAME_BATCH {
                break;
            }
        }
        Ok(old)
    }
}
