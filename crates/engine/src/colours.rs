//! Converts pictures to sRGB from the colour space declared in their files.

use image::RgbImage;
use qcms::{CIE_xyY, CIE_xyYTRIPLE, DataType, Intent, Profile, Transform};

/// The sRGB gamma in a `gAMA` chunk. Software that means sRGB writes values close to it.
const SRGB_GAMMA: f64 = 0.454_55;
/// The sRGB white, red, green and blue points in a `cHRM` chunk.
const SRGB_PRIMARIES: [(f64, f64); 4] = [(0.3127, 0.329), (0.64, 0.33), (0.3, 0.6), (0.15, 0.06)];
/// How far a gamma can be from the sRGB gamma and still mean it, as a ratio; the same as in libpng.
const NEAR_GAMMA: f64 = 0.05;
/// How far a primary's coordinate can be from sRGB's and still mean it.
const NEAR_PRIMARY: f64 = 0.01;
const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The colour space in an ICC profile. `None` if the profile is damaged: the pixel values then stay as they are.
pub(crate) fn of_icc(profile: &[u8]) -> Option<Box<Profile>> {
    Profile::new_from_slice(profile, false)
}

/// The colour space in a PNG's `gAMA` and `cHRM` chunks, if it has no ICC profile. `None` if there are none, or they
/// mean sRGB or something impossible: the pixel values then stay as they are.
pub(crate) fn of_png(file: &[u8]) -> Option<Box<Profile>> {
    let (mut gamma, mut primaries) = (SRGB_GAMMA, SRGB_PRIMARIES);
    let mut rest = file.strip_prefix(PNG_SIGNATURE)?;
    loop {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (name, after) = after.split_first_chunk::<4>()?;
        let data = after.get(..u32::from_be_bytes(*length) as usize)?;
        // The data is followed by a four-byte checksum.
        rest = after.get(data.len() + 4..)?;
        let numbers: Vec<f64> = match name {
            b"gAMA" | b"cHRM" => data.as_chunks::<4>().0.iter().map(|number| hundred_thousandths(*number)).collect(),
            // These take precedence over the other chunks.
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
    // An impossible colour, or a curve that is almost a step.
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

/// Converts the picture from this colour space to sRGB. `None` if the space isn't RGB: the pixel values then stay as
/// they are.
pub(crate) fn in_srgb(picture: &RgbImage, source: &Profile) -> Option<RgbImage> {
    let transform = Transform::new(source, &Profile::new_sRGB(), DataType::RGB8, Intent::default())?;
    let mut converted = picture.clone();
    transform.apply(&mut converted);
    Some(converted)
}
