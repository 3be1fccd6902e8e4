//! Ports of this machine that no other test is given.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port that stays reserved while this value lives. A server that is given it may listen, stop and listen again.
#[derive(Debug)]
pub struct Port {
    /// Its address.
    pub address: SocketAddr,
    _socket: TcpSocket,
}

impl Port {
    /// Takes a free port of 127.0.0.1.
    pub fn take() -> Self {
        // The socket is bound and does not listen. Servers can share the port because they set SO_REUSEADDR as well;
        // the system gives it to no other process.
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("a socket");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        Self { address: socket.local_addr().expect("an address"), _socket: socket }
    }
}

/// Any port of a random loopback address, so that no test's server gets the port, and with it the callers, of another
/// test's dead server.
pub fn of_own_address() -> SocketAddr {
    let host = || rand::random_range(1..255);
    (Ipv4Addr::new(127, host(), host(), host()), 0).into()
}
