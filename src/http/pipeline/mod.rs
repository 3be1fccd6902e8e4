//! The steps that every request passes on its way to a handler, from the outside in.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use self::cors::Cors;
use super::ops::Readiness;
use super::routes::RouteGroup;
use super::state::ApiState;
use super::{compression, routes};
use crate::service::ServiceContext;

pub mod auth;
mod cors;
mod dialect;
mod discard_body;
pub mod error;
pub mod framing;
mod host;
pub mod malformed;
pub mod observe;
mod proxy;
pub(super) mod repeats;
mod reserve;

/// The steps of a request of a caller.
pub(super) async fn run(
    State((api, readiness)): State<(Arc<ApiState>, Readiness)>,
    request: Request,
    next: Next,
) -> Response {
    let strict = api.settings.production && proxy::arrived_over_https(&api.settings.trusted_proxies, &request);
    // Pictures in base64 hardly shrink, and a stream of events must not be delayed. An answer in parts holds its call
    // and its memory until the last part is sent, so nothing may collect the parts first.
    let in_parts = routes::speaks_openai(&request) || routes::group(&request) == Some(RouteGroup::Mcp);
    let is_api = routes::takes_key(request.uri().path()) && !in_parts;
    let gzip = compression::accepts_gzip(request.headers());
    let cors = Cors::of(&api.settings.origins, &request);
    let early = |request: &Request| host::refuse_ambiguous(request).or_else(|| reserve::refuse_over_limit(request));
    let preflight = |request: &Request| cors.preflight(request).or_else(|| options(request));
    let unread =
        |request: &Request| early(request).or_else(|| preflight(request).filter(|_| !auth::has_key_in_query(request)));
    let answer = async |request| match unread(&request) {
        None => discard_body::discard_rest(request, |request| auth::guard(&api, &readiness, request, next)).await,
        Some(response) => response,
    };
    let client = if api.settings.log_clients { proxy::client(&api.settings.trusted_proxies, &request) } else { None };
    let mut response = observe::observe(&api.shared, strict, client, request, answer).await;
    if is_api {
        response = compression::compress(gzip, response).await;
    }
    readiness.close_when_stopping(cors.allow(response))
}

/// The answer to OPTIONS in OpenAI's dialect. Some clients ask for it, without a key, to see whether a path is there.
fn options(request: &Request) -> Option<Response> {
    let asks = request.method() == Method::OPTIONS && routes::speaks_openai(request);
    let methods = if asks { routes::Route::methods_at(request)? } else { return None };
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::try_from(methods).ok()?);
    Some(response)
}

/// The steps of a request for metrics, which comes from the operator.
pub(super) async fn run_metrics(State(shared): State<Arc<ServiceContext>>, request: Request, next: Next) -> Response {
    let answer = async |request| match reserve::refuse_over_limit(&request) {
        None => next.run(request).await,
        Some(refusal) => refusal,
    };
    observe::observe(&shared, false, None, request, answer).await
}
