//! The peers of connections, and the source of a request, for limits per source.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The address of a machine.
    Address(IpAddr),
    /// A process of this machine, through a Unix domain socket.
    Socket,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Socket => f.write_str("unix"),
        }
    }
}

/// The address range of one caller: an IPv4 address, an IPv6 /64 network, or all that connect to Unix domain sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source(Option<IpAddr>);

impl Source {
    /// The source that a peer belongs to.
    pub fn of(peer: Peer) -> Self {
        let Peer::Address(address) = peer else { return Self(None) };
        Self(Some(match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
            v4 => v4,
        }))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Some(address) => address.fmt(f),
            None => f.write_str("unix"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_one_ipv6_64_network_are_one_source() {
        let of = |text: &str| Source::of(Peer::Address(text.parse().expect("an address")));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
        assert_eq!(of("2001:db8::1").to_string(), "2001:db8::/64");
        assert_eq!(of("::ffff:192.0.2.1").to_string(), "192.0.2.1");
    }
}
