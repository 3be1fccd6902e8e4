//! Turns host names into the addresses that may be dialled.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

use crate::domain::address::is_public;

/// Most threads that wait for the DNS. One that hangs there cannot be stopped, only waited for.
pub(super) const MAX_LOOKUPS: usize = 32;

/// The DNS, or a stand-in for it.
#[async_trait]
pub trait Lookup: Send + Sync {
    /// Every address of `name`.
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system.
pub(super) struct SystemLookup {
    threads: Arc<Semaphore>,
    resolve: fn(&str) -> io::Result<Vec<IpAddr>>,
}

impl SystemLookup {
    pub(super) fn new() -> Self {
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    }

    pub(super) fn with(resolve: fn(&str) -> io::Result<Vec<IpAddr>>) -> Self {
        Self { threads: Arc::new(Semaphore::new(MAX_LOOKUPS)), resolve }
    }
}

#[async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // The trailing dot keeps the machine's search domains out: "x.example" is that and not
        // "x.example.svc.cluster.local".
        let absolute = if name.ends_with('.') { name.to_owned() } else { format!("{name}.") };
        let turn = self.threads.clone().acquire_owned().await.map_err(io::Error::other)?;
        let resolve = self.resolve;
        let looking = tokio::task::spawn_blocking(move || {
            // Held in here, because the thread waits on when the caller has given up.
            let _turn = turn;
            resolve(&absolute)
        });
        looking.await.map_err(io::Error::other)?
    }
}

/// The addresses of this machine's interfaces. A public one is ours all the same, and what listens there may be
/// meant for neighbours only.
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    Ok(if_addrs::get_if_addrs()?.iter().map(if_addrs::Interface::ip).collect())
}

/// Why a name leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("the name could not be resolved: {0}")]
    Lookup(#[from] io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("the name has the address {0}, which is not public")]
    NotPublic(IpAddr),
}

/// Resolves a name once per connection and yields its addresses only if all are public. The connector dials what it is
/// given and asks nobody else, so a name that changes its address after the check gains nothing.
#[derive(Clone)]
pub(super) struct PublicResolver {
    lookup: Arc<dyn Lookup>,
    /// One name that tests send elsewhere.
    exception: Option<(String, SocketAddr)>,
    own: fn() -> io::Result<Vec<IpAddr>>,
}

impl PublicResolver {
    pub(super) fn new(lookup: Arc<dyn Lookup>, exception: Option<(String, SocketAddr)>) -> Self {
        Self { lookup, exception, own: own_addresses }
    }

    /// The same on a machine with other addresses.
    #[cfg(test)]
    pub(super) fn on_machine(self, own: fn() -> io::Result<Vec<IpAddr>>) -> Self {
        Self { own, ..self }
    }

    /// Whether `ip` is public and not this machine's own. Asked anew each time, since addresses come and go; when they
    /// cannot be told, none may be dialled.
    pub(super) fn may_dial(&self, ip: IpAddr) -> bool {
        is_public(ip) && (self.own)().is_ok_and(|own| !own.contains(&ip))
    }

    /// The addresses to dial for `name`. Port 0 stands for the port of the URL.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Some(address) = self.exception_for(name) {
            return Ok(vec![address]);
        }
        let found = self.lookup.lookup(name).await?;
        // One bad address condemns the name: an honest one has no reason to mix them.
        match found.iter().find(|ip| !self.may_dial(**ip)) {
            Some(ip) => Err(ResolveError::NotPublic(*ip)),
            None if found.is_empty() => Err(ResolveError::NoAddress),
            None => Ok(found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect()),
        }
    }

    /// Whether a connection made for `host` may be at `peer`.
    pub(super) fn may_reach(&self, host: &str, peer: SocketAddr) -> bool {
        self.may_dial(peer.ip()) || self.exception_for(host) == Some(peer)
    }

    fn exception_for(&self, name: &str) -> Option<SocketAddr> {
        let (host, address) = self.exception.as_ref()?;
        host.eq_ignore_ascii_case(name).then_some(*address)
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let addresses = resolver.addresses(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

impl fmt::Debug for PublicResolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PublicResolver").field("exception", &self.exception).finish_non_exhaustive()
    }
}
