//! `tintype health` asks a server on this machine how it is, for containers and supervisors without an HTTP client.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::Outcome;
use super::printing::{JsonArgs, show_verdict};
use crate::server::workers;
use tintype_config::{DataSettings, ListenAddress, time_limit};

/// Longest answer that is read.
const MAX_ANSWER: u64 = 16 * 1024;

#[derive(Debug, Args)]
#[command(after_help = "\
Asks /readyz, or /healthz with --alive, of the server that listens on the first of these addresses. Exits with 0 if the \
server answers with 200, and with 1 otherwise. With --worker, exits with 0 if every worker on the data directory \
is ready, whether of `tintype worker` or `tintype serve`, and with 1 if one isn't or none is running on this machine \
or in this container.")]
pub(super) struct HealthArgs {
    /// Addresses that the server listens on, as for `tintype serve`
    #[arg(long, env = "TINTYPE_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDR", num_args = 1.., value_delimiter = ',')]
    listen: Vec<ListenAddress>,
    /// Check the workers on this data directory, which need no address
    #[arg(long, conflicts_with = "alive")]
    worker: bool,
    /// Only check that the process responds, not that it is ready
    #[arg(long)]
    alive: bool,
    /// How long to wait for a response
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = time_limit)]
    timeout: Duration,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct Health {
    ok: bool,
    address: String,
    detail: String,
}

impl Health {
    fn line(&self) -> String {
        format!("{}  {}: {}", if self.ok { "ok  " } else { "FAIL" }, self.address, self.detail)
    }
}

pub(super) async fn run(args: HealthArgs, data: &DataSettings) -> Outcome {
    if args.worker {
        return of_workers(&args, &data.data);
    }
    let address = args.listen.first().ok_or("--listen names no address")?;
    let path = if args.alive { "/healthz" } else { "/readyz" };
    let answer = tokio::time::timeout(args.timeout, ask(address, path)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::Error::other("no answer in time")));
    let (ok, detail) = match answer {
        Ok(status) => (status == "200", format!("{path} answers {status}")),
        Err(error) => (false, error.to_string()),
    };
    let health = Health { ok, address: address.to_string(), detail };
    show_verdict(ok, args.json, &health, || health.line())
}

/// Asks every worker that runs on a data directory.
fn of_workers(args: &HealthArgs, data: &Path) -> Outcome {
    let address = data.display().to_string();
    let workers =
        workers(data, args.timeout).map_err(|error| format!("cannot look for workers of {address}: {error}"))?;
    let all = workers.into_iter().map(|(id, state)| Health {
        ok: state.is_ok(),
        address: format!("process {id}"),
        detail: state.map_or_else(|reason| reason, |()| "the worker is ready".into()),
    });
    let mut all: Vec<_> = all.collect();
    if all.is_empty() {
        all.push(Health { ok: false, address, detail: "no worker is running on this data directory".into() });
    }
    let ok = all.iter().all(|worker| worker.ok);
    show_verdict(ok, args.json, &all, || all.iter().map(Health::line).collect::<Vec<_>>().join("\n"))
}

/// The status of an answer. A server with a certificate answers these paths without TLS as well.
pub(super) async fn ask(address: &ListenAddress, path: &str) -> io::Result<String> {
    match address {
        ListenAddress::Socket(socket) => status(UnixStream::connect(socket).await?, path).await,
        ListenAddress::Address(address) if address.ip().is_unspecified() => {
            status(TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).await?, path).await
        }
        ListenAddress::Address(address) => status(TcpStream::connect(address).await?, path).await,
        ListenAddress::Everywhere(port) => {
            status(TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).await?, path).await
        }
        ListenAddress::Name(name, port) => status(TcpStream::connect((name.as_str(), *port)).await?, path).await,
    }
}

pub(super) async fn status<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    status.map(str::to_owned).ok_or_else(|| io::Error::other("not an HTTP response"))
}
