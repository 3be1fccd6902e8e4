//! Addresses below the studio that no page has. A page that someone may not know of answers like them.

use axum::http::Uri;
use axum::response::{IntoResponse as _, Redirect};

use super::error::{PageError, PageResult};
use super::page::secured;
use super::session::{Form, Visitor};

/// A missing page. With a trailing slash, redirects to the page without it.
pub async fn page_not_found(_: Visitor, uri: Uri) -> PageResult {
    let path = uri.path().trim_end_matches('/');
    if path == uri.path() {
        return Err(PageError::not_found());
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Ok(secured(Redirect::permanent(&format!("{path}{query}")).into_response()))
}

/// The target of a form.
pub async fn form_not_found(_: Form) -> PageError {
    PageError::not_found()
}
