//! `tintype files`: the store of result files.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::printing::JsonArgs;
use super::{Failure, Outcome, existing_files, open_store, show};
use crate::service::file_store;
use tintype_config::{DataSettings, FilesSettings};
use tintype_domain::files_marker::FilesMarker;

#[derive(Debug, Subcommand)]
pub(super) enum FilesCommand {
    /// Use --files for this database, after moving the result files there
    Adopt(AdoptArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
A database and its result files share a marker, so that no server starts with other files, which would lack the \
images of completed tasks. This command writes a new marker to --files and to the database; from then on servers \
with any other copy of the files do not start. Stop all servers first, and run `tintype credits audit --files` to \
check that every image exists.")]
pub(super) struct AdoptArgs {
    #[command(flatten)]
    pub(super) files: FilesSettings,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct Adopted {
    files: String,
    marker: FilesMarker,
}

pub(super) async fn run(command: FilesCommand, data: &DataSettings) -> Outcome {
    match command {
        FilesCommand::Adopt(args) => adopt(args, data).await,
    }
}

async fn adopt(args: AdoptArgs, data: &DataSettings) -> Outcome {
    let url = args.files.files.as_deref();
    let store = open_store(data).await?;
    let files = existing_files(data, url).await?;
    let files = files.ok_or_else(|| match data.file_backend(url) {
        Ok(backend) => Failure(format!("there is no directory {backend}: point --files at the result files")),
        Err(error) => Failure(error),
    })?;
    let marker = file_store::adopt(&store, &files).await?;
    let adopted = Adopted { files: files.describe(), marker };
    show(args.json, &adopted, || format!("{} is now the store of result files of this database.", adopted.files))
}
