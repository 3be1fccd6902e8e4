//! Submits that were answered with an error and may exist all the same, written down until they are settled: a
//! process that dies before it can take them back leaves them to the next one that starts on its directory.
//!
//! A file for each, written before its callers are answered. All that it can bring about is that tasks are failed and
//! refunded whose callers were told that they failed, and that once, so several processes may share a directory and
//! settle what any of them has written.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::settle::Doubtful;
use crate::clock::Timestamp;
use crate::domain::model::Id;
use crate::fault::{Effect, Faults, Point};

/// Most files: what many hours without a network leave. What comes after that is in memory alone.
const MAX_FILES: usize = 10_000;
/// How the name of a file ends that is whole.
const WHOLE: &str = "json";
/// Added to the name of one that is being written. What a crash left of it was never answered.
const HALF: &str = "half";
/// Added to the name of one that cannot be read, for the operator.
const DAMAGED: &str = "damaged";

/// A directory of such files.
#[derive(Debug)]
pub(super) struct Journal {
    directory: PathBuf,
    /// Whose tasks are meant: the ids mean nothing in another database.
    installation: String,
    faults: Faults,
}

/// What a file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    installation: String,
    accounts: Vec<String>,
    tasks: Vec<String>,
    /// By the server's clock.
    deadline_ms: i64,
}

/// How many submits are written down in a directory.
///
/// # Errors
/// When it cannot be read. One that does not exist holds none.
pub fn unsettled(directory: &Path) -> io::Result<usize> {
    Ok(whole(directory)?.len())
}

fn whole(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    Ok(paths?.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == WHOLE)).collect())
}

impl Journal {
    /// In a directory, which is made when it is needed, for the installation that has this secret.
    pub(super) fn new(directory: PathBuf, secret: &[u8], faults: Faults) -> Self {
        // Moves with the database, wherever that goes, and says nothing of the secret.
        let digest = Sha256::new().chain_update(b"installation").chain_update(secret).finalize();
        let installation = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { directory, installation, faults }
    }

    /// Writes down a submit, so that it outlasts a power cut.
    pub(super) async fn note(self: &Arc<Self>, doubtful: &Doubtful) -> io::Result<()> {
        let texts = |ids: &[Id]| ids.iter().map(ToString::to_string).collect();
        let note = Note {
            installation: self.installation.clone(),
            accounts: texts(&doubtful.accounts),
            tasks: texts(&doubtful.tasks),
            deadline_ms: doubtful.deadline.as_millis(),
        };
        let (journal, path) = (self.clone(), self.path(doubtful));
        blocking(move || journal.write(&path, &serde_json::to_vec(&note)?)).await
    }

    /// Removes a submit that is settled.
    pub(super) async fn forget(self: &Arc<Self>, doubtful: &Doubtful) {
        let (journal, path) = (self.clone(), self.path(doubtful));
        if let Err(error) = blocking(move || journal.remove(&path)).await {
            // Settling it once more will change nothing.
            tracing::warn!(%error, "a submit is settled, but its file cannot be removed; the next start tries again");
        }
    }

    /// What processes before this one have left. What cannot be read is put aside.
    pub(super) async fn left(self: &Arc<Self>) -> Vec<Doubtful> {
        let journal = self.clone();
        let left = blocking(move || {
            let mut left = Vec::new();
            for path in whole(&journal.directory)? {
                left.extend(journal.read(&path));
            }
            Ok(left)
        });
        left.await.unwrap_or_else(|error| {
            let directory = self.directory.display();
            tracing::error!(%directory, %error, "cannot read which submits were answered with an error; they stay charged");
            Vec::new()
        })
    }

    /// The first task gives it a name that no other has.
    fn path(&self, doubtful: &Doubtful) -> PathBuf {
        let first = doubtful.tasks.first().map(Id::as_str).unwrap_or_default();
        self.directory.join(format!("{first}.{WHOLE}"))
    }

    fn write(&self, path: &Path, note: &[u8]) -> io::Result<()> {
        self.faults.pass_blocking(Point::before(Effect::NoteUnsettled))?;
        if whole(&self.directory)?.len() >= MAX_FILES {
            return Err(io::Error::other(format!("there are {MAX_FILES} in {} already", self.directory.display())));
        }
        self.make_directory()?;
        let half = path.with_added_extension(HALF);
        let written = write_new(&half, note).and_then(|()| std::fs::rename(&half, path));
        if written.is_err() {
            // It takes up room, and means nothing.
            drop(std::fs::remove_file(&half));
        }
        written?;
        File::open(&self.directory)?.sync_all()?;
        self.faults.pass_blocking(Point::after(Effect::NoteUnsettled))
    }

    /// Another process may have made it just now, or been cut short before its name was kept.
    fn make_directory(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let above = self.directory.parent().filter(|above| !above.as_os_str().is_empty());
        File::open(above.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.faults.pass_blocking(Point::before(Effect::ForgetUnsettled))?;
        match std::fs::remove_file(path) {
            // It could not be written, or another process was quicker.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.faults.pass_blocking(Point::after(Effect::ForgetUnsettled))
    }

    fn read(&self, path: &Path) -> Option<Doubtful> {
        let file = path.display();
        let note = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice::<Note>(&bytes).ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::error!(%file, %error, "cannot read which submit was answered with an error; it stays charged");
                return None;
            }
        };
        if note.as_ref().is_some_and(|note| note.installation != self.installation) {
            tracing::warn!(%file, "a submit of another database waits here to be settled; it is left alone");
            return None;
        }
        let doubtful = note.and_then(|note| note.doubtful()).filter(|doubtful| self.path(doubtful) == path);
        if doubtful.is_none() {
            let aside = path.with_added_extension(DAMAGED);
            let kept = std::fs::rename(path, &aside);
            tracing::error!(
                %file,
                error = kept.err().map(tracing::field::display),
                "a file that names a submit that was answered with an error is damaged and put aside: \
                 if it has a task, that stays charged"
            );
        }
        doubtful
    }
}

impl Note {
    fn doubtful(&self) -> Option<Doubtful> {
        let ids = |texts: &[String]| texts.iter().map(|text| text.parse().ok()).collect::<Option<Vec<Id>>>();
        let deadline = Timestamp::from_millis(self.deadline_ms);
        Some(Doubtful { accounts: ids(&self.accounts)?, tasks: ids(&self.tasks)?, deadline })
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

async fn blocking<T: Send + 'static>(what: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(what).await.map_err(io::Error::other)?
}
