//! Sign-up: anyone can open an account, if the operator allows it.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};

use super::{agent, delay_failure, enter, take_slot, words};
use crate::service::people::{NewPerson, SignUpOutcome, SignUpTerms};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{answer, html, redirect};
use crate::studio::session::{Fields, Visitor, check_origin, request_context};
use crate::studio::texts::Texts;
use crate::studio::{HOME, RequestContext, Studio};
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
fn terms(studio: &Studio) -> Result<SignUpTerms, PageError> {
    studio.settings.sign_up.ok_or_else(PageError::signed_out)
}

/// The page on which people sign up.
pub async fn sign_up(
    State(studio): State<Arc<Studio>>,
    visitor: Result<Visitor, PageError>,
    headers: HeaderMap,
) -> PageResult {
    let terms = terms(&studio)?;
    if visitor.is_ok() {
        return Ok(redirect(HOME));
    }
    let page = SignUpPage { t: Texts::of(&headers), name: "", credits: terms.credits, notice: None };
    html(&page)
}

/// The person in a sign-up form, or the key of the text that says why the name is invalid.
pub(in crate::studio) fn new_person(
    fields: &Fields,
    context: &RequestContext,
) -> Result<Result<NewPerson, &'static str>, PageError> {
    let name = match new_person_name(fields.text("name")) {
        Ok(name) => name,
        Err(InvalidName::Text(_)) => return Ok(Err("sign-up-invalid")),
        Err(InvalidName::LookAlike) => return Ok(Err("name-look-alike")),
    };
    let source = context.source.ok_or_else(PageError::not_found)?.to_string();
    Ok(Ok(NewPerson { name, password: fields.text("password").to_owned(), source }))
}

/// Whether a rejection is about the password, so that the form starts there.
pub(in crate::studio) fn is_about_password(refusal: &Option<&str>) -> bool {
    refusal.is_some_and(|refusal| refusal.starts_with("password-"))
}

/// Opens an account with its owner, and signs in that person. The answer says plainly if a name is taken, so that
/// another can be chosen; such an attempt counts, waits like a failed sign-in, and takes as long as a successful one.
pub async fn submit(State(studio): State<Arc<Studio>>, request: Request) -> PageResult {
    let (parts, body) = request.into_parts();
    check_origin(&studio, &parts)?;
    let terms = terms(&studio)?;
    let context = request_context(&parts)?;
    let fields = Fields::read(&studio, &parts, body).await?;
    let refuse = |notice| {
        let t = Texts::of(&parts.headers);
        let page = SignUpPage { t, name: fields.text("name"), credits: terms.credits, notice: Some(notice) };
        answer(&page, Some(notice))
    };
    let new = match new_person(&fields, &context)? {
        Ok(new) => new,
        Err(notice) => return refuse(notice),
    };
    let slot = take_slot(&studio.sign_ups, &context)?;
    let outcome = studio.people.sign_up(new, terms, agent(&parts.headers)).await?;
    drop(slot);
    match outcome {
        SignUpOutcome::Done(signed_in) => {
            tracing::info!(account = %signed_in.session.person.account_id, "a person signed up");
            Ok(enter(&studio, &context, &parts.headers, &signed_in))
        }
        SignUpOutcome::Invalid(invalid) => refuse(words(invalid)),
        SignUpOutcome::NameTaken => {
            delay_failure(&studio, &context).await?;
            refuse("sign-up-taken")
        }
        SignUpOutcome::TooMany => {
            tracing::info!("a sign-up was refused, because there were too many from that address today");
            delay_failure(&studio, &context).await?;
            Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, "sign-up-often"))
        }
    }
}
