//! TLS for clients: trusts the public certificate authorities, compiled in because a machine may have none installed, and
//! the authorities that the operator names.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::WebPkiSupportedAlgorithms;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, crypto};

/// The public authorities and those in `authorities` (PEM).
///
/// # Errors
/// A sentence for the operator: the PEM cannot be read or holds no certificate authority.
pub fn roots(authorities: Option<&[u8]>) -> Result<RootCertStore, String> {
    let public = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    match authorities {
        None => Ok(public),
        Some(pem) => with(public, pem),
    }
}

/// The authorities in `pem` and no others.
///
/// # Errors
/// As [`roots`].
pub fn only(pem: &[u8]) -> Result<RootCertStore, String> {
    with(RootCertStore::empty(), pem)
}

fn with(mut roots: RootCertStore, pem: &[u8]) -> Result<RootCertStore, String> {
    let before = roots.len();
    for authority in CertificateDer::pem_slice_iter(pem) {
        let authority = authority.map_err(|error| format!("the certificate authorities are not valid PEM: {error}"))?;
        roots.add(authority).map_err(|error| format!("a certificate authority cannot be used: {error}"))?;
    }
    if roots.len() == before { Err("there is no certificate authority in the PEM".into()) } else { Ok(roots) }
}

/// TLS for a client that trusts `roots`.
///
/// # Errors
/// [`rustls::Error`]: the provider supports no TLS version, which does not happen.
pub fn tls(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// TLS for an HTTP/1.1 client that trusts `roots`.
///
/// # Errors
/// As [`tls`].
pub(super) fn http_tls(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let mut config = tls(roots)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// TLS for a client that trusts every server with a certificate of `roots`, whatever its name.
///
/// # Errors
/// As [`tls`].
pub fn tls_for_any_name(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let mut config = tls(RootCertStore::empty())?;
    let algorithms = config.crypto_provider().signature_verification_algorithms;
    config.dangerous().set_certificate_verifier(Arc::new(AnyName { roots, algorithms }));
    Ok(config)
}

/// Verifies the chain of a certificate, but not the name in it.
#[derive(Debug)]
struct AnyName {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
