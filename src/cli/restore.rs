//! `tintype restore`: an installation from a backup.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::backup::{Copied, lossy};
use super::{Outcome, progress, show};
use crate::backup::{self, Target};
use crate::clock::Clock;
use crate::config::{DataSettings, FilesSettings};

#[derive(Debug, Args)]
#[command(after_help = "\
The backup is checked before anything is written, and the copy once more before the database gets its name. \
Nothing is overwritten: there must be no database, no result files and no server where --data, --database \
and --files point to. When the server starts, tasks that were unfinished in the backup go on, or are failed \
and refunded if they are older than 9 minutes by then.")]
pub(super) struct RestoreArgs {
    /// Directory that `tintype backup` made
    from: PathBuf,
    #[command(flatten)]
    files: FilesSettings,
    /// Restore a backup although its books or files are not in order, such as one that misses an image
    #[arg(long)]
    despite_drifts: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Restored<'a> {
    from: String,
    data: String,
    #[serde(flatten)]
    copied: Copied<'a>,
}

pub(super) async fn run(args: RestoreArgs, data: &DataSettings) -> Outcome {
    let clock = Clock::system();
    let target = Target {
        data: data.data.clone(),
        database: data.sqlite_file("restore to SQLite, then move with `tintype migrate`")?,
        files: data.file_backend(args.files.files.as_deref())?,
    };
    let bar = progress::bar(!args.json);
    let restored = backup::restore(&args.from, &target, args.despite_drifts, &bar).await;
    bar.finish_and_clear();
    let contents = restored?;
    let (from, data) = (lossy(&args.from), lossy(&data.data));
    let restored = Restored { from, data, copied: Copied::new(&contents, &clock) };
    show(args.json, &restored, || restored.copied.text(&format!("Restored {} into {}", restored.from, restored.data)))
}
