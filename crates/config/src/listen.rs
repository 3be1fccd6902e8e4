//! The addresses that a server listens on, and the proxies that it trusts.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;

use super::values::network;
use tintype_domain::source::Peer;

/// Host of an address that is only a port.
const LOOPBACK: &str = "127.0.0.1";
/// Prefix of a Unix domain socket's address.
const SOCKET: &str = "unix:";

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// One TCP address.
    Address(SocketAddr),
    /// A TCP port on every address of this machine.
    Everywhere(u16),
    /// A TCP port on every address of a host name.
    Name(String, u16),
    /// The path of a Unix domain socket.
    Socket(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let invalid = || {
            format!(
                "{text:?} is not an address to listen on, such as 127.0.0.1:8080, [::1]:8080, localhost:8080, 8080, \
                 :8080 for every address of this machine, or unix:/run/tintype/api.sock"
            )
        };
        if let Some(path) = text.strip_prefix(SOCKET) {
            return if path.is_empty() { Err(invalid()) } else { Ok(Self::Socket(path.into())) };
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or((LOOPBACK, text));
        // A plus sign isn't part of a port, although Rust accepts it in numbers.
        let port = port.parse().ok().filter(|_| !port.starts_with('+')).ok_or_else(invalid)?;
        match host {
            "" | "*" => Ok(Self::Everywhere(port)),
            LOOPBACK => Ok(Self::Address(SocketAddr::from(([127, 0, 0, 1], port)))),
            host => match url::Host::parse(host) {
                Ok(url::Host::Domain(name)) => Ok(Self::Name(name, port)),
                _ => Err(invalid()),
            },
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Everywhere(port) => write!(f, ":{port}"),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Socket(path) => write!(f, "{SOCKET}{}", path.display()),
        }
    }
}

impl ListenAddress {
    /// Whether the port is known; with port 0 the system chooses one.
    pub fn has_known_port(&self) -> bool {
        match self {
            Self::Address(address) => address.port() != 0,
            Self::Everywhere(port) | Self::Name(_, port) => *port != 0,
            Self::Socket(_) => true,
        }
    }
}

/// Peers whose forwarding headers count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedProxy {
    /// The addresses of a network.
    Network(IpNet),
    /// Every peer that connects to a Unix domain socket.
    Socket,
}

impl TrustedProxy {
    /// Whether a peer is this proxy.
    pub fn is(&self, peer: Peer) -> bool {
        match (self, peer) {
            (Self::Network(network), Peer::Address(address)) => network.contains(&IpAddr::to_canonical(&address)),
            (Self::Socket, Peer::Socket) => true,
            _ => false,
        }
    }
}

impl FromStr for TrustedProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "unix" => Ok(Self::Socket),
            text => network(text).map(Self::Network).map_err(|error| format!("{error}, nor \"unix\"")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_many_forms() {
        for (text, shown) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("[::1]:8080", "[::1]:8080"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("8080", "127.0.0.1:8080"),
            (":8080", ":8080"),
            ("*:8080", ":8080"),
            (" localhost:8080 ", "localhost:8080"),
            ("images.example.com:443", "images.example.com:443"),
            ("unix:/run/tintype/api.sock", "unix:/run/tintype/api.sock"),
            ("unix:api.sock", "unix:api.sock"),
        ] {
            assert_eq!(text.parse::<ListenAddress>().map(|address| address.to_string()), Ok(shown.into()), "{text}");
        }
        for bad in
            ["", ":", "localhost", "127.0.0.1", "65536", "+80", "-1", "::1:8080", "a b:80", "unix:", "http://a:80"]
        {
            let error = bad.parse::<ListenAddress>().expect_err(bad);
            assert!(error.contains("127.0.0.1:8080") && error.contains("unix:/"), "{error}");
        }
    }
}
