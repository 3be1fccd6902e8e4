//! `tintype generate`: submits a task to a running server, waits for it and saves its images.

use std::fs::File;
use std::io::{self, Read as _};
use std::process::ExitCode;

use clap::Args;
use tintype_client::{Choices, Client, EditRequest, Reference, TaskRequest};

use super::following::{self, EXIT_CODES, FollowArgs, Report, Stop, exit};
use super::values::{RatioParser, finite, whole_number};
use tintype_config::MAX_UPLOAD;
use tintype_domain::request::AspectRatio;
use tintype_engine::MAX_SEED;

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct GenerateArgs {
    /// Description of the images; - reads it from standard input
    prompt: String,
    /// Aspect ratio, such as 16:9 [default: 1:1]
    #[arg(long, value_name = "W:H", value_parser = RatioParser)]
    aspect: Option<String>,
    /// Number of images, 1 to 4; each costs 2 credits [default: 1]
    #[arg(short, aliases = ["count", "n"], value_name = "N", value_parser = count)]
    n: Option<i64>,
    /// URL or file of a reference image; may be repeated up to 4 times
    #[arg(long, value_name = "URL|FILE")]
    reference: Vec<String>,
    /// Preset of the server
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Seed of the first image; the same seed gives the same image [default: a new one]
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(0..=i64::from(MAX_SEED)))]
    seed: Option<u32>,
    /// What the images should not show
    #[arg(long, value_name = "WORDS")]
    negative_prompt: Option<String>,
    /// Steps from noise to image
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1..=i64::from(u32::MAX)))]
    steps: Option<u32>,
    /// How strongly the images follow the prompt
    #[arg(long, value_name = "X", value_parser = finite)]
    guidance_scale: Option<f64>,
    /// How far the images may be from a reference image, from 0 to 1
    #[arg(long, value_name = "X", value_parser = finite)]
    strength: Option<f64>,
    #[command(flatten)]
    follow: FollowArgs,
}

/// The server says how many images a task may have.
fn count(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "must be a whole number".to_owned())
}

pub(super) async fn run(args: GenerateArgs) -> ExitCode {
    following::run(&args.follow, async |report| generate(&args, report).await).await
}

async fn generate(args: &GenerateArgs, report: &mut Report) -> Result<(), Stop> {
    let client = following::client(&args.follow.server)?;
    let references = args.reference.iter().map(|text| reference(text)).collect::<Result<Vec<_>, _>>()?;
    let prompt = prompt(&args.prompt)?;
    args.follow
        .prepare(args.n.unwrap_or(1))
        .map_err(|Stop(code, message)| Stop(code, format!("{message}; nothing was submitted")))?;
    let choices = Choices {
        preset: args.preset.clone(),
        seed: args.seed,
        negative_prompt: args.negative_prompt.clone(),
        steps: args.steps,
        guidance_scale: args.guidance_scale,
        strength: args.strength,
    };
    if let Some(preset) = &choices.preset {
        check_preset(&client, preset, &args.follow.server.url).await?;
    }
    let has_files = references.iter().any(|reference| matches!(reference, Reference::File(_)));
    let task = if has_files || !choices.is_empty() {
        if let Some(ratio) = &args.aspect {
            ratio.parse::<AspectRatio>().map_err(|fault| Stop(exit::USAGE, fault.to_string()))?;
        }
        report.submitting = true;
        let aspect_ratio = args.aspect.clone();
        client.submit_edit(&EditRequest { prompt, aspect_ratio, n: args.n, references, choices }).await
    } else {
        let (aspect_ratio, reference_images) = (args.aspect.clone(), args.reference.clone());
        report.submitting = true;
        client.submit(&TaskRequest { prompt, aspect_ratio, n: args.n, reference_images }).await
    };
    let task = task.map_err(|error| following::not_submitted(&error, &args.follow.server.url))?;
    report.accept(&task);
    following::follow(&client, task, &args.follow, report).await
}

/// Rejects a preset that the server does not have: it would render with the usual settings, and charge for that.
async fn check_preset(client: &Client, preset: &str, url: &str) -> Result<(), Stop> {
    let known = client.presets().await.map_err(|error| following::not_submitted(&error, url))?;
    if known.iter().any(|name| name == preset) {
        return Ok(());
    }
    let known = match known.as_slice() {
        [] => "has no presets: leave --preset out".to_owned(),
        known => format!("has no preset {preset:?}; it has {}", known.join(", ")),
    };
    Err(Stop(exit::USAGE, format!("{url} {known}. Nothing was submitted")))
}

/// A URL, or else a file of this machine.
fn reference(text: &str) -> Result<Reference, Stop> {
    if text.contains("://") {
        return Ok(Reference::Url(text.to_owned()));
    }
    let refused = |fault: &str| Stop(exit::USAGE, format!("--reference {text}: {fault}. Nothing was submitted"));
    let file = File::open(text).map_err(|error| refused(&error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(MAX_UPLOAD + 1).read_to_end(&mut bytes).map_err(|error| refused(&error.to_string()))?;
    if bytes.len() as u64 > MAX_UPLOAD {
        return Err(refused("the file has more than 20 MiB"));
    }
    if bytes.is_empty() {
        return Err(refused("the file is empty"));
    }
    Ok(Reference::File(bytes))
}

fn prompt(argument: &str) -> Result<String, Stop> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    let read = io::stdin().read_to_string(&mut text);
    read.map_err(|error| Stop(exit::USAGE, format!("cannot read the prompt from standard input: {error}")))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
