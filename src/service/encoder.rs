//! Pictures as answers carry them, in base64, with bounds on the encoders and the memory that all accounts share.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ImageFormat, ImageReader, ImageResult};

use crate::files::{FileName, FilesError};
use crate::service::ServiceContext;
use crate::service::shares::{FairShares, Share};
use tintype_domain::images_api_request::OutputFormat;
use tintype_domain::model::Id;

/// Bytes of pictures in answers of `/v1`, and of MCP, that are made or sent.
const MEMORY: usize = 256 << 20;
const MEMORY_OF_TOOLS: usize = 128 << 20;
/// Answers whose pictures are encoded at the same time.
const SLOTS: usize = 4;
/// The estimate of a picture in base64 and of its copy in the answer, in bytes, until it is encoded.
pub const PICTURE_BYTES: usize = 8 << 20;
/// Longest wait for memory.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// Encodes pictures.
#[derive(Debug)]
pub struct Encoder {
    shared: Arc<ServiceContext>,
    slots: FairShares,
    memory: FairShares,
    memory_of_tools: FairShares,
}

/// The pictures of an answer.
#[derive(Debug)]
pub struct Encoded {
    /// The pictures in base64, in their order.
    pub pictures: Vec<String>,
    /// The memory for them and for a copy of each.
    pub room: Share,
}

/// Pictures could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The answers of this account, or of all, have taken their memory for a long time.
    #[error("too many answers are being received")]
    Crowded,
    /// A file could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file is not as we have written it.
    #[error("{0}")]
    Damaged(String),
}

impl Encoder {
    /// Encodes result files.
    pub fn new(shared: Arc<ServiceContext>) -> Self {
        let (memory, memory_of_tools) = (FairShares::new(MEMORY), FairShares::new(MEMORY_OF_TOOLS));
        Self { shared, slots: FairShares::new(SLOTS), memory, memory_of_tools }
    }

    /// The memory of answers of `/v1`, in bytes.
    pub fn memory(&self) -> &FairShares {
        &self.memory
    }

    /// The memory of answers of MCP, in bytes.
    pub fn memory_of_tools(&self) -> &FairShares {
        &self.memory_of_tools
    }

    /// The encoders. Each works on one answer at a time.
    pub fn slots(&self) -> &FairShares {
        &self.slots
    }

    /// The pictures in these files of an account, which take one of the memories.
    pub async fn pictures(
        &self,
        memory: &FairShares,
        account_id: Id,
        format: OutputFormat,
        names: &[String],
    ) -> Result<Encoded, EncodeError> {
        let room = memory.take(account_id, names.len() * PICTURE_BYTES);
        let mut room = tokio::time::timeout(MAX_WAIT, room).await.map_err(|_| EncodeError::Crowded)?;
        // Before the files are read, so that no more than a few are in memory.
        let _slot = self.slots.take(account_id, 1).await;
        let mut pictures = Vec::with_capacity(names.len());
        for name in names {
            let name = FileName::parse(name).ok_or_else(|| damaged("a result file has a malformed name"))?;
            let png = self.shared.files.read(name).await?.ok_or_else(|| damaged("a result file is missing"))?;
            // One at a time: for a caller who hangs up, no further ones are encoded.
            let encoded = tokio::task::spawn_blocking(move || in_base64(format, &png)).await.map_err(damaged)?;
            pictures.push(encoded.map_err(damaged)?);
        }
        room.correct(2 * pictures.iter().map(String::len).sum::<usize>());
        Ok(Encoded { pictures, room })
    }
}

fn damaged(cause: impl ToString) -> EncodeError {
    EncodeError::Damaged(cause.to_string())
}

/// One of our own PNGs, in base64.
pub fn in_base64(format: OutputFormat, png: &[u8]) -> ImageResult<String> {
    Ok(match format {
        OutputFormat::Png => BASE64_STANDARD.encode(png),
        OutputFormat::Jpeg(_) | OutputFormat::Webp => BASE64_STANDARD.encode(transcoded(format, png)?),
    })
}

fn transcoded(format: OutputFormat, png: &[u8]) -> ImageResult<Vec<u8>> {
    let picture = ImageReader::with_format(Cursor::new(png), ImageFormat::Png).decode()?.into_rgb8();
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
