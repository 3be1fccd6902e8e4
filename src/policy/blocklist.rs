//! Pictures known by their perceptual hash: what stays alike when a picture is scaled, compressed or lightened.
//!
//! The hash is the one commonly called pHash: of the picture in grey at 32 x 32, the 64 lowest frequencies of a
//! cosine transform without the means, each one bit, by whether it is above the median.

use std::f32::consts::PI;

use tintype_engine::picture::Picture;

const SIDE: usize = 32;
const FREQUENCIES: usize = 8;
/// No picture is further from another.
pub(super) const MAX_DISTANCE: u32 = 64;

/// What a picture looks like, in 64 bits.
pub fn picture_hash(picture: &Picture) -> u64 {
    let grey = picture.grey(SIDE as u32);
    // Frequency 0, the mean of a row or column, says nothing but how bright it is.
    let wave = |frequency: usize, at: usize| (PI / SIDE as f32 * (at as f32 + 0.5) * (frequency + 1) as f32).cos();
    let waves: [[f32; SIDE]; FREQUENCIES] =
        std::array::from_fn(|frequency| std::array::from_fn(|at| wave(frequency, at)));
    let rows: Vec<[f32; FREQUENCIES]> = grey
        .chunks_exact(SIDE)
        .map(|row| waves.map(|wave| row.iter().zip(wave).map(|(pixel, wave)| f32::from(*pixel) * wave).sum()))
        .collect();
    let amount = |across: usize, wave: &[f32; SIDE]| rows.iter().zip(wave).map(|(row, wave)| row[across] * wave).sum();
    let amounts: Vec<f32> = waves
        .iter()
        .flat_map(|wave| (0..FREQUENCIES).map(move |across| (across, wave)))
        .map(|(x, w)| amount(x, w))
        .collect();
    let mut sorted = amounts.clone();
    sorted.sort_by(f32::total_cmp);
    let median = (sorted[sorted.len() / 2 - 1] + sorted[sorted.len() / 2]) / 2.0;
    amounts.iter().fold(0, |hash, amount| hash << 1 | u64::from(*amount > median))
}

/// The pictures that are not wanted.
#[derive(Debug)]
pub(super) struct BlockList {
    hashes: Vec<u64>,
    distance: u32,
}

impl BlockList {
    /// Reads one hash of 16 hexadecimal digits a line; what follows a `#` is a remark.
    ///
    /// # Errors
    /// A sentence for the operator, with the line.
    pub(super) fn parse(text: &str, distance: u32) -> Result<Self, String> {
        let mut hashes = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let hash = Some(line).filter(|line| line.len() == 16 && !line.starts_with('+'));
            let hash = hash.and_then(|line| u64::from_str_radix(line, 16).ok());
            hashes.push(hash.ok_or_else(|| format!("line {}: not a hash of 16 hexadecimal digits", index + 1))?);
        }
        Ok(Self { hashes, distance })
    }

    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether a picture is one of these, or hardly differs from it.
    pub(super) fn holds(&self, picture: &Picture) -> bool {
        let hash = picture_hash(picture);
        self.hashes.iter().any(|listed| (listed ^ hash).count_ones() <= self.distance)
    }
}
