//! The command line, with one file per noun.

use std::ffi::OsString;
use std::fmt::Display;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::{io, thread};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use console::{Alignment, measure_text_width, pad_str};
use serde_json::json;

use self::logging::{LogFormat, Logging};
use self::printing::{print_line, say, show};
use crate::files::Files;
use crate::traces::Exporter;
use tintype_config::{CommandLine, DataSettings, DatabaseUrl, FileBackend, ServerSettings, SettingsError};
use tintype_domain::key::KeySecret;
use tintype_domain::model::Account;
use tintype_engines::{diffusion, supervisor};
use tintype_store::postgres;
use tintype_store::sqlite::{self, restoring};
use tintype_store::{Actor, Drift, Store, Via};
use tintype_system::clock::Clock;
use tintype_system::data_dir;
use tintype_system::fault::Faults;
use tintype_system::output;
use tintype_system::owner;
use tintype_system::sandbox;

mod account;
mod allocator;
mod backup;
mod completions;
mod configuration;
mod credits;
mod doctor;
mod engine;
mod files;
mod following;
mod generate;
mod get;
mod health;
mod help;
mod key;
mod logging;
mod mcp;
mod migrate;
mod model;
mod owners;
mod person;
mod policy;
mod preset;
mod printing;
mod privileges;
mod progress;
mod queue;
mod restore;
mod serve;
mod signals;
mod systemd;
mod task;
mod terminal;
mod usage;
mod values;
mod webhook;

/// Self-hosted service that turns prompts into images, with API keys and credits
#[derive(Debug, Parser)]
#[command(name = "tintype", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    /// Log filter, such as info, debug or tintype=trace
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        env = "TINTYPE_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
    /// Format of the log, which goes to standard error
    #[arg(long, global = true, help_heading = "Global options", env = "TINTYPE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// File with settings, in TOML under the names of their flags [default: tintype.toml in the data directory]
    #[arg(long, global = true, help_heading = "Global options", env = "TINTYPE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    data: DataSettings,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the API, a worker and the file host in one process
    Serve(ServerSettings),
    /// Run the API and the file host without a worker
    Api(ServerSettings),
    /// Run a worker without the API
    Worker(ServerSettings),
    /// Create, list, disable and delete accounts
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Add, list and remove the people who use the studio
    #[command(subcommand)]
    Person(person::PersonCommand),
    /// Create, list, disable and rotate API keys
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Grant, take, show and audit credits
    #[command(subcommand)]
    Credits(credits::CreditsCommand),
    /// Sum up the credits spent by account, key, person or day
    Usage(usage::UsageArgs),
    /// Add, list, test, rotate and disable webhook endpoints, and show their deliveries
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// List, show and fail tasks
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Pause and resume the task queue
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Move the result files to another store
    #[command(subcommand)]
    Files(files::FilesCommand),
    /// Test a content policy and hash images for its block list
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Show, check and try the engine that renders
    #[command(subcommand)]
    Engine(engine::EngineCommand),
    /// Fetch, list, verify and remove the models of the diffusion engine
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// List the presets of the config file
    #[command(subcommand)]
    Preset(preset::PresetCommand),
    /// Turn a prompt into images through a running server
    Generate(generate::GenerateArgs),
    /// Wait for a task of a running server and save its images
    Get(get::GetArgs),
    /// Connect an agent to a running server (Model Context Protocol over stdin and stdout)
    Mcp(mcp::McpArgs),
    /// Back up the database and the result files of a running or stopped server
    Backup(backup::BackupArgs),
    /// Create an installation from a backup
    Restore(restore::RestoreArgs),
    /// Move an installation from SQLite to PostgreSQL
    Migrate(migrate::MigrateArgs),
    /// Show the settings and where each comes from
    #[command(subcommand)]
    Config(configuration::ConfigCommand),
    /// Check that this machine and its data can run a server
    Doctor(doctor::DoctorArgs),
    /// Ask a server on this machine whether it works
    Health(health::HealthArgs),
    /// Print the version of this program
    Version(printing::JsonArgs),
    /// Print the OpenAPI description of the API
    Openapi {
        /// Accepted for consistency; the output is always JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
    /// Write the manual pages of all commands into a directory
    #[command(hide = true)]
    Man(completions::ManArgs),
    /// Decode one picture from standard input; the server runs this in a child process
    #[command(hide = true, name = sandbox::COMMAND)]
    DecodePicture {
        /// Longest side of the decoded picture, in pixels
        side: String,
    },
}

impl Command {
    fn otlp(&self) -> Option<&str> {
        match self {
            Self::Serve(server) | Self::Api(server) | Self::Worker(server) => server.otlp.as_deref(),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Failure(String);

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Runs the command that the process arguments name.
pub fn main() -> ExitCode {
    // A program that restarts itself through /proc is called `exe` in lists of processes.
    _ = rustix::thread::set_name(c"tintype");
    let arguments = tintype_config::arguments();
    if arguments.get(1).is_some_and(|argument| argument == sandbox::COMMAND) {
        // A decoder process must confine itself before this program opens or starts anything else.
        let is_mask = arguments.get(3).is_some_and(|argument| argument == sandbox::AS_MASK);
        return sandbox::main(arguments.get(2).and_then(|side| side.to_str()), is_mask);
    }
    if arguments.get(1).is_some_and(|argument| argument == supervisor::COMMAND) {
        return supervisor::main(arguments.get(2..).unwrap_or_default());
    }
    if arguments.get(1).is_some_and(|argument| argument == diffusion::COMMAND) {
        // The child of the diffusion engine confines itself too.
        return diffusion::main(arguments.get(2..).unwrap_or_default());
    }
    let without_allocator = allocator::set_up(&arguments);
    let read = on_large_stack(|| read(&arguments)).unwrap_or_else(|message| {
        complain(&format!("tintype: {message}"));
        Err(ExitCode::FAILURE)
    });
    let (read, cli) = match read {
        Ok(read) => read,
        Err(code) => return code,
    };
    if let Command::DecodePicture { side } = cli.command {
        return sandbox::main(Some(&side), false);
    }
    let needs = read.needs;
    let (exporter, filter) = match logging::start(&cli.log, cli.log_format, cli.command.otlp()) {
        Ok(started) => started,
        Err(error) => {
            complain(&format!("tintype: {error}"));
            return ExitCode::from(2);
        }
    };
    let is_server = needs.is_server();
    if is_server {
        if let Some(error) = without_allocator {
            tracing::warn!(%error, "could not set up the allocator; this server will keep more memory than it needs");
        }
        read.unknown_variables.iter().for_each(|message| tracing::warn!("{}", without_keys(message)));
    } else if matches!(cli.command, Command::Config { .. } | Command::Doctor(_)) {
        read.unknown_variables.iter().for_each(|message| complain(&format!("tintype: {message}")));
    }
    let _flushing = output::Flushing;
    let logging = Logging { format: cli.log_format, filter, arguments };
    let mut data = DataSettings { operator: owner::caller(), ..cli.data };
    let mut command = cli.command;
    let outcome = privileges::become_owner(needs, &mut command, &mut data)
        // From here on this process may have threads.
        .and_then(|()| match is_server {
            true => serve::check_machine().and_then(|()| Ok(output::open(logging::report_dropped)?)),
            false => Ok(signals::end_on_signals_as_init(needs.heeds_interrupts)?),
        })
        .and_then(|()| on_large_stack(|| run(command, &data, &read, logging, exporter))?);
    match outcome {
        Ok(code) => printing::exit_code(code),
        Err(Failure(message)) => {
            match cli.log_format {
                LogFormat::Json if is_server => tracing::error!("{}", without_keys(&message)),
                _ => complain(&format!("tintype: {}", terminal::visible(&message))),
            }
            ExitCode::FAILURE
        }
    }
}

/// Reads the settings and the command. An error is the exit code of a process that has said why.
fn read(arguments: &[OsString]) -> Result<(CommandLine, Cli), ExitCode> {
    let read = tintype_config::read(help::without_global_options(Cli::command()), arguments);
    let read = read.map_err(|error| explain(error, arguments))?;
    let cli = Cli::from_arg_matches(&read.matches).unwrap_or_else(|error| error.exit());
    // The parser of the flag does not check the URL, because its error would repeat it with its password.
    let database = cli.data.database.as_deref().filter(|_| read.needs.database);
    if let Some(fault) = database.and_then(|url| url.parse::<DatabaseUrl>().err()) {
        complain(&format!("tintype: --database: {fault}"));
        return Err(ExitCode::from(2));
    }
    if let Some(unread) = &read.adopted.unread {
        complain(&format!("tintype: {unread}, so this command uses its own settings"));
    }
    if let Some(origin) = read.adopted.origin.as_ref().filter(|_| read.adopted.other_database && read.needs.database) {
        complain(&format!(
            "tintype: TINTYPE_DATABASE is ignored: this command uses {origin} database. Use --database to name another one"
        ));
    }
    if let Some(fault) = &read.adopted.unused_file {
        complain(&format!("tintype: {fault}; ignoring the file"));
    }
    Ok((read, cli))
}

/// Runs some work on a thread with a stack as large as a main thread's usually is. `ulimit -s` may have made that
/// smaller than the settings parser needs.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    const BYTES: usize = 8 << 20;
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("tintype".into()).stack_size(BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Prints the reason why the settings cannot be used, or the help that was asked for.
fn explain(error: SettingsError, arguments: &[OsString]) -> ExitCode {
    match error {
        SettingsError::File(message) => {
            complain(&format!("tintype: {message}"));
            ExitCode::from(2)
        }
        SettingsError::Usage(error, notes) => {
            let error = with_own_flag(without_credentials(error), arguments);
            let text = error.render().to_string();
            let printed = match KeySecret::find_shape(&text) {
                Some(_) if error.use_stderr() => {
                    complain(text.trim_end());
                    Ok(())
                }
                Some(_) => output::print(&without_keys(&text)),
                None => error.print(),
            };
            let unknown = unknown_argument(&error).unwrap_or_default();
            let takes_prompt = || arguments.iter().any(|argument| argument == "generate" || argument == "try");
            let begins = |argument: &OsString, word: &str| argument.to_string_lossy().starts_with(word);
            let follows_flag = || arguments.windows(2).any(|pair| begins(&pair[0], "--") && begins(&pair[1], unknown));
            match unknown.strip_prefix('-') {
                Some(rest) if rest.starts_with(|first: char| first.is_ascii_digit()) && follows_flag() => {
                    complain("note: the value of a flag cannot be negative");
                }
                None if !unknown.is_empty() && takes_prompt() => {
                    complain("note: a prompt of several words needs quotes, such as \"a red fox\"");
                }
                _ => {}
            }
            notes.iter().for_each(|note| complain(&format!("note: {note}")));
            match (error.exit_code(), printed) {
                (0, Err(_)) => ExitCode::FAILURE,
                (code, _) => ExitCode::from(u8::try_from(code).unwrap_or(2)),
            }
        }
    }
}

/// The error without what comes before the host of a URL, which may be a password.
fn without_credentials(mut error: clap::Error) -> clap::Error {
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(value)) = error.get(kind)
            && let Some((_, host)) = value.rsplit_once('@')
        {
            let shown = ContextValue::String(format!("********@{host}"));
            error.insert(kind, shown);
        }
    }
    error
}

/// Prints a line on standard error, without API keys.
fn complain(line: &str) {
    output::complain(&without_keys(line));
}

/// A text without the API keys that someone gave in place of a name, an id or a file.
fn without_keys(text: &str) -> String {
    let mut shown = text.to_owned();
    while let Some(key) = KeySecret::find_shape(&shown) {
        shown = shown.replace(key, "tt_********");
    }
    shown
}

/// What commands take in place of flags that other programs have.
const FOREIGN_FLAGS: [(&[&str], &[&str], &str); 3] = [
    (&tintype_config::SERVERS, &["--port", "--host", "--bind"], "--listen HOST:PORT"),
    (&["generate"], &["--size", "--width", "--height"], "--aspect W:H"),
    (&["generate"], &["--prompt"], "<PROMPT>"),
];

/// The error with what does the same where someone tries a flag of other programs: a port is most like `--production`.
fn with_own_flag(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let flag = unknown_argument(&error).unwrap_or_default().to_owned();
    let is_of = |commands: &[&str]| arguments.iter().any(|argument| commands.iter().any(|command| argument == command));
    let known = FOREIGN_FLAGS.iter().find(|(commands, flags, _)| flags.contains(&&*flag) && is_of(commands));
    if let Some((_, _, ours)) = known {
        error.remove(ContextKind::Usage);
        error.remove(ContextKind::Suggested);
        error.insert(ContextKind::SuggestedArg, ContextValue::String((*ours).into()));
    }
    error
}

/// The argument that no flag and no place takes, if that is the error.
fn unknown_argument(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) if error.kind() == ErrorKind::UnknownArgument => Some(argument),
        _ => None,
    }
}

fn run(
    command: Command,
    data: &DataSettings,
    read: &CommandLine,
    logging: Logging,
    exporter: Option<Exporter>,
) -> Outcome {
    let mut runtime = if read.needs.is_server() {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = runtime.enable_all().build()?;
    let sending = exporter.map(|exporter| exporter.start(runtime.handle())).transpose()?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve(server) => serve::run(server, data, serve::Role::Everything, &read.in_force, logging).await,
            Command::Api(server) => serve::run(server, data, serve::Role::Api, &read.in_force, logging).await,
            Command::Worker(server) => serve::run(server, data, serve::Role::Worker, &read.in_force, logging).await,
            Command::Account(command) => account::run(command, data).await,
            Command::Person(command) => person::run(command, &open_store(data).await?).await,
            Command::Key(command) => key::run(command, &*open_store(data).await?).await,
            Command::Credits(command) => credits::run(command, data).await,
            Command::Usage(args) => usage::run(args, data).await,
            Command::Webhook(command) => webhook::run(command, data, &read.adopted).await,
            Command::Task(command) => task::run(command, &open_store(data).await?).await,
            Command::Queue(command) => queue::run(command, &*open_store(data).await?).await,
            Command::Files(command) => files::run(command, data).await,
            Command::Policy(command) => policy::run(command),
            Command::Engine(command) => engine::run(command, &data.data).await,
            Command::Model(command) => model::run(command, data).await,
            Command::Preset(command) => preset::run(command),
            Command::Generate(args) => Ok(generate::run(args).await),
            Command::Get(args) => Ok(get::run(args).await),
            Command::Mcp(args) => Ok(mcp::run(args).await),
            Command::Completions(args) => completions::print(args, Cli::command()),
            Command::Man(args) => completions::write_manual(args, Cli::command()),
            Command::Backup(args) => backup::run(args, data).await,
            Command::Restore(args) => restore::run(args, data).await,
            Command::Migrate(args) => migrate::run(args, data).await,
            Command::Config(command) => configuration::run(command, &read.settings),
            Command::Doctor(args) => doctor::run(args, data, &read.adopted).await,
            Command::Health(args) => health::run(args, data).await,
            Command::Version(args) => {
                let version = env!("CARGO_PKG_VERSION");
                show(args, &json!({ "version": version }), || format!("tintype {version}"))
            }
            Command::DecodePicture { .. } => unreachable!("main() runs this command without a runtime"),
            Command::Openapi { .. } => {
                print_line(&crate::http::docs::openapi_json());
                Ok(ExitCode::SUCCESS)
            }
        }
    });
    if let Some(sending) = sending {
        runtime.block_on(sending.finish());
    }
    // A render that hangs on a blocking thread must not keep the process alive.
    runtime.shutdown_background();
    outcome
}

/// Opens the database of an existing installation.
async fn open_store(settings: &DataSettings) -> Result<Arc<Store>, Failure> {
    if let DatabaseUrl::Sqlite(path) = settings.database()? {
        existing_file(&path, CREATE)?;
    }
    open_or_create_store(settings).await
}

/// What to do about a database that does not exist, unless a command takes only one that does.
const CREATE: &str = "create one with `tintype serve` or `tintype account create`, or set --data";

fn existing_file(path: &Path, hint: &str) -> Result<(), Failure> {
    // After an interrupted restore, the attempt to open the database gives a better message than this function.
    if is_there(path)? || is_there(&restoring(path))? {
        return Ok(());
    }
    Err(Failure(format!("there is no database at {}: {hint}", path.display())))
}

/// Whether a path exists. Lacking permission to check is an error, not absence.
fn is_there(path: &Path) -> Result<bool, String> {
    path.try_exists().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => owner::denied(path),
        _ => format!("cannot look at {}: {error}", path.display()),
    })
}

async fn open_or_create_store(settings: &DataSettings) -> Result<Arc<Store>, Failure> {
    let database = settings.database()?;
    match database.path() {
        Some(path) => {
            data_dir::check_same_machine(path)?;
            data_dir::keep_private(&settings.data, Some(path))?;
        }
        // The command needs no data directory.
        None => data_dir::keep_new_files_private(),
    }
    let store: Arc<Store> = match database {
        DatabaseUrl::Sqlite(path) => Arc::new(sqlite::open(&path, Clock::system())?),
        DatabaseUrl::Postgres(url) => {
            let ca = settings.database_ca.as_deref();
            Arc::new(postgres::open(&url, ca, Clock::system(), Faults::default()).await?)
        }
    };
    Ok(store.acting(operator(settings)))
}

/// The user of this command, for the audit log.
fn operator(settings: &DataSettings) -> Actor {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Actor { name: settings.operator.clone(), person_id: None, via: Via::Command, source: Some(machine) }
}

/// Opens the result files that `--files` names; creates the directory if it does not exist.
async fn open_files(settings: &DataSettings, files: Option<&str>) -> Result<Files, Failure> {
    let backend = settings.file_backend(files)?;
    if let FileBackend::Directory(directory) = &backend {
        data_dir::create(directory)?;
    }
    let files = Files::on_backend(&backend)?;
    files.check_access().await?;
    Ok(files)
}

/// Opens the result files that `--files` names; `None` if the directory does not exist. A server that might remove some
/// is on the same data directory.
async fn existing_files(settings: &DataSettings, files: Option<&str>) -> Result<Option<Files>, Failure> {
    match settings.file_backend(files)? {
        FileBackend::Directory(directory) if !is_there(&directory)? => Ok(None),
        _ => {
            let opened = open_files(settings, files).await?;
            let is_installation = is_there(&settings.data)? && !data_dir::is_foreign(&settings.data);
            let guarded = |opened: Files| opened.guarded_by(data_dir::backup_lock(&settings.data));
            Ok(Some(if is_installation { guarded(opened) } else { opened }))
        }
    }
}

async fn find_account(store: &Store, name_or_id: &str) -> Result<Account, Failure> {
    let found = store.find_account(name_or_id).await?;
    found.ok_or_else(|| {
        Failure(format!("there is no account {name_or_id:?}: `tintype account list` shows all accounts"))
    })
}

/// The error for a change to an account that was deleted meanwhile or before.
fn was_deleted(account: &Account) -> Failure {
    let at = account.deleted_at.map(|at| format!(" at {at}")).unwrap_or_default();
    Failure(format!("account {} was deleted{at}, which cannot be undone", account.name))
}

fn table<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut lines = vec![headings.map(str::to_owned)];
    lines.extend(rows);
    let width = |column: usize| lines.iter().map(|line| measure_text_width(&line[column])).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: &[String; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| pad_str(cell, width, Alignment::Left, None));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn describe(drift: &Drift, account: &str) -> String {
    format!("account {account}, task {}: {}", or_dash(drift.task_id), drift.fault)
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
