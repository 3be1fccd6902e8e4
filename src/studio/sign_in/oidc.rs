//! Signing in at the OpenID Connect provider of an organisation, and linking an identity there with a person here.

use askama::Template;
use axum::http::header::HeaderValue;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;

use super::joining::{follow, join};
use super::{agent, delay_failure, take_slot, without_path_in_referrer};
use crate::service::people::JoinOutcome;
use crate::service::rejections::RejectionLimit;
use crate::service::shares::FairShares;
use crate::studio::cookies::{AUTHENTICATION, with_id_token};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Frame, html, redirect};
use crate::studio::session::{Form, Guest, Visitor, same};
use crate::studio::{RequestContext, Studio};
use tintype_domain::identity::{AuthenticationRequest, Identity, Purpose};
use tintype_domain::signed_tokens::Fact;
use tintype_domain::source::Source;
use tintype_outbound::identity_provider::{IdentityProvider, ProviderError, ProviderSignIn, word, words};
use tintype_store::Proof;
use tintype_system::clock::Clock;

/// Codes of one address that are exchanged at the same time.
const MAX_EXCHANGES_OF_ONE: usize = 4;
/// Codes of all addresses that are exchanged at the same time.
const MAX_EXCHANGES: usize = 32;
/// The page on which people manage their sessions.
const SESSIONS: &str = "/studio/sessions";

#[derive(Template)]
#[template(path = "oidc.html")]
struct LinkPage<'a> {
    frame: Frame<'a>,
    /// The provider's display name.
    provider: &'a str,
    sign_in: &'a ProviderSignIn,
    /// The proof that the provider has shown this identity.
    ticket: String,
}

/// Limits the exchanges with the provider. An authentication request costs nothing to begin, and a code may be
/// anything.
#[derive(Debug)]
pub(in crate::studio) struct Exchanges {
    slots: FairShares<Source>,
    /// Failed authentication requests.
    failed: RejectionLimit<Source>,
}

impl Exchanges {
    pub(in crate::studio) fn new(clock: Clock) -> Self {
        Self { slots: FairShares::limited(MAX_EXCHANGES_OF_ONE, MAX_EXCHANGES), failed: RejectionLimit::new(clock) }
    }
}

impl Studio {
    pub(in crate::studio) fn provider(&self) -> Result<&IdentityProvider, PageError> {
        self.provider.as_ref().ok_or_else(PageError::signed_out)
    }

    /// The provider's display name.
    pub(in crate::studio) fn provider_name(&self) -> Option<&str> {
        self.provider.as_ref()?.name()
    }
}

/// Sends a browser to the provider, to sign someone in.
pub async fn begin_oidc(guest: Guest) -> PageResult {
    check_own_page(guest.headers())?;
    authentication(&guest.studio, &guest.context, Purpose::SignIn).await
}

/// Sends a browser to the provider, for an identity to link with the person who is signed in. Nothing changes before that
/// person has seen the identity and confirmed it.
pub async fn begin_oidc_link(visitor: Visitor, headers: HeaderMap) -> PageResult {
    check_own_page(&headers)?;
    authentication(&visitor.studio, &visitor.context, Purpose::Link(visitor.session.id)).await
}

/// Rejects an authentication request begun by a page on another site. A link, unlike a form, can lead to the provider
/// under our policy.
fn check_own_page(headers: &HeaderMap) -> Result<(), PageError> {
    match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(PageError::forbidden("error-origin")),
    }
}

async fn authentication(studio: &Studio, context: &RequestContext, purpose: Purpose) -> PageResult {
    let authentication = AuthenticationRequest::begin(purpose, studio.shared.store.now());
    let target = studio.provider()?.authorization_url(&authentication).await.map_err(|error| failed(&error))?;
    let response = redirect(&target);
    Ok(AUTHENTICATION.set(
        response,
        context,
        &studio.tickets().await?.sign_authentication(&authentication),
        AuthenticationRequest::life_seconds(),
    ))
}

/// Logs why the sign-in failed, and shows the visitor as much as helps.
fn failed(error: &ProviderError) -> PageError {
    match error {
        ProviderError::Unusable(_) => {
            tracing::warn!(
                %error,
                "the OpenID Connect provider cannot be used: check --oidc-issuer, and that this server can reach it"
            );
            PageError::new(StatusCode::SERVICE_UNAVAILABLE, "oidc-unusable")
        }
        ProviderError::Refused(_) => {
            tracing::warn!(
                %error,
                "a sign-in at the OpenID Connect provider failed: if all do, compare --oidc-client-id, the secret, the \
                 redirect URI and the clock with those of the provider"
            );
            PageError::new(StatusCode::FORBIDDEN, "oidc-failed")
        }
    }
}

/// Completes a sign-in when the browser returns from the provider.
pub async fn oidc_callback(guest: Guest) -> PageResult {
    let response = finish(&guest).await.unwrap_or_else(PageError::into_response);
    // An authentication request ends once. The address holds the code.
    Ok(without_path_in_referrer(AUTHENTICATION.remove(response, &guest.context)))
}

async fn finish(guest: &Guest) -> PageResult {
    let Guest { studio, context, parts } = guest;
    let provider = studio.provider()?;
    let query: Vec<(String, String)> =
        url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let field = |name: &str| query.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value.as_str());
    let lost_because = |reason: &str| {
        tracing::info!(reason, "a sign-in at the OpenID Connect provider was not completed");
        lost()
    };
    let cookie = AUTHENTICATION.read(&parts.headers, context);
    let cookie = cookie.ok_or_else(|| lost_because("the browser sent no cookie for it, or returned a second time"))?;
    let authentication = studio.tickets().await?.verify_authentication(cookie);
    let authentication =
        authentication.ok_or_else(|| lost_because("it began too long ago, or on a server with other keys"))?;
    if !same(field("state"), &authentication.state()) {
        return Err(lost_because("the provider's answer has no `state`, or another one"));
    }
    // RFC 9207: the answer comes from another provider.
    if !["", provider.issuer()].contains(&field("iss")) {
        let issuer = words(field("iss"));
        return Err(lost_because(&format!("the answer's `iss` is {issuer} and not that of --oidc-issuer")));
    }
    if field("code").is_empty() {
        let (error, description) = (word(field("error")), words(field("error_description")));
        tracing::info!(error, description, "sign-in at the OpenID Connect provider failed");
        return Err(PageError::new(StatusCode::FORBIDDEN, "oidc-refused"));
    }
    let sign_in = exchange(guest, &authentication, field("code")).await?;
    match authentication.purpose() {
        Purpose::SignIn => {
            let id_token = sign_in.id_token.clone();
            let response = sign_in_as(guest, &authentication, sign_in).await?;
            Ok(with_id_token(response, context, &id_token))
        }
        Purpose::Link(session) => {
            // The session may have ended while the provider answered.
            let visitor = Visitor::of_now(parts, studio).await.ok();
            let visitor = visitor.filter(|visitor| visitor.session.id == session).ok_or_else(lost)?;
            confirm(&visitor, &sign_in).await
        }
    }
}

/// The authentication request is unknown or over.
pub(super) fn lost() -> PageError {
    PageError::new(StatusCode::FORBIDDEN, "oidc-lost")
}

/// The identity is not linked to a person here.
pub(super) fn unknown() -> PageError {
    PageError::forbidden("oidc-unknown")
}

pub(super) fn disabled() -> PageError {
    PageError::forbidden("oidc-disabled")
}

/// Asks the provider for the identity behind a code. Each address has few exchanges at the same time, and few that come to nothing.
async fn exchange(
    guest: &Guest,
    authentication: &AuthenticationRequest,
    code: &str,
) -> Result<ProviderSignIn, PageError> {
    let Guest { studio, context, .. } = guest;
    if context.source.is_some_and(|source| studio.exchanges.failed.are_too_many(source)) {
        return Err(PageError::busy());
    }
    let slot = take_slot(&studio.exchanges.slots, context)?;
    let outcome = studio.provider()?.redeem(authentication, code).await;
    drop(slot);
    let error = match outcome {
        Ok(sign_in) => return Ok(sign_in),
        Err(error) => error,
    };
    if let Some(source) = context.source {
        studio.exchanges.failed.count(source);
    }
    delay_failure(studio, context).await?;
    Err(failed(&error))
}

/// Signs in the person with this identity. New people join an account by a rule, or get one if sign-up is open; names
/// and email addresses never lead to an existing person's account.
async fn sign_in_as(guest: &Guest, authentication: &AuthenticationRequest, sign_in: ProviderSignIn) -> PageResult {
    let Guest { studio, context, .. } = guest;
    let (people, agent) = (&studio.people, agent(guest.headers()));
    if let Some(person) = studio.shared.store.find_identity(&sign_in.identity).await? {
        follow(studio, &person, &sign_in.claims).await?;
        let proof = Proof::Identity(sign_in.identity, authentication.began_at());
        if let Some(signed_in) = people.sign_in_as(&person, proof, agent).await? {
            return Ok(guest.enter(&signed_in));
        }
        let account = studio.shared.store.find_account(person.account_id.as_str()).await?;
        let is_enabled = account.is_some_and(|account| account.disabled_at.is_none());
        return Err(if is_enabled { lost() } else { disabled() });
    }
    let joins = studio.provider()?.joins();
    if let Some(rule) = joins.first(&sign_in.claims) {
        return join(guest, authentication, sign_in, rule).await;
    }
    let Some(terms) = studio.settings.sign_up else {
        let has_verified_email = sign_in.claims.verified_email.is_some();
        let (rules, groups) = (joins.rules.len(), sign_in.claims.groups.len());
        tracing::info!(
            rules,
            groups,
            has_verified_email,
            "rejected a new person from the OpenID Connect provider: no rule of --oidc-join matches; an address counts \
             only with `email_verified`"
        );
        return Err(unknown());
    };
    let source = context.source.ok_or_else(PageError::not_found)?.to_string();
    match people.sign_up_as(&sign_in.name, sign_in.identity, authentication.began_at(), source, terms, agent).await? {
        JoinOutcome::Done(signed_in) => {
            tracing::info!(account = %signed_in.session.person.account_id, "a person signed up with an identity");
            Ok(guest.enter(&signed_in))
        }
        JoinOutcome::TooManyToday => {
            delay_failure(studio, context).await?;
            Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, "sign-up-often"))
        }
        _ => Err(unknown()),
    }
}

/// Shows an identity to the person who may link it. The browser may have been signed in at the provider as someone
/// else.
async fn confirm(visitor: &Visitor, sign_in: &ProviderSignIn) -> PageResult {
    let ticket = visitor.studio.tickets().await?.issue(visitor.session.id, Fact::Identity(&sign_in.identity));
    let provider = visitor.studio.provider_name().unwrap_or_default();
    let frame = Frame::new("sessions", visitor).await?;
    html(&LinkPage { frame, provider, sign_in, ticket })
}

/// Links the identity of a ticket with the person.
pub async fn link_identity(form: Form) -> PageResult {
    let Form { visitor, fields, .. } = form;
    let (studio, session, person) = (&visitor.studio, visitor.session.id, &visitor.session.person);
    let identity = Identity::new(studio.provider()?.issuer(), fields.text("subject"));
    let tickets = studio.tickets().await?;
    let identity = identity.filter(|identity| tickets.verify(fields.text("ticket"), session, Fact::Identity(identity)));
    let identity = identity.ok_or_else(lost)?;
    if !visitor.store().link_identity(person.id, &identity).await? {
        return Err(PageError::new(StatusCode::CONFLICT, "oidc-taken"));
    }
    tracing::info!(person = %person.id, "a person linked an identity");
    Ok(redirect(SESSIONS))
}

/// Removes the identity of the person, who needs a password then.
pub async fn unlink_identity(form: Form) -> PageResult {
    let Form { visitor, .. } = form;
    let person = &visitor.session.person;
    let issuer = visitor.studio.provider()?.issuer();
    if !person.has_password {
        return Err(PageError::new(StatusCode::CONFLICT, "oidc-only"));
    }
    // The next sign-in would make a new person, by a rule or by signing up.
    if person.suspension.is_some() {
        return Err(PageError::new(StatusCode::CONFLICT, "suspended"));
    }
    visitor.store().unlink_identity(person.id, issuer).await?;
    tracing::info!(person = %person.id, "a person removed an identity");
    Ok(redirect(SESSIONS))
}

impl Visitor {
    /// The name of the provider, and whether the person has an identity there.
    pub(in crate::studio) async fn provider(&self) -> Result<Option<(String, bool)>, PageError> {
        let Some(provider) = &self.studio.provider else { return Ok(None) };
        let linked = self.studio.shared.store.has_identity(self.person_id(), provider.issuer()).await?;
        Ok(self.studio.provider_name().map(|name| (name.to_owned(), linked)))
    }
}
