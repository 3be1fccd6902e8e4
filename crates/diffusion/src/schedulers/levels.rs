//! Noise levels at uneven time steps. A level is the noise's deviation next to a picture at its original scale.

use super::{Prediction, Spacing, Trajectory};
use crate::Result;
use crate::config::Config;

/// Both parameters of the distribution in "Beta Sampling is All You Need" (arXiv 2407.12173).
const BETA: f64 = 0.6;
/// The exponent that Karras et al. (arXiv 2206.00364) use.
const RHO: f64 = 7.0;

/// How noise levels are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Levels {
    /// At even time steps of the training.
    Even,
    Karras,
    Exponential,
    Beta,
    /// Even in the logarithm, as in Lu et al. (arXiv 2206.00927).
    Lu,
}

impl Levels {
    /// Reads the choice from a configuration.
    pub(super) fn read(config: &Config) -> Result<Self> {
        let mut chosen = Self::Even;
        let keys = ["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas"];
        for (key, levels) in keys.into_iter().zip([Self::Karras, Self::Exponential, Self::Beta, Self::Lu]) {
            if config.flag(key, false)? {
                if chosen != Self::Even {
                    return Err(config.wrong(key, "another choice of noise levels is on as well"));
                }
                chosen = levels;
            }
        }
        Ok(chosen)
    }

    /// `steps` levels, the highest first; `None` for levels at even time steps.
    pub(super) fn between(self, [low, high]: [f64; 2], steps: usize) -> Option<Vec<f64>> {
        let part = |at: usize| at as f64 / (steps.max(2) - 1) as f64;
        let level = |at: usize| match self {
            Self::Even => high,
            Self::Karras => {
                (high.powf(RHO.recip()) + part(at) * (low.powf(RHO.recip()) - high.powf(RHO.recip()))).powf(RHO)
            }
            Self::Exponential | Self::Lu => (high.ln() + part(at) * (low.ln() - high.ln())).exp(),
            Self::Beta => low + (high - low) * puruspe::invbetai(1.0 - part(at), BETA, BETA),
        };
        (self != Self::Even).then(|| (0..steps).map(level).collect())
    }
}

/// The noise level of a picture that keeps this share of its variance.
pub(super) fn level(alpha: f64) -> f64 {
    ((1.0 - alpha) / alpha).sqrt()
}

/// The level that an ancestral step goes down to, and how much new noise it adds to go up again. In 32 bits, to match
/// the expected pictures: the level is a small difference between large numbers.
pub(super) fn down_and_up(from: f64, to: f64) -> [f64; 2] {
    let [from, to] = [from as f32 * from as f32, to as f32 * to as f32];
    let up = (to * (from - to) / from).sqrt();
    // Rounding may go slightly below zero.
    [(to - up * up).max(0.0).sqrt(), up].map(f64::from)
}

/// Noise levels for samples that keep the picture at its original scale and add noise to it.
#[derive(Debug)]
pub(super) struct Ladder {
    pub times: Vec<f32>,
    /// The noise's deviation at each call of the model, and after the last step.
    pub sigmas: Vec<f64>,
    pub prediction: Prediction,
    pub spacing: Spacing,
    /// Whether every second level is in the middle of a step.
    pub has_middles: bool,
}

impl Ladder {
    /// A number's derivative by the noise level.
    pub(super) fn slope(&self, step: usize, answer: f32, x: f32) -> f64 {
        let (sigma, answer, x) = (self.sigmas[step], f64::from(answer), f64::from(x));
        (x - self.prediction.picture(sigma, answer, x)) / sigma
    }
}

impl Trajectory for Ladder {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn initial_scale(&self) -> f32 {
        let most = self.sigmas.iter().copied().fold(0.0, f64::max);
        (if self.spacing == Spacing::Leading { (most * most + 1.0).sqrt() } else { most }) as f32
    }

    /// Scales to a variance of 1.
    fn scale(&self, step: usize, sample: &[f32]) -> Vec<f32> {
        let scale = (self.sigmas[step].powi(2) + 1.0).sqrt().recip();
        sample.iter().map(|x| (f64::from(*x) * scale) as f32).collect()
    }

    fn noisy_at(&self, step: usize, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        // In the middle of a step `diffusers` adds the noise of the step's end, and our pictures must equal its
        // pictures.
        let is_middle = self.has_middles && step % 2 == 1;
        let level = self.sigmas[step + usize::from(is_middle)] as f32;
        picture.iter().zip(noise).map(|(x, noise)| x + noise * level).collect()
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        let (sigma, numbers) = (self.sigmas[step], answer.iter().zip(sample));
        numbers.map(|(answer, x)| self.prediction.picture(sigma, f64::from(*answer), f64::from(*x)) as f32).collect()
    }
}

/// A level's time step, interpolated between the training's levels, which rise. Logarithms have 32 bits, as in
/// training: some schedulers truncate the fraction, so the last bit matters.
pub(super) fn time_of(level: f64, trained: &[f64]) -> f64 {
    let logarithm = |level: f64| f64::from((level as f32).ln());
    let wanted = level.max(1e-10).ln();
    let low = trained.partition_point(|other| logarithm(*other) <= wanted).saturating_sub(1);
    let low = low.min(trained.len().saturating_sub(2));
    let [below, above] = [trained[low], trained[(low + 1).min(trained.len() - 1)]].map(logarithm);
    let part = ((wanted - below) / (above - below)).clamp(0.0, 1.0);
    low as f64 + if part.is_nan() { 0.0 } else { part }
}
