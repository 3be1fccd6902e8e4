//! A worker's health, for `tintype health --worker`. Workers have no port.
//!
//! A worker answers on a socket in the abstract namespace, named after the data directory and the process. No file is
//! involved: the socket disappears with the process, and works on a read-only disk.

use std::fs;
use std::io::{self, Read as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::pause_after;
use crate::service::ServiceContext;

/// The answer of a healthy worker.
const READY: &str = "ready";
/// Longest answer, in bytes.
const MAX_ANSWER: u64 = 4096;
/// Longest time for one caller, who only has to read a line.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The sockets of this network namespace. See proc_net(5) for the columns.
const SOCKETS: &str = "/proc/net/unix";
/// The flag of a socket that accepts connections, in the fourth column.
const ACCEPTING: &str = "00010000";

/// Reports this worker's health to local callers.
#[derive(Debug)]
pub struct Probe(UnixListener);

impl Probe {
    /// Listens for the worker of this process on a data directory.
    ///
    /// # Errors
    /// The directory cannot be read, or another process has taken the name.
    pub fn bind(data: &Path) -> io::Result<Self> {
        let name = format!("{}{}", prefix(data)?, std::process::id());
        let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(Self)
    }

    /// Answers each caller with a line until the worker stops.
    pub async fn run(self, shared: Arc<ServiceContext>, stop: CancellationToken) {
        let answer = async {
            loop {
                let mut caller = match self.0.accept().await {
                    Ok((caller, _)) => caller,
                    Err(error) => {
                        pause_after(&error).await;
                        continue;
                    }
                };
                let state = shared.check().await.map_or_else(|reason| reason, |()| READY.to_owned());
                // The caller may have gone.
                _ = tokio::time::timeout(TIME_LIMIT, caller.write_all(state.as_bytes())).await;
            }
        };
        stop.run_until_cancelled(answer).await;
    }
}

/// The state of each worker on a data directory: its process, and why it cannot work.
///
/// # Errors
/// The directory, or this machine's sockets, cannot be read.
pub fn workers(data: &Path, time_limit: Duration) -> io::Result<Vec<(String, Result<(), String>)>> {
    let prefix = prefix(data)?;
    let sockets = fs::read_to_string(SOCKETS)?;
    let accepting = sockets.lines().filter(|line| line.split_whitespace().nth(3) == Some(ACCEPTING));
    let names = accepting.filter_map(|line| line.split_once('@').map(|(_, name)| name));
    let ids = names.filter_map(|name| name.strip_prefix(&prefix));
    Ok(ids.map(|id| (id.to_owned(), ask(&format!("{prefix}{id}"), time_limit))).collect())
}

fn ask(name: &str, time_limit: Duration) -> Result<(), String> {
    let answer = || {
        let stream = StdStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        stream.set_read_timeout(Some(time_limit))?;
        let mut answer = String::new();
        stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
        Ok(answer)
    };
    match answer().map_err(|error: io::Error| format!("it does not answer: {error}"))? {
        answer if answer == READY => Ok(()),
        answer if answer.is_empty() => Err("it is stopping".into()),
        answer => Err(answer),
    }
}

/// The beginning of the names of all workers on a data directory.
fn prefix(data: &Path) -> io::Result<String> {
    let data = fs::metadata(data)?;
    Ok(format!("tintype-worker/{}-{}/", data.dev(), data.ino()))
}
