//! Reference pictures.

use tintype_engine::picture::{Picture, REFERENCE_SIDE};

/// A decoded picture is at most [`REFERENCE_SIDE`] on each side and survives a round trip through our PNG encoder.
pub fn picture(data: &[u8]) -> bool {
    let Ok(picture) = Picture::decode(data) else { return false };
    let sides = 1..=REFERENCE_SIDE;
    assert!(sides.contains(&picture.width()) && sides.contains(&picture.height()), "{picture:?}");
    assert_eq!(picture.as_rgb().len() as u64, u64::from(picture.width() * picture.height()) * 3);
    let again = Picture::decode(&picture.to_png()).expect("a PNG of our own");
    assert!(again == picture, "{} x {}", picture.width(), picture.height());
    true
}
