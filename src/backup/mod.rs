//! Backups: a directory laid out as a data directory is, with the database at one moment and the files
//! of the tasks that were completed then.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;

use crate::files::Files;
use crate::store::sqlite::Snapshot;
use crate::store::{Audit, Drift};

mod restore;
pub mod results;

pub use self::restore::{Target, restore};

/// The database in a backup.
const DATABASE: &str = "tintype.db";
/// The directory of result files in a backup.
const FILES: &str = "files";
/// What SQLite puts beside a database that it is writing.
const JOURNAL: &str = "tintype.db-journal";

/// What a backup or a restored installation holds.
#[derive(Debug)]
pub struct Contents {
    /// Accounts.
    pub accounts: u64,
    /// Tasks, whatever became of them.
    pub tasks: u64,
    /// Result files.
    pub files: u64,
    /// Size of the database and the result files.
    pub bytes: u64,
    /// What is wrong with it, up to a limit.
    pub drifts: Vec<Drift>,
    /// How much more is wrong.
    pub drifts_left_out: u64,
}

impl Contents {
    fn new(audit: Audit, check: results::Check, database_bytes: u64) -> Self {
        let mut drifts = audit.drifts;
        drifts.extend(check.drifts);
        Self {
            accounts: audit.accounts,
            tasks: audit.tasks,
            files: check.files,
            bytes: database_bytes + check.bytes,
            drifts,
            drifts_left_out: check.drifts_left_out,
        }
    }

    /// Whether anything is wrong.
    pub fn has_drifted(&self) -> bool {
        !self.drifts.is_empty()
    }
}

/// Copies `database` and the files its completed tasks name, as they are at this moment, into `to`, whether
/// or not a server runs on them. `to` appears whole or not at all. What is wrong with the books or the
/// files is copied as it is, and told.
///
/// # Errors
/// A sentence for the operator; there is no `to` then.
pub async fn take(
    database: &Path,
    files: Option<&Files>,
    to: &Path,
    progress: &ProgressBar,
) -> Result<Contents, String> {
    let (partial, parent) = destination(to)?;
    // Before the database is copied: from then on every file that the copy names has to stay.
    let kept = files.map(Files::keep_all).transpose();
    let _kept = kept.map_err(|error| format!("cannot keep the result files from being removed: {error}"))?;
    let partial = Partial::claim(partial)?;
    let filled = fill(database, files, &partial.path, progress).await;
    let named = filled.and_then(|contents| {
        let unnamed = |error| format!("cannot rename {} to {}: {error}", partial.path.display(), to.display());
        fs::rename(&partial.path, to).map(|()| contents).map_err(unnamed)
    });
    match named {
        Ok(contents) => results::sync_directory(&parent).map(|()| contents),
        Err(error) => match fs::remove_dir_all(&partial.path) {
            Ok(()) => Err(format!("{error}; there is no backup {}", to.display())),
            Err(left) => Err(format!("{error}; {} is left, to be removed ({left})", partial.path.display())),
        },
    }
}

/// Where a backup grows, and the directory that it will appear in.
fn destination(to: &Path) -> Result<(PathBuf, PathBuf), String> {
    let Some(name) = to.file_name() else {
        return Err(format!("{} is no name for a new directory", to.display()));
    };
    let absolute = std::path::absolute(to).map_err(|error| format!("cannot use {}: {error}", to.display()))?;
    let parent = absolute.parent().unwrap_or(Path::new("/")).to_owned();
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

/// A backup that is being made, held against others that want the same name.
struct Partial {
    path: PathBuf,
    _held: File,
}

impl Partial {
    /// Makes the directory, in place of one that a backup left when it was killed.
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
                return Err(format!("{} is in the way and no unfinished backup: move it away", path.display()));
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

async fn fill(database: &Path, files: Option<&Files>, into: &Path, progress: &ProgressBar) -> Result<Contents, String> {
    let (copy, directory) = (into.join(DATABASE), into.join(FILES));
    let unwritable = |path: &Path, error: io::Error| format!("cannot write {}: {error}", path.display());
    progress.set_message("copying the database");
    // Made here, so that nobody else may read it.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy);
    let made = made.map_err(|error| unwritable(&copy, error))?;
    Snapshot::take(database, &copy).map_err(|error| error.to_string())?;
    made.sync_all().map_err(|error| unwritable(&copy, error))?;
    let database_bytes = made.metadata().map_err(|error| unwritable(&copy, error))?.len();
    let snapshot = Snapshot::open(&copy).map_err(|error| error.to_string())?;
    progress.set_message("checking the database");
    snapshot.check_integrity().map_err(|error| format!("the database is damaged: {error}"))?;
    let audit = snapshot.audit().map_err(|error| error.to_string())?;

    let made = DirBuilder::new().mode(0o700).create(&directory);
    made.map_err(|error| unwritable(&directory, error))?;
    let page = async |after, limit| snapshot.completed_tasks(after, limit);
    let copied = Files::on_disk(&directory).map_err(|error| error.to_string())?;
    results::begin(progress, "copying result files", audit.tasks);
    results::copy(files, &copied, page, progress).await?;
    results::sync_directory(into)?;
    results::begin(progress, "checking the copy", audit.tasks);
    let check = results::check(Some(&copied), page, progress).await?;
    Ok(Contents::new(audit, check, database_bytes))
}
