//! Sign-up: anyone can open an account, if the operator allows it.

use askama::Template;
use axum::http::StatusCode;

use super::{agent, delay_failure, password_refusal, take_slot};
use crate::service::people::{JoinOutcome, NewPerson, SignUpTerms};
use crate::studio::HOME;
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{form_page, html, redirect};
use crate::studio::session::{Fields, Guest, GuestForm, Visitor};
use crate::studio::texts::Texts;
use tintype_domain::names::{InvalidName, new_person_name};

#[derive(Template)]
#[template(path = "sign_up.html")]
struct SignUpPage<'a> {
    t: &'a Texts,
    name: &'a str,
    /// Credits of a new account.
    credits: i64,
    /// The key of the text that says why there is no account yet.
    notice: Option<&'a str>,
}

/// The terms, if sign-up is open. Otherwise the page doesn't exist, and the answer is the same as for other missing
/// pages.
fn terms(guest: &Guest) -> Result<SignUpTerms, PageError> {
    guest.studio.settings.sign_up.ok_or_else(PageError::signed_out)
}

/// The page on which people sign up.
pub async fn sign_up(visitor: Result<Visitor, PageError>, guest: Guest) -> PageResult {
    let terms = terms(&guest)?;
    if visitor.is_ok() {
        return Ok(redirect(HOME));
    }
    let page = SignUpPage { t: guest.texts(), name: "", credits: terms.credits, notice: None };
    html(&page)
}

/// The person in a sign-up form, or the key of the text that says why the name is invalid.
pub(in crate::studio) fn new_person(
    guest: &Guest,
    fields: &Fields,
) -> Result<Result<NewPerson, &'static str>, PageError> {
    let name = match new_person_name(fields.text("name")) {
        Ok(name) => name,
        Err(InvalidName::Text(_)) => return Ok(Err("sign-up-invalid")),
        Err(InvalidName::LookAlike) => return Ok(Err("name-look-alike")),
    };
    let source = guest.context.source.ok_or_else(PageError::not_found)?.to_string();
    Ok(Ok(NewPerson { name, password: fields.text("password").to_owned(), source }))
}

/// Whether a rejection is about the password, so that the form starts there.
pub(in crate::studio) fn is_about_password(refusal: &Option<&str>) -> bool {
    refusal.is_some_and(|refusal| refusal.starts_with("password-"))
}

/// Opens an account with its owner, and signs in that person. The answer says plainly if a name is taken, so that
/// another can be chosen; such an attempt counts, waits like a failed sign-in, and takes as long as a successful one.
pub async fn submit(GuestForm { guest, fields }: GuestForm) -> PageResult {
    let (terms, studio, t) = (terms(&guest)?, &guest.studio, guest.texts());
    let refuse = |notice| {
        let page = SignUpPage { t, name: fields.text("name"), credits: terms.credits, notice: Some(notice) };
        form_page(&page, Some(notice))
    };
    let new = match new_person(&guest, &fields)? {
        Ok(new) => new,
        Err(notice) => return refuse(notice),
    };
    let slot = take_slot(&studio.sign_ups, &guest.context)?;
    let outcome = studio.people.sign_up(new, terms, agent(guest.headers())).await?;
    drop(slot);
    match outcome {
        JoinOutcome::Done(signed_in) => {
            tracing::info!(account = %signed_in.session.person.account_id, "a person signed up");
            Ok(guest.enter(&signed_in))
        }
        JoinOutcome::Invalid(invalid) => refuse(password_refusal(invalid)),
        JoinOutcome::NameTaken => {
            delay_failure(studio, &guest.context).await?;
            refuse("sign-up-taken")
        }
        JoinOutcome::TooManyToday => {
            tracing::info!("a sign-up was refused, because there were too many from that address today");
            delay_failure(studio, &guest.context).await?;
            Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, "sign-up-often"))
        }
        JoinOutcome::AccountFull | JoinOutcome::InvitationGone => Err(PageError::not_found()),
    }
}
