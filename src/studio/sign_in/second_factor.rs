//! Second factors: the page on which people turn theirs on and off, and the code that a sign-in asks for.

use askama::Template;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use qrcode::QrCode;
use qrcode::render::svg;

use super::confirmation::CONFIRMATION;
use super::{Address, SignInPage, agent, delay_failure, without_path_in_referrer};
use crate::service::people::FirstProof;
use crate::studio::account::secret::{self, Secret};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Frame, form_page, html, redirect};
use crate::studio::session::{Fields, Form, Guest, GuestForm, Visitor, WithoutSecondFactor, lacks_factor};
use crate::studio::texts::Texts;
use crate::studio::{RequestContext, SECOND_FACTOR, Studio};
use tintype_domain::model::Id;
use tintype_domain::person::{Person, Token};
use tintype_domain::second_factor::{FactorSecret, RecoveryCodes};
use tintype_domain::signed_tokens::Fact;

/// Width and height of the QR code, in pixels.
const QR_SIZE: u32 = 220;

#[derive(Template)]
#[template(path = "second_factor.html")]
struct FactorPage<'a> {
    frame: Frame<'a>,
    /// The secret to set up; `None` for a person who has a second factor.
    setup: Option<FactorSetup>,
    /// Recovery codes that were not used yet.
    left: u32,
    /// Whether the person can do nothing else before.
    required: bool,
    /// The name of the text that says why nothing has changed.
    refusal: Option<&'static str>,
}

/// A secret that a person may set up.
struct FactorSetup {
    secret: String,
    uri: String,
    /// The QR code of the URI, as a URL of data.
    picture: String,
    ticket: String,
}

#[derive(Template)]
#[template(path = "code.html")]
struct CodePage<'a> {
    t: &'a Texts,
    person: Id,
    /// Proves that the password was shown; empty after a link.
    ticket: &'a str,
    /// The token of the link; empty after a password.
    link: &'a str,
    notice: Option<&'a str>,
}

async fn setup(visitor: &Visitor, secret: FactorSecret) -> Result<FactorSetup, PageError> {
    let ticket = visitor.studio.tickets().await?.issue(visitor.person_id(), Fact::Secret(&secret));
    let uri = secret.uri(visitor.name());
    let picture = QrCode::new(&uri).map(|code| {
        let picture = code.render::<svg::Color<'_>>().min_dimensions(QR_SIZE, QR_SIZE).build();
        format!("data:image/svg+xml;base64,{}", BASE64_STANDARD.encode(picture))
    });
    Ok(FactorSetup { secret: secret.base32(), uri, picture: picture.map_err(PageError::caused_by)?, ticket })
}

/// The page. `secret` is set while the person is setting it up.
async fn page(visitor: &Visitor, secret: Option<FactorSecret>, refusal: Option<&'static str>) -> PageResult {
    let (studio, session) = (&visitor.studio, &visitor.session);
    let factor = studio.shared.store.find_factor(session.person.id).await?;
    let setup = match factor {
        Some(_) => None,
        None => Some(setup(visitor, secret.unwrap_or_else(FactorSecret::random)).await?),
    };
    let page = FactorPage {
        frame: Frame::new("sessions", visitor).await?,
        required: setup.is_some() && lacks_factor(studio.settings.second_factor, session),
        setup,
        left: factor.map_or(0, |factor| factor.recovery_codes),
        refusal,
    };
    form_page(&page, refusal)
}

/// The page on which a person turns a second factor on and off.
pub async fn second_factor(WithoutSecondFactor(visitor): WithoutSecondFactor<Visitor>) -> PageResult {
    page(&visitor, None, None).await
}

/// Turns a second factor on, after the person has shown a code of it, and shows the recovery codes, this once.
pub async fn turn_on(WithoutSecondFactor(form): WithoutSecondFactor<Form>) -> PageResult {
    let Form { visitor, fields, .. } = form;
    let (studio, session) = (&visitor.studio, &visitor.session);
    let person = session.person.id;
    let secret = FactorSecret::parse(fields.text("secret")).ok_or_else(PageError::bad_request)?;
    if !studio.tickets().await?.verify(fields.text("ticket"), person, Fact::Secret(&secret)) {
        return page(&visitor, None, Some("factor-late")).await;
    }
    visitor.confirm(fields.text(CONFIRMATION)).await?;
    let (store, code) = (visitor.store(), fields.text("code"));
    let Some(codes) = studio.people.add_factor(&store, (person, session.id), secret, code).await? else {
        return page(&visitor, Some(secret), Some("factor-code-wrong")).await;
    };
    tracing::info!(%person, "a person turned on a second factor");
    show(&visitor, &codes).await
}

/// Leads to the page that shows recovery codes, this once.
async fn show(visitor: &Visitor, codes: &RecoveryCodes) -> PageResult {
    let lead = visitor.texts.get("factor-codes-lead");
    let (copy, back) = ("factor-codes-copy".into(), SECOND_FACTOR.into());
    secret::show(visitor, &Secret { lead, texts: codes.reveal(), copy, back }).await
}

/// Rejects a person who does not show the password, if there is one, and a code.
async fn check_both(visitor: &Visitor, fields: &Fields) -> Result<Option<Response<Body>>, PageError> {
    let has_password = visitor.session.person.has_password;
    let is_right = (!has_password || visitor.shows_password(fields.text("present")).await?)
        && visitor.shows_code(fields.text("code")).await?;
    if is_right {
        return Ok(None);
    }
    visitor.fail().await?;
    page(visitor, None, Some("factor-wrong")).await.map(Some)
}

/// Turns the second factor off.
pub async fn turn_off(form: Form) -> PageResult {
    let Form { visitor, fields, .. } = form;
    if let Some(refusal) = check_both(&visitor, &fields).await? {
        return Ok(refusal);
    }
    let person = visitor.person_id();
    visitor.store().remove_factor(person, visitor.session.id).await?;
    tracing::info!(%person, "a person turned off the second factor");
    Ok(redirect(SECOND_FACTOR))
}

/// Makes new recovery codes, and shows them, this once.
pub async fn new_recovery_codes(form: Form) -> PageResult {
    let Form { visitor, fields, .. } = form;
    if let Some(refusal) = check_both(&visitor, &fields).await? {
        return Ok(refusal);
    }
    let person = visitor.person_id();
    let codes = visitor.studio.people.new_recovery_codes(&visitor.store(), person).await?;
    tracing::info!(%person, "a person made new recovery codes");
    match codes {
        Some(codes) => show(&visitor, &codes).await,
        None => Ok(redirect(SECOND_FACTOR)),
    }
}

/// Asks for a code after a password or a link. Nobody is signed in before it is right: the form carries the proof of the
/// first step.
pub(super) async fn ask_for_code(guest: &Guest, person: &Person, first: &FirstProof) -> PageResult {
    let (ticket, link) = match first {
        FirstProof::Password(hash) => (guest.studio.tickets().await?.issue(person.id, Fact::Password(hash)), ""),
        FirstProof::Link(link) => (String::new(), link.reveal()),
    };
    code_page(CodePage { t: guest.texts(), person: person.id, ticket: &ticket, link, notice: None })
}

fn code_page(page: CodePage<'_>) -> PageResult {
    html(&page).map(without_path_in_referrer)
}

/// The person whose first proof the form contains, if that is still valid.
async fn first_proof(studio: &Studio, fields: &Fields) -> Result<Option<(Person, FirstProof)>, PageError> {
    if let Some(link) = Token::parse(fields.text("link")) {
        return Ok(studio.people.of_link(&link).await?.map(|person| (person, FirstProof::Link(link))));
    }
    let Ok(id) = fields.text("person").parse::<Id>() else { return Ok(None) };
    let Some(found) = studio.shared.store.find_person(id.as_str()).await? else { return Ok(None) };
    let tickets = studio.tickets().await?;
    let hash = found.password.filter(|hash| tickets.verify(fields.text("ticket"), id, Fact::Password(hash)));
    Ok(hash.map(|hash| (found.person, FirstProof::Password(hash))))
}

/// Signs in with a code, after a password or a link.
pub async fn by_code(GuestForm { guest, fields }: GuestForm) -> PageResult {
    let (studio, context) = (&guest.studio, &guest.context);
    let Some((person, first)) = first_proof(studio, &fields).await? else {
        delay_failure(studio, context).await?;
        return html(&SignInPage::new(&guest, "", Some("sign-in-late")));
    };
    check_rate(studio, context, &person).await?;
    let (typed, agent) = (fields.text("code"), agent(guest.headers()));
    if let Some(signed_in) = studio.people.sign_in_with_code(&person, first, typed, agent).await? {
        studio.codes.forget(person.id.as_str());
        return Ok(guest.enter(&signed_in));
    }
    tracing::warn!(name = ?person.name, address = %Address(context.source), "sign-in failed: wrong code after the right password or link");
    delay_failure(studio, context).await?;
    let (t, ticket, link) = (guest.texts(), fields.text("ticket"), fields.text("link"));
    code_page(CodePage { t, person: person.id, ticket, link, notice: Some("code-wrong") })
}

/// Limits the codes that are tried for one person, wherever they come from.
async fn check_rate(studio: &Studio, context: &RequestContext, person: &Person) -> Result<(), PageError> {
    if studio.codes.allow(person.id.as_str(), None) {
        return Ok(());
    }
    tracing::warn!(name = ?person.name, address = %Address(context.source), "refused a sign-in: too many wrong codes");
    delay_failure(studio, context).await?;
    Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, "code-often"))
}
