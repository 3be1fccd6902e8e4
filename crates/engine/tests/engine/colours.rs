//! Colours of PNG files.

use tintype_engine::Picture;

/// A grey or coloured PNG with chunks before its pixels.
fn png(colour: [u8; 3], chunks: &[(&[u8; 4], &[u32])]) -> Vec<u8> {
    let png = Picture::from_rgb(8, 8, colour.repeat(64)).expect("a picture").to_png();
    let at = png.windows(4).position(|window| window == b"IDAT").expect("pixels") - 4;
    let mut with = png[..at].to_vec();
    for (name, numbers) in chunks {
        let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        let named = [&name[..], &data].concat();
        with.extend((data.len() as u32).to_be_bytes());
        with.extend(&named);
        with.extend(crc32(&named).to_be_bytes());
    }
    with.extend(&png[at..]);
    with
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn decoded(file: &[u8]) -> [u8; 3] {
    let picture = Picture::decode(file).expect("a picture");
    picture.as_rgb()[..3].try_into().expect("a pixel")
}

/// Coordinates of Display P3, in hundred thousandths.
const P3: [u32; 8] = [31_270, 32_900, 68_000, 32_000, 26_500, 69_000, 15_000, 6_000];

#[test]
fn a_png_with_another_gamma_is_decoded_to_srgb() {
    // A PNG of linear numbers: 55 of 255 is 0.2157 of the light, which is 128 in sRGB.
    let [red, green, blue] = decoded(&png([55, 55, 55], &[(b"gAMA", &[100_000])]));
    for channel in [red, green, blue] {
        assert!(channel.abs_diff(128) <= 2, "{red} {green} {blue}");
    }
    // That of old Macintoshes is brighter.
    assert!(decoded(&png([100; 3], &[(b"gAMA", &[55_556])]))[0] > 115);
}

#[test]
fn a_png_with_other_primaries_is_decoded_to_srgb() {
    // The same colour lies further from grey in sRGB, whose red is weaker.
    let [red, green, _] = decoded(&png([230, 100, 100], &[(b"gAMA", &[45_455]), (b"cHRM", &P3)]));
    assert!(red > 238 && green < 95, "{red} {green}");
}

#[test]
fn a_png_of_srgb_or_of_impossible_colours_keeps_its_numbers() {
    let srgb = [31_270, 32_900, 64_000, 33_000, 30_000, 60_000, 15_000, 6_000];
    let trials: [&[(&[u8; 4], &[u32])]; 9] = [
        &[],
        &[(b"gAMA", &[45_455])],
        &[(b"gAMA", &[45_000]), (b"cHRM", &srgb)],
        &[(b"sRGB", &[]), (b"gAMA", &[100_000])],
        &[(b"gAMA", &[100_000]), (b"cICP", &[0x010D_0001])],
        &[(b"gAMA", &[0])],
        &[(b"gAMA", &[u32::MAX])],
        &[(b"gAMA", &[1, 2])],
        &[(b"cHRM", &[0; 8])],
    ];
    for chunks in trials {
        assert_eq!(decoded(&png([230, 100, 100], chunks)), [230, 100, 100], "{chunks:?}");
    }
    for damaged in [&b"\x89PNG\r\n\x1a\n"[..], b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffgAMA", b""] {
        assert!(Picture::decode(damaged).is_err());
    }
}
