//! JPEG files that were cut off.

use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use tintype_engine::Picture;
use tintype_engine::picture::PictureError;

/// A JPEG whose blocks all differ.
fn jpeg(width: u32, height: u32) -> Vec<u8> {
    let pixels = RgbImage::from_fn(width, height, |x, y| image::Rgb([(x * y) as u8, (x * 7) as u8, (y * 13) as u8]));
    let mut file = Vec::new();
    pixels.write_with_encoder(JpegEncoder::new_with_quality(&mut file, 90)).expect("a JPEG");
    file
}

#[test]
fn the_end_is_that_of_the_picture_and_not_of_a_preview_in_its_metadata() {
    let whole = jpeg(64, 48);
    let preview = jpeg(16, 16);
    let length = u16::try_from(preview.len() + 2).expect("a short preview").to_be_bytes();
    let with_preview = [&whole[..2], &[0xff, 0xe1], &length, &preview, &whole[2..]].concat();
    let expected = Picture::decode(&whole).expect("a picture");
    for file in [&whole, &with_preview] {
        assert_eq!(Picture::decode(&[file, &b"behind"[..]].concat()).expect("a picture"), expected);
        for cut in (0..file.len() * 9 / 10).step_by(7) {
            assert!(Picture::decode(&file[..cut]).is_err(), "{cut} of {}", file.len());
        }
    }
}

#[test]
fn a_picture_that_lacks_nothing_but_its_end_is_whole_and_any_other_is_cut_off() {
    for (width, height) in [(64, 48), (200, 8), (17, 130)] {
        let whole = jpeg(width, height);
        let expected = Picture::decode(&whole).expect("a picture");
        assert_eq!(Picture::decode(&whole[..whole.len() - 2]).expect("a picture"), expected);
        for tenths in 3..10 {
            let cut = Picture::decode(&whole[..whole.len() * tenths / 10]);
            assert!(matches!(cut, Err(PictureError::Damaged(_))), "{width}x{height} {tenths}/10");
        }
    }
}
