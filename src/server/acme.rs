//! Certificates from an ACME authority (RFC 8555), validated by TLS-ALPN-01 (RFC 8737): the authority connects to the
//! HTTPS port of this server, so no other port is needed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use instant_acme::{
    Account, AuthorizationStatus, BodyWrapper, BytesResponse, ChallengeType, HttpClient, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::tls::Certificate;
use super::validity::Validity;
use tintype_config::AcmeSettings;
use tintype_outbound::{Proxies, client_builder};
use tintype_system::clock::Clock;
use tintype_system::data_dir::write_private;

/// File in the data directory with the account and the certificate.
const SAVED: &str = "acme.json";
/// Longest wait for a connection, and for the next byte of a response.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const READ_LIMIT: Duration = Duration::from_secs(30);
const ORDER_LIMIT: Duration = Duration::from_secs(5 * 60);
/// Time limit for the validation by the authority, and again for the signature.
const PATIENCE: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(90));
/// Pause after a failed order, doubled after each further failure.
const FIRST_RETRY: Duration = Duration::from_secs(60);
/// Longest pause. Authorities limit failures, typically to five per hour and name.
const LAST_RETRY: Duration = Duration::from_secs(60 * 60);
/// Interval at which the expiry is checked, because the clock may be set.
const LOOK_EVERY: Duration = Duration::from_secs(60 * 60);
/// Largest response of an authority, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The authority, and the names to order certificates for.
#[derive(Debug)]
pub(super) struct Authority {
    names: Vec<String>,
    contact: Option<String>,
    directory: String,
    http: reqwest::Client,
    path: PathBuf,
    clock: Clock,
}

/// The state that survives a restart, including the private keys of the account and of the certificate.
#[derive(Default, Serialize, Deserialize)]
struct Saved {
    directory: String,
    names: Vec<String>,
    account: Option<serde_json::Value>,
    chain: String,
    key: String,
}

impl Authority {
    /// Prepares orders according to the settings, without connecting.
    pub(super) fn new(settings: &AcmeSettings, data: &Path, clock: Clock) -> Result<Self, String> {
        let pem = settings
            .acme_ca
            .as_ref()
            .map(|path| fs::read(path).map_err(|error| format!("cannot read --acme-ca {}: {error}", path.display())));
        let builder = client_builder(pem.transpose()?.as_deref(), Proxies::FromEnvironment);
        let http = builder.map_err(|error| error.to_string())?.connect_timeout(CONNECT_LIMIT).read_timeout(READ_LIMIT);
        let http = http.build().map_err(|error| error.to_string())?;
        Ok(Self {
            names: settings.acme_domain.clone(),
            contact: settings.acme_contact.as_ref().map(|address| format!("mailto:{address}")),
            directory: settings.acme_directory.clone(),
            http,
            path: data.join(SAVED),
            clock,
        })
    }

    /// Loads the certificate of an earlier order for the same names, if there is one.
    ///
    /// # Errors
    /// A message for the operator: the certificate exists but cannot be used.
    pub(super) fn saved_pair(&self) -> Result<Option<Arc<CertifiedKey>>, String> {
        let unusable = |error: AnyError| format!("cannot use {}: {error}", self.path.display());
        let saved = self.load().map_err(unusable)?;
        if saved.names != self.names || saved.chain.is_empty() {
            return Ok(None);
        }
        pair(&saved.chain, &saved.key).map(Some).map_err(unusable)
    }

    /// Orders certificates forever, each in time before the previous one expires.
    pub(super) async fn keep(&self, certificate: &Certificate) {
        let mut retry = FIRST_RETRY;
        loop {
            if let Some(wait) = certificate.current().and_then(|current| self.until_renewal(&current)) {
                tokio::time::sleep(wait.min(LOOK_EVERY)).await;
                continue;
            }
            let ordered = tokio::time::timeout(ORDER_LIMIT, self.order(certificate)).await;
            certificate.forget_challenges();
            let error = match ordered.unwrap_or_else(|_| Err("the order took too long".into())) {
                Ok(pair) => {
                    tracing::info!(names = ?self.names, "the authority issued a certificate");
                    certificate.install(pair.clone());
                    match self.until_renewal(&pair) {
                        Some(_) => {
                            retry = FIRST_RETRY;
                            continue;
                        }
                        None => "the issued certificate has already expired: check the clock".to_owned(),
                    }
                }
                Err(error) => error,
            };
            let seconds = retry.as_secs();
            tracing::error!(names = ?self.names, error, "no valid certificate; retrying in {seconds} s");
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(LAST_RETRY);
        }
    }

    /// Time until the renewal of a certificate is due; `None` if it is due now.
    fn until_renewal(&self, pair: &CertifiedKey) -> Option<Duration> {
        let validity = Validity::of(pair.cert.first()?)?;
        // The last third of its lifetime is left for retries.
        let due = validity.from.saturating_add(validity.length() * 2 / 3);
        Some(due.since(self.clock.now())).filter(|wait| !wait.is_zero())
    }

    async fn order(&self, certificate: &Certificate) -> Result<Arc<CertifiedKey>, String> {
        self.try_order(certificate).await.map_err(|error| error.to_string())
    }

    async fn try_order(&self, certificate: &Certificate) -> Result<Arc<CertifiedKey>, AnyError> {
        let (account, mut saved) = self.account().await?;
        let names: Vec<_> = self.names.iter().cloned().map(Identifier::Dns).collect();
        let mut order = account.new_order(&NewOrder::new(&names)).await?;
        convince(&mut order, certificate).await?;
        if order.poll_ready(&PATIENCE).await? != OrderStatus::Ready {
            return Err(why_refused(&mut order).await.into());
        }
        saved.key = order.finalize().await?;
        saved.chain = order.poll_certificate(&PATIENCE).await?;
        saved.names.clone_from(&self.names);
        let pair = pair(&saved.chain, &saved.key)?;
        self.write(&saved)?;
        Ok(pair)
    }

    /// Returns the account of earlier orders, or creates one.
    async fn account(&self) -> Result<(Account, Saved), AnyError> {
        let mut saved = self.load()?;
        let builder = Account::builder_with_http(Box::new(Web(self.http.clone())));
        if let Some(credentials) = saved.account.clone() {
            return Ok((builder.from_credentials(serde_json::from_value(credentials)?).await?, saved));
        }
        let contact: Vec<_> = self.contact.iter().map(String::as_str).collect();
        let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let (account, credentials) = builder.create(&new, self.directory.clone(), None).await?;
        saved.account = Some(serde_json::to_value(credentials)?);
        self.write(&saved)?;
        Ok((account, saved))
    }

    /// Loads the state of earlier orders with the same authority.
    fn load(&self) -> Result<Saved, AnyError> {
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            text => Some(text?),
        };
        let saved: Option<Saved> = text.map(|text| serde_json::from_slice(&text)).transpose()?;
        let same = saved.filter(|saved| saved.directory == self.directory);
        Ok(same.unwrap_or_else(|| Saved { directory: self.directory.clone(), ..Saved::default() }))
    }

    /// Replaces the stored state durably; only the owner can read it.
    fn write(&self, saved: &Saved) -> Result<(), AnyError> {
        Ok(write_private(&self.path, &serde_json::to_vec_pretty(saved)?)?)
    }
}

/// Proves to the authority that this server controls each of the names.
async fn convince(order: &mut Order, certificate: &Certificate) -> Result<(), AnyError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => return Err(format!("the authorization has the unexpected status {status:?}").into()),
        }
        let mut challenge =
            authorization.challenge(ChallengeType::TlsAlpn01).ok_or("the authority does not offer TLS-ALPN-01")?;
        let name = challenge.identifier().to_string();
        let answer = challenge_pair(&name, challenge.key_authorization().digest().as_ref())?;
        certificate.answer_challenge(name, answer);
        challenge.set_ready().await?;
    }
    Ok(())
}

/// Describes why the authority could not validate the names.
async fn why_refused(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { continue };
        let name = state.identifier().to_string();
        let errors = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        reasons.extend(errors.map(|error| format!("{name}: {error}")));
    }
    format!("the authority could not validate the names: {}", reasons.join("; "))
}

/// Creates the certificate that answers a challenge (RFC 8737, section 3).
fn challenge_pair(name: &str, digest: &[u8]) -> Result<Arc<CertifiedKey>, AnyError> {
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let chain = vec![params.self_signed(&key)?.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    // `from_der` would parse the certificate and reject this extension as unknown.
    Ok(Arc::new(CertifiedKey::new(chain, ring::default_provider().key_provider.load_private_key(key)?)))
}

fn pair(chain: &str, key: &str) -> Result<Arc<CertifiedKey>, AnyError> {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &ring::default_provider())?))
}

struct Web(reqwest::Client);

impl HttpClient for Web {
    fn request(
        &self,
        request: http::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let client = self.0.clone();
        let answer = async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let request = reqwest::Request::try_from(http::Request::from_parts(parts, body))?;
            let answer: http::Response<reqwest::Body> = client.execute(request).await?.into();
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok(BytesResponse { parts, body: Box::new(body) })
        };
        Box::pin(async move { answer.await.map_err(|error: AnyError| instant_acme::Error::Other(error)) })
    }
}
