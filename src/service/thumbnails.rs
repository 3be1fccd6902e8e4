//! Small copies of pictures, made when someone first looks at them and kept beside them.

use std::sync::Arc;

use bytes::Bytes;
use tintype_engine::picture::Picture;

use crate::files::{FileName, FilesError};
use crate::service::ServiceContext;
use crate::service::shares::FairShares;
use tintype_domain::model::Id;
use tintype_system::sandbox::{DecodeError, Decoder};

/// The longest side of a thumbnail, in pixels: a card of the studio on a screen with two pixels for each point.
pub const SIDE: u32 = 640;
/// Quality of WebP, from 0 to 100.
const QUALITY: f32 = 78.0;
/// Thumbnails that are made at the same time: two for an account, while no other one waits for any.
const MAX_MAKING: usize = 4;

/// Makes and serves thumbnails.
#[derive(Debug)]
pub struct Thumbnails {
    shared: Arc<ServiceContext>,
    decoder: Decoder,
    making: FairShares,
}

/// A thumbnail could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ThumbnailError {
    /// The picture could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The picture could not be decoded.
    #[error(transparent)]
    Decoder(#[from] DecodeError),
    /// The picture could not be encoded.
    #[error("the thumbnail could not be encoded: {0}")]
    Encoder(String),
}

impl Thumbnails {
    /// Makes thumbnails of pictures that `decoder` decodes.
    pub fn new(shared: Arc<ServiceContext>, decoder: Decoder) -> Self {
        Self { shared, decoder, making: FairShares::new(MAX_MAKING) }
    }

    /// Places of thumbnails that are made.
    pub fn making(&self) -> &FairShares {
        &self.making
    }

    /// The thumbnail of an account's picture, as WebP; `None` if there is no such picture. The caller must be allowed
    /// to see it. Accounts take turns.
    pub async fn of(&self, account_id: Id, name: FileName<'_>) -> Result<Option<Bytes>, ThumbnailError> {
        let files = &self.shared.files;
        if let Some(kept) = files.thumbnail(name).await? {
            return Ok(Some(kept));
        }
        let _making = self.making.take(account_id, 1).await;
        // Someone else may have made it meanwhile.
        if let Some(kept) = files.thumbnail(name).await? {
            return Ok(Some(kept));
        }
        let Some(png) = files.read(name).await? else { return Ok(None) };
        let picture = self.decoder.decode_result(&png).await?;
        let made = tokio::task::spawn_blocking(move || encode(picture)).await;
        let made = made.map_err(|error| ThumbnailError::Encoder(error.to_string()))??;
        if self.shared.disk.is_low() {
            return Ok(Some(made));
        }
        if let Err(error) = files.keep_thumbnail(name, made.clone()).await {
            tracing::warn!(name = name.as_str(), %error, "could not store a thumbnail; it will be created again on demand");
        }
        Ok(Some(made))
    }
}

fn encode(picture: Picture) -> Result<Bytes, ThumbnailError> {
    let (width, height) = size((picture.width(), picture.height()));
    let small = picture.stretch(width, height);
    let encoded = webp::Encoder::from_rgb(small.as_rgb(), width, height).encode_simple(false, QUALITY);
    let encoded = encoded.map_err(|error| ThumbnailError::Encoder(format!("{error:?}")))?;
    Ok(Bytes::copy_from_slice(&encoded))
}

/// Width and height of the thumbnail of a picture, in pixels.
pub fn size((width, height): (u32, u32)) -> (u32, u32) {
    let longest = width.max(height);
    if longest <= SIDE {
        return (width, height);
    }
    let scaled = |side: u32| {
        let scaled = (u64::from(side) * u64::from(SIDE) + u64::from(longest) / 2) / u64::from(longest);
        u32::try_from(scaled).unwrap_or(SIDE).max(1)
    };
    (scaled(width), scaled(height))
}
