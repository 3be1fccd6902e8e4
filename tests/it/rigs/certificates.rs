//! Certificates for servers of the tests, each signed by an authority of its own, and clients that trust one.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, DEFAULT_VERSIONS, RootCertStore, ServerConfig, SupportedProtocolVersion, crypto,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, server};

/// A certificate for `host`, and the PEM of the authority that signed it.
pub fn certificate(host: &str) -> (TlsAcceptor, String) {
    certificate_with(CertificateParams::new([host.to_owned()]).unwrap())
}

/// A certificate with these parameters, and the PEM of the authority that signed it.
pub fn certificate_with(leaf: CertificateParams) -> (TlsAcceptor, String) {
    let mut ca_params = CertificateParams::default();
    ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca_params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = leaf.signed_by(&key, &ca).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), ca.pem())
}

/// Begins TLS with the server of this name, as a client that trusts one certificate alone.
pub async fn connect(
    stream: TcpStream,
    name: &str,
    trusted: &CertificateDer<'_>,
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_with(stream, name, trusted, DEFAULT_VERSIONS).await
}

/// Begins TLS with these versions of it.
pub async fn connect_with(
    stream: TcpStream,
    name: &str,
    trusted: &CertificateDer<'_>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone().into_owned()).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Asks for the health of a server, and returns what comes first.
pub async fn ask(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("an open connection");
    let mut buffer = [0; 4_096];
    let read = stream.read(&mut buffer).await.expect("an answer");
    String::from_utf8_lossy(&buffer[..read]).into_owned()
}

/// Accepts TLS, and reads the head of a request; `None` if the caller goes early.
pub async fn accept(stream: TcpStream, tls: &TlsAcceptor) -> Option<(server::TlsStream<TcpStream>, String)> {
    let mut stream = tls.accept(stream).await.ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some((stream, String::from_utf8(head).expect("a head in ASCII")))
}
