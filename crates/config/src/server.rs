//! The settings of a server process.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use clap::builder::BoolishValueParser;

use super::acme::AcmeSettings;
use super::files::{FileUrlSettings, FilesSettings};
use super::limits::LimitSettings;
use super::listen::{ListenAddress, TrustedProxy};
use super::model_aliases::ModelAliasSettings;
use super::oidc::OidcSettings;
use super::origins::OriginSettings;
use super::policy::PolicySettings;
use super::presets::PresetSettings;
use super::redis::RedisSettings;
use super::retention::RetentionSettings;
use super::second_factor::SecondFactorSettings;
use super::sign_up::SignUpSettings;
use super::values::{collector_url, duration, root_url, size};
use super::webhooks::WebhookSettings;
use super::worker::WorkerSettings;
use tintype_system::fault::Faults;

/// The longest that a stopping server can keep serving.
const MAX_SHUTDOWN_DELAY: Duration = Duration::from_secs(60 * 60);

/// Disk space to keep free.
#[derive(Debug, Clone, Args)]
pub struct SpaceSettings {
    /// Free disk space below which no tasks are accepted [default: 64MiB, or 5% of a small disk]
    #[arg(long, env = "TINTYPE_MIN_FREE_SPACE", value_name = "SIZE", value_parser = size)]
    pub min_free_space: Option<ByteSize>,
}

/// The studio's URL, for links to it. A command takes what it lacks from the running server.
#[derive(Debug, Clone, Args)]
pub struct StudioUrl {
    /// URL of the studio [default: the URL of the server]
    #[arg(long, env = "TINTYPE_PUBLIC_URL", value_name = "URL", value_parser = root_url)]
    public_url: Option<String>,
    #[arg(long, env = "TINTYPE_LISTEN", default_value = "127.0.0.1:8080", num_args = 1.., value_delimiter = ',', hide = true)]
    listen: Vec<ListenAddress>,
    #[arg(long, env = "TINTYPE_TLS_CERT", hide = true)]
    tls_cert: Option<PathBuf>,
    #[arg(long, env = "TINTYPE_ACME_DOMAIN", num_args = 1.., value_delimiter = ',', hide = true)]
    acme_domain: Vec<String>,
}

impl StudioUrl {
    /// The URL without a path: the public URL, or else one with the certificate's name or the first listen address.
    ///
    /// # Errors
    /// A message for the operator: the server has none.
    pub fn url(&self) -> Result<String, String> {
        if let Some(url) = &self.public_url {
            return Ok(url.clone());
        }
        if let Some(name) = self.acme_domain.first() {
            return Ok(format!("https://{name}"));
        }
        let place = match self.listen.first() {
            Some(ListenAddress::Address(address)) if !address.ip().is_unspecified() => address.to_string(),
            Some(ListenAddress::Address(address)) => format!("127.0.0.1:{}", address.port()),
            Some(ListenAddress::Everywhere(port)) => format!("127.0.0.1:{port}"),
            Some(ListenAddress::Name(name, port)) => format!("{name}:{port}"),
            Some(ListenAddress::Socket(_)) | None => {
                return Err("the server listens on no TCP address: name the URL of the studio with --public-url".into());
            }
        };
        Ok(format!("{}://{place}", if self.tls_cert.is_some() { "https" } else { "http" }))
    }
}

/// All settings of a server process except [`DataSettings`](super::DataSettings).
#[derive(Debug, Clone, Args)]
pub struct ServerSettings {
    /// Addresses to listen on: HOST:PORT, PORT on the loopback address, :PORT on every address, or unix:PATH for a
    /// proxy on this machine
    #[arg(long, env = "TINTYPE_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDR", num_args = 1.., value_delimiter = ',')]
    pub listen: Vec<ListenAddress>,
    /// Address to serve Prometheus metrics on [default: none]
    #[arg(long, env = "TINTYPE_METRICS_LISTEN", value_name = "ADDR")]
    pub metrics_listen: Option<ListenAddress>,
    /// Base URL of an OpenTelemetry collector for traces over HTTP, such as `http://127.0.0.1:4318` [default: none]
    #[arg(long, env = "TINTYPE_OTLP", value_name = "URL", value_parser = collector_url)]
    pub otlp: Option<String>,
    /// Public URL of this server, without a path [default: the listen address]
    #[arg(long, env = "TINTYPE_PUBLIC_URL", value_name = "URL", value_parser = root_url)]
    pub public_url: Option<String>,
    #[command(flatten)]
    /// Location of the result files.
    pub files: FilesSettings,
    #[command(flatten)]
    /// URLs of the result files.
    pub file_urls: FileUrlSettings,
    /// Reject API calls that did not arrive over HTTPS; always on with a certificate
    #[arg(long, env = "TINTYPE_PRODUCTION", value_parser = BoolishValueParser::new())]
    pub production: bool,
    /// Certificate chain in PEM; turns on HTTPS
    #[arg(long, env = "TINTYPE_TLS_CERT", value_name = "PATH", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, env = "TINTYPE_TLS_KEY", value_name = "PATH", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    #[command(flatten)]
    /// Certificate from an ACME authority.
    pub acme: AcmeSettings,
    /// Networks of reverse proxies whose X-Forwarded-Proto and X-Forwarded-For headers are trusted; unix means every
    /// connection to a Unix domain socket
    #[arg(long, env = "TINTYPE_TRUSTED_PROXY", value_name = "CIDR", num_args = 1.., value_delimiter = ',')]
    pub trusted_proxy: Vec<TrustedProxy>,
    /// Add the client's address to each request's log line. Addresses are personal data
    #[arg(long, env = "TINTYPE_LOG_CLIENTS", value_parser = BoolishValueParser::new())]
    pub log_clients: bool,
    /// Require the PROXY protocol (version 1 or 2) on TCP connections, and accept them from the addresses of
    /// --trusted-proxy only; Unix domain sockets are not affected
    #[arg(long, env = "TINTYPE_PROXY_PROTOCOL", value_parser = BoolishValueParser::new())]
    pub proxy_protocol: bool,
    #[command(flatten)]
    /// Origins of web pages that may call the API.
    pub origins: OriginSettings,
    #[command(flatten)]
    /// Retention of finished tasks.
    pub retention: RetentionSettings,
    #[command(flatten)]
    /// Content policy.
    pub policy: PolicySettings,
    #[command(flatten)]
    /// Limits on callers.
    pub limits: LimitSettings,
    #[command(flatten)]
    /// Open sign-up.
    pub sign_up: SignUpSettings,
    #[command(flatten)]
    /// Second factors.
    pub second_factor: SecondFactorSettings,
    #[command(flatten)]
    /// OpenID Connect provider.
    pub oidc: OidcSettings,
    #[command(flatten)]
    /// Redis for shared rate limits.
    pub redis: RedisSettings,
    #[command(flatten)]
    /// Networks of webhooks.
    pub webhooks: WebhookSettings,
    #[command(flatten)]
    /// Model names that map to an engine.
    pub models: ModelAliasSettings,
    #[command(flatten)]
    /// Presets.
    pub presets: PresetSettings,
    #[command(flatten)]
    /// Settings of the worker.
    pub worker: WorkerSettings,
    /// How long to keep serving after a stop signal while /readyz fails, so that load balancers notice
    #[arg(long, env = "TINTYPE_SHUTDOWN_DELAY", default_value = "0s", value_name = "DURATION", value_parser = shutdown_delay)]
    pub shutdown_delay: Duration,
    #[command(flatten)]
    /// Space that stays free.
    pub space: SpaceSettings,
    /// For tests only: faults to inject
    #[arg(long, env = "TINTYPE_TEST_FAULT", value_name = "FAULTS", hide = true, default_value = "")]
    pub test_fault: Faults,
}

impl ServerSettings {
    /// Parses flags as the command line does, for programs that embed a server.
    ///
    /// # Errors
    /// The error that the command line would print.
    pub fn from_flags<'a>(flags: impl IntoIterator<Item = &'a str>) -> Result<Self, clap::Error> {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            settings: ServerSettings,
        }
        let flags: Flags = clap::Parser::try_parse_from(std::iter::once("tintype").chain(flags))?;
        Ok(flags.settings)
    }

    /// Whether this server terminates TLS itself.
    pub fn serves_https(&self) -> bool {
        self.tls_cert.is_some() || !self.acme.acme_domain.is_empty()
    }
}

/// Parses how long a stopping server keeps serving. A longer time would keep it from ever stopping.
fn shutdown_delay(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        delay if delay > MAX_SHUTDOWN_DELAY => Err("a server may serve for at most 1h after a stop signal".into()),
        delay => Ok(delay),
    }
}
