//! Connections to the server: the configuration, TLS and the settings of a session.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use deadpool_postgres::Connect;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, Config, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::StoreError;

/// Longest wait for the server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Silence after which the network counts as broken.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(15);
/// The server cancels a statement that takes longer.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of each session. An acknowledged write is on disk, whatever the default of the server. Waiting statements
/// time out. The planner looks up rows by the intended indexes even while tables change quickly: statistics of the
/// queue are always outdated, and plans based on them would read whole indexes of dead tuples.
fn session() -> String {
    let statement_ms = STATEMENT_TIMEOUT.as_millis();
    format!(
        "SET statement_timeout = {statement_ms};
         SET lock_timeout = 5000;
         SET idle_in_transaction_session_timeout = 15000;
         SET default_transaction_isolation = 'read committed';
         SET plan_cache_mode = force_generic_plan;
         SET enable_seqscan = off;
         SET enable_bitmapscan = off;
         SET enable_hashjoin = off;
         SET enable_mergejoin = off;
         SET jit = off;
         SET client_min_messages = warning;
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
}

/// Host and database of a configuration, for people.
pub(super) fn describe(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts: Vec<String> = hosts.collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("PostgreSQL database {database:?} at {}", hosts.join(", "))
}

/// Parses a `postgres://` URL and adds defaults.
///
/// # Errors
/// A sentence for the operator, without the password.
pub(super) fn configuration(url: &str) -> std::result::Result<Config, String> {
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("--database is not a valid postgres:// URL{cause}")
    })?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("--database names no host: write postgres://USER:PASSWORD@HOST/DATABASE".into());
    }
    if config.get_application_name().is_none() {
        config.application_name("tintype");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    // Of several hosts, use the one that is the primary now.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config.tcp_user_timeout(NETWORK_TIMEOUT).keepalives_idle(NETWORK_TIMEOUT);
    config.keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
    // The mode "prefer" of libpq does not verify certificates, so a man in the middle could read everything.
    if config.get_ssl_mode() == SslMode::Prefer {
        config.ssl_mode(if is_local(&config) { SslMode::Disable } else { SslMode::Require });
    }
    Ok(config)
}

fn is_local(config: &Config) -> bool {
    let loopback = |name: &str| name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    let of_host = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => loopback(name),
    };
    config.get_hosts().iter().all(of_host) && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
}

/// A connection outside of the pool. It makes progress only while its messages are read.
pub(super) struct Driven {
    pub(super) client: tokio_postgres::Client,
    pub(super) connection: Box<dyn Messages>,
}

/// The stream of messages from the server, encrypted or not.
pub(super) trait Messages: Send {
    /// See [`tokio_postgres::Connection::poll_message`].
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<AsyncMessage, tokio_postgres::Error>>>;
}

impl<S, T> Messages for Connection<S, T>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<AsyncMessage, tokio_postgres::Error>>> {
        Self::poll_message(self, cx)
    }
}

/// Connects and applies the settings of a session.
#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<MakeRustlsConnect>,
}

impl Connector {
    pub(super) fn new(tls: Option<MakeRustlsConnect>) -> Self {
        Self { tls }
    }

    pub(super) async fn connect(&self, config: &Config) -> std::result::Result<Driven, tokio_postgres::Error> {
        match self.tls.clone() {
            Some(tls) => {
                let (client, connection) = config.connect(tls).await?;
                Ok(Driven { client, connection: Box::new(connection) })
            }
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                Ok(Driven { client, connection: Box::new(connection) })
            }
        }
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        config: &Config,
    ) -> BoxFuture<'_, std::result::Result<(tokio_postgres::Client, JoinHandle<()>), tokio_postgres::Error>> {
        let (config, connector) = (config.clone(), self.clone());
        Box::pin(async move {
            let Driven { client, connection } = connector.connect(&config).await?;
            let driving = tokio::spawn(drive(connection));
            client.batch_execute(&session()).await?;
            Ok((client, driving))
        })
    }
}

/// Reads messages of the server until the connection ends.
async fn drive(mut connection: Box<dyn Messages>) {
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let Err(error) = message {
            tracing::debug!(error = %StoreError::from(error), "a connection to the database ended");
            return;
        }
    }
}
