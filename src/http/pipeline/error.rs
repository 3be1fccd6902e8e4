//! Error responses.

use std::error::Error;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{self, HeaderValue};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::dialect::Dialect;
use crate::files::FilesError;
use crate::service::limits::{Allowance, RateLimit};
use crate::studio::{self, PageError, Texts};
use tintype_store::StoreError;
use tintype_system::clock::Timestamp;

/// The code of an error: one of six, which never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// No valid key came with the request.
    Unauthorized,
    /// The request itself is wrong.
    InvalidRequest,
    /// The balance is too low, or the budget of the key.
    InsufficientCredits,
    /// There is nothing here for this caller.
    NotFound,
    /// Too many requests, or too many unfinished tasks.
    RateLimited,
    /// The service failed.
    InternalError,
}

/// Where the APIs are, for callers of a path that has nothing.
pub(super) const API_PATHS: &str =
    "The API is under /api/v1, OpenAI's image API under /v1/images, and MCP at /mcp; /docs/ describes them.";

/// An error response. Handlers put it into a response's extensions; the outermost layer, which has the request id,
/// writes the body and logs the cause.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: ErrorCode,
    pub(super) message: String,
    /// In a box, as most errors have none.
    pub(super) shortage: Option<Box<Shortage>>,
    pub(super) retry_after: Option<u64>,
    pub(super) limit: Option<Box<(RateLimit, Allowance)>>,
    /// For callers that speak OpenAI's dialect only.
    pub(super) dialect: Dialect,
    /// For the log only: callers never see it.
    pub(super) cause: Option<Arc<dyn Error + Send + Sync>>,
}

/// The credits that a task costs and that the caller can spend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shortage {
    required: i64,
    available: i64,
}

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ErrorEnvelope)]
pub struct ErrorBody<'a> {
    /// The error itself.
    error: ErrorDetail<'a>,
    /// With `INSUFFICIENT_CREDITS` only: credits the task costs, also inside `error`.
    #[schema(value_type = i64, required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    required: Option<i64>,
    /// With `INSUFFICIENT_CREDITS` only: credits that this key can spend now, also inside `error`.
    #[schema(value_type = i64, required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<i64>,
}

/// An error: a code for programs, a message for people, and the request id for support.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ErrorDetail)]
pub struct ErrorDetail<'a> {
    /// Stable; safe to branch on.
    code: ErrorCode,
    /// For people; may change between versions.
    message: &'a str,
    /// As in the header `X-Request-Id`.
    request_id: &'a str,
    /// With `INSUFFICIENT_CREDITS` only: credits the task costs.
    #[schema(value_type = i64, required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    required: Option<i64>,
    /// With `INSUFFICIENT_CREDITS` only: credits that this key can spend now, which are the account's, or what is left of
    /// the key's budget if that is less.
    #[schema(value_type = i64, required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<i64>,
}

impl ApiError {
    fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            shortage: None,
            retry_after: None,
            limit: None,
            dialect: Dialect::default(),
            cause: None,
        }
    }

    /// 401, the same for every cause.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            ErrorCode::Unauthorized,
            "A valid API key is required: send it over HTTPS as \"Authorization: Bearer <API_KEY>\".",
        )
    }

    /// Whether this is [`ApiError::unauthorized`].
    pub(in crate::http) fn is_unauthorized(&self) -> bool {
        self.code == ErrorCode::Unauthorized
    }

    /// 400 with a message that says what to change.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidRequest, message)
    }

    /// 402.
    pub fn insufficient_credits(required: i64, available: i64) -> Self {
        let message = format!("This task costs {required} credits and the account has {available}.");
        let shortage = Some(Box::new(Shortage { required, available }));
        Self { shortage, ..Self::new(StatusCode::PAYMENT_REQUIRED, ErrorCode::InsufficientCredits, message) }
    }

    /// 402 for a key with only `left` of its budget until the next period.
    pub fn over_budget(required: i64, available: i64, left: i64, resets_at: Timestamp) -> Self {
        let message =
            format!("This task costs {required} credits and the budget of this key has {left} left until {resets_at}.");
        Self { message, ..Self::insufficient_credits(required, available) }
    }

    /// 404 for a task, identical for tasks of other accounts or surfaces and for tasks that do not exist.
    pub fn no_such_task() -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, "There is no such task.")
    }

    /// 403 for a page of a site that may not call this server.
    pub fn refused_origin() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            ErrorCode::InvalidRequest,
            "Origin not allowed. The operator can allow it with --cors-origin, or set --public-url.",
        )
    }

    /// The error for a compression of the body that this server cannot read.
    pub fn unknown_coding() -> Self {
        let message =
            "The Content-Encoding of the body must be gzip or deflate, or absent; images of an edit come without one.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorCode::InvalidRequest, message)
    }

    /// 404 for a path.
    pub fn not_found() -> Self {
        Self::of_status(StatusCode::NOT_FOUND)
    }

    /// 404 for a path without a route.
    pub fn no_route(advice: &str) -> Self {
        let not_found = Self::not_found();
        Self { message: format!("{} {advice}", not_found.message), ..not_found }
    }

    /// 405 for a page that programs post API requests to.
    pub fn no_api_here() -> Self {
        let wrong_method = Self::of_status(StatusCode::METHOD_NOT_ALLOWED);
        Self { message: format!("{} {API_PATHS}", wrong_method.message), ..wrong_method }
    }

    /// 429 with `Retry-After` in seconds.
    pub fn rate_limited(message: impl Into<String>, retry_after: u64) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited, message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// The error of a queue that is too long: 429 with `Retry-After` in seconds, in OpenAI's dialect 503.
    pub fn overloaded(message: impl Into<String>, retry_after: u64) -> Self {
        let dialect = Dialect { status: Some(StatusCode::SERVICE_UNAVAILABLE), ..Dialect::default() };
        Self { dialect, ..Self::rate_limited(message, retry_after) }
    }

    /// The error for a status without a more specific message.
    pub fn of_status(status: StatusCode) -> Self {
        let (code, message) = match status {
            StatusCode::NOT_FOUND => (ErrorCode::NotFound, "There is nothing at this path."),
            StatusCode::METHOD_NOT_ALLOWED => (
                ErrorCode::InvalidRequest,
                "This path does not support this method; the Allow header lists the supported ones.",
            ),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                (ErrorCode::InvalidRequest, "The request's headers are too large or too many.")
            }
            StatusCode::URI_TOO_LONG => (ErrorCode::InvalidRequest, "The request's path is too long."),
            StatusCode::PAYLOAD_TOO_LARGE => (ErrorCode::InvalidRequest, "The body is larger than 512 KiB."),
            StatusCode::REQUEST_TIMEOUT => (ErrorCode::InvalidRequest, "The body did not arrive in time."),
            StatusCode::PRECONDITION_FAILED => (ErrorCode::InvalidRequest, "The file has another ETag."),
            StatusCode::RANGE_NOT_SATISFIABLE => (ErrorCode::InvalidRequest, "The file is shorter than that range."),
            StatusCode::SERVICE_UNAVAILABLE => (ErrorCode::InternalError, "The service is not ready."),
            status if status.is_client_error() => (ErrorCode::InvalidRequest, "The request could not be understood."),
            _ => (ErrorCode::InternalError, "Something went wrong on our side. Nothing was charged; please try again."),
        };
        Self::new(status, code, message)
    }

    /// 500.
    pub fn internal() -> Self {
        Self::of_status(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// 500 with the error that caused it.
    pub fn caused_by(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::internal().with_cause(cause)
    }

    /// This error with its cause.
    #[must_use]
    pub fn with_cause(self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { cause: Some(Arc::from(cause.into())), ..self }
    }

    /// The cause, for the log.
    pub(in crate::http) fn cause(&self) -> Option<&(dyn Error + Send + Sync)> {
        self.cause.as_deref()
    }

    pub(in crate::http) fn status(&self) -> StatusCode {
        self.status
    }

    /// The code and the message, for a text without a status.
    pub(in crate::http) fn message(&self) -> String {
        let code = serde_json::to_value(self.code).unwrap_or_default();
        let later = self.retry_after.map(|seconds| format!(" Retry after {seconds} s.")).unwrap_or_default();
        format!("{}: {}{later}", code.as_str().unwrap_or_default(), self.message)
    }

    pub(in crate::http) fn body(&self, request_id: &str) -> Vec<u8> {
        let (required, available) =
            self.shortage.as_deref().map(|shortage| (shortage.required, shortage.available)).unzip();
        let error = ErrorDetail { code: self.code, message: &self.message, request_id, required, available };
        serde_json::to_vec(&ErrorBody { error, required, available }).expect("an error is always JSON")
    }

    /// The error as a message of JSON-RPC 2.0. Agents show nothing of another body.
    fn json_rpc(&self, request_id: &str) -> Vec<u8> {
        // "Invalid Request", and the first code that the specification leaves to servers.
        let code = if self.code == ErrorCode::InvalidRequest { -32600 } else { -32000 };
        let data = json!({ "code": self.code, "request_id": request_id });
        let error = json!({ "code": code, "message": self.message, "data": data });
        json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string().into_bytes()
    }

    /// Writes the body into `response` and keeps its other headers.
    pub(super) fn write(&self, mut response: Response<Body>, request_id: &str, form: ErrorForm) -> Response<Body> {
        if let ErrorForm::Page(texts) = form {
            let mut page = studio::write_error(texts, &self.message, self.status, request_id);
            *page.status_mut() = self.status;
            // A cookie may end with an error.
            for cookie in response.headers().get_all(header::SET_COOKIE) {
                page.headers_mut().append(header::SET_COOKIE, cookie.clone());
            }
            if let Some(seconds) = self.retry_after {
                page.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            return page;
        }
        *response.status_mut() = self.status;
        let body = match form {
            ErrorForm::OpenAi => self.write_dialect(&mut response),
            ErrorForm::JsonRpc => self.json_rpc(request_id),
            _ => self.body(request_id),
        };
        let headers = response.headers_mut();
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.code == ErrorCode::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        *response.body_mut() = Body::from(body);
        response
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::http) enum ErrorForm {
    /// `{"error": {"message", "type", "param", "code"}}`.
    OpenAi,
    /// `{"error": {"code", "message", "request_id"}}`.
    Envelope,
    /// `{"jsonrpc", "id", "error": {"code", "message", "data"}}`.
    JsonRpc,
    /// A page in the language of the person.
    Page(&'static Texts),
}

/// In the extensions of a response: the server closes the connection without sending anything, because no answer would
/// be true.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("closing the connection without a response")]
pub struct NoAnswer;

impl IntoResponse for NoAnswer {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

impl From<PageError> for ApiError {
    fn from(error: PageError) -> Self {
        let PageError { cause, retry_after, .. } = error;
        Self { cause, retry_after, ..Self { message: error.text.into(), ..Self::of_status(error.status) } }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            // The answer for a caller without a valid key.
            StoreError::Revoked => Self::unauthorized(),
            error => Self::caused_by(error),
        }
    }
}

impl From<FilesError> for ApiError {
    fn from(error: FilesError) -> Self {
        Self::caused_by(error)
    }
}
