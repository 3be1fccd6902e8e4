//! Decompression bombs: small files that declare large pictures.

use std::io::Write as _;

use image::ImageFormat;
use tintype_engine::picture::PictureError;
use tintype_system::sandbox::DecodeError;

use super::{decode, two_halves};

/// A PNG of one shade of grey, written row by row so that this process does not hold all of it.
pub fn flat_png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header().unwrap();
    let mut stream = writer.stream_writer().unwrap();
    let row = vec![7; width as usize * 3];
    for _ in 0..height {
        stream.write_all(&row).unwrap();
    }
    stream.finish().unwrap();
    drop(writer);
    bytes
}

/// The start of a PNG with this size and pixel format, and a valid checksum.
fn png_header(width: u32, height: u32, depth: u8, colour: u8) -> Vec<u8> {
    let mut chunk = b"IHDR".to_vec();
    chunk.extend(width.to_be_bytes());
    chunk.extend(height.to_be_bytes());
    chunk.extend([depth, colour, 0, 0, 0]);
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    bytes.extend(&chunk);
    bytes.extend(crc32fast::hash(&chunk).to_be_bytes());
    // A first data chunk, because some decoders read the header until there.
    bytes.extend(b"\0\0\0\x01IDAT\x78");
    bytes.extend(crc32fast::hash(b"IDAT\x78").to_be_bytes());
    bytes
}

/// A JPEG with a false size in its frame header.
fn jpeg_of(width: u16, height: u16) -> Vec<u8> {
    let mut bytes = two_halves(ImageFormat::Jpeg, 16, 16);
    let frame = bytes.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

/// A lossless WebP with a false size in its header.
fn webp_of(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = two_halves(ImageFormat::WebP, 16, 16);
    let start = bytes.windows(4).position(|name| name == b"VP8L").unwrap() + 9;
    let fields = (width - 1) | (height - 1) << 14;
    bytes[start..start + 4].copy_from_slice(&fields.to_le_bytes());
    bytes
}

#[tokio::test]
async fn sizes_are_limited_before_anything_is_decoded() {
    for (what, bytes) in [
        ("png, wide", png_header(8_193, 1, 8, 2)),
        ("png, high", png_header(1, 8_193, 8, 2)),
        ("png, many pixels", png_header(8_192, 6_145, 1, 0)),
        ("png, many bytes", png_header(8_192, 6_144, 16, 6)),
        ("png, most of all", png_header(i32::MAX as u32, i32::MAX as u32, 16, 6)),
        ("jpeg, wide", jpeg_of(8_193, 1)),
        ("jpeg, many pixels", jpeg_of(8_192, 6_145)),
        ("jpeg, most of all", jpeg_of(u16::MAX, u16::MAX)),
        ("webp, wide", webp_of(8_193, 1)),
        ("webp, many pixels", webp_of(8_192, 6_145)),
        ("webp, most of all", webp_of(16_383, 16_383)),
    ] {
        let outcome = decode(&bytes).await;
        assert!(matches!(outcome, Err(DecodeError::Picture(PictureError::TooLarge))), "{what}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_false_header_within_the_limits_gives_no_oversized_picture() {
    // The declared size is allowed and the data do not match it: the decoder answers, or one process dies.
    for (what, bytes) in
        [("png", png_header(8_192, 4_096, 8, 6)), ("jpeg", jpeg_of(8_192, 6_144)), ("webp", webp_of(8_192, 6_144))]
    {
        if let Ok(picture) = decode(&bytes).await {
            assert!(picture.width() <= 1_568 && picture.height() <= 1_568, "{what}");
        }
    }
}

#[tokio::test]
async fn a_file_that_expands_a_thousandfold_is_decoded_or_refused() {
    let flat = flat_png(8_192, 6_144);
    assert!(flat.len() * 100 < 8_192 * 6_144 * 3, "a bomb of {} bytes", flat.len());
    let picture = decode(&flat).await.unwrap();
    assert_eq!((picture.width(), picture.height()), (1_568, 1_176));
    assert_eq!(picture.as_rgb()[..3], [7; 3]);
}
