//! Cost of attacks for everybody else: the latency of legitimate callers during each attack, compared with their
//! latency just before and after it.
//!
//! The server is the real binary with default limits. The attackers have their own addresses, as on the internet, but
//! share the CPU with the server.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rcgen::{CertifiedKey, KeyPair};
use serde::Serialize;
use tempfile::TempDir;
use tintype_store::sqlite;
use tintype_system::clock::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use self::attackers::{Attack, Attackers, Target};
use self::callers::{Callers, Calls};
use crate::fixture;
use crate::server::Server;
use crate::{Options, Outcome};

pub mod attackers;
mod callers;

/// Accounts of legitimate callers.
const ACCOUNTS: usize = 8;
/// Host of the attackers' references.
const REFERENCE_HOST: &str = "images.example.com";
/// Pause after an attack in which the server closes remaining connections.
const RECOVERY: Duration = Duration::from_millis(500);

/// Effect of one attack on legitimate callers.
#[derive(Debug, Serialize)]
pub struct AttackRow {
    pub name: &'static str,
    pub p50_micros: f64,
    pub p99_micros: f64,
    pub calm_p50_micros: f64,
    pub calm_p99_micros: f64,
    /// Tasks of legitimate callers that ended per second.
    pub tasks_per_second: f64,
    pub calm_tasks_per_second: f64,
    /// Connections held by the attackers at the end.
    pub held: u64,
    /// Attempts of the attackers per second.
    pub tries_per_second: f64,
    /// Highest resident memory of the server at the end of an attack, in MiB.
    pub memory_mib: f64,
}

/// Accumulated results of an attack over all rounds.
struct Series {
    attack: Attack,
    under_attack: Calls,
    calm: Calls,
    held: u64,
    tries: u64,
    memory_mib: f64,
}

/// Runs the attacks on HTTP against one server and the attacks on TLS against another.
pub fn measure(runtime: &Runtime, directory: &TempDir, options: &Options) -> Outcome<Vec<AttackRow>> {
    tintype::server::raise_file_limit();
    let plain = [
        Attack::SlowHeader,
        Attack::SlowBody,
        Attack::SlowRead,
        Attack::Connections,
        Attack::Failures,
        Attack::Oversize,
        Attack::Malformed,
        Attack::References,
    ];
    let mut rows = under(runtime, &directory.path().join("attack"), &plain, false, options)?;
    rows.extend(under(runtime, &directory.path().join("attack-tls"), &[Attack::Handshakes], true, options)?);
    Ok(rows)
}

/// Attacks one server in several ways, alternating with calm.
fn under(runtime: &Runtime, data: &Path, attacks: &[Attack], tls: bool, options: &Options) -> Outcome<Vec<AttackRow>> {
    fs::create_dir(data)?;
    let site = runtime.block_on(Site::start(data, tls))?;
    let fresh = |&attack| Series {
        attack,
        under_attack: Calls::none(),
        calm: Calls::none(),
        held: 0,
        tries: 0,
        memory_mib: 0.0,
    };
    let mut all: Vec<_> = attacks.iter().map(fresh).collect();
    let window = Duration::from_secs_f64(options.window());
    let mut calm = site.callers.run(window)?;
    for round in 1..=options.rounds {
        for series in &mut all {
            eprintln!("round {round} of {}: {}", options.rounds, series.attack.name());
            series.calm.add(&calm);
            let attackers = Attackers::start(series.attack.tactic(&site.target), site.target.address);
            attackers.wait();
            let before = attackers.tally.tries.load(Ordering::Relaxed);
            series.under_attack.add(&site.callers.run(window)?);
            series.tries += attackers.tally.tries.load(Ordering::Relaxed) - before;
            series.held = attackers.tally.held.load(Ordering::Relaxed);
            series.memory_mib = series.memory_mib.max(site.server.memory(&["Rss:"])?);
            drop(attackers);
            std::thread::sleep(RECOVERY);
            calm = site.callers.run(window)?;
            series.calm.add(&calm);
        }
    }
    Ok(all.iter().map(|series| series.row(options.seconds)).collect())
}

impl Series {
    fn row(&self, seconds: f64) -> AttackRow {
        let micros = |calls: &Calls, quantile| calls.latencies.value_at_quantile(quantile) as f64 / 1e3;
        AttackRow {
            name: self.attack.name(),
            p50_micros: micros(&self.under_attack, 0.5),
            p99_micros: micros(&self.under_attack, 0.99),
            calm_p50_micros: micros(&self.calm, 0.5),
            calm_p99_micros: micros(&self.calm, 0.99),
            tasks_per_second: self.under_attack.ended as f64 / seconds,
            // Calm was measured before and after every attack.
            calm_tasks_per_second: self.calm.ended as f64 / (2.0 * seconds),
            held: self.held,
            tries_per_second: self.tries as f64 / seconds,
            memory_mib: self.memory_mib,
        }
    }
}

/// A server, its legitimate callers and the target for attackers.
struct Site {
    callers: Callers,
    target: Target,
    server: Server,
}

impl Site {
    async fn start(data: &Path, tls: bool) -> Outcome<Self> {
        let store = sqlite::open(&data.join("tintype.db"), Clock::system())?;
        let good = fixture::callers(&store, "good", ACCOUNTS).await?;
        let bad = fixture::caller(&store, "bad").await?;
        drop(store);
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned(), REFERENCE_HOST.to_owned()])?;
        let (cert, key) = (data.join("cert.pem"), data.join("key.pem"));
        fs::write(&cert, pair.cert.pem())?;
        fs::write(&key, pair.signing_key.serialize_pem())?;
        let (cert, key) = (cert.display().to_string(), key.display().to_string());
        let trusted = format!("{REFERENCE_HOST}={}", serve_endless_image(&pair).await?);
        // Tasks that fail at once keep the worker off the processor, and each caller has very many.
        let mut flags =
            vec!["--test-reference-host", &trusted, "--test-reference-ca", &cert, "--max-failed-tasks", "0"];
        if tls {
            flags.extend(["--tls-cert", &cert, "--tls-key", &key]);
        }
        let server = Server::start(data, &flags)?;
        let callers = Callers {
            address: server.address,
            keys: good.into_iter().map(|caller| caller.key).collect(),
            tls: if tls { Some(trusting(&pair)?) } else { None },
        };
        let target = Target {
            address: server.address,
            key: bad.key,
            reference: format!("https://{REFERENCE_HOST}/endless.png"),
        };
        Ok(Self { callers, target, server })
    }
}

/// TLS settings that trust this certificate.
fn trusting(pair: &CertifiedKey<KeyPair>) -> Outcome<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(pair.cert.der().clone())?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Serves an image that never ends; returns the address.
async fn serve_endless_image(pair: &CertifiedKey<KeyPair>) -> Outcome<std::net::SocketAddr> {
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der())?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(send_endless_image(stream, acceptor.clone()));
        }
    });
    Ok(address)
}

/// Answers one request byte by byte until the client disconnects.
async fn send_endless_image(stream: TcpStream, acceptor: TlsAcceptor) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    // Any request will do.
    stream.read_u8().await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n\x89PNG\r\n\x1a\n").await?;
    loop {
        stream.write_all(&[0]).await?;
        stream.flush().await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
