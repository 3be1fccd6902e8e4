//! Decoding and scaling.

use std::io::Cursor;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder as _, ImageFormat};
use moxcms::ColorProfile;
use tintype_engine::Picture;
use tintype_engine::picture::REFERENCE_SIDE;

/// A PNG of one colour with an ICC profile.
fn tagged(colour: [u8; 3], profile: Vec<u8>) -> Vec<u8> {
    let mut png = Vec::new();
    let mut encoder = PngEncoder::new(&mut png);
    encoder.set_icc_profile(profile).expect("PNG holds profiles");
    encoder.write_image(&colour.repeat(64), 8, 8, ExtendedColorType::Rgb8).expect("a PNG");
    png
}

#[test]
fn a_picture_with_a_colour_profile_is_decoded_to_srgb() {
    let p3 = ColorProfile::new_display_p3().encode().expect("a profile");
    let picture = Picture::decode(&tagged([230, 100, 100], p3)).expect("a picture");
    // The same colour lies further from grey in sRGB, whose red is weaker.
    let [red, green, _] = picture.as_rgb()[..3] else { panic!("a pixel") };
    assert!(red > 238 && green < 95, "{red} {green}");
    let srgb = ColorProfile::new_srgb().encode().expect("a profile");
    for profile in [srgb, b"no profile".to_vec()] {
        let picture = Picture::decode(&tagged([230, 100, 100], profile)).expect("a picture");
        assert!(picture.as_rgb()[..3].iter().zip([230, 100, 100]).all(|(a, b)| a.abs_diff(b) <= 1));
    }
}

#[test]
fn a_picture_is_scaled_to_cover_a_size_and_cropped_around_the_centre() {
    // Three vertical stripes: red, green and blue.
    let row: Vec<u8> = [[255, 0, 0], [0, 255, 0], [0, 0, 255]].iter().flat_map(|colour| colour.repeat(40)).collect();
    let stripes = Picture::from_rgb(120, 40, row.repeat(40)).expect("a picture");
    let fitted = stripes.clone().fit(80, 80);
    assert_eq!((fitted.width(), fitted.height()), (80, 80));
    let centre = &fitted.as_rgb()[(40 * 80 + 40) * 3..][..3];
    assert_eq!(centre, [0, 255, 0], "the middle third is left");
    assert_eq!(stripes.clone().fit(120, 40), stripes);
    let grey = Picture::from_rgb(1, 1, vec![7; 3]).expect("a picture").fit(9, 5);
    assert!(grey.as_rgb().iter().all(|level| *level == 7) && grey.as_rgb().len() == 135);
}

#[test]
fn a_transparent_picture_that_shrinks_gets_no_fringes() {
    // github.com/lovell/sharp/issues/605: red, beside black that nobody sees.
    let (width, height) = (3_138, 6);
    let pixels = image::RgbaImage::from_fn(width, height, |x, _| match x % 64 {
        0..33 => image::Rgba([255, 0, 0, 255]),
        33 => image::Rgba([255, 0, 0, 128]),
        _ => image::Rgba([0, 0, 0, 0]),
    });
    let mut png = Cursor::new(Vec::new());
    pixels.write_to(&mut png, ImageFormat::Png).expect("a PNG");
    let picture = Picture::decode(png.get_ref()).expect("a picture");
    assert_eq!(picture.width(), REFERENCE_SIDE);
    assert!(picture.as_rgb().chunks(3).all(|pixel| pixel[0] >= 254 && pixel[1] == pixel[2]), "only red and white");
}
