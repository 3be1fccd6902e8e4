//! The samples of presets: pictures of the operator that show what to expect.

use std::io::{self, Read as _};
use std::path::Path;

use axum::body::Body;
use axum::extract;
use axum::http::Response;
use axum::http::header::{self, HeaderValue};
use image::ImageFormat;

use super::error::PageError;
use super::page::secured;
use super::session::Visitor;

/// Most bytes of a sample.
const MAX_SAMPLE: u64 = 4 << 20;

/// The sample of a preset.
pub async fn sample(visitor: Visitor, extract::Path(name): extract::Path<String>) -> Result<Response<Body>, PageError> {
    let preset = visitor.studio.shared.presets.named(&name).ok_or_else(PageError::not_found)?;
    let path = preset.sample.ok_or_else(PageError::not_found)?;
    let shown = path.display().to_string();
    let read = tokio::task::spawn_blocking(move || read(&path)).await.map_err(PageError::caused_by)?;
    let (content_type, bytes) = read.map_err(|error| {
        tracing::warn!(preset = name, sample = shown, %error, "cannot show the sample of a preset: check its setting sample");
        PageError::not_found()
    })?;
    let mut response = secured(Response::new(Body::from(bytes)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=600"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    Ok(response)
}

/// Reads a sample, and says what it is.
fn read(path: &Path) -> io::Result<(&'static str, Vec<u8>)> {
    // Before it is opened: opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_SAMPLE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_SAMPLE {
        return Err(io::Error::other("it has more than 4 MiB"));
    }
    match image::guess_format(&bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) => Ok((format.to_mime_type(), bytes)),
        _ => Err(io::Error::other("it is not a PNG, JPEG or WebP image")),
    }
}
