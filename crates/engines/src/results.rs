//! Picture files, to and from servers. Returned files are decoded in a confined process, like all untrusted files: a
//! server can be broken, or not the operator's own.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::multipart::Part;
use tintype_engine::picture::PictureError;
use tintype_engine::{EngineError, Mask, Picture};
use tracing::Instrument as _;

use super::endpoint::{Endpoint, Fault, ServerMessage};
use tintype_domain::reference_url::{HTTPS_PORT, ReferenceUrl};
use tintype_outbound::references::{ReferenceOptions, References};
use tintype_system::sandbox::{DecodeError, Decoder};

/// Largest picture file, in bytes.
pub const MAX_FILE_BYTES: usize = 24 * 1024 * 1024;
/// Shortest side of a picture. Anything smaller can't have been rendered for a brief.
const MIN_SIDE: u32 = 32;

/// Turns files returned by a server into pictures.
#[derive(Debug, Clone)]
pub struct Results {
    decoder: Decoder,
}

impl Results {
    /// Decodes with `decoder`.
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder }
    }

    /// A file's picture.
    ///
    /// # Errors
    /// [`EngineError::Temporary`]: the file isn't a picture, or isn't one that an engine renders; another attempt may
    /// succeed.
    pub async fn picture(&self, file: &[u8]) -> Result<Picture, EngineError> {
        if file.len() > MAX_FILE_BYTES {
            return Err(unusable(&format!("is larger than {MAX_FILE_BYTES} bytes")));
        }
        let decoding = self.decoder.decode_result(file).instrument(tracing::debug_span!("decode", bytes = file.len()));
        let picture = decoding.await.map_err(|error| match error {
            DecodeError::Picture(PictureError::TooLarge) => unusable("has too many pixels"),
            DecodeError::Picture(PictureError::UnknownFormat) => unusable("is not a PNG, JPEG or WebP"),
            DecodeError::Picture(PictureError::Damaged(_) | PictureError::NoAlpha) => unusable("is damaged"),
            error => unusable(&format!("could not be decoded ({error})")),
        })?;
        let (width, height) = (picture.width(), picture.height());
        if width.min(height) < MIN_SIDE {
            return Err(unusable(&format!("has only {width}x{height} pixels")));
        }
        if picture.as_rgb().iter().all(|channel| *channel == 0) {
            return Err(unusable(
                "is black: either the model overflows in half precision, so run it in bfloat16 or full precision, or the server blanks pictures that its safety checker refuses",
            ));
        }
        Ok(picture)
    }

    /// A preview file's picture, whatever it shows; `None` if it cannot be decoded.
    pub async fn preview(&self, file: &[u8]) -> Option<Picture> {
        self.decoder.decode_result(file).await.ok()
    }
}

/// Downloads files that a server refers to by URL.
#[derive(Debug)]
pub struct Downloads {
    references: References,
}

impl Downloads {
    /// Downloads in the same way as callers' references.
    pub fn new() -> Result<Self, String> {
        let options = ReferenceOptions { max_bytes: MAX_FILE_BYTES, ..ReferenceOptions::default() };
        Ok(Self { references: References::new(options).map_err(|error| error.to_string())? })
    }

    /// Downloads a file from a URL named by a server. For a URL of the server's own origin, the key is sent. Any other
    /// URL is untrusted: it must be public and use https, and gets no key.
    ///
    /// # Errors
    /// [`EngineError::Temporary`].
    pub async fn download(&self, endpoint: &Endpoint, url: &str, limit: Duration) -> Result<Vec<u8>, Fault> {
        let name = endpoint.name();
        let refuse =
            |why: String| Fault::from(EngineError::Temporary(format!("{name} returned a picture by a URL that {why}")));
        let resolved = endpoint.resolve(url).ok_or_else(|| refuse("is not valid".into()))?;
        if let Some(request) = endpoint.request_for(Method::GET, &resolved) {
            // The picture was rendered, so another attempt would cost as much again, whatever the cause.
            let sent = endpoint.send(request, MAX_FILE_BYTES, limit).await;
            let answer = sent.map_err(|fault| refuse(format!("could not be downloaded ({})", fault.error)))?;
            return match answer.status.is_success() {
                true => Ok(answer.body),
                false => Err(refuse(endpoint.failure(&answer, &ServerMessage::default()).error.to_string())),
            };
        }
        let public =
            ReferenceUrl::parse(resolved.as_str(), &[HTTPS_PORT]).map_err(|fault| refuse(fault.to_string()))?;
        self.references.file(&public).await.map_err(|kind| refuse(kind.to_string()))
    }
}

/// Runs an encoder on a blocking thread.
async fn encoded<T: Send + 'static>(encode: impl FnOnce() -> T + Send + 'static) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(encode).await.map_err(|error| EngineError::Temporary(error.to_string()))
}

/// References as PNGs.
///
/// # Errors
/// [`EngineError::Temporary`]: the encoder panicked.
pub async fn to_pngs(references: Vec<Picture>) -> Result<Vec<Bytes>, EngineError> {
    encoded(move || references.iter().map(|picture| Bytes::from(picture.to_png())).collect()).await
}

/// A mask as a PNG.
///
/// # Errors
/// [`EngineError::Temporary`]: the encoder panicked.
pub async fn mask_to_png(mask: Option<Mask>) -> Result<Option<Bytes>, EngineError> {
    encoded(move || mask.map(|mask| Bytes::from(mask.to_png()))).await
}

/// A reference as a PNG, transparent where its mask lets it change.
///
/// # Errors
/// [`EngineError::Temporary`]: the encoder panicked. [`EngineError::Permanent`]: their sizes differ.
pub async fn cut_out(reference: Picture, mask: Mask) -> Result<Bytes, EngineError> {
    let cut = encoded(move || mask.cut_out(&reference).map(Bytes::from)).await?;
    cut.ok_or_else(|| EngineError::Permanent("the mask has another size than its picture".into()))
}

/// A PNG as a form part.
///
/// # Errors
/// [`EngineError::Permanent`]: the media type is not valid.
pub fn png_part(png: &Bytes, name: String) -> Result<Part, EngineError> {
    let part = Part::stream_with_length(png.clone(), png.len() as u64).file_name(name).mime_str("image/png");
    part.map_err(|error| EngineError::Permanent(error.to_string()))
}

fn unusable(why: &str) -> EngineError {
    EngineError::Temporary(format!("a picture from the engine {why}"))
}
