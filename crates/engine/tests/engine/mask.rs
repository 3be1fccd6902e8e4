//! Masks.

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder as _};
use tintype_engine::picture::PictureError;
use tintype_engine::{Mask, Picture};

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
