//! The browsers in which a person is signed in.

use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Response;
use axum::response::{IntoResponse as _, Redirect};

use super::Studio;
use super::error::PageError;
use super::page::{Frame, html, secured};
use super::session::{Form, Visitor};
use crate::domain::person::Session;
use crate::store::EndSessions;

const SESSIONS: &str = "/studio/sessions";

#[derive(Template)]
#[template(path = "sessions.html")]
struct SessionsPage<'a> {
    frame: Frame<'a>,
    sessions: Vec<Session>,
}

/// The page.
pub async fn sessions(visitor: Visitor) -> Result<Response<Body>, PageError> {
    let sessions = visitor.studio.shared.store.list_sessions(visitor.session.person.id).await?;
    Ok(html(SessionsPage { frame: Frame::new("sessions", &visitor).await?, sessions }.render()?))
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
