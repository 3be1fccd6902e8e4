//! Headers that every page has, and its parts that do not depend on the page.

use axum::body::Body;
use axum::http::header::{self, HeaderValue};
use axum::http::{HeaderMap, Response};

use super::session::Visitor;
use super::texts::Texts;
use crate::store::Result;

/// Allows scripts, styles and requests of this server alone. Pictures may come from a bucket.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob: https:; \
                      connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// A page of HTML.
pub(super) fn html(body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    secured(response)
}

/// Adds the headers that every answer of the studio has. The referrer goes to this server alone, whose own forms are
/// recognised by their origin.
pub(super) fn secured(mut response: Response<Body>) -> Response<Body> {
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
    ];
    for (name, value) in fixed {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Whether the script of a page asked, which puts the answer into the page.
pub(super) fn is_of_script(headers: &HeaderMap) -> bool {
    headers.get("x-requested-with").is_some_and(|value| value == "studio")
}

/// The frame of a signed-in page.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// The name of the page in the menu.
    pub(super) here: &'static str,
    pub(super) t: &'static Texts,
    pub(super) visitor: &'a Visitor,
    pub(super) credits: i64,
}

impl<'a> Frame<'a> {
    pub(super) async fn new(here: &'static str, visitor: &'a Visitor) -> Result<Self> {
        let account = visitor.account().await?;
        Ok(Self { here, t: visitor.texts, visitor, credits: account.map_or(0, |account| account.credits) })
    }

    /// `aria-current` of a link of the menu.
    pub(super) fn current(&self, page: &str) -> &'static str {
        if self.here == page { "page" } else { "false" }
    }
}
