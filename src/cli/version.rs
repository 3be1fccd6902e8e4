//! `tintype version`, like `--version`.

use clap::Args;
use serde_json::json;

use super::{Outcome, show};

#[derive(Debug, Args)]
pub(super) struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &VersionArgs) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    show(args.json, &json!({ "version": version }), || format!("tintype {version}"))
}
