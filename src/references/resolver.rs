//! Turns host names into the addresses that may be dialled.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::address::is_public;

/// The DNS, or a stand-in for it.
#[async_trait]
pub(super) trait Lookup: Send + Sync {
    /// Every address of `name`.
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system.
pub(super) struct SystemLookup;

#[async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // The trailing dot keeps the machine's search domains out: "x.example" is that and not
        // "x.example.svc.cluster.local".
        let absolute = if name.ends_with('.') { name.to_owned() } else { format!("{name}.") };
        Ok(tokio::net::lookup_host((absolute, 0)).await?.map(|address| address.ip()).collect())
    }
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
}

impl PublicResolver {
    pub(super) fn new(lookup: Arc<dyn Lookup>, exception: Option<(String, SocketAddr)>) -> Self {
        Self { lookup, exception }
    }

    /// The addresses to dial for `name`. Port 0 stands for the port of the URL.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Some(address) = self.exception_for(name) {
            return Ok(vec![address]);
        }
        let found = self.lookup.lookup(name).await?;
        // One bad address condemns the name: an honest one has no reason to mix them.
        match found.iter().find(|ip| !is_public(**ip)) {
            Some(ip) => Err(ResolveError::NotPublic(*ip)),
            None if found.is_empty() => Err(ResolveError::NoAddress),
            None => Ok(found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect()),
        }
    }

    /// Whether a connection made for `host` may be at `peer`.
    pub(super) fn may_reach(&self, host: &str, peer: SocketAddr) -> bool {
        is_public(peer.ip()) || self.exception_for(host) == Some(peer)
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
