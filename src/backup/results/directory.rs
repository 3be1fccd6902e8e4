//! Checks and copies result files in a directory on several threads.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use futures::future::join_all;
use rustix::fs::{Mode, OFlags};

use super::{END, ResultFile, judge};
use crate::files::SIGNATURE;

/// Files per thread and page. Several threads per page keep the disk busy.
const FILES_PER_THREAD: usize = 16;
const BUFFER_BYTES: usize = 256 * 1024;

/// Applies `work` to every file on several threads; returns the results in order.
pub(super) async fn in_threads<T: Send + 'static>(
    directory: &Path,
    results: impl Iterator<Item = ResultFile>,
    work: impl Fn(&ResultFile, &Path) -> Result<T, String> + Clone + Send + 'static,
) -> Result<Vec<(ResultFile, T)>, String> {
    let mut results = results.peekable();
    let mut threads = Vec::new();
    while results.peek().is_some() {
        let some: Vec<ResultFile> = results.by_ref().take(FILES_PER_THREAD).collect();
        let (work, directory) = (work.clone(), directory.to_owned());
        threads.push(tokio::task::spawn_blocking(move || {
            some.into_iter().map(|file| work(&file, &directory).map(|outcome| (file, outcome))).collect::<Vec<_>>()
        }));
    }
    let mut done = Vec::new();
    for outcomes in join_all(threads).await {
        for outcome in outcomes.map_err(|error| error.to_string())? {
            done.push(outcome?);
        }
    }
    Ok(done)
}

/// Opens a result file by its path below its day. Neither may be a symbolic link: a user could make root, who backs up
/// and restores, copy a file that only root can read.
fn open(path: &Path) -> io::Result<File> {
    let (Some(day), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(ErrorKind::InvalidFilename));
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let day = rustix::fs::open(day, flags | OFlags::DIRECTORY, Mode::empty())?;
    Ok(File::from(rustix::fs::openat(day, name, flags, Mode::empty())?))
}

/// Returns the size of a PNG, or its fault.
pub(super) fn examine(path: &Path) -> Result<u64, String> {
    let unreadable = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => "is missing".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let file = open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let size = metadata.len();
    if !metadata.is_file() {
        return Err("is not a file".into());
    }
    if size < (SIGNATURE.len() + END.len()) as u64 {
        return judge(size, &[], &[]);
    }
    let mut signature = [0; SIGNATURE.len()];
    let mut end = [0; END.len()];
    file.read_exact_at(&mut signature, 0).map_err(unreadable)?;
    file.read_exact_at(&mut end, size - END.len() as u64).map_err(unreadable)?;
    judge(size, &signature, &end)
}

/// Copies a result file durably. The caller must sync the directory that contains it.
pub(super) fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    let source = match open(from) {
        Ok(source) => source,
        Err(error) => {
            unreadable(from, &error);
            return Ok(());
        }
    };
    let unwritable = |error: io::Error| format!("cannot write {}: {error}", to.display());
    let Some(target) = create(to).map_err(unwritable)? else { return Ok(()) };
    match pour(source, &target) {
        Ok(()) => target.sync_all().map_err(unwritable),
        Err(CopyError::Read(error)) => {
            unreadable(from, &error);
            fs::remove_file(to).map_err(unwritable)
        }
        Err(CopyError::Write(error)) => Err(unwritable(error)),
    }
}

/// Creates a result file, and the directory of its day; `None` if it exists, as a task may name a file twice.
pub(super) fn create(path: &Path) -> io::Result<Option<File>> {
    match DirBuilder::new().mode(0o700).create(path.parent().unwrap_or(path)) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
        made => made.map(Some),
    }
}

fn unreadable(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "skipped an unreadable result file");
}

pub(super) enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

pub(super) fn pour(mut from: File, mut to: &File) -> Result<(), CopyError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count]).map_err(CopyError::Write)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(CopyError::Read(error)),
        }
    }
}
