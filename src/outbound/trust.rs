//! TLS for clients: trusts the public certificate authorities, compiled in because a machine may have none installed, and
//! the authorities that the operator names.

use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto};

/// The public authorities and those in `authorities` (PEM).
///
/// # Errors
/// A sentence for the operator: the PEM cannot be read or holds no certificate authority.
pub fn roots(authorities: Option<&[u8]>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let public = roots.len();
    let Some(pem) = authorities else { return Ok(roots) };
    for authority in CertificateDer::pem_slice_iter(pem) {
        let authority = authority.map_err(|error| format!("the certificate authorities are no valid PEM: {error}"))?;
        roots.add(authority).map_err(|error| format!("a certificate authority cannot be used: {error}"))?;
    }
    if roots.len() == public { Err("there is no certificate authority in the PEM".into()) } else { Ok(roots) }
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
