//! `tintype engine`: which engine renders, whether it takes work, and one picture to try it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{Args, Subcommand};
use rustix::process::geteuid;
use serde_json::{Value, json};
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use self::library::LibraryArgs;
use self::nodes::NodesArgs;
use super::following::{save, unfinished};
use super::printing::{JsonArgs, show_verdict};
use super::progress::Stages;
use super::values::{RatioParser, whole_number};
use super::{Failure, Outcome, show};
use tintype_config::{EngineSettings, EngineTarget, NamedEngine};
use tintype_domain::request::{AspectRatio, InvalidRequest};
use tintype_engine::{
    Brief, CancellationToken, Device, Engine, EngineError, EngineInfo, LoraSource, MAX_SEED, Measured, Picture,
    Progress, Sizes,
};
use tintype_engines::{EngineChoice, EngineContext};
use tintype_system::clock::Clock;

mod library;
mod nodes;

const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for starting an engine with its own process, including its first measurement.
const START_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The seed of a picture unless `--seed` gives another.
const SEED: u64 = 1;

#[derive(Debug, Subcommand)]
pub(super) enum EngineCommand {
    /// List the configured engines, and the kinds of engine that this release supports
    List(ListArgs),
    /// Check whether an engine is ready
    Check(CheckArgs),
    /// Render one image with an engine, save it as PNG and show how long each stage took
    Try(TryArgs),
    /// Find the nodes of a ComfyUI workflow that get the prompt, the seed and so on
    Nodes(NodesArgs),
    /// Download ONNX Runtime, to run models on it
    Library(LibraryArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    engine: EngineSettings,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Engine to check: the NAME of a table in the config file, or KIND[:URL] [default: all configured engines]
    name: Option<EngineTarget>,
    #[command(flatten)]
    engine: EngineSettings,
    #[command(flatten)]
    json: JsonArgs,
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
    /// Seed of the image
    #[arg(long, value_name = "N", default_value_t = SEED, value_parser = whole_number::<u64>(0..=i64::from(MAX_SEED)))]
    seed: u64,
    /// Time limit
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = tintype_config::time_limit)]
    timeout: Duration,
    /// File to write, which must not exist [default: try.png, or else the first of try-2.png, try-3.png and so on]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArgs,
}

/// What is known of an engine without asking it, as JSON.
fn known_json(engine: &NamedEngine, info: &EngineInfo) -> Value {
    json!({
        "engine": engine.name,
        "description": info.description,
        "sizes": sizes(info),
        "max_references": info.max_references,
        "masks": info.masks,
        "loras": match info.loras {
            LoraSource::Nowhere => None,
            LoraSource::Files => Some("files"),
            LoraSource::Server => Some("server"),
        },
        "weighted_prompts": info.weighted_prompts,
        "quality": info.quality,
        "settings": info.settings.iter().map(|setting| setting.as_str()).collect::<Vec<_>>(),
        "extra": extra(engine),
        "slots": engine.slots.map_or(info.slots, usize::from),
    })
}

fn known_text(engine: &NamedEngine, info: &EngineInfo) -> String {
    let always = match extra(engine) {
        extra if extra.is_empty() => String::new(),
        extra => format!("; always: {}", extra.join(", ")),
    };
    let masks = if info.masks { " with masks" } else { "" };
    let loras = match info.loras {
        LoraSource::Nowhere => "none",
        LoraSource::Files => "files of this machine",
        LoraSource::Server => "those of its server",
    };
    let of_presets = [("prompt", info.weighted_prompts), ("quality", info.quality)];
    let of_presets = of_presets.into_iter().filter_map(|(name, taken)| taken.then_some(name));
    let settings: Vec<_> = info.settings.iter().map(|setting| setting.as_str()).chain(of_presets).collect();
    let settings = if settings.is_empty() { "none".to_owned() } else { settings.join(", ") };
    format!(
        "{}\n  {}\n  sizes: {}; reference images: {}{masks}; tasks at a time: {}\n  settings: {settings}; LoRAs: {loras}{always}",
        engine.name,
        info.description,
        sizes(info).join(", "),
        info.max_references,
        engine.slots.map_or(info.slots, usize::from)
    )
}

fn sizes(info: &EngineInfo) -> Vec<String> {
    match &info.sizes {
        Sizes::Any => vec!["any".into()],
        Sizes::Of(sizes) => sizes.iter().map(|(width, height)| format!("{width}x{height}")).collect(),
    }
}

/// The fields that the operator adds to every call.
fn extra(engine: &NamedEngine) -> Vec<&str> {
    engine.settings.engine_extra.iter().flat_map(|extra| extra.0.keys().map(String::as_str)).collect()
}

fn devices_json(devices: &[Device]) -> Value {
    let device = |device: &Device| {
        json!({
            "name": device.name,
            "memory_bytes": device.memory,
            "free_memory_bytes": device.free_memory,
            "used_memory_bytes": device.used_memory,
        })
    };
    devices.iter().map(device).collect()
}

fn devices_text(devices: &[Device]) -> String {
    if devices.is_empty() {
        return "\n  device: not reported".into();
    }
    let part = |(bytes, words): (Option<u64>, &str)| Some(format!(", {:.1} GiB {words}", gib(bytes?)));
    let text = |device: &Device| {
        let memory =
            [(device.memory, "of memory"), (device.free_memory, "free"), (device.used_memory, "of memory used")];
        let memory: String = memory.into_iter().filter_map(part).collect();
        format!("\n  device: {}{memory}", device.name)
    };
    devices.iter().map(text).collect()
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

fn decode_seconds(measured: &Measured) -> f64 {
    measured.decodes.iter().map(Duration::as_secs_f64).sum()
}

fn measured_json(measured: &Measured) -> Value {
    json!({
        "processor": measured.processor,
        "encode_seconds": measured.encode.as_secs_f64(),
        "step_seconds": measured.steps.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
        "decode_seconds": decode_seconds(measured),
        "peak_memory_bytes": measured.usage.peak_bytes,
        "own_memory_bytes": measured.usage.own_bytes,
    })
}

fn measured_text(measured: &Measured) -> String {
    let steps: Vec<_> = measured.steps.iter().map(|step| format!("{:.2}", step.as_secs_f64())).collect();
    format!(
        "\n  encoding {:.2} s; steps {} s; decoding {:.2} s\n  \
         memory: {:.2} GiB at most with the weights, {:.2} GiB of its own\n  processor: {}",
        measured.encode.as_secs_f64(),
        steps.join(", "),
        decode_seconds(measured),
        gib(measured.usage.peak_bytes),
        gib(measured.usage.own_bytes),
        measured.processor
    )
}

pub(super) async fn run(command: EngineCommand, data: &Path) -> Outcome {
    match command {
        EngineCommand::List(args) => list(&args, data),
        EngineCommand::Check(args) => check(args, data).await,
        EngineCommand::Try(args) => try_command(args, data).await,
        EngineCommand::Nodes(args) => nodes::run(&args),
        EngineCommand::Library(args) => library::run(args, data).await,
    }
}

fn list(args: &ListArgs, data: &Path) -> Outcome {
    let mut listed = Vec::new();
    let mut texts = Vec::new();
    for engine in tintype_engines::configured(&args.engine, data)? {
        let info = chosen(&engine, data)?.info;
        listed.push(known_json(&engine, &info));
        texts.push(known_text(&engine, &info));
    }
    let known = tintype_engines::KNOWN;
    show(args.json, &json!({ "configured": listed, "known": known }), || {
        format!("{}\n\nThis release knows: {}", texts.join("\n"), known.join(", "))
    })
}

fn chosen(engine: &NamedEngine, data: &Path) -> Result<EngineChoice, Failure> {
    Ok(tintype_engines::choose(&engine.settings, data).map_err(|error| format!("engine {}: {error}", engine.name))?)
}

/// A prompt. As for a task, it must not be blank.
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
    let (mut checked, mut texts, mut all_ready) = (Vec::new(), Vec::new(), true);
    for engine in &engines {
        let (json, text, is_ready) = check_one(engine, data).await?;
        checked.push(json);
        texts.push(text);
        all_ready &= is_ready;
    }
    show_verdict(all_ready, args.json, &checked, || texts.join("\n"))
}

/// Checks an engine: the outcome as JSON and as text, and whether it takes work.
async fn check_one(named: &NamedEngine, data: &Path) -> Result<(Value, String, bool), Failure> {
    let choice = chosen(named, data)?;
    let engine = choice.build(EngineContext { quotes_server: true, keeps: owns(data), ..EngineContext::default() })?;
    let clock = Clock::system();
    let begun = clock.elapsed();
    // Its end, however it comes, shows in the probe.
    drop(tokio::time::timeout(START_LIMIT, engine.started()).await);
    // The outcome says what the log would.
    let probe = tokio::time::timeout(PROBE_LIMIT, engine.check()).with_subscriber(NoSubscriber::default()).await;
    let error = match probe {
        Ok(Err(EngineError::NotAvailable(cause))) => Some(cause),
        Ok(probe) => probe.err().map(|error| error.to_string()),
        Err(_) => Some(format!("no answer within {} s", PROBE_LIMIT.as_secs())),
    };
    let seconds = (clock.elapsed() - begun).as_secs_f64();
    let devices = engine.devices().await;
    let outcome = match &error {
        None => format!("ready (answered in {:.0} ms)", seconds * 1e3),
        Some(error) => format!("not ready: {error}"),
    };
    let text = format!("{}\n  {outcome}{}", known_text(named, &choice.info), devices_text(&devices));
    let is_ready = error.is_none();
    let mut json = known_json(named, &choice.info);
    json["ok"] = is_ready.into();
    json["error"] = error.into();
    json["seconds"] = seconds.into();
    json["devices"] = devices_json(&devices);
    Ok((json, text, is_ready))
}

async fn try_command(args: TryArgs, data: &Path) -> Outcome {
    let (width, height) = args.aspect.size();
    let out = args.out.clone().unwrap_or_else(free_file);
    // Before the render, which may cost money.
    check_free(&out)?;
    let stages = Stages::new(!args.json);
    let tried = try_engine(&args, &out, data, (width, height), &stages).await;
    stages.end();
    let (tried, text) = tried?;
    show(args.json, &tried, || text)
}

/// The first of `try.png`, `try-2.png` and so on that does not exist.
fn free_file() -> PathBuf {
    let numbered = (2_u64..).map(|number| PathBuf::from(format!("try-{number}.png")));
    let mut names = std::iter::once(PathBuf::from("try.png")).chain(numbered);
    names.find(|file| std::fs::symlink_metadata(file).is_err()).unwrap_or_default()
}

/// Checks that a file can be created, and leaves nothing behind.
fn check_free(out: &Path) -> Result<(), String> {
    if out == Path::new("-") {
        return Err("--out takes a file: standard output shows the times".into());
    }
    if std::fs::symlink_metadata(out).is_ok() {
        return Err(format!("{} exists: choose another file with --out", out.display()));
    }
    let probe = unfinished(out);
    let created = std::fs::File::create_new(&probe).and_then(|_| std::fs::remove_file(&probe));
    created.map_err(|error| format!("cannot create {}: {error}", out.display()))
}

/// An engine that is ready, for one picture of the operator.
async fn start_engine(
    named: &NamedEngine,
    data: &Path,
    limit: Duration,
) -> Result<(Arc<dyn Engine>, EngineInfo), Failure> {
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

/// Renders one picture: the outcome as JSON and as text.
async fn try_engine(
    args: &TryArgs,
    out: &Path,
    data: &Path,
    (width, height): (u32, u32),
    stages: &Stages,
) -> Result<(Value, String), Failure> {
    let named = args.engine.engine_named(&args.name)?;
    stages.begin(&format!("starting the engine {}", named.name));
    let (engine, info) = start_engine(&named, data, args.timeout).await?;
    stages.begin(&format!("rendering with {}", info.description));
    let (native_width, native_height) = info.sizes.nearest(width, height);
    let clock = Clock::system();
    let seconds = |begun: Duration| (clock.elapsed() - begun).as_secs_f64();
    let begun = clock.elapsed();
    let picture = one_picture(args, &engine, (native_width, native_height), stages).await?;
    let (render_seconds, rendered) = (seconds(begun), format!("{}x{}", picture.width(), picture.height()));
    let devices = engine.devices().await;
    let measured = engine.measured();
    let begun = clock.elapsed();
    let picture = picture.fit(width, height);
    let resize_seconds = seconds(begun);
    let begun = clock.elapsed();
    let png = picture.to_png();
    let encode_seconds = seconds(begun);
    save(out, &png).map_err(|error| format!("cannot write {}: {error}", out.display()))?;
    let (file, size, bytes) = (out.display(), format!("{width}x{height}"), png.len());
    let device = measured.as_ref().map_or_else(|| devices_text(&devices), measured_text);
    let text = format!(
        "{file}: {size}, {bytes} bytes\n  rendered as {rendered} in {render_seconds:.2} s, resized in {resize_seconds:.3} s, encoded in {encode_seconds:.3} s{device}"
    );
    let json = json!({
        "engine": named.name,
        "file": out.display().to_string(),
        "rendered": rendered,
        "size": size,
        "bytes": bytes,
        "render_seconds": render_seconds,
        "resize_seconds": resize_seconds,
        "encode_seconds": encode_seconds,
        "devices": devices_json(&devices),
        "measured": measured.as_ref().map(measured_json),
    });
    Ok((json, text))
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
        time_limit: args.timeout,
        ..Brief::default()
    };
    let progress = Progress::default();
    let rendering = engine.render(brief, progress.clone(), CancellationToken::new());
    let rendered = tokio::time::timeout(args.timeout, stages.follow(&progress, rendering)).await;
    let rendered = rendered.map_err(|_| format!("no image within {} s", args.timeout.as_secs()))??;
    Ok(rendered.into_iter().next().ok_or("the engine returned no image")?)
}
