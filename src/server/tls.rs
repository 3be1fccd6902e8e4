//! The certificate of the HTTPS server, which is reloaded when its files change or obtained from an ACME authority.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{Error, ServerConfig, ServerConnection};

use super::acme::Authority;
use tintype_config::AcmeSettings;
use tintype_system::clock::Clock;
use tintype_system::watched_files::{self, SeenFile, WatchedFiles};

/// The ALPN protocol of TLS-ALPN-01 challenges (RFC 8737).
const ACME_PROTOCOL: &[u8] = b"acme-tls/1";

/// The certificate of a server and its source.
#[derive(Debug)]
pub struct Certificate {
    origin: Origin,
    current: RwLock<Option<Arc<CertifiedKey>>>,
    /// Certificates that answer challenges, by host name.
    challenges: RwLock<HashMap<String, Arc<CertifiedKey>>>,
}

#[derive(Debug)]
enum Origin {
    Files { cert: PathBuf, watched: WatchedFiles },
    Authority(Authority),
}

impl Certificate {
    /// Reads a certificate chain and its key, both in PEM.
    pub fn read(cert: &Path, key: &Path) -> Result<Arc<Self>, String> {
        let watched = WatchedFiles::new(vec![SeenFile::now(cert), SeenFile::now(key)]);
        let current = read_pair(cert, key)?;
        Ok(Self::new(Origin::Files { cert: cert.to_owned(), watched }, Some(current)))
    }

    /// Loads the certificate of an earlier order from the data directory. Without one the server has no certificate
    /// until the authority has validated its names.
    pub fn order(settings: &AcmeSettings, data: &Path, clock: Clock) -> Result<Arc<Self>, String> {
        let authority = Authority::new(settings, data, clock)?;
        let current = authority.saved_pair()?;
        Ok(Self::new(Origin::Authority(authority), current))
    }

    fn new(origin: Origin, current: Option<Arc<CertifiedKey>>) -> Arc<Self> {
        Arc::new(Self { origin, current: RwLock::new(current), challenges: RwLock::default() })
    }

    /// Creates an acceptor that uses the current certificate for each new connection.
    pub(super) fn acceptor(self: &Arc<Self>) -> TlsAcceptor {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("the provider knows both versions")
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if matches!(self.origin, Origin::Authority(_)) {
            config.alpn_protocols.push(ACME_PROTOCOL.to_vec());
        }
        TlsAcceptor::from(Arc::new(config))
    }

    /// Watches for new certificates forever. Open connections keep their certificate.
    pub(super) async fn watch(self: Arc<Self>) {
        match &self.origin {
            Origin::Files { cert, watched } => {
                watched_files::follow("certificate", || self.refresh(cert, watched)).await;
            }
            Origin::Authority(authority) => authority.keep(&self).await,
        }
    }

    /// Reads the files again if they have changed.
    async fn refresh(self: &Arc<Self>, cert: &Path, watched: &WatchedFiles) -> Result<bool, String> {
        let certificate = self.clone();
        let read = move |seen: &mut Vec<SeenFile>| {
            seen.iter_mut().for_each(|seen| *seen = SeenFile::now(&seen.path));
            certificate.install(read_pair(&seen[0].path, &seen[1].path)?);
            Ok(true)
        };
        watched.refresh(cert, read).await
    }

    pub(super) fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn install(&self, pair: Arc<CertifiedKey>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(pair);
    }

    /// Sets the certificate that answers a challenge for `name`.
    pub(super) fn answer_challenge(&self, name: String, answer: Arc<CertifiedKey>) {
        self.challenges.write().unwrap_or_else(PoisonError::into_inner).insert(name, answer);
    }

    pub(super) fn forget_challenges(&self) {
        self.challenges.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Whether a connection was made only to validate a challenge.
pub(super) fn is_challenge(connection: &ServerConnection) -> bool {
    connection.alpn_protocol() == Some(ACME_PROTOCOL)
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let offered = hello.alpn().is_some_and(|mut names| names.any(|name| name == ACME_PROTOCOL));
        if offered && matches!(self.origin, Origin::Authority(_)) {
            let challenges = self.challenges.read().unwrap_or_else(PoisonError::into_inner);
            return challenges.get(hello.server_name()?).cloned();
        }
        self.current()
    }
}

/// Reads both files and checks that they belong together.
fn read_pair(cert: &Path, key: &Path) -> Result<Arc<CertifiedKey>, String> {
    let unusable = |path: &Path, error: &dyn Display| format!("cannot use {}: {error}", path.display());
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(|error| unusable(cert, &error))?;
    if chain.is_empty() {
        return Err(unusable(cert, &"it has no certificate in PEM"));
    }
    let der = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        pem::Error::NoItemsFound => unusable(key, &"it has no private key in PEM, or one with a passphrase"),
        // OpenSSL's old form with a passphrase has headers before the Base64.
        pem::Error::Base64Decode(_) => unusable(key, &"its private key is damaged, or one with a passphrase"),
        error => unusable(key, &error),
    })?;
    CertifiedKey::from_der(chain, der, &ring::default_provider()).map(Arc::new).map_err(|error| match error {
        Error::InconsistentKeys(_) => {
            unusable(key, &format!("it is not the key of the certificate in {}", cert.display()))
        }
        Error::General(_) => unusable(key, &"it must be RSA with 2,048 to 4,096 bits, P-256, P-384 or Ed25519"),
        error => unusable(cert, &error),
    })
}
