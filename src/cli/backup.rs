//! `tintype backup` copies an installation.

use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::BinaryBytes;
use serde::Serialize;

use super::printing::{JsonArgs, show_verdict};
use super::{CREATE, Outcome, describe, existing_file, existing_files, progress};
use crate::backup::{self, Contents};
use tintype_config::{DataSettings, FilesSettings};
use tintype_domain::text::counted;
use tintype_engines::models;
use tintype_store::Drift;
use tintype_system::clock::Clock;

#[derive(Debug, Args)]
#[command(after_help = "\
A backup contains a snapshot of the database and the result files of all tasks that were completed in it. \
It is written to TO.partial and renamed to TO when it is complete; the next backup replaces the leftovers of \
an interrupted one. The command audits the copy. If it finds drifts, such as a missing file, it keeps the \
backup, reports them and exits with 1. A backup contains prompts, so only its owner can read it. It contains no \
models: `tintype model pull` fetches them again.")]
pub(super) struct BackupArgs {
    /// Directory to create, with its parents; an existing one must be empty
    to: PathBuf,
    #[command(flatten)]
    pub(super) files: FilesSettings,
    #[command(flatten)]
    json: JsonArgs,
}

/// JSON output for a copied installation.
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

    /// Text output: the drifts, then a summary that starts with `done`.
    pub(super) fn text(&self, done: &str) -> String {
        let mut lines: Vec<String> =
            self.drifts.iter().map(|drift| describe(drift, drift.account_id.as_str())).collect();
        let drifts = self.drifts.len() as u64 + self.drifts_left_out;
        let verdict = if drifts == 0 { String::new() } else { format!(": {}", counted(drifts, "drift", "drifts")) };
        lines.push(format!(
            "{done}: {}, {}, {}, {} in {:.1} s{verdict}.",
            counted(self.accounts, "account", "accounts"),
            counted(self.tasks, "task", "tasks"),
            counted(self.files, "result file", "result files"),
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
    /// The installed models, which are not in the backup.
    models: Vec<String>,
}

pub(super) async fn run(args: BackupArgs, data: &DataSettings) -> Outcome {
    let clock = Clock::system();
    let database = data.sqlite_file("back it up with its own tools, such as pg_dump, then copy the result files")?;
    existing_file(&database, CREATE)?;
    let files = existing_files(data, args.files.files.as_deref()).await?;
    let bar = progress::bar(!args.json);
    let taken = backup::take(&database, files.as_ref(), &args.to, &bar).await;
    bar.finish_and_clear();
    let contents = taken?;
    // A backup does not fail because of models that it leaves out.
    let models = models::entries(&data.data).unwrap_or_default().into_iter().map(|entry| entry.name).collect();
    let taken = Taken { to: lossy(&args.to), copied: Copied::new(&contents, &clock), models };
    show_verdict(!contents.has_drifted(), args.json, &taken, || {
        let summary = taken.copied.text(&format!("Backed up to {}", taken.to));
        if taken.models.is_empty() {
            return summary;
        }
        format!(
            "{summary}\nModels are not in a backup: fetch or add {} again after a restore.",
            taken.models.join(", ")
        )
    })
}

pub(super) fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
