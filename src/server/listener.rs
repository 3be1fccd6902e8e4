//! The sockets of a server: TCP, and Unix domain sockets for proxies on the same machine.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};

use super::socket;
use tintype_config::ListenAddress;

/// Permissions of a Unix domain socket: its owner and its group may connect.
const SOCKET_MODE: u32 = 0o660;

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix domain socket.
    Socket(SocketListener),
}

/// A Unix domain socket and its file, which is removed when this value is dropped.
#[derive(Debug)]
pub struct SocketListener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
}

pub(super) enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Socket(UnixStream),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Listener {
    /// Listens on an address, or on every address that a host name has. `flag` is named in errors.
    pub async fn bind(address: &ListenAddress, flag: &str) -> Result<Vec<Self>, String> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::AddrInUse => {
                format!("{address} is in use by another program: stop it, or choose another address with {flag}")
            }
            ErrorKind::PermissionDenied if !matches!(address, ListenAddress::Socket(_)) => format!(
                "cannot listen on {address}: this user may not use ports below 1024. Choose a higher port with {flag}, \
                 set AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd unit, or lower the limit with `sysctl \
                 net.ipv4.ip_unprivileged_port_start=80`"
            ),
            ErrorKind::AddrNotAvailable => format!(
                "cannot listen on {address}: this machine has no such address. Give one of its own with {flag}, or the \
                 port alone, which stands for all of them"
            ),
            _ => format!("cannot listen on {address}: {error}"),
        };
        let tcp = |listener| vec![Self::Tcp(listener)];
        match address {
            ListenAddress::Address(address) => TcpListener::bind(address).await.map(tcp).map_err(failed),
            ListenAddress::Everywhere(port) => bind_everywhere(*port).await.map(tcp).map_err(failed),
            ListenAddress::Name(name, port) => bind_name(name, *port).await.map_err(failed),
            ListenAddress::Socket(path) => bind_socket(path).map(|socket| vec![Self::Socket(socket)]).map_err(failed),
        }
    }

    /// The TCP address, with the port that the system chose for port 0.
    pub fn address(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Some),
            Self::Socket(_) => Ok(None),
        }
    }

    /// The path of a Unix domain socket.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Socket(socket) => Some(&socket.path),
        }
    }

    /// Bounds the kernel's memory for the connections that it accepts; see [`socket::bound`].
    pub(super) fn bound(&self, stall_limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => socket::bound(listener, stall_limit),
            Self::Socket(_) => Ok(()),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Responses are small and written at once, so waiting to fill a packet would only delay them.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, peer))
            }
            Self::Socket(socket) => Ok(Accepted::Socket(socket.listener.accept().await?.0)),
        }
    }
}

/// Listens on every address, of IPv4 and IPv6, or only of IPv4 on a machine without IPv6.
async fn bind_everywhere(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != ErrorKind::AddrInUse => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        bound => bound,
    }
}

/// Listens on the addresses of a name that this machine has; a name may have an IPv6 address that the machine lacks.
async fn bind_name(name: &str, mut port: u16) -> io::Result<Vec<Listener>> {
    let (mut listeners, mut missing) = (Vec::new(), None);
    for address in lookup_host((name, port)).await? {
        match TcpListener::bind((address.ip(), port)).await {
            Ok(listener) => {
                // Port 0 means one port for all of them.
                port = listener.local_addr()?.port();
                listeners.push(Listener::Tcp(listener));
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error),
            Err(error) => missing = Some(error),
        }
    }
    match missing {
        Some(error) if listeners.is_empty() => Err(error),
        _ if listeners.is_empty() => Err(io::Error::new(ErrorKind::NotFound, "the name has no address")),
        _ => Ok(listeners),
    }
}

fn bind_socket(path: &Path) -> io::Result<SocketListener> {
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    // Until here the process's umask applies, so that only the owner can connect.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    let file = path.symlink_metadata()?;
    Ok(SocketListener { listener, path: path.to_owned(), identity: (file.dev(), file.ino()) })
}

/// Removes the socket of a process that has ended without removing it. Nothing answers there.
fn remove_stale(path: &Path) -> io::Result<()> {
    let file = match path.symlink_metadata() {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "the file is not a socket: choose another path"));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Err(ErrorKind::AddrInUse.into()),
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        // A process that took over the path has its own file there.
        let is_ours = self.path.symlink_metadata().is_ok_and(|file| (file.dev(), file.ino()) == self.identity);
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "could not remove the socket; the next start will");
        }
    }
}
