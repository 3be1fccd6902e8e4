//! The presets in force. They follow the config file without a restart.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, fs};

use tintype_config::{PresetFile, PresetSettings};
use tintype_domain::preset::{DEFAULT_PRESET, Preset};
use tintype_domain::request::GenerateRequest;
use tintype_engine::{EngineInfo, Lora, LoraSource, PromptSyntax, RenderSettings, Setting};
use tintype_store::{EngineState, Origin};
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;
use tintype_system::watched_files::{self, FileVersion, SeenFile, WatchedFiles};

/// A file that changed less than this long ago may be half written.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// The presets of this process.
#[derive(Debug)]
pub struct Presets {
    file: Option<PresetFile>,
    watched: WatchedFiles,
    engines: Mutex<Engines>,
    followed: Mutex<Followed>,
    /// Whether changed presets with LoRA files wait for a check of these.
    checks_loras: AtomicBool,
}

#[derive(Debug, Clone, Default)]
struct Engines {
    by_name: BTreeMap<String, EngineInputs>,
    are_all: bool,
}

#[derive(Debug, Clone)]
struct EngineInputs {
    settings: Vec<Setting>,
    masks: Masks,
    loras: LoraSource,
    weighted_prompts: bool,
    quality: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Masks {
    are_taken: bool,
    max_references: usize,
}

/// Why a task with a mask has no engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEngineForMask {
    /// The engines with these names, separated by commas, take none.
    #[error("mask is not supported by the engine {0}: leave it out, or name another model")]
    NotTaken(String),
    /// Engines that take masks take fewer reference images.
    #[error("With a mask, no engine of this server takes more than {0} images: send fewer")]
    TooManyReferences(usize),
}

#[derive(Debug, Default)]
struct Followed {
    /// A version that was seen at the last look, and may still be being written.
    unsettled: Option<FileVersion>,
    presets: Arc<Vec<Preset>>,
    /// Presets that come into force when their LoRA files have been checked.
    waiting: Option<Arc<Vec<Preset>>>,
}

impl Presets {
    /// The presets of the settings, until their file changes.
    pub fn new(settings: &PresetSettings) -> Self {
        let file = settings.preset_file.clone();
        let seen = file.iter().map(|file| SeenFile { path: file.path.clone(), version: file.version });
        let watched = WatchedFiles::new(seen.collect());
        let followed = Followed { presets: Arc::new(settings.presets()), ..Followed::default() };
        Self {
            file,
            watched,
            engines: Mutex::default(),
            followed: Mutex::new(followed),
            checks_loras: AtomicBool::new(false),
        }
    }

    /// Sets the engines of this process, by their names. `are_all` says that the installation has no others.
    pub fn set_engines<'a>(&self, engines: impl Iterator<Item = (String, &'a EngineInfo)>, are_all: bool) {
        let takes = |info: &EngineInfo| EngineInputs {
            settings: info.settings.clone(),
            loras: info.loras,
            weighted_prompts: info.weighted_prompts,
            quality: info.quality,
            masks: Masks { are_taken: info.masks, max_references: info.max_references },
        };
        let by_name = engines.map(|(name, info)| (name, takes(info))).collect();
        *self.engines.locked() = Engines { by_name, are_all };
    }

    /// Checks the presets of the settings.
    ///
    /// # Errors
    /// A message for the operator: an engine known to this process cannot render with a preset.
    pub fn check(&self) -> Result<(), String> {
        let engines = self.engines.locked().clone();
        self.all().iter().try_for_each(|preset| engines.check_choices(preset))
    }

    /// From now on changed presets with LoRA files [wait](Self::waiting) for a check of these.
    pub fn check_loras_later(&self) {
        self.checks_loras.store(true, Ordering::SeqCst);
    }

    /// Changed presets whose LoRA files haven't been checked yet.
    pub fn waiting(&self) -> Option<Arc<Vec<Preset>>> {
        self.followed.locked().waiting.clone()
    }

    /// Puts presets that waited into force, unless a LoRA file does not fit or the file has changed again meanwhile.
    /// Looks at files.
    pub fn checked(&self, presets: &Arc<Vec<Preset>>, result: Result<(), String>) {
        // The engines may have changed meanwhile.
        let engines = self.engines.locked().clone();
        let checked = result.and_then(|()| engines.check(presets));
        let mut followed = self.followed.locked();
        if followed.waiting.take_if(|waiting| Arc::ptr_eq(waiting, presets)).is_some() {
            followed.accept(checked.map(|()| presets.clone()));
        }
    }

    /// Follows the file, forever.
    pub async fn watch(self: Arc<Self>) {
        watched_files::follow("presets", || self.refresh()).await;
    }

    /// Reads the file again if it has changed and is not being written. A file that cannot be used is logged, and
    /// changes nothing. Always returns `false`.
    ///
    /// # Errors
    /// A message for the operator: the file or a LoRA does not answer.
    pub async fn refresh(self: &Arc<Self>) -> Result<bool, String> {
        let Some(file) = self.file.clone() else { return Ok(false) };
        let (presets, path) = (self.clone(), file.path.clone());
        self.watched
            .refresh(&path, move |seen| {
                presets.read(&file, seen);
                Ok(false)
            })
            .await
    }

    fn read(&self, file: &PresetFile, seen: &mut Vec<SeenFile>) {
        let now = SeenFile::now(&file.path);
        // Without a file the presets stay: some editors remove it before they write it.
        let Some(version) = now.version else { return };
        let is_same = self.followed.locked().unsettled.replace(version) == Some(version);
        if !is_same && Clock::system().now().since(version.modified_at()) < SETTLED_AFTER {
            return;
        }
        *seen = vec![now];
        self.followed.locked().waiting = None;
        let engines = self.engines.locked().clone();
        let read = file.read().and_then(|presets| engines.check(&presets).map(|()| Arc::new(presets)));
        let mut followed = self.followed.locked();
        match read {
            Ok(presets)
                if self.checks_loras.load(Ordering::SeqCst)
                    && presets.iter().any(|preset| !preset.settings.loras.is_empty()) =>
            {
                followed.waiting = Some(presets);
            }
            read => followed.accept(read),
        }
    }

    /// The engine for a task with a mask and `references` reference images. `engine` is the choice of the caller or the
    /// preset; `reported` are the engines of all workers, here and in other processes.
    ///
    /// # Errors
    /// [`NoEngineForMask`]: it would paint over all of the image, or fail.
    pub fn engine_for_mask(
        &self,
        engine: Option<String>,
        references: usize,
        reported: &[EngineState],
    ) -> Result<Option<String>, NoEngineForMask> {
        let mut known: BTreeMap<String, Masks> = {
            let engines = self.engines.locked();
            engines.by_name.iter().map(|(name, takes)| (name.clone(), takes.masks)).collect()
        };
        for EngineState { name, max_references, masks, .. } in reported {
            let other = Masks { are_taken: *masks, max_references: *max_references as usize };
            // A worker of an earlier release ignores masks, although its engine may take them.
            let found = known.entry(name.clone()).or_insert(other);
            found.are_taken &= masks;
        }
        if let Some(engine) = engine {
            return match known.get(&engine) {
                Some(masks) if !masks.are_taken => Err(NoEngineForMask::NotTaken(engine)),
                _ => Ok(Some(engine)),
            };
        }
        let suits = |masks: &Masks| masks.are_taken && masks.max_references >= references;
        if known.values().all(suits) {
            return Ok(None);
        }
        let is_up = |name: &String| reported.iter().any(|engine| engine.name == *name && engine.workers > 0);
        let suitable = || known.iter().filter(|(_, masks)| suits(masks)).map(|(name, _)| name);
        if let Some(name) = suitable().find(|name| is_up(name)).or_else(|| suitable().next()) {
            return Ok(Some(name.clone()));
        }
        let most = known.values().filter(|masks| masks.are_taken).map(|masks| masks.max_references).max();
        Err(most.map_or_else(
            || NoEngineForMask::NotTaken(known.into_keys().collect::<Vec<_>>().join(", ")),
            NoEngineForMask::TooManyReferences,
        ))
    }

    /// Whether the engine with this name takes references, or any engine without a name; an unknown engine counts as
    /// one that does. `reported` are the engines of all workers.
    pub fn takes_references(&self, engine: Option<&str>, reported: &[EngineState]) -> bool {
        let engines = self.engines.locked();
        let known = engines.by_name.iter().map(|(name, takes)| (name.as_str(), takes.masks.max_references));
        let others = reported.iter().map(|other| (other.name.as_str(), other.max_references as usize));
        let mut most = known.chain(others).filter(|(name, _)| engine.is_none_or(|named| named == *name)).peekable();
        most.peek().is_none() || most.any(|(_, most)| most > 0)
    }

    /// All presets, by name.
    pub fn all(&self) -> Arc<Vec<Preset>> {
        self.followed.locked().presets.clone()
    }

    /// The preset with this name.
    pub fn named(&self, name: &str) -> Option<Preset> {
        let found = self.all().iter().find(|preset| preset.name == name).cloned()?;
        Some(self.on_engine(found))
    }

    /// The preset for callers who name none, on an engine that they may have chosen by other means.
    pub fn unnamed(&self, engine: Option<&str>) -> Preset {
        if engine.is_none()
            && let Some(default) = self.named(DEFAULT_PRESET)
        {
            return default;
        }
        self.on_engine(Preset::unnamed(engine))
    }

    /// The preset that a form names; an empty name means that none was chosen.
    pub fn of_form(&self, name: &str) -> Option<Preset> {
        if name.is_empty() { Some(self.unnamed(None)) } else { self.named(name) }
    }

    /// Removes settings that the preset's engine doesn't support, as far as this process knows it.
    fn on_engine(&self, preset: Preset) -> Preset {
        let engines = self.engines.locked();
        let taken: Vec<Setting> = match &preset.engine {
            Some(engine) => match engines.by_name.get(engine) {
                Some(takes) => takes.settings.clone(),
                None => return preset,
            },
            None if engines.by_name.is_empty() => return preset,
            None => engines.by_name.values().flat_map(|takes| &takes.settings).copied().collect(),
        };
        preset.on_engine(&taken)
    }

    /// A request of a caller who chose neither a preset nor an engine, with the default preset.
    pub fn with_default(&self, mut origin: Origin, mut request: GenerateRequest) -> (Origin, GenerateRequest) {
        if origin.engine.is_none()
            && request.settings.preset.is_none()
            && let Some(default) = self.named(DEFAULT_PRESET)
        {
            request.settings.render = request.settings.render.or(&default.settings);
            request.settings.preset = Some(default.name);
            origin.engine = default.engine;
        }
        (origin, request)
    }
}

impl EngineInputs {
    /// A choice of these settings that only presets make and that the engine does not take.
    fn lacking(&self, settings: &RenderSettings) -> Option<&'static str> {
        let lacking = [
            (!settings.loras.is_empty() && self.loras == LoraSource::Nowhere, "a LoRA"),
            (settings.prompt == Some(PromptSyntax::Weighted) && !self.weighted_prompts, "weighted prompts"),
            (settings.quality.is_some() && !self.quality, "a quality"),
        ];
        lacking.into_iter().find(|(lacks, _)| *lacks).map(|(_, choice)| choice)
    }
}

impl Engines {
    fn names(&self) -> String {
        self.by_name.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Checks that the engines of this process that may render with a preset take what only presets choose, and that
    /// its LoRA files are there.
    fn check_choices(&self, Preset { name, engine, settings, .. }: &Preset) -> Result<(), String> {
        let may_render = |own: &String| engine.as_ref().is_none_or(|engine| engine == own);
        for (own, takes) in self.by_name.iter().filter(|(own, _)| may_render(own)) {
            if let Some(choice) = takes.lacking(settings) {
                return Err(format!(
                    "[preset.{name}] has {choice}, and the engine {own} takes none: name one that does"
                ));
            }
            let files = settings.loras.iter().filter(|_| takes.loras == LoraSource::Files);
            for Lora { path, .. } in files {
                let unusable =
                    |reason: &dyn fmt::Display| format!("[preset.{name}] lora: cannot read {path}: {reason}");
                let found = fs::metadata(path).map_err(|error| unusable(&error))?;
                if !found.is_file() {
                    return Err(unusable(&"it is not a file"));
                }
            }
        }
        Ok(())
    }

    /// Checks that the engines that presets name exist and can render with them.
    fn check(&self, presets: &[Preset]) -> Result<(), String> {
        let lacks = |preset: &&Preset| {
            preset.engine.as_ref().is_some_and(|engine| self.are_all && !self.by_name.contains_key(engine))
        };
        presets.iter().try_for_each(|preset| self.check_choices(preset))?;
        let Some(Preset { name, engine, .. }) = presets.iter().find(lacks) else { return Ok(()) };
        let engine = engine.as_deref().unwrap_or_default();
        let known = self.names();
        Err(format!("[preset.{name}] names the engine {engine:?}; the engines of this server are {known}"))
    }
}

impl Followed {
    /// Puts presets into force. A fault changes nothing.
    fn accept(&mut self, presets: Result<Arc<Vec<Preset>>, String>) {
        match presets {
            Ok(presets) => {
                tracing::info!(presets = presets.len(), "presets reloaded");
                self.presets = presets;
            }
            Err(error) => {
                tracing::error!(error, "invalid presets; keeping the previous ones: fix the file");
            }
        }
    }
}
