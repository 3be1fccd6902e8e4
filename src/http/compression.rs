//! gzip for JSON that is longer than 1 KiB, for each response, and for the embedded pages, once.
//!
//! The size of a compressed response reveals whether parts of it are alike (BREACH). That matters if an attacker can
//! make a browser send requests with its user's rights and put chosen words next to a secret. API responses are
//! compressed: browsers never add a key on their own, and responses repeat nothing from the request. Pages for
//! signed-in people aren't.

use std::io::Write as _;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;

/// Shorter texts hardly shrink.
const MIN_BYTES: u64 = 1_024;

pub(super) const GZIP: HeaderValue = HeaderValue::from_static("gzip");
pub(super) const ACCEPT_ENCODING: HeaderValue = HeaderValue::from_static("accept-encoding");

/// Whether a request accepts gzip (RFC 9110, section 12.5.3).
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
    let mut any = false;
    for member in lines.flat_map(|line| line.split(',')) {
        let (coding, weight) = member.split_once(';').unwrap_or((member, ""));
        let accepted = !is_zero(weight);
        match coding.trim() {
            coding if coding.eq_ignore_ascii_case("gzip") || coding.eq_ignore_ascii_case("x-gzip") => return accepted,
            "*" => any = accepted,
            _ => {}
        }
    }
    any
}

/// Whether a weight such as `q=0.5` is zero. A weight that cannot be read counts as zero; no weight is 1.
fn is_zero(weight: &str) -> bool {
    let weight = weight.trim();
    if weight.is_empty() {
        return false;
    }
    let value = weight.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
    let value = value.and_then(|(_, value)| value.trim().parse::<f32>().ok());
    !value.is_some_and(|value| value > 0.0 && value <= 1.0)
}

/// Compresses JSON of the API for a caller that accepts it.
pub(super) async fn compress(gzip: bool, response: Response) -> Response {
    let headers = response.headers();
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    // The response to HEAD has a length and no body.
    let length = length.or(response.body().size_hint().exact()).unwrap_or_default();
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if length <= MIN_BYTES || !is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.append(header::VARY, ACCEPT_ENCODING);
    if !gzip {
        return Response::from_parts(parts, body);
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_ENCODING, GZIP);
    // These bodies are in memory already.
    let plain = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body = if plain.is_empty() { Body::empty() } else { Body::from(pack(&plain, Compression::fast())) };
    Response::from_parts(parts, body)
}

pub(super) fn pack(plain: &[u8], level: Compression) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    let written = encoder.write_all(plain).and_then(|()| encoder.finish());
    written.expect("a vector takes everything").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_accepted_by_name_or_by_a_star() {
        for (lines, accepted) in [
            (&["gzip"][..], true),
            (&["deflate, GZip;q=0.5, br"], true),
            (&["br", "x-gzip"], true),
            (&["*"], true),
            (&["gzip ; q=1.000"], true),
            (&["gzip;q=0, *"], false),
            (&["*;q=0"], false),
            (&["gzip;q=0.000"], false),
            (&["gzip;q=no"], false),
            (&["gzip;q=NaN"], false),
            (&["gzip;level=9"], false),
            (&["br, deflate, identity"], false),
            (&["gzipped"], false),
            (&[""], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::ACCEPT_ENCODING, line.parse().expect("a value"));
            }
            assert_eq!(accepts_gzip(&headers), accepted, "{lines:?}");
        }
    }
}
