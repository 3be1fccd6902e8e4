//! The data directory. Only its owner can read it, and one server at a time locks it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::owner;

/// Interval at which a lock that another process holds is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

const LOCK: &str = "tintype.lock";

/// Prevents result files from being removed while a backup reads them.
const BACKUP_LOCK: &str = "backup.lock";

/// The lock that a server holds on its data. Dropping it releases the lock.
#[derive(Debug)]
pub struct DataLock {
    _files: [File; 2],
}

/// Creates the directory unless it exists, readable by its owner only, and syncs it and its ancestors.
///
/// # Errors
/// A sentence for the operator.
pub fn create(directory: &Path) -> Result<(), String> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let durable = created.and_then(|()| sync_parents(directory));
    durable.map_err(|error| format!("cannot create the directory {}: {error}", directory.display()))
}

/// The directory that contains a file.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The lock file that a backup holds while it reads the result files.
pub fn backup_lock(directory: &Path) -> PathBuf {
    directory.join(BACKUP_LOCK)
}

/// Syncs every ancestor of the directory up to the root: any of them may have been created just now, or by a start that
/// was interrupted. An ancestor that this process may not read was not created by it.
fn sync_parents(directory: &Path) -> io::Result<()> {
    for parent in directory.canonicalize()?.ancestors().skip(1) {
        match File::open(parent).and_then(|parent| parent.sync_all()) {
            // Some file systems cannot sync a directory and report it with InvalidInput.
            Err(error) if !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Locks the data directory and the database, which may be outside of it, for this process. The operating system
/// releases both locks when the process ends, however it ends; after a SIGKILL that takes a moment, so this function
/// waits for each lock for `patience`.
///
/// # Errors
/// A sentence for the operator: another server holds a lock, or a lock file cannot be written.
pub fn lock(directory: &Path, database: &Path, patience: Duration) -> Result<DataLock, String> {
    let mut beside_database = database.as_os_str().to_owned();
    beside_database.push(".lock");
    let _files = [
        lock_file(&directory.join(LOCK), directory, patience)?,
        lock_file(Path::new(&beside_database), database, patience)?,
    ];
    Ok(DataLock { _files })
}

/// Locks the file. Waits for `patience` while another process holds the lock.
fn lock_patiently(file: &File, what: &Path, patience: Duration) -> Result<(), TryLockError> {
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if waited < patience => {
                if waited.is_zero() {
                    tracing::warn!(data = %what.display(), "another process holds the lock on the data; waiting for its end");
                }
                std::thread::sleep(LOCK_PAUSE);
                waited += LOCK_PAUSE;
            }
            outcome => return outcome,
        }
    }
}

fn lock_file(path: &Path, what: &Path, patience: Duration) -> Result<File, String> {
    let unusable = |error: io::Error| match error.kind() {
        ErrorKind::PermissionDenied => format!("cannot write in the data directory: {}", owner::denied(path)),
        _ => format!("cannot write in the data directory: {}: {error}", path.display()),
    };
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(unusable)?;
    match lock_patiently(&file, what, patience) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The process id only improves the message, so a failure to read it does not matter.
            drop(file.read_to_string(&mut holder));
            let who = if holder.trim().is_empty() { String::new() } else { format!(" (process {})", holder.trim()) };
            return Err(format!(
                "another server{who} is using {}: stop it, or choose another directory with --data",
                what.display()
            ));
        }
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    file.set_len(0).map_err(unusable)?;
    file.rewind().map_err(unusable)?;
    write!(file, "{}", std::process::id()).map_err(unusable)?;
    Ok(file)
}

/// Whether a server holds the lock of the directory.
///
/// # Errors
/// If the lock cannot be looked at, for example by a user who may not read the directory.
pub fn is_locked(directory: &Path) -> io::Result<bool> {
    match File::open(directory.join(LOCK)) {
        Ok(file) => Ok(matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}
