//! The model named by the settings, before it is opened.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tintype_diffusion::config::Config;
use tintype_diffusion::pipelines::{is_stable_diffusion, masks, recognise, references, weighted_prompts};
use tintype_engine::{Lora, PromptSyntax, Setting, Sizes};

use super::child::{NO_FILES, NO_MODEL, NO_SCHEDULER, Setup, Work};
use super::machine;
use super::speed::{LEAST_SIDE, Plan, Speed};
use crate::models::catalogue::{self, is_in_8_bits};
use crate::models::library::{self, Target};
use crate::models::{self, Installed};
use crate::sizes;
use tintype_config::{EngineEmbedding, EnginePrecision, EngineRuntime, EngineSettings};
use tintype_domain::request::MAX_REFERENCES;

/// Time limit for an attempt, unless `--render-timeout` gives another: a task ends after nine minutes.
pub(super) const ATTEMPT_LIMIT: Duration = Duration::from_secs(8 * 60);
/// Pictures per batch on a GPU, unless `--engine-batch` gives another number, and the pixels of each.
const BATCH: u32 = 4;
const BATCH_PIXELS: u64 = 512 * 512;
/// The usual task size.
const USUAL_SIDE: u32 = 1_024;

/// The installed model that is used by default: the first usable one, in catalogue order, then by name.
pub fn default_model(data: &Path) -> Option<String> {
    let found = models::entries(data).ok()?.into_iter().filter_map(|listed| listed.found.ok());
    let usable = found.filter(|found| found.usable().is_ok() && models::version(data, &found.name).is_some());
    let rank = |name: &str| catalogue::models().iter().position(|model| model.name == name).unwrap_or(usize::MAX);
    usable.map(|found| found.name).min_by_key(|name| (rank(name), name.clone()))
}

#[derive(Debug, Clone)]
pub(super) struct ModelRequest {
    /// The name, folder or file.
    pub model: String,
    pub data: PathBuf,
    pub memory_bytes: u64,
    /// The most GPU memory that it can use, in bytes, if set.
    device_memory: Option<u64>,
    /// Steps per picture; 0 for the model's default.
    pub steps: u32,
    /// The precision; `None` for the one that suits the model.
    precision: Option<EnginePrecision>,
    runtime: EngineRuntime,
    /// 512x512 pictures per batch; `None` for as many as suit the runtime.
    batch: Option<u32>,
    loras: Vec<Lora>,
    embeddings: Vec<EngineEmbedding>,
    vae: Option<PathBuf>,
    /// How it reads prompts, unless a preset says otherwise.
    pub prompt: PromptSyntax,
    /// The configured sizes.
    pub sizes: Sizes,
}

impl ModelRequest {
    /// The settings' model, or else an installed one.
    ///
    /// # Errors
    /// A message for the operator: there is none.
    pub(super) fn new(settings: &EngineSettings, data: &Path) -> Result<Self, String> {
        let model = settings.model.clone().or_else(|| default_model(data)).ok_or(
            "--engine diffusion needs a model: `tintype model list` shows those that `tintype model pull` can fetch; or give --model a folder as diffusers writes it, or a .safetensors file",
        )?;
        let memory_bytes = settings.engine_memory.map_or_else(machine::memory_limit, |bytes| bytes.as_u64());
        Ok(Self {
            model,
            data: data.to_owned(),
            memory_bytes,
            device_memory: settings.engine_device_memory.map(|bytes| bytes.as_u64()),
            steps: settings.engine_steps.unwrap_or(0),
            precision: settings.engine_precision,
            runtime: settings.engine_runtime.unwrap_or_default(),
            batch: settings.engine_batch,
            loras: settings.engine_lora.clone(),
            embeddings: settings.engine_embedding.clone(),
            vae: settings.engine_vae.clone(),
            prompt: settings.engine_prompt.unwrap_or_default(),
            sizes: sizes(settings, Sizes::Any),
        })
    }

    /// The installed model, folder or file.
    ///
    /// # Errors
    /// A message for the operator: there is none with this name.
    pub(super) fn find(&self) -> Result<Installed, String> {
        models::find(&self.data, &self.model)
    }

    /// The precision. Only installed models have a folder for 8-bit weights.
    pub(super) fn precision(&self, installed: &Installed) -> EnginePrecision {
        let large = pipeline(installed).is_some_and(|class| is_in_8_bits(&class));
        let fitting = match (self.is_on_processor(), large) {
            (true, true) if installed.cache.is_some() => EnginePrecision::W8a8,
            (true, _) => EnginePrecision::F32,
            // They were trained in BF16, and their text encoders' states can exceed F16's range.
            (false, true) => EnginePrecision::Bf16,
            (false, false) => EnginePrecision::F16,
        };
        self.precision.unwrap_or(fitting)
    }

    fn is_on_processor(&self) -> bool {
        matches!(self.runtime, EngineRuntime::Rten | EngineRuntime::OnnxRuntime)
    }

    /// The setup of a child with these LoRA files in addition to the engine's own. It writes beside the model only if
    /// it `keeps` files there.
    ///
    /// # Errors
    /// A message for the operator: the runtime's library isn't installed, or the model has no folder for 8-bit weights.
    pub(super) fn setup(&self, installed: &Installed, keeps: bool, loras: &[Lora]) -> Result<Setup, String> {
        let precision = self.precision(installed);
        if precision == EnginePrecision::W8a8 && installed.cache.is_none() {
            return Err(format!(
                "--engine-precision w8a8 needs an installed model, which keeps its 8-bit weights: `tintype model add {}` \
                 installs this one",
                self.model
            ));
        }
        Ok(Setup {
            folder: installed.path(),
            cache: installed.cache.clone().filter(|_| keeps),
            precision,
            runtime: self.runtime,
            library: self.library()?,
            loras: [&self.loras, loras].concat(),
            embeddings: self.embeddings.clone(),
            vae: self.vae.clone(),
            prompt: self.prompt,
            memory_bytes: self.memory_bytes,
            device_memory: self.device_memory(),
            work: Work::Renders,
        })
    }

    /// GPU memory that the child can use, in bytes, if known.
    fn device_memory(&self) -> Option<u64> {
        match self.runtime {
            EngineRuntime::Cuda | EngineRuntime::TensorRt => self.device_memory.or_else(machine::device_memory),
            _ => None,
        }
    }

    fn library(&self) -> Result<Option<PathBuf>, String> {
        let (found, command) = match self.runtime {
            EngineRuntime::Rten => return Ok(None),
            EngineRuntime::OnnxRuntime => (library::installed(&self.data), "tintype engine library"),
            EngineRuntime::Cuda | EngineRuntime::TensorRt => {
                (library::installed_for(&self.data, Target::Cuda), "tintype engine library --cuda")
            }
            EngineRuntime::CoreMl | EngineRuntime::DirectMl => {
                return Err(format!("--engine-runtime {}: there is no such library for this system", self.runtime));
            }
        };
        let missing = || {
            let (runtime, version) = (self.runtime, library::version());
            format!("--engine-runtime {runtime} needs ONNX Runtime {version}: `{command}` fetches it")
        };
        found.map(Some).ok_or_else(missing)
    }

    pub(super) fn taken_settings(&self) -> Vec<Setting> {
        // A model that takes one reference begins with it; one that takes more sees them during the render.
        let begins_with_reference = self.max_references() == 1;
        Setting::ALL.into_iter().filter(|setting| *setting != Setting::Strength || begins_with_reference).collect()
    }

    /// The model's most reference pictures, without opening it.
    pub(super) fn max_references(&self) -> usize {
        self.find().map_or(0, |installed| references(&installed.path())).min(MAX_REFERENCES)
    }

    /// Whether the model takes masks, without opening it.
    pub(super) fn takes_masks(&self) -> bool {
        self.find().is_ok_and(|installed| masks(&installed.path()))
    }

    /// Whether the model reads weighted prompts, without opening it. `true` if it is unreadable, because it can be
    /// replaced by one that does.
    pub(super) fn takes_weighted_prompts(&self) -> bool {
        self.find().map_or(true, |installed| weighted_prompts(&installed.path()).unwrap_or(true))
    }

    /// The most pictures of a size in a batch. A GPU takes hardly longer for a step of four small pictures than for
    /// one; a processor works as long on each picture as on a single one.
    pub(super) fn batch(&self, (width, height): (u32, u32)) -> u32 {
        let small = self.batch.unwrap_or(if self.is_on_processor() { 1 } else { BATCH });
        let pixels = u64::from(small) * BATCH_PIXELS / (u64::from(width) * u64::from(height)).max(1);
        u32::try_from(pixels).unwrap_or(u32::MAX).clamp(1, small)
    }

    /// Tasks to take at a time: as many as fit into a batch at the smallest size, without opening the model.
    pub(super) fn slots(&self) -> usize {
        let class = self.find().ok().and_then(|installed| pipeline(&installed));
        if !class.is_some_and(|class| is_stable_diffusion(&class)) {
            return 1;
        }
        let smallest = match &self.sizes {
            Sizes::Any => (USUAL_SIDE, USUAL_SIDE),
            Sizes::Of(sizes) => sizes.iter().copied().min_by_key(|(width, height)| width * height).unwrap_or_default(),
        };
        self.batch(smallest) as usize
    }

    /// The speed measured in earlier runs.
    pub(super) fn remembered(&self) -> Speed {
        self.speed_file().map(|file| Speed::remembered(&file)).unwrap_or_default()
    }

    /// The file for an installed model's speed. There is one for each runtime, precision and replacement VAE, which can
    /// be much faster. Merged LoRA files change no layer's size, and so no speed.
    pub(super) fn speed_file(&self) -> Option<PathBuf> {
        let installed = self.find().ok()?;
        let runtime = match self.runtime {
            EngineRuntime::Rten => String::new(),
            other => format!("-{}", other.to_string().replace(':', "-")),
        };
        let vae = self.vae.as_ref().map_or_else(String::new, |vae| format!("-vae-{:016x}", path_hash(vae)));
        let name = format!("speed-{}{runtime}{vae}.json", self.precision(&installed));
        installed.cache.map(|cache| cache.join(name))
    }

    /// The usual task's time and working size, if its time is known.
    pub(super) fn usual_task(&self, speed: &Speed) -> Option<(Duration, (u32, u32))> {
        let plan = speed.plan(self.sizes.nearest(USUAL_SIDE, USUAL_SIDE), 1, self.steps, 0);
        let (width, height) = speed.working_size(&plan, ATTEMPT_LIMIT)?;
        Some((speed.task(&Plan { width, height, ..plan })?, (width, height)))
    }

    pub(super) fn describe(&self, speed: &Speed) -> String {
        let model = &self.model;
        let speed = match self.usual_task(speed) {
            Some((time, size)) => expectation(time, size),
            None if speed.is_known() => format!("too slow for any size from {LEAST_SIDE} pixels on"),
            None => "its speed is measured when it starts".into(),
        };
        let device = match self.runtime {
            EngineRuntime::Rten => "this machine's CPU",
            EngineRuntime::OnnxRuntime => "this machine's CPU by ONNX Runtime",
            EngineRuntime::Cuda => "CUDA by ONNX Runtime",
            EngineRuntime::TensorRt => "TensorRT by ONNX Runtime",
            EngineRuntime::CoreMl => "CoreML by ONNX Runtime",
            EngineRuntime::DirectMl => "DirectML by ONNX Runtime",
        };
        format!("the model {model}{} on {device}; {speed}", self.additions())
    }

    /// What changes the model, for the operator.
    fn additions(&self) -> String {
        let several = |count: usize, one: &str, many: &str| match count {
            0 => None,
            1 => Some(one.to_owned()),
            count => Some(format!("{count} {many}")),
        };
        let loras = several(self.loras.len(), "a LoRA file", "LoRA files");
        let embeddings = several(self.embeddings.len(), "an embedding", "embeddings");
        let vae = self.vae.as_ref().map(|_| "another VAE".to_owned());
        let prompt = (self.prompt == PromptSyntax::Weighted).then(|| "weighted prompts".to_owned());
        let all: Vec<_> = [loras, embeddings, vae, prompt].into_iter().flatten().collect();
        if all.is_empty() { String::new() } else { format!(" with {}", all.join(" and ")) }
    }

    pub(super) fn more_memory(&self) -> String {
        let gib = self.memory_bytes as f64 / (1_u64 << 30) as f64;
        match self.is_on_processor() {
            true => format!("its memory is limited to {gib:.1} GiB: raise --engine-memory, or use a smaller model"),
            false => "use a smaller model or smaller --engine-sizes, free memory of the GPU, or set --engine-device-memory to what is free on it".into(),
        }
    }

    /// Advice if the model cannot be opened, by its process's exit status. `None` if the process's own message says
    /// what to do.
    pub(super) fn remedy(&self, status: u8) -> Option<String> {
        Some(match status {
            NO_MODEL => "use another model".into(),
            NO_SCHEDULER => "write another `_class_name` into this file, such as EulerDiscreteScheduler".into(),
            NO_FILES if models::is_taken(&self.data, &self.model) => {
                format!("see `tintype model verify {}`, or give another --model", self.model)
            }
            NO_FILES => {
                "give --model a folder as diffusers writes it, with all of its files, or a .safetensors file".into()
            }
            _ => return None,
        })
    }
}

/// A hash that distinguishes files with different paths, for use in another file's name.
fn path_hash(path: &Path) -> u64 {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    digest.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

fn expectation(time: Duration, (width, height): (u32, u32)) -> String {
    let working = match (u64::from(width) * u64::from(height)).cmp(&u64::from(USUAL_SIDE).pow(2)) {
        Ordering::Less => format!(", rendered as {width}x{height} and enlarged"),
        Ordering::Equal => String::new(),
        Ordering::Greater => format!(", rendered as {width}x{height} and reduced"),
    };
    format!("a picture of {USUAL_SIDE}x{USUAL_SIDE} takes about {:.0} s{working}", time.as_secs_f64().max(1.0))
}

/// The class of a model's pipeline, without opening the model.
fn pipeline(installed: &Installed) -> Option<String> {
    if installed.file.is_some() {
        let class = installed.manifest.as_ref().map(|manifest| manifest.pipeline.clone());
        return class.or_else(|| recognise(&installed.path()).ok().map(|found| found.class.to_owned()));
    }
    let index = Config::read(&installed.folder.join(models::INDEX)).ok()?;
    index.text("_class_name", "").ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::child::NO_USE;
    use super::*;

    /// Settings with all kinds of files beside a model.
    fn request(folder: &Path, precision: EnginePrecision) -> ModelRequest {
        ModelRequest {
            model: folder.display().to_string(),
            data: folder.join("data"),
            memory_bytes: 1 << 30,
            device_memory: Some(10 << 30),
            steps: 0,
            precision: Some(precision),
            runtime: EngineRuntime::Rten,
            batch: None,
            loras: vec![Lora { path: "detail.safetensors".into(), weight: 0.8 }],
            embeddings: vec![EngineEmbedding { path: "hands.safetensors".into(), word: None }],
            vae: Some("vae.safetensors".into()),
            prompt: PromptSyntax::Weighted,
            sizes: Sizes::Any,
        }
    }

    #[test]
    fn weights_in_8_bits_need_an_installed_model() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(models::INDEX), "{}").expect("written");
        let request = |precision| request(folder.path(), precision);
        let setup = |request: ModelRequest| request.setup(&request.find().expect("a model"), true, &[]);
        let usual = setup(request(EnginePrecision::F32)).expect("a setup");
        assert_eq!(usual.loras, request(EnginePrecision::F32).loras);
        assert_eq!(usual.embeddings, request(EnginePrecision::F32).embeddings);
        let on_gpu = ModelRequest { runtime: EngineRuntime::Cuda, ..request(EnginePrecision::F16) };
        assert_eq!((usual.device_memory, on_gpu.device_memory()), (None, Some(10 << 30)));
        assert_eq!((usual.vae, usual.prompt), (Some("vae.safetensors".into()), PromptSyntax::Weighted));
        let refusal = setup(request(EnginePrecision::W8a8)).expect_err("no folder for them");
        assert!(refusal.contains("needs an installed model") && refusal.contains("`tintype model add"), "{refusal}");
    }

    #[test]
    fn the_announced_time_is_that_of_the_size_that_the_settings_allow() {
        let folder = tempfile::tempdir().expect("a folder");
        let any = request(folder.path(), EnginePrecision::F32);
        let of = |width, height| ModelRequest { sizes: Sizes::Of(vec![(width, height), (320, 640)]), ..any.clone() };
        let mut speed = Speed::default();
        speed.observe_step(512 * 512, Duration::from_secs(1));
        let usual = |request: &ModelRequest| request.usual_task(&speed).expect("its time is known");
        assert_eq!([usual(&any).1, usual(&of(512, 512)).1], [(1_024, 1_024), (512, 512)]);
        let said = |request: &ModelRequest| request.describe(&speed);
        assert!(!said(&any).contains("rendered as"), "{}", said(&any));
        assert!(
            said(&of(512, 512)).contains("1024x1024")
                && said(&of(512, 512)).contains("rendered as 512x512 and enlarged")
        );
        assert!(said(&of(1_536, 1_536)).contains("rendered as 1536x1536 and reduced"), "{}", said(&of(1_536, 1_536)));
    }

    #[test]
    fn the_remedy_follows_from_what_is_wrong() {
        let folder = tempfile::tempdir().expect("a folder");
        let by_path = request(folder.path(), EnginePrecision::F32);
        let installed = ModelRequest { model: "mine".into(), ..by_path.clone() };
        std::fs::create_dir_all(models::directory(&installed.data).join("mine")).expect("a folder");
        for (status, words) in [(NO_MODEL, "use another model"), (NO_SCHEDULER, "such as EulerDiscreteScheduler")] {
            for request in [&by_path, &installed] {
                let remedy = request.remedy(status).expect("a remedy");
                assert!(remedy.contains(words) && !remedy.contains("model verify"), "{remedy}");
            }
        }
        assert!(by_path.remedy(NO_FILES).is_some_and(|remedy| remedy.starts_with("give --model a folder")));
        assert!(installed.remedy(NO_FILES).is_some_and(|remedy| remedy.starts_with("see `tintype model verify mine`")));
        assert_eq!(by_path.remedy(NO_USE), None);
    }
}
