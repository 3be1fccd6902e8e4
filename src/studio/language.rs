//! The choice of a language, which a browser keeps for a year.

use std::sync::Arc;

use axum::extract::{Request, State};

use super::cookies::{referring_page, studio_page, with_language};
use super::error::{PageError, PageResult};
use super::page::redirect;
use super::session::{Fields, check_origin};
use super::texts::Texts;
use super::{HOME, Studio};

/// Sets the language, and redirects back to the page with the form.
pub async fn choose(State(studio): State<Arc<Studio>>, request: Request) -> PageResult {
    let (parts, body) = request.into_parts();
    check_origin(&studio, &parts)?;
    let fields = Fields::read(&studio, &parts, body).await?;
    let texts = Texts::named(fields.text("language")).ok_or_else(PageError::bad_request)?;
    // A page whose address is secret names itself here, because its referrer doesn't.
    let back = fields.get("back").map_or_else(|| referring_page(&parts.headers), studio_page);
    let response = redirect(back.as_deref().unwrap_or(HOME));
    Ok(with_language(response, texts.language))
}
