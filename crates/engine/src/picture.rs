//! Pictures: decodes references, fits rendered pictures to their size, and encodes PNG.

use std::io::Cursor;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType as resizing, ResizeAlg, ResizeOptions, Resizer};
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::metadata::Orientation;
use image::{
    DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder, ImageError, ImageFormat, ImageReader, Limits,
    RgbImage, imageops,
};

use crate::{colours, jpeg};

/// How to scale a picture to a size with another ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// Cover the size, cropping around the centre.
    Cover,
    /// Scale each side separately.
    EachSide,
}

/// Longest side of a reference picture, in pixels.
pub const MAX_SIDE: u32 = 8_192;
/// Most pixels in a reference picture: enough for a 48-megapixel photo.
pub const MAX_PIXELS: u64 = 8_192 * 6_144;
/// Most memory that the decoder can allocate for a reference picture, in bytes.
pub(crate) const MAX_DECODER_BYTES: u64 = 256 * 1024 * 1024;
/// References are scaled down to fit a square of this side, the longest side of a result.
pub const REFERENCE_SIDE: u32 = 1_568;
/// Pictures returned by engines are scaled down to fit a square of this side: more than twice a result's longest side.
pub const RESULT_SIDE: u32 = 4_096;

/// Longest side of a preview, in pixels. As a PNG it has at most 50 kB, whatever it shows.
pub const PREVIEW_SIDE: u32 = 128;

/// An opaque picture with 8 bits each for red, green and blue.
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
    /// It should be a mask, but has no alpha channel.
    #[error("no alpha channel")]
    NoAlpha,
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

    /// Decodes PNG, JPEG or WebP, detected by content, within fixed limits on size and memory. Animations become their
    /// first frame. Applies the EXIF orientation and either an RGB ICC profile or a PNG's `gAMA` and `cHRM`, drops all
    /// other metadata, blends transparency with white, and scales the picture down to at most [`REFERENCE_SIDE`] pixels
    /// per side.
    ///
    /// The decoder processes untrusted data, so servers must only call it in a confined process.
    ///
    /// # Errors
    /// [`PictureError`]: an unsupported format or size, or damaged data.
    pub fn decode(bytes: &[u8]) -> Result<Self, PictureError> {
        Self::decode_within(bytes, REFERENCE_SIDE)
    }

    /// [`Picture::decode`], scaled down to at most `side` pixels per side.
    pub fn decode_within(bytes: &[u8], side: u32) -> Result<Self, PictureError> {
        let (format, mut decoder) = open(bytes)?;
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let colours = match decoder.icc_profile().ok().flatten() {
            Some(profile) => colours::of_icc(&profile),
            None if format == ImageFormat::Png => colours::of_png(bytes),
            None => None,
        };
        let decoded = match format {
            ImageFormat::Jpeg if !jpeg::has_end(bytes) => jpeg::decode_without_end(bytes)?,
            _ => DynamicImage::from_decoder(decoder)?,
        };
        // Flattened before scaling: otherwise invisible pixels' colours, mostly black, would mix with visible ones.
        let flat = within(flatten(decoded), side, orientation).into_rgb8();
        Ok(Self { pixels: colours.and_then(|colours| colours::in_srgb(&flat, &colours)).unwrap_or(flat) })
    }

    /// The picture at exactly `width` x `height`, scaled to cover that size and cropped around the centre.
    pub fn fit(self, width: u32, height: u32) -> Self {
        self.resized(width, height, Scaling::Cover, resizing::Lanczos3)
    }

    /// The picture at exactly `width` x `height`, with each side scaled separately.
    pub fn stretch(self, width: u32, height: u32) -> Self {
        self.resized(width, height, Scaling::EachSide, resizing::Lanczos3)
    }

    /// The picture at exactly `width` x `height`.
    pub(crate) fn resized(self, width: u32, height: u32, scaling: Scaling, filter: resizing) -> Self {
        if self.width() == width && self.height() == height {
            return self;
        }
        let mut pixels = RgbImage::new(width, height);
        let source = TypedImageRef::<U8x3>::from_buffer(self.width(), self.height(), self.as_rgb());
        let target = TypedImage::<U8x3>::from_buffer(width, height, &mut pixels);
        let (source, mut target) = source.ok().zip(target.ok()).expect("a picture has three bytes for each pixel");
        let options = match scaling {
            Scaling::Cover => ResizeOptions::new().fit_into_destination(Some((0.5, 0.5))),
            Scaling::EachSide => ResizeOptions::new(),
        };
        let options = options.resize_alg(ResizeAlg::Convolution(filter));
        // For a single pixel type: the generic function would compile its kernels a dozen times.
        Resizer::new().resize_typed(&source, &mut target, &options).expect("the crop lies within the picture");
        Self { pixels }
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

    /// Encodes the picture as a PNG without metadata, optimised for speed: `crates/engine/benches/picture.rs` compares.
    pub fn to_png(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.as_rgb().len() / 2);
        PngEncoder::new_with_quality(&mut out, CompressionType::Fast, FilterType::Up)
            .write_image(self.as_rgb(), self.width(), self.height(), ExtendedColorType::Rgb8)
            .expect("writing a well-formed picture to memory cannot fail");
        out
    }
}

/// Opens a file and checks its size, parsing only its header.
pub(crate) fn open(bytes: &[u8]) -> Result<(ImageFormat, impl ImageDecoder), PictureError> {
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
    let decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MAX_PIXELS || decoder.total_bytes() > MAX_DECODER_BYTES {
        return Err(PictureError::TooLarge);
    }
    if width == 0 || height == 0 {
        return Err(PictureError::Damaged("empty".into()));
    }
    Ok((format, decoder))
}

/// Scales a picture down to at most `side` pixels per side, if necessary, and turns it upright.
pub(crate) fn within(picture: DynamicImage, side: u32, orientation: Orientation) -> DynamicImage {
    let is_larger = picture.width().max(picture.height()) > side;
    let mut shrunk = if is_larger { picture.thumbnail(side, side) } else { picture };
    shrunk.apply_orientation(orientation);
    shrunk
}

/// Blends a picture with white, so that any alpha channel no longer matters.
fn flatten(picture: DynamicImage) -> DynamicImage {
    if !picture.color().has_alpha() {
        return picture;
    }
    let mut rgba = picture.into_rgba8();
    for pixel in rgba.pixels_mut() {
        let [r, g, b, a] = pixel.0;
        let over_white =
            |channel: u8| ((u32::from(channel) * u32::from(a) + 255 * (255 - u32::from(a)) + 127) / 255) as u8;
        pixel.0 = [over_white(r), over_white(g), over_white(b), u8::MAX];
    }
    DynamicImage::ImageRgba8(rgba)
}
