//! Whom this program trusts when it is the client: the public certificate authorities, compiled in, so that a
//! machine without any installed works as well, and those that the operator names.

use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto};

/// The public authorities and those in `authorities`, in PEM.
///
/// # Errors
/// A sentence for the operator: the PEM cannot be read, or holds no authority.
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
/// [`rustls::Error`], which is not to be expected.
pub fn tls(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// TLS for a client of HTTP/1.1.
///
/// # Errors
/// [`rustls::Error`], which is not to be expected.
pub fn client_tls(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let mut config = tls(roots)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
