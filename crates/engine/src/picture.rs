//! Pictures: decodes references, fits rendered pictures to their size and encodes PNG.

use std::io::Cursor;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::metadata::Orientation;
use image::{
    DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder, ImageError, ImageFormat, ImageReader, Limits,
    RgbImage, imageops,
};

/// Longest side of a reference picture, in pixels.
pub const MAX_SIDE: u32 = 8_192;
/// Most pixels of a reference picture: enough for a photo of 48 megapixels.
pub const MAX_PIXELS: u64 = 8_192 * 6_144;
/// Most memory that the decoder may allocate for one reference picture, in bytes.
const MAX_DECODER_BYTES: u64 = 256 * 1024 * 1024;
/// References are scaled down to fit a square of this side, because no engine uses more detail.
pub const REFERENCE_SIDE: u32 = 1_024;
/// Pictures that an engine returned are scaled down to fit a square of this side: more than twice the longest side of a
/// result.
pub const RESULT_SIDE: u32 = 4_096;

/// An opaque picture with 8 bits for each of red, green and blue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pixels: RgbImage,
}

/// Why bytes could not be decoded as a picture.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The content is not PNG, JPEG or WebP.
    #[error("not a PNG, JPEG or WebP image")]
    UnknownFormat,
    /// The header exceeds [`MAX_SIDE`], [`MAX_PIXELS`] or the memory limit.
    #[error("too large")]
    TooLarge,
    /// The data is damaged.
    #[error("damaged: {0}")]
    Damaged(String),
}

impl From<ImageError> for PictureError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Limits(_) => Self::TooLarge,
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl Picture {
    /// Wraps `width * height * 3` bytes of RGB; `None` if the length does not match.
    pub fn from_rgb(width: u32, height: u32, bytes: Vec<u8>) -> Option<Self> {
        RgbImage::from_raw(width, height, bytes).map(|pixels| Self { pixels })
    }

    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.pixels.width()
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.pixels.height()
    }

    /// The RGB bytes, row by row from the top.
    pub fn as_rgb(&self) -> &[u8] {
        self.pixels.as_raw()
    }

    /// Decodes PNG, JPEG or WebP, detected by content, within fixed limits on size and memory. Of an animation it
    /// decodes the first frame. It applies the EXIF orientation and drops all other metadata, blends transparency with
    /// white, and scales the picture down to at most [`REFERENCE_SIDE`] pixels per side.
    ///
    /// The decoder processes untrusted data, so a server must call it only in a confined process.
    ///
    /// # Errors
    /// [`PictureError`]: the format, the size, or damaged data.
    pub fn decode(bytes: &[u8]) -> Result<Self, PictureError> {
        Self::decode_within(bytes, REFERENCE_SIDE)
    }

    /// [`Picture::decode`], scaled down to at most `side` pixels per side.
    ///
    /// # Errors
    /// As [`Picture::decode`].
    pub fn decode_within(bytes: &[u8], side: u32) -> Result<Self, PictureError> {
        let format = match image::guess_format(bytes) {
            Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) => format,
            _ => return Err(PictureError::UnknownFormat),
        };
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_SIDE);
        limits.max_image_height = Some(MAX_SIDE);
        limits.max_alloc = Some(MAX_DECODER_BYTES);
        reader.limits(limits);
        // Only the header has been parsed so far.
        let mut decoder = reader.into_decoder()?;
        let (width, height) = decoder.dimensions();
        if u64::from(width) * u64::from(height) > MAX_PIXELS || decoder.total_bytes() > MAX_DECODER_BYTES {
            return Err(PictureError::TooLarge);
        }
        if width == 0 || height == 0 {
            return Err(PictureError::Damaged("empty".into()));
        }
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let decoded = DynamicImage::from_decoder(decoder)?;
        let mut shrunk = if width.max(height) > side { decoded.thumbnail(side, side) } else { decoded };
        shrunk.apply_orientation(orientation);
        Ok(Self { pixels: flatten(&shrunk) })
    }

    /// The picture at exactly `width` x `height`, scaled to cover that size and cropped around the centre.
    pub fn fit(self, width: u32, height: u32) -> Self {
        if self.width() == width && self.height() == height {
            return self;
        }
        let covered =
            DynamicImage::ImageRgb8(self.pixels).resize_to_fill(width, height, imageops::FilterType::Lanczos3);
        Self { pixels: covered.into_rgb8() }
    }

    /// The picture scaled down, if necessary, to at most `side` pixels per side.
    pub fn within(self, side: u32) -> Self {
        if self.width().max(self.height()) <= side {
            return self;
        }
        Self { pixels: DynamicImage::ImageRgb8(self.pixels).thumbnail(side, side).into_rgb8() }
    }

    /// The brightness of the picture as `side` rows of `side` pixels, whatever its aspect ratio.
    pub fn grey(&self, side: u32) -> Vec<u8> {
        let grey = imageops::grayscale(&self.pixels);
        imageops::resize(&grey, side, side, imageops::FilterType::Triangle).into_raw()
    }

    /// Encodes the picture as a PNG without metadata, optimised for speed.
    pub fn to_png(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.as_rgb().len() / 2);
        PngEncoder::new_with_quality(&mut out, CompressionType::Fast, FilterType::Adaptive)
            .write_image(self.as_rgb(), self.width(), self.height(), ExtendedColorType::Rgb8)
            .expect("writing a well-formed picture to memory cannot fail");
        out
    }
}

/// Blends a picture with white and drops its alpha channel.
fn flatten(picture: &DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.to_rgb8();
    }
    let rgba = picture.to_rgba8();
    RgbImage::from_fn(rgba.width(), rgba.height(), |x, y| {
        let [r, g, b, a] = rgba.get_pixel(x, y).0;
        let over_white =
            |channel: u8| ((u32::from(channel) * u32::from(a) + 255 * (255 - u32::from(a)) + 127) / 255) as u8;
        image::Rgb([over_white(r), over_white(g), over_white(b)])
    })
}
