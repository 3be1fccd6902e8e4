//! `tintype backup`: a copy to restore from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use indicatif::BinaryBytes;
use serde::Serialize;

use super::{Outcome, describe, existing_file, existing_files, progress, show};
use crate::backup::{self, Contents};
use crate::clock::Clock;
use crate::config::{DataSettings, FilesSettings};
use crate::store::Drift;

#[derive(Debug, Args)]
#[command(after_help = "\
The copy holds the database at one moment and the result files of all tasks that were completed then. \
It grows as TO.partial beside TO and is renamed when it is whole; what a backup that was cut off has left \
there is replaced by the next one. The copy is audited, and any drift, such as a missing file, is told and \
makes the exit code 1; the rest of the backup is kept. It holds prompts: only its owner may read it.")]
pub(super) struct BackupArgs {
    /// Directory to make; may exist if it is empty
    to: PathBuf,
    #[command(flatten)]
    files: FilesSettings,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints of a copy.
#[derive(Debug, Serialize)]
pub(super) struct Copied<'a> {
    accounts: u64,
    tasks: u64,
    files: u64,
    bytes: u64,
    seconds: f64,
    drifts: &'a [Drift],
    drifts_left_out: u64,
}

impl<'a> Copied<'a> {
    pub(super) fn new(contents: &'a Contents, clock: &Clock) -> Self {
        Self {
            accounts: contents.accounts,
            tasks: contents.tasks,
            files: contents.files,
            bytes: contents.bytes,
            seconds: (clock.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            drifts: &contents.drifts,
            drifts_left_out: contents.drifts_left_out,
        }
    }

    /// For people: the drifts, then a line that says `what` was done.
    pub(super) fn text(&self, what: &str) -> String {
        let mut lines: Vec<String> = self.drifts.iter().map(describe).collect();
        let drifts = self.drifts.len() as u64 + self.drifts_left_out;
        let verdict = if drifts == 0 { String::new() } else { format!(": {drifts} drifts") };
        lines.push(format!(
            "{what}: {} accounts, {} tasks, {} result files, {} in {:.1} s{verdict}.",
            self.accounts,
            self.tasks,
            self.files,
            BinaryBytes(self.bytes),
            self.seconds
        ));
        lines.join("\n")
    }
}

#[derive(Debug, Serialize)]
struct Taken<'a> {
    to: String,
    #[serde(flatten)]
    copied: Copied<'a>,
}

pub(super) async fn run(args: BackupArgs, data: &DataSettings) -> Outcome {
    let clock = Clock::system();
    let database = data.sqlite_file("back it up with its own tools, such as pg_dump, then copy the result files")?;
    existing_file(&database)?;
    let files = existing_files(data, args.files.files.as_deref()).await?;
    let bar = progress::bar(!args.json);
    let taken = backup::take(&database, files.as_ref(), &args.to, &bar).await;
    bar.finish_and_clear();
    let contents = taken?;
    let taken = Taken { to: lossy(&args.to), copied: Copied::new(&contents, &clock) };
    show(args.json, &taken, || taken.copied.text(&format!("Backed up to {}", taken.to)))?;
    Ok(if contents.has_drifted() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub(super) fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
