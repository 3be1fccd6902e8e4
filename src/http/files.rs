//! Serves result files, which are immutable, cacheable forever and available in ranges.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, Response, StatusCode};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::{GetRange, GetResult};

use super::pipeline::error::ApiError;
use super::state::ApiState;
use crate::files::{FileName, FilesError, SIGNATURE};

#[derive(Debug, PartialEq, Eq)]
enum ByteRange {
    Whole,
    Part(std::ops::Range<u64>),
    Unsatisfiable,
}

pub(super) async fn serve(
    State(api): State<Arc<ApiState>>,
    method: Method,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let Path(text) = name.map_err(|_| ApiError::not_found())?;
    let name = FileName::parse(&text).ok_or_else(ApiError::not_found)?;
    // A name is never used twice, so it identifies the content.
    let etag = format!("\"{}\"", name.as_str());
    let conditions = [header::RANGE, header::IF_NONE_MATCH, header::IF_MATCH];
    if method == Method::GET && !conditions.iter().any(|condition| headers.contains_key(condition)) {
        // The common case, in one request to a bucket.
        let file = api.shared.files.open(name, None).await?.ok_or_else(ApiError::not_found)?;
        let mut response = file_response(StatusCode::OK, &etag);
        insert(response.headers_mut(), header::CONTENT_LENGTH, &file.meta.size.to_string());
        *response.body_mut() = body(file).await?;
        return Ok(response);
    }
    let size = api.shared.files.size(name).await?.ok_or_else(ApiError::not_found)?;
    if headers.contains_key(header::IF_MATCH) && !matches_etag(&headers, &header::IF_MATCH, &etag) {
        return Err(ApiError::of_status(StatusCode::PRECONDITION_FAILED));
    }
    if matches_etag(&headers, &header::IF_NONE_MATCH, &etag) {
        let mut response = file_response(StatusCode::NOT_MODIFIED, &etag);
        insert(response.headers_mut(), header::CONTENT_LENGTH, &size.to_string());
        return Ok(response);
    }
    let extent = match headers.get(header::IF_RANGE) {
        // Ranges are defined for GET alone (RFC 9110, section 14.2).
        _ if method != Method::GET => ByteRange::Whole,
        Some(validator) if validator.as_bytes() != etag.as_bytes() => ByteRange::Whole,
        _ => headers.get(header::RANGE).map_or(ByteRange::Whole, |range| requested_range(range, size)),
    };
    let (status, range) = match extent {
        ByteRange::Whole => (StatusCode::OK, 0..size),
        ByteRange::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        ByteRange::Unsatisfiable => {
            let mut response = ApiError::of_status(StatusCode::RANGE_NOT_SATISFIABLE).into_response();
            insert(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(response);
        }
    };
    let mut response = file_response(status, &etag);
    insert(response.headers_mut(), header::CONTENT_LENGTH, &(range.end - range.start).to_string());
    if status == StatusCode::PARTIAL_CONTENT {
        let content_range = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        insert(response.headers_mut(), header::CONTENT_RANGE, &content_range);
    }
    if method != Method::HEAD {
        let file =
            api.shared.files.open(name, Some(GetRange::Bounded(range))).await?.ok_or_else(ApiError::not_found)?;
        *response.body_mut() = body(file).await?;
    }
    Ok(response)
}

/// The body of a response. Its reader may keep it for a year, so what does not begin like a PNG is refused, such as the
/// page of a proxy before the bucket. Only a range from the start shows that.
async fn body(file: GetResult) -> Result<Body, ApiError> {
    let (from_start, is_part) = (file.range.start == 0, file.range.end < file.meta.size);
    let mut rest = file.into_stream();
    let mut start = Vec::new();
    while start.len() < SIGNATURE.len()
        && let Some(chunk) = rest.try_next().await.map_err(FilesError::from)?
    {
        start.extend_from_slice(&chunk);
    }
    let is_png = start.starts_with(&SIGNATURE) || (is_part && SIGNATURE.starts_with(&start));
    if from_start && !is_png {
        let cause = "the result store returned something that is not a PNG: check the proxy in front of it, and all files \
                     with `tintype credits audit --files`";
        return Err(ApiError::of_status(StatusCode::BAD_GATEWAY).with_cause(cause));
    }
    Ok(Body::from_stream(stream::once(std::future::ready(Ok(Bytes::from(start)))).chain(rest)))
}

/// A response with the headers of a file and no body.
fn file_response(status: StatusCode, etag: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, "image/png"),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (header::ACCEPT_RANGES, "bytes"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("cross-origin"));
    insert(headers, header::ETAG, etag);
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    headers.insert(name, HeaderValue::try_from(value).expect("numbers and file names are header values"));
}

/// Whether a condition names this ETag. If-Match compares strongly (RFC 9110, section 13.1.1), so no weak tag counts.
pub(super) fn matches_etag(headers: &HeaderMap, condition: &HeaderName, etag: &str) -> bool {
    let is_strong = *condition == header::IF_MATCH;
    let is_same = |tag: &str| tag == etag || (!is_strong && tag.strip_prefix("W/") == Some(etag));
    let values = headers.get_all(condition).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).any(|tag| tag == "*" || is_same(tag))
}

/// Reads a Range header (RFC 9110, section 14). Several ranges, another unit or an invalid value get the whole file, as
/// the RFC allows.
fn requested_range(range: &HeaderValue, size: u64) -> ByteRange {
    let spec = range.to_str().ok().and_then(|text| text.strip_prefix("bytes="));
    let Some((first, last)) = spec.and_then(|spec| spec.trim().split_once('-')) else { return ByteRange::Whole };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().unwrap_or(u64::MAX));
    let range = match (number(first.trim()), number(last.trim()), first.is_empty(), last.is_empty()) {
        (Some(first), _, false, true) => first..size,
        (Some(first), Some(last), false, false) if first <= last => first..last.saturating_add(1).min(size),
        (_, Some(suffix), true, false) => size.saturating_sub(suffix)..size,
        _ => return ByteRange::Whole,
    };
    if range.start >= range.end { ByteRange::Unsatisfiable } else { ByteRange::Part(range) }
}
