//! Result files in a directory.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt as _, PutPayload};

use super::FilesError;
use super::name::{DAY_LENGTH, FileName};
use crate::clock::Timestamp;
use crate::model::Id;

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
    pub(super) async fn written_before(&self, day: String, cutoff: Timestamp) -> Result<Vec<String>, FilesError> {
        let directory = self.directory.join(&day);
        let walk = move || -> io::Result<Vec<String>> {
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
        tokio::task::spawn_blocking(walk).await.map_err(io::Error::other)?.map_err(FilesError::from)
    }
}
