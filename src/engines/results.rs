//! Files that a server returned, until they are pictures. They are decoded in a confined process, like the files of
//! strangers: a server may be broken, or not the operator's own.

use tintype_engine::picture::PictureError;
use tintype_engine::{EngineError, Picture};

use crate::sandbox::{DecodeError, Decoder};

/// Largest file of one picture, in bytes.
pub const MAX_FILE_BYTES: usize = 24 * 1024 * 1024;
/// Shortest side of a picture. Anything smaller was not painted for a brief.
const MIN_SIDE: u32 = 32;

/// Turns the files that a server returned into pictures.
#[derive(Debug, Clone)]
pub struct Results {
    decoder: Decoder,
}

impl Results {
    /// Decodes with `decoder`.
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder }
    }

    /// The picture in a file.
    ///
    /// # Errors
    /// [`EngineError::Temporary`]: the file is no picture, or none that an engine paints; another attempt may succeed.
    pub async fn picture(&self, file: &[u8]) -> Result<Picture, EngineError> {
        if file.len() > MAX_FILE_BYTES {
            return Err(unusable(&format!("is larger than {MAX_FILE_BYTES} bytes")));
        }
        let picture = self.decoder.decode_result(file).await.map_err(|error| match error {
            DecodeError::Picture(PictureError::TooLarge) => unusable("has too many pixels"),
            DecodeError::Picture(PictureError::UnknownFormat) => unusable("is no PNG, JPEG or WebP"),
            DecodeError::Picture(PictureError::Damaged(_)) => unusable("is damaged"),
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
}

fn unusable(why: &str) -> EngineError {
    EngineError::Temporary(format!("a picture from the engine {why}"))
}
