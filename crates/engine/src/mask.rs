//! Masks: which part of a picture an edit changes.

use fast_image_resize::FilterType as resizing;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::metadata::Orientation;
use image::{DynamicImage, ExtendedColorType, GrayImage, ImageDecoder as _, ImageEncoder as _, Luma};

use crate::picture::{Picture, PictureError, Scaling, open, within};

/// Scales a mask without overshooting: beside an edge, the filter for pictures would let a little of the kept part change.
const SMOOTH: resizing = resizing::Bilinear;

/// A mask as a grey picture: white where an edit changes the picture, black where it keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask(Picture);

impl Mask {
    /// Takes a grey picture for a mask.
    pub fn of(picture: Picture) -> Self {
        Self(picture)
    }

    /// Reads a mask as OpenAI's Images API defines it: what is transparent changes. The limits are those of
    /// [`Picture::decode_within`], and the decoder processes untrusted data in the same way.
    ///
    /// # Errors
    /// [`PictureError`]; [`PictureError::NoAlpha`] if nothing in the file can be transparent.
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

    /// The grey picture, taken out.
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

    /// The mask of a picture after [`Picture::fit`].
    pub fn fit(self, width: u32, height: u32) -> Self {
        Self(self.0.resized(width, height, Scaling::Cover, SMOOTH))
    }

    /// The mask of a picture after [`Picture::stretch`].
    pub fn stretch(self, width: u32, height: u32) -> Self {
        Self(self.0.resized(width, height, Scaling::EachSide, SMOOTH))
    }

    /// `painted` where the mask is white and `original` where it is black, each of the mask's size.
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

    /// A PNG that every server reads: white and transparent where the picture changes, black and opaque elsewhere. OpenAI
    /// and ComfyUI's `LoadImage` look at its alpha, the others at its colour.
    pub fn to_png(&self) -> Vec<u8> {
        self.png_of(&self.0)
    }

    /// A PNG of a picture of the mask's size that is transparent where it changes.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn png(colour: ExtendedColorType, bytes: &[u8], width: u32, height: u32) -> Vec<u8> {
        let mut png = Vec::new();
        PngEncoder::new(&mut png).write_image(bytes, width, height, colour).expect("a PNG");
        png
    }

    #[test]
    fn what_is_transparent_changes_and_all_else_stays_as_it_is() {
        let file = png(ExtendedColorType::La8, &[9, 0, 9, 255, 9, 51], 3, 1);
        let mask = Mask::decode_within(&file, 64).expect("a mask");
        assert_eq!((mask.size(), mask.picture().as_rgb()), ((3, 1), &[255, 255, 255, 0, 0, 0, 204, 204, 204][..]));
        let flat = |level: u8| Picture::from_rgb(3, 1, vec![level; 9]).expect("a picture");
        let blended = mask.blend(&flat(100), &flat(200)).expect("of one size");
        assert_eq!(blended.as_rgb(), [200, 200, 200, 100, 100, 100, 180, 180, 180]);
        assert_eq!(mask.blend(&flat(1), &flat(2).fit(4, 4)), None);
        assert!(!mask.keeps_all());
        assert_eq!(Mask::decode_within(&mask.to_png(), 64).expect("its own file"), mask);
    }

    #[test]
    fn a_picture_is_transparent_where_its_mask_is_white() {
        let mask = Mask::of(Picture::from_rgb(2, 1, vec![255, 255, 255, 0, 0, 0]).expect("a picture"));
        let picture = Picture::from_rgb(2, 1, vec![1, 2, 3, 4, 5, 6]).expect("a picture");
        let cut = image::load_from_memory(&mask.cut_out(&picture).expect("of one size")).expect("a PNG").into_rgba8();
        assert_eq!(cut.as_raw(), &[1, 2, 3, 0, 4, 5, 6, 255]);
        let wide = Picture::from_rgb(3, 1, vec![0; 9]).expect("a picture");
        assert_eq!(mask.cut_out(&wide), None);
    }

    #[test]
    fn scaling_changes_a_mask_beside_its_edge_alone() {
        let row = |from: usize| (0..64).flat_map(|x| [if x < from { 0 } else { 255 }; 3]).collect::<Vec<u8>>();
        for edge in 1..64 {
            let mask = Mask::of(Picture::from_rgb(64, 1, row(edge)).expect("a picture"));
            for width in [40, 87, 96, 192] {
                let scaled = mask.clone().stretch(width, 1);
                let greys: Vec<u8> = scaled.picture().as_rgb().iter().step_by(3).copied().collect();
                assert!(greys.is_sorted(), "{edge}, {width}: {greys:?}");
                let mixed = greys.iter().filter(|grey| !matches!(grey, 0 | 255)).count();
                assert!(mixed <= (width as usize / 64 + 1) * 2, "{edge}, {width}: {greys:?}");
            }
        }
    }

    #[test]
    fn a_file_without_alpha_is_no_mask() {
        let opaque = png(ExtendedColorType::Rgb8, &[0; 12], 2, 2);
        assert!(matches!(Mask::decode_within(&opaque, 64), Err(PictureError::NoAlpha)));
        assert!(matches!(Mask::decode_within(b"GIF89a", 64), Err(PictureError::UnknownFormat)));
        let visible = png(ExtendedColorType::La8, &[9, 255], 1, 1);
        assert!(Mask::decode_within(&visible, 64).expect("a mask").keeps_all());
    }

    #[test]
    fn a_large_mask_shrinks_as_its_picture_does() {
        let (width, height) = (3_000, 500);
        let file = png(ExtendedColorType::La8, &vec![0; 2 * 3_000 * 500], width, height);
        let picture = png(ExtendedColorType::L8, &vec![0; 3_000 * 500], width, height);
        let mask = Mask::decode_within(&file, 1_568).expect("a mask");
        let picture = Picture::decode_within(&picture, 1_568).expect("a picture");
        assert_eq!(mask.size(), (picture.width(), picture.height()));
    }
}
