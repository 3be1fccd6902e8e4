//! The child process: confines itself, opens a model, and renders the orders that it reads from standard input.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tintype_diffusion::pipelines::Residency;
use tintype_diffusion::quantise::{Progress, prepare};
use tintype_diffusion::runtime::{Device, Runtime};
use tintype_diffusion::{Error, Lora, Options, Pipeline, Precision, Settings, Step, TextualInversion};
use tintype_engine::frames::{
    self, Event, Fault, FrameError, HEADER_BYTES, Loaded, Message, Order, Prompt, ResourceUsage,
};
use tintype_engine::{CancellationToken, Mask, PromptSyntax};

use super::machine;
use crate::models::library;
use tintype_config::{EngineEmbedding, EnginePrecision, EngineRuntime};
use tintype_system::clock::Clock;
use tintype_system::locked::Locked as _;
use tintype_system::sandbox::{Confinement, confine_engine};

/// The hidden command for rendering. Its argument is a `Setup` as JSON.
pub const COMMAND: &str = "render-diffusion";

/// Exit status if the model's architecture is unknown.
pub(super) const NO_MODEL: u8 = 1;
/// Exit status if the runtime cannot be used.
const NO_RUNTIME: u8 = 2;
/// Exit status for any other failure to start.
const NO_START: u8 = 3;
/// Exit status if a file beside the model, or another of its settings, cannot be used. The message says what to do.
pub(super) const NO_ADDITION: u8 = 4;
/// Exit status if the model lacks a file or has a damaged one.
pub(super) const NO_FILES: u8 = 5;
/// Exit status if the model's scheduler is unknown.
pub(super) const NO_SCHEDULER: u8 = 6;
/// Exit status if the model cannot be used for another reason. The message says what to do.
pub(super) const NO_USE: u8 = 7;

/// Shortest time between two previews of a picture.
const PREVIEW_EVERY: Duration = Duration::from_secs(1);
/// Previews take at most this fraction of a render, as a divisor.
const PREVIEW_SHARE: u32 = 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    /// The model's folder or single file.
    pub folder: PathBuf,
    /// The folder for files made from its weights.
    pub cache: Option<PathBuf>,
    /// The precision.
    pub precision: EnginePrecision,
    /// The runtime, and its library if it is not built in.
    pub runtime: EngineRuntime,
    pub library: Option<PathBuf>,
    /// LoRA files to merge into the model.
    pub loras: Vec<tintype_engine::Lora>,
    /// Textual inversion embeddings.
    pub embeddings: Vec<EngineEmbedding>,
    /// A VAE that replaces the model's own.
    pub vae: Option<PathBuf>,
    /// How it reads prompts, unless an order says otherwise.
    pub prompt: PromptSyntax,
    /// The most memory of its own that the child can use, in bytes.
    pub memory_bytes: u64,
    /// The most GPU memory that it can use, in bytes, if known.
    pub device_memory: Option<u64>,
    pub work: Work,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    /// Renders the orders that it reads.
    Renders,
    /// Opens the model and exits.
    Opens,
}

impl Setup {
    /// The arguments with which this program starts the child.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub(super) fn arguments(&self) -> Result<Vec<OsString>, String> {
        let setup = serde_json::to_string(self).map_err(|error| format!("the path of the model: {error}"))?;
        Ok(vec![COMMAND.into(), setup.into()])
    }
}

/// The current order and its cancellation token.
type Current = Arc<Mutex<Option<(u32, CancellationToken)>>>;

type Arrived = (Order, CancellationToken);

/// Renders until standard input ends.
pub fn main(arguments: &[OsString]) -> ExitCode {
    // The default hook prints a panic's message, which can quote a prompt.
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        complain(&format!("panicked at {location}: report this location as a bug"));
    }));
    let setup = arguments.first().and_then(|text| text.to_str()).and_then(|text| serde_json::from_str(text).ok());
    let Some(setup) = setup else {
        complain("this command is for the service's own use");
        return ExitCode::from(NO_START);
    };
    match run(&setup) {
        Ok(()) => ExitCode::SUCCESS,
        Err(End { status, message }) => {
            complain(&message);
            ExitCode::from(status)
        }
    }
}

struct End {
    status: u8,
    /// For the operator.
    message: String,
}

/// Something other than the model, such as this machine.
impl From<String> for End {
    fn from(message: String) -> Self {
        Self { status: NO_START, message }
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Model(_) => NO_MODEL,
            Error::Files(_) => NO_FILES,
            Error::Scheduler(_) => NO_SCHEDULER,
            Error::Unusable(_) => NO_USE,
            Error::Lora(_) | Error::Embedding(_) | Error::Vae(_) | Error::Setting(_) => NO_ADDITION,
            _ => NO_START,
        };
        Self { status, message: error.to_string() }
    }
}

/// Prints a line for the parent's log. Without standard error it is lost.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "{message}");
}

fn run(setup: &Setup) -> Result<(), End> {
    let clock = Clock::system();
    let on_gpu = !matches!(setup.runtime, EngineRuntime::Rten | EngineRuntime::OnnxRuntime);
    let confinement =
        confine_engine(setup.memory_bytes, on_gpu).map_err(|error| format!("cannot confine itself: {error}"))?;
    // A runtime's library is third-party code, so it is loaded after the confinement.
    let runtime = runtime(setup).map_err(|error| End {
        status: NO_RUNTIME,
        message: format!(
            "{error}: download it again with `tintype engine library`, or choose another --engine-runtime"
        ),
    })?;
    let described = described(setup);
    let pipeline = open(setup, runtime)?;
    let traits = pipeline.traits();
    let loaded = Loaded {
        family: traits.family.to_owned(),
        processor: described,
        references: number(traits.references),
        sees_references: !traits.begins_with_reference,
        steps: number(traits.steps),
        calls: number(traits.calls),
        side_multiple: number(traits.side_multiple),
        trained_pixels: number(traits.trained_pixels),
        batch: number(traits.batch),
        confined: confinement == Confinement::Full,
        micros: micros(clock.elapsed()),
    };
    send(&Event::Loaded(loaded)).map_err(|error| error.to_string())?;
    if setup.work == Work::Opens {
        return Ok(());
    }
    let orders = listen().map_err(|error| format!("cannot start a thread: {error}"))?;
    Ok(Painter { pipeline, clock }.paint_all(&orders)?)
}

fn runtime(setup: &Setup) -> Result<Runtime, Error> {
    let device = match setup.runtime {
        EngineRuntime::Rten => return Ok(Runtime::Rten),
        EngineRuntime::OnnxRuntime => Device::Cpu,
        EngineRuntime::Cuda => Device::Cuda,
        EngineRuntime::TensorRt => Device::TensorRt,
        EngineRuntime::CoreMl => Device::CoreMl,
        EngineRuntime::DirectMl => Device::DirectMl,
    };
    Runtime::onnxruntime(setup.library.as_deref().unwrap_or(Path::new("")), device)
}

/// The processor, precision and runtime: everything that determines the speed.
fn described(setup: &Setup) -> String {
    let numbers = match setup.precision {
        EnginePrecision::F32 => "32 bits",
        EnginePrecision::F16 | EnginePrecision::Bf16 => "16 bits",
        EnginePrecision::W8a8 => "8 bits",
    };
    let runtime = match setup.runtime {
        EngineRuntime::Rten => "rten".to_owned(),
        other => format!("{other} {}", library::version()),
    };
    format!("{}, {runtime}, {numbers}", machine::processor())
}

/// Opens the model. Missing 8-bit and merged weights are made first, which takes minutes for a large model.
fn open(setup: &Setup, runtime: Runtime) -> Result<Pipeline, Error> {
    let options = options(setup, runtime);
    let makes = options.precision == Precision::W8A8 || !options.loras.is_empty();
    if !makes || options.cache.is_none() {
        return Pipeline::open(&setup.folder, &options);
    }
    let what = match options.precision {
        Precision::W8A8 => "making 8-bit weights of",
        _ => "merging the LoRA files into",
    };
    let mut said = None;
    prepare(&setup.folder, &options, &mut |Progress { part, done, total }| {
        let quarter = done.saturating_mul(4) / (*total).max(1);
        let now = Some((part.clone(), quarter));
        if now != said {
            complain(&format!("{what} {part}, once: {} %", quarter * 25));
            said = now;
        }
    })
}

fn options(setup: &Setup, runtime: Runtime) -> Options {
    let precision = match setup.precision {
        EnginePrecision::F32 => Precision::F32,
        EnginePrecision::F16 => Precision::F16,
        EnginePrecision::Bf16 => Precision::Bf16,
        EnginePrecision::W8a8 => Precision::W8A8,
    };
    // A child that only looks at the files need not merge them.
    let merges = setup.work != Work::Opens;
    let lora = |lora: &tintype_engine::Lora| {
        let weight = if merges { lora.weight } else { 0.0 };
        Lora { path: PathBuf::from(&lora.path), weight }
    };
    let loras = setup.loras.iter().map(lora).collect();
    let embedding =
        |EngineEmbedding { path, word }: &EngineEmbedding| TextualInversion { path: path.clone(), word: word.clone() };
    let embeddings = setup.embeddings.iter().map(embedding).collect();
    let (cache, vae, prompts) = (setup.cache.clone(), setup.vae.clone(), setup.prompt);
    let (device_memory, residency) = (setup.device_memory, Residency::ByDevice);
    Options { precision, cache, runtime, loras, embeddings, vae, prompts, residency, device_memory }
}

/// Reads standard input on a separate thread, so that an order can be cancelled during its render.
fn listen() -> io::Result<mpsc::Receiver<Arrived>> {
    let (sender, orders) = mpsc::channel();
    let read_all = move || {
        let current = Current::default();
        let mut input = io::stdin().lock();
        while let Ok(message) = read(&mut input) {
            let mut current = current.locked();
            match message {
                Message::Render(order) => {
                    let token = CancellationToken::new();
                    *current = Some((order.number, token.clone()));
                    if sender.send((order, token)).is_err() {
                        break;
                    }
                }
                Message::Cancel { order } => match &*current {
                    Some((number, token)) if *number == order => token.cancel(),
                    // It has ended.
                    _ => {}
                },
            }
        }
        // The pictures are no longer wanted, and nothing else stops a step in progress.
        std::process::exit(0);
    };
    std::thread::Builder::new().name("orders".into()).spawn(read_all)?;
    Ok(orders)
}

fn read(input: &mut impl io::Read) -> io::Result<Message> {
    let invalid = |error: FrameError| io::Error::other(error);
    let mut header = [0; HEADER_BYTES];
    input.read_exact(&mut header)?;
    let length = frames::body_length(header).map_err(invalid)?;
    let mut body = Vec::new();
    if input.take(length as u64).read_to_end(&mut body)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Message::read(&body).map_err(invalid)
}

fn send(event: &Event) -> io::Result<()> {
    let frame = event.frame().map_err(io::Error::other)?;
    let mut output = io::stdout().lock();
    output.write_all(&frame)?;
    output.flush()
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A model, and the clock for measuring it.
struct Painter {
    pipeline: Pipeline,
    clock: Clock,
}

impl Painter {
    /// Renders orders one after another. Fails with a message for the operator if the parent no longer listens.
    fn paint_all(&mut self, orders: &mpsc::Receiver<Arrived>) -> Result<(), String> {
        for (order, cancel) in orders {
            let event = match self.paint(&order, &cancel) {
                Ok(()) => Event::Done(usage()),
                Err(error) => failed(&error),
            };
            send(&event).map_err(|error| format!("the service no longer listens: {error}"))?;
        }
        Ok(())
    }

    fn paint(&mut self, order: &Order, cancel: &CancellationToken) -> Result<(), Error> {
        let begun = self.clock.elapsed();
        self.pipeline.read_prompts(order.syntax);
        // The pipeline keeps them for all of the order's pictures.
        for prompt in &order.prompts {
            self.pipeline.embed(&prompt.text)?;
        }
        let encoded = self.clock.elapsed();
        report(&Event::Encoded { micros: micros(encoded.saturating_sub(begun)) });
        let mut settings = self.pipeline.traits().settings();
        if order.steps > 0 {
            settings.steps = order.steps as usize;
        }
        if let Some(guidance) = order.guidance_scale {
            settings.guidance = guidance as f32;
        }
        // The kept part stays anyway, so the rest can change completely.
        let usual = if order.mask.is_some() { 1.0 } else { settings.strength };
        settings.strength = order.strength.unwrap_or(usual);
        settings.negative.clone_from(&order.negative_prompt);
        // A single step is soon followed by the picture itself.
        if order.prompts.iter().any(|prompt| prompt.previews) && settings.steps > 1 {
            self.pipeline.learn_previews()?;
        }
        let pictures: Vec<_> = order.pictures().collect();
        let most = self.pipeline.traits().batch.min(order.batch as usize);
        let mut first = 0;
        while first < pictures.len() {
            // A device keeps what it has loaded for each batch size, so few sizes are used.
            let batch = 1 << self.alike(&pictures[first..])?.min(most).max(1).ilog2();
            self.batch(order, first, &pictures[first..first + batch], &settings, cancel)?;
            first += batch;
        }
        Ok(())
    }

    /// How many of the first pictures have prompts with the same number of tokens. A picture must not depend on others
    /// in its batch, so no prompt is padded to another's length.
    fn alike(&self, pictures: &[(&Prompt, u64)]) -> Result<usize, Error> {
        let length = |(prompt, _): &(&Prompt, u64)| self.pipeline.tokens(&prompt.text).map(|tokens| tokens.len());
        let lengths = pictures.iter().map(length).collect::<Result<Vec<_>, _>>()?;
        Ok(lengths.iter().take_while(|length| **length == lengths[0]).count())
    }

    /// Renders a batch of an order's pictures, following `before` of them.
    fn batch(
        &mut self,
        order: &Order,
        before: usize,
        pictures: &[(&Prompt, u64)],
        settings: &Settings,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let Self { pipeline, clock } = self;
        let (width, height) = (order.width as usize, order.height as usize);
        let ordered = pictures.iter().map(|(prompt, seed)| tintype_diffusion::Order {
            prompt: &prompt.text,
            width,
            height,
            seed: *seed,
            references: &order.references,
            mask: order.mask.as_ref().map(Mask::picture),
        });
        let mut last = clock.elapsed();
        let mut lap = || {
            let before = std::mem::replace(&mut last, clock.elapsed());
            micros(last.saturating_sub(before))
        };
        let mut next_preview = Duration::ZERO;
        let progress = |step: &Step<'_>| {
            let (picture, pictures_now) = (number(before), number(pictures.len()));
            let (done, of) = (number(step.done), number(step.of));
            report(&Event::Step { picture, pictures: pictures_now, done, of, micros: lap() });
            let now = clock.elapsed();
            if now >= next_preview && pictures.iter().any(|(prompt, _)| prompt.previews) {
                for (at, _) in pictures.iter().enumerate().filter(|(_, (prompt, _))| prompt.previews) {
                    if let Some(picture) = step.preview(at) {
                        report(&Event::Preview { of: number(before + at), picture });
                    }
                }
                // This time doesn't count towards the next step.
                let took = Duration::from_micros(lap());
                next_preview = now + PREVIEW_EVERY.max(took * PREVIEW_SHARE);
            }
        };
        let painted = pipeline.render_batch(&ordered.collect::<Vec<_>>(), settings, progress, cancel)?;
        let micros = lap() / painted.len().max(1) as u64;
        for picture in painted {
            report(&Event::Painted { picture, micros });
        }
        Ok(())
    }
}

/// Sends an event during a render. If the parent has gone, standard input ends too, and with it this process.
fn report(event: &Event) {
    let _ = send(event);
}

fn failed(error: &Error) -> Event {
    let fault = match error {
        Error::Model(_) | Error::Files(_) | Error::Scheduler(_) | Error::Unusable(_) => Fault::Model,
        Error::Lora(_) | Error::Embedding(_) | Error::Vae(_) | Error::Setting(_) => Fault::Model,
        Error::Order(_) => Fault::Order,
        Error::Run(_) => Fault::Run,
        Error::Memory(_) => Fault::Memory,
        Error::Spoiled(_) => Fault::Spoiled,
        Error::Cancelled => Fault::Cancelled,
    };
    // Far below the longest text in a frame.
    Event::Failed { fault, message: error.to_string().chars().take(1_000).collect() }
}

fn usage() -> ResourceUsage {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name| machine::kib(&status, name).unwrap_or(0);
    ResourceUsage { peak_bytes: bytes("VmHWM:"), own_bytes: bytes("RssAnon:") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parity() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../diffusion/tests/parity")
    }

    fn setup(folder: PathBuf) -> Setup {
        Setup {
            folder,
            cache: None,
            precision: EnginePrecision::F32,
            runtime: EngineRuntime::Rten,
            library: None,
            loras: Vec::new(),
            embeddings: Vec::new(),
            vae: None,
            prompt: PromptSyntax::Plain,
            memory_bytes: 1 << 30,
            device_memory: None,
            work: Work::Opens,
        }
    }

    #[test]
    fn an_embedding_and_a_vae_reach_the_model_or_say_what_is_wrong_with_them() {
        let embedding = |name: &str| EngineEmbedding {
            path: parity().join("textual_inversion").join(name),
            word: Some("hands".into()),
        };
        let setup = |name: &str, vae: &str| Setup {
            embeddings: vec![embedding(name)],
            vae: Some(parity().join("other_vae").join(vae)),
            prompt: PromptSyntax::Weighted,
            ..setup(parity().join("sd15"))
        };
        let fitting = open(&setup("badhands.safetensors", "tiny"), Runtime::Rten).expect("a model");
        let tokens = fitting.tokens("hands").expect("tokens");
        assert_eq!(tokens[..4], [tokens[0]; 4], "three vectors after the begin");
        assert_eq!(fitting.tokens(&"a fox ".repeat(80)).expect("tokens").len() % 77, 0);
        assert!(fitting.tokens(&"a fox ".repeat(80)).expect("tokens").len() > 77, "weighted prompts are not cut");
        for (embedding, vae, word) in
            [("sdxl.safetensors", "tiny", "sdxl.safetensors"), ("badhands.safetensors", "large_xl", "another family")]
        {
            let error = open(&setup(embedding, vae), Runtime::Rten).expect_err(word);
            let End { status, message } = End::from(error);
            assert!(status == NO_ADDITION && message.contains(word), "{status} {message}");
        }
    }

    /// The exit status for a tiny model with one of its files replaced.
    fn status_with(path: &str, content: &[u8]) -> u8 {
        let parity = parity().join("sd15");
        let folder = tempfile::tempdir().expect("a folder");
        let (part, name) = path.split_once('/').expect("a file of a part");
        for entry in parity.read_dir().expect("a folder").chain(parity.join(part).read_dir().expect("a folder")) {
            let from = entry.expect("an entry").path();
            let to = folder.path().join(from.strip_prefix(&parity).expect("inside"));
            std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
            if from.file_name().is_some_and(|own| own != part && own != name) {
                std::os::unix::fs::symlink(from.canonicalize().expect("a path"), to).expect("a link");
            }
        }
        std::fs::write(folder.path().join(path), content).expect("written");
        let error = open(&setup(folder.path().to_owned()), Runtime::Rten).expect_err(path);
        let End { status, message } = End::from(error);
        assert!(message.contains(name), "{message}");
        status
    }

    #[test]
    fn the_status_says_what_is_wrong_with_a_model() {
        let weights = "vae/diffusion_pytorch_model.safetensors";
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
        for (path, content, status) in [
            ("unet/config.json", &br#"{"_class_name": "UNet3DConditionModel"}"#[..], NO_MODEL),
            ("unet/config.json", b"{", NO_FILES),
            (weights, b"", NO_FILES),
            (weights, pointer, NO_USE),
            ("scheduler/scheduler_config.json", br#"{"_class_name": "DDPMScheduler"}"#, NO_SCHEDULER),
            ("scheduler/scheduler_config.json", br#"{"_class_name": "PNDMScheduler"}"#, NO_SCHEDULER),
            ("scheduler/scheduler_config.json", br#"{"beta_schedule": "sigmoid"}"#, NO_MODEL),
        ] {
            assert_eq!(status_with(path, content), status, "{path}: {}", String::from_utf8_lossy(content));
        }
    }

    #[test]
    fn loras_are_merged_before_a_picture_and_only_looked_at_by_a_check() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("cache");
        let lora = |name: &str| parity().join("lora").join(name).display().to_string();
        let setup = |work, name: &str| Setup {
            cache: Some(cache.clone()),
            loras: vec![tintype_engine::Lora { path: lora(name), weight: 0.7 }],
            work,
            ..setup(parity().join("sd15"))
        };
        let fitting = |work| open(&setup(work, "sd15_kohya.safetensors"), Runtime::Rten);
        fitting(Work::Opens).expect("a model");
        assert!(!cache.exists());
        fitting(Work::Renders).expect("a model");
        assert_eq!(cache.read_dir().expect("a folder").count(), 2, "the text encoder and the UNet");
        for (lora, word) in [("sdxl_kohya.safetensors", "another family"), ("none.safetensors", "cannot read")] {
            let error = open(&setup(Work::Opens, lora), Runtime::Rten).expect_err(lora);
            let End { status, message } = End::from(error);
            assert!(status == NO_ADDITION && message.contains(lora) && message.contains(word), "{status} {message}");
        }
    }
}
