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
