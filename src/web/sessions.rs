//! The browsers in which a person is signed in.

use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{Response, StatusCode};
use axum::response::{IntoResponse as _, Redirect};

use serde::Deserialize;

use super::Studio;
use super::error::{PageError, Written};
use super::page::{Frame, html, secured};
use super::session::{Form, Visitor, with_cookie};
use super::sign_in::{agent, be_patient};
use crate::domain::person::Session;
use crate::service::people::{PasswordChange, Passwords};
use crate::store::EndSessions;

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

async fn page(visitor: &Visitor, done: bool, refusal: Option<&'static str>) -> Result<Response<Body>, PageError> {
    let provider = visitor.provider().await?;
    let sessions = visitor.studio.shared.store.list_sessions(visitor.session.person.id).await?;
    let frame = Frame::new("sessions", visitor).await?;
    Ok(html(SessionsPage { frame, sessions, done, refusal, provider }.render()?))
}

/// The page.
pub async fn sessions(visitor: Visitor, Query(done): Query<Done>) -> Result<Response<Body>, PageError> {
    page(&visitor, done.password.is_some(), None).await
}

/// Sets the password of the person, who stays signed in here alone.
pub async fn set_password(form: Form) -> Result<Response<Body>, PageError> {
    let Form { visitor, fields, headers } = form;
    let (present, new) = (fields.text("present").to_owned(), fields.text("new").to_owned());
    let (people, person) = (&visitor.studio.people, &visitor.session.person);
    let passwords = Passwords { present, new };
    let changed = people.change_password(&*visitor.store(), person, passwords, agent(&headers)).await?;
    let refusal = match changed {
        PasswordChange::Done(signed_in) => {
            tracing::info!(person = %person.id, "a person set a password in the studio");
            let done = Redirect::to(&format!("{SESSIONS}?password=set")).into_response();
            return Ok(with_cookie(secured(done), &visitor.visit, Some(&signed_in.token)));
        }
        PasswordChange::Refused => {
            be_patient(&visitor.studio, &visitor.visit).await?;
            "password-wrong"
        }
        PasswordChange::Invalid => "password-short",
    };
    let mut response = page(&visitor, false, Some(refusal)).await?;
    *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    response.extensions_mut().insert(Written);
    Ok(response)
}

/// Ends one session.
pub async fn end(
    State(studio): State<Arc<Studio>>,
    Path(id): Path<String>,
    form: Form,
) -> Result<Response<Body>, PageError> {
    let id = id.parse().map_err(|_| PageError::not_found())?;
    let person = form.visitor.session.person.id;
    if studio.shared.store.end_sessions(person, EndSessions::One(id)).await? == 0 {
        return Err(PageError::not_found());
    }
    Ok(secured(Redirect::to(SESSIONS).into_response()))
}

/// Ends all sessions of the person but this one.
pub async fn end_others(State(studio): State<Arc<Studio>>, form: Form) -> Result<Response<Body>, PageError> {
    let Session { id, person, .. } = form.visitor.session;
    studio.shared.store.end_sessions(person.id, EndSessions::AllExcept(id)).await?;
    Ok(secured(Redirect::to(SESSIONS).into_response()))
}
