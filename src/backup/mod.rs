//! Backups. A backup is a directory with the layout of a data directory: a snapshot of the database, and the result
//! files of all tasks that were completed in it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::files::{Files, MARKER};
use tintype_store::sqlite;
use tintype_store::{Audit, Drift};
use tintype_system::data_dir;
use tintype_system::owner::with_destination_rights;

mod restore;
pub mod results;

pub use self::restore::{Target, restore};

const DATABASE: &str = "tintype.db";
const FILES: &str = "files";
/// The journal that SQLite keeps next to a database while it writes.
const JOURNAL: &str = "tintype.db-journal";

/// Contents of a backup or of a restored installation.
#[derive(Debug, Serialize)]
pub struct Contents {
    /// Accounts.
    pub accounts: u64,
    /// Tasks in any state.
    pub tasks: u64,
    /// Result files.
    pub files: u64,
    /// Size of the database and the result files, in bytes.
    pub bytes: u64,
    /// Time that the copy took.
    pub seconds: f64,
    /// Drifts, up to a limit.
    pub drifts: Vec<Drift>,
    /// Number of drifts beyond that limit.
    pub drifts_left_out: u64,
}

impl Contents {
    fn new(audit: Audit, check: results::Check, database_bytes: u64, progress: &ProgressBar) -> Self {
        let mut drifts = audit.drifts;
        drifts.extend(check.drifts);
        Self {
            accounts: audit.accounts,
            tasks: audit.tasks,
            files: check.files,
            bytes: database_bytes + check.bytes,
            seconds: progress.elapsed().as_millis() as f64 / 1e3,
            drifts,
            drifts_left_out: check.drifts_left_out,
        }
    }

    /// Whether there are any drifts.
    pub fn has_drifted(&self) -> bool {
        !self.drifts.is_empty()
    }
}

/// Copies a snapshot of `database` and the files of its completed tasks into `to`, whether or not a server is running.
/// `to` appears complete or not at all, also if `stopped` is cancelled. Drifts in the ledger or the files are copied
/// unchanged and reported.
///
/// # Errors
/// A message for the operator; `to` does not exist then.
pub async fn take(
    database: &Path,
    files: Option<&Files>,
    to: &Path,
    progress: &ProgressBar,
    stopped: &CancellationToken,
) -> Result<Contents, String> {
    let (partial, parent) = with_destination_rights(|| destination(to))?;
    // Locked before the database is copied, so that no file that the copy names is removed.
    let kept = files.map(Files::keep_all).transpose();
    let _kept = kept.map_err(|error| format!("cannot protect the result files from removal: {error}"))?;
    let partial = with_destination_rights(|| Partial::claim(partial))?;
    let filled = fill(database, files, &partial.path, progress, stopped).await;
    let named = filled.and_then(|contents| {
        let unnamed = |error| format!("cannot rename {} to {}: {error}", partial.path.display(), to.display());
        with_destination_rights(|| fs::rename(&partial.path, to)).map(|()| contents).map_err(unnamed)
    });
    match named {
        Ok(contents) => with_destination_rights(|| results::sync_directory(&parent)).map(|()| contents),
        Err(error) => match with_destination_rights(|| fs::remove_dir_all(&partial.path)) {
            Ok(()) => Err(format!("{error}; no backup was made at {}", to.display())),
            Err(left) => {
                Err(format!("{error}; remove {}, which could not be removed ({left})", partial.path.display()))
            }
        },
    }
}

/// A backup's temporary path, and the directory where the backup will appear, which is created if missing.
fn destination(to: &Path) -> Result<(PathBuf, PathBuf), String> {
    let Some(name) = to.file_name() else {
        return Err(format!("{} is not a name for a new directory", to.display()));
    };
    let absolute = std::path::absolute(to).map_err(|error| format!("cannot use {}: {error}", to.display()))?;
    let parent = absolute.parent().unwrap_or(Path::new("/")).to_owned();
    if !parent.exists() {
        data_dir::create(&parent)?;
    }
    let around = fs::metadata(&parent).map_err(|error| format!("cannot use {}: {error}", parent.display()))?;
    match fs::read_dir(to).map(|mut entries| entries.next().is_some()) {
        Ok(true) => {
            return Err(format!("{} is not empty: name a new directory for the backup", to.display()));
        }
        Ok(false) if fs::metadata(to).is_ok_and(|inside| inside.dev() != around.dev()) => {
            return Err(format!("{} is a mount point: name a new directory inside it", to.display()));
        }
        Ok(false) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(format!("cannot back up to {}: {error}", to.display())),
    }
    let mut partial = name.to_owned();
    partial.push(".partial");
    Ok((parent.join(partial), parent))
}

/// An unfinished backup, locked against other backups to the same path.
struct Partial {
    path: PathBuf,
    _held: File,
}

impl Partial {
    /// Creates the directory, replacing one that an interrupted backup left behind.
    fn claim(path: PathBuf) -> Result<Self, String> {
        let unusable = |error: io::Error| format!("cannot write {}: {error}", path.display());
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(unusable(error)),
            _ => {}
        }
        let held = File::open(&path).map_err(unusable)?;
        match held.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!("another backup is writing {}", path.display()));
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        for entry in fs::read_dir(&path).map_err(unusable)? {
            let name = entry.map_err(unusable)?.file_name();
            if ![DATABASE, JOURNAL, FILES].iter().any(|ours| name == *ours) {
                return Err(format!("{} exists and is not an unfinished backup: move it away", path.display()));
            }
        }
        for name in [DATABASE, JOURNAL, FILES] {
            let inside = path.join(name);
            let removed = if inside.is_dir() { fs::remove_dir_all(&inside) } else { fs::remove_file(&inside) };
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(unusable(error)),
                _ => {}
            }
        }
        Ok(Self { path, _held: held })
    }
}

/// An error after a signal to stop.
fn check_not_stopped(stopped: &CancellationToken) -> Result<(), String> {
    if stopped.is_cancelled() { Err("stopped by a signal".to_owned()) } else { Ok(()) }
}

async fn fill(
    database: &Path,
    files: Option<&Files>,
    into: &Path,
    progress: &ProgressBar,
    stopped: &CancellationToken,
) -> Result<Contents, String> {
    let (copy, directory) = (into.join(DATABASE), into.join(FILES));
    let unwritable = |path: &Path, error: io::Error| match error.kind() {
        ErrorKind::PermissionDenied => {
            format!(
                "cannot write {}: {error}; the owner of the data must be able to enter its directories",
                path.display()
            )
        }
        _ => format!("cannot write {}: {error}", path.display()),
    };
    data_dir::check_same_machine(database)?;
    progress.set_message("copying the database");
    // Created here, so that only its owner can read it.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy);
    let made = made.map_err(|error| unwritable(&copy, error))?;
    sqlite::copy(database, &copy).map_err(|error| error.to_string())?;
    made.sync_all().map_err(|error| unwritable(&copy, error))?;
    let database_bytes = made.metadata().map_err(|error| unwritable(&copy, error))?.len();
    let (snapshot, _) = sqlite::open_for_reading(&copy).map_err(|error| error.to_string())?;
    check_not_stopped(stopped)?;
    progress.set_message("checking the database");
    snapshot.check_integrity().map_err(|error| format!("the database is damaged: {error}"))?;
    let audit = snapshot.audit().await.map_err(|error| error.to_string())?;

    let made = DirBuilder::new().mode(0o700).create(&directory);
    made.map_err(|error| unwritable(&directory, error))?;
    let copied = Files::on_disk(&directory).map_err(|error| error.to_string())?;
    results::begin(progress, "copying result files", audit.tasks);
    results::copy(files, &copied, &snapshot, progress, stopped).await?;
    // A server may be started on the backup itself, and a restore brings the marker back.
    if let Some(marker) = snapshot.files_marker().await.map_err(|error| error.to_string())? {
        let path = directory.join(MARKER);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = made.and_then(|mut file| writeln!(file, "{marker}").and_then(|()| file.sync_all()));
        written.map_err(|error| unwritable(&path, error))?;
        results::sync_directory(&directory)?;
    }
    results::sync_directory(into)?;
    results::begin(progress, "checking the copy", audit.tasks);
    let check = results::check(Some(&copied), &snapshot, progress, stopped).await?;
    Ok(Contents::new(audit, check, database_bytes, progress))
}
