//! The outermost layer: a request id, a written error, a measurement and a log line for every response.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures::FutureExt as _;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::error::{API_PATHS, ApiError, ErrorForm, NoAnswer};
use crate::http::routes::{self, RouteGroup};
use crate::service::ServiceContext;
use crate::studio::{HasOwnBody, PageError, Texts};
use crate::traces::UNTRACED;
use tintype_domain::source::Peer;
use tintype_system::clock::Clock;

/// Tells browsers to use HTTPS only, for a year.
const STRICT_TRANSPORT: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// The header that holds the request id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request, which callers quote to support. Callers cannot choose it, so it names one request only.
#[derive(Debug, Clone)]
pub struct RequestId(Arc<str>);

impl RequestId {
    fn random() -> Self {
        Self(BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 15]>()).into())
    }

    /// The id of a request that [`observe`] has given one.
    pub(super) fn of(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::random)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The answer to a path without a route. Most callers who get here set a base URL with a slash or a `/v1` too many or
/// too few, so the answer names the path that they probably mean. Others chat with a model that `/v1/models` lists. MCP
/// clients without a valid key try to register, and show the answer.
pub(in crate::http) async fn no_route(uri: Uri) -> ApiError {
    match (routes::similar(uri.path()), uri.path()) {
        (Some(pattern), _) => ApiError::no_route(&format!("Did you mean {}?", pattern.replace("{*", "{"))),
        (None, "/register") => ApiError::no_route(
            "This server has no OAuth: let your program send a valid API key as \"Authorization: Bearer <API_KEY>\".",
        ),
        (None, path) if path.starts_with("/v1/") => {
            ApiError::no_route("This server supports only the image and model endpoints of OpenAI's API.")
        }
        (None, _) => ApiError::no_route(API_PATHS),
    }
}

/// The answer to a method that a path does not have.
pub(in crate::http) async fn wrong_method(request: Request) -> ApiError {
    match routes::group(&request) {
        Some(RouteGroup::Docs) => ApiError::no_api_here(),
        _ => ApiError::of_status(StatusCode::METHOD_NOT_ALLOWED),
    }
}

/// Answers a request within a span that carries its id, and gives every response an id, a written error, a measurement
/// and a log line, which names the `client` if there is one. A `strict` response tells browsers to use HTTPS only.
pub(super) async fn observe<F: Future<Output = Response>>(
    shared: &ServiceContext,
    strict: bool,
    client: Option<Peer>,
    mut request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let started = shared.clock.elapsed();
    let client = client.map(tracing::field::display);
    let id = RequestId::random();
    let method = request.method().clone();
    let (route, form) = (routes::label(&request), error_form(&request));
    request.extensions_mut().insert(id.clone());
    let span = new_span(&request, &id);
    let answered = AssertUnwindSafe(answer(request)).catch_unwind().instrument(span.clone()).await;
    let _entered = span.enter();
    let mut response = answered.unwrap_or_else(|_| ApiError::caused_by("a handler panicked").into_response());
    if response.extensions().get::<NoAnswer>().is_some() {
        tracing::warn!(%method, route, client, "closing the connection without a response");
        end_span(&span, &method, route, None);
        return response;
    }
    let error = error_of(&mut response);
    if let Some(error) = &error {
        response = error.write(response, &id.0, form);
    }
    if let Ok(value) = HeaderValue::try_from(&*id.0) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if strict {
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, STRICT_TRANSPORT);
    }
    let took = shared.clock.elapsed().saturating_sub(started);
    let status = response.status().as_u16();
    shared.metrics.answered(route, routes::method_label(&method), status, took);
    let millis = took.as_micros() as f64 / 1_000.0;
    let cause = error.as_ref().and_then(ApiError::cause).map(tracing::field::display);
    if status >= 500 && cause.is_some() {
        tracing::error!(%method, route, status, millis, client, cause, "the request failed");
    } else if status >= 500 {
        tracing::warn!(%method, route, status, millis, client, "the request failed");
    } else if status >= 400 || method == Method::POST {
        tracing::info!(%method, route, status, millis, client, cause, "the request was answered");
    } else {
        tracing::debug!(%method, route, status, millis, client, "the request was answered");
    }
    end_span(&span, &method, route, Some(status));
    response
}

/// The span of a request, in the log and, for the API, in a trace. It is at the level of errors, so that no filter
/// separates an event from its request.
fn new_span(request: &Request, id: &RequestId) -> Span {
    if matches!(routes::group(request), Some(RouteGroup::Api | RouteGroup::OpenAi | RouteGroup::Mcp)) {
        tracing::error_span!(
            "request",
            request_id = %id,
            http.request.method = Empty,
            http.route = Empty,
            http.response.status_code = Empty,
            error = Empty
        )
    } else {
        tracing::error_span!(target: UNTRACED, "request", request_id = %id)
    }
}

/// Adds to the trace what the last line of the log says; a span with these fields would repeat them in every line.
fn end_span(span: &Span, method: &Method, route: &'static str, status: Option<u16>) {
    span.record("http.request.method", routes::method_label(method)).record("http.route", route);
    span.record("http.response.status_code", status).record("error", status.is_none_or(|status| status >= 500));
}

/// The error of a response, also of one that the framework made.
fn error_of(response: &mut Response<Body>) -> Option<ApiError> {
    let status = response.status();
    let failed = status.is_client_error() || status.is_server_error();
    let extensions = response.extensions_mut();
    if extensions.remove::<HasOwnBody>().is_some() {
        return None;
    }
    let known = extensions.remove::<ApiError>().or_else(|| extensions.remove::<PageError>().map(ApiError::from));
    known.or_else(|| failed.then(|| ApiError::of_status(status)))
}

fn error_form(request: &Request) -> ErrorForm {
    match routes::group(request) {
        Some(RouteGroup::OpenAi) => ErrorForm::OpenAi,
        Some(RouteGroup::Mcp) => ErrorForm::JsonRpc,
        Some(RouteGroup::Studio) => ErrorForm::Page(Texts::of(request.headers())),
        None if routes::speaks_openai(request) => ErrorForm::OpenAi,
        _ => ErrorForm::Envelope,
    }
}

/// The whole response to bytes that are not HTTP/1.1.
pub fn refusal(status: StatusCode) -> Vec<u8> {
    let id = RequestId::random();
    let body = ApiError::of_status(status).body(&id.0);
    let reason = status.canonical_reason().unwrap_or("Error");
    let now = Clock::system().now().as_millis().unsigned_abs();
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(now));
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\ndate: {date}\r\n{REQUEST_ID}: {id}\r\nconnection: close\r\n\r\n",
        status.as_u16(),
        body.len()
    );
    [head.into_bytes(), body].concat()
}
