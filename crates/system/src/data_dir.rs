//! The data directory. Only its owner can read it, and one server at a time locks it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fchmod, fstat, open};
use rustix::io::Errno;
use rustix::process::umask;

use crate::owner;

/// Interval at which a lock that another process holds is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The permissions of group and others.
const OTHERS: u32 = 0o077;

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
    keep_new_files_private();
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let durable = created.and_then(|()| sync_parents(directory));
    durable.map_err(|error| format!("cannot create the directory {}: {error}", directory.display()))
}

/// From now on, files and directories that this process makes are for its user alone.
pub fn keep_new_files_private() {
    umask(Mode::from_raw_mode(OTHERS));
}

/// Takes the data directory and the database away from other users of this machine, who could read prompts and secrets in
/// them. `database` is the file of SQLite, which may be outside of the directory.
///
/// # Errors
/// A sentence for the operator: others can read the database, and this process may not change that.
pub fn keep_private(directory: &Path, database: Option<&Path>) -> Result<(), String> {
    keep_new_files_private();
    let directory = &directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    // A mounted volume may belong to root and be shared with the group of the service; its files are what counts.
    if let Err(error) = take_from_others(directory)
        && !is_shared_volume(directory)
    {
        tracing::warn!(%error, "other users can read the data directory; restrict its permissions");
    }
    let mut files: Vec<PathBuf> = SECRET_FILES.iter().map(|name| directory.join(name)).collect();
    if let Some(database) = database {
        files.push(database.to_owned());
        files.extend(["-wal", "-shm", "-journal"].map(|end| {
            let mut name = database.as_os_str().to_owned();
            name.push(end);
            name.into()
        }));
    }
    files.iter().try_for_each(|file| take_from_others(file))
}

/// A sentence if users other than the owner can use a file or directory; `None` for one that does not exist.
pub fn open_to_others(path: &Path) -> Option<String> {
    let mode = std::fs::symlink_metadata(path).ok().filter(|found| !found.is_symlink())?.mode();
    let sentence = || format!("other users can read {} (mode {:o}): run `chmod go= {0}`", path.display(), mode & 0o777);
    (mode & OTHERS != 0).then(sentence)
}

/// Whether a directory is a volume of root whose group is that of the service, as `fsGroup` of Kubernetes
/// makes it.
pub fn is_shared_volume(path: &Path) -> bool {
    let Ok(found) = std::fs::metadata(path) else { return false };
    found.is_dir() && found.uid() == 0 && found.gid() != 0 && found.mode() & Mode::SGID.as_raw_mode() != 0
}

/// Files in the data directory, beside the database, that hold secrets.
pub const SECRET_FILES: [&str; 3] = ["acme.json", "first-key", "first-sign-in-link"];

fn take_from_others(path: &Path) -> Result<(), String> {
    let Some(sentence) = open_to_others(path) else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let closed = open(path, flags, Mode::empty()).and_then(|file| {
        let mode = Mode::from_raw_mode(fstat(&file)?.st_mode) - Mode::from_raw_mode(OTHERS);
        fchmod(&file, mode)
    });
    match closed {
        Ok(()) => {
            tracing::warn!(path = %path.display(), "removed the permission of other users to read it");
            Ok(())
        }
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(format!("{sentence} ({error})")),
    }
}

/// The directory that contains a file.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The lock file of the server on a data directory.
pub fn lock_file_in(directory: &Path) -> PathBuf {
    directory.join(LOCK)
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
        lock_file(&lock_file_in(directory), directory, patience)?,
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
                    tracing::warn!(data = %what.display(), "another process holds the lock on the data; waiting for it to exit");
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
    match File::open(lock_file_in(directory)) {
        Ok(file) => Ok(matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}
