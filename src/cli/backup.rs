//! `tintype backup` copies an installation.

use std::path::PathBuf;

use clap::Args;
use indicatif::BinaryBytes;
use serde::Serialize;

use super::printing::{JsonArgs, show_verdict};
use super::signals::catch_stops;
use super::{CREATE, Outcome, describe, existing_file, existing_files, progress};
use crate::backup::{self, Contents};
use tintype_config::{DataSettings, FilesSettings};
use tintype_domain::text::counted;
use tintype_engines::models;

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

/// The drifts of a copied installation, then a summary that starts with `done`.
pub(super) fn summary(contents: &Contents, done: &str) -> String {
    let Contents { accounts, tasks, files, bytes, seconds, drifts, drifts_left_out } = contents;
    let mut lines: Vec<_> = drifts.iter().map(|drift| describe(drift, drift.account_id.as_str())).collect();
    let drifts = drifts.len() as u64 + drifts_left_out;
    let verdict = if drifts == 0 { String::new() } else { format!(": {}", counted(drifts, "drift", "drifts")) };
    lines.push(format!(
        "{done}: {}, {}, {}, {} in {seconds:.1} s{verdict}.",
        counted(*accounts, "account", "accounts"),
        counted(*tasks, "task", "tasks"),
        counted(*files, "result file", "result files"),
        BinaryBytes(*bytes)
    ));
    lines.join("\n")
}

#[derive(Debug, Serialize)]
struct Taken {
    to: String,
    #[serde(flatten)]
    contents: Contents,
    /// The installed models, which are not in the backup.
    models: Vec<String>,
}

pub(super) async fn run(args: BackupArgs, data: &DataSettings) -> Outcome {
    let database = data.sqlite_file("back it up with its own tools, such as pg_dump, then copy the result files")?;
    existing_file(&database, CREATE)?;
    let stopped = catch_stops()?;
    let files = existing_files(data, args.files.files.as_deref()).await?;
    let bar = progress::bar(!args.json);
    let taken = backup::take(&database, files.as_ref(), &args.to, &bar, &stopped).await;
    bar.finish_and_clear();
    let contents = taken?;
    // A backup does not fail because of models that it leaves out.
    let models = models::entries(&data.data).unwrap_or_default().into_iter().map(|entry| entry.name).collect();
    let taken = Taken { to: args.to.display().to_string(), contents, models };
    show_verdict(!taken.contents.has_drifted(), args.json, &taken, || {
        let summary = summary(&taken.contents, &format!("Backed up to {}", taken.to));
        if taken.models.is_empty() {
            return summary;
        }
        format!(
            "{summary}\nModels are not in a backup: fetch or add {} again after a restore.",
            taken.models.join(", ")
        )
    })
}
