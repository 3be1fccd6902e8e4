//! Masks: which part of a picture an edit changes.

use fast_image_resize::FilterType as resizing;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::metadata::Orientation;
use image::{DynamicImage, ExtendedColorType, GrayImage, ImageDecoder as _, ImageEncoder as _, Luma};

use crate::picture::{Picture, PictureError, Scaling, open, within};

/// Scales masks without overshooting: near edges, the filter for pictures would let some of the kept part change.
const SMOOTH: resizing = resizing::Bilinear;

/// A mask as a grey picture: white where an edit changes the picture, black where it keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask(Picture);

impl Mask {
    /// Uses a grey picture as a mask.
    pub fn of(picture: Picture) -> Self {
        Self(picture)
    }

    /// Reads a mask as defined by OpenAI's Images API: transparent parts change. It has the same limits as
    /// [`Picture::decode_within`], and its decoder processes untrusted data in the same way.
    ///
    /// # Errors
    /// [`PictureError`]; [`PictureError::NoAlpha`] if the file has no alpha channel.
    pub fn decode_within(bytes: &[u8], side: u32) -> Result<Self, PictureError> {
        let (_, mut decoder) = open(bytes)?;
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let decoded = DynamicImage::from_decoder(decoder)?;
        if !decoded.color().has_alpha() {
            return Err(PictureError::NoAlpha);
        }
        let rgba = decoded.into_rgba8();
        let grey = GrayImage::from_fn(rgba.width(), rgba.height(), |x, y| Luma([u8::MAX - rgba.get_pixel(x, y).0[3]]));
        let grey = within(DynamicImage::ImageLuma8(grey), side, orientation).into_rgb8();
        let picture = Picture::from_rgb(grey.width(), grey.height(), grey.into_raw());
        picture.map(Self).ok_or_else(|| PictureError::Damaged("of another size".into()))
    }

    /// The grey picture.
    pub fn picture(&self) -> &Picture {
        &self.0
    }

    /// Returns the grey picture.
    pub fn into_picture(self) -> Picture {
        self.0
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        (self.0.width(), self.0.height())
    }

    /// Whether it changes nothing.
    pub fn keeps_all(&self) -> bool {
        self.0.as_rgb().iter().all(|grey| *grey == 0)
    }

    /// The mask for a picture after [`Picture::fit`].
    pub fn fit(self, width: u32, height: u32) -> Self {
        Self(self.0.resized(width, height, Scaling::Cover, SMOOTH))
    }

    /// The mask for a picture after [`Picture::stretch`].
    pub fn stretch(self, width: u32, height: u32) -> Self {
        Self(self.0.resized(width, height, Scaling::EachSide, SMOOTH))
    }

    /// `painted` where the mask is white, `original` where it is black. Both must have the mask's size.
    pub fn blend(&self, original: &Picture, painted: &Picture) -> Option<Picture> {
        let size = |picture: &Picture| (picture.width(), picture.height());
        if size(original) != self.size() || size(painted) != self.size() {
            return None;
        }
        let bytes = self.0.as_rgb().iter().zip(original.as_rgb()).zip(painted.as_rgb()).map(|((mask, kept), new)| {
            let mask = u32::from(*mask);
            ((u32::from(*kept) * (255 - mask) + u32::from(*new) * mask + 127) / 255) as u8
        });
        Picture::from_rgb(original.width(), original.height(), bytes.collect())
    }

    /// A PNG for all servers: white and transparent where the picture changes, black and opaque elsewhere. OpenAI and
    /// ComfyUI's `LoadImage` use its alpha, others its colour.
    pub fn to_png(&self) -> Vec<u8> {
        self.png_of(&self.0)
    }

    /// A picture of the mask's size as a PNG, transparent where it changes.
    pub fn cut_out(&self, picture: &Picture) -> Option<Vec<u8>> {
        ((picture.width(), picture.height()) == self.size()).then(|| self.png_of(picture))
    }

    fn png_of(&self, picture: &Picture) -> Vec<u8> {
        let (width, height) = self.size();
        let pixels = picture.as_rgb().chunks(3).zip(self.0.as_rgb().chunks(3));
        let rgba: Vec<u8> = pixels.flat_map(|(rgb, mask)| [rgb[0], rgb[1], rgb[2], 255 - mask[0]]).collect();
        let mut out = Vec::new();
        PngEncoder::new_with_quality(&mut out, CompressionType::Fast, FilterType::Up)
            .write_image(&rgba, width, height, ExtendedColorType::Rgba8)
            .expect("writing a well-formed picture to memory cannot fail");
        out
    }
}
