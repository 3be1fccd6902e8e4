//! Attackers: each of their addresses goes as far as the limits allow, or floods at a fixed rate.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::subjects::{GENERATE, TASKS, get, post};

/// Number of source addresses of attacks, from 127.0.0.2 upwards.
const ADDRESSES: u8 = 4;
/// Connections that attackers try to hold from each address: more than the limit per address.
const HELD_PER_ADDRESS: u64 = 600;
/// Interval at which the holder of a connection sends a little, or reconnects.
const DRIP_EVERY: Duration = Duration::from_secs(1);
/// Flooding clients per address.
const FLOODERS_PER_ADDRESS: u64 = 16;
/// Length of an oversized body, in bytes.
const OVERSIZE: usize = 1024 * 1024;

/// Kind of attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    SlowHeader,
    SlowBody,
    SlowRead,
    Connections,
    Handshakes,
    Failures,
    Oversize,
    Malformed,
    References,
}

/// Target of the attacks.
#[derive(Debug, Clone)]
pub struct Target {
    pub address: SocketAddr,
    /// A valid key: a caller can be an attacker too.
    pub key: String,
    /// URL of an image that never ends.
    pub reference: String,
}

/// How an attack works.
pub enum Tactic {
    /// Holds this number of connections from each address: sends the first bytes once and the second bytes repeatedly.
    Hold(u64, Bytes, &'static [u8]),
    /// Opens this many silent connections per second.
    Open(u64),
    /// Sends this request at this rate per second, over one connection while it lasts.
    Flood(Bytes, u64),
}

impl Attack {
    /// Name of the attack in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::SlowHeader => "slow header",
            Self::SlowBody => "slow body",
            Self::SlowRead => "slow read",
            Self::Connections => "connection flood",
            Self::Handshakes => "stalled TLS handshakes",
            Self::Failures => "failed authentications",
            Self::Oversize => "bodies of 1 MiB",
            Self::Malformed => "malformed requests",
            Self::References => "slow references",
        }
    }

    /// The way in which its attackers act.
    pub fn tactic(self, target: &Target) -> Tactic {
        let slow_read = "GET /docs/scalar.js HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(16);
        let slow_body = format!(
            "POST {GENERATE} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: 1000\r\n\r\n{{",
            target.key
        );
        let reference = format!(r#"{{"prompt":"a boat","reference_images":["{}"]}}"#, target.reference);
        match self {
            Self::SlowHeader => {
                Tactic::Hold(HELD_PER_ADDRESS, Bytes::from_static(b"GET / HTTP/1.1\r\nhost: x\r\nx: a"), b"a")
            }
            Self::SlowBody => Tactic::Hold(HELD_PER_ADDRESS, slow_body.into(), b" "),
            Self::SlowRead => Tactic::Hold(HELD_PER_ADDRESS, slow_read.into(), b""),
            Self::Handshakes => Tactic::Hold(HELD_PER_ADDRESS, Bytes::from_static(&[0x16, 3, 1, 0, 200, 1]), b""),
            Self::Connections => Tactic::Open(2_000),
            Self::Failures => Tactic::Flood(get(TASKS, "tt_wrong"), 2_000),
            Self::Oversize => Tactic::Flood(post(&target.key, &" ".repeat(OVERSIZE)), 100),
            Self::Malformed => Tactic::Flood(Bytes::from_static(b"nonsense\r\n\r\n"), 2_000),
            Self::References => Tactic::Flood(post(&target.key, &reference), 20),
        }
    }
}

/// Counters of the attackers.
#[derive(Debug, Default)]
pub struct Tally {
    /// Attempts to connect or to send.
    pub tries: AtomicU64,
    /// Connections held for longer than the server takes to refuse one.
    pub held: AtomicU64,
}

/// A running attack on its own thread.
pub struct Attackers {
    pub tally: Arc<Tally>,
    /// Number of tries after which all attackers have started.
    tries_to_start: u64,
    stop: Option<DropGuard>,
    thread: Option<thread::JoinHandle<io::Result<()>>>,
}

impl Drop for Attackers {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The tally has all results, so the outcome of the thread does not matter.
            drop(thread.join());
        }
    }
}

impl Attackers {
    /// Starts an attack.
    pub fn start(tactic: Tactic, address: SocketAddr) -> Self {
        let (tally, stop) = (Arc::<Tally>::default(), CancellationToken::new());
        let per_address = if let Tactic::Hold(count, ..) = tactic { count } else { FLOODERS_PER_ADDRESS };
        let tries_to_start = u64::from(ADDRESSES) * per_address;
        let (shared, stopped) = (tally.clone(), stop.clone());
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(stopped.run_until_cancelled(go(address, tactic, shared)));
            Ok(())
        });
        Self { tally, tries_to_start, stop: Some(stop.drop_guard()), thread: Some(thread) }
    }

    /// Waits until all attackers have started.
    pub fn wait(&self) {
        while self.tally.tries.load(Ordering::Relaxed) < self.tries_to_start {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

async fn go(target: SocketAddr, tactic: Tactic, tally: Arc<Tally>) {
    let mut all = JoinSet::new();
    for host in 2..2 + ADDRESSES {
        let from = Ipv4Addr::new(127, 0, 0, host);
        let every = |rate| Duration::from_secs(FLOODERS_PER_ADDRESS * u64::from(ADDRESSES)).div_f64(rate as f64);
        match &tactic {
            Tactic::Hold(count, said, drip) => {
                for _ in 0..*count {
                    all.spawn(hold(from, target, said.clone(), drip, tally.clone()));
                }
            }
            Tactic::Open(rate) => {
                for _ in 0..FLOODERS_PER_ADDRESS {
                    all.spawn(open(from, target, every(*rate), tally.clone()));
                }
            }
            Tactic::Flood(request, rate) => {
                for _ in 0..FLOODERS_PER_ADDRESS {
                    all.spawn(flood(from, target, request.clone(), every(*rate), tally.clone()));
                }
            }
        }
    }
    drop(all.join_all().await);
}

async fn connect(from: Ipv4Addr, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    // Closing with a reset leaves no port in TIME_WAIT, so ports never run out.
    socket.set_zero_linger()?;
    socket.connect(target).await
}

/// Holds one connection and replaces it when it ends.
async fn hold(from: Ipv4Addr, target: SocketAddr, said: Bytes, drip: &'static [u8], tally: Arc<Tally>) {
    loop {
        if let Ok(mut stream) = connect(from, target).await
            && stream.write_all(&said).await.is_ok()
        {
            tally.tries.fetch_add(1, Ordering::Relaxed);
            stay(stream, drip, &tally).await;
        } else {
            tally.tries.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(DRIP_EVERY).await;
        }
    }
}

/// Keeps a connection open until the server closes it, reading and writing a few bytes from time to time.
async fn stay(mut stream: TcpStream, drip: &[u8], tally: &Tally) {
    let mut counted = false;
    loop {
        tokio::time::sleep(DRIP_EVERY).await;
        let open = match stream.try_read(&mut [0; 16]) {
            Ok(read) => read > 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if !open || stream.write_all(drip).await.is_err() {
            break;
        }
        if !std::mem::replace(&mut counted, true) {
            tally.held.fetch_add(1, Ordering::Relaxed);
        }
    }
    if counted {
        tally.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens connections at an interval and leaves them all open.
async fn open(from: Ipv4Addr, target: SocketAddr, every: Duration, tally: Arc<Tally>) {
    let mut held = JoinSet::new();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        tally.tries.fetch_add(1, Ordering::Relaxed);
        if let Ok(stream) = connect(from, target).await {
            let tally = tally.clone();
            held.spawn(async move { stay(stream, b"", &tally).await });
        }
        while held.try_join_next().is_some() {}
    }
}

/// Sends the same request repeatedly, over one connection while it lasts.
async fn flood(from: Ipv4Addr, target: SocketAddr, request: Bytes, every: Duration, tally: Arc<Tally>) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = None;
    loop {
        ticks.tick().await;
        tally.tries.fetch_add(1, Ordering::Relaxed);
        let stream = match connection.take() {
            Some(stream) => Ok(stream),
            None => connect(from, target).await,
        };
        if let Ok(mut stream) = stream
            && stream.write_all(&request).await.is_ok()
            && stream.read(&mut [0; 4_096]).await.is_ok_and(|read| read > 0)
        {
            connection = Some(stream);
        }
    }
}
