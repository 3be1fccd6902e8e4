//! `tintype engine`: which engine renders, whether it takes work, and one picture to try it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{Args, Subcommand};
use rustix::process::geteuid;
use serde::Serialize;

use super::following::{save, unfinished};
use super::library::{self, LibraryArgs};
use super::nodes::{self, NodesArgs};
use super::progress::Stages;
use super::values::{RatioParser, whole_number};
use super::{Failure, Outcome, show};
use tintype_config::{EnginePrecision, EngineSettings, EngineTarget, NamedEngine};
use tintype_domain::request::{AspectRatio, InvalidRequest};
use tintype_engine::{
    Brief, CancellationToken, Device, Engine, EngineInfo, LoraSource, MAX_SEED, Measured, Picture, Progress,
    RenderSettings, Sizes,
};
use tintype_engines::diffusion::{Asked, Distance};
use tintype_engines::{EngineChoice, EngineContext};
use tintype_system::clock::Clock;

/// Time limit for a probe.
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for the start of an engine that runs a process of its own, and for its first measurement.
const START_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The seed of a picture unless `--seed` gives another.
const SEED: u64 = 1;

#[derive(Debug, Subcommand)]
pub(super) enum EngineCommand {
    /// Show the engines of the settings, and the kinds of engines that this release knows
    List(ListArgs),
    /// Check whether an engine is ready
    Check(CheckArgs),
    /// Render one picture with an engine, save it as PNG and show how long each stage took
    Try(TryArgs),
    /// Find the nodes of a ComfyUI workflow that get the prompt, the seed and so on
    Nodes(NodesArgs),
    /// Fetch ONNX Runtime, for models that are to run on it
    Library(LibraryArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    engine: EngineSettings,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Engine to check: the NAME of a table in the config file, or KIND[:URL] [default: all engines of the settings]
    name: Option<EngineTarget>,
    #[command(flatten)]
    engine: EngineSettings,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct TryArgs {
    /// Engine to try: the NAME of a table in the config file, or KIND[:URL]
    name: EngineTarget,
    /// Prompt
    #[arg(value_parser = prompt)]
    prompt: String,
    #[command(flatten)]
    engine: EngineSettings,
    /// Aspect ratio, such as 16:9
    #[arg(long, value_name = "W:H", default_value = "1:1", value_parser = RatioParser.try_map(|text: String| aspect_ratio(&text)))]
    aspect: AspectRatio,
    /// Seed of the picture
    #[arg(long, value_name = "N", default_value_t = SEED, allow_negative_numbers = true, value_parser = whole_number::<u64>(0..=i64::from(MAX_SEED)))]
    seed: u64,
    /// Time limit
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = tintype_config::duration)]
    timeout: Duration,
    /// Render the same picture in 8 and in 32 bits, and show the difference; for diffusion
    #[arg(long)]
    compare: bool,
    /// File to write, which must not exist [default: try.png, or else the first of try-2.png, try-3.png and so on]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An engine as the command line shows it.
#[derive(Debug, Serialize)]
struct Shown {
    engine: String,
    description: String,
    sizes: Vec<String>,
    max_references: usize,
    /// Whether it takes a mask for its first reference image.
    masks: bool,
    /// The LoRAs that presets may name: `files` of its machine, or those of its `server`.
    loras: Option<&'static str>,
    /// Whether presets may choose how it reads prompts.
    weighted_prompts: bool,
    /// Whether presets may choose a quality.
    quality: bool,
    /// The settings that callers and presets may give.
    settings: Vec<&'static str>,
    /// The fields that the operator adds to every call.
    extra: Vec<String>,
    slots: usize,
}

impl Shown {
    fn new(engine: &NamedEngine, info: &EngineInfo) -> Self {
        let sizes = match &info.sizes {
            Sizes::Any => vec!["any".into()],
            Sizes::Of(sizes) => sizes.iter().map(|(width, height)| format!("{width}x{height}")).collect(),
        };
        let slots = engine.slots.map_or(info.slots, usize::from);
        let extra = engine.settings.engine_extra.iter().flat_map(|extra| extra.0.keys().cloned()).collect();
        let (engine, description) = (engine.name.clone(), info.description.clone());
        let settings = info.settings.iter().map(|setting| setting.as_str()).collect();
        let loras = match info.loras {
            LoraSource::Nowhere => None,
            LoraSource::Files => Some("files"),
            LoraSource::Server => Some("server"),
        };
        let EngineInfo { max_references, masks, weighted_prompts, quality, .. } = *info;
        Self {
            engine,
            description,
            sizes,
            max_references,
            masks,
            loras,
            weighted_prompts,
            quality,
            settings,
            extra,
            slots,
        }
    }

    fn text(&self) -> String {
        let Self { engine, description, sizes, max_references, settings, extra, slots, .. } = self;
        let extra = if extra.is_empty() { String::new() } else { format!("; always: {}", extra.join(", ")) };
        let masks = if self.masks { " with masks" } else { "" };
        let loras = match self.loras {
            None => "none",
            Some("files") => "files of this machine",
            Some(_) => "those of its server",
        };
        let sizes = sizes.join(", ");
        let of_presets = [("prompt", self.weighted_prompts), ("quality", self.quality)];
        let of_presets = of_presets.into_iter().filter_map(|(name, taken)| taken.then_some(name));
        let settings: Vec<_> = settings.iter().copied().chain(of_presets).collect();
        let settings = if settings.is_empty() { "none".to_owned() } else { settings.join(", ") };
        format!(
            "{engine}\n  {description}\n  sizes: {sizes}; reference images: {max_references}{masks}; tasks at a time: {slots}\n  settings: {settings}; LoRAs: {loras}{extra}"
        )
    }
}

/// The engines of the settings, and all kinds.
#[derive(Debug, Serialize)]
struct Listed {
    configured: Vec<Shown>,
    known: &'static [&'static str],
}

/// A device of an engine.
#[derive(Debug, Serialize)]
struct ShownDevice {
    name: String,
    memory_bytes: Option<u64>,
    free_memory_bytes: Option<u64>,
    used_memory_bytes: Option<u64>,
}

impl From<Device> for ShownDevice {
    fn from(Device { name, memory, free_memory, used_memory }: Device) -> Self {
        Self { name, memory_bytes: memory, free_memory_bytes: free_memory, used_memory_bytes: used_memory }
    }
}

impl ShownDevice {
    fn text(&self) -> String {
        let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
        let memory = self.memory_bytes.map(|bytes| format!(", {:.1} GiB of memory", gib(bytes))).unwrap_or_default();
        let free = self.free_memory_bytes.map(|bytes| format!(", {:.1} GiB free", gib(bytes))).unwrap_or_default();
        let used = self.used_memory_bytes.map(|bytes| format!(", {:.1} GiB of memory used", gib(bytes)));
        format!("\n  device: {}{memory}{free}{}", self.name, used.unwrap_or_default())
    }
}

fn devices_text(devices: &[ShownDevice]) -> String {
    if devices.is_empty() {
        return "\n  device: not reported".into();
    }
    devices.iter().map(ShownDevice::text).collect()
}

/// The outcome of a check.
#[derive(Debug, Serialize)]
struct Checked {
    #[serde(flatten)]
    shown: Shown,
    ok: bool,
    /// The reason why the engine takes no work.
    error: Option<String>,
    seconds: f64,
    devices: Vec<ShownDevice>,
}

impl Checked {
    fn text(&self) -> String {
        let outcome = match &self.error {
            None => format!("ready (answered in {:.0} ms)", self.seconds * 1e3),
            Some(error) => format!("not ready: {error}"),
        };
        format!("{}\n  {outcome}{}", self.shown.text(), devices_text(&self.devices))
    }
}

/// A picture that was rendered, and the seconds that each stage took.
#[derive(Debug, Serialize)]
struct Tried {
    engine: String,
    file: PathBuf,
    /// The size that the engine returned.
    rendered: String,
    /// The size of the file.
    size: String,
    bytes: usize,
    render_seconds: f64,
    resize_seconds: f64,
    encode_seconds: f64,
    /// The devices, with their memory right after the render.
    devices: Vec<ShownDevice>,
    /// The parts of the render, of an engine that measures them.
    measured: Option<ShownMeasured>,
    /// The picture in other numbers, with `--compare`.
    compared: Option<Compared>,
}

/// A picture in 8 bits beside the same one in 32 bits, or the other way round.
#[derive(Debug, Serialize)]
struct Compared {
    /// The parts of the model before the picture: the prompt's embedding and the first answer.
    relative: Distance,
    /// Mean difference of a channel, of 255.
    mean_difference: f64,
    /// Largest difference of a channel, of 255.
    largest_difference: u8,
    /// The render of the other picture.
    other: Option<ShownMeasured>,
}

impl Compared {
    /// Compares two pictures of the same size.
    fn new(one: &Picture, other: &Picture, relative: Distance, measured: Option<Measured>) -> Self {
        let differences = one.as_rgb().iter().zip(other.as_rgb()).map(|(a, b)| a.abs_diff(*b));
        let sum: u64 = differences.clone().map(u64::from).sum();
        Self {
            relative,
            mean_difference: sum as f64 / one.as_rgb().len().max(1) as f64,
            largest_difference: differences.max().unwrap_or(0),
            other: measured.map(ShownMeasured::from),
        }
    }

    fn text(&self) -> String {
        let other = self.other.as_ref().map(ShownMeasured::text).unwrap_or_default();
        let Distance { prompt, first_answer } = self.relative;
        format!(
            "\n  in other numbers the embedding of the prompt differs by {:.2} % of its size, the model's first answer by {:.2} %, and each channel of the picture by {:.2} of 255 on average, by {} at most:{other}",
            prompt * 100.0,
            first_answer * 100.0,
            self.mean_difference,
            self.largest_difference
        )
    }
}

/// The parts of a render on this machine.
#[derive(Debug, Serialize)]
struct ShownMeasured {
    processor: String,
    encode_seconds: f64,
    step_seconds: Vec<f64>,
    decode_seconds: f64,
    peak_memory_bytes: u64,
    own_memory_bytes: u64,
}

impl From<Measured> for ShownMeasured {
    fn from(measured: Measured) -> Self {
        let Measured { processor, encode, steps, decodes, usage } = measured;
        Self {
            processor,
            encode_seconds: encode.as_secs_f64(),
            step_seconds: steps.iter().map(Duration::as_secs_f64).collect(),
            decode_seconds: decodes.iter().map(Duration::as_secs_f64).sum(),
            peak_memory_bytes: usage.peak_bytes,
            own_memory_bytes: usage.own_bytes,
        }
    }
}

impl ShownMeasured {
    fn text(&self) -> String {
        let Self { processor, encode_seconds, decode_seconds, .. } = self;
        let steps: Vec<_> = self.step_seconds.iter().map(|seconds| format!("{seconds:.2}")).collect();
        let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
        format!(
            "\n  encoding {encode_seconds:.2} s; steps {} s; decoding {decode_seconds:.2} s\n  \
             memory: {:.2} GiB at most with the weights, {:.2} GiB of its own\n  processor: {processor}",
            steps.join(", "),
            gib(self.peak_memory_bytes),
            gib(self.own_memory_bytes)
        )
    }
}

pub(super) async fn run(command: EngineCommand, data: &Path) -> Outcome {
    match command {
        EngineCommand::List(args) => list(&args, data),
        EngineCommand::Check(args) => check(args, data).await,
        EngineCommand::Try(args) => try_out(args, data).await,
        EngineCommand::Nodes(args) => nodes::run(&args),
        EngineCommand::Library(args) => library::run(args, data).await,
    }
}

fn list(args: &ListArgs, data: &Path) -> Outcome {
    let shown = |engine: &NamedEngine| Ok(Shown::new(engine, &chosen(engine, data)?.info));
    let configured =
        tintype_engines::configured(&args.engine, data)?.iter().map(shown).collect::<Result<Vec<_>, Failure>>()?;
    let listed = Listed { configured, known: &tintype_engines::KNOWN };
    show(args.json, &listed, || {
        let configured: Vec<_> = listed.configured.iter().map(Shown::text).collect();
        format!("{}\n\nThis release knows: {}", configured.join("\n"), listed.known.join(", "))
    })
}

fn chosen(engine: &NamedEngine, data: &Path) -> Result<EngineChoice, Failure> {
    Ok(tintype_engines::choose(&engine.settings, data).map_err(|error| format!("engine {}: {error}", engine.name))?)
}

/// A prompt that says something, as that of a task must.
fn prompt(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() { Err("a prompt must not be empty") } else { Ok(text.to_owned()) }
}

fn aspect_ratio(text: &str) -> Result<AspectRatio, String> {
    text.parse().map_err(|error: InvalidRequest| error.to_string())
}

async fn check(args: CheckArgs, data: &Path) -> Outcome {
    let engines = match &args.name {
        Some(name) => vec![args.engine.engine_named(name)?],
        None => tintype_engines::configured(&args.engine, data)?,
    };
    let mut all = Vec::new();
    for engine in &engines {
        all.push(check_one(engine, data).await?);
    }
    show(args.json, &all, || all.iter().map(Checked::text).collect::<Vec<_>>().join("\n"))?;
    Ok(if all.iter().all(|checked| checked.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn check_one(named: &NamedEngine, data: &Path) -> Result<Checked, Failure> {
    let choice = chosen(named, data)?;
    let engine = choice.build(EngineContext { quotes_server: true, keeps: owns(data), ..EngineContext::default() })?;
    let clock = Clock::system();
    let begun = clock.elapsed();
    // Its end, however it comes, shows in the probe.
    drop(tokio::time::timeout(START_LIMIT, engine.started()).await);
    let probe = tokio::time::timeout(PROBE_LIMIT, engine.probe()).await;
    let error = match probe {
        Ok(probe) => probe.err().map(|error| error.to_string()),
        Err(_) => Some(format!("no answer within {} s", PROBE_LIMIT.as_secs())),
    };
    let seconds = (clock.elapsed() - begun).as_secs_f64();
    let devices = engine.devices().await.into_iter().map(ShownDevice::from).collect();
    Ok(Checked { shown: Shown::new(named, &choice.info), ok: error.is_none(), error, seconds, devices })
}

async fn try_out(args: TryArgs, data: &Path) -> Outcome {
    let (width, height) = args.aspect.size();
    let out = args.out.clone().unwrap_or_else(free_file);
    // Before the render, which may cost money.
    check_free(&out)?;
    let stages = Stages::new(!args.json);
    let tried = paint(&args, &out, data, (width, height), &stages).await;
    stages.end();
    let tried = tried?;
    show(args.json, &tried, || {
        let Tried { rendered, size, bytes, render_seconds, resize_seconds, encode_seconds, .. } = &tried;
        let file = out.display();
        let device = tried.measured.as_ref().map_or_else(|| devices_text(&tried.devices), ShownMeasured::text);
        let compared = tried.compared.as_ref().map(Compared::text).unwrap_or_default();
        format!(
            "{file}: {size}, {bytes} bytes\n  rendered as {rendered} in {render_seconds:.2} s, resized in {resize_seconds:.3} s, encoded in {encode_seconds:.3} s{device}{compared}"
        )
    })
}

/// The first of `try.png`, `try-2.png` and so on that does not exist.
fn free_file() -> PathBuf {
    let numbered = (2_u64..).map(|number| PathBuf::from(format!("try-{number}.png")));
    let mut names = std::iter::once(PathBuf::from("try.png")).chain(numbered);
    names.find(|file| std::fs::symlink_metadata(file).is_err()).unwrap_or_default()
}

/// Checks that a file can be created, and leaves nothing behind.
fn check_free(out: &Path) -> Result<(), String> {
    if std::fs::symlink_metadata(out).is_ok() {
        return Err(format!("{} exists: choose another file with --out", out.display()));
    }
    let probe = unfinished(out);
    let created = std::fs::File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe));
    created.map_err(|error| format!("cannot create {}: {error}", out.display()))
}

/// An engine that is ready, for one picture of the operator.
async fn ready(named: &NamedEngine, data: &Path, limit: Duration) -> Result<(Arc<dyn Engine>, EngineInfo), Failure> {
    let choice = chosen(named, data)?;
    let engine = choice.build(EngineContext { quotes_server: true, keeps: owns(data), ..EngineContext::default() })?;
    let started = tokio::time::timeout(limit, engine.started()).await;
    started.map_err(|_| format!("the engine was not ready within {} s", limit.as_secs()))??;
    Ok((engine, choice.info))
}

/// Whether the data belongs to the user of this process. Root writes nothing into the data of another user, who may have
/// laid links there.
fn owns(data: &Path) -> bool {
    std::fs::metadata(data).is_ok_and(|found| found.uid() == geteuid().as_raw())
}

async fn paint(
    args: &TryArgs,
    out: &Path,
    data: &Path,
    (width, height): (u32, u32),
    stages: &Stages,
) -> Result<Tried, Failure> {
    let named = args.engine.engine_named(&args.name)?;
    stages.begin(&format!("starting the engine {}", named.name));
    let (engine, info) = ready(&named, data, args.timeout).await?;
    stages.begin(&format!("rendering with {}", info.description));
    let (native_width, native_height) = info.sizes.nearest(width, height);
    let clock = Clock::system();
    let seconds = |begun: Duration| (clock.elapsed() - begun).as_secs_f64();
    let begun = clock.elapsed();
    let picture = one_picture(args, &engine, (native_width, native_height), stages).await?;
    let (render_seconds, native) = (seconds(begun), format!("{}x{}", picture.width(), picture.height()));
    let devices = engine.devices().await.into_iter().map(ShownDevice::from).collect();
    let measured = engine.measured().map(ShownMeasured::from);
    // Two models may not fit into the memory.
    drop(engine);
    let compared = if args.compare { Some(compare(args, named.clone(), data, &picture, stages).await?) } else { None };
    let begun = clock.elapsed();
    let picture = picture.fit(width, height);
    let resize_seconds = seconds(begun);
    let begun = clock.elapsed();
    let png = picture.to_png();
    let encode_seconds = seconds(begun);
    save(out, &png).map_err(|error| format!("cannot write {}: {error}", out.display()))?;
    Ok(Tried {
        engine: named.name,
        file: out.to_owned(),
        rendered: native,
        size: format!("{width}x{height}"),
        bytes: png.len(),
        render_seconds,
        resize_seconds,
        encode_seconds,
        devices,
        measured,
        compared,
    })
}

async fn one_picture(
    args: &TryArgs,
    engine: &Arc<dyn Engine>,
    size: (u32, u32),
    stages: &Stages,
) -> Result<Picture, Failure> {
    let brief = Brief {
        prompt: args.prompt.clone(),
        width: size.0,
        height: size.1,
        seeds: vec![args.seed],
        references: Vec::new(),
        mask: None,
        settings: RenderSettings::default(),
        time_limit: args.timeout,
    };
    let progress = Progress::default();
    let rendering = engine.render(brief, progress.clone(), CancellationToken::new());
    let rendered = tokio::time::timeout(args.timeout, stages.follow(&progress, rendering)).await;
    let rendered = rendered.map_err(|_| format!("no picture within {} s", args.timeout.as_secs()))??;
    Ok(rendered.into_iter().next().ok_or("the engine returned no picture")?)
}

/// Renders the same picture in the other numbers.
async fn compare(
    args: &TryArgs,
    mut named: NamedEngine,
    data: &Path,
    picture: &Picture,
    stages: &Stages,
) -> Result<Compared, Failure> {
    let settings = &mut named.settings;
    if settings.target() != EngineTarget::Diffusion {
        return Err(Failure("--compare is for the diffusion engine".into()));
    }
    let used = tintype_engines::diffusion::precision(settings, data)?;
    // One of the two computes in 32 bits.
    let (other, narrow) = match used {
        EnginePrecision::F32 => (EnginePrecision::W8a8, EnginePrecision::W8a8),
        EnginePrecision::W8a8 | EnginePrecision::F16 | EnginePrecision::Bf16 => (EnginePrecision::F32, used),
    };
    settings.engine_precision = Some(narrow);
    stages.begin("comparing with other numbers");
    let asked = Asked { prompt: args.prompt.clone(), size: (picture.width(), picture.height()), seed: args.seed };
    let comparing = tintype_engines::diffusion::compare(settings, data, owns(data), asked);
    let relative = tokio::time::timeout(args.timeout, comparing).await;
    let relative = relative.map_err(|_| format!("no comparison within {} s", args.timeout.as_secs()))??;
    settings.engine_precision = Some(other);
    let (engine, _) = ready(&named, data, args.timeout).await?;
    let other = one_picture(args, &engine, (picture.width(), picture.height()), stages).await?;
    if (other.width(), other.height()) != (picture.width(), picture.height()) {
        return Err(Failure("the other picture would not be done in time at the same size: raise --timeout".into()));
    }
    Ok(Compared::new(picture, &other, relative, engine.measured()))
}
