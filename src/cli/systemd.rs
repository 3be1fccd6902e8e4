//! Messages to systemd: the server is ready, reloading, stopping, or alive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr as Address};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::net::TcpStream;

use super::health::status;
use tintype_system::clock;

/// Longest wait for systemd to take a message.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// Reports the state of this process to systemd, if systemd asked for it.
pub(super) fn notify(state: &str) {
    let Some(path) = tintype_config::notify_socket() else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_write_timeout(Some(SEND_LIMIT))?;
        let address = match path.as_os_str().as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "could not notify systemd of the server's state");
    }
}

/// Reports a reload to systemd. `READY=1` ends it.
pub(super) fn notify_reloading() {
    // With the time, systemd distinguishes this reload from one before its signal.
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", clock::monotonic_micros()));
}

/// Reports to systemd's watchdog that the server is alive, twice per interval, while that is true: a server with the API
/// must answer its own probe; for any other, this loop running is proof enough. Returns at once without a watchdog.
pub(super) async fn keep_alive(api: Option<Address>) {
    let Some(interval) = tintype_config::watchdog_interval() else { return };
    let every = interval / 2;
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let silent = match api {
            Some(address) => is_silent(address, every / 3).await,
            None => false,
        };
        match silent {
            false => notify("WATCHDOG=1"),
            true => {
                tracing::error!("the server does not respond to its own probe; if that continues, systemd restarts it")
            }
        }
    }
}

/// Whether the kernel has taken a connection for the server, which does nothing with it. With the PROXY protocol it closes
/// this one. An address that cannot be reached from here, as one that has moved to another machine, says nothing.
async fn is_silent(address: Address, limit: Duration) -> bool {
    let to = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    match tokio::time::timeout(limit, TcpStream::connect((to, address.port()))).await {
        Ok(Ok(stream)) => tokio::time::timeout(limit, status(stream, "/healthz")).await.is_err(),
        _ => false,
    }
}
