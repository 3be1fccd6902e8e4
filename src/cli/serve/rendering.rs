//! The engines of a process and their workers. They follow the installed models, without a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::cli::Failure;
use crate::policy::Policy;
use crate::service::ServiceContext;
use crate::worker::Worker;
use crate::worker::render::EngineRenderer;
use tintype_config::{EngineTarget, NamedEngine, ServerSettings, WorkerSettings};
use tintype_domain::model::Id;
use tintype_domain::preset::Preset;
use tintype_engine::{Engine, EngineInfo};
use tintype_engines::{EngineChoice, EngineContext, EngineModel, models};
use tintype_system::sandbox::Decoder;

/// How often the installed models are checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// An engine that was chosen and is not built yet.
pub(super) struct Chosen {
    pub(super) engine: NamedEngine,
    choice: EngineChoice,
    model: EngineModel,
}

pub(super) struct Rendering {
    settings: WorkerSettings,
    data: PathBuf,
    shared: Arc<ServiceContext>,
    decoder: Decoder,
    pub(super) policy: Arc<Policy>,
    members: Vec<Member>,
    /// Engines that cannot be used with the present models.
    refused: Vec<EngineModel>,
    /// Workers that have ended and were not withdrawn: no other one of their engine has started yet.
    ended: Vec<Ended>,
    /// Whether the installation has no other engines.
    are_all: bool,
}

struct Member {
    worker: Arc<Worker>,
    engine: Arc<dyn Engine>,
    model: EngineModel,
    info: EngineInfo,
}

/// The engines of this process by their names, as presets name them.
type NamedEngines = Vec<(String, Arc<dyn Engine>)>;

fn named<'a>(members: impl Iterator<Item = &'a Member>) -> NamedEngines {
    members.map(|member| (member.model.engine.clone(), member.engine.clone())).collect()
}

/// Checks that the LoRAs of presets fit the models of the engines that may render with them.
///
/// # Errors
/// A message for the operator with the first fault.
async fn check_loras(engines: &NamedEngines, presets: &[Preset]) -> Result<(), String> {
    for Preset { name, engine, settings, .. } in presets.iter().filter(|preset| !preset.settings.loras.is_empty()) {
        let may_render = |own: &String| engine.as_ref().is_none_or(|engine| engine == own);
        for (_, built) in engines.iter().filter(|(own, _)| may_render(own)) {
            let fits = built.check_loras(&settings.loras).await;
            fits.map_err(|error| format!("[preset.{name}] lora: {error}"))?;
        }
    }
    Ok(())
}

struct Ended {
    id: Id,
    engine: String,
    info: EngineInfo,
}

struct Running {
    member: Member,
    /// Cancelled when it is to end.
    leave: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Running {
    fn start(member: Member, stop: &CancellationToken) -> Self {
        let leave = stop.child_token();
        let work = member.worker.clone().run_until(leave.clone(), stop.clone());
        Self { member, leave, task: AbortOnDropHandle::new(tokio::spawn(work)) }
    }
}

/// Completes when one of these workers has ended.
async fn any_end(running: &mut [Running]) {
    // Without a usable engine there may be none.
    if running.is_empty() {
        std::future::pending::<()>().await;
    }
    drop(select_all(running.iter_mut().map(|running| &mut running.task)).await);
}

/// The engines of the settings.
pub(super) fn choose_at_start(settings: &WorkerSettings, data: &Path) -> Result<Vec<Chosen>, Failure> {
    for listed in models::entries(data)? {
        if let Err(reason) = listed.found {
            let advice = "a model cannot be used: remove it with `tintype model remove`, and pull or add it again";
            tracing::warn!(model = listed.name, reason, "{advice}");
        }
    }
    let engines = present(settings, data)?;
    for (engine, _) in &engines {
        for setting in engine.settings.without_effect() {
            tracing::warn!(engine = engine.name, "{setting} has no effect: it is for the built-in diffusion engine");
        }
        // A model that is damaged may be mended while the server runs; a name without a model is a mistake.
        if let (Some(EngineTarget::Diffusion), Some(model)) = (&engine.settings.engine, &engine.settings.model)
            && !models::exists(data, model)
        {
            return Err(Failure(format!("--model {model}: {}", models::missing(data, model))));
        }
    }
    Ok(engines.into_iter().map(|engine| choose(engine, data)).collect::<Result<_, _>>()?)
}

fn present(settings: &WorkerSettings, data: &Path) -> Result<Vec<(NamedEngine, EngineModel)>, String> {
    let engines = tintype_engines::configured(&settings.engine, data)?.into_iter();
    Ok(engines.map(|engine| (engine.clone(), EngineModel::of(&engine, data))).collect())
}

/// The current engines and models, after engines have rendered with these models. An engine that chooses among
/// installed models keeps its current one while that exists.
fn present_after(
    settings: &WorkerSettings,
    data: &Path,
    before: &[EngineModel],
) -> Result<Vec<(NamedEngine, EngineModel)>, String> {
    let is_there = |known: &&EngineModel| match &known.model {
        Some((name, Some(version))) => models::version(data, name) == Some(*version),
        _ => false,
    };
    let is_unset = settings.engine.engine.is_none() && settings.engine.engine_table.is_empty();
    if is_unset && let Some(known) = before.iter().find(is_there) {
        let engine = settings.engine.engine_named(&EngineTarget::Diffusion)?;
        return Ok(vec![(engine, known.clone())]);
    }
    let mut engines = present(settings, data)?;
    for (engine, model) in engines.iter_mut().filter(|(engine, _)| engine.settings.model.is_none()) {
        if let Some(known) = before.iter().filter(is_there).find(|known| known.engine == engine.name) {
            *model = known.clone();
        }
    }
    Ok(engines)
}

fn choose((engine, model): (NamedEngine, EngineModel), data: &Path) -> Result<Chosen, String> {
    let choice = tintype_engines::choose(&engine.settings, data);
    let choice = choice.map_err(|error| format!("engine {}: {error}", engine.name))?;
    Ok(Chosen { engine, choice, model })
}

/// Announces the engines to the presets. `are_all` says that the installation has no others.
pub(super) fn announce(shared: &ServiceContext, engines: &[Chosen], are_all: bool) {
    let known = engines.iter().map(|chosen| (chosen.engine.name.clone(), &chosen.choice.info));
    shared.presets.set_engines(known, are_all);
}

/// How long a task usually takes on the quickest engine: callers wait that long before they poll.
pub(super) fn quickest(server: &ServerSettings, engines: &[Chosen]) -> Result<Duration, Failure> {
    let chosen = engines.iter().map(|chosen| chosen.choice.info.typical_duration).min();
    let assumed = |engine: &NamedEngine| tintype_engines::typical_duration(&engine.settings);
    let assumed = || server.worker.engine.engines().map(|all| all.iter().map(assumed).min());
    Ok(chosen.map_or_else(assumed, |chosen| Ok(Some(chosen)))?.ok_or("there is no engine")?)
}

impl Rendering {
    /// Builds the engines and their workers.
    pub(super) fn open(
        settings: &WorkerSettings,
        data: &Path,
        shared: &Arc<ServiceContext>,
        policy: Arc<Policy>,
        engines: Vec<Chosen>,
        are_all: bool,
    ) -> Result<Self, Failure> {
        let (settings, data, shared) = (settings.clone(), data.to_owned(), shared.clone());
        let (members, refused, ended) = Default::default();
        let decoder = Decoder::new(&settings.test_picture_decoder).keeping_ready();
        let mut rendering = Self { settings, data, shared, decoder, policy, members, refused, ended, are_all };
        rendering.members = engines.iter().map(|chosen| rendering.member(chosen)).collect::<Result<_, _>>()?;
        Ok(rendering)
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.members.iter().map(|member| &member.worker)
    }

    /// Checks the presets of the settings with the models of its engines.
    ///
    /// # Errors
    /// A message for the operator: a LoRA does not fit.
    pub(super) async fn check_presets(&self) -> Result<(), String> {
        check_loras(&named(self.members.iter()), &self.shared.presets.all()).await
    }

    pub(super) fn descriptions(&self) -> impl Iterator<Item = String> {
        self.members.iter().map(|member| member.info.description.clone())
    }

    fn member(&self, Chosen { engine, choice, model }: &Chosen) -> Result<Member, String> {
        let (settings, shared) = (&self.settings, &self.shared);
        let decoder = self.decoder.clone();
        let built = choice.build(EngineContext { decoder, quotes_server: false, keeps: true });
        let built = built.map_err(|error| format!("engine {}: {error}", engine.name))?;
        let renderer =
            EngineRenderer::new(settings, shared.clone(), self.policy.clone(), choice.info.clone(), built.clone())?;
        let slots = settings.render_slots(engine, choice.info.slots);
        let (shared, policy, renderer) = (shared.clone(), self.policy.clone(), Arc::new(renderer));
        let worker = Worker::new(settings.clone(), &engine.name, slots, shared, policy, renderer);
        Ok(Member { worker, engine: built, model: model.clone(), info: choice.info.clone() })
    }

    /// Renders until `stop`, or until a worker ends unexpectedly.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let members = std::mem::take(&mut self.members);
        let mut running: Vec<_> = members.into_iter().map(|member| Running::start(member, &stop)).collect();
        loop {
            let known = running.iter().map(|running| &running.member.model).chain(&self.refused).cloned().collect();
            let engines = named(running.iter().map(|running| &running.member));
            let engines = tokio::select! {
                () = stop.cancelled() => break,
                () = self.check_new_presets(engines) => break,
                () = any_end(&mut running) => break,
                engines = self.other_engines(known) => engines,
            };
            running = self.replace(running, engines, &stop).await;
        }
        for Running { leave, task, .. } in running {
            leave.cancel();
            // A worker that ended on its own has been polled to its end.
            if !task.is_finished() {
                drop(task.await);
            }
        }
    }

    /// Waits until the engines would render with other models than these.
    async fn other_engines(&self, known: Vec<EngineModel>) -> Vec<(NamedEngine, EngineModel)> {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (settings, data) = (self.settings.clone(), self.data.clone());
            let before = known.clone();
            let look = tokio::task::spawn_blocking(move || present_after(&settings, &data, &before));
            let Ok(Ok(engines)) = look.await else { continue };
            let is_known = |(_, model): &(NamedEngine, EngineModel)| known.contains(model);
            if engines.len() != known.len() || !engines.iter().all(is_known) {
                return engines;
            }
        }
    }

    /// Checks the LoRAs of presets that have changed before they come into force, for as long as it is polled.
    async fn check_new_presets(&self, engines: NamedEngines) {
        loop {
            if let Some(waiting) = self.shared.presets.waiting() {
                let (presets, checked) = (self.shared.presets.clone(), check_loras(&engines, &waiting).await);
                // The engine's LoRAs may be on a file system that does not answer.
                drop(tokio::task::spawn_blocking(move || presets.checked(&waiting, checked)).await);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends the workers whose models have changed, once their renders are done, and starts workers for the new models.
    async fn replace(
        &mut self,
        running: Vec<Running>,
        engines: Vec<(NamedEngine, EngineModel)>,
        stop: &CancellationToken,
    ) -> Vec<Running> {
        let stays = |running: &Running| engines.iter().any(|(_, model)| *model == running.member.model);
        let (mut running, old): (Vec<_>, Vec<_>) = running.into_iter().partition(stays);
        for Running { member, leave, .. } in &old {
            let engine = &member.info.description;
            tracing::info!(engine, "models changed: stopping the engine after its current tasks");
            leave.cancel();
        }
        for Running { member: Member { worker, info, model, engine: _ }, task, .. } in old {
            drop(task.await);
            self.ended.push(Ended { id: worker.throughput().id(), engine: model.engine, info });
        }
        // The old engines are gone now, and so is the memory that they took.
        self.refused.clear();
        let configured: Vec<_> = engines.iter().map(|(engine, _)| engine.name.clone()).collect();
        for (engine, model) in engines {
            if stop.is_cancelled() || running.iter().any(|running| running.member.model == model) {
                continue;
            }
            match choose((engine, model.clone()), &self.data).and_then(|chosen| self.member(&chosen)) {
                Ok(member) => {
                    tracing::info!(engine = member.info.description, "models changed: starting an engine");
                    if let Err(error) = member.worker.register().await {
                        tracing::warn!(%error, "could not report the engine; its next report tries again");
                    }
                    running.push(Running::start(member, stop));
                }
                Err(reason) => {
                    tracing::error!(reason, "an engine cannot be used until the installed models change again");
                    self.refused.push(model);
                }
            }
        }
        self.forget(&running, &configured).await;
        running
    }

    /// Announces the engines, and forgets workers that have ended: when another one of their engine runs, or
    /// when the settings have no such engine. Tasks may wait for any other engine.
    async fn forget(&mut self, running: &[Running], configured: &[String]) {
        let runs = |engine: &String| running.iter().any(|running| running.member.model.engine == *engine);
        let is_over = |ended: &mut Ended| runs(&ended.engine) || !configured.contains(&ended.engine);
        for Ended { id, .. } in self.ended.extract_if(.., is_over) {
            self.shared.wait_estimator.remove_worker(id);
            if let Err(error) = self.shared.store.withdraw_worker(id).await {
                tracing::warn!(%error, "could not withdraw the report of a worker that has ended; it expires soon");
            }
        }
        let own = running.iter().map(|running| (running.member.model.engine.clone(), &running.member.info));
        let waited_for = self.ended.iter().map(|ended| (ended.engine.clone(), &ended.info));
        self.shared.presets.set_engines(own.chain(waited_for), self.are_all);
        if let Err(reason) = self.shared.presets.check() {
            tracing::error!(reason, "the installed models do not suit a preset: its tasks fail");
        }
    }
}
