//! Result files in a directory.

use std::fs::ReadDir;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt as _, PutPayload};

use super::name::{DAY_LENGTH, FileName};
use super::{FilesError, PIECE, Pieces};
use crate::clock::Timestamp;
use crate::domain::model::Id;

/// The directory.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) objects: LocalFileSystem,
    pub(super) directory: PathBuf,
    /// The day whose directory was last made to outlast a power cut.
    kept_day: Mutex<String>,
}

impl Disk {
    pub(super) fn open(directory: &Path) -> Result<Self, FilesError> {
        let objects = LocalFileSystem::new_with_prefix(directory)?.with_fsync(true);
        Ok(Self { objects, directory: directory.to_owned(), kept_day: Mutex::default() })
    }

    /// Writes a file durably under a new name.
    pub(super) async fn write(&self, task_id: Id, index: usize, png: Bytes) -> Result<String, FilesError> {
        let name = FileName::random(task_id, index);
        self.keep_day(&name[..DAY_LENGTH]).await?;
        self.objects.put(&ObjectPath::from(name.as_str()), PutPayload::from(png)).await?;
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

    /// Removes what a write left half done; the object store knows no such name.
    pub(super) fn remove_half_written(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.directory.join(name))
    }

    /// Files of one day that were written before `cutoff`, with what a write left half done, which the
    /// object store hides.
    pub(super) fn written_before(&self, day: String, cutoff: Timestamp) -> Pieces {
        let walk = Walk { directory: self.directory.join(&day), day, cutoff, entries: None };
        let step = |mut walk: Walk| async move {
            let walked = tokio::task::spawn_blocking(move || (walk.next(), walk)).await;
            let (names, walk) = walked.map_err(io::Error::other)?;
            let names = names?;
            Ok((!names.is_empty()).then_some((names, walk)))
        };
        stream::try_unfold(walk, step).boxed()
    }
}

/// A walk through the directory of a day.
struct Walk {
    directory: PathBuf,
    day: String,
    cutoff: Timestamp,
    entries: Option<ReadDir>,
}

impl Walk {
    /// The next names, none at the end.
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
                // It got another name, or none, since it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if written < self.cutoff
                && let Some(name) = entry.file_name().to_str()
            {
                old.push(format!("{}/{name}", self.day));
            }
            if old.len() == PIECE {
                break;
            }
        }
        Ok(old)
    }
}
