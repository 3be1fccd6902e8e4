//! Requests to hosts that untrusted callers name. They reach public addresses only, unless the operator names other
//! networks.
//!
//! Three checks enforce that: an IP literal in the URL is checked before the request, because the connector doesn't
//! resolve literals; [`PublicResolver`] returns only public addresses, and the connector dials those; the peer of every
//! response is checked before the response is returned.

#[cfg(test)]
pub(super) mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, Request, Response};
use tokio::sync::Semaphore;
use url::{Host, Url};

use super::describe;
use tintype_domain::address::is_public;

/// Most threads that wait for the DNS, unless it is said otherwise. A thread that hangs there cannot be stopped.
const MAX_LOOKUPS: usize = 32;

/// The DNS, or a test's replacement for it.
#[async_trait]
pub trait Lookup: Send + Sync {
    /// All addresses of `name`.
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;

    /// All addresses of a name that may be known to this machine alone.
    async fn lookup_here(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.lookup(name).await
    }
}

/// The resolver of the operating system.
pub struct SystemLookup {
    threads: Arc<Semaphore>,
    resolve: fn(&str) -> io::Result<Vec<IpAddr>>,
}

tintype_domain::opaque_debug!(SystemLookup);

impl SystemLookup {
    /// Resolves with the operating system.
    pub fn new() -> Self {
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    }

    /// Waits in up to `most` threads at a time.
    pub fn in_threads(self, most: usize) -> Self {
        Self { threads: Arc::new(Semaphore::new(most)), ..self }
    }

    fn with(resolve: fn(&str) -> io::Result<Vec<IpAddr>>) -> Self {
        Self { threads: Arc::new(Semaphore::new(MAX_LOOKUPS)), resolve }
    }
}

impl Default for SystemLookup {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // The trailing dot disables the machine's search domains: without it "x.example" could become
        // "x.example.svc.cluster.local".
        self.resolve_in_thread(if name.ends_with('.') { name.to_owned() } else { format!("{name}.") }).await
    }

    async fn lookup_here(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.resolve_in_thread(name.to_owned()).await
    }
}

impl SystemLookup {
    async fn resolve_in_thread(&self, name: String) -> io::Result<Vec<IpAddr>> {
        let permit = self.threads.clone().acquire_owned().await.map_err(io::Error::other)?;
        let resolve = self.resolve;
        let lookup = tokio::task::spawn_blocking(move || {
            // The thread keeps the permit if the caller gives up, because the thread continues.
            let _permit = permit;
            resolve(&name)
        });
        lookup.await.map_err(io::Error::other)?
    }
}

/// This machine's network interface addresses. Services that listen on one of them may only be meant for neighbours,
/// even if the address is public.
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    Ok(if_addrs::get_if_addrs()?.iter().map(if_addrs::Interface::ip).collect())
}

/// A name has no address that may be dialled.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The DNS gave no answer.
    #[error("the name could not be resolved: {0}")]
    Lookup(#[from] io::Error),
    /// The name exists without an address.
    #[error("the name has no address")]
    NoAddress,
    /// One of the addresses is not public, or belongs to this machine.
    #[error("the name has the address {0}, which is not public")]
    NotPublic(IpAddr),
}

/// The addresses that a client may reach.
#[derive(Debug, Clone)]
pub enum AllowedAddresses {
    /// Public ones that do not belong to this machine.
    Public,
    /// These too, and those in networks that the operator has named.
    PublicAnd(Arc<[IpNet]>),
    /// Only addresses in networks named by the operator.
    Only(Arc<[IpNet]>),
}

impl AllowedAddresses {
    /// Whether the operator has named a network with this address.
    fn names(&self, ip: IpAddr) -> bool {
        match self {
            Self::Public => false,
            Self::PublicAnd(networks) | Self::Only(networks) => {
                networks.iter().any(|network| network.contains(&ip.to_canonical()))
            }
        }
    }
}

/// Resolves a name once per connection, and returns its addresses only if all of them can be reached. The connector
/// dials these addresses without another look-up, so changing a name's address after the check gains nothing.
#[derive(Clone)]
pub struct PublicResolver {
    lookup: Arc<dyn Lookup>,
    /// A name that tests map to an address of their own.
    exception: Option<(String, SocketAddr)>,
    reach: AllowedAddresses,
    own: fn() -> io::Result<Vec<IpAddr>>,
}

impl PublicResolver {
    /// Resolves with `lookup`, except the name of `exception`, which tests set.
    pub fn new(lookup: Arc<dyn Lookup>, exception: Option<(String, SocketAddr)>) -> Self {
        Self { lookup, exception, reach: AllowedAddresses::Public, own: own_addresses }
    }

    /// This resolver for other addresses than public ones.
    pub fn reaching(self, reach: AllowedAddresses) -> Self {
        Self { reach, ..self }
    }

    #[cfg(test)]
    fn on_machine(self, own: fn() -> io::Result<Vec<IpAddr>>) -> Self {
        Self { own, ..self }
    }

    /// Whether `ip` is public and not an address of this machine, or in a network that the operator has named. Lists the
    /// interfaces on each call, since addresses come and go; without a list no public address may be dialled.
    fn may_dial(&self, ip: IpAddr) -> bool {
        let is_others = || is_public(ip) && (self.own)().is_ok_and(|own| !own.contains(&ip));
        self.reach.names(ip) || (!matches!(self.reach, AllowedAddresses::Only(_)) && is_others())
    }

    /// The addresses to dial for `name`. Port 0 means the URL's port.
    async fn addresses(&self, name: &str) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Some(address) = self.exception_for(name) {
            return Ok(vec![address]);
        }
        let found = match self.lookup.lookup(name).await {
            // The C library does not look for absolute names in its hosts file, where `localhost` is.
            Err(_) if !matches!(self.reach, AllowedAddresses::Public) => self.lookup.lookup_here(name).await?,
            found => found?,
        };
        // One forbidden address is enough to refuse the name: no honest name mixes them.
        match found.iter().find(|ip| !self.may_dial(**ip)) {
            Some(ip) => Err(ResolveError::NotPublic(*ip)),
            None if found.is_empty() => Err(ResolveError::NoAddress),
            None => Ok(found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect()),
        }
    }

    /// Whether a connection for `host` may have the peer `peer`.
    fn may_reach(&self, host: &str, peer: SocketAddr) -> bool {
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

tintype_domain::opaque_debug!(PublicResolver);

/// Failure to get a response from a public address. For the log only: callers must not learn the cause.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The URL names an address that is not public, or belongs to this machine.
    #[error("the address {0} is not public, or belongs to this machine")]
    Literal(IpAddr),
    /// No connection or no response. Without the URL, which may carry a secret.
    #[error("request failed: {}", describe(.0))]
    Request(reqwest::Error),
    /// The connection's peer isn't public.
    #[error("connected to {0:?}, which is not public")]
    Peer(Option<SocketAddr>),
}

impl SendError {
    /// Whether the request failed because of its address.
    pub fn is_of_address(&self) -> bool {
        match self {
            Self::Literal(_) | Self::Peer(_) => true,
            Self::Request(error) => {
                let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
                let mut found = causes.filter_map(|cause| cause.downcast_ref::<ResolveError>());
                found.any(|error| matches!(error, ResolveError::NotPublic(_)))
            }
        }
    }
}

impl From<reqwest::Error> for SendError {
    fn from(error: reqwest::Error) -> Self {
        Self::Request(error.without_url())
    }
}

/// An HTTP client that reaches public addresses only.
#[derive(Debug)]
pub struct PublicClient {
    http: Client,
    resolver: PublicResolver,
}

impl PublicClient {
    /// Completes `builder`, which must use no proxies and follow no redirects: a proxy would resolve names itself, and
    /// the target of a redirect has to pass the checks as well.
    pub fn new(builder: ClientBuilder, resolver: PublicResolver) -> reqwest::Result<Self> {
        // A pooled connection would outlive the check of its address.
        let http = builder.dns_resolver(resolver.clone()).pool_max_idle_per_host(0).build()?;
        Ok(Self { http, resolver })
    }

    /// Sends a request and checks the peer of its response.
    pub async fn send(&self, request: Request) -> Result<Response, SendError> {
        if let Some(ip) = literal(request.url()).filter(|ip| !self.resolver.may_dial(*ip)) {
            return Err(SendError::Literal(ip));
        }
        let host = request.url().host_str().unwrap_or_default().to_owned();
        let response = self.http.execute(request).await?;
        match response.remote_addr() {
            Some(peer) if self.resolver.may_reach(&host, peer) => Ok(response),
            peer => Err(SendError::Peer(peer)),
        }
    }
}

/// The host of a URL, if it is an IP address.
fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(ip) => Some(ip.into()),
        Host::Ipv6(ip) => Some(ip.into()),
        Host::Domain(_) => None,
    }
}
