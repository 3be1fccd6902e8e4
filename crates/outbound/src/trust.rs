//! TLS for clients: trusts the public certificate authorities, compiled in because a machine may have none installed, and
//! the certificates that the operator names.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::WebPkiSupportedAlgorithms;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore};
use tokio_rustls::rustls::{SignatureScheme, crypto};

/// The certificates that a client trusts.
#[derive(Debug)]
pub struct Trusted {
    authorities: RootCertStore,
    /// The configured certificates. One of them can be the server's own.
    named: Vec<CertificateDer<'static>>,
}

/// The public authorities and the certificates in `pem`.
///
/// # Errors
/// A message for the operator: the PEM cannot be read or holds no certificate.
pub fn public_and(pem: Option<&[u8]>) -> Result<Trusted, String> {
    let public = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    match pem {
        None => Ok(Trusted { authorities: public, named: Vec::new() }),
        Some(pem) => with(public, pem),
    }
}

/// The certificates in `pem` and no others.
pub fn only(pem: &[u8]) -> Result<Trusted, String> {
    with(RootCertStore::empty(), pem)
}

fn with(mut authorities: RootCertStore, pem: &[u8]) -> Result<Trusted, String> {
    let named: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let named = named.map_err(|error| format!("the certificates are not valid PEM: {error}"))?;
    if named.is_empty() {
        return Err("there is no certificate authority in the PEM".into());
    }
    for certificate in &named {
        authorities.add(certificate.clone()).map_err(|error| format!("a certificate cannot be used: {error}"))?;
    }
    Ok(Trusted { authorities, named })
}

/// The message about a failed connection, with advice if the certificate of the server is not trusted, or if it does
/// not speak TLS. `setting` is where the operator names certificates to trust.
pub fn explain(failure: String, setting: &str) -> String {
    // Self-signed certificates that are authorities end in the second.
    if ["UnknownIssuer", "CaUsedAsEndEntity"].iter().any(|fault| failure.contains(fault)) {
        return format!(
            "{failure}: if it is the right server, name the file with its certificate or that of its authority in {setting}"
        );
    }
    match failure.contains("InvalidContentType") {
        true => format!("{failure}: the server answers without TLS at this port"),
        false => failure,
    }
}

/// TLS for a client that trusts servers with a certificate for their name.
///
/// # Errors
/// [`rustls::Error`]: the provider supports no TLS version, which does not happen.
pub fn tls(trusted: Trusted) -> Result<ClientConfig, rustls::Error> {
    verified(trusted, true)
}

/// TLS for an HTTP/1.1 client.
pub(super) fn http_tls(trusted: Trusted) -> Result<ClientConfig, rustls::Error> {
    let mut config = tls(trusted)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// TLS for a client that trusts a server's certificate whatever the name in it.
pub fn tls_for_any_name(trusted: Trusted) -> Result<ClientConfig, rustls::Error> {
    verified(trusted, false)
}

fn verified(trusted: Trusted, checks_name: bool) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(crypto::ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { trusted, checks_name, algorithms }))
        .with_no_client_auth();
    Ok(config)
}

/// Verifies a certificate like rustls, but also accepts a self-signed one that the operator names. `openssl req -x509`
/// marks it as an authority, which rustls never takes for a server's.
#[derive(Debug)]
struct Verifier {
    trusted: Trusted,
    checks_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// rustls finds this fault after it has checked the validity of the certificate.
    fn is_named_authority(&self, error: &rustls::Error, certificate: &CertificateDer<'_>) -> bool {
        let rustls::Error::InvalidCertificate(CertificateError::Other(error)) = error else { return false };
        matches!(error.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
            && self.trusted.named.contains(certificate)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let (authorities, algorithms) = (&self.trusted.authorities, self.algorithms.all);
        verify_server_cert_signed_by_trust_anchor(&certificate, authorities, intermediates, now, algorithms)
            .or_else(|error| if self.is_named_authority(&error, end_entity) { Ok(()) } else { Err(error) })?;
        if self.checks_name {
            verify_server_name(&certificate, name)?;
        }
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
