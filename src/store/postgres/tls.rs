//! Trust in the server.

use std::path::Path;
use std::sync::Arc;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// What speaks TLS to the server, where the configuration asks for it: trusting the public authorities, or
/// those in the file `ca` alone.
///
/// # Errors
/// A sentence for the operator.
pub(super) fn connector(config: &Config, ca: Option<&Path>) -> std::result::Result<Option<MakeRustlsConnect>, String> {
    if config.get_ssl_mode() == SslMode::Disable {
        return Ok(None);
    }
    let roots = match ca {
        None => RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => authorities(path)?,
    };
    let client = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(MakeRustlsConnect::new(client)))
}

fn authorities(path: &Path) -> std::result::Result<RootCertStore, String> {
    let unusable = |error: &dyn std::fmt::Display| format!("--database-ca {}: {error}", path.display());
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unusable(&error))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unusable(&error))?;
        roots.add(certificate).map_err(|error| unusable(&error))?;
    }
    if roots.is_empty() { Err(unusable(&"it holds no certificate authority in PEM")) } else { Ok(roots) }
}
