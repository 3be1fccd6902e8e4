//! stable-diffusion.cpp's server: at a URL where it already runs, or as a child of this process on each device.
//!
//! A server renders one picture after another, and a picture in progress cannot be stopped. If the picture is no longer
//! wanted, an attached server takes no work until it is done; a child is killed and restarted.

mod api;
mod child;
mod server;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value};
use tintype_engine::{
    Brief, CancellationToken, Device, Engine, EngineError, EngineInfo, LoraSource, Picture, Progress, RenderSettings,
    Setting, Sizes,
};
use url::Url;

use self::api::{Api, Capabilities};
use self::child::SdServerProgram;
use self::server::{Kill, ReferenceUse, Report, Server};
use super::diffusion::machine::kib;
use super::endpoint::{Endpoint, Fault};
use super::results::Results;
use super::servers::{self, BriefHash, Servers};
use super::supervisor::Supervisor;
use super::{EngineChoice, EngineContext, TYPICAL_DURATION, sizes};
use tintype_config::EngineSettings;

/// Words in the names of models that look at reference pictures.
const EDITING_MODELS: [&str; 6] = ["edit", "kontext", "klein", "flux2", "flux.2", "flux-2"];

/// Servers at these URLs, or children of this process if there are none.
pub(super) fn choose(urls: &[Url], settings: &EngineSettings) -> Result<EngineChoice, String> {
    let (count, description) = match urls {
        [] => (settings.devices().len(), "stable-diffusion.cpp's server, run by this process".to_owned()),
        [url] => (1, format!("stable-diffusion.cpp's server at {}", url.as_str().trim_end_matches('/'))),
        [first, ..] => {
            let first = first.as_str().trim_end_matches('/');
            (urls.len(), format!("{} servers of stable-diffusion.cpp, such as {first}", urls.len()))
        }
    };
    let max_references = settings.engine_references.unwrap_or(1);
    let info = EngineInfo {
        sizes: sizes(settings, Sizes::Any),
        max_references,
        masks: max_references > 0,
        settings: Setting::ALL.to_vec(),
        loras: LoraSource::Server,
        slots: count,
        ..EngineInfo::new("sd-server", description, TYPICAL_DURATION)
    };
    if urls.is_empty() {
        settings.arguments()?;
    }
    let extra = checked_extra(settings)?;
    let (urls, settings) = (urls.to_vec(), settings.clone());
    Ok(EngineChoice::new(info, move |context| {
        let servers = if urls.is_empty() {
            settings.devices().into_iter().map(|device| ServerSlot::child(device, &settings, &context)).collect()
        } else {
            let endpoints = Endpoint::all(&urls, &settings, &context)?;
            let results = Results::new(context.decoder.clone());
            let attach = |endpoint| {
                Ok(ServerSlot::Attached(Arc::new(Server::new(Api::new(endpoint), results.clone(), extra.clone()))))
            };
            endpoints.into_iter().map(attach).collect::<Result<Vec<_>, String>>()
        }?;
        // Servers have their own queues, and the engine's slots limit its tasks.
        let servers = Servers::new(servers, usize::MAX);
        Ok(Arc::new(SdServer { servers, max_references }))
    }))
}

/// Fields that every job sets itself.
const RESERVED: [&str; 10] = [
    "prompt",
    "width",
    "height",
    "seed",
    "batch_count",
    "output_format",
    "embed_image_metadata",
    "ref_images",
    "init_image",
    "mask_image",
];

/// The operator's fields for every job.
pub(super) fn checked_extra(settings: &EngineSettings) -> Result<Map<String, Value>, String> {
    let extra = settings.engine_extra.clone().unwrap_or_default().without(&RESERVED)?;
    // A task puts its steps and guidance there.
    let params = extra.get("sample_params");
    let guidance = params.and_then(|params| params.get("guidance"));
    let wrong = [("sample_params", params), ("sample_params.guidance", guidance)].into_iter().find(is_no_table);
    match wrong.map(|(name, _)| name) {
        Some(name) => Err(format!("extra: {name} must be a table")),
        None => Ok(extra),
    }
}

fn is_no_table((_, value): &(&str, Option<&Value>)) -> bool {
    value.is_some_and(|value| !value.is_object())
}

#[derive(Debug)]
struct SdServer {
    servers: Servers<ServerSlot>,
    max_references: usize,
}

enum ServerSlot {
    Attached(Arc<Server>),
    /// Its description, and its supervisor.
    Child(String, Arc<Supervisor<Arc<Server>>>),
}

impl fmt::Debug for ServerSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerSlot").field(&servers::Server::name(self)).finish()
    }
}

#[async_trait]
impl servers::Server for ServerSlot {
    fn name(&self) -> &str {
        match self {
            Self::Attached(server) => server.api().name(),
            Self::Child(name, _) => name,
        }
    }

    fn readiness(&self) -> Result<(), EngineError> {
        match self {
            Self::Attached(server) => server.is_free(),
            Self::Child(_, supervisor) => supervisor.running()?.link.is_free(),
        }
    }

    async fn probe(&self) -> Result<(), Fault> {
        let server = match self {
            Self::Attached(server) => server.clone(),
            Self::Child(_, supervisor) => supervisor.running()?.link,
        };
        server.is_free()?;
        server.api().capabilities().await?;
        Ok(())
    }
}

impl ServerSlot {
    fn child(device: Option<String>, settings: &EngineSettings, context: &EngineContext) -> Result<Self, String> {
        let program = settings.engine_program.display();
        let name =
            device.as_ref().map_or_else(|| program.to_string(), |device| format!("{program} on device {device}"));
        let (program, start) = SdServerProgram::new(device, settings, context)?;
        Ok(Self::Child(name, Arc::new(Supervisor::new(program, start))))
    }

    async fn render(&self, brief: &Brief, max_references: usize, progress: &Progress) -> Result<Vec<Picture>, Fault> {
        let pictures = brief.seeds.len();
        let (server, report, kill) = match self {
            Self::Attached(server) => (server.clone(), Report::new(progress, pictures, None), None),
            Self::Child(_, supervisor) => {
                let running = supervisor.running()?;
                let (supervisor, number) = (supervisor.clone(), running.number);
                let kill: Kill = Arc::new(move |why: &str| supervisor.replace(number, why));
                (running.link, Report::new(progress, pictures, Some(running.steps)), Some(kill))
            }
        };
        let references = if brief.mask.is_some() {
            // The server keeps the black part of the mask, so the rest can change completely.
            ReferenceUse::PaintedOver { strength: brief.settings.strength.unwrap_or(1.0) }
        } else if brief.references.is_empty() || max_references > 1 {
            ReferenceUse::Shown
        } else {
            reference_use(&server.api().capabilities().await?, &brief.settings)?
        };
        server.render(brief, references, &report, kill).await
    }

    /// A child's memory. Servers at a URL don't report their devices.
    fn device(&self) -> Option<Device> {
        let Self::Child(name, supervisor) = self else { return None };
        let running = supervisor.running().ok()?;
        let name = format!("{name}, process {}", running.process);
        Some(Device { name, memory: None, free_memory: None, used_memory: resident_memory(running.process) })
    }
}

/// A process's resident memory in bytes, not including GPU memory.
fn resident_memory(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    kib(&status, "VmRSS:")
}

/// How a server's model uses a single reference picture, judging by the model's name.
fn reference_use(capabilities: &Capabilities, settings: &RenderSettings) -> Result<ReferenceUse, EngineError> {
    if is_for_editing(capabilities.model()) {
        return Ok(ReferenceUse::Shown);
    }
    let strength = capabilities.strength(settings).ok_or_else(|| {
        let cause = "sd-server paints in one step, which leaves nothing of a reference: give its --steps more, or this service --engine-references 0";
        EngineError::Permanent(cause.into())
    })?;
    Ok(ReferenceUse::PaintedOver { strength })
}

/// Whether a model looks at reference pictures, judging by its name.
fn is_for_editing(model: &str) -> bool {
    let model = model.to_lowercase();
    EDITING_MODELS.iter().any(|word| model.contains(word))
}

#[async_trait]
impl Engine for SdServer {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        let render = async |server: Arc<ServerSlot>| server.render(&brief, self.max_references, &progress).await;
        let pictures = self.servers.call(BriefHash::from(&brief), render);
        cancel.run_until_cancelled(pictures).await.unwrap_or_else(|| Err(EngineError::cancelled()))
    }

    async fn started(&self) -> Result<(), EngineError> {
        let children = self.servers.all().iter().filter_map(|server| match &**server {
            ServerSlot::Child(_, supervisor) => Some(supervisor.started()),
            ServerSlot::Attached(_) => None,
        });
        let mut started: Vec<_> = futures::future::join_all(children).await;
        // One is enough.
        let first = started.iter().position(Result::is_ok).or(started.len().checked_sub(1));
        first.map_or(Ok(()), |index| started.swap_remove(index).map(drop))
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.servers.probe().await
    }

    async fn check(&self) -> Result<(), EngineError> {
        self.servers.check().await
    }

    async fn devices(&self) -> Vec<Device> {
        self.servers.all().iter().filter_map(|server| server.device()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_model_tells_whether_it_looks_at_references() {
        for (model, expected) in [
            ("flux1-kontext-dev-Q4_0.gguf", true),
            ("Qwen-Image-Edit-2511.gguf", true),
            ("FLUX.2-klein-4B.safetensors", true),
            ("v1-5-pruned-emaonly.safetensors", false),
            ("", false),
        ] {
            assert_eq!(is_for_editing(model), expected, "{model}");
        }
    }
}
