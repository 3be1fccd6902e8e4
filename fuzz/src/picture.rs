//! Pictures that callers refer to.

use tintype_engine::picture::{Picture, REFERENCE_SIDE};

/// Bytes are an error or a picture of at most a square of [`REFERENCE_SIDE`], which survives being written.
pub fn picture(data: &[u8]) -> bool {
    let Ok(picture) = Picture::decode(data) else { return false };
    let sides = 1..=REFERENCE_SIDE;
    assert!(sides.contains(&picture.width()) && sides.contains(&picture.height()), "{picture:?}");
    assert_eq!(picture.as_rgb().len() as u64, u64::from(picture.width() * picture.height()) * 3);
    let again = Picture::decode(&picture.to_png()).expect("a PNG of our own");
    assert!(again == picture, "{} x {}", picture.width(), picture.height());
    true
}
