//! `tintype restore` creates an installation from a backup.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::backup::summary;
use super::printing::JsonArgs;
use super::signals::catch_stops;
use super::{Outcome, progress, show};
use crate::backup::{self, Contents, Target};
use tintype_config::{DataSettings, FilesSettings};

#[derive(Debug, Args)]
#[command(after_help = "\
The command checks the backup before it writes anything, and checks the copy before the database gets its \
final name. It overwrites nothing: there must be no database, no result files and no running server at --data, \
--database and --files. Once a server starts, it continues unfinished tasks from the backup, or fails and \
refunds those older than 9 minutes.")]
pub(super) struct RestoreArgs {
    /// Directory created by `tintype backup`
    from: PathBuf,
    #[command(flatten)]
    pub(super) files: FilesSettings,
    /// Restore even if the audit of the backup finds drifts, such as a missing image
    #[arg(long)]
    despite_drifts: bool,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct Restored {
    from: String,
    data: String,
    #[serde(flatten)]
    contents: Contents,
}

pub(super) async fn run(args: RestoreArgs, data: &DataSettings) -> Outcome {
    let target = Target {
        data: data.data.clone(),
        database: data.sqlite_file("restore to SQLite, then move with `tintype migrate`")?,
        files: data.file_backend(args.files.files.as_deref())?,
    };
    let stopped = catch_stops()?;
    let bar = progress::bar(!args.json);
    let restored = backup::restore(&args.from, &target, args.despite_drifts, &bar, &stopped).await;
    bar.finish_and_clear();
    let (from, data) = (args.from.display().to_string(), data.data.display().to_string());
    let done = format!("Restored {from} into {data}");
    let restored = Restored { from, data, contents: restored? };
    show(args.json, &restored, || summary(&restored.contents, &done))
}
