//! `tintype engine library` fetches ONNX Runtime.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::printing::JsonArgs;
use crate::cli::progress::Transfer;
use crate::cli::signals::until_interrupted;
use crate::cli::{Outcome, show};
use tintype_engines::models::hub::{Hub, TimeLimits};
use tintype_engines::models::library::{self, STORE, Target};

#[derive(Debug, Args)]
#[command(after_help = "\
The library comes from PyPI, and must match the checksum in this release. HTTPS_PROXY, ALL_PROXY and NO_PROXY are \
used. The licence of the library is MIT; its notices are saved next to it.")]
pub(in crate::cli) struct LibraryArgs {
    /// Download the build for NVIDIA GPUs. CUDA and cuDNN must already be installed
    #[arg(long)]
    cuda: bool,
    /// URL of PyPI's file server, or of a mirror
    #[arg(long, value_name = "URL", default_value = STORE)]
    store: String,
    /// PEM file with certificate authorities to trust in addition to the public ones
    #[arg(long, env = "TINTYPE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArgs,
}

pub(super) async fn run(args: LibraryArgs, data: &Path) -> Outcome {
    let LibraryArgs { cuda, store, ca, json } = args;
    let target = if cuda { Target::Cuda } else { Target::Processor };
    let read = |file: PathBuf| std::fs::read(&file).map_err(|error| format!("cannot read {}: {error}", file.display()));
    let authorities = ca.map(read).transpose()?;
    let hub = Hub::new(&store, None, authorities.as_deref(), TimeLimits::default())?;
    let transfer = Transfer::new(!json);
    let work = library::install(&hub, data, target, &transfer);
    let installed = until_interrupted(work, "interrupted; run the same command to continue").await;
    transfer.end();
    let library = installed?.display().to_string();
    show(json, &serde_json::json!({ "library": library, "version": library::version() }), || {
        format!("ONNX Runtime {} is installed: {library}", library::version())
    })
}
