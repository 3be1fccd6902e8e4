//! The samples of presets: pictures of the operator that show what to expect.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use axum::body::Bytes;
use axum::extract;
use axum::http::header::{self, HeaderValue};
use image::ImageFormat;
use tintype_domain::preset::MAX_PRESETS;
use tintype_system::locked::Locked as _;

use crate::studio::error::{PageError, PageResult};
use crate::studio::page::file;
use crate::studio::session::Visitor;

/// Most bytes of a sample.
const MAX_SAMPLE: u64 = 1 << 20;

/// The samples that were read, by their paths, so that slow readers share the memory of one.
#[derive(Debug, Default)]
pub(in crate::studio) struct Samples(Mutex<HashMap<PathBuf, Sample>>);

#[derive(Debug, Clone)]
struct Sample {
    modified: SystemTime,
    content_type: &'static str,
    bytes: Bytes,
}

impl Samples {
    /// Reads a sample, unless it was read already.
    fn read(&self, path: &Path) -> io::Result<Sample> {
        // Before it is opened: opening a pipe would wait for its writer.
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        let modified = metadata.modified()?;
        let known = || self.0.locked();
        if let Some(sample) = known().get(path).filter(|sample| sample.modified == modified) {
            return Ok(sample.clone());
        }
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(MAX_SAMPLE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_SAMPLE {
            return Err(io::Error::other("it has more than 1 MiB"));
        }
        let content_type = match image::guess_format(&bytes) {
            Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) => format.to_mime_type(),
            _ => return Err(io::Error::other("it is not a PNG, JPEG or WebP image")),
        };
        let sample = Sample { modified, content_type, bytes: bytes.into() };
        let mut known = known();
        // Presets come and go with their file.
        if known.len() >= MAX_PRESETS {
            known.clear();
        }
        known.insert(path.to_owned(), sample.clone());
        Ok(sample)
    }
}

/// The sample of a preset.
pub async fn sample(visitor: Visitor, extract::Path(name): extract::Path<String>) -> PageResult {
    let preset = visitor.studio.shared.presets.named(&name).ok_or_else(PageError::not_found)?;
    let path = preset.sample.ok_or_else(PageError::not_found)?;
    let (shown, studio) = (path.display().to_string(), visitor.studio.clone());
    let read = tokio::task::spawn_blocking(move || studio.samples.read(&path)).await.map_err(PageError::caused_by)?;
    let sample = read.map_err(|error| {
        tracing::warn!(preset = name, sample = shown, %error, "cannot show the sample of a preset: check its setting sample");
        PageError::not_found()
    })?;
    let mut response = file(sample.content_type, sample.bytes);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=600"));
    Ok(response)
}
