//! The list of blocked pictures, recognised by a perceptual hash that hardly changes when a picture is scaled,
//! compressed or brightened.
//!
//! The hash is pHash: the picture is reduced to 32 x 32 grey pixels, and each of the 64 lowest frequencies of its
//! cosine transform (without the means) contributes one bit: whether it is above their median.

use std::f32::consts::PI;

use tintype_engine::picture::Picture;

const SIDE: usize = 32;
const FREQUENCIES: usize = 8;
/// Largest distance between two hashes.
pub(super) const MAX_DISTANCE: u32 = 64;

/// The perceptual hash of a picture.
pub fn picture_hash(picture: &Picture) -> u64 {
    let grey = picture.grey(SIDE as u32);
    // Frequency 0 is the mean of a row or column, which is only its brightness, so the transform starts at 1.
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

#[derive(Debug)]
pub(super) struct BlockList {
    hashes: Vec<u64>,
    distance: u32,
}

impl BlockList {
    /// Parses one hash of 16 hexadecimal digits per line; `#` starts a comment.
    ///
    /// # Errors
    /// A message for the operator that names the line.
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

    pub(super) fn blocks(&self, picture: &Picture) -> bool {
        let hash = picture_hash(picture);
        self.hashes.iter().any(|listed| (listed ^ hash).count_ones() <= self.distance)
    }
}
