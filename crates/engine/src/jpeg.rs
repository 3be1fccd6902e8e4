//! Truncated JPEG files. The decoder fills in what is missing with grey, without reporting it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Cursor;

use image::codecs::jpeg::JpegDecoder;
use image::{DynamicImage, ImageDecoder as _, Limits};

use crate::picture::{MAX_DECODER_BYTES, PictureError};

/// Marker for the end of the image.
const END: u8 = 0xd9;
/// Bytes appended to a file without an end. They fill less than one row of blocks, so they show in a picture that lacks
/// data.
const PADDING: usize = 64;

/// Whether the file has the marker that ends its image, not counting previews in its metadata.
pub(crate) fn has_end(file: &[u8]) -> bool {
    // The first marker begins the image and has no length.
    let mut rest = file.get(2..).unwrap_or_default();
    loop {
        // Only fill bytes are allowed between segments. Decoders skip anything else, too.
        let Some(at) = rest.windows(2).position(|pair| pair[0] == 0xff && is_marker(pair[1])) else { return false };
        let marker = rest[at + 1];
        if marker == END {
            return true;
        }
        rest = &rest[at + 2..];
        let Some(length) = rest.first_chunk().map(|bytes| usize::from(u16::from_be_bytes(*bytes))) else {
            return false;
        };
        // A scan's data, which follow its header, contain no markers except the ones that `is_marker` ignores.
        let Some(behind) = rest.get(length.max(2)..) else { return false };
        rest = behind;
    }
}

/// Whether a byte after 0xff is a marker with a segment, or the end: not data, a restart, or a fill byte.
fn is_marker(byte: u8) -> bool {
    !matches!(byte, 0x00 | 0x01 | 0xd0..=0xd8 | 0xff)
}

/// Decodes a file without an end, which some cameras omit. If the picture lacks data, it changes with the appended
/// bytes; if it is complete, it doesn't.
///
/// # Errors
/// [`PictureError::Damaged`]: it lacks data.
pub(crate) fn decode_without_end(file: &[u8]) -> Result<DynamicImage, PictureError> {
    let padded = |byte: u8| -> Result<DynamicImage, PictureError> {
        let file = [file, &[byte; PADDING], &[0xff, END]].concat();
        let mut decoder = JpegDecoder::new(Cursor::new(file))?;
        let mut limits = Limits::default();
        limits.max_alloc = Some(MAX_DECODER_BYTES);
        decoder.set_limits(limits)?;
        Ok(DynamicImage::from_decoder(decoder)?)
    };
    let hash = |picture: &DynamicImage| {
        let mut hasher = DefaultHasher::new();
        picture.as_bytes().hash(&mut hasher);
        hasher.finish()
    };
    // One at a time, because a picture can take a quarter of the process's memory.
    let of_zeros = hash(&padded(0x00)?);
    let picture = padded(0x5a)?;
    match hash(&picture) == of_zeros {
        true => Ok(picture),
        false => Err(PictureError::Damaged("cut off".into())),
    }
}
