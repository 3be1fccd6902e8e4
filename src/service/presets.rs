//! The presets in force. They follow the config file: whoever changes it need not restart anything.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tintype_config::{FileVersion, PresetFile, PresetSettings};
use tintype_domain::preset::{DEFAULT_PRESET, Preset};
use tintype_domain::request::GenerateRequest;
use tintype_engine::Setting;
use tintype_store::Origin;
use tintype_system::clock::Clock;

/// How often the file may be looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
    /// The version that was read last.
    version: Option<FileVersion>,
    /// A version that was seen at the last look, and may still be being written.
    unsettled: Option<FileVersion>,
    presets: Arc<Vec<Preset>>,
}

impl Presets {
    /// The presets of the settings, until their file changes.
    pub fn new(settings: &PresetSettings, clock: Clock) -> Self {
        let file = settings.preset_file.clone();
        let version = file.as_ref().and_then(|file| file.version);
        let followed = Followed { version, presets: Arc::new(settings.presets()), ..Followed::default() };
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

    /// The preset that a form names; an empty name is that of people who chose none.
    pub fn of_form(&self, name: &str) -> Option<Preset> {
        if name.is_empty() { Some(self.of_nobody(None)) } else { self.named(name) }
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
        // Without a file the presets stay: some editors remove it before they write it.
        let Some(version) = file.present_version().filter(|version| Some(*version) != self.version) else { return };
        // A file that changed just now may be half written.
        let age = Clock::system().now().since(version.changed_at());
        if self.unsettled.replace(version) != Some(version) && age < LOOK_EVERY {
            return;
        }
        self.version = Some(version);
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
