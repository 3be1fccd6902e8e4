//! Waits for a task of a running server and saves its images, for `tintype generate` and `tintype get`.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::StatusCode;
use serde::{Serialize, Serializer};
use tintype_client::{Accepted, Client, ClientError, Finished, PlainHttp, Refusal, SetupError, TaskId, Waiting};
use url::Url;

use self::waiting::WaitingBar;
use super::printing::print_line;
use super::progress::draw_target;
use super::{complain, signals, terminal, without_keys};
use tintype_config::{ClientSettings, program};
use tintype_system::data_dir;

mod preview;
mod waiting;

/// The exit codes; [`EXIT_CODES`] explains them to users.
pub(super) mod exit {
    pub(in crate::cli) const SAVED: u8 = 0;
    pub(in crate::cli) const OTHER: u8 = 1;
    pub(in crate::cli) const USAGE: u8 = 2;
    pub(in crate::cli) const TASK_FAILED: u8 = 3;
    pub(in crate::cli) const KEY_REFUSED: u8 = 4;
    pub(in crate::cli) const NO_CREDITS: u8 = 5;
    pub(in crate::cli) const RATE_LIMITED: u8 = 6;
    pub(in crate::cli) const NOT_FINISHED: u8 = 7;
    pub(in crate::cli) const NO_ANSWER: u8 = 8;
    pub(in crate::cli) const NOT_SAVED: u8 = 9;
}

pub(super) const EXIT_CODES: &str = "\
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
  130  interrupted by Ctrl-C (143 by SIGTERM, 129 by SIGHUP); a task that was created continues";

const PROCESSING: Option<&str> = Some("processing");

const HOW_TO_GET_A_KEY: &str =
    "create one with `tintype key create --account NAME` on the server, and give it as --key or TINTYPE_KEY";

#[derive(Debug, Args)]
pub(super) struct FollowArgs {
    /// Directory to save the images in; - writes the one image of a task to standard output
    #[arg(long, default_value = ".", value_name = "DIR")]
    out: PathBuf,
    /// Open the images in the desktop's default viewer
    #[arg(long)]
    open: bool,
    /// Do not show images in the terminal
    #[arg(long)]
    no_preview: bool,
    /// Print one JSON object instead of paths
    #[arg(long)]
    pub(super) json: bool,
    /// Do not show progress
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    pub(super) server: ClientSettings,
}

#[derive(Debug)]
pub(super) struct Stop(pub(super) u8, pub(super) String);

/// The progress so far, which `--json` prints at the end.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    #[serde(skip)]
    pub(super) submitting: bool,
    task_id: Option<TaskId>,
    status: Option<&'static str>,
    files: Vec<String>,
    #[serde(serialize_with = "as_strings")]
    images: Vec<Url>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored_fields: Vec<String>,
    error: Option<String>,
}

fn as_strings<S: Serializer>(urls: &[Url], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(urls.iter().map(Url::as_str))
}

/// Runs a command that follows a task until it ends or is interrupted; prints the report and any error.
pub(super) async fn run(args: &FollowArgs, follow: impl AsyncFnOnce(&mut Report) -> Result<(), Stop>) -> ExitCode {
    let mut report = Report::default();
    let outcome = tokio::select! {
        outcome = follow(&mut report) => outcome,
        code = signals::interruption() => Err(Stop(code, report.interrupted(&args.server.url))),
    };
    let code = match outcome {
        Ok(()) => exit::SAVED,
        Err(Stop(code, message)) => {
            complain(&format!("tintype: {}", terminal::visible(&message)));
            report.error = Some(without_keys(&message));
            code
        }
    };
    if args.json {
        // A report is plain data, so it is always JSON.
        print_line(&terminal::visible_json(&serde_json::to_string_pretty(&report).unwrap_or_default()));
    }
    ExitCode::from(code)
}

/// Waits for a task and saves its images.
pub(super) async fn follow(
    client: &Client,
    task: Accepted,
    args: &FollowArgs,
    report: &mut Report,
) -> Result<(), Stop> {
    let task_id = task.task_id.clone();
    report.task_id = Some(task_id.clone());
    let bar = WaitingBar::new(draw_target(args.shows_progress()), &task);
    let finished = tokio::select! {
        finished = client.wait(task, |event| {
            if matches!(event, Waiting::Processing(_)) {
                report.status = PROCESSING;
            }
            bar.show_event(event);
        }) => finished,
        () = bar.advance() => unreachable!("the bar advances until it is dropped"),
    };
    drop(bar);
    if matches!(&finished, Err(ClientError::Refused(refusal)) if refusal.from_api && refusal.status == StatusCode::NOT_FOUND)
    {
        report.status = None;
    }
    let is_known = report.status.is_some();
    match finished.map_err(|error| not_finished(&error, &task_id, is_known, &args.server.url))? {
        Finished::Completed(images) => {
            (report.status, report.images) = (Some("completed"), images);
            save_all(client, &task_id, args, report).await
        }
        Finished::Failed(reason) => {
            report.status = Some("failed");
            Err(Stop(exit::TASK_FAILED, format!("task {task_id} failed: {reason}")))
        }
    }
}

pub(super) fn client(server: &ClientSettings) -> Result<Client, Stop> {
    let usage = |message: String| Stop(exit::USAGE, message);
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

fn prepare_directory(directory: &Path) -> Result<(), Stop> {
    data_dir::check_expanded(directory).map_err(|message| Stop(exit::OTHER, format!("--out: {message}")))?;
    let probe = directory.join(format!(".tintype-{}.part", std::process::id()));
    let created = fs::create_dir_all(directory).and_then(|()| File::create_new(&probe));
    created.and_then(|_| fs::remove_file(&probe)).map_err(|error| {
        Stop(exit::OTHER, format!("cannot save files in {}: {error}; choose another --out", directory.display()))
    })
}

/// Explains a failed submit: no task was created, or one may exist.
pub(super) fn not_submitted(error: &ClientError, url: &str) -> Stop {
    match error {
        error if let Some(message) = no_connection(error, url) => Stop(exit::OTHER, message),
        ClientError::Redirected(to) => {
            Stop(exit::OTHER, format!("{url} redirects to {to}: give the final address as --url"))
        }
        ClientError::Refused(refusal) => match refusal.status {
            StatusCode::UNAUTHORIZED if refusal.from_api => key_refused(url),
            StatusCode::PAYMENT_REQUIRED if refusal.from_api => {
                let advice = "on the server, `tintype credits grant ACCOUNT AMOUNT` adds credits to an account and \
                    `tintype key budget KEY N/PERIOD` changes the budget of a key";
                Stop(exit::NO_CREDITS, format!("not enough credits: {refusal} No task was created; {advice}"))
            }
            StatusCode::TOO_MANY_REQUESTS => {
                let wait = refusal.retry_after.map_or(60, |wait| wait.as_secs().max(1));
                let message = refusal.message.trim_end_matches('.');
                let advice = format!("No task was created; try again in {wait} s");
                Stop(exit::RATE_LIMITED, format!("too many requests: {message}. {advice}"))
            }
            StatusCode::NOT_FOUND => Stop(
                exit::OTHER,
                format!("there is no Tintype API at {url}: give a server's address without a path as --url"),
            ),
            // A proxy that waited too long for the rest of the request, or for the answer.
            StatusCode::REQUEST_TIMEOUT if !refusal.from_api => may_exist(error, url),
            status if status.is_client_error() && !refusal.from_api => Stop(exit::OTHER, refusal.to_string()),
            status if status.is_client_error() => Stop(exit::USAGE, format!("the server says: {refusal}")),
            _ if refusal.from_api => Stop(exit::OTHER, format!("no task was created: {}", for_support(refusal))),
            _ => may_exist(error, url),
        },
        _ => may_exist(error, url),
    }
}

/// The submit may have arrived, so only the user can decide to repeat it.
pub(super) fn may_exist(error: &dyn Display, url: &str) -> Stop {
    let look = look(&format!("{url}/api/v1/images/task"));
    Stop(exit::NO_ANSWER, format!("{error}: the task may exist and be charged, so check before you try again: {look}"))
}

/// Explains why the command stopped polling a task, which exists for certain if it `is_known`.
fn not_finished(error: &ClientError, task_id: &TaskId, is_known: bool, url: &str) -> Stop {
    let command = get_later(task_id, url);
    match error {
        ClientError::NotFinished => {
            let advice = format!("contact support with the task_id {task_id}");
            Stop(exit::NOT_FINISHED, format!("not finished after 10 minutes: {advice}"))
        }
        ClientError::Refused(refusal) if refusal.from_api && refusal.status == StatusCode::UNAUTHORIZED => {
            let Stop(code, message) = key_refused(url);
            let task = if is_known {
                format!(". Task {task_id} was accepted: get it later: {command}")
            } else {
                String::new()
            };
            Stop(code, format!("{message}{task}"))
        }
        ClientError::Certificate(_) | ClientError::NotTls => {
            Stop(exit::OTHER, no_connection(error, url).unwrap_or_else(|| error.to_string()))
        }
        ClientError::Unreachable(_) | ClientError::NothingThere | ClientError::NoAnswer(_) => {
            let task = if is_known { format!("task {task_id} continues; ") } else { String::new() };
            Stop(exit::NO_ANSWER, format!("{error}: {task}get it later: {command}"))
        }
        ClientError::Refused(refusal) if refusal.from_api && refusal.status == StatusCode::NOT_FOUND => {
            Stop(exit::OTHER, format!("{url} has no task {task_id} in this key's account"))
        }
        ClientError::Refused(refusal) => {
            let reason = for_support(refusal);
            Stop(exit::OTHER, format!("cannot follow task {task_id} ({reason}); get it later: {command}"))
        }
        _ => Stop(exit::OTHER, format!("cannot follow task {task_id} ({error}); get it later: {command}")),
    }
}

fn key_refused(url: &str) -> Stop {
    let why = match url.starts_with("http://") {
        true => "it is unknown there, expired, revoked, disabled or suspended, or the server takes keys by https only",
        false => "it is unknown there, expired, revoked, disabled or suspended",
    };
    Stop(
        exit::KEY_REFUSED,
        format!(
            "{url} rejected the key: {why}. `tintype key list` on the server shows its state; or {HOW_TO_GET_A_KEY}"
        ),
    )
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

fn get_later(task_id: &TaskId, url: &str) -> String {
    format!("{} get {task_id} --url {url}", program().display())
}

/// Explains why there was no connection; `None` for other errors. Nothing was sent.
fn no_connection(error: &ClientError, url: &str) -> Option<String> {
    match error {
        ClientError::NothingThere => {
            Some(format!("nothing listens at {url} (connection refused): is `tintype serve` running there?"))
        }
        ClientError::Certificate(cause) => {
            let advice = "if it is the right server, pass its certificate or its authority's as --ca FILE";
            Some(format!("the certificate of {url} is not accepted ({cause}): {advice}"))
        }
        ClientError::NotTls => {
            Some(format!("{url} does not speak HTTPS: use http://, with --insecure if it is another machine"))
        }
        ClientError::Unreachable(cause) => Some(format!("cannot connect to {url} ({cause})")),
        _ => None,
    }
}

/// Downloads and saves every image it can, and shows each at once; fails with the first error.
async fn save_all(client: &Client, task_id: &TaskId, args: &FollowArgs, report: &mut Report) -> Result<(), Stop> {
    if args.is_to_stdout() && report.images.len() > 1 {
        return Err(Stop(exit::NOT_SAVED, format!("--out - takes one image; {}", report.where_images_are())));
    }
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
        let downloaded = downloaded.await;
        bar.finish_and_clear();
        let saved = match downloaded {
            Ok(image) if args.is_to_stdout() => write_to_stdout(image).await,
            Ok(image) => args.save(&path, &image, &mut report.files),
            Err(error) => Err(format!("cannot download image {}: {error}", position + 1)),
        };
        failure = failure.or(saved.err());
    }
    match failure {
        None => Ok(()),
        Some(reason) => Err(Stop(exit::NOT_SAVED, format!("{reason}; {}", report.where_images_are()))),
    }
}

/// Writes on a separate thread, so that a slow reader doesn't prevent interrupting the command.
async fn write_to_stdout(image: impl AsRef<[u8]> + Send + 'static) -> Result<(), String> {
    let write = move || {
        let mut output = io::stdout().lock();
        output.write_all(image.as_ref()).and_then(|()| output.flush())
    };
    let written = tokio::task::spawn_blocking(write).await.map_err(io::Error::other).flatten();
    written.map_err(|error| format!("cannot write standard output: {error}"))
}

/// The path of a file until it is whole.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    path.with_added_extension(format!("{}.part", std::process::id()))
}

/// Writes a file atomically, and never over another.
pub(super) fn save(path: &Path, content: &[u8]) -> io::Result<()> {
    let unfinished = unfinished(path);
    let write = || {
        let mut file = File::create_new(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        // A rename replaces its target, so an empty file of our own reserves the name first.
        match File::create_new(path) {
            // An earlier run saved this image.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && fs::read(path)? == content => {
                return fs::remove_file(&unfinished);
            }
            claimed => claimed?,
        };
        fs::rename(&unfinished, path).inspect_err(|_| drop(fs::remove_file(path)))
    };
    write().inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

fn byte_bar(visible: bool, message: String) -> ProgressBar {
    let template = "{msg} {bar:30} {binary_bytes} of {binary_total_bytes}";
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    let bar = ProgressBar::with_draw_target(None, draw_target(visible)).with_style(style);
    bar.with_message(message)
}

impl FollowArgs {
    fn is_to_stdout(&self) -> bool {
        self.out == Path::new("-")
    }

    /// Checks that this many images can be saved, before anything is charged.
    pub(super) fn prepare(&self, images: i64) -> Result<(), Stop> {
        if !self.is_to_stdout() {
            return prepare_directory(&self.out);
        }
        let refused = |why: &str| Err(Stop(exit::USAGE, format!("--out - writes the image to standard output: {why}")));
        match () {
            () if images > 1 => refused("give a directory for several"),
            () if self.json => refused("leave out --json, which prints there too"),
            () if self.open => refused("leave out --open, which needs a file"),
            () if io::stdout().is_terminal() => refused("redirect it to a file, such as > image.png, or to a program"),
            () => Ok(()),
        }
    }

    fn shows_progress(&self) -> bool {
        !self.quiet && !self.json
    }

    fn save(&self, path: &Path, image: &[u8], files: &mut Vec<String>) -> Result<(), String> {
        save(path, image).map_err(|error| format!("cannot save {}: {error}", path.display()))?;
        self.present(path, image);
        files.push(path.to_string_lossy().into_owned());
        Ok(())
    }

    /// Prints the path of an image that was saved, and shows it.
    fn present(&self, path: &Path, image: &[u8]) {
        if !self.json {
            print_line(&path.display().to_string());
            if !self.no_preview && !self.quiet {
                preview::show(image);
            }
        }
        if self.open {
            preview::open(path);
        }
    }
}

impl Report {
    /// Notes that the server has accepted a task.
    pub(super) fn accept(&mut self, task: &Accepted) {
        self.status = PROCESSING;
        self.note_ignored(&task.ignored_fields);
    }

    /// Notes what the server ignored of a submit, and says so.
    fn note_ignored(&mut self, fields: &[String]) {
        if !fields.is_empty() {
            self.ignored_fields = fields.to_vec();
            complain(&terminal::visible(&format!("The server ignored: {}.", fields.join(", "))));
        }
    }

    fn interrupted(&self, url: &str) -> String {
        match &self.task_id {
            Some(id) if !self.images.is_empty() => {
                format!("interrupted; {}, and {} saves them", self.where_images_are(), get_later(id, url))
            }
            Some(id) if self.status.is_some() => {
                format!("interrupted; task {id} continues; to wait for it: {}", get_later(id, url))
            }
            Some(id) => format!("interrupted; to wait for task {id}: {}", get_later(id, url)),
            None if self.submitting => may_exist(&"interrupted", url).1,
            None => "interrupted; nothing was submitted".to_owned(),
        }
    }

    fn where_images_are(&self) -> String {
        let urls = self.images.iter().map(Url::as_str).collect::<Vec<_>>().join(" ");
        format!("the task is complete, its images are at {urls}")
    }
}
