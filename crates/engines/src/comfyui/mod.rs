//! `comfyui:URL`: fills in the operator's workflow, queues it in ComfyUI, and downloads the saved picture.
//!
//! Each picture is a separate run with an id of our own, so that a run can be cancelled even if the answer was lost.

mod answers;
mod api;
mod events;
mod graph;
pub mod nodes;
mod previews;
mod steps;
mod workflow;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tintype_engine::{
    Brief, CancellationToken, Device, Engine, EngineError, EngineInfo, MAX_SEED, Picture, Progress, RenderSettings,
    Sizes,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use url::Url;
use uuid::Uuid;

use self::api::{ANSWER_LIMIT, ComfyServer, Run};
use self::events::Events;
use self::previews::Previews;
use self::steps::Steps;
use self::workflow::{Values, Workflow};
use super::endpoint::{Endpoint, Fault, Reached};
use super::prompt::for_engine;
use super::results::{Results, cut_out, mask_to_png, to_pngs};
use super::servers::{BriefHash, Server as _, Servers};
use super::{EngineChoice, TYPICAL_DURATION, sizes};
use tintype_config::EngineSettings;
use tintype_domain::text::hex;

/// One run renders while another waits, so that the server is never idle between two pictures.
const RUNS_PER_SERVER: usize = 2;
/// Polling interval of a run. The websocket reports its end sooner.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Consecutive polls that can fail.
const MISSED_POLLS: u32 = 5;
/// Time for cancellations; less than the worker waits for an engine to stop.
const SETTLE_LIMIT: Duration = Duration::from_millis(1_500);
/// ComfyUI loads a file from the server for this word.
const RESERVED: [&str; 1] = ["embedding:"];

/// Describes the engine without connecting.
///
/// # Errors
/// A message for the operator: there is no workflow, or it cannot be used.
pub(super) fn choose(urls: &[Url], settings: &EngineSettings) -> Result<EngineChoice, String> {
    let Some(graph) = &settings.engine_workflow else {
        return Err(
            "--engine comfyui needs --engine-workflow, a workflow in ComfyUI's API format: see docs/operate/comfyui.md"
                .into(),
        );
    };
    let extra = settings.engine_extra.clone().unwrap_or_default();
    let workflow = Arc::new(Workflow::read(graph, settings.engine_workflow_nodes.as_deref())?.with(&extra.0)?);
    let takes = workflow.max_references();
    let max_references = match settings.engine_references {
        Some(more) if more > takes => {
            return Err(format!("--engine-references is {more}, but the workflow has {takes} nodes for images"));
        }
        references => references.unwrap_or(takes),
    };
    let description = format!("{}, by a workflow in ComfyUI", settings.target());
    let info = EngineInfo {
        sizes: sizes(settings, Sizes::Any),
        max_references,
        masks: workflow.takes_masks(),
        settings: workflow.settings(),
        slots: urls.len() * RUNS_PER_SERVER,
        ..EngineInfo::new("comfyui", description, TYPICAL_DURATION)
    };
    let (urls, settings) = (urls.to_vec(), settings.clone());
    Ok(EngineChoice::new(info, move |context| {
        let endpoints = Endpoint::all(&urls, &settings, &context)?;
        if let Some(nodes) = workflow.found() {
            tracing::debug!(nodes, "found the nodes of the workflow");
        }
        let servers = endpoints.into_iter().map(|endpoint| ComfyServer::new(endpoint, workflow.node_classes()));
        let (servers, results) = (Servers::new(servers, RUNS_PER_SERVER), Results::new(context.decoder));
        let (workflow, model, ending) = (workflow.clone(), settings.model.clone(), TaskTracker::new());
        // A closed tracker can be waited for, and still takes tasks.
        ending.close();
        Ok(Arc::new(ComfyUi { servers, workflow, model, results, ending }))
    }))
}

#[derive(Debug)]
struct ComfyUi {
    servers: Servers<ComfyServer>,
    workflow: Arc<Workflow>,
    model: Option<String>,
    results: Results,
    /// Submits, and cancellations of abandoned runs.
    ending: TaskTracker,
}

struct Order<'a> {
    work: BriefHash,
    prompt: &'a str,
    width: u32,
    height: u32,
    seed: u64,
    settings: &'a RenderSettings,
    /// Names and PNGs.
    references: &'a [(String, Bytes)],
    mask: Option<&'a (String, Bytes)>,
    index: usize,
    /// Time limit for any answer: a server that loads a model is silent.
    limit: Duration,
}

/// The server's names for a brief's pictures.
struct Uploaded {
    references: Vec<String>,
    mask: Option<String>,
}

#[derive(Clone, Copy)]
struct Shown<'a> {
    steps: &'a Steps<'a>,
    previews: &'a Previews<'a>,
}

#[async_trait]
impl Engine for ComfyUi {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        if let Some(pictures) = cancel.run_until_cancelled(self.paint(brief, &progress)).await {
            return pictures;
        }
        // Until the servers have received the cancellations.
        drop(tokio::time::timeout(SETTLE_LIMIT, self.ending.wait()).await);
        Err(EngineError::cancelled())
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.servers.probe().await
    }

    async fn check(&self) -> Result<(), EngineError> {
        self.servers.check().await
    }

    async fn devices(&self) -> Vec<Device> {
        join_all(self.servers.all().iter().map(|server| server.devices())).await.concat()
    }
}

impl ComfyUi {
    async fn paint(&self, brief: Brief, progress: &Progress) -> Result<Vec<Picture>, EngineError> {
        let work = BriefHash::from(&brief);
        let prompt = for_engine(&brief.prompt, &RESERVED)?;
        let negative = brief.settings.negative_prompt.as_deref().and_then(|words| for_engine(words, &RESERVED).ok());
        let settings = RenderSettings { negative_prompt: negative, ..brief.settings };
        let first = brief.references.first().cloned().filter(|_| self.workflow.masks_its_reference());
        let cut = match first.zip(brief.mask.clone()) {
            Some((first, mask)) => Some(cut_out(first, mask).await?),
            None => None,
        };
        let mut references = to_pngs(brief.references).await?;
        if let (Some(cut), Some(first)) = (cut, references.first_mut()) {
            *first = cut;
        }
        let references: Vec<_> = references.into_iter().map(named).collect();
        let mask = mask_to_png(brief.mask).await?.map(named);
        let steps = Steps::new(progress, brief.seeds.len());
        let previews = Previews::new(progress, &self.results);
        let shown = Shown { steps: &steps, previews: &previews };
        let orders = brief.seeds.iter().enumerate().map(|(index, seed)| {
            let (width, height, references) = (brief.width, brief.height, references.as_slice());
            let (seed, limit, mask) = (*seed, brief.time_limit, mask.as_ref());
            let (prompt, settings) = (prompt.as_str(), &settings);
            self.picture(Order { work, prompt, width, height, seed, settings, references, mask, index, limit }, shown)
        });
        let orders: Vec<_> = orders.collect();
        stream::iter(orders).buffered(self.servers.count() * RUNS_PER_SERVER).try_collect().await
    }

    async fn picture(&self, order: Order<'_>, shown: Shown<'_>) -> Result<Picture, EngineError> {
        let picture = async |server| Ok(self.results.picture(&self.file(server, &order, shown).await?).await?);
        let picture = self.servers.call(order.work, picture).await?;
        shown.steps.done(order.index);
        Ok(picture)
    }

    async fn file(&self, server: Arc<ComfyServer>, order: &Order<'_>, shown: Shown<'_>) -> Result<Vec<u8>, Fault> {
        let mut references = Vec::with_capacity(order.references.len());
        for (name, png) in order.references {
            references.push(server.upload(name.clone(), png.clone(), order.limit).await?);
        }
        let mask = match order.mask {
            Some((name, png)) => Some(server.upload(name.clone(), png.clone(), order.limit).await?),
            None => None,
        };
        let uploaded = Uploaded { references, mask };
        // A server that has already run this workflow with this seed runs nothing, and may have removed the file since.
        for seed in [order.seed, u64::from(rand::random_range(0..=MAX_SEED))] {
            if let Some(file) = self.saved(&server, order, seed, &uploaded, shown).await? {
                return Ok(file);
            }
        }
        let cause = format!("{} ran the workflow twice, which saved no picture", server.name());
        Err(EngineError::Temporary(cause).into())
    }

    /// The file that a run of the workflow saves, if any.
    async fn saved(
        &self,
        server: &Arc<ComfyServer>,
        order: &Order<'_>,
        seed: u64,
        uploaded: &Uploaded,
        shown: Shown<'_>,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let graph = self.workflow.fill(&Values {
            prompt: order.prompt,
            width: order.width,
            height: order.height,
            seed,
            settings: order.settings,
            model: self.model.as_deref(),
            references: &uploaded.references,
            mask: uploaded.mask.as_deref(),
        });
        let id = Uuid::new_v4().to_string();
        let mut events = Events::open(server.endpoint(), &id).await;
        let mut run = Submitted::begin(server, id, graph, order.limit, &self.ending).await?;
        let on_step = |done, of| shown.steps.step(order.index, done, of);
        let ended = run.ended(&mut events, on_step, |file: &[u8]| shown.previews.show(file)).await?;
        let file = match ended {
            Run::Completed(Some(file)) => file,
            Run::Completed(None) => return Ok(None),
            Run::Failed(words) => return Err(server.endpoint().failed(&words).into()),
            Run::Unfinished | Run::Gone => {
                let cause = format!("{} lost a run, most likely because it was started again", server.name());
                return Err(EngineError::Temporary(cause).into());
            }
        };
        server.fetch(&file, order.limit).await.map_err(Fault::begun)
    }
}

/// A run in a server's queue. Dropping it before its end cancels it.
#[derive(Debug)]
struct Submitted {
    server: Arc<ComfyServer>,
    id: String,
    has_ended: bool,
    ending: TaskTracker,
}

impl Submitted {
    /// Queues a run. If the future is dropped meanwhile, the submit continues, and the run is then cancelled.
    async fn begin(
        server: &Arc<ComfyServer>,
        id: String,
        graph: Value,
        limit: Duration,
        ending: &TaskTracker,
    ) -> Result<Self, Fault> {
        let mut run = Self { server: server.clone(), id, has_ended: false, ending: ending.clone() };
        let (answer, answered) = oneshot::channel();
        ending.spawn(async move {
            let outcome = match run.server.submit(&graph, &run.id, limit).await {
                Ok(queued) => {
                    run.id = queued.id;
                    match queued.left_out {
                        None => Ok(run),
                        Some(words) => Err(run.server.incomplete(&words).into()),
                    }
                }
                // After any other fault, the server may have queued it anyway.
                Err(fault) => {
                    if !matches!(fault.error, EngineError::Temporary(_)) {
                        run.forget();
                    }
                    Err(fault)
                }
            };
            // An abandoned run is dropped here, so that its cancellation begins before the submit ends.
            drop(answer.send(outcome));
        });
        answered.await.map_err(|error| EngineError::Temporary(error.to_string()))?
    }

    fn forget(&mut self) {
        self.has_ended = true;
    }

    /// Waits for the run's end. A silent server may be loading a model, so it is asked again and again, with longer and
    /// longer time limits.
    async fn ended(
        &mut self,
        events: &mut Events,
        on_step: impl Fn(u32, u32),
        on_preview: impl Fn(&[u8]),
    ) -> Result<Run, Fault> {
        let (mut missed, mut last_answer) = (0, Instant::now());
        loop {
            drop(tokio::time::timeout(POLL_EVERY, events.end(&on_step, &on_preview)).await);
            let answer = self.server.run(&self.id, ANSWER_LIMIT.max(last_answer.elapsed())).await;
            if matches!(answer, Err(Fault { reached: Reached::Silent, .. })) {
                continue;
            }
            last_answer = Instant::now();
            match answer {
                Ok(Run::Unfinished) => missed = 0,
                Ok(ended) => {
                    self.forget();
                    return Ok(ended);
                }
                Err(fault) => {
                    missed += 1;
                    if missed == MISSED_POLLS {
                        return Err(fault.begun());
                    }
                }
            }
        }
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // Without a runtime, the process is ending.
        if let (false, Ok(runtime)) = (self.has_ended, Handle::try_current()) {
            let (server, id) = (self.server.clone(), std::mem::take(&mut self.id));
            let cancelling = async move {
                // A run that continues ends by itself.
                if let Err(fault) = server.cancel(&id).await {
                    tracing::debug!(server = server.name(), cause = %fault.error, "a run could not be cancelled");
                }
            };
            self.ending.spawn_on(cancelling, &runtime);
        }
    }
}

/// A reference, named by its content: the server cannot remove files, and keeps one per name.
fn named(png: Bytes) -> (String, Bytes) {
    (format!("tintype-{}.png", hex(&Sha256::digest(&png)[..16])), png)
}
