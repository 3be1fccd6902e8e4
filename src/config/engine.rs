//! The engine.

use clap::Args;

/// The engine that renders the images.
#[derive(Debug, Clone, Args)]
pub struct EngineSettings {
    /// Engine that renders the images: sketch
    #[arg(long, env = "TINTYPE_ENGINE", default_value = "sketch", value_name = "NAME[:URL]")]
    pub engine: String,
}
