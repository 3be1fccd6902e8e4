//! The result files of all completed tasks: checking that they are there, and copying them.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use futures::future::join_all;
use indicatif::{ProgressBar, ProgressStyle};

use crate::files::{FileName, Files};
use crate::model::{Id, TaskId};
use crate::store::{self, CompletedTask, Drift};

/// Tasks fetched at a time.
const PAGE: u32 = 256;
/// Files that one thread looks at before the next page; a page is spread over so many threads that a
/// disk has enough to do at once.
const FILES_A_THREAD: usize = 16;
/// Drifts that are kept; beyond it they are only counted.
const MAX_DRIFTS: usize = 10_000;
/// Bytes read and written at a time.
const BUFFER_BYTES: usize = 256 * 1024;

/// What every PNG begins with.
const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
/// The whole IEND chunk that every PNG ends with.
const END: [u8; 12] = *b"\0\0\0\0IEND\xae\x42\x60\x82";

/// What a look at every file found.
#[derive(Debug, Default)]
pub struct Check {
    /// Files examined.
    pub files: u64,
    /// Their size together.
    pub bytes: u64,
    /// What is wrong, up to a limit.
    pub drifts: Vec<Drift>,
    /// How much more is wrong.
    pub drifts_left_out: u64,
}

impl Check {
    fn add(&mut self, file: &ResultFile, found: Result<u64, String>) {
        self.files += 1;
        match found {
            Ok(bytes) => self.bytes += bytes,
            Err(_) if self.drifts.len() >= MAX_DRIFTS => self.drifts_left_out += 1,
            Err(fault) => {
                let fault = format!("the image {} {fault}", file.name);
                self.drifts.push(Drift { account_id: file.account_id, task_id: Some(TaskId(file.task_id)), fault });
            }
        }
    }
}

/// A file that a completed task names.
#[derive(Debug)]
struct ResultFile {
    name: String,
    task_id: Id,
    account_id: Id,
}

impl ResultFile {
    /// Where it is in a directory; a fault when the name is not one that the task's result can have.
    fn path(&self, directory: &Path) -> Result<PathBuf, String> {
        match FileName::parse(&self.name) {
            Some(name) if name.task_id() == self.task_id => Ok(directory.join(name.as_str())),
            Some(_) => Err("is of another task".into()),
            None => Err("has a name that no result file has".into()),
        }
    }
}

/// Makes `progress` a bar of so many tasks, for [`check`] and [`copy`] to advance.
pub fn begin(progress: &ProgressBar, message: &'static str, tasks: u64) {
    let template = "{msg} {bar:30} {human_pos} of {human_len} tasks ({elapsed}, {eta} left)";
    progress.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
    progress.set_position(0);
    progress.set_length(tasks);
    progress.set_message(message);
}

/// Looks at every image that the tasks name: whether it exists, begins as a PNG and ends as one. What
/// is between is not read. `page` fetches tasks as [`store::Store::completed_tasks`] does.
///
/// # Errors
/// A sentence for the operator: the tasks could not be read, or there are some and no store of files.
pub async fn check(
    files: Option<&Files>,
    page: impl AsyncFn(Option<Id>, u32) -> store::Result<Vec<CompletedTask>>,
    progress: &ProgressBar,
) -> Result<Check, String> {
    let mut check = Check::default();
    let examine = |file: &ResultFile, directory: &Path| Ok(file.path(directory).and_then(|path| examine(&path)));
    let found = |file: ResultFile, outcome| check.add(&file, outcome);
    walk(files, page, progress, examine, found).await?;
    Ok(check)
}

/// Copies every image that the tasks name into the directory `to`, which must exist, and syncs it all.
/// What cannot be read is left out, with a warning, for [`check`] to find.
///
/// # Errors
/// A sentence for the operator: a file could not be written, or as for [`check`].
pub async fn copy(
    files: Option<&Files>,
    to: &Path,
    page: impl AsyncFn(Option<Id>, u32) -> store::Result<Vec<CompletedTask>>,
    progress: &ProgressBar,
) -> Result<(), String> {
    let mut days = BTreeSet::new();
    let target = to.to_owned();
    let copy_one = move |file: &ResultFile, directory: &Path| match (file.path(directory), file.path(&target)) {
        (Ok(from), Ok(to)) => copy_file(&from, &to).map(|()| to.parent().map(Path::to_owned)),
        (Err(fault), _) | (_, Err(fault)) => {
            tracing::warn!(image = file.name, fault, "not copied");
            Ok(None)
        }
    };
    walk(files, page, progress, copy_one, |_, day| days.extend(day)).await?;
    for directory in days.iter().map(PathBuf::as_path).chain([to]) {
        sync_directory(directory)?;
    }
    Ok(())
}

/// Does `work` on every file, many at a time, and hands on what comes of each in order.
async fn walk<T: Send + 'static>(
    files: Option<&Files>,
    page: impl AsyncFn(Option<Id>, u32) -> store::Result<Vec<CompletedTask>>,
    progress: &ProgressBar,
    work: impl Fn(&ResultFile, &Path) -> Result<T, String> + Clone + Send + 'static,
    mut done: impl FnMut(ResultFile, T),
) -> Result<(), String> {
    let mut last = None;
    loop {
        let tasks = page(last, PAGE).await.map_err(|error| error.to_string())?;
        let Some(end) = tasks.last() else { return Ok(()) };
        let Some(files) = files else {
            return Err("there are completed tasks, but no directory of result files".into());
        };
        last = Some(end.id);
        let count = tasks.len() as u64;
        let mut threads = Vec::new();
        let mut results = tasks.into_iter().flat_map(result_files).peekable();
        while results.peek().is_some() {
            let some: Vec<ResultFile> = results.by_ref().take(FILES_A_THREAD).collect();
            let (work, directory) = (work.clone(), files.directory().to_owned());
            threads.push(tokio::task::spawn_blocking(move || {
                some.into_iter().map(|file| work(&file, &directory).map(|outcome| (file, outcome))).collect::<Vec<_>>()
            }));
        }
        for outcomes in join_all(threads).await {
            for outcome in outcomes.map_err(|error| error.to_string())? {
                let (file, outcome) = outcome?;
                done(file, outcome);
            }
        }
        progress.inc(count);
    }
}

fn result_files(task: CompletedTask) -> impl Iterator<Item = ResultFile> {
    task.images.into_iter().map(move |name| ResultFile { name, task_id: task.id, account_id: task.account_id })
}

/// The size of a PNG, or what is wrong with it.
fn examine(path: &Path) -> Result<u64, String> {
    let unreadable = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => "is missing".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let size = metadata.len();
    if !metadata.is_file() {
        return Err("is not a file".into());
    }
    if size == 0 {
        return Err("is empty".into());
    }
    let mut signature = [0; SIGNATURE.len()];
    let mut end = [0; END.len()];
    if size < (SIGNATURE.len() + END.len()) as u64 {
        return Err(format!("has only {size} bytes"));
    }
    file.read_exact_at(&mut signature, 0).map_err(unreadable)?;
    file.read_exact_at(&mut end, size - END.len() as u64).map_err(unreadable)?;
    if signature != SIGNATURE {
        return Err("does not begin as a PNG".into());
    }
    if end != END {
        return Err("is cut off: it does not end as a PNG".into());
    }
    Ok(size)
}

/// Copies a result file durably; the directory it is made in is for the caller to sync.
fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    let source = match File::open(from) {
        Ok(source) => source,
        Err(error) => {
            unreadable(from, &error);
            return Ok(());
        }
    };
    let unwritable = |error: io::Error| format!("cannot write {}: {error}", to.display());
    let day = to.parent().unwrap_or(to);
    match DirBuilder::new().mode(0o700).create(day) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(unwritable(error)),
        _ => {}
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(to) {
        // A task may name a file twice.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(unwritable(error)),
        Ok(target) => match pour(source, &target) {
            Ok(()) => target.sync_all().map_err(unwritable),
            Err(PourError::Read(error)) => {
                unreadable(from, &error);
                fs::remove_file(to).map_err(unwritable)
            }
            Err(PourError::Write(error)) => Err(unwritable(error)),
        },
    }
}

fn unreadable(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "a result file cannot be read and is not copied");
}

/// Which side of a copy failed.
enum PourError {
    Read(io::Error),
    Write(io::Error),
}

fn pour(mut from: File, mut to: &File) -> Result<(), PourError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count]).map_err(PourError::Write)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(PourError::Read(error)),
        }
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// A sentence for the operator.
pub fn sync_directory(path: &Path) -> Result<(), String> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| format!("cannot sync {}: {error}", path.display()))
}

/// Copies a file whole and durably to a new name, readable by its owner alone.
///
/// # Errors
/// A sentence for the operator.
pub fn copy_whole(from: &Path, to: &Path) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("cannot read {}: {error}", from.display());
    let unwritable = |error: io::Error| format!("cannot write {}: {error}", to.display());
    let source = File::open(from).map_err(unreadable)?;
    let target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(unwritable)?;
    pour(source, &target).map_err(|error| match error {
        PourError::Read(error) => unreadable(error),
        PourError::Write(error) => unwritable(error),
    })?;
    target.sync_all().map_err(unwritable)
}
