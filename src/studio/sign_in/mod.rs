//! Signing in, by a link or with a password, and out.

use askama::Template;
use axum::body::Body;
use axum::extract::Path;
use axum::http::header::{self, HeaderValue};
use axum::http::{HeaderMap, Response, StatusCode};

use self::second_factor::ask_for_code;
use super::cookies::{ID_TOKEN, RETURN_TO, SECRET, SESSION, has_unsent_form, page_after_sign_in};
use super::error::{PageError, PageResult};
use super::page::{html, redirect};
use super::session::{Form, Guest, GuestForm, Visitor, WithoutSecondFactor, check_origin, with_session};
use super::texts::Texts;
use super::{HOME, RequestContext, SIGN_IN, Studio};
use crate::service::auth_throttle::FailureDelay;
use crate::service::people::{SignIn, SignedIn};
use crate::service::shares::{FairShares, Share};
use tintype_domain::passwords::InvalidPassword;
use tintype_domain::person::{Person, Token, person_name};
use tintype_domain::source::Source;

pub(super) mod confirmation;
mod joining;
pub(crate) mod oidc;
pub(crate) mod second_factor;
pub(crate) mod sign_up;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    t: &'a Texts,
    name: &'a str,
    /// The key of the text that says why the person is here.
    notice: Option<&'a str>,
    /// Whether sign-up is open.
    open: bool,
    /// The host of the OpenID Connect provider.
    provider: Option<&'a str>,
}

impl<'a> SignInPage<'a> {
    /// Whether name and password were rejected. The form then starts at the password, whatever the name was.
    fn has_failed(&self) -> bool {
        self.notice == Some("sign-in-failed")
    }

    fn new(guest: &'a Guest, name: &'a str, notice: Option<&'a str>) -> Self {
        let (open, provider) = (guest.studio.settings.sign_up.is_some(), guest.studio.provider_name());
        Self { t: guest.texts(), name, notice, open, provider }
    }
}

#[derive(Template)]
#[template(path = "link.html")]
struct LinkPage<'a> {
    t: &'a Texts,
    /// The page's path, to which the language choice returns.
    path: &'a str,
    /// The person; `None` for a link that is no longer valid.
    person: Option<&'a str>,
}

/// The page on which people sign in.
pub async fn sign_in(visitor: Result<Visitor, PageError>, guest: Guest) -> PageResult {
    if visitor.is_ok() {
        return Ok(redirect(HOME));
    }
    let notice = has_unsent_form(guest.headers(), &guest.context).then_some("session-ended");
    html(&SignInPage::new(&guest, "", notice))
}

/// Signs in with name and password. Whether the name exists shows neither in the answer nor in its time. Failures of one
/// source wait longer and longer, and attempts with one name are limited whatever their source.
pub async fn by_password(GuestForm { guest, fields }: GuestForm) -> PageResult {
    let (studio, context) = (&guest.studio, &guest.context);
    let address = Address(context.source);
    let name = person_name(fields.text("name")).unwrap_or_default();
    if !studio.sign_in_attempts.allow(&name, context.source) {
        tracing::warn!(%address, "refused a sign-in: too many attempts with that name within a minute");
        delay_failure(studio, context).await?;
        return Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, "sign-in-often"));
    }
    let slot = take_slot(&studio.hashes, context)?;
    let signed_in = studio.people.sign_in(&name, fields.text("password").to_owned(), agent(guest.headers())).await?;
    drop(slot);
    if let Some(answer) = answer_to(&guest, signed_in).await {
        return answer;
    }
    // The name is logged only if a person has it: another one may be a password in the wrong field.
    match studio.shared.store.find_person(&name).await? {
        Some(_) => tracing::warn!(?name, %address, "sign-in failed: wrong password, or the account is disabled"),
        None => tracing::warn!(%address, "sign-in failed: unknown name"),
    }
    delay_failure(studio, context).await?;
    html(&SignInPage::new(&guest, fields.text("name"), Some("sign-in-failed")))
}

/// The answer to a sign-in that was not refused.
async fn answer_to(guest: &Guest, signed_in: SignIn) -> Option<PageResult> {
    match signed_in {
        SignIn::Done(signed_in) => Some(Ok(guest.enter(&signed_in))),
        SignIn::NeedsCode(person, first) => Some(ask_for_code(guest, &person, &first).await),
        SignIn::Refused => None,
    }
}

/// The name of the text that says why a password may not be set.
pub(super) fn password_refusal(invalid: InvalidPassword) -> &'static str {
    match invalid {
        InvalidPassword::Length => "password-short",
        InvalidPassword::Common => "password-common",
        InvalidPassword::Name => "password-name",
    }
}

/// Takes a slot for the address of a request, before anything costs time.
pub(super) fn take_slot(slots: &FairShares<Source>, context: &RequestContext) -> Result<Share<Source>, PageError> {
    slots.try_take(context.source).map_err(|_| PageError::busy())
}

/// The source of a request, for the log.
pub(super) struct Address(pub(super) Option<Source>);

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(source) => source.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

fn link_page(guest: &Guest, person: Option<&Person>) -> PageResult {
    let page = LinkPage { t: guest.texts(), path: guest.path(), person: person.map(|person| person.name.as_str()) };
    html(&page).map(without_path_in_referrer)
}

/// Shows a link with a button: programs that look at links before a person does must not use it up.
pub async fn link(Path(token): Path<String>, guest: Guest) -> PageResult {
    let person = match Token::parse(&token) {
        Some(token) => guest.studio.people.of_link(&token).await?,
        None => None,
    };
    link_page(&guest, person.as_ref())
}

/// Uses a link up.
pub async fn by_link(Path(token): Path<String>, guest: Guest) -> PageResult {
    check_origin(&guest.studio, &guest.parts)?;
    let signed_in = match Token::parse(&token) {
        Some(token) => guest.studio.people.sign_in_by_link(&token, agent(guest.headers())).await?,
        None => SignIn::Refused,
    };
    if let Some(answer) = answer_to(&guest, signed_in).await {
        return answer;
    }
    delay_failure(&guest.studio, &guest.context).await?;
    link_page(&guest, None)
}

#[derive(Template)]
#[template(path = "signed_out.html")]
struct SignedOutPage<'a> {
    t: &'static Texts,
    provider: &'a str,
    /// The URL at which the provider signs the browser out, too.
    target: String,
}

/// Ends the session. If it began at a provider with a sign-out, a page continues there, because our policy doesn't let
/// forms lead elsewhere.
pub async fn sign_out(headers: HeaderMap, WithoutSecondFactor(form): WithoutSecondFactor<Form>) -> PageResult {
    let Visitor { session, context, .. } = &form.visitor;
    form.visitor.store().end_session(session.person.id, session.id).await?;
    let studio = &form.visitor.studio;
    let end_session_url = match &studio.provider {
        Some(provider) if session.by_provider => provider.end_session_url(ID_TOKEN.read(&headers, context)).await,
        _ => None,
    };
    let Some(target) = end_session_url else {
        return Ok(without_session(redirect(SIGN_IN), context));
    };
    let refresh = HeaderValue::try_from(format!("0; url={target}"));
    let provider = studio.provider_name().unwrap_or_default();
    let mut response = html(&SignedOutPage { t: form.visitor.texts, provider, target })?;
    if let Ok(refresh) = refresh {
        response.headers_mut().insert(header::REFRESH, refresh);
    }
    Ok(without_session(response, context))
}

fn without_session(response: Response<Body>, context: &RequestContext) -> Response<Body> {
    ID_TOKEN.remove(SECRET.remove(SESSION.remove(response, context), context), context)
}

impl Guest {
    /// Leads to the page that the person asked for, or else to the first one, with the cookie of a session that has just
    /// begun.
    pub(super) fn enter(&self, signed_in: &SignedIn) -> Response<Body> {
        let (person, context) = (&signed_in.session.person, &self.context);
        self.studio.sign_in_attempts.signed_in(&person.name, context.source);
        tracing::info!(person = %person.id, account = %person.account_id, session = %signed_in.session.id, "a person signed in");
        let page = page_after_sign_in(self.headers(), context);
        let response = redirect(page.as_deref().unwrap_or(HOME));
        let response = with_session(response, context, &signed_in.token);
        if page.is_some() { RETURN_TO.remove(response, context) } else { response }
    }
}

/// Waits out the delay of a failed attempt.
pub(super) async fn delay_failure(studio: &Studio, context: &RequestContext) -> Result<(), PageError> {
    let Some(source) = context.source else { return Ok(()) };
    match studio.auth_throttle.delay(source).await {
        FailureDelay::Waited => Ok(()),
        FailureDelay::Exhausted => Err(PageError::busy()),
    }
}

pub(super) fn agent(headers: &HeaderMap) -> &str {
    headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The path of a link holds its secret.
pub(super) fn without_path_in_referrer(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::REFERRER_POLICY, HeaderValue::from_static("strict-origin"));
    response
}
