//! Rejects requests with more than one interpretation of their length or their host.

use std::net::Ipv6Addr;

use axum::extract::Request;
use axum::http::header::{self, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, Version};
use axum::response::{IntoResponse as _, Response};

use super::auth::ConnectionInfo;
use super::error::ApiError;

/// The error for a request with more than one interpretation, which also closes its connection.
pub(super) fn refuse_ambiguous(request: &Request) -> Option<Response> {
    let unambiguous = request.extensions().get::<ConnectionInfo>().is_none_or(|connection| connection.unambiguous);
    let message = if !unambiguous {
        "The header can be read in more than one way: its lines must end in CR LF, its URL must have no fragment, and \
         only one of Content-Length and Transfer-Encoding may be given, once."
    } else if !names_one_host(request.version(), request.headers(), request.uri()) {
        "The request must name exactly one host in the header Host."
    } else {
        return None;
    };
    let mut response = ApiError::invalid_request(message).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Some(response)
}

fn names_one_host(version: Version, headers: &HeaderMap, uri: &Uri) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host,
        (None, None) => return version < Version::HTTP_11,
        _ => return false,
    };
    let Ok(host) = Authority::try_from(host.as_bytes()) else { return false };
    // A proxy may send the whole URL as the target; its host must then match the header.
    is_valid(&host) && uri.authority().is_none_or(|authority| *authority == host)
}

/// Whether this is a host with or without a port, as RFC 9110 (7.2) wants it. The parser takes any text for either.
fn is_valid(host: &Authority) -> bool {
    let name = host.host();
    // Without this beginning there is a user before it.
    let Some(port) = host.as_str().strip_prefix(name) else { return false };
    let has_port = match port.strip_prefix(':') {
        // Digits alone: the parser of numbers takes a plus before them.
        Some(port) => {
            port.bytes().all(|byte| byte.is_ascii_digit()) && (port.is_empty() || port.parse::<u16>().is_ok())
        }
        None => port.is_empty(),
    };
    let is_ipv6 = |address: &str| address.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    !name.is_empty() && has_port && name.strip_prefix('[').is_none_or(is_ipv6)
}
