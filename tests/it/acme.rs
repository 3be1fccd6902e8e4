//! Certificates from an ACME authority: Pebble, which is made for tests.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rcgen::{CertifiedKey, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use crate::rigs::binary::{Killed, Ran as _, Run as _, Server, tintype};
use crate::rigs::certificates::ask;
use crate::rigs::http::{TASKS, exchange};
use crate::rigs::wait::until_some;
use crate::rigs::{certificates, debian, network};

const NAME: &str = "images.example.com";
const AUTHORITY: &str = "127.0.0.1:14000";
const MANAGEMENT: &str = "127.0.0.1:15000";
const NAMES: &str = "127.0.0.1:8053";

/// A Pebble server that resolves every name to this machine.
struct Authority {
    directory: TempDir,
    pair: CertifiedKey<KeyPair>,
    _processes: [Killed; 2],
}

impl Authority {
    async fn start(validity: Duration) -> Self {
        let directory = TempDir::new().expect("a directory");
        let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let path = |name: &str| directory.path().join(name);
        fs::write(path("cert.pem"), pair.cert.pem()).expect("a file");
        fs::write(path("key.pem"), pair.signing_key.serialize_pem()).expect("a file");
        let config = json!({"pebble": {
            "listenAddress": AUTHORITY, "managementListenAddress": MANAGEMENT, "httpPort": 80, "tlsPort": 443,
            "certificate": path("cert.pem"), "privateKey": path("key.pem"),
            "certificateValidityPeriod": validity.as_secs(),
        }});
        fs::write(path("config.json"), config.to_string()).expect("a file");
        let log = || Stdio::from(File::options().append(true).create(true).open(path("log")).expect("a file"));
        let names = Command::new("pebble-challtestsrv")
            .args(["-dns01", NAMES, "-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-management", ""])
            .stdout(log())
            .spawn();
        let authority = Command::new("pebble")
            .args(["-dnsserver", NAMES, "-config"])
            .arg(path("config.json"))
            // Validate at once instead of after a random time, and reject no valid nonces: a client gives up after too
            // many rejections.
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", "0")
            .stdout(log())
            .spawn();
        let _processes = [names, authority].map(|process| Killed(process.expect("pebble runs")));
        let authority = Self { directory, pair, _processes };
        for address in [AUTHORITY, MANAGEMENT] {
            until_some(async || TcpStream::connect(address).await.ok()).await;
        }
        authority
    }

    /// `tintype serve` with certificates from this authority.
    fn serve(&self, data: &Path) -> Server {
        let mut command = tintype();
        command.args(["serve", "--listen", "127.0.0.1:443", "--log", "info", "--acme-domain", NAME]);
        command.args(["--acme-contact", "ada@example.com", "--acme-directory", &format!("https://{AUTHORITY}/dir")]);
        command.arg("--acme-ca").arg(self.directory.path().join("cert.pem")).arg("--data").arg(data);
        Server::spawn(command)
    }

    /// The number of orders so far.
    fn orders(&self) -> usize {
        let log = fs::read_to_string(self.directory.path().join("log")).expect("a file");
        log.lines().filter(|line| line.contains("There are now") && line.contains("orders in the db")).count()
    }

    async fn root(&self) -> CertificateDer<'static> {
        let stream = connect(MANAGEMENT, "127.0.0.1", self.pair.cert.der()).await.expect("a handshake");
        let request = Request::get("/roots/0").header("host", MANAGEMENT).body(Full::<Bytes>::default());
        let answer = exchange(stream, request.expect("a request")).await;
        CertificateDer::from_pem_slice(&answer.body).expect("a certificate")
    }
}

/// A TLS connection to a server with a certificate for `name` under `root`.
async fn connect(address: &str, name: &str, root: &CertificateDer<'_>) -> std::io::Result<TlsStream<TcpStream>> {
    certificates::connect(TcpStream::connect(address).await?, name, root).await
}

fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().expect("certificates")[0].clone().into_owned()
}

fn kept(data: &Path) -> PathBuf {
    data.join("acme.json")
}

#[tokio::test]
async fn a_certificate_is_ordered_once_and_kept() {
    // Packages cannot be installed inside the namespace.
    debian::needs("pebble", "pebble");
    if !network::is_own("acme::a_certificate_is_ordered_once_and_kept") {
        return;
    }
    let authority = Authority::start(Duration::from_secs(86_400)).await;
    let (root, data) = (authority.root().await, TempDir::new().expect("a directory"));
    let server = authority.serve(data.path());
    let key = server.first_key().expect("a key");
    let stream = until_some(async || connect("127.0.0.1:443", NAME, &root).await.ok()).await;
    let first = shown(&stream);
    let list = Request::get(TASKS).header("host", NAME).header("authorization", format!("Bearer {key}"));
    let answer = exchange(stream, list.body(Full::<Bytes>::default()).expect("a request")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(authority.orders(), 1);
    let mode = fs::metadata(kept(data.path())).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its owner alone");
    server.stop();

    let server = authority.serve(data.path());
    let stream = connect("127.0.0.1:443", NAME, &root).await.expect("the certificate is there from the start");
    assert_eq!(shown(&stream), first);
    assert_eq!(authority.orders(), 1);
    drop(stream);
    server.stop();

    fs::write(kept(data.path()), "nonsense").expect("a file");
    let said =
        tintype().args(["serve", "--listen", "127.0.0.1:443", "--acme-domain", NAME, "--data"]).arg(data.path()).ran();
    assert!(!said.status.success() && said.errors().contains("acme.json"), "{said:?}");
}

#[tokio::test]
async fn a_certificate_is_renewed_without_dropping_connections() {
    // Inside there is no way to install anything.
    debian::needs("pebble", "pebble");
    if !network::is_own("acme::a_certificate_is_renewed_without_dropping_connections") {
        return;
    }
    let authority = Authority::start(Duration::from_secs(15)).await;
    let (root, data) = (authority.root().await, TempDir::new().expect("a directory"));
    let server = authority.serve(data.path());
    let mut open = until_some(async || connect("127.0.0.1:443", NAME, &root).await.ok()).await;
    let first = shown(&open);
    let renewed = async || connect("127.0.0.1:443", NAME, &root).await.ok().filter(|stream| shown(stream) != first);
    until_some(renewed).await;
    assert!(authority.orders() > 1);
    assert!(ask(&mut open).await.starts_with("HTTP/1.1 200 "), "an open connection goes on");
    server.stop();
}
