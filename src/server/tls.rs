//! The certificate that HTTPS is served with, read anew when its files change.

use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};

use crate::config::CERTIFICATE_CHECK_EVERY;

/// A certificate chain and its key, and the files they come from.
#[derive(Debug)]
pub struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

/// What tells one state of a file from the next, without reading it.
type Trace = (u64, u64, i64, i64, i64, i64);

impl Certificate {
    /// Reads a certificate chain and its key, both in PEM.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn read(cert: &Path, key: &Path) -> Result<Arc<Self>, String> {
        let current = RwLock::new(read_pair(cert, key)?);
        Ok(Arc::new(Self { cert: cert.to_owned(), key: key.to_owned(), current }))
    }

    /// What accepts TLS connections with whatever certificate is the current one.
    pub(super) fn acceptor(self: &Arc<Self>) -> TlsAcceptor {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("the provider knows both versions")
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// Looks for new files for ever. Connections that are open go on with what they began with.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut seen = self.traces().ok();
        let mut ticks = tokio::time::interval(CERTIFICATE_CHECK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let traces = self.traces();
            let found = traces.as_ref().ok().copied();
            if found == seen {
                continue;
            }
            seen = found;
            let pair = match traces {
                Ok(_) => read_pair(&self.cert, &self.key),
                Err(error) => Err(error.to_string()),
            };
            match pair {
                Ok(pair) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = pair;
                    tracing::info!("the certificate was read anew");
                }
                Err(error) => tracing::error!(error, "the new certificate cannot be used; the old one is served on"),
            }
        }
    }

    fn traces(&self) -> io::Result<[Trace; 2]> {
        Ok([trace(&self.cert)?, trace(&self.key)?])
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn trace(path: &Path) -> io::Result<Trace> {
    let of = std::fs::metadata(path)?;
    Ok((of.ino(), of.size(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()))
}

/// Reads both files and sees to it that they belong together.
fn read_pair(cert: &Path, key: &Path) -> Result<Arc<CertifiedKey>, String> {
    let unusable = |path: &Path, error: &dyn Display| format!("cannot use {}: {error}", path.display());
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(|error| unusable(cert, &error))?;
    if chain.is_empty() {
        return Err(unusable(cert, &"there is no certificate in it"));
    }
    let der = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
    let pair = CertifiedKey::from_der(chain, der, &ring::default_provider());
    pair.map(Arc::new).map_err(|error| unusable(cert, &error))
}
