//! The OpenID Connect provider of an organisation (OpenID Connect Core 1.0, authorization code flow with PKCE).
//!
//! The operator names the provider, and the provider names its endpoints: callers cannot influence what is requested.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{RequestBuilder, StatusCode};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use url::{Url, form_urlencoded};

use self::claims::NeededClaims;
use self::fields::{Fields, kind, text, text_or_number};
use self::id_token::{Expected, Fault, Signed};
use self::keys::Key;
use self::metadata::{Endpoints, encoded};
use super::{Proxies, client_builder, describe, trust};
use tintype_domain::identity::{AuthenticationRequest, Identity};
use tintype_domain::joining::{Claims, JoinRules};
use tintype_domain::provider::OidcProvider;
use tintype_system::clock::Clock;

mod claims;
mod fields;
mod id_token;
mod keys;
mod metadata;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of one answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const MAX_REDIRECTS: usize = 3;
/// How long the provider's endpoints and keys are cached. Unknown keys are looked up at once.
const METADATA_LIFE: Duration = Duration::from_secs(10 * 60);
/// How long an unreachable provider is left alone.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for the provider of someone who signs out.
const END_SESSION_LIMIT: Duration = Duration::from_secs(2);

/// A provider, and this server as it is registered there.
#[derive(Clone)]
pub struct Registration {
    /// The provider.
    pub provider: OidcProvider,
    /// The URL that the provider sends browsers back to.
    pub redirect: String,
    /// The URL that it sends browsers to after signing out.
    pub post_logout_redirect: String,
}

tintype_domain::opaque_debug!(Registration);

/// A sign-in at the provider came to nothing. For the log: it holds no secret, and no visitor learns it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProviderError {
    /// The provider's answer cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The provider does not take the code, or its answer does not prove who signed in.
    #[error("{0}")]
    Refused(String),
}

/// Someone who has signed in at the provider.
#[derive(Debug, Clone)]
pub struct ProviderSignIn {
    /// The identity.
    pub identity: Identity,
    /// A name for the person to recognise. It proves nothing.
    pub name: String,
    /// The claims that rules for joining look at, as far as there are such rules.
    pub claims: Claims,
    /// The ID token, which the provider may want to see at the sign-out.
    pub id_token: String,
}

#[derive(Debug)]
struct Metadata {
    endpoints: Endpoints,
    keys: Vec<Key>,
}

/// The last answer of the provider, and its time by the monotonic clock.
type CachedMetadata = Option<(Duration, Result<Arc<Metadata>, ProviderError>)>;

/// A provider.
pub struct IdentityProvider {
    registration: Registration,
    client: reqwest::Client,
    clock: Clock,
    cached: Mutex<CachedMetadata>,
    /// The provider refused the secret in the place where it is sent first, and took it in the other.
    wants_other_place: AtomicBool,
}

tintype_domain::opaque_debug!(IdentityProvider);

impl IdentityProvider {
    /// A provider, which is asked when someone wants to sign in.
    pub fn new(registration: Registration, clock: Clock) -> Result<Self, String> {
        // Plain HTTP stays on this machine.
        let is_plain = registration.provider.issuer.starts_with("http:");
        let proxies = if is_plain { Proxies::None } else { Proxies::FromEnvironment };
        let builder = client_builder(registration.provider.authorities.as_deref(), proxies);
        let builder = builder.map_err(|error| format!("--oidc-ca: {error}"))?;
        let client = builder.timeout(ANSWER_LIMIT).redirect(Policy::custom(within_origin)).build();
        let client = client.map_err(|error| format!("HTTP client: {error}"))?;
        Ok(Self { registration, client, clock, cached: Mutex::default(), wants_other_place: AtomicBool::default() })
    }

    /// The URL of the provider.
    pub fn issuer(&self) -> &str {
        &self.registration.provider.issuer
    }

    /// The provider's display name: the configured one, or its host.
    pub fn name(&self) -> Option<&str> {
        let host = || self.issuer().split("://").nth(1)?.split('/').next();
        self.registration.provider.name.as_deref().or_else(host)
    }

    /// The rules for new people to join an account.
    pub fn joins(&self) -> &JoinRules {
        &self.registration.provider.joins
    }

    /// Fetches what a sign-in needs. Returns the scopes to ask for that the provider does not announce.
    pub async fn check(&self) -> Result<Vec<String>, ProviderError> {
        let metadata = self.metadata().await?;
        let Some(announced) = &metadata.endpoints.scopes else { return Ok(Vec::new()) };
        let scopes = self.registration.provider.scopes.iter();
        Ok(scopes.filter(|scope| !announced.contains(scope)).cloned().collect())
    }

    /// The URL at which a browser signs out of the provider too, if the provider has one and answers soon. Okta
    /// refuses, and Keycloak asks the person again, without the ID token of the sign-in.
    pub async fn end_session_url(&self, id_token: Option<&str>) -> Option<String> {
        let metadata = tokio::time::timeout(END_SESSION_LIMIT, self.metadata()).await.ok()?.ok()?;
        let mut target = metadata.endpoints.end_session.clone()?;
        target
            .query_pairs_mut()
            .append_pair("client_id", &self.registration.provider.client_id)
            .append_pair("post_logout_redirect_uri", &self.registration.post_logout_redirect)
            .extend_pairs(id_token.map(|token| ("id_token_hint", token)));
        Some(target.into())
    }

    /// The URL at which a browser begins the authentication request.
    pub async fn authorization_url(&self, authentication: &AuthenticationRequest) -> Result<String, ProviderError> {
        let metadata = self.metadata().await?;
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(authentication.verifier()));
        let mut target = metadata.endpoints.authorization.clone();
        let OidcProvider { client_id, scopes, .. } = &self.registration.provider;
        target
            .query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", client_id)
            .append_pair("state", &authentication.state())
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256")
            .append_pair("redirect_uri", &self.registration.redirect)
            .append_pair("scope", &scopes.join(" "))
            .append_pair("nonce", &authentication.nonce());
        Ok(target.into())
    }

    /// Exchanges the code that a browser came back with. The caller has compared the state, and limits the exchanges.
    pub async fn redeem(
        &self,
        authentication: &AuthenticationRequest,
        code: &str,
    ) -> Result<ProviderSignIn, ProviderError> {
        let mut metadata = self.metadata().await?;
        let answer = self.exchange(&metadata.endpoints, authentication, code).await?;
        let token = text(&answer, "id_token").map_err(|error| ProviderError::Refused(format!("tokens: {error}")))?;
        let mut signed = Signed::read(token, &metadata.keys);
        if let Err(Fault::NoMatchingKey) = signed {
            // The provider may have changed its keys.
            metadata = self.discover().await?;
            signed = Signed::read(token, &metadata.keys);
        }
        let refused = |reason: String| ProviderError::Refused(format!("the ID token: {reason}"));
        let signed = signed.map_err(|fault| refused(fault.reason()))?;
        let subject = self.subject(authentication, &signed, &answer).map_err(refused)?;
        let identity = Identity::new(self.issuer(), &subject).ok_or_else(|| refused("`sub` is too long".into()))?;
        let (name, claims) = self.name_and_claims(&metadata, &signed.claims, &answer, &subject).await?;
        Ok(ProviderSignIn { identity, name, claims, id_token: token.to_owned() })
    }

    /// Checks issuer, audience, age and nonce of the ID token, and that the access token belongs to it. Returns the subject.
    fn subject(
        &self,
        authentication: &AuthenticationRequest,
        signed: &Signed,
        answer: &Fields,
    ) -> Result<String, String> {
        let OidcProvider { client_id, audiences, .. } = &self.registration.provider;
        let nonce = authentication.nonce();
        let expected = Expected {
            issuer: self.issuer(),
            client_id,
            audiences,
            nonce: &nonce,
            now: self.clock.now().as_millis() as f64 / 1_000.0,
        };
        let subject = id_token::subject(&signed.claims, &expected)?;
        if let Ok(access_token) = text(answer, "access_token") {
            signed.check_access_token(access_token)?;
        }
        Ok(subject)
    }

    /// The request to the token endpoint. The secret is sent in one place only, as RFC 6749 (2.3) demands.
    fn token_request(
        &self,
        endpoints: &Endpoints,
        authentication: &AuthenticationRequest,
        code: &str,
        in_header: bool,
    ) -> RequestBuilder {
        let OidcProvider { client_id, client_secret, .. } = &self.registration.provider;
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code").append_pair("code", code);
        form.append_pair("redirect_uri", &self.registration.redirect)
            .append_pair("code_verifier", &authentication.verifier());
        let mut request = self.client.post(endpoints.token.clone());
        match client_secret {
            Some(secret) if in_header => {
                request = request.header(AUTHORIZATION, basic(client_id, secret));
            }
            Some(secret) => {
                form.append_pair("client_id", client_id).append_pair("client_secret", secret);
            }
            None => {
                form.append_pair("client_id", client_id);
            }
        }
        request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.finish())
    }

    /// The token endpoint's answer. A provider that accepts the secret in two places may bind each client to one of
    /// them without saying so, as Authelia, Canaille and Keycloak do.
    async fn exchange(
        &self,
        endpoints: &Endpoints,
        authentication: &AuthenticationRequest,
        code: &str,
    ) -> Result<Fields, ProviderError> {
        let OidcProvider { client_id, client_secret, .. } = &self.registration.provider;
        let secret = client_secret.as_deref();
        let wants_other = self.wants_other_place.load(Ordering::Relaxed);
        let in_header = secret.is_some_and(|secret| endpoints.wants_header(client_id, secret) != wants_other);
        let send = async |in_header| {
            let request = self.token_request(endpoints, authentication, code, in_header);
            let (status, body) = self.body("tokens", request).await?;
            Ok::<_, ProviderError>((status, object("tokens", status, &body)))
        };
        // For a secret in the wrong place, providers return either of two errors, or status 401 with an error of their
        // own or none.
        let is_refused = |(status, answer): &(StatusCode, Result<Fields, ProviderError>)| {
            let error = answer.as_ref().ok().and_then(|answer| answer.get("error")).and_then(Value::as_str);
            *status == StatusCode::UNAUTHORIZED || matches!(error, Some("invalid_client" | "unauthorized_client"))
        };
        let mut answered = send(in_header).await?;
        if is_refused(&answered) && secret.is_some() && endpoints.takes_both() {
            answered = send(!in_header).await?;
            if !is_refused(&answered) {
                self.wants_other_place.store(!wants_other, Ordering::Relaxed);
            }
        }
        let (status, answer) = (answered.0, answered.1?);
        match answer.get("error") {
            Some(Value::String(error)) => {
                let forms = secret.map(|secret| forms(client_id, secret));
                let secrets =
                    [code.to_owned(), authentication.verifier()].into_iter().chain(forms.into_iter().flatten());
                let description = description(&answer, secrets).map(|words| format!(" ({words})")).unwrap_or_default();
                Err(ProviderError::Refused(format!("its token endpoint says {}{description}", word(error))))
            }
            Some(error) if !error.is_null() => {
                Err(ProviderError::Refused(format!("tokens: `error` is {}", kind(Some(error)))))
            }
            _ if !status.is_success() => Err(ProviderError::Unusable(format!("tokens: status {status}"))),
            _ => Ok(answer),
        }
    }

    /// A name for the person, and the claims that rules need. Many providers keep them out of the ID token, and
    /// return them from another endpoint, which is used for nothing else.
    async fn name_and_claims(
        &self,
        metadata: &Metadata,
        token: &Fields,
        answer: &Fields,
        subject: &str,
    ) -> Result<(String, Claims), ProviderError> {
        let OidcProvider { joins, groups_claim, .. } = &self.registration.provider;
        let needed = NeededClaims { email: joins.need_email(), groups: joins.need_groups().then_some(groups_claim) };
        let (needs_more, name) = (needed.is_more_than(token), id_token::name(token));
        let more = match (&metadata.endpoints.userinfo, text(answer, "access_token")) {
            (Some(url), Ok(access_token)) if needs_more || name.is_none() => {
                match self.userinfo(url, &metadata.keys, access_token, subject).await {
                    Ok(more) => more,
                    Err(error) if needs_more => return Err(error),
                    Err(error) => {
                        tracing::debug!(%error, "the OpenID Connect provider sends no name");
                        Fields::new()
                    }
                }
            }
            _ => Fields::new(),
        };
        let refused = |reason: String| ProviderError::Refused(format!("claims: {reason}"));
        let claims = needed.read(token, &more).map_err(refused)?;
        let name = name.or_else(|| id_token::name(&more)).unwrap_or(subject);
        Ok((name.to_owned(), claims))
    }

    /// More claims about the person with the ID token of `subject`. Some providers sign them.
    async fn userinfo(
        &self,
        url: &Url,
        keys: &[Key],
        access_token: &str,
        subject: &str,
    ) -> Result<Fields, ProviderError> {
        let refused = |reason: String| ProviderError::Refused(format!("userinfo: {reason}"));
        let request = self.client.get(url.clone()).bearer_auth(access_token);
        let (status, body) = self.body("userinfo", request).await?;
        if !status.is_success() {
            return Err(ProviderError::Unusable(format!("userinfo: status {status}")));
        }
        let signed = std::str::from_utf8(&body).ok().filter(|text| text.starts_with("ey"));
        let fields = match signed.map(|token| Signed::read(token.trim(), keys)) {
            None => object("userinfo", status, &body)?,
            Some(Ok(signed)) => signed.claims,
            Some(Err(fault)) => return Err(refused(fault.reason())),
        };
        match text_or_number(&fields, "sub").map_err(refused)? == subject {
            true => Ok(fields),
            false => Err(refused("`sub` belongs to another person".into())),
        }
    }

    async fn fields(&self, step: &str, request: RequestBuilder) -> Result<(StatusCode, Fields), ProviderError> {
        let (status, body) = self.body(step, request).await?;
        Ok((status, object(step, status, &body)?))
    }

    /// The bytes that the provider answers.
    async fn body(&self, step: &str, request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), ProviderError> {
        let unusable = |reason: String| ProviderError::Unusable(format!("{step}: {reason}"));
        let failed = |error: reqwest::Error| unusable(trust::explain(describe(&error.without_url()), "--oidc-ca"));
        let mut answer = request.header(ACCEPT, "application/json").send().await.map_err(failed)?;
        let status = answer.status();
        if status.is_redirection() {
            let to = answer.headers().get(LOCATION).and_then(|to| answer.url().join(to.to_str().ok()?).ok());
            let to = to.map_or_else(|| "nowhere".to_owned(), |url| url.origin().ascii_serialization());
            return Err(unusable(format!(
                "status {status}: it redirects to {to}, which is not asked; name the provider's own address with \
                 --oidc-issuer"
            )));
        }
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(failed)? {
            if body.len() + piece.len() > MAX_ANSWER_BYTES {
                return Err(unusable(format!("the answer has more than {MAX_ANSWER_BYTES} bytes")));
            }
            body.extend_from_slice(&piece);
        }
        Ok((status, body))
    }

    /// [`IdentityProvider::ask`] for a document of the provider.
    async fn document(&self, step: &str, url: &str) -> Result<Fields, ProviderError> {
        let (status, fields) = self.fields(step, self.client.get(url)).await?;
        match status.is_success() {
            true => Ok(fields),
            false => Err(ProviderError::Unusable(format!("{step}: status {status}"))),
        }
    }

    /// The endpoints and keys of the provider, as it said some minutes ago at most.
    async fn metadata(&self) -> Result<Arc<Metadata>, ProviderError> {
        let mut cached = self.cached.lock().await;
        if let Some((at, outcome)) = &*cached {
            let age = self.clock.elapsed().saturating_sub(*at);
            if age < if outcome.is_ok() { METADATA_LIFE } else { PAUSE } {
                return outcome.clone();
            }
        }
        let outcome = self.fetch().await;
        *cached = Some((self.clock.elapsed(), outcome.clone()));
        outcome
    }

    /// The endpoints and keys of the provider, fetched now.
    async fn discover(&self) -> Result<Arc<Metadata>, ProviderError> {
        let outcome = self.fetch().await;
        *self.cached.lock().await = Some((self.clock.elapsed(), outcome.clone()));
        outcome
    }

    async fn fetch(&self) -> Result<Arc<Metadata>, ProviderError> {
        let unusable = |step: &'static str| move |reason: String| ProviderError::Unusable(format!("{step}: {reason}"));
        let url = format!("{}/.well-known/openid-configuration", self.issuer().trim_end_matches('/'));
        let document = self.document("discovery", &url).await?;
        let endpoints = Endpoints::read(&document, self.issuer()).map_err(unusable("discovery"))?;
        let document = self.document("keys", endpoints.keys.as_str()).await?;
        Ok(Arc::new(Metadata { keys: keys::read(&document).map_err(unusable("keys"))?, endpoints }))
    }
}

/// Follows a few redirects within one origin: Nextcloud moves its discovery document so.
fn within_origin(attempt: Attempt<'_>) -> Action {
    let is_same = attempt.previous().iter().all(|url| url.origin() == attempt.url().origin());
    if is_same && attempt.previous().len() <= MAX_REDIRECTS { attempt.follow() } else { attempt.stop() }
}

fn object(step: &str, status: StatusCode, body: &[u8]) -> Result<Fields, ProviderError> {
    let json = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    // The reason may quote a token.
    let unusable = |_| ProviderError::Unusable(format!("{step}: status {status} without a JSON object"));
    serde_json::from_slice(json).map_err(unusable)
}

/// The words of an error, unless they quote a secret.
fn description(answer: &Fields, mut secrets: impl Iterator<Item = String>) -> Option<String> {
    let description = answer.get("error_description")?.as_str()?;
    (!secrets.any(|secret| description.contains(&secret))).then(|| words(description))
}

/// The forms in which requests contain a client's secret.
fn forms(id: &str, secret: &str) -> [String; 3] {
    [secret.to_owned(), encoded(secret), pair(id, secret)]
}

/// Id and secret in a header (RFC 6749, 2.3.1).
fn basic(id: &str, secret: &str) -> HeaderValue {
    let mut value =
        HeaderValue::try_from(format!("Basic {}", pair(id, secret))).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

fn pair(id: &str, secret: &str) -> String {
    BASE64_STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)))
}

/// The words of an error (`error_description` of RFC 6749, 4.1.2.1) for a log: only the characters that it allows.
pub fn words(description: &str) -> String {
    description.chars().filter(|char| matches!(char, ' '..='~') && !matches!(char, '"' | '\\')).take(200).collect()
}

/// An error's code (RFC 6749), without anything else that an attacker could write into a log.
pub fn word(code: &str) -> String {
    code.chars().filter(|char| char.is_ascii_alphanumeric() || *char == '_').take(60).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_that_quotes_the_secret_in_any_form_is_not_repeated() {
        let described = |text: &str| {
            let answer = json!({ "error_description": text });
            description(answer.as_object().expect("an object"), forms("tintype", "a+b/c").into_iter())
        };
        for quoted in ["a+b/c", "client_secret=a%2Bb%2Fc", "Basic dGludHlwZTphJTJCYiUyRmM="] {
            assert_eq!(described(&format!("bad: {quoted}")), None, "{quoted}");
        }
        assert_eq!(described("wrong redirect URI").as_deref(), Some("wrong redirect URI"));
    }
}
