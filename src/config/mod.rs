//! Every setting: its flag, its environment variable, its default. The only reader of the environment.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use clap::builder::BoolishValueParser;
use ipnet::IpNet;

use crate::fault::Faults;

mod files;
mod redis;

pub use self::files::{
    FileLinks, FileUrlSettings, FileUrls, FilesPlace, FilesSettings, S3Settings, SignedLinks, files_variable,
};
pub use self::redis::{RedisServer, RedisSettings};

/// A task that is not terminal this long after its creation is failed and refunded.
pub const TASK_TIME_LIMIT: Duration = Duration::from_secs(9 * 60);
/// How long a lease lasts without a heartbeat, unless `--lease` says otherwise.
pub const LEASE: Duration = Duration::from_secs(30);
/// Heartbeats in the time of a lease: one may be late, and another lost.
const HEARTBEATS: u32 = 3;
/// How often expired leases and overdue tasks are looked for.
pub const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often a worker tells other processes what it can do.
pub const REPORT_EVERY: Duration = Duration::from_secs(5);
/// How often the last uses of keys are written down.
pub const RECORD_USES_EVERY: Duration = Duration::from_secs(60);
/// How often result files without a task are looked for on the latest days...
pub const ORPHAN_SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// ...and how often on each day at the least.
pub const ALL_DAYS_EVERY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How long a sweep of files is left to the process that has taken it and was not heard of since.
pub const SWEEP_HOLD: Duration = Duration::from_secs(10 * 60);
/// How long before the hour is over a sweep is due again, so that a process that looks once an hour finds it due.
pub const SWEEP_SLACK: Duration = Duration::from_secs(5 * 60);
/// A file without a task is removed when it and its task have been left alone this long.
pub const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// A month is forgotten this long after its end at the earliest, so that a clock that is set back by hours finds it.
pub const MONTH_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How often tasks older than the retention are removed...
pub const REMOVE_EVERY: Duration = Duration::from_secs(60 * 60);
/// ...and looked for, first, this long after the start, which may be a start with the wrong settings.
pub const FIRST_REMOVAL: Duration = Duration::from_secs(10 * 60);
/// How long the files of a removed task are still served, to whoever saw it just before.
pub const REMOVED_FILES_AGE: Duration = Duration::from_secs(60 * 60);
/// The shortest retention.
pub const MIN_RETENTION: Duration = Duration::from_secs(60 * 60);
/// How often a worker looks for tasks when nothing wakes it.
pub const POLL_EVERY: Duration = Duration::from_secs(1);
/// Longest that a change made by another process goes unnoticed.
pub const KEY_CACHE: Duration = Duration::from_millis(500);
/// Longest that a finished task is shown from memory when another process may remove it.
pub const TASK_CACHE: Duration = Duration::from_secs(60);
/// Largest request body, in bytes.
pub const MAX_BODY: usize = 256 * 1024;
/// How often the certificate's files are looked at.
pub const CERTIFICATE_CHECK_EVERY: Duration = Duration::from_secs(1);
/// The directory that certificates are ordered from unless `--acme-directory` says otherwise.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// File descriptors that connections leave to the database, result files and downloads.
pub const RESERVED_FILES: usize = 256;

/// What connections may take, each and together. Who wants more is closed, without an answer where no
/// whole request has come.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Longest wait for the first byte of a new connection.
    pub first_byte: Duration,
    /// Longest wait for a TLS handshake, the first byte included.
    pub handshake: Duration,
    /// Longest time from the first byte of a request to the end of its header.
    pub header: Duration,
    /// Longest silence within a body...
    pub body_idle: Duration,
    /// ...and longest time for all of it.
    pub body_total: Duration,
    /// Longest wait for another request after an answer.
    pub keep_alive: Duration,
    /// Time within which a peer that keeps us waiting must take [`MIN_TAKEN`] bytes, or all there are.
    pub write_stall: Duration,
    /// Most connections at once.
    pub max_connections: usize,
    /// Most of them from one IPv4 address or one IPv6 network of 64 bits; 0 means no limit.
    pub max_per_address: usize,
}

impl ConnectionLimits {
    /// What holds unless told otherwise. Keeping connections for longer than a minute lets proxies, which
    /// mostly do so for 60 s, be the ones to close them.
    pub const DEFAULT: Self = Self {
        first_byte: Duration::from_secs(10),
        handshake: Duration::from_secs(10),
        header: Duration::from_secs(15),
        body_idle: Duration::from_secs(10),
        body_total: Duration::from_secs(30),
        keep_alive: Duration::from_secs(75),
        write_stall: Duration::from_secs(30),
        max_connections: 8_192,
        max_per_address: 512,
    };
}

/// Bytes that count as going on: see [`ConnectionLimits::write_stall`].
pub const MIN_TAKEN: usize = 16 * 1024;
/// Largest header of a request, in bytes, and most fields in it.
pub const MAX_HEADER: usize = 64 * 1024;
/// See [`MAX_HEADER`].
pub const MAX_HEADER_FIELDS: usize = 100;

/// Where the data is. Every command takes these, anywhere on its line.
#[derive(Debug, Clone, Args)]
pub struct DataSettings {
    /// Directory that holds the database and the result files
    #[arg(
        long,
        global = true,
        help_heading = "Options of every command",
        env = "TINTYPE_DATA",
        default_value = "./tintype-data",
        value_name = "DIR"
    )]
    pub data: PathBuf,
    /// Database, as sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE [default: tintype.db in the data directory]
    #[arg(
        long,
        global = true,
        help_heading = "Options of every command",
        env = "TINTYPE_DATABASE",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database: Option<String>,
    /// Certificate authorities in PEM that PostgreSQL's certificate may come from, besides the public ones
    #[arg(
        long,
        global = true,
        help_heading = "Options of every command",
        env = "TINTYPE_DATABASE_CA",
        value_name = "FILE"
    )]
    pub database_ca: Option<PathBuf>,
}

/// Which database, and where.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A file.
    Sqlite(PathBuf),
    /// A `postgres://` URL, which may hold a password.
    Postgres(String),
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
            Self::Postgres(_) => f.write_str("Postgres(…)"),
        }
    }
}

impl std::str::FromStr for DatabaseUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(url.to_owned()));
        }
        match url.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            _ => Err("--database must be sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE".into()),
        }
    }
}

impl DataSettings {
    /// The database to use.
    ///
    /// # Errors
    /// A sentence for the operator: an unreadable secret file, or a database of another kind.
    pub fn database(&self) -> Result<DatabaseUrl, String> {
        let given = match &self.database {
            Some(url) => Some(url.clone()),
            None => secret_from_file("TINTYPE_DATABASE_FILE")?,
        };
        given.map_or_else(|| Ok(DatabaseUrl::Sqlite(self.data.join("tintype.db"))), |url| url.parse())
    }

    /// The SQLite file to use, for what is done with files alone.
    ///
    /// # Errors
    /// A sentence for the operator that ends with `instead`, what to do on PostgreSQL.
    pub fn sqlite_file(&self, instead: &str) -> Result<PathBuf, String> {
        match self.database()? {
            DatabaseUrl::Sqlite(path) => Ok(path),
            DatabaseUrl::Postgres(_) => Err(format!("the database is PostgreSQL: {instead}")),
        }
    }
}

/// The secret in the file that an environment variable names, without the line end that editors add.
///
/// # Errors
/// A sentence for the operator.
#[expect(clippy::disallowed_methods, reason = "this module is the one that reads the environment")]
pub fn secret_from_file(variable: &str) -> Result<Option<String>, String> {
    let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) else { return Ok(None) };
    let path = PathBuf::from(path);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {}, which {variable} names: {error}", path.display()))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// Lets an empty environment variable count as absent, as files that pass variables on write them.
#[expect(clippy::disallowed_methods, reason = "this module is the one that reads the environment")]
pub fn ignore_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command
        .mut_args(|arg| if arg.get_env().is_some_and(is_empty) { arg.env(None::<&str>) } else { arg })
        .mut_subcommands(ignore_empty_variables)
}

/// What a server process takes besides [`DataSettings`].
#[derive(Debug, Clone, Args)]
pub struct ServerSettings {
    /// Address to serve on, as IP:PORT
    #[arg(long, env = "TINTYPE_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Address to serve Prometheus metrics on [default: none]
    #[arg(long, env = "TINTYPE_METRICS_LISTEN", value_name = "ADDR")]
    pub metrics_listen: Option<SocketAddr>,
    /// Where callers reach the API [default: the listening address]
    #[arg(long, env = "TINTYPE_PUBLIC_URL", value_name = "URL", value_parser = base_url)]
    pub public_url: Option<String>,
    #[command(flatten)]
    /// Where the result files are.
    pub files: FilesSettings,
    #[command(flatten)]
    /// How callers reach them.
    pub file_urls: FileUrlSettings,
    /// Refuse API calls that did not come over HTTPS; a server with a certificate always does
    #[arg(long, env = "TINTYPE_PRODUCTION", value_parser = BoolishValueParser::new())]
    pub production: bool,
    /// Certificate chain in PEM; serves HTTPS
    #[arg(long, env = "TINTYPE_TLS_CERT", value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key in PEM
    #[arg(long, env = "TINTYPE_TLS_KEY", value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    #[command(flatten)]
    /// Where a certificate comes from by itself.
    pub acme: AcmeSettings,
    /// Networks whose X-Forwarded-Proto and X-Forwarded-For are believed
    #[arg(long, env = "TINTYPE_TRUSTED_PROXY", value_name = "CIDR", num_args = 1.., value_delimiter = ',', value_parser = network)]
    pub trusted_proxy: Vec<IpNet>,
    #[command(flatten)]
    /// How long finished tasks are kept.
    pub retention: RetentionSettings,
    #[command(flatten)]
    /// What may not be drawn.
    pub policy: PolicySettings,
    #[command(flatten)]
    /// Limits on callers.
    pub limits: LimitSettings,
    #[command(flatten)]
    /// What counts rate limits.
    pub redis: RedisSettings,
    #[command(flatten)]
    /// What the worker does.
    pub worker: WorkerSettings,
    /// Time the API goes on answering after it is told to stop, with /readyz red, for balancers to notice
    #[arg(long, env = "TINTYPE_SHUTDOWN_DELAY", default_value = "0s", value_name = "DURATION", value_parser = duration)]
    pub shutdown_delay: Duration,
    /// Free space below which no tasks are accepted [default: 64MiB, or 5% of a small disk]
    #[arg(long, env = "TINTYPE_MIN_FREE_SPACE", value_name = "SIZE", value_parser = size)]
    pub min_free_space: Option<ByteSize>,
    /// For tests only: what is to go wrong, and where
    #[arg(long, env = "TINTYPE_TEST_FAULT", value_name = "FAULTS", hide = true, default_value = "")]
    pub test_fault: Faults,
}

impl ServerSettings {
    /// Reads flags as the command line does, for programs that embed a server.
    ///
    /// # Errors
    /// The command line's own complaint.
    pub fn from_flags<'a>(flags: impl IntoIterator<Item = &'a str>) -> Result<Self, clap::Error> {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            settings: ServerSettings,
        }
        let flags: Flags = clap::Parser::try_parse_from(std::iter::once("tintype").chain(flags))?;
        Ok(flags.settings)
    }

    /// Whether HTTPS is served.
    pub fn serves_https(&self) -> bool {
        self.tls_cert.is_some() || !self.acme.acme_domain.is_empty()
    }
}

/// Where a certificate comes from by itself. Who orders one agrees to the terms of the authority.
#[derive(Debug, Clone, Args)]
pub struct AcmeSettings {
    /// Get a certificate for these names by ACME and serve HTTPS; port 443 of each must lead here
    #[arg(long, env = "TINTYPE_ACME_DOMAIN", value_name = "NAME", num_args = 1.., value_delimiter = ',', value_parser = domain, conflicts_with = "tls_cert")]
    pub acme_domain: Vec<String>,
    /// Address that the authority may write to
    #[arg(long, env = "TINTYPE_ACME_CONTACT", value_name = "MAIL", requires = "acme_domain")]
    pub acme_contact: Option<String>,
    /// Directory of the authority
    #[arg(long, env = "TINTYPE_ACME_DIRECTORY", value_name = "URL", default_value = LETS_ENCRYPT)]
    pub acme_directory: String,
    /// Certificate authority, in PEM, that a private directory shows a certificate of
    #[arg(long, env = "TINTYPE_ACME_CA", value_name = "PATH", requires = "acme_domain")]
    pub acme_ca: Option<PathBuf>,
}

/// How long finished tasks are kept.
#[derive(Debug, Clone, Copy, Args)]
pub struct RetentionSettings {
    /// Remove tasks and their images this long after they ended, such as 30d [default: never]
    #[arg(long, env = "TINTYPE_RETENTION", value_name = "DURATION", value_parser = retention)]
    pub retention: Option<Duration>,
}

impl std::fmt::Display for RetentionSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.retention.map(|retention| retention.as_secs()) {
            None => write!(f, "finished tasks are kept for ever"),
            Some(seconds) if seconds % 86_400 == 0 => write!(f, "finished tasks are kept for {}d", seconds / 86_400),
            Some(seconds) if seconds % 3_600 == 0 => write!(f, "finished tasks are kept for {}h", seconds / 3_600),
            Some(seconds) => write!(f, "finished tasks are kept for {seconds}s"),
        }
    }
}

/// What may not be drawn.
#[derive(Debug, Clone, Default, Args)]
pub struct PolicySettings {
    /// Content policy in TOML: words, moderation, blocked pictures, strikes [default: only what the engine refuses]
    #[arg(long, env = "TINTYPE_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,
}

/// How much callers may do.
#[derive(Debug, Clone, Args)]
pub struct LimitSettings {
    /// Submits a minute for each key; 0 means no limit
    #[arg(long, env = "TINTYPE_SUBMIT_RATE", default_value = "60", value_name = "N/min", value_parser = rate)]
    pub submit_rate: u32,
    /// Reads a minute for each key; 0 means no limit
    #[arg(long, env = "TINTYPE_READ_RATE", default_value = "1200", value_name = "N/min", value_parser = rate)]
    pub read_rate: u32,
    /// Unfinished tasks an account may have; 0 means no limit
    #[arg(long, env = "TINTYPE_MAX_UNFINISHED", default_value_t = 100, value_name = "N")]
    pub max_unfinished: u32,
    /// Connections at once; more are turned away
    #[arg(long, env = "TINTYPE_MAX_CONNECTIONS", value_name = "N", default_value_t = ConnectionLimits::DEFAULT.max_connections)]
    pub max_connections: usize,
    /// Connections from one address, but for trusted proxies; 0 means no limit
    #[arg(long, env = "TINTYPE_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", default_value_t = ConnectionLimits::DEFAULT.max_per_address)]
    pub max_connections_per_address: usize,
}

/// How tasks are worked on.
#[derive(Debug, Clone, Args)]
pub struct WorkerSettings {
    /// What draws: sketch
    #[arg(long, env = "TINTYPE_ENGINE", default_value = "sketch", value_name = "NAME[:URL]")]
    pub engine: String,
    /// Tasks drawn at once [default: the number of cores]
    #[arg(long, env = "TINTYPE_RENDERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub renders: Option<u16>,
    /// Time one attempt at a task may take, from its references to its pictures
    #[arg(long, env = "TINTYPE_RENDER_TIMEOUT", default_value = "3m", value_name = "DURATION", value_parser = duration)]
    pub render_timeout: Duration,
    /// Time after which a task is taken from a worker that gives no sign of life
    #[arg(long, env = "TINTYPE_LEASE", default_value = "30s", value_name = "DURATION", value_parser = lease)]
    pub lease: Duration,
    /// Time running renders get to finish when the server is told to stop
    #[arg(long, env = "TINTYPE_DRAIN_TIMEOUT", default_value = "25s", value_name = "DURATION", value_parser = duration)]
    pub drain_timeout: Duration,
    /// Ports that reference image URLs may name
    #[arg(long, env = "TINTYPE_REFERENCE_PORTS", default_value = "443", value_name = "PORT", value_delimiter = ',')]
    pub reference_ports: Vec<u16>,
    /// For tests only: a host name trusted as a source of references although it is not public
    #[arg(
        long,
        env = "TINTYPE_TEST_REFERENCE_HOST",
        value_name = "NAME=ADDR",
        hide = true,
        requires = "test_reference_ca"
    )]
    pub test_reference_host: Option<String>,
    /// For tests only: the certificate authority of that host, in PEM
    #[arg(long, env = "TINTYPE_TEST_REFERENCE_CA", value_name = "PATH", hide = true)]
    pub test_reference_ca: Option<PathBuf>,
    /// For tests only: the program that decodes references, for servers that run inside of another program
    #[arg(
        long,
        env = "TINTYPE_TEST_PICTURE_DECODER",
        value_name = "PATH",
        hide = true,
        default_value = crate::sandbox::OWN_PROGRAM
    )]
    pub test_picture_decoder: PathBuf,
}

impl WorkerSettings {
    /// Tasks drawn at once.
    pub fn render_slots(&self) -> usize {
        self.renders.map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from)
    }

    /// How often a worker renews its leases.
    pub fn heartbeat(&self) -> Duration {
        self.lease / HEARTBEATS
    }
}

/// Reads `60` or `60/min`.
pub fn rate(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix("/min").unwrap_or(text);
    number.parse().map_err(|_| format!("{text:?} is not a number of requests a minute, such as 60"))
}

/// Reads `10.0.0.0/8`, or an address alone.
fn network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| format!("{text:?} is not a network such as 10.0.0.0/8"))
}

/// Reads the name of a host, which an address is not.
fn domain(text: &str) -> Result<String, String> {
    match url::Host::parse(text.trim()) {
        Ok(url::Host::Domain(name)) => Ok(name),
        _ => Err(format!("{text:?} is not a name such as images.example.com")),
    }
}

/// Reads `1s`, `10m`, `24h`, `90d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| format!("{text:?} is not a duration such as 30s, 10m, 24h or 90d"))
}

/// Reads `512MiB`, `2GB`, `0`.
fn size(text: &str) -> Result<ByteSize, String> {
    text.parse().map_err(|_| format!("{text:?} is not a size such as 512MiB or 2GiB"))
}

/// Reads the duration of a lease.
fn lease(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(300)..=TASK_TIME_LIMIT;
    duration(text).and_then(|lease| match range.contains(&lease) {
        true => Ok(lease),
        false => Err("a lease lasts from 300ms to 9m".into()),
    })
}

/// Reads a duration of an hour or more.
fn retention(text: &str) -> Result<Duration, String> {
    let retention = duration(text)?;
    if retention < MIN_RETENTION {
        return Err("tasks must be kept for at least 1h; to keep them for ever, leave --retention out".into());
    }
    Ok(retention)
}

/// Reads a base URL: http or https, without query, and drops the final slash.
///
/// # Errors
/// A sentence for the operator.
pub fn base_url(text: &str) -> Result<String, String> {
    let url = url::Url::parse(text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
        return Err(format!("{text:?} is not a base URL such as https://images.example.com"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}
