//! The browsers that a person is signed in with.

use std::borrow::Cow;

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::{IntoResponse as _, Redirect};
use serde::Deserialize;

use crate::service::people::{PasswordChange, Passwords};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Frame, form_page, redirect, secured};
use crate::studio::session::{Form, Visitor, with_session};
use crate::studio::sign_in::confirmation::CONFIRMATION;
use crate::studio::sign_in::{agent, delay_failure, password_refusal, take_slot};
use tintype_domain::person::Session;

const SESSIONS: &str = "/studio/sessions";

#[derive(Template)]
#[template(path = "sessions.html")]
struct SessionsPage<'a> {
    frame: Frame<'a>,
    sessions: Vec<Session>,
    /// Whether the password was just set.
    done: bool,
    /// The name of the text that says why the password was not set.
    refusal: Option<&'static str>,
    /// The host of the OpenID Connect provider, and whether the person has an identity there.
    provider: Option<(String, bool)>,
}

/// Says that the password was set.
#[derive(Debug, Deserialize)]
pub struct Done {
    password: Option<String>,
}

/// The browser and the system that a header `User-Agent` names; the header itself if it names none that is known. Most
/// browsers also name those that they descend from, so the order counts.
fn browser(agent: &str) -> Cow<'_, str> {
    const BROWSERS: [(&str, &str); 6] = [
        ("Edg", "Edge"),
        ("OPR/", "Opera"),
        ("Firefox/", "Firefox"),
        ("FxiOS/", "Firefox"),
        ("Chrome/", "Chrome"),
        ("Safari/", "Safari"),
    ];
    const SYSTEMS: [(&str, &str); 7] = [
        ("iPhone", "iOS"),
        ("iPad", "iPadOS"),
        ("Android", "Android"),
        ("Windows", "Windows"),
        ("Mac OS X", "macOS"),
        ("CrOS", "ChromeOS"),
        ("Linux", "Linux"),
    ];
    let named =
        |known: &[(&str, &'static str)]| known.iter().find(|(part, _)| agent.contains(part)).map(|(_, name)| *name);
    match (named(&BROWSERS), named(&SYSTEMS)) {
        (Some(browser), Some(system)) => Cow::Owned(format!("{browser}, {system}")),
        _ => Cow::Borrowed(agent),
    }
}

async fn page(visitor: &Visitor, done: bool, refusal: Option<&'static str>) -> PageResult {
    let provider = visitor.provider().await?;
    let sessions = visitor.studio.shared.store.list_sessions(visitor.person_id()).await?;
    let frame = Frame::new("sessions", visitor).await?;
    form_page(&SessionsPage { frame, sessions, done, refusal, provider }, refusal)
}

/// The page.
pub async fn sessions(visitor: Visitor, Query(done): Query<Done>) -> PageResult {
    page(&visitor, done.password.is_some(), None).await
}

/// Sets the password of the person, who stays signed in here alone.
pub async fn set_password(form: Form) -> PageResult {
    let Form { visitor, fields, headers } = form;
    if !visitor.session.person.has_password {
        // A password of the thief's own would confirm everything else.
        visitor.confirm(fields.text(CONFIRMATION)).await?;
    }
    let (present, new) = (fields.text("present").to_owned(), fields.text("new").to_owned());
    let (people, person) = (&visitor.studio.people, &visitor.session.person);
    // No name begins with NUL, so attempts to sign in by this name do not count here.
    if !visitor.studio.sign_in_attempts.allow(&format!("\0{}", person.id), None) {
        tracing::warn!(person = %person.id, "refused a change of a password: too many attempts within a minute");
        return Err(PageError::busy());
    }
    let slot = take_slot(&visitor.studio.hashes, &visitor.context)?;
    let passwords = Passwords { present, new };
    let changed = people.change_password(&visitor.store(), person, passwords, agent(&headers)).await?;
    drop(slot);
    let refusal = match changed {
        PasswordChange::Done(signed_in) => {
            tracing::info!(person = %person.id, "a person set a password in the studio");
            let done = Redirect::to(&format!("{SESSIONS}?password=set")).into_response();
            return Ok(with_session(secured(done), &visitor.context, &signed_in.token));
        }
        PasswordChange::Refused => {
            delay_failure(&visitor.studio, &visitor.context).await?;
            "password-wrong"
        }
        PasswordChange::Invalid(invalid) => password_refusal(invalid),
    };
    page(&visitor, false, Some(refusal)).await
}

/// Ends one session.
pub async fn end(Path(id): Path<String>, form: Form) -> PageResult {
    let id = id.parse()?;
    let person = form.visitor.person_id();
    if !form.visitor.store().end_session(person, id).await? {
        return Err(PageError::not_found());
    }
    Ok(redirect(SESSIONS))
}

/// Ends all sessions of the person but this one.
pub async fn end_others(form: Form) -> PageResult {
    let Session { id, person, .. } = &form.visitor.session;
    form.visitor.store().end_other_sessions(person.id, *id).await?;
    Ok(redirect(SESSIONS))
}

#[cfg(test)]
mod tests {
    use super::browser;

    #[test]
    fn a_browser_is_named_as_people_know_it() {
        for (agent, name) in [
            (
                "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36",
                "Chrome, Linux",
            ),
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36 Edg/156.0.0.0",
                "Edge, Windows",
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/19.1 Mobile/15E148 Safari/604.1",
                "Safari, iOS",
            ),
            ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:150.0) Gecko/20100101 Firefox/150.0", "Firefox, macOS"),
            ("curl/8.5.0", "curl/8.5.0"),
            ("", ""),
        ] {
            assert_eq!(browser(agent), name);
        }
    }
}
