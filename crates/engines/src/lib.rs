//! The engines of this release. Only this module resolves `--engine`.
//!
//! Each driver for external servers has its own file. It describes the engine without connecting, and builds it from an
//! [`endpoint::Endpoint`] per server, [`servers::Servers`], which chooses among them, and [`results::Results`], which
//! turns returned files into pictures. Drivers never create HTTP clients or decode pictures themselves.

pub mod comfyui;
pub mod diffusion;
pub mod endpoint;
pub mod models;
mod openai;
pub mod prompt;
pub mod results;
mod sd_server;
pub mod servers;
pub mod supervisor;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tintype_engine::{Engine, EngineInfo, Sizes};
use tintype_sketch::Sketch;

use tintype_config::{EngineSettings, EngineTarget, NamedEngine, ServerKind};
use tintype_system::sandbox::Decoder;
use tintype_system::watched_files::FileVersion;

/// This release's engines, as named in `--engine`.
pub const KNOWN: [&str; 6] = ["sketch", "diffusion", "openai:URL", "sd-server:URL", "sd-server", "comfyui:URL"];

/// How long a task is assumed to take on a server until some have been measured.
const TYPICAL_DURATION: Duration = Duration::from_secs(20);

/// An engine's surroundings in a rendering process.
#[derive(Debug, Clone, Default)]
pub struct EngineContext {
    /// Decodes the pictures that a server returns.
    pub decoder: Decoder,
    /// Whether errors quote the server. Its message can repeat the prompt, so only commands whose prompt is the
    /// operator's own may show it.
    pub quotes_server: bool,
    /// Whether the engine can write files beside its model: only a service does, as the owner of its data.
    pub keeps: bool,
}

type Build = dyn Fn(EngineContext) -> Result<Arc<dyn Engine>, String> + Send + Sync;

/// A chosen engine that isn't built yet.
pub struct EngineChoice {
    /// The description of the engine.
    pub info: EngineInfo,
    build: Box<Build>,
}

impl fmt::Debug for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineChoice").field("info", &self.info).finish_non_exhaustive()
    }
}

impl EngineChoice {
    fn new(
        info: EngineInfo,
        build: impl Fn(EngineContext) -> Result<Arc<dyn Engine>, String> + Send + Sync + 'static,
    ) -> Self {
        // A mask needs a reference.
        let masks = info.masks && info.max_references > 0;
        Self { info: EngineInfo { masks, ..info }, build: Box::new(build) }
    }

    /// Builds the engine in a rendering process, without connecting to a server yet.
    ///
    /// # Errors
    /// A message for the operator: the engine's key or certificate authorities cannot be used.
    pub fn build(&self, context: EngineContext) -> Result<Arc<dyn Engine>, String> {
        (self.build)(context)
    }
}

/// How long a task usually takes on the settings' engine, as far as known without reading the engine's files. A
/// rendering process measures it.
pub fn typical_duration(settings: &EngineSettings) -> Duration {
    match settings.target() {
        EngineTarget::Sketch => Sketch::info().typical_duration,
        _ => TYPICAL_DURATION,
    }
}

/// The configured sizes, or else the ones that a driver knows.
fn sizes(settings: &EngineSettings, otherwise: Sizes) -> Sizes {
    match settings.engine_sizes.as_slice() {
        [] => otherwise,
        sizes => Sizes::Of(sizes.to_vec()),
    }
}

/// A process's engines: the configured ones, or else the diffusion engine if a model is named or installed, or else the
/// sketch engine.
pub fn configured(settings: &EngineSettings, data: &Path) -> Result<Vec<NamedEngine>, String> {
    let unset = settings.engine.is_none() && settings.engine_table.is_empty();
    if unset && (settings.model.is_some() || diffusion::default_model(data).is_some()) {
        return Ok(vec![settings.engine_named(&EngineTarget::Diffusion)?]);
    }
    let mut engines = settings.engines()?;
    diffusion::share_memory(&mut engines)?;
    Ok(engines)
}

/// What a process's engine renders with, for detecting changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineModel {
    /// The name of the engine.
    pub engine: String,
    /// The built-in engine's model, and its version if it is installed.
    pub model: Option<(String, Option<FileVersion>)>,
}

impl EngineModel {
    /// What this engine renders with if its models are in this data directory.
    pub fn of(engine: &NamedEngine, data: &Path) -> Self {
        let is_built_in = engine.settings.target() == EngineTarget::Diffusion;
        let model = || engine.settings.model.clone().or_else(|| diffusion::default_model(data));
        let model = is_built_in.then(model).flatten();
        let model = model.map(|model| (model.clone(), models::version(data, &model)));
        Self { engine: engine.name.clone(), model }
    }
}

/// The engine named by the settings, for an installation with its models in this data directory. Reads no key, connects
/// to no server and opens no model.
pub fn choose(settings: &EngineSettings, data: &Path) -> Result<EngineChoice, String> {
    let target = settings.target();
    if let Some(name) = settings.built_in_only().filter(|_| target != EngineTarget::Diffusion) {
        return Err(format!(
            "--{name} is for the built-in diffusion engine, and not for {target}: leave it out, or give --engine diffusion"
        ));
    }
    match &target {
        EngineTarget::Named(name) => Err(format!("there is no engine {name:?}")),
        EngineTarget::Sketch => {
            let info = Sketch::info();
            let max_references = settings.engine_references.unwrap_or(info.max_references);
            let sizes = sizes(settings, info.sizes.clone());
            Ok(EngineChoice::new(EngineInfo { max_references, sizes, ..info }, |_| Ok(Arc::new(Sketch::new()))))
        }
        EngineTarget::Diffusion => diffusion::choose(settings, data),
        EngineTarget::OwnSdServer => sd_server::choose(&[], settings),
        EngineTarget::Servers(ServerKind::OpenAi, urls) => openai::choose(urls, settings),
        EngineTarget::Servers(ServerKind::SdServer, urls) => sd_server::choose(urls, settings),
        EngineTarget::Servers(ServerKind::ComfyUi, urls) => comfyui::choose(urls, settings),
    }
}

#[cfg(test)]
mod tests {
    use tintype_config::ServerSettings;

    use super::*;

    #[test]
    fn additions_to_a_model_are_for_the_built_in_engine() {
        let chosen = |engine: &str, flag: &str| {
            let engine = format!("--engine={engine}");
            let flags = [engine.as_str(), "--model=/none", flag];
            let settings = ServerSettings::from_flags(flags).expect("settings");
            choose(&settings.worker.engine, Path::new("/none"))
        };
        for (flag, what) in [
            ("--engine-lora=a.safetensors:0.5,b.safetensors", "with 2 LoRA files"),
            ("--engine-embedding=a.safetensors=word", "with an embedding"),
            ("--engine-vae=a.safetensors", "with another VAE"),
            ("--engine-prompt=weighted", "with weighted prompts"),
        ] {
            for engine in ["sketch", "openai:http://127.0.0.1/v1", "comfyui:http://127.0.0.1", "sd-server"] {
                let refusal = chosen(engine, flag).expect_err("another engine");
                let name = flag.split('=').next().expect("a name");
                assert!(refusal.contains(&format!("{name} is for the built-in diffusion engine")), "{refusal}");
            }
            let description = chosen("diffusion", flag).expect("an engine").info.description;
            assert!(description.contains(what), "{description}");
        }
    }
}
