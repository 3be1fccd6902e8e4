//! The stylesheet and the script, which are part of the binary.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Response, StatusCode};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use super::error::PageError;

/// The assets by their names.
static ASSETS: LazyLock<[(&str, Asset); 2]> = LazyLock::new(|| {
    [
        ("studio.css", Asset::new("text/css; charset=utf-8", include_str!("pages/studio.css"))),
        ("studio.js", Asset::new("text/javascript; charset=utf-8", include_str!("pages/studio.js"))),
    ]
});

struct Asset {
    kind: &'static str,
    plain: &'static str,
    gzip: Bytes,
    etag: String,
}

impl Asset {
    fn new(kind: &'static str, plain: &'static str) -> Self {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(plain.as_bytes()).expect("memory takes every write");
        let hash = BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(plain)[..12]);
        Self { kind, plain, gzip: gzip.finish().expect("memory takes every write").into(), etag: format!("\"{hash}\"") }
    }
}

/// One asset, which a browser asks for again only to hear that it has not changed.
pub async fn asset(Path(name): Path<String>, request: HeaderMap) -> Result<Response<Body>, PageError> {
    let found = ASSETS.iter().find(|(known, _)| *known == name);
    let (_, asset) = found.ok_or_else(PageError::not_found)?;
    let is_known = request.get(header::IF_NONE_MATCH).is_some_and(|etag| etag.as_bytes() == asset.etag.as_bytes());
    let accepted = request.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let gzip = accepted.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("gzip"));
    let mut response = match (is_known, gzip) {
        (true, _) => Response::new(Body::empty()),
        (false, true) => Response::new(Body::from(asset.gzip.clone())),
        (false, false) => Response::new(Body::from(asset.plain)),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    headers.insert(header::ETAG, HeaderValue::try_from(&asset.etag).expect("the letters of Base64 are plain"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else if gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}
