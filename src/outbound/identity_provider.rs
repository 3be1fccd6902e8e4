//! The OpenID Connect provider of an organisation (OpenID Connect Core 1.0, authorization code flow with PKCE).
//!
//! The operator names the provider, and the provider names its endpoints: no caller has a say in what is requested here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use openidconnect::core::{
    CoreAuthenticationFlow, CoreClient, CoreClientAuthMethod, CoreIdTokenClaims, CoreJwsSigningAlgorithm,
    CoreProviderMetadata, CoreTokenResponse,
};
use openidconnect::{
    AccessTokenHash, AsyncHttpClient, AuthType, AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret,
    CsrfToken, EndpointMaybeSet, EndpointNotSet, EndpointSet, HttpRequest, HttpResponse, IssuerUrl, Nonce,
    OAuth2TokenResponse as _, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope,
    SignatureVerificationError, TokenResponse as _,
};
use tokio::sync::Mutex;

use super::{Proxies, client_builder, describe};
use crate::clock::Clock;
use crate::domain::identity::{Identity, Journey};

/// Longest time for one answer of the provider.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of one answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Time for which the endpoints and keys of the provider are kept. An unknown key is looked for at once.
const METADATA_LIFE: Duration = Duration::from_secs(10 * 60);
/// Time for which a provider that could not be reached is not asked again.
const PAUSE: Duration = Duration::from_secs(2);
/// Signatures that no secret of this server makes. A provider chooses among them.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// A provider, and this server as it is registered there.
#[derive(Clone)]
pub struct Registration {
    /// The URL of the provider.
    pub issuer: String,
    /// The id of this server.
    pub client_id: String,
    /// The secret of this server, unless it is a public client.
    pub client_secret: Option<String>,
    /// The URL to which the provider sends browsers back.
    pub redirect: String,
    /// PEM of certificate authorities to trust in addition to the public ones.
    pub authorities: Option<Vec<u8>>,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// A sign-in at the provider came to nothing. For the log: it holds no secret, and no visitor learns it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProviderError {
    /// The provider gives no answer that can be used.
    #[error("{0}")]
    Unusable(String),
    /// The provider does not take the code, or its answer does not prove who signed in.
    #[error("{0}")]
    Refused(String),
}

/// Somebody who has signed in at the provider.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// The identity.
    pub identity: Identity,
    /// A name for the person to recognise. It proves nothing.
    pub name: String,
}

type Endpoints =
    CoreClient<EndpointSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointMaybeSet, EndpointMaybeSet>;

/// The last answer of the provider, and its time by the monotonic clock.
type Heard = Option<(Duration, Result<Arc<CoreProviderMetadata>, ProviderError>)>;

/// A provider.
pub struct IdentityProvider {
    registration: Registration,
    transport: Transport,
    clock: Clock,
    heard: Mutex<Heard>,
}

impl fmt::Debug for IdentityProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityProvider").field("registration", &self.registration).finish_non_exhaustive()
    }
}

/// The way to the provider.
struct Transport {
    client: reqwest::Client,
    /// The provider is on this machine, without https.
    is_plain: bool,
}

/// A request was not answered.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoAnswer(String);

impl Transport {
    /// Sends a request of the library.
    async fn ask(&self, request: HttpRequest) -> Result<HttpResponse, NoAnswer> {
        let failed = |error: reqwest::Error| NoAnswer(describe(&error.without_url()));
        let request = reqwest::Request::try_from(request).map_err(failed)?;
        if request.url().scheme() != "https" && !self.is_plain {
            return Err(NoAnswer("it names an endpoint without https".into()));
        }
        let mut answer = self.client.execute(request).await.map_err(failed)?;
        let mut response = http::Response::new(Vec::new());
        *response.status_mut() = answer.status();
        *response.headers_mut() = std::mem::take(answer.headers_mut());
        while let Some(piece) = answer.chunk().await.map_err(failed)? {
            if response.body().len() + piece.len() > MAX_ANSWER_BYTES {
                return Err(NoAnswer(format!("an answer has more than {MAX_ANSWER_BYTES} bytes")));
            }
            response.body_mut().extend_from_slice(&piece);
        }
        Ok(response)
    }
}

impl<'c> AsyncHttpClient<'c> for Transport {
    type Error = NoAnswer;
    type Future = BoxFuture<'c, Result<HttpResponse, NoAnswer>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.ask(request))
    }
}

impl IdentityProvider {
    /// A provider, which is asked when somebody wants to sign in.
    ///
    /// # Errors
    /// A sentence for the operator: the certificate authorities cannot be used.
    pub fn new(registration: Registration, clock: Clock) -> Result<Self, String> {
        // Plain HTTP stays on this machine.
        let is_plain = registration.issuer.starts_with("http:");
        let proxies = if is_plain { Proxies::None } else { Proxies::FromEnvironment };
        let builder = client_builder(registration.authorities.as_deref(), proxies);
        let builder = builder.map_err(|error| format!("--oidc-ca: {error}"))?;
        let client = builder.timeout(ANSWER_LIMIT).build().map_err(|error| format!("HTTP client: {error}"))?;
        let transport = Transport { client, is_plain };
        Ok(Self { registration, transport, clock, heard: Mutex::default() })
    }

    /// The URL of the provider.
    pub fn issuer(&self) -> &str {
        &self.registration.issuer
    }

    /// The URL at which a browser begins the journey.
    ///
    /// # Errors
    /// [`ProviderError`].
    pub async fn departure(&self, journey: &Journey) -> Result<String, ProviderError> {
        let endpoints = self.endpoints(&*self.metadata().await?)?;
        let challenge = PkceCodeChallenge::from_code_verifier_sha256(&PkceCodeVerifier::new(journey.verifier()));
        let flow = CoreAuthenticationFlow::AuthorizationCode;
        let (state, nonce) = (CsrfToken::new(journey.state()), Nonce::new(journey.nonce()));
        let request = endpoints.authorize_url(flow, move || state, move || nonce);
        // For a name to show.
        let request = request.add_scope(Scope::new("profile".into())).add_scope(Scope::new("email".into()));
        Ok(request.set_pkce_challenge(challenge).url().0.into())
    }

    /// Exchanges the code with which a browser came back. The caller has compared the state, and limits the exchanges.
    ///
    /// # Errors
    /// [`ProviderError`].
    pub async fn arrival(&self, journey: &Journey, code: &str) -> Result<Arrived, ProviderError> {
        let metadata = self.metadata().await?;
        let endpoints = self.endpoints(&metadata)?;
        let exchange = endpoints.exchange_code(AuthorizationCode::new(code.to_owned()));
        let exchange = exchange.map_err(|_| ProviderError::Unusable("it names no token endpoint".into()))?;
        let exchange = exchange.set_pkce_verifier(PkceCodeVerifier::new(journey.verifier()));
        let answer = exchange.request_async(&self.transport).await.map_err(refusal)?;
        let nonce = Nonce::new(journey.nonce());
        match self.verified(&endpoints, &answer, &nonce) {
            Err(ClaimsVerificationError::SignatureVerification(SignatureVerificationError::NoMatchingKey)) => {
                // The provider may have changed its keys.
                let endpoints = self.endpoints(&*self.discover().await?)?;
                self.verified(&endpoints, &answer, &nonce)
            }
            outcome => outcome,
        }
        .map_err(|error| ProviderError::Refused(format!("the ID token: {}", describe(&error))))
    }

    /// Checks signature, issuer, audience, age and nonce of the ID token, and that the access token belongs to it.
    fn verified(
        &self,
        endpoints: &Endpoints,
        answer: &CoreTokenResponse,
        nonce: &Nonce,
    ) -> Result<Arrived, ClaimsVerificationError> {
        let other = |reason: &str| ClaimsVerificationError::Other(reason.to_owned());
        let token = answer.id_token().ok_or_else(|| other("there is none"))?;
        let now = DateTime::<Utc>::from_timestamp_millis(self.clock.now().as_millis()).unwrap_or_default();
        let verifier = endpoints.id_token_verifier().set_allowed_algs(ALGORITHMS).set_time_fn(move || now);
        let claims = token.claims(&verifier, nonce)?;
        if let Some(expected) = claims.access_token_hash() {
            let key = token.signing_key(&verifier).map_err(ClaimsVerificationError::SignatureVerification)?;
            let algorithm = token.signing_alg().map_err(|_| other("its algorithm"))?;
            let found = AccessTokenHash::from_token(answer.access_token(), algorithm, key);
            if found.ok().as_ref() != Some(expected) {
                return Err(other("it belongs to another access token"));
            }
        }
        let identity =
            Identity::new(self.issuer(), claims.subject()).ok_or_else(|| other("its subject is too long"))?;
        Ok(Arrived { name: name(claims).unwrap_or_else(|| identity.subject.clone()), identity })
    }

    fn endpoints(&self, metadata: &CoreProviderMetadata) -> Result<Endpoints, ProviderError> {
        let Registration { client_id, client_secret, redirect, .. } = &self.registration;
        let redirect = RedirectUrl::new(redirect.clone());
        let redirect = redirect.map_err(|_| ProviderError::Unusable("the public URL is not one".into()))?;
        let secret = client_secret.clone().map(ClientSecret::new);
        // Basic is what a provider takes that does not say.
        let methods = metadata.token_endpoint_auth_methods_supported();
        let takes = |method| methods.is_none_or(|methods| methods.contains(&method));
        let basic = takes(CoreClientAuthMethod::ClientSecretBasic);
        let endpoints = CoreClient::from_provider_metadata(metadata.clone(), ClientId::new(client_id.clone()), secret);
        let endpoints = endpoints.set_auth_type(if basic { AuthType::BasicAuth } else { AuthType::RequestBody });
        Ok(endpoints.set_redirect_uri(redirect))
    }

    /// The endpoints and keys of the provider, as it said some minutes ago at most.
    async fn metadata(&self) -> Result<Arc<CoreProviderMetadata>, ProviderError> {
        let mut heard = self.heard.lock().await;
        if let Some((at, outcome)) = &*heard {
            let age = self.clock.elapsed().saturating_sub(*at);
            if age < if outcome.is_ok() { METADATA_LIFE } else { PAUSE } {
                return outcome.clone();
            }
        }
        let outcome = self.fetch().await;
        *heard = Some((self.clock.elapsed(), outcome.clone()));
        outcome
    }

    /// The same, as it says now.
    async fn discover(&self) -> Result<Arc<CoreProviderMetadata>, ProviderError> {
        let outcome = self.fetch().await;
        *self.heard.lock().await = Some((self.clock.elapsed(), outcome.clone()));
        outcome
    }

    async fn fetch(&self) -> Result<Arc<CoreProviderMetadata>, ProviderError> {
        let unusable = |error: &dyn std::error::Error| ProviderError::Unusable(describe(error));
        let issuer = IssuerUrl::new(self.issuer().to_owned()).map_err(|error| unusable(&error))?;
        let found = CoreProviderMetadata::discover_async(issuer, &self.transport).await;
        found.map(Arc::new).map_err(|error| unusable(&error))
    }
}

/// The name that the person probably knows oneself by.
fn name(claims: &CoreIdTokenClaims) -> Option<String> {
    let user = claims.preferred_username().map(|name| name.to_string());
    let email = || claims.email().map(|email| email.to_string());
    let full = || claims.name().and_then(|name| name.get(None)).map(|name| name.to_string());
    user.or_else(email).or_else(full).filter(|name| !name.trim().is_empty())
}

/// A failed exchange. The words of the provider may quote the code, so that only the kind of its error is told.
fn refusal<E, T>(error: RequestTokenError<E, T>) -> ProviderError
where
    E: std::error::Error + 'static,
    T: openidconnect::ErrorResponse + 'static,
{
    match error {
        RequestTokenError::ServerResponse(answer) => {
            let answer = answer.to_string();
            let kind = answer.split([':', ' ']).next().unwrap_or_default();
            ProviderError::Refused(format!("its token endpoint says {}", word(kind)))
        }
        RequestTokenError::Request(error) => ProviderError::Unusable(describe(&error)),
        // The reason may quote a token.
        RequestTokenError::Parse(..) => ProviderError::Unusable("its token endpoint gives no tokens".into()),
        RequestTokenError::Other(error) => ProviderError::Unusable(error),
    }
}

/// The code of an error (RFC 6749), without anything else that a stranger may write into a log.
pub fn word(code: &str) -> String {
    code.chars().filter(|char| char.is_ascii_alphanumeric() || *char == '_').take(60).collect()
}
