//! HTTPS: protocol versions, certificate renewal, and Strict-Transport-Security.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rcgen::{CertifiedKey, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{self, ProtocolVersion, SupportedProtocolVersion};

use crate::rigs::binary::{Ran as _, Run as _, Server, refused, tintype};
use crate::rigs::certificates::{ask, connect_with};
use crate::rigs::http::{TASKS, exchange};
use crate::rigs::service::Service;
use crate::rigs::wait::until;

const BOTH: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

/// A pair of files and the service that serves them.
struct Site {
    files: TempDir,
    pair: CertifiedKey<KeyPair>,
}

impl Site {
    fn new() -> Self {
        let site = Self { files: TempDir::new().expect("a directory"), pair: signed() };
        site.write(&site.pair);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn write(&self, pair: &CertifiedKey<KeyPair>) {
        replace(&self.path("cert.pem"), &pair.cert.pem());
        replace(&self.path("key.pem"), &pair.signing_key.serialize_pem());
    }

    async fn serve(&self, flags: &[&str]) -> Service {
        let (cert, key) = (self.path("cert.pem").display().to_string(), self.path("key.pem").display().to_string());
        Service::start_with(&[&["--tls-cert", &cert, "--tls-key", &key], flags].concat()).await
    }
}

fn signed() -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate")
}

/// Replaces the file by a new one, as tools that renew certificates do.
fn replace(path: &Path, text: &str) {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, text).expect("a file");
    std::fs::rename(&fresh, path).expect("a file");
}

/// A TLS connection of a client that trusts one certificate.
async fn connect(
    service: &Service,
    trusted: &CertifiedKey<KeyPair>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_with(TcpStream::connect(service.address).await?, "localhost", trusted.cert.der(), versions).await
}

async fn until_shown(service: &Service, pair: &CertifiedKey<KeyPair>) {
    until(async || connect(service, pair, BOTH).await.is_ok()).await;
}

#[tokio::test]
async fn certificates_change_without_dropping_connections() {
    let site = Site::new();
    let service = site.serve(&[]).await;
    let mut open = connect(&service, &site.pair, BOTH).await.expect("a handshake");
    assert!(ask(&mut open).await.starts_with("HTTP/1.1 200 "));

    let second = signed();
    site.write(&second);
    until_shown(&service, &second).await;
    assert!(connect(&service, &site.pair, BOTH).await.is_err(), "the old one is gone");
    assert!(ask(&mut open).await.starts_with("HTTP/1.1 200 "), "an open connection goes on");
}

#[tokio::test(start_paused = true)]
async fn a_broken_certificate_keeps_the_old_one() {
    let site = Site::new();
    let service = site.serve(&[]).await;
    for (file, text) in
        ["cert.pem", "key.pem"].into_iter().flat_map(|file| [(file, Some("nonsense")), (file, Some("")), (file, None)])
    {
        site.write(&site.pair);
        match text {
            Some(text) => replace(&site.path(file), text),
            None => std::fs::remove_file(site.path(file)).expect("a file"),
        }
        // The service checks every second, and the paused clock advances only while it is idle.
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(connect(&service, &site.pair, BOTH).await.is_ok(), "{file}: {text:?}");
    }
    let other = signed();
    replace(&site.path("cert.pem"), &site.pair.cert.pem());
    replace(&site.path("key.pem"), &other.signing_key.serialize_pem());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(connect(&service, &site.pair, BOTH).await.is_ok(), "a key of another certificate");
    replace(&site.path("cert.pem"), &other.cert.pem());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(connect(&service, &other, BOTH).await.is_ok(), "the pair is whole again");
}

#[test]
fn a_certificate_or_a_key_that_cannot_be_used_is_named_with_its_fault() {
    let site = Site::new();
    let (cert, key) = (site.path("cert.pem").display().to_string(), site.path("key.pem").display().to_string());
    let data = site.path("data");
    let of_kind = |kind: &str| format!("-----BEGIN {kind}-----\nMAA=\n-----END {kind}-----\n");
    let old = of_kind("RSA PRIVATE KEY").replace("MAA", "Proc-Type: 4,ENCRYPTED\n\nMAA");
    for (text, fault) in [
        (of_kind("ENCRYPTED PRIVATE KEY"), "no private key in PEM, or one with a passphrase".to_owned()),
        (old, "or one with a passphrase".to_owned()),
        (of_kind("PRIVATE KEY"), "must be RSA with 2,048".to_owned()),
        (signed().signing_key.serialize_pem(), format!("not the key of the certificate in {cert}")),
    ] {
        replace(&site.path("key.pem"), &text);
        let said = refused(&data, &["serve", "--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key]);
        assert!(said.contains(&format!("cannot use {key}: ")) && said.contains(&fault), "{said}");
    }
    let said = refused(&data, &["serve", "--listen", "127.0.0.1:0", "--tls-cert", &key, "--tls-key", &key]);
    assert!(said.contains(&format!("cannot use {key}: it has no certificate")), "{said}");
    let said = refused(&data, &["serve", "--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", "/nowhere"]);
    assert!(said.contains("/nowhere"), "{said}");
}

#[test]
fn generate_trusts_a_configured_private_authority() {
    let directory = TempDir::new().expect("a directory");
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (cert, key, out) = (path("cert.pem"), path("key.pem"), path("out"));
    replace(Path::new(&cert), &pair.cert.pem());
    replace(Path::new(&key), &pair.signing_key.serialize_pem());
    let data = directory.path().join("data");
    let server = Server::start(&data, &["--tls-cert", &cert, "--tls-key", &key, "--production"]);
    let api_key = server.first_key().expect("a key");
    let url = format!("https://{}", server.address);
    assert!(server.said.contains(&format!("{url}/api/v1")), "{}", server.said);
    let generate = |more: &[&str]| {
        let fixed = ["generate", "a boat", "--quiet", "--url", &url, "--key", &api_key, "--out", &out];
        tintype().args(fixed).args(more).ran()
    };
    let distrusting = generate(&[]);
    assert_eq!(distrusting.status.code(), Some(1), "{distrusting:?}");
    let trusting = generate(&["--ca", &cert]);
    assert_eq!(trusting.status.code(), Some(0), "{trusting:?}");
    assert_eq!(std::fs::read_dir(&out).expect("a directory").count(), 1);
    for unusable in [&key, "/nowhere"] {
        let output = generate(&["--ca", unusable]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.errors().contains(unusable), "{output:?}");
    }
    server.stop();
}

#[tokio::test]
async fn old_versions_of_tls_are_refused() {
    let site = Site::new();
    let service = site.serve(&[]).await;
    for (version, number) in
        [(&rustls::version::TLS12, ProtocolVersion::TLSv1_2), (&rustls::version::TLS13, ProtocolVersion::TLSv1_3)]
    {
        let stream = connect(&service, &site.pair, &[version]).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.protocol_version(), Some(number));
    }
    for minor in [0, 1, 2] {
        // A ClientHello that offers SSL 3, TLS 1.0 or TLS 1.1 and a cipher of that time.
        let body = [&[3, minor][..], &[7; 32], &[0, 0, 2, 0, 0x2f, 1, 0]].concat();
        let length = body.len() as u8;
        let hello = [&[0x16, 3, minor, 0, length + 4, 1, 0, 0, length][..], &body].concat();
        let mut stream = service.write(&hello).await;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("an end");
        assert_eq!(answer.first(), Some(&0x15), "an alert and nothing else: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tls_handshakes_have_a_time_limit() {
    let site = Site::new();
    let service = site.serve(&[]).await;
    for said in [&b""[..], &[0x16], &[0x16, 3, 1, 0, 200, 1]] {
        let mut stream = service.write(said).await;
        let start = tokio::time::Instant::now();
        let ended = tokio::time::timeout(Duration::from_secs(600), stream.read_to_end(&mut Vec::new())).await;
        drop(ended.expect("the service closes"));
        assert_eq!(start.elapsed().as_secs(), 10, "{said:?}");
    }
}

#[tokio::test]
async fn strict_transport_security_is_sent_only_in_production() {
    let site = Site::new();
    for production in [true, false] {
        let service = site.serve(if production { &["--production"] } else { &[] }).await;
        let caller = service.caller("ada", 10).await;
        for (path, status) in [(TASKS, 200), ("/docs/", 200), ("/nope", 404), ("/healthz", 200)] {
            let stream = connect(&service, &site.pair, BOTH).await.expect("a handshake");
            let request =
                Request::get(path).header("host", "localhost").header("authorization", caller.authorization());
            let answer = exchange(stream, request.body(Full::<Bytes>::default()).expect("a request")).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.headers.contains_key("strict-transport-security"), production, "{path}");
            let plain = caller.get(path).await;
            assert!(!plain.headers.contains_key("strict-transport-security"), "{path}: not over plain HTTP");
        }
        caller.get(TASKS).await.assert_error(401, "UNAUTHORIZED");
    }
}

#[tokio::test(start_paused = true)]
async fn an_https_connection_whose_peer_reads_nothing_is_closed() {
    let site = Site::new();
    let service = site.serve(&["--max-connections-per-address", "1"]).await;
    let mut stream = connect(&service, &site.pair, BOTH).await.expect("a handshake");
    let request = "GET /docs/scalar.js HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request.repeat(16).as_bytes()).await.expect("the service reads");
    // The paused clock advances only while the service waits.
    tokio::time::sleep(Duration::from_secs(120)).await;
    connect(&service, &site.pair, BOTH).await.expect("the place is free again");
}
