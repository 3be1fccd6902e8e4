//! The content policy.

use std::path::PathBuf;

use clap::Args;

/// The content policy of the service.
#[derive(Debug, Clone, Default, Args)]
pub struct PolicySettings {
    /// Content policy in TOML: banned words, moderation, blocked images, strikes [default: the engine's own refusals
    /// only]
    #[arg(long, env = "TINTYPE_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,
}
