//! Cross-origin requests of browsers (the Fetch standard, section 3.2), for the routes that take a key.
//!
//! A page of an allowed origin may send a key that it holds and read every response, errors included. Nothing is
//! allowed with credentials: cookies and client certificates of the browser never count.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};

use crate::http::routes::{self, Route};
use tintype_config::AllowedOrigins;

/// Response headers that scripts may read in addition to those that the standard always allows.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Date, Location, Retry-After, X-Request-Id, X-Poll-After, X-Queue-Position, X-Expected-Wait, X-Progress, X-Steps, \
     X-Ignored-Fields, X-Should-Retry, Preference-Applied, RateLimit, RateLimit-Policy, X-Tintype-Task-Id",
);
/// The headers that scripts may send. The wildcard never includes `Authorization`, and old browsers do not know it.
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static("Authorization, Content-Type, Prefer, *");
/// How long a browser may cache the answer to a preflight request, in seconds: Chromium's maximum.
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");

/// The part of a request that decides which headers its response gets.
pub(super) struct Cors {
    origins: Arc<AllowedOrigins>,
    applies: bool,
    /// The value of `Access-Control-Allow-Origin`, if the origin of the request is allowed.
    allowed: Option<HeaderValue>,
}

impl Cors {
    pub(super) fn of(origins: &Arc<AllowedOrigins>, request: &Request) -> Self {
        let applies = !origins.are_none() && routes::takes_key(request.uri().path());
        let allowed = if applies { allowed(origins, request.headers()) } else { None };
        Self { origins: origins.clone(), applies, allowed }
    }

    /// The answer to a preflight request for a route, which comes without a key. Other requests pass.
    pub(super) fn preflight(&self, request: &Request) -> Option<Response> {
        let asks = request.method() == Method::OPTIONS
            && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        let methods = if asks && self.allowed.is_some() { Route::methods_at(request)? } else { return None };
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::try_from(methods).ok()?);
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        Some(response)
    }

    /// Lets scripts of the origin read a response.
    pub(super) fn allow(self, mut response: Response) -> Response {
        if !self.applies {
            return response;
        }
        let headers = response.headers_mut();
        if self.origins.are_listed() {
            headers.append(header::VARY, HeaderValue::from(HeaderName::from_static("origin")));
        }
        if let Some(origin) = self.allowed {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        response
    }
}

fn allowed(origins: &AllowedOrigins, headers: &HeaderMap) -> Option<HeaderValue> {
    let mut values = headers.get_all(header::ORIGIN).iter();
    let (Some(origin), None) = (values.next(), values.next()) else { return None };
    if !origins.are_listed() {
        return Some(HeaderValue::from_static("*"));
    }
    origins.contain(origin.as_bytes()).then(|| origin.clone())
}
