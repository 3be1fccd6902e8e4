//! The log of a process: its format, its filter, and reports of dropped lines.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::str::FromStr as _;

use clap::{CommandFactory as _, FromArgMatches as _, ValueEnum};
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, reload};

use super::Cli;
use crate::traces::{self, Exporter};
use tintype_config::{SettingsError, terminal_has_colours};
use tintype_system::output::{self, Reason};

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

/// The log of this process, once it has started.
#[derive(Debug)]
pub(super) struct Logging {
    pub(super) format: LogFormat,
    pub(super) filter: Filter,
    pub(super) arguments: Vec<OsString>,
}

impl Logging {
    /// Applies the filter in the present settings, for example after a change of the config file.
    pub(super) fn reload_filter(&self) -> Result<(), String> {
        let read = tintype_config::read(Cli::command(), &self.arguments).map_err(|error| match error {
            SettingsError::Usage(error, _) => error.to_string().trim_end().to_owned(),
            SettingsError::File(message) => message,
        })?;
        let cli = Cli::from_arg_matches(&read.matches).map_err(|error| error.to_string())?;
        (self.filter.0)(filter(&cli.log)?)
    }
}

/// The filter in force, which can be replaced.
pub(super) struct Filter(Box<dyn Fn(Targets) -> Result<(), String> + Send + Sync>);

tintype_domain::opaque_debug!(Filter);

impl Filter {
    fn of<S: 'static>(handle: reload::Handle<Targets, S>) -> Self {
        Self(Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string())))
    }
}

/// Starts the log, and the traces for a collector if there is one.
pub(super) fn start(text: &str, format: LogFormat, otlp: Option<&str>) -> Result<(Option<Exporter>, Filter), String> {
    let log = tracing_subscriber::fmt::layer().with_writer(|| output::Log);
    let log = match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal() && terminal_has_colours()).boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    let started = match otlp {
        // One filter for all costs less than one for each layer.
        None => {
            let (filter, handle) = reload::Layer::new(filter(text)?);
            tracing_subscriber::registry().with(log).with(filter).init();
            (None, Filter::of(handle))
        }
        // A trace is whole at every level of the log.
        Some(url) => {
            let (filter, handle) = reload::Layer::new(filter(text)?);
            let (tracing, exporter) = traces::traces(url, tintype_config::collector_headers()?);
            let tracing = tracing.with_filter(filter_fn(traces::is_traced));
            tracing_subscriber::registry().with(log.with_filter(filter)).with(tracing).init();
            (Some(exporter), Filter::of(handle))
        }
    };
    // The default hook prints the panic message, which may quote a prompt; the log must not contain prompts.
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(location, "a thread panicked: report this location as a bug");
    }));
    Ok(started)
}

/// Targets whose lines hold prompts and secrets: the messages of callers, and the parameters of statements.
const SECRET_TARGETS: [&str; 2] = ["rmcp", "tokio_postgres::query"];

/// The filter that `--log` describes.
fn filter(text: &str) -> Result<Targets, String> {
    // The library would take a mistyped level for a target, and log nothing.
    let is_known = |part: &str| part.is_empty() || part.contains('=') || LevelFilter::from_str(part).is_ok();
    if let Some(part) = text.split(',').map(str::trim).find(|part| !is_known(part)) {
        return Err(format!(
            "--log {text:?}: {part:?} is not a level: write error, warn, info, debug, trace or off, or a target with one, \
             such as tintype=debug"
        ));
    }
    let names = |secret: &str| {
        let is_within =
            |target: &str| target.strip_prefix(secret).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
        text.split(',')
            .filter_map(|part| part.split_once('='))
            .any(|(target, level)| is_within(target.trim()) && !level.trim().eq_ignore_ascii_case("off"))
    };
    if let Some(secret) = SECRET_TARGETS.into_iter().find(|secret| names(secret)) {
        return Err(format!(
            "--log {text:?}: the lines of {secret} hold prompts and secrets, so they are never logged"
        ));
    }
    let whole = format!("rmcp=off,tokio_postgres::query=info,{text}");
    whole.parse::<Targets>().map_err(|error| format!("--log {text:?}: {error}"))
}

/// Reports that lines of the log were dropped.
pub(super) fn report_dropped(dropped: u64, reason: Reason) {
    match reason {
        Reason::Unread => {
            tracing::warn!(dropped, "log lines were dropped, because standard error was not read in time");
        }
        Reason::Unwritable(error) => {
            tracing::warn!(dropped, %error, "log lines were dropped, because standard error could not be written");
        }
    }
}
