//! Checks and copies the result files of all completed tasks.

mod bucket;
mod directory;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

use super::check_not_stopped;
use crate::files::{FileName, Files, SIGNATURE};
use tintype_domain::model::{Id, TaskId};
use tintype_store::{CompletedTask, Drift, Store};

const PAGE: u32 = 256;

/// Most drifts to report individually; further ones are only counted.
const MAX_DRIFTS: usize = 10_000;

/// The IEND chunk, the last bytes of every PNG.
const END: [u8; 12] = *b"\0\0\0\0IEND\xae\x42\x60\x82";

/// Result of checking every file.
#[derive(Debug, Default)]
pub struct Check {
    /// Files examined.
    pub files: u64,
    /// Total size of these files.
    pub bytes: u64,
    /// Drifts, up to a limit.
    pub drifts: Vec<Drift>,
    /// Number of drifts beyond that limit.
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

#[derive(Debug)]
struct ResultFile {
    name: String,
    task_id: Id,
    account_id: Id,
}

impl ResultFile {
    /// The parsed name, or a fault if the task cannot have a result of that name.
    fn name(&self) -> Result<FileName<'_>, String> {
        match FileName::parse(&self.name) {
            Some(name) if name.task_id() == self.task_id => Ok(name),
            Some(_) => Err("belongs to another task".into()),
            None => Err("has an invalid name".into()),
        }
    }

    fn path(&self, directory: &Path) -> Result<PathBuf, String> {
        self.name().map(|name| directory.join(name.as_str()))
    }
}

/// Turns `progress` into a bar of `tasks` tasks, which [`check`] and [`copy`] advance.
pub fn begin(progress: &ProgressBar, message: &'static str, tasks: u64) {
    let template = "{msg} {bar:30} {human_pos} of {human_len} tasks ({elapsed}, {eta} left)";
    progress.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
    progress.set_position(0);
    progress.set_length(tasks);
    progress.set_message(message);
}

/// Checks that every image of the tasks exists and starts and ends like a PNG; it does not read the bytes in between.
///
/// # Errors
/// A message for the operator: the tasks could not be read, there are completed tasks but no result files, or `stopped`
/// was cancelled.
pub async fn check(
    files: Option<&Files>,
    tasks: &Store,
    progress: &ProgressBar,
    stopped: &CancellationToken,
) -> Result<Check, String> {
    let mut check = Check::default();
    let examine = async |files: &Files, results: Vec<ResultFile>| match files.directory() {
        Some(directory) => {
            let examine = |file: &ResultFile, directory: &Path| {
                Ok(file.path(directory).and_then(|path| directory::examine(&path)))
            };
            directory::in_threads(directory, results.into_iter(), examine).await
        }
        None => bucket::concurrently(results, async |file| Ok(bucket::examine(files, file).await)).await,
    };
    walk(files, tasks, (progress, stopped), examine, |file, outcome| check.add(&file, outcome)).await?;
    Ok(check)
}

/// Copies every image of the tasks durably into `to` without overwriting anything. An unreadable image is left out with
/// a warning; [`check`] reports it.
///
/// # Errors
/// A message for the operator: a file could not be written, or as for [`check`].
pub async fn copy(
    files: Option<&Files>,
    to: &Files,
    tasks: &Store,
    progress: &ProgressBar,
    stopped: &CancellationToken,
) -> Result<(), String> {
    let mut days = BTreeSet::new();
    let copy_some = async |files: &Files, results: Vec<ResultFile>| match (files.directory(), to.directory()) {
        (Some(from), Some(to)) => {
            let to = to.to_owned();
            let copy = move |file: &ResultFile, from: &Path| copy_on_disk(file, from, &to);
            directory::in_threads(from, results.into_iter(), copy).await
        }
        (_, Some(to)) => bucket::concurrently(results, async |file| bucket::download(files, file, to).await).await,
        (_, None) => bucket::concurrently(results, async |file| bucket::upload(files, file, to).await).await,
    };
    walk(files, tasks, (progress, stopped), copy_some, |_, day| days.extend(day)).await?;
    for directory in days.iter().map(PathBuf::as_path).chain(to.directory()) {
        sync_directory(directory)?;
    }
    Ok(())
}

/// Copies one file from a directory to another. Returns the directory that must be synced.
fn copy_on_disk(file: &ResultFile, from: &Path, to: &Path) -> Result<Option<PathBuf>, String> {
    match (file.path(from), file.path(to)) {
        (Ok(from), Ok(to)) => directory::copy_file(&from, &to).map(|()| to.parent().map(Path::to_owned)),
        (Err(fault), _) | (_, Err(fault)) => {
            not_copied(file, &fault);
            Ok(None)
        }
    }
}

fn not_copied(file: &ResultFile, fault: &str) {
    tracing::warn!(image = file.name, fault, "result file skipped in the backup");
}

/// Applies `work` to all files page by page and passes the results to `done` in order. Stops between two pages, so that
/// no thread writes any more.
async fn walk<T>(
    files: Option<&Files>,
    tasks: &Store,
    (progress, stopped): (&ProgressBar, &CancellationToken),
    work: impl AsyncFn(&Files, Vec<ResultFile>) -> Result<Vec<(ResultFile, T)>, String>,
    mut done: impl FnMut(ResultFile, T),
) -> Result<(), String> {
    let mut last = None;
    loop {
        check_not_stopped(stopped)?;
        let page = tasks.completed_tasks(last, PAGE).await.map_err(|error| error.to_string())?;
        let Some(end) = page.last() else { return Ok(()) };
        let Some(files) = files else {
            return Err("there are completed tasks, but no directory of result files".into());
        };
        last = Some(end.id);
        let count = page.len() as u64;
        let results = page.into_iter().flat_map(result_files).collect();
        for (file, outcome) in work(files, results).await? {
            done(file, outcome);
        }
        progress.inc(count);
    }
}

fn result_files(task: CompletedTask) -> impl Iterator<Item = ResultFile> {
    task.images.into_iter().map(move |name| ResultFile { name, task_id: task.id, account_id: task.account_id })
}

/// Returns the size of a PNG, given its first and last bytes, or its fault.
fn judge(size: u64, signature: &[u8], end: &[u8]) -> Result<u64, String> {
    match size {
        0 => Err("is empty".into()),
        _ if size < (SIGNATURE.len() + END.len()) as u64 => Err(format!("has only {size} bytes")),
        _ if signature != SIGNATURE => Err("does not start like a PNG".into()),
        _ if end != END => Err("is truncated: it does not end like a PNG".into()),
        _ => Ok(size),
    }
}

/// Makes the entries of a directory durable.
pub fn sync_directory(path: &Path) -> Result<(), String> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| format!("cannot sync {}: {error}", path.display()))
}

/// Copies a file durably to a new name that only its owner can read.
pub fn copy_whole(from: &Path, to: &Path) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("cannot read {}: {error}", from.display());
    let unwritable = |error: io::Error| format!("cannot write {}: {error}", to.display());
    let source = File::open(from).map_err(unreadable)?;
    let target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(unwritable)?;
    directory::pour(source, &target).map_err(|error| match error {
        directory::CopyError::Read(error) => unreadable(error),
        directory::CopyError::Write(error) => unwritable(error),
    })?;
    target.sync_all().map_err(unwritable)
}
