//! The choice of a language, which a browser keeps for a year.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::http::header;
use axum::response::{IntoResponse as _, Redirect};

use super::cookies::{studio_page, with_language};
use super::error::PageError;
use super::page::secured;
use super::session::{Fields, check_origin};
use super::texts::Texts;
use super::{HOME, Studio};

/// Chooses a language, and leads back to the page with the form.
pub async fn choose(State(studio): State<Arc<Studio>>, request: Request) -> Result<Response<Body>, PageError> {
    let (parts, body) = request.into_parts();
    check_origin(&studio, &parts)?;
    let fields = Fields::read(&studio, &parts, body).await?;
    let texts = Texts::named(fields.text("language")).ok_or_else(PageError::bad_request)?;
    // A page whose address is a secret names it itself, because its referrer does not.
    let referrer = || parts.headers.get(header::REFERER).and_then(|referrer| referrer.to_str().ok());
    let back = fields.get("back").or_else(referrer).and_then(studio_page);
    let response = secured(Redirect::to(back.as_deref().unwrap_or(HOME)).into_response());
    Ok(with_language(response, texts.language))
}
