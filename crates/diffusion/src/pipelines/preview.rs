//! Small previews of a render, at a small fraction of its cost.
//!
//! A tiny autoencoder decodes a downscaled latent picture. For a large one, the colour at each position is approximated
//! by a linear function of its latent numbers. The function is fitted to a few squares decoded by the model's own
//! decoder, so that it suits any model.

use tintype_engine::Picture;
use tintype_engine::picture::PREVIEW_SIDE;

use super::{Family, Latent, picture, planes_of};
use crate::Result;
use crate::noise::Noise;
use crate::runtime::Sessions;

/// Side of the picture that the function is fitted to, in pixels.
const FITTED_SIDE: usize = 128;
/// Positions along a side that share half of their noise, because latent pictures are smooth and noise isn't.
const PATCH: usize = 4;
/// Ridge regularisation, which keeps factors small for channels that the colour doesn't depend on.
const RIDGE: f64 = 1e-3;

#[derive(Debug)]
pub(super) enum Sketcher {
    /// With the model's decoder, which is fast enough.
    Decoder,
    /// With factors for the channels, the last one for a constant channel of 1.
    Linear(Vec<[f64; 3]>),
}

impl Sketcher {
    /// Chooses the method for a model family. A large decoder is run once, for a picture of about 128 pixels per side.
    pub(super) fn new(family: &dyn Family, sessions: &Sessions) -> Result<Self> {
        if family.decodes_quickly() {
            return Ok(Self::Decoder);
        }
        let multiple = family.traits().side_multiple;
        let side = FITTED_SIDE.next_multiple_of(multiple);
        let shape = family.latent_shape(side, side);
        let latent = Latent { shape, numbers: patches(shape) };
        let planes = planes_of(family, sessions, &latent)?;
        Ok(Self::Linear(fit(&family.positions(&latent), &planes)))
    }

    /// A latent picture's preview; `None` if its numbers don't make a picture.
    pub(super) fn sketch(&self, family: &dyn Family, sessions: &Sessions, latent: &Latent) -> Option<Picture> {
        let side = PREVIEW_SIDE as usize;
        let longest = |latent: &Latent| latent.shape[1].max(latent.shape[2]);
        match self {
            Self::Decoder => {
                let most = (side / family.traits().side_multiple).max(1);
                let small = shrink(latent, longest(latent).div_ceil(most));
                picture(&small, &planes_of(family, sessions, &small).ok()?).ok()
            }
            Self::Linear(factors) => {
                let positions = family.positions(latent);
                let small = shrink(&positions, longest(&positions).div_ceil(side));
                picture(&small, &colours(&small, factors)).ok()
            }
        }
    }
}

/// Noise with deviation 1, half of it shared within each patch.
fn patches([channels, height, width]: [usize; 3]) -> Vec<f32> {
    let mut noise = Noise::new(1);
    let (fine, coarse) = (noise.normal(channels * height * width), noise.normal(channels * height * width));
    let numbers = (0..fine.len()).map(|at| {
        let (row, column) = (at / width, at % width);
        let shared = coarse[row / PATCH * PATCH * width + column / PATCH * PATCH];
        (fine[at] + shared) * std::f32::consts::FRAC_1_SQRT_2
    });
    numbers.collect()
}

/// The numbers at a position, and 1.
fn features(latent: &Latent, at: usize) -> impl Iterator<Item = f64> {
    let area = latent.shape[1] * latent.shape[2];
    let numbers = latent.numbers.iter().skip(at).step_by(area).map(|x| f64::from(*x));
    numbers.chain([1.0])
}

/// The factors that best reproduce the mean colours of a picture's squares, by least squares.
fn fit(latent: &Latent, planes: &[f32]) -> Vec<[f64; 3]> {
    let [channels, height, width] = latent.shape;
    let area = planes.len() / 3;
    let factor = (area / (height * width)).isqrt().max(1);
    let count = channels + 1;
    let mut products = vec![vec![0.0; count + 3]; count];
    for at in 0..height * width {
        let (top, left) = (at / width * factor, at % width * factor);
        let mean = |plane: usize| {
            let rows = (top..top + factor).map(|row| plane * area + row * width * factor + left);
            let sum: f64 = rows.flat_map(|begin| &planes[begin..begin + factor]).map(|x| f64::from(*x)).sum();
            sum / (factor * factor) as f64
        };
        let known: Vec<f64> = features(latent, at).chain((0..3).map(mean)).collect();
        for (row, x) in products.iter_mut().zip(&known) {
            row.iter_mut().zip(&known).for_each(|(sum, y)| *sum += x * y);
        }
    }
    for (at, row) in products.iter_mut().enumerate() {
        row[at] += RIDGE * (height * width) as f64;
    }
    solve(products)
}

/// Solves linear equations with three right-hand sides by elimination. The matrix is positive definite, so no pivoting
/// is needed.
fn solve(mut equations: Vec<Vec<f64>>) -> Vec<[f64; 3]> {
    let count = equations.len();
    for pivot in 0..count {
        let row = equations[pivot].clone();
        for (_, other) in equations.iter_mut().enumerate().filter(|(at, _)| *at != pivot) {
            let factor = other[pivot] / row[pivot];
            other.iter_mut().zip(&row).for_each(|(x, y)| *x -= factor * y);
        }
    }
    let solved = equations.iter().enumerate();
    solved.map(|(at, row)| [0, 1, 2].map(|plane| row[count + plane] / row[at])).collect()
}

fn colours(latent: &Latent, factors: &[[f64; 3]]) -> Vec<f32> {
    let area = latent.shape[1] * latent.shape[2];
    let colour = |plane: usize, at: usize| {
        features(latent, at).zip(factors).map(|(x, factors)| x * factors[plane]).sum::<f64>() as f32
    };
    (0..3).flat_map(|plane| (0..area).map(move |at| (plane, at))).map(|(plane, at)| colour(plane, at)).collect()
}

/// Means of squares with `by` positions per side. What remains at the right and bottom edges is dropped.
fn shrink(latent: &Latent, by: usize) -> Latent {
    let [channels, height, width] = latent.shape;
    let by = by.clamp(1, height.min(width));
    let shape = [channels, height / by, width / by];
    let mut numbers = Vec::with_capacity(shape.iter().product());
    for plane in latent.numbers.chunks_exact(height * width) {
        for (row, column) in (0..shape[1]).flat_map(|row| (0..shape[2]).map(move |column| (row, column))) {
            let rows = (row * by..(row + 1) * by).map(|row| row * width + column * by);
            let sum: f32 = rows.flat_map(|begin| &plane[begin..begin + by]).sum();
            numbers.push(sum / (by * by) as f32);
        }
    }
    Latent { shape, numbers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factors_of_a_linear_decoder_are_found() {
        let latent = Latent { shape: [4, 16, 16], numbers: patches([4, 16, 16]) };
        let known: Vec<[f64; 3]> = (0..5).map(|at| [0.1 * f64::from(at), -0.2, 0.05 * f64::from(at) - 0.1]).collect();
        let small = colours(&latent, &known);
        // Every position becomes a square of 2x2 pixels.
        let planes: Vec<f32> =
            (0..3 * 32 * 32).map(|at| small[at / 1024 * 256 + at % 1024 / 32 / 2 * 16 + at % 32 / 2]).collect();
        for (found, known) in fit(&latent, &planes).iter().zip(&known) {
            for (found, known) in found.iter().zip(known) {
                assert!((found - known).abs() < 2e-3, "{found}, not {known}");
            }
        }
    }

    #[test]
    fn a_latent_picture_is_made_smaller_by_means() {
        let latent = Latent { shape: [1, 2, 5], numbers: vec![1.0, 3.0, 0.0, 0.0, 9.0, 5.0, 7.0, 0.0, 4.0, 9.0] };
        assert_eq!(shrink(&latent, 2), Latent { shape: [1, 1, 2], numbers: vec![4.0, 1.0] });
        assert_eq!(shrink(&latent, 1), latent);
        assert_eq!(shrink(&latent, 9).shape, [1, 1, 2]);
    }
}
