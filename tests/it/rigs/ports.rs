//! Ports of this machine that no other test is given.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port that is taken for as long as this lives. Nobody listens there but who is told of it, as often as it likes.
pub struct Port {
    pub address: SocketAddr,
    _socket: TcpSocket,
}

impl Port {
    /// Takes a free port of 127.0.0.1.
    pub fn take() -> Self {
        // Bound, not listening, and shared with those that say so too, as servers do: but nobody finds it by chance.
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("a socket");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        Self { address: socket.local_addr().expect("an address"), _socket: socket }
    }
}

/// Any port of a loopback address that other tests do not use: when a server dies, its port is never given to a server
/// of theirs, which would answer those who still call there.
pub fn of_own_address() -> SocketAddr {
    let host = || rand::random_range(1..255);
    (Ipv4Addr::new(127, host(), host(), host()), 0).into()
}
