//! The data directory: made for its owner alone, and held by one server at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

const LOCK: &str = "tintype.lock";

/// The lock that keeps result files from being removed while a backup reads them.
const BACKUP_LOCK: &str = "backup.lock";

/// Submits on PostgreSQL that were answered with an error and may exist.
const UNSETTLED: &str = "unsettled";

/// Held while a server runs on its data; dropping it lets the next one in.
#[derive(Debug)]
pub struct DataLock {
    _files: [File; 2],
}

/// Creates the directory, readable by its owner alone, unless it exists. It outlasts a power cut.
///
/// # Errors
/// A sentence for the operator.
pub fn create(directory: &Path) -> Result<(), String> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory).and_then(|()| keep(directory));
    created.map_err(|error| format!("cannot create the directory {}: {error}", directory.display()))
}

/// The directory that a file is in.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where backups of the directory's installation hold the lock of its result files.
pub fn backup_lock(directory: &Path) -> PathBuf {
    directory.join(BACKUP_LOCK)
}

/// Where servers on PostgreSQL write down what they have still to take back.
pub fn unsettled(directory: &Path) -> PathBuf {
    directory.join(UNSETTLED)
}

/// Syncs what holds the name of the directory, and so on to the top: any of them may be new, made just
/// now or by a start that was cut short. One that this process may not read was made by somebody else.
fn keep(directory: &Path) -> io::Result<()> {
    for above in directory.canonicalize()?.ancestors().skip(1) {
        match File::open(above).and_then(|above| above.sync_all()) {
            // Some file systems keep nothing, and say so like this.
            Err(error) if !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes the directory and the database, wherever that is, for this process. The operating system
/// gives them back when the process ends, however it does.
///
/// # Errors
/// A sentence for the operator: another server has them, or they cannot be written.
pub fn lock(directory: &Path, database: &Path) -> Result<DataLock, String> {
    let mut beside_database = database.as_os_str().to_owned();
    beside_database.push(".lock");
    let _files = [lock_file(&directory.join(LOCK), directory)?, lock_file(Path::new(&beside_database), database)?];
    Ok(DataLock { _files })
}

fn lock_file(path: &Path, what: &Path) -> Result<File, String> {
    let unusable = |error: io::Error| format!("cannot write in the data directory: {}: {error}", path.display());
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Only makes the sentence better, so a failure does not matter.
            drop(file.read_to_string(&mut holder));
            let who = if holder.trim().is_empty() { String::new() } else { format!(" (process {})", holder.trim()) };
            return Err(format!(
                "another server{who} is using {}: stop it, or choose other data with --data",
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

/// Whether a server holds the directory.
pub fn is_locked(directory: &Path) -> bool {
    let Ok(file) = File::open(directory.join(LOCK)) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
