//! The presets in force. They follow the config file: whoever changes it need not restart anything.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tintype_config::{PresetFile, PresetSettings};
use tintype_domain::preset::{DEFAULT_PRESET, Preset};
use tintype_domain::request::{GenerateRequest, TaskSettings};
use tintype_engine::Setting;
use tintype_store::Origin;
use tintype_system::clock::Clock;

/// How often the file may be looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a caller chose, whose preset has had its say.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The engine that the task needs.
    pub engine: Option<String>,
    /// The settings of the task.
    pub settings: TaskSettings,
}

/// The presets of this process.
#[derive(Debug)]
pub struct Presets {
    clock: Clock,
    file: Option<PresetFile>,
    engines: Mutex<Engines>,
    followed: Mutex<Followed>,
}

/// The engines that this process knows.
#[derive(Debug, Default)]
struct Engines {
    /// The settings that each takes, by its name.
    taken: BTreeMap<String, Vec<Setting>>,
    /// Whether the installation has no others.
    are_all: bool,
}

/// The file as it was last seen.
#[derive(Debug, Default)]
struct Followed {
    looked_at: Option<Duration>,
    /// `None` for a file that does not exist, or is none that can be read twice.
    version: Option<Version>,
    presets: Arc<Vec<Preset>>,
}

/// What tells two versions of a file apart: its inode, its length, and the time of its last change.
type Version = (u64, u64, i64, i64);

/// The version of a file, unless it is a pipe or a device, which ends a reader's patience.
fn version_of(file: &PresetFile) -> Option<Version> {
    let found = std::fs::metadata(&file.path).ok().filter(std::fs::Metadata::is_file)?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

impl Presets {
    /// The presets of the settings, until their file changes.
    pub fn new(settings: &PresetSettings, clock: Clock) -> Self {
        let file = settings.preset_file.clone();
        let version = file.as_ref().and_then(version_of);
        let followed = Followed { looked_at: None, version, presets: Arc::new(settings.presets()) };
        Self { clock, file, engines: Mutex::default(), followed: Mutex::new(followed) }
    }

    /// Makes the engines of this process known, with the settings that each takes. `are_all` says that the installation has
    /// no others.
    pub fn know(&self, engines: impl Iterator<Item = (String, Vec<Setting>)>, are_all: bool) {
        *self.engines.lock().unwrap_or_else(PoisonError::into_inner) = Engines { taken: engines.collect(), are_all };
    }

    /// All presets, by name.
    pub fn all(&self) -> Arc<Vec<Preset>> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.elapsed();
        if let Some(file) = &self.file
            && followed.looked_at.is_none_or(|at| now.abs_diff(at) >= LOOK_EVERY)
        {
            followed.look(file, now, &self.engines.lock().unwrap_or_else(PoisonError::into_inner));
        }
        followed.presets.clone()
    }

    /// The preset with this name.
    pub fn named(&self, name: &str) -> Option<Preset> {
        let found = self.all().iter().find(|preset| preset.name == name).cloned()?;
        Some(self.on_engine(found))
    }

    /// The preset of callers who name none, on an engine that they chose by other means.
    pub fn of_nobody(&self, engine: Option<&str>) -> Preset {
        if engine.is_none()
            && let Some(default) = self.named(DEFAULT_PRESET)
        {
            return default;
        }
        self.on_engine(Preset::unnamed(engine))
    }

    /// Whether callers of a preset may change a setting; an empty name is that of callers who name none.
    pub fn of_form(&self, name: &str, setting: Setting) -> bool {
        let preset = if name.is_empty() { Some(self.of_nobody(None)) } else { self.named(name) };
        preset.is_some_and(|preset| preset.callers.contains_key(&setting))
    }

    /// Without the settings that the engine of a preset does not take, as far as this process knows it.
    fn on_engine(&self, preset: Preset) -> Preset {
        let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<Setting> = match &preset.engine {
            Some(engine) => match engines.taken.get(engine) {
                Some(taken) => taken.clone(),
                None => return preset,
            },
            None if engines.taken.is_empty() => return preset,
            None => engines.taken.values().flatten().copied().collect(),
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

impl Engines {
    /// The presets, unless one names an engine that the installation does not have.
    fn check(&self, presets: Vec<Preset>) -> Result<Vec<Preset>, String> {
        let lacks = |preset: &&Preset| {
            preset.engine.as_ref().is_some_and(|engine| self.are_all && !self.taken.contains_key(engine))
        };
        let Some(Preset { name, engine, .. }) = presets.iter().find(lacks) else { return Ok(presets) };
        let engine = engine.as_deref().unwrap_or_default();
        let known = self.taken.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        Err(format!("[preset.{name}] names the engine {engine:?}; the engines of this server are {known}"))
    }
}

impl Followed {
    /// Reads the file if it has changed. One that cannot be used changes nothing.
    fn look(&mut self, file: &PresetFile, now: Duration, engines: &Engines) {
        self.looked_at = Some(now);
        let version = version_of(file);
        if version == self.version {
            return;
        }
        self.version = version;
        match file.read().and_then(|presets| engines.check(presets)) {
            Ok(presets) => {
                tracing::info!(presets = presets.len(), "read the presets again, because the config file has changed");
                self.presets = Arc::new(presets);
            }
            Err(error) => {
                tracing::error!(
                    error,
                    "cannot read the presets again, so the old ones stay in force: correct the file"
                );
            }
        }
    }
}
