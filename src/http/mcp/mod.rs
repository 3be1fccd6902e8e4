//! The Model Context Protocol for agents, over its streamable HTTP transport: each message is one POST with the
//! caller's key, and nothing is kept between messages, so any process in a cluster can answer any message.
//!
//! Its tools call the native API's handlers, with their rules, limits and tasks.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{self, HeaderMap};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use http_body_util::Full;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::value::RawValue;

use self::accept::AcceptedFormats;
use self::tools::Tools;
use super::answer_memory::AnswerMemory;
use super::api::body::read_json;
use super::pipeline::auth::Caller;
use super::pipeline::error::ApiError;
use super::state::ApiState;
use crate::studio::HasOwnBody;

mod accept;
mod definitions;
mod tools;

/// Longest message of the transport that callers see.
const MAX_MESSAGE_BYTES: usize = 1_024;

/// `POST /mcp`, and `/mcp/`, as some programs complete it
pub(super) async fn post(caller: Caller, request: Request) -> Result<Response, ApiError> {
    check_origin(&caller.api, request.headers())?;
    let (mut parts, body) = request.into_parts();
    let formats = AcceptedFormats::of(&parts.headers).ok_or_else(|| {
        ApiError::invalid_request("The header Accept must allow application/json or text/event-stream.")
    })?;
    let limits = &caller.api.settings.connections;
    let message = read_json(Request::from_parts(parts.clone(), body), limits).await?;
    caller.recheck().await?;
    let memory = AnswerMemory::default();
    AcceptedFormats::allow_both(&mut parts.headers);
    let tools = Tools { caller, memory: memory.clone(), reports: formats.stream, count: count_in(&message) };
    // No sessions, which the rest of the cluster would not know.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(formats.json)
        // These are checked above, and by the routes of this server.
        .disable_allowed_hosts()
        .disable_allowed_origins();
    let service =
        StreamableHttpService::new(move || Ok(tools.clone()), Arc::new(NeverSessionManager::default()), config);
    let answer = service.handle(Request::from_parts(parts, Full::new(message))).await;
    let mut answer = refused_or_written(answer.map(|body| Body::new(memory.attach_to_body(Body::new(body))))).await;
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    Ok(answer)
}

/// The number of images as a message writes it; the transport rounds it.
fn count_in(message: &[u8]) -> Option<String> {
    let member = |json, name| Some(serde_json::from_str::<HashMap<String, &RawValue>>(json).ok()?.remove(name)?.get());
    let found = ["params", "arguments", "n"].into_iter().try_fold(std::str::from_utf8(message).ok()?, member);
    found.map(str::to_owned)
}

/// Rejects a page of another site, which may have been made to look like this server (DNS rebinding): the specification
/// wants the header `Origin` checked. Programs other than browsers send none.
fn check_origin(api: &ApiState, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(()) };
    let allowed = &api.settings.origins;
    let is_any = !allowed.are_none() && !allowed.are_listed();
    let is_same = origin.to_str().is_ok_and(|origin| is_this_server(origin, api, headers));
    if origins.next().is_none() && (is_any || is_same || allowed.contain(origin.as_bytes())) {
        return Ok(());
    }
    Err(ApiError::refused_origin())
}

/// Whether an origin is this server. A name that only the caller gives can be faked; an address cannot.
fn is_this_server(origin: &str, api: &ApiState, headers: &HeaderMap) -> bool {
    let Some((_, host)) = origin.split_once("://") else { return false };
    let is = |name: &str| name.eq_ignore_ascii_case(host);
    let named = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    [&api.settings.studio.public_host, &api.settings.listening_host].into_iter().flatten().any(|name| is(name))
        || named.is_some_and(|named| is(named) && is_address(named))
}

/// Whether a host is an address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// The answer; an error of the transport, which is a message in plain text, as an error of this server.
async fn refused_or_written(mut answer: Response) -> Response {
    let is_json = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    match answer.status() {
        // The transport uses this status for every unreadable body.
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            let message =
                "The body must be one message of JSON-RPC 2.0, with the header Content-Type: application/json.";
            ApiError::invalid_request(message).into_response()
        }
        status if (status.is_client_error() || status.is_server_error()) && !is_json => {
            let message = to_bytes(answer.into_body(), MAX_MESSAGE_BYTES).await.unwrap_or_default();
            match String::from_utf8(message.into()) {
                Ok(message) if status == StatusCode::BAD_REQUEST && !message.is_empty() => {
                    ApiError::invalid_request(message)
                }
                _ => ApiError::of_status(status),
            }
            .into_response()
        }
        _ => {
            // Protocol errors have their own form, whatever their status.
            answer.extensions_mut().insert(HasOwnBody);
            answer
        }
    }
}
