//! Formats, frames, orientation, metadata, and files that aren't pictures.

use image::ImageFormat;
use tintype_engine::picture::PictureError;
use tintype_system::sandbox::DecodeError;

use super::{BLUE, RED, assert_near, assert_refused, decode, two_halves};

const FORMATS: [ImageFormat; 3] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP];

fn exif(orientation: u8) -> Vec<u8> {
    let mut tiff = b"MM\0\x2a\0\0\0\x08\0\x01".to_vec();
    tiff.extend([0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0]);
    tiff.extend(b"\0\0\0\0GPS: secret place");
    tiff
}

fn with_exif(format: ImageFormat, orientation: u8) -> Vec<u8> {
    let plain = two_halves(format, 64, 32);
    let exif = exif(orientation);
    match format {
        ImageFormat::Jpeg => {
            let length = (exif.len() + 8) as u16;
            let segment = [&[0xff, 0xe1][..], &length.to_be_bytes(), b"Exif\0\0", &exif].concat();
            [&plain[..2], &segment, &plain[2..]].concat()
        }
        ImageFormat::Png => {
            let chunk = [&b"eXIf"[..], &exif].concat();
            let length = (exif.len() as u32).to_be_bytes();
            let end_of_header = 8 + 25;
            let checksum = crc32fast::hash(&chunk).to_be_bytes();
            [&plain[..end_of_header], &length, &chunk, &checksum, &plain[end_of_header..]].concat()
        }
        // The extended form: canvas, picture, metadata.
        _ => riff(&[riff_chunk(b"VP8X", &vp8x(0x08, 64, 32)), plain[12..].to_vec(), riff_chunk(b"EXIF", &exif)]),
    }
}

fn vp8x(flags: u8, width: u32, height: u32) -> Vec<u8> {
    let [w, h] = [width - 1, height - 1].map(u32::to_le_bytes);
    [&[flags, 0, 0, 0][..], &w[..3], &h[..3]].concat()
}

fn riff_chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let mut chunk = [name, &(content.len() as u32).to_le_bytes()[..], content].concat();
    chunk.resize(chunk.len().next_multiple_of(2), 0);
    chunk
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    riff_chunk(b"RIFF", &[&b"WEBP"[..], &chunks.concat()].concat())
}

#[tokio::test]
async fn the_three_formats_are_read_and_others_are_not() {
    for format in FORMATS {
        let picture = decode(&two_halves(format, 64, 32)).await.unwrap();
        assert_eq!((picture.width(), picture.height()), (64, 32), "{format:?}");
        assert_near(&picture, 8, 16, RED);
        assert_near(&picture, 56, 16, BLUE);
    }
    let bmp = [b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28".as_slice(), &[0; 60]].concat();
    for (what, bytes) in [
        ("nothing", &b""[..]),
        ("gif", b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"),
        ("bmp", &bmp),
        ("tiff", b"II*\0\x08\0\0\0\0\0\0\0\0\0"),
        ("avif", b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miafMA1B"),
        ("ico", b"\0\0\x01\0\x01\0\x10\x10\0\0\x01\0\x20\0"),
        ("svg", b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>"),
        ("pdf", b"%PDF-1.7\n"),
        ("html", b"<!doctype html><title>a</title>"),
        ("elf", b"\x7fELF\x02\x01\x01"),
        ("riff, but no picture", b"RIFF\x24\0\0\0WAVEfmt "),
    ] {
        assert_refused(decode(bytes).await, what);
    }
}

#[tokio::test]
async fn the_exif_orientation_is_applied() {
    // The side on which the red half appears, which is on the left in the file.
    for format in FORMATS {
        for (orientation, red_at) in
            [(1, 'l'), (2, 'r'), (3, 'r'), (4, 'l'), (5, 't'), (6, 't'), (7, 'b'), (8, 'b'), (0, 'l'), (9, 'l')]
        {
            let picture = decode(&with_exif(format, orientation)).await.unwrap();
            let (width, height) = if matches!(red_at, 'l' | 'r') { (64, 32) } else { (32, 64) };
            assert_eq!((picture.width(), picture.height()), (width, height), "{format:?} {orientation}");
            let (first, last) = if matches!(red_at, 'l' | 't') { (RED, BLUE) } else { (BLUE, RED) };
            assert_near(&picture, 4, 4, first);
            assert_near(&picture, width - 4, height - 4, last);
        }
    }
}

#[tokio::test]
async fn metadata_is_dropped() {
    for format in FORMATS {
        let png = decode(&with_exif(format, 1)).await.unwrap().to_png();
        assert!(!png.windows(6).any(|bytes| bytes == b"secret"), "{format:?}");
        assert!(!png.windows(4).any(|bytes| bytes == b"eXIf"), "{format:?}");
    }
}

#[tokio::test]
async fn an_animation_is_its_first_frame() {
    let mut apng = Vec::new();
    let mut encoder = png::Encoder::new(&mut apng, 4, 4);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_animated(2, 0).unwrap();
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&RED.repeat(16)).unwrap();
    writer.write_image_data(&BLUE.repeat(16)).unwrap();
    writer.finish().unwrap();

    let frame = |colour: [u8; 3]| {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::RgbImage::from_pixel(4, 4, image::Rgb(colour)).write_to(&mut bytes, ImageFormat::WebP).unwrap();
        // Offset, size minus one, and duration, before the picture itself.
        let head = [0, 0, 0, 0, 0, 0, 3, 0, 0, 3, 0, 0, 100, 0, 0, 0];
        riff_chunk(b"ANMF", &[&head, &bytes.into_inner()[12..]].concat())
    };
    let webp = riff(&[riff_chunk(b"VP8X", &vp8x(0x02, 4, 4)), riff_chunk(b"ANIM", &[0; 6]), frame(RED), frame(BLUE)]);
    for (what, bytes) in [("png", apng), ("webp", webp)] {
        let picture = decode(&bytes).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((picture.width(), picture.height()), (4, 4), "{what}");
        assert_near(&picture, 2, 2, RED);
    }
}

#[tokio::test]
async fn a_polyglot_file_is_read_as_the_picture_it_begins_with() {
    for format in FORMATS {
        let polyglot = [&two_halves(format, 64, 32)[..], b"PK\x03\x04<script>alert(1)</script>%PDF-1.7"].concat();
        let picture = decode(&polyglot).await.unwrap();
        assert_eq!((picture.width(), picture.height()), (64, 32), "{format:?}");
        for before in [&b"<html>"[..], b"GIF89a", b"%PDF-1.7\n", b"\0"] {
            let bytes = [before, &two_halves(format, 64, 32)].concat();
            assert_refused(decode(&bytes).await, "a picture behind something else");
        }
    }
}

#[tokio::test]
async fn truncated_files_are_damaged() {
    for format in FORMATS {
        let whole = two_halves(format, 64, 32);
        for eighths in 0..8 {
            let cut = &whole[..whole.len() * eighths / 8];
            let outcome = decode(cut).await;
            let refused = match &outcome {
                Err(DecodeError::Picture(PictureError::Damaged(_))) => true,
                // Too short to be known: a WebP needs twelve bytes for that.
                Err(DecodeError::Picture(PictureError::UnknownFormat)) => cut.len() < 12,
                _ => false,
            };
            assert!(refused, "{format:?} {eighths}/8: {:?}", outcome.map(|picture| picture.width()));
        }
    }
}
