//! Answers with pictures.

use axum::body::Body;
use axum::http::header::{self, HeaderValue};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ImageFormat, ImageReader};
use serde::Serialize;
use tokio::sync::Semaphore;

use super::Wanted;
use crate::domain::images_api::{ImageData, ImagesAnswer};
use crate::domain::images_api_request::OutputFormat;
use crate::domain::model::{Status, Task};
use crate::files::FileName;
use crate::http::pipeline::error::ApiError;
use crate::http::state::ApiState;

/// Answers whose pictures are encoded at the same time. Each holds a few megabytes.
static ENCODERS: Semaphore = Semaphore::const_new(4);

/// No picture is transparent.
pub(super) const BACKGROUND: &str = "opaque";

/// The body of an answer.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    images: ImagesAnswer<'a>,
    background: &'static str,
    output_format: &'static str,
    size: String,
    usage: Usage,
}

/// The cost of a call in credits, where OpenAI counts tokens.
#[derive(Serialize)]
pub(super) struct Usage {
    input_tokens: i64,
    input_tokens_details: InputTokens,
    output_tokens: i64,
    total_tokens: i64,
}

#[derive(Serialize)]
struct InputTokens {
    image_tokens: i64,
    text_tokens: i64,
}

impl Usage {
    /// The cost of a task in credits.
    pub(super) fn of(credits: i64) -> Self {
        let input_tokens_details = InputTokens { image_tokens: 0, text_tokens: 0 };
        Self { input_tokens: 0, input_tokens_details, output_tokens: credits, total_tokens: credits }
    }
}

/// A response with this JSON.
pub(super) fn json(body: &impl Serialize) -> Response {
    let body = serde_json::to_vec(body).expect("our own types are always JSON");
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The files of a task that has completed.
pub(super) fn names(task: &Task) -> &[String] {
    match &task.status {
        Status::Completed(names) => names,
        Status::Processing | Status::Failed(_) => &[],
    }
}

/// The answer to a call whose task has completed.
pub(super) async fn completed(wanted: &Wanted, task: &Task, api: &ApiState) -> Result<Response, ApiError> {
    let names = names(task);
    let data = if wanted.as_urls { urls(names, api).await? } else { files(wanted.format, names, api).await? };
    let created = task.updated_at.as_millis().div_euclid(1_000);
    Ok(json(&Answer {
        images: ImagesAnswer { created, data },
        background: BACKGROUND,
        output_format: wanted.format.as_str(),
        size: wanted.size(),
        usage: Usage::of(wanted.cost),
    }))
}

/// The URLs of the files.
pub(super) async fn urls(names: &[String], api: &ApiState) -> Result<Vec<ImageData<'static>>, ApiError> {
    let mut data = Vec::with_capacity(names.len());
    for name in names {
        data.push(ImageData { url: Some(api.links.url(name).await?.into()), b64_json: None });
    }
    Ok(data)
}

/// The files in base64.
pub(in crate::http) async fn files(
    format: OutputFormat,
    names: &[String],
    api: &ApiState,
) -> Result<Vec<ImageData<'static>>, ApiError> {
    // Before the files are read, so that no more than a few are in memory.
    let _permit = ENCODERS.acquire().await.map_err(ApiError::caused_by)?;
    let mut data = Vec::with_capacity(names.len());
    for name in names {
        let name = FileName::parse(name).ok_or_else(|| ApiError::caused_by("a result file has a malformed name"))?;
        let file = api.shared.files.open(name, None).await?;
        let file = file.ok_or_else(|| ApiError::caused_by("a result file is missing"))?;
        let png = file.bytes().await.map_err(|error| ApiError::caused_by(error.to_string()))?;
        // One at a time: for a caller who hangs up, no further ones are encoded.
        let encoded =
            tokio::task::spawn_blocking(move || in_base64(format, &png)).await.map_err(ApiError::caused_by)?;
        data.push(encoded.map_err(ApiError::caused_by)?);
    }
    Ok(data)
}

/// One of our own PNGs, in base64.
pub(super) fn in_base64(format: OutputFormat, png: &Bytes) -> image::ImageResult<ImageData<'static>> {
    let text = match format {
        OutputFormat::Png => BASE64_STANDARD.encode(png),
        OutputFormat::Jpeg(_) | OutputFormat::Webp => BASE64_STANDARD.encode(transcoded(format, png)?),
    };
    Ok(ImageData { b64_json: Some(text.into()), url: None })
}

/// One of our own PNGs in another format.
fn transcoded(format: OutputFormat, png: &[u8]) -> image::ImageResult<Vec<u8>> {
    let picture = ImageReader::with_format(std::io::Cursor::new(png), ImageFormat::Png).decode()?.into_rgb8();
    let mut out = Vec::new();
    match format {
        // The encoder counts from 1.
        OutputFormat::Jpeg(quality) => {
            picture.write_with_encoder(JpegEncoder::new_with_quality(&mut out, quality.max(1)))?
        }
        OutputFormat::Webp | OutputFormat::Png => picture.write_with_encoder(WebPEncoder::new_lossless(&mut out))?,
    }
    Ok(out)
}
