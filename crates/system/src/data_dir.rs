//! The data directory. Only its owner can read it, and one server at a time locks it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fchmod, fstat, open};
use rustix::io::Errno;
use rustix::process::umask;

use crate::owner;

/// Interval at which a lock that another process holds is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// How the names of entries of a data directory begin.
const OUR_NAMES: [&str; 7] = ["tintype", "files", "models", "libraries", "acme.json", "first-", BACKUP_LOCK];

/// The permissions of group and others.
const OTHERS: u32 = 0o077;

const LOCK: &str = "tintype.lock";

/// The file with Linux's id for each boot of each machine. Docker and Podman containers see their host's id; LXC and
/// systemd-nspawn containers have their own, and count as machines.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Prevents result files from being removed while a backup reads them.
const BACKUP_LOCK: &str = "backup.lock";

/// The lock that a server holds on its data. Dropping it releases the lock.
#[derive(Debug)]
pub struct DataLock {
    _files: [File; 2],
}

/// Durably writes a file that only its owner can read, replacing an existing one.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let unfinished = path.with_added_extension("part");
    let write = || {
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(directory_of(path))?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

/// Creates the directory unless it exists, readable by its owner only, and syncs it and its ancestors.
pub fn create(directory: &Path) -> Result<(), String> {
    check_expanded(directory)?;
    keep_new_files_private();
    let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let durable = created.and_then(|()| sync_parents(directory));
    durable.map_err(|error| format!("cannot create the directory {}: {error}", directory.display()))
}

/// Rejects a directory that doesn't exist and whose path should have been expanded by a shell: Bash leaves `--data=~/x`
/// unchanged, and systemd `Environment=TINTYPE_DATA=$HOME/x`.
pub fn check_expanded(directory: &Path) -> Result<(), String> {
    let first = directory.iter().next().map(OsStr::as_encoded_bytes).unwrap_or_default();
    if (first.starts_with(b"~") || first.starts_with(b"$")) && !directory.exists() {
        return Err(format!(
            "{} begins with a word that only a shell expands: write the path in full",
            directory.display()
        ));
    }
    Ok(())
}

/// From now on, files and directories that this process makes are for its user alone.
pub fn keep_new_files_private() {
    umask(Mode::from_raw_mode(OTHERS));
}

/// Takes the data directory and the database away from other users of this machine, who could read prompts and secrets in
/// them. `database` is the file of SQLite, which may be outside of the directory.
///
/// # Errors
/// A message for the operator: others can read the database, and this process may not change that; or all users share
/// the directory, and it holds no database.
pub fn keep_private(directory: &Path, database: Option<&Path>) -> Result<(), String> {
    keep_new_files_private();
    let directory = &directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let is_sticky = fs::metadata(directory).is_ok_and(|found| found.mode() & Mode::SVTX.as_raw_mode() != 0);
    let is_common = is_sticky && contents(directory).1 && !is_shared_volume(directory);
    let is_inside = |file: &Path| directory_of(file).canonicalize().is_ok_and(|found| found == *directory);
    // Without a database in it, only its secrets are at stake, and each of those is closed to others below.
    if is_common && database.is_some_and(|file| !(file.exists() && is_inside(file))) {
        return Err(format!(
            "the data directory {} is one that all users share: choose another one with --data, such as {}",
            directory.display(),
            directory.join("tintype").display()
        ));
    }
    // A mounted volume may belong to root and be shared with the group of the service; its files are what counts.
    if !is_common
        && let Err(error) = take_from_others(directory)
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

/// Whether a directory holds something, and nothing of Tintype.
pub fn is_foreign(directory: &Path) -> bool {
    contents(directory) == (false, true)
}

/// Whether a directory holds something of Tintype, and something else.
fn contents(directory: &Path) -> (bool, bool) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name()).filter(|name| name != "lost+found");
    let is_ours = |name: &OsString| OUR_NAMES.iter().any(|ours| name.as_encoded_bytes().starts_with(ours.as_bytes()));
    let (ours, others): (Vec<_>, Vec<_>) = names.partition(is_ours);
    (!ours.is_empty(), !others.is_empty())
}

/// A message if users other than the owner can use a file or directory; `None` for one that does not exist.
pub fn open_to_others(path: &Path) -> Option<String> {
    let mode = std::fs::symlink_metadata(path).ok().filter(|found| !found.is_symlink())?.mode();
    let message = || {
        let (path, mode) = (path.display(), mode & 0o777);
        let advice = "if that has no effect, mount its file system with umask=077";
        format!("other users can read {path} (mode {mode:o}): run `chmod go= {path}`; {advice}")
    };
    (mode & OTHERS != 0).then(message)
}

/// Whether a directory is a volume owned by root with the service's group, as created by Kubernetes's `fsGroup`.
pub fn is_shared_volume(path: &Path) -> bool {
    let Ok(found) = std::fs::metadata(path) else { return false };
    found.is_dir() && found.uid() == 0 && found.gid() != 0 && found.mode() & Mode::SGID.as_raw_mode() != 0
}

/// Files in the data directory, beside the database, that hold secrets.
pub const SECRET_FILES: [&str; 3] = ["acme.json", "first-key", "first-sign-in-link"];

fn take_from_others(path: &Path) -> Result<(), String> {
    let Some(message) = open_to_others(path) else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let closed = open(path, flags, Mode::empty()).and_then(|file| {
        let mode = Mode::from_raw_mode(fstat(&file)?.st_mode) - Mode::from_raw_mode(OTHERS);
        fchmod(&file, mode)
    });
    match closed {
        Ok(()) if open_to_others(path).is_some() => {
            let why = "its file system ignores permissions; mount it with umask=077";
            tracing::warn!(path = %path.display(), "other users can read it: {why}");
            Ok(())
        }
        Ok(()) => {
            tracing::warn!(path = %path.display(), "removed the permission of other users to read it");
            Ok(())
        }
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(format!("{message} ({error})")),
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

/// Syncs all of the directory's ancestors up to the root: any of them may have been created just now, or by a start
/// that was interrupted. This process didn't create ancestors that it cannot read.
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
/// A message for the operator: another server holds a lock, or a lock file cannot be written.
pub fn lock(directory: &Path, database: &Path, patience: Duration) -> Result<DataLock, String> {
    let id = std::process::id();
    // Scripts read the first file as the id of the process, so only the second one names the machine.
    let of_database = format!("{id}\n{}", boot_id().unwrap_or_default());
    let _files = [
        lock_file(&lock_file_in(directory), directory, patience, &id.to_string())?,
        lock_file(&lock_file_of(database), database, patience, &of_database)?,
    ];
    Ok(DataLock { _files })
}

fn lock_file_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string(BOOT_ID).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Rejects a database that a server on another machine uses over a network file system. The index of SQLite's
/// write-ahead log is in shared memory, which two machines do not have: a command here would read old data, and its
/// commits could be lost or damage the database.
pub fn check_same_machine(database: &Path) -> Result<(), String> {
    let Ok(mut file) = File::open(lock_file_of(database)) else { return Ok(()) };
    let mut holder = String::new();
    if file.read_to_string(&mut holder).is_err() || !is_elsewhere(&holder) {
        return Ok(());
    }
    // The file also outlives its server, and may have been copied with the data.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(format!(
            "a server on another machine is using {}, and SQLite serves one machine: run this command there, or use PostgreSQL",
            database.display()
        )),
        _ => Ok(()),
    }
}

/// Whether the text of a lock file names another machine. It names none if the server could not find out, or is older.
fn is_elsewhere(holder: &str) -> bool {
    let theirs = holder.lines().nth(1).filter(|id| !id.is_empty());
    theirs.is_some_and(|theirs| boot_id().is_some_and(|ours| ours != theirs))
}

/// The kind of file system of a path, if other machines may use it as well.
pub fn network_file_system(path: &Path) -> Option<&'static str> {
    // The numbers from linux/magic.h, as 32 bits on every architecture.
    match rustix::fs::statfs(path).ok()?.f_type as u32 {
        0x6969 => Some("NFS"),
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => Some("SMB"),
        0x00C3_6400 => Some("CephFS"),
        0x0102_1997 => Some("9p"),
        0x0BD0_0BD0 => Some("Lustre"),
        0x5346_414F => Some("AFS"),
        0x6573_5546 => Some("FUSE, which may be local"),
        _ => None,
    }
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

fn lock_file(path: &Path, what: &Path, patience: Duration, content: &str) -> Result<File, String> {
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
            let place = if is_elsewhere(&holder) { " on another machine" } else { "" };
            let who = holder.lines().next().map(|id| format!(" (process {id}{place})")).unwrap_or_default();
            return Err(format!(
                "another server{who} is using {}: stop it, or choose another directory with --data",
                what.display()
            ));
        }
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    file.set_len(0).map_err(unusable)?;
    file.rewind().map_err(unusable)?;
    write!(file, "{content}").map_err(unusable)?;
    Ok(file)
}

/// Whether a server holds the lock of the directory.
///
/// # Errors
/// If the lock cannot be checked, for example by a user without access to the directory.
pub fn is_locked(directory: &Path) -> io::Result<bool> {
    match File::open(lock_file_in(directory)) {
        Ok(file) => Ok(matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}
