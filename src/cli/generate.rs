//! `tintype generate`: submits a task to a running server, waits for it and saves its images.

use std::io::{self, Read as _};
use std::process::ExitCode;

use clap::Args;
use tintype_client::TaskRequest;

use super::following::{self, EXIT_CODES, FollowArgs, Report, Stop, exit};

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct GenerateArgs {
    /// Description of the images; - reads it from standard input
    prompt: String,
    /// Aspect ratio, such as 16:9 [default: 1:1]
    #[arg(long, value_name = "W:H")]
    aspect: Option<String>,
    /// Number of images, 1 to 4; each costs 2 credits [default: 1]
    #[arg(short, value_name = "N", allow_negative_numbers = true)]
    n: Option<i64>,
    /// URL of a reference image; may be repeated up to 4 times
    #[arg(long, value_name = "URL")]
    reference: Vec<String>,
    #[command(flatten)]
    follow: FollowArgs,
}

pub(super) async fn run(args: GenerateArgs) -> ExitCode {
    following::run(&args.follow, async |report| generate(&args, report).await).await
}

async fn generate(args: &GenerateArgs, report: &mut Report) -> Result<(), Stop> {
    let client = following::client(&args.follow.server)?;
    args.reference.iter().try_for_each(|reference| check_reference(reference))?;
    let request = TaskRequest {
        prompt: prompt(&args.prompt)?,
        aspect_ratio: args.aspect.clone(),
        n: args.n,
        reference_images: args.reference.clone(),
    };
    following::prepare_directory(&args.follow.out)
        .map_err(|Stop(code, sentence)| Stop(code, format!("{sentence}; nothing was submitted")))?;
    report.submitting = true;
    let url = &args.follow.server.url;
    let task = client.submit(&request).await.map_err(|error| following::not_submitted(&error, url))?;
    following::follow(&client, task, &args.follow, report).await
}

/// The server downloads references, so a file of this machine is out of its reach.
fn check_reference(reference: &str) -> Result<(), Stop> {
    if reference.contains("://") {
        return Ok(());
    }
    let sentence = format!(
        "--reference {reference}: the server takes no uploads, it downloads references itself. Put the image on a web \
         server that it can reach, and give the https URL. Nothing was submitted"
    );
    Err(Stop(exit::USAGE, sentence))
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
