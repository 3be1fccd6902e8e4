//! TLS for a client that trusts the public certificate authorities, compiled in, and those that the user names.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore, crypto};

use super::SetupError;

/// TLS for HTTP/1.1 that trusts the public authorities and those in `authorities` (PEM).
pub(super) fn config(authorities: Option<&[u8]>) -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(pem) = authorities {
        let named: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let named = named.ok().filter(|named| !named.is_empty()).ok_or(SetupError::Authority)?;
        for authority in named {
            roots.add(authority).map_err(|_| SetupError::Authority)?;
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
