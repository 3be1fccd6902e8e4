//! Denoising diffusion implicit models, without added noise.

use super::{Scheduler, Training, floats};
use crate::noise::Noise;

#[derive(Debug)]
pub(super) struct Ddim {
    training: Training,
    times: Vec<f32>,
    whole: Vec<i64>,
    /// Time steps of the training from one step to the next.
    ratio: i64,
}

impl Ddim {
    pub(super) fn new(training: Training, steps: usize, skipped: usize) -> Self {
        let whole = training.times(steps).split_off(skipped);
        let ratio = (training.alphas.len() / steps) as i64;
        Self { times: floats(&whole), whole, ratio, training }
    }
}

impl Scheduler for Ddim {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn noisy_at(&self, step: usize, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        self.training.noisy(self.whole[step], picture, noise)
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        self.training.pictures(self.whole[step], answer, sample)
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], _: &mut Noise) {
        let time = self.whole[step];
        let (alpha, next) = (self.training.alpha(time), self.training.alpha(time - self.ratio));
        for (x, &answer) in sample.iter_mut().zip(answer) {
            let (old, answer) = (f64::from(*x), f64::from(answer));
            let picture = self.training.picture(alpha, answer, old);
            let noise = self.training.noise(alpha, answer, old);
            *x = (next.sqrt() * picture + (1.0 - next).sqrt() * noise) as f32;
        }
    }
}
