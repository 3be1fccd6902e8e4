//! Errors of pages.

use std::error::Error;
use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Method, Response, StatusCode, header};
use axum::response::IntoResponse;

use super::cookies::{referring_page, remember_page, studio_page};
use super::page::{html, redirect};
use super::session::request_context;
use super::texts::Texts;
use super::{RequestContext, SECOND_FACTOR, SIGN_IN, SIGN_OUT};
use crate::files::FilesError;
use tintype_domain::model::InvalidId;
use tintype_store::StoreError;

const IN_BIN: &str = "picture-in-bin";

/// An error of a page. `crate::http` writes it, and logs its cause with the id of the request.
#[derive(Debug, Clone)]
pub struct PageError {
    /// The status.
    pub status: StatusCode,
    /// The name of its text.
    pub text: &'static str,
    /// The cause, for the log.
    pub cause: Option<Arc<dyn Error + Send + Sync>>,
    /// Seconds after which the request can be repeated.
    pub retry_after: Option<u64>,
    /// The page on which the person has to do something first.
    first: Option<&'static str>,
    destination: Option<Box<Destination>>,
}

/// The answer of a handler.
pub type PageResult = Result<Response<Body>, PageError>;

#[derive(Debug, Clone)]
struct Destination {
    context: RequestContext,
    page: String,
    /// Whether the request sent a form on that page, which had no effect, instead of asking for the page.
    has_unsent_form: bool,
}

impl PageError {
    pub(super) fn new(status: StatusCode, text: &'static str) -> Self {
        Self { status, text, cause: None, retry_after: None, first: None, destination: None }
    }

    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "error-not-found")
    }

    /// For the address of a picture that the person may restore.
    pub(super) fn in_bin() -> Self {
        Self::new(StatusCode::NOT_FOUND, IN_BIN)
    }

    pub(super) fn bad_request() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "error-request")
    }

    pub(super) fn forbidden(text: &'static str) -> Self {
        Self::new(StatusCode::FORBIDDEN, text)
    }

    /// Too many requests: the next one can be sent after `seconds`.
    pub(super) fn too_often(seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..Self::new(StatusCode::TOO_MANY_REQUESTS, "error-rate") }
    }

    pub(super) fn busy() -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "error-rate")
    }

    pub(super) fn signed_out() -> Self {
        Self { first: Some(SIGN_IN), ..Self::new(StatusCode::SEE_OTHER, "signed-out") }
    }

    pub(super) fn without_factor() -> Self {
        Self { first: Some(SECOND_FACTOR), ..Self::new(StatusCode::SEE_OTHER, "factor-required") }
    }

    /// This error for a request that may be for a page: signing in then leads to that page. Only requests for pages
    /// accept HTML; `Sec-Fetch-Dest` would say so too, but browsers only send it over HTTPS.
    pub(super) fn leading_to(self, parts: &Parts) -> Self {
        let accepts_html =
            parts.headers.get(header::ACCEPT).is_some_and(|kinds| kinds.as_bytes().starts_with(b"text/html"));
        let is_page = parts.method == Method::GET && accepts_html;
        let page = studio_page(&parts.uri.to_string()).filter(|_| is_page);
        self.with_destination(parts, page, false)
    }

    /// This error for a form on a studio page: the sign-in page says that the form had no effect, and leads back to its
    /// page. Signing out need not be repeated.
    pub(super) fn with_unsent_form(self, parts: &Parts) -> Self {
        let page = referring_page(&parts.headers).filter(|_| parts.uri.path() != SIGN_OUT);
        self.with_destination(parts, page, true)
    }

    fn with_destination(mut self, parts: &Parts, page: Option<String>, has_unsent_form: bool) -> Self {
        if self.first == Some(SIGN_IN)
            && let (Some(page), Ok(context)) = (page, request_context(parts))
        {
            self.destination = Some(Box::new(Destination { context, page, has_unsent_form }));
        }
        self
    }

    pub(super) fn caused_by(cause: impl Error + Send + Sync + 'static) -> Self {
        let cause: Arc<dyn Error + Send + Sync> = Arc::new(cause);
        Self { cause: Some(cause), ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "error-internal") }
    }
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        match error {
            // The answer for someone who isn't signed in.
            StoreError::Revoked => Self::signed_out(),
            error => Self::caused_by(error),
        }
    }
}

/// For an id in an address.
impl From<InvalidId> for PageError {
    fn from(_: InvalidId) -> Self {
        Self::not_found()
    }
}

impl From<FilesError> for PageError {
    fn from(error: FilesError) -> Self {
        Self::caused_by(error)
    }
}

impl From<askama::Error> for PageError {
    fn from(error: askama::Error) -> Self {
        Self::caused_by(error)
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response<Body> {
        if let Some(page) = self.first {
            let response = redirect(page);
            return match self.destination {
                Some(to) => remember_page(response, &to.context, &to.page, to.has_unsent_form),
                None => response,
            };
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    t: &'a Texts,
    message: &'a str,
    /// The id for the operator, unless the message alone says what to do.
    request_id: Option<&'a str>,
    /// Whether what the person looks for lies in the bin.
    is_in_bin: bool,
}

/// The key of the text for an error from outside the studio, whose message is meant for API callers.
fn text_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => "error-not-found",
        StatusCode::TOO_MANY_REQUESTS => "error-rate",
        status if status.is_client_error() => "error-request",
        _ => "error-internal",
    }
}

/// The page of an error. `text` is the name of a text, or else a message that is not shown.
pub fn write_error(texts: &Texts, text: &str, status: StatusCode, request_id: &str) -> Response<Body> {
    let text = if texts.has(text) { text } else { text_of(status) };
    let page = ErrorPage {
        t: texts,
        message: &texts.get(text),
        request_id: (status.is_server_error() || status == StatusCode::BAD_REQUEST).then_some(request_id),
        is_in_bin: text == IN_BIN,
    };
    html(&page).unwrap_or_else(|_| Response::new(Body::from(request_id.to_owned())))
}

/// In the extensions of a response with the status of an error: it has its page already.
#[derive(Debug, Clone, Copy)]
pub struct HasOwnBody;
