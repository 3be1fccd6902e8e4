//! Brings pictures to sRGB from the colours that their files name.

use image::RgbImage;
use qcms::{CIE_xyY, CIE_xyYTRIPLE, DataType, Intent, Profile, Transform};

/// The `gAMA` of sRGB. Software that means sRGB writes values close to it.
const SRGB_GAMMA: f64 = 0.454_55;
/// White, red, green and blue of sRGB, as `cHRM` names them.
const SRGB_PRIMARIES: [(f64, f64); 4] = [(0.3127, 0.329), (0.64, 0.33), (0.3, 0.6), (0.15, 0.06)];
/// So far a gamma may be from that of sRGB, as a ratio, and still mean it; the same as in libpng.
const NEAR_GAMMA: f64 = 0.05;
/// So far a coordinate of a primary may be from that of sRGB and still mean it.
const NEAR_PRIMARY: f64 = 0.01;
const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The colours of an ICC profile. `None` if it is damaged: the numbers are then taken as they are.
pub(crate) fn of_icc(profile: &[u8]) -> Option<Box<Profile>> {
    Profile::new_from_slice(profile, false)
}

/// The colours that a PNG without an ICC profile names by `gAMA` and `cHRM`. `None` if it names none, those of sRGB, or
/// some that cannot be: the numbers are then taken as they are.
pub(crate) fn of_png(file: &[u8]) -> Option<Box<Profile>> {
    let (mut gamma, mut primaries) = (SRGB_GAMMA, SRGB_PRIMARIES);
    let mut rest = file.strip_prefix(PNG_SIGNATURE)?;
    loop {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (name, after) = after.split_first_chunk::<4>()?;
        let data = after.get(..u32::from_be_bytes(*length) as usize)?;
        // Behind the data stands a checksum of four bytes.
        rest = after.get(data.len() + 4..)?;
        let numbers: Vec<f64> = match name {
            b"gAMA" | b"cHRM" => data.as_chunks::<4>().0.iter().map(|number| hundred_thousandths(*number)).collect(),
            // These go before the others.
            b"sRGB" | b"cICP" => return None,
            b"IDAT" | b"IEND" => break,
            _ => continue,
        };
        match numbers[..] {
            [number] if name == b"gAMA" => gamma = number,
            [white_x, white_y, red_x, red_y, green_x, green_y, blue_x, blue_y] if name == b"cHRM" => {
                primaries = [(white_x, white_y), (red_x, red_y), (green_x, green_y), (blue_x, blue_y)];
            }
            _ => {}
        }
    }
    let near = |(a, b): (&(f64, f64), &(f64, f64))| (a.0 - b.0).abs().max((a.1 - b.1).abs()) < NEAR_PRIMARY;
    let are_of_srgb = primaries.iter().zip(&SRGB_PRIMARIES).all(near);
    if are_of_srgb && (gamma / SRGB_GAMMA - 1.0).abs() < NEAR_GAMMA {
        return None;
    }
    // A colour that is none, or a curve that is almost a step.
    let is_colour = |(x, y): &(f64, f64)| *x >= 0.0 && *y > 0.0 && x + y < 1.001;
    if !primaries.iter().all(is_colour) || !(0.1..=10.0).contains(&gamma) {
        return None;
    }
    let [white, red, green, blue] = primaries.map(|(x, y)| CIE_xyY { x, y, Y: 1.0 });
    let exponent = gamma.recip() as f32;
    Profile::new_rgb_with_gamma_set(white, CIE_xyYTRIPLE { red, green, blue }, exponent, exponent, exponent)
}

fn hundred_thousandths(number: [u8; 4]) -> f64 {
    f64::from(u32::from_be_bytes(number)) / 100_000.0
}

/// The picture in sRGB, from these colours. `None` if they are not of RGB: the numbers are then taken as they are.
pub(crate) fn in_srgb(picture: &RgbImage, source: &Profile) -> Option<RgbImage> {
    let transform = Transform::new(source, &Profile::new_sRGB(), DataType::RGB8, Intent::default())?;
    let mut converted = picture.clone();
    transform.apply(&mut converted);
    Some(converted)
}

#[cfg(test)]
mod tests {
    use crate::Picture;

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
            assert!(super::of_png(&png([230, 100, 100], chunks)).is_none(), "{chunks:?}");
        }
        for damaged in [&b"\x89PNG\r\n\x1a\n"[..], b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffgAMA", b""] {
            assert!(super::of_png(damaged).is_none());
        }
    }
}
