//! Whom this program trusts when it is the client: the public certificate authorities, compiled in, so that a
//! machine without any installed works as well, and those that the operator names.

use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// TLS for a client of HTTP/1.1 that trusts the authorities in `authorities`, in PEM, besides the public ones.
///
/// # Errors
/// A sentence for the operator: the PEM cannot be read.
pub fn client_tls(authorities: Option<&[u8]>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    for certificate in authorities.into_iter().flat_map(CertificateDer::pem_slice_iter) {
        let certificate = certificate.map_err(|error| format!("the certificate authorities are no PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("a certificate authority cannot be used: {error}"))?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
