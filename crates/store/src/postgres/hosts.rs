//! The servers in the URL, and how one is chosen for a connection.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deadpool_postgres::Connect;
use tokio::net;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connect::{configuration, describe};
use super::connection::{POOL_WAIT, within};

/// A connection that is encrypted if the URL asks for it. It makes progress only while its messages are read.
pub(super) type EncryptedConnection = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// The hosts of a URL. A connection goes to the first one that responds and takes writes, and the search begins at the
/// host that did so last. The driver itself would wait forever for a host that accepts connections and is silent, such
/// as a frozen one.
#[derive(Clone)]
pub(crate) struct Hosts {
    /// A configuration for each host.
    hosts: Arc<[Config]>,
    /// The host to try first.
    first: Arc<AtomicUsize>,
    tls: MakeRustlsConnect,
    /// The runtime of the timers.
    runtime: Handle,
    /// The file with the URL, if it is known. Its password may change.
    url_file: Arc<OnceLock<PathBuf>>,
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.hosts.iter().map(describe)).finish()
    }
}

impl Hosts {
    pub(super) fn new(config: &Config, tls: MakeRustlsConnect, runtime: Handle) -> Self {
        let count = config.get_hosts().len().max(config.get_hostaddrs().len());
        let hosts = (0..count).map(|index| one_host(config, index)).collect();
        Self { hosts, first: Arc::default(), tls, runtime, url_file: Arc::default() }
    }

    /// From now on new connections have the password of the URL in this file.
    pub(crate) fn follow(&self, url_file: PathBuf) {
        drop(self.url_file.set(url_file));
    }

    /// The configuration of a host, with the password that the file has now if its URL differs in nothing else that
    /// matters. Another one is for the next start. A file that cannot be read changes nothing: a server that began as
    /// root may not read it any more.
    async fn current(&self, host: &Config) -> Config {
        let mut host = host.clone();
        if let Some(file) = self.url_file.get().cloned()
            && let Ok(Some(url)) = self.runtime.spawn_blocking(move || text_of(&file)).await
            && let Ok((found, _)) = configuration(url.trim())
            && (found.get_user(), found.get_dbname()) == (host.get_user(), host.get_dbname())
            && host.get_hosts().iter().all(|host| found.get_hosts().contains(host))
            && let Some(password) = found.get_password()
        {
            host.password(password);
        }
        host
    }

    /// Opens a connection; tries again while all of several hosts are silent. The error is from the host tried last.
    pub(super) async fn open(&self) -> Result<(Client, EncryptedConnection), Error> {
        loop {
            let (count, first) = (self.hosts.len(), self.first.load(Ordering::Relaxed));
            let mut refusal = None;
            for index in (first..first + count).map(|index| index % count) {
                match self.try_host(&self.hosts[index]).await {
                    Some(Ok(connected)) => {
                        self.first.store(index, Ordering::Relaxed);
                        return Ok(connected);
                    }
                    Some(Err(error)) => refusal = Some(error),
                    None if index == first => {
                        self.first.store((index + 1) % count, Ordering::Relaxed);
                        tracing::warn!(
                            host = describe(&self.hosts[index]),
                            "a database server accepts connections but does not respond; trying the next host"
                        );
                    }
                    None => {}
                }
            }
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
        }
    }

    /// Connects to one host; `None` if it is silent and there are others. All hosts must get their turn before callers
    /// lose patience.
    async fn try_host(&self, host: &Config) -> Option<Result<(Client, EncryptedConnection), Error>> {
        // Giving up on the only host would gain nothing, and burden a slow server.
        if self.hosts.len() == 1 {
            return Some(self.connect(host, POOL_WAIT).await);
        }
        let limit = POOL_WAIT / (u32::try_from(self.hosts.len()).unwrap_or(u32::MAX) + 1);
        let limit = host.get_connect_timeout().map_or(limit, |asked| limit.min(*asked));
        within(&self.runtime, limit, self.connect(host, limit)).await
    }

    /// Connects to the addresses of a host in turn, all but the last for their share of `limit`.
    async fn connect(&self, host: &Config, limit: Duration) -> Result<(Client, EncryptedConnection), Error> {
        let host = &self.current(host).await;
        let mut configs = addresses(host).await;
        let share = limit / (u32::try_from(configs.len()).unwrap_or(u32::MAX) + 1);
        let last = configs.pop().unwrap_or_else(|| host.clone());
        for config in configs {
            if let Some(Ok(connected)) = within(&self.runtime, share, config.connect(self.tls.clone())).await {
                return Ok(connected);
            }
        }
        last.connect(self.tls.clone()).await
    }
}

/// The text of a file that can be read again, unlike a pipe.
fn text_of(path: &Path) -> Option<String> {
    std::fs::metadata(path).is_ok_and(|file| file.is_file()).then(|| std::fs::read_to_string(path).ok()).flatten()
}

/// One configuration for each address of a host. A name that cannot be looked up stays, and fails with the reason.
async fn addresses(host: &Config) -> Vec<Config> {
    let ([Host::Tcp(name)], []) = (host.get_hosts(), host.get_hostaddrs()) else { return vec![host.clone()] };
    let found = net::lookup_host((name.as_str(), 0)).await.map(|found| found.map(|address| address.ip()).collect());
    let found: Vec<IpAddr> = found.unwrap_or_default();
    if found.is_empty() {
        return vec![host.clone()];
    }
    found.into_iter().map(|address| host.clone().hostaddr(address).clone()).collect()
}

/// The configuration with one of its hosts alone.
fn one_host(config: &Config, index: usize) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(index) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    config.get_hostaddrs().get(index).map(|address| one.hostaddr(*address));
    let ports = config.get_ports();
    ports.get(index).or(ports.first()).map(|port| one.port(*port));
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config.get_application_name().map(|name| one.application_name(name));
    config.get_connect_timeout().map(|limit| one.connect_timeout(*limit));
    config.get_tcp_user_timeout().map(|limit| one.tcp_user_timeout(*limit));
    config.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one.keepalives(config.get_keepalives()).keepalives_idle(config.get_keepalives_idle());
    one.ssl_mode(config.get_ssl_mode()).ssl_negotiation(config.get_ssl_negotiation());
    one.channel_binding(config.get_channel_binding()).target_session_attrs(config.get_target_session_attrs());
    one
}

impl Connect for Hosts {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(async {
            let (client, connection) = self.open().await?;
            // The client returns the error, too.
            Ok((client, tokio::spawn(async { drop(connection.await) })))
        })
    }
}
