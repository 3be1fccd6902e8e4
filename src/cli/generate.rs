//! `tintype generate`: submits a task to a running server, waits for it and saves its images.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::StatusCode;
use serde::{Serialize, Serializer};
use tintype_client::{Client, ClientError, Finished, PlainHttp, Refusal, SetupError, TaskId, TaskRequest};
use url::Url;

use crate::config::ClientSettings;

/// The exit codes; [`EXIT_CODES`] explains them to users.
mod exit {
    pub(super) const SAVED: u8 = 0;
    pub(super) const OTHER: u8 = 1;
    pub(super) const USAGE: u8 = 2;
    pub(super) const TASK_FAILED: u8 = 3;
    pub(super) const KEY_REFUSED: u8 = 4;
    pub(super) const NO_CREDITS: u8 = 5;
    pub(super) const RATE_LIMITED: u8 = 6;
    pub(super) const NOT_FINISHED: u8 = 7;
    pub(super) const NO_ANSWER: u8 = 8;
    pub(super) const NOT_SAVED: u8 = 9;
    /// The code that shells report for a process that ended by Ctrl-C.
    pub(super) const INTERRUPTED: u8 = 130;
}

const EXIT_CODES: &str = "\
Exit codes:
  0    the images are saved
  1    any other error
  2    the arguments are invalid, or the server rejected the request
  3    the task failed; its credits were refunded
  4    the key was not accepted
  5    not enough credits
  6    too many requests; no task was created
  7    not finished after 10 minutes
  8    no answer from the server; the task may exist and be charged
  9    the task is complete, and its images could not be saved
  130  interrupted; a task that was created continues";

const HOW_TO_GET_A_KEY: &str =
    "create one with `tintype key create --account NAME` on the server, and give it as --key or TINTYPE_KEY";

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
    /// Directory to save the images in
    #[arg(long, default_value = ".", value_name = "DIR")]
    out: PathBuf,
    /// Print one JSON object instead of paths
    #[arg(long)]
    json: bool,
    /// Do not show progress
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    server: ClientSettings,
}

/// A failure: the exit code and a sentence.
#[derive(Debug)]
struct Stop(u8, String);

/// The progress so far, which `--json` prints at the end.
#[derive(Debug, Default, Serialize)]
struct Report {
    #[serde(skip)]
    submitting: bool,
    task_id: Option<TaskId>,
    status: Option<&'static str>,
    files: Vec<String>,
    #[serde(serialize_with = "as_strings")]
    images: Vec<Url>,
    error: Option<String>,
}

fn as_strings<S: Serializer>(urls: &[Url], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(urls.iter().map(Url::as_str))
}

/// Runs the command; prints the report and any error.
pub(super) async fn run(args: GenerateArgs) -> ExitCode {
    let mut report = Report::default();
    let outcome = tokio::select! {
        outcome = generate(&args, &mut report) => outcome,
        Ok(()) = tokio::signal::ctrl_c() => Err(report.interrupted(&args.server.url)),
    };
    let code = match outcome {
        Ok(()) => exit::SAVED,
        Err(Stop(code, sentence)) => {
            eprintln!("tintype: {sentence}");
            report.error = Some(sentence);
            code
        }
    };
    // An error here means that standard output was closed early, which is no failure of ours.
    let _ = report.print(args.json);
    ExitCode::from(code)
}

async fn generate(args: &GenerateArgs, report: &mut Report) -> Result<(), Stop> {
    let client = client(args)?;
    let request = TaskRequest {
        prompt: prompt(&args.prompt)?,
        aspect_ratio: args.aspect.clone(),
        n: args.n,
        reference_images: args.reference.clone(),
    };
    prepare_directory(&args.out)?;

    let spinner = spinner(args.shows_progress());
    report.submitting = true;
    let task = client.submit(&request).await.map_err(|error| not_submitted(&error, args))?;
    let task_id = task.task_id.clone();
    (report.task_id, report.status) = (Some(task_id.clone()), Some("processing"));
    spinner.set_message(format!("{task_id}: processing"));
    let on_retry = |error: &ClientError, wait: Duration| {
        let seconds = wait.as_secs_f64();
        spinner.println(format!("{task_id}: {error}; trying again in {seconds:.0} s"));
    };
    let finished =
        client.wait(task, on_retry).await.map_err(|error| not_finished(&error, &task_id, &args.server.url))?;
    spinner.finish_and_clear();
    match finished {
        Finished::Completed(images) => {
            (report.status, report.images) = (Some("completed"), images);
            save_all(&client, &task_id, args, report).await
        }
        Finished::Failed(reason) => {
            report.status = Some("failed");
            Err(Stop(exit::TASK_FAILED, format!("task {task_id} failed: {reason}")))
        }
    }
}

fn client(args: &GenerateArgs) -> Result<Client, Stop> {
    let usage = |sentence: String| Stop(exit::USAGE, sentence);
    let server = &args.server;
    let Some(key) = server.key().map_err(usage)? else {
        return Err(usage(format!("an API key is needed: {HOW_TO_GET_A_KEY}")));
    };
    let plain_http = if server.insecure { PlainHttp::Anywhere } else { PlainHttp::LoopbackOnly };
    let unusable = |error: &dyn Display| {
        usage(format!("cannot use {}: {error}", server.ca.as_deref().unwrap_or(Path::new("--ca")).display()))
    };
    let authorities = server.ca.as_deref().map(fs::read).transpose().map_err(|error| unusable(&error))?;
    Client::new(&server.url, &key, plain_http, authorities.as_deref()).map_err(|error| match error {
        SetupError::Authority => unusable(&error),
        SetupError::Key => usage(format!("{error}: {HOW_TO_GET_A_KEY}")),
        SetupError::PlainHttp(_) => usage(format!("{error}: use an https URL, or --insecure if you trust the network")),
        SetupError::Url => usage(error.to_string()),
        SetupError::Tls(_) | SetupError::Http(_) => Stop(exit::OTHER, error.to_string()),
    })
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

/// Checks that files can be saved, before anything is charged.
fn prepare_directory(directory: &Path) -> Result<(), Stop> {
    let probe = directory.join(format!(".tintype-{}.part", std::process::id()));
    let created = fs::create_dir_all(directory).and_then(|()| File::create_new(&probe));
    created.and_then(|_| fs::remove_file(&probe)).map_err(|error| {
        let advice = "nothing was submitted, choose another --out";
        Stop(exit::OTHER, format!("cannot save files in {}: {error}; {advice}", directory.display()))
    })
}

/// Explains a failed submit: no task was created, or one may exist.
fn not_submitted(error: &ClientError, args: &GenerateArgs) -> Stop {
    let url = &args.server.url;
    match error {
        ClientError::Unreachable(cause) => {
            Stop(exit::OTHER, format!("cannot connect to {url} ({cause}): is `tintype serve` running there?"))
        }
        ClientError::Redirected(to) => {
            Stop(exit::OTHER, format!("{url} redirects to {to}: give the final address as --url"))
        }
        ClientError::Refused(refusal) => match refusal.status {
            StatusCode::UNAUTHORIZED => key_refused(url),
            StatusCode::PAYMENT_REQUIRED => {
                let advice = "add some with `tintype credits grant ACCOUNT AMOUNT` on the server";
                Stop(exit::NO_CREDITS, format!("not enough credits: {advice}. The server says: {refusal}"))
            }
            StatusCode::TOO_MANY_REQUESTS => {
                let wait = refusal.retry_after.map_or(60, |wait| wait.as_secs().max(1));
                let advice = format!("no task was created, try again in {wait} s");
                Stop(exit::RATE_LIMITED, format!("too many requests: {advice}. The server says: {refusal}"))
            }
            StatusCode::NOT_FOUND => {
                Stop(exit::OTHER, format!("there is no Tintype API at {url}: give the address of one as --url"))
            }
            status if status.is_client_error() => Stop(exit::USAGE, format!("the server says: {refusal}")),
            _ if refusal.from_api => Stop(exit::OTHER, format!("no task was created: {}", for_support(refusal))),
            _ => may_exist(error, url),
        },
        _ => may_exist(error, url),
    }
}

/// The submit may have arrived, so only the user can decide to repeat it.
fn may_exist(error: &dyn Display, url: &str) -> Stop {
    let look = look(&format!("{url}/api/v1/images/task"));
    Stop(exit::NO_ANSWER, format!("{error}: the task may exist and be charged, so check before you try again: {look}"))
}

/// Explains why the command stopped polling a task that exists.
fn not_finished(error: &ClientError, task_id: &TaskId, url: &str) -> Stop {
    let look = look(&format!("{url}/api/v1/images/task/{task_id}"));
    match error {
        ClientError::NotFinished => {
            let advice = format!("contact support with the task_id {task_id}");
            Stop(exit::NOT_FINISHED, format!("not finished after 10 minutes: {advice}"))
        }
        ClientError::Refused(refusal) if refusal.status == StatusCode::UNAUTHORIZED => {
            let Stop(code, sentence) = key_refused(url);
            Stop(code, format!("{sentence}; task {task_id} continues"))
        }
        ClientError::Unreachable(_) | ClientError::NoAnswer(_) => {
            Stop(exit::NO_ANSWER, format!("{error}: task {task_id} continues; check it later: {look}"))
        }
        ClientError::Refused(refusal) => {
            let reason = for_support(refusal);
            Stop(exit::OTHER, format!("cannot follow task {task_id} ({reason}); check it later: {look}"))
        }
        _ => Stop(exit::OTHER, format!("cannot follow task {task_id} ({error}); check it later: {look}")),
    }
}

fn key_refused(url: &str) -> Stop {
    Stop(exit::KEY_REFUSED, format!("{url} does not accept the key: {HOW_TO_GET_A_KEY}"))
}

fn for_support(refusal: &Refusal) -> String {
    match &refusal.request_id {
        Some(id) => format!("{refusal} (request id {id})"),
        None => refusal.to_string(),
    }
}

/// A command that shows a resource. The key stays a variable: this line may end up in a log.
fn look(url: &str) -> String {
    format!("curl -H \"Authorization: Bearer $TINTYPE_KEY\" {url}")
}

/// Downloads and saves every image it can; fails with the first error.
async fn save_all(client: &Client, task_id: &TaskId, args: &GenerateArgs, report: &mut Report) -> Result<(), Stop> {
    let mut failure = None;
    for (position, url) in report.images.iter().enumerate() {
        let path = args.out.join(format!("{task_id}-{}.png", position + 1));
        let bar = byte_bar(args.shows_progress(), format!("image {} of {}", position + 1, report.images.len()));
        let downloaded = client.download(url, |bytes, total| {
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(bytes);
        });
        let saved = match downloaded.await {
            Ok(image) => save(&path, &image).map_err(|error| format!("cannot save {}: {error}", path.display())),
            Err(error) => Err(format!("cannot download image {}: {error}", position + 1)),
        };
        match saved {
            Ok(()) => report.files.push(path.to_string_lossy().into_owned()),
            Err(reason) => failure = failure.or(Some(reason)),
        }
    }
    match failure {
        None => Ok(()),
        Some(reason) => Err(Stop(exit::NOT_SAVED, format!("{reason}; {}", report.where_images_are()))),
    }
}

/// Writes a file atomically, and never over another.
fn save(path: &Path, content: &[u8]) -> io::Result<()> {
    let unfinished = path.with_added_extension(format!("{}.part", std::process::id()));
    let write = || {
        let mut file = File::create_new(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        // A rename replaces its target, so an empty file of ours claims the name first.
        File::create_new(path)?;
        fs::rename(&unfinished, path).inspect_err(|_| drop(fs::remove_file(path)))
    };
    write().inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

fn spinner(visible: bool) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("the template is well-formed");
    let spinner = ProgressBar::with_draw_target(None, draw_target(visible)).with_style(style);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner.with_message("submitting")
}

fn byte_bar(visible: bool, message: String) -> ProgressBar {
    let template = "{msg} {bar:30} {binary_bytes} of {binary_total_bytes}";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    let bar = ProgressBar::with_draw_target(None, draw_target(visible)).with_style(style);
    bar.with_message(message)
}

/// Standard error shows progress only when it is a terminal.
fn draw_target(visible: bool) -> ProgressDrawTarget {
    if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

impl GenerateArgs {
    fn shows_progress(&self) -> bool {
        !self.quiet && !self.json
    }
}

impl Report {
    /// The message after Ctrl-C.
    fn interrupted(&self, url: &str) -> Stop {
        let sentence = match &self.task_id {
            Some(_) if !self.images.is_empty() => format!("interrupted; {}", self.where_images_are()),
            Some(id) => {
                format!("interrupted; task {id} continues: {}", look(&format!("{url}/api/v1/images/task/{id}")))
            }
            None if self.submitting => may_exist(&"interrupted", url).1,
            None => "interrupted; nothing was submitted".to_owned(),
        };
        Stop(exit::INTERRUPTED, sentence)
    }

    fn where_images_are(&self) -> String {
        let urls = self.images.iter().map(Url::as_str).collect::<Vec<_>>().join(" ");
        format!("the task is complete, its images are at {urls}")
    }

    fn print(&self, json: bool) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        if json {
            writeln!(stdout, "{}", serde_json::to_string_pretty(self)?)
        } else {
            self.files.iter().try_for_each(|path| writeln!(stdout, "{path}"))
        }
    }
}
