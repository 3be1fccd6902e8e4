//! The Model Context Protocol for agents, over its streamable HTTP transport: each message is one POST with the key of
//! the caller, and nothing is kept between two messages, so that any process of a cluster answers any of them.
//!
//! Its tools call the handlers of the native API, whose rules, limits and tasks are theirs.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use http_body_util::Full;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use self::rooms::Rooms;
use self::tools::Tools;
use super::api::body::read_json;
use super::ops::Readiness;
use super::pipeline::auth::Caller;
use super::pipeline::error::ApiError;
use super::pipeline::observe::RequestId;
use super::state::ApiState;
use crate::web::Written;

mod definitions;
mod rooms;
mod tools;

/// `POST /mcp`
pub(super) async fn post(
    State(api): State<Arc<ApiState>>,
    State(readiness): State<Readiness>,
    caller: Caller,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    check_origin(&api, request.headers())?;
    let (parts, body) = request.into_parts();
    let limits = &api.settings.connections;
    let message = read_json(Request::from_parts(parts.clone(), body), limits).await?;
    caller.check_again(&api).await?;
    let rooms = Rooms::default();
    let tools = Tools { api, readiness, caller, request_id, rooms: rooms.clone() };
    // No sessions, which the rest of the cluster would not know.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        // These are checked above, and by the routes of this server.
        .disable_allowed_hosts()
        .disable_allowed_origins();
    let service =
        StreamableHttpService::new(move || Ok(tools.clone()), Arc::new(NeverSessionManager::default()), config);
    let answer = service.handle(Request::from_parts(parts, Full::new(message))).await;
    let mut answer = in_envelope(answer.map(|body| Body::new(rooms.with(Body::new(body)))));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

/// Refuses a page of another site, which may have been made to look like this server (DNS rebinding): the specification
/// wants the header `Origin` checked. Programs that are no browsers send none.
fn check_origin(api: &ApiState, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(()) };
    let allowed = &api.settings.origins;
    let is_any = !allowed.are_none() && !allowed.are_listed();
    let text = origin.to_str().unwrap_or_default();
    let own = api
        .settings
        .public_host
        .as_deref()
        .zip(text.split_once("://"))
        .is_some_and(|(own, (_, host))| own.eq_ignore_ascii_case(host));
    if origins.next().is_none() && (is_any || own || allowed.contain(origin.as_bytes())) {
        return Ok(());
    }
    Err(ApiError::refused_origin())
}

/// The answer; an error of the transport, which is plain text, in the envelope of errors.
fn in_envelope(mut answer: Response) -> Response {
    let is_json = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    match answer.status() {
        StatusCode::NOT_ACCEPTABLE => {
            let message = "The header Accept must name application/json and text/event-stream.";
            ApiError::invalid_request(message).into_response()
        }
        // The transport gives this status to every body that it cannot read.
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            let message =
                "The body must be one message of JSON-RPC 2.0, with the header Content-Type: application/json.";
            ApiError::invalid_request(message).into_response()
        }
        status if (status.is_client_error() || status.is_server_error()) && !is_json => {
            ApiError::of_status(status).into_response()
        }
        _ => {
            // Errors of the protocol have a form of their own, whatever their status.
            answer.extensions_mut().insert(Written);
            answer
        }
    }
}
