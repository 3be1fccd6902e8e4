//! Denoising diffusion implicit models, without added noise.

use super::whole::WholeTimes;
use super::{Scheduler, Training, Trajectory};
use crate::noise::Noise;

#[derive(Debug)]
pub(super) struct Ddim {
    times: WholeTimes,
    /// Training time steps per step.
    ratio: i64,
}

impl Ddim {
    pub(super) fn new(training: Training, steps: usize, skipped: usize) -> Self {
        let whole = training.times(steps).split_off(skipped);
        let ratio = (training.alphas.len() / steps) as i64;
        Self { times: WholeTimes::new(training, whole), ratio }
    }
}

impl Scheduler for Ddim {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.times
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], _: &mut Noise) {
        let (training, time) = (&self.times.training, self.times.whole[step]);
        let (alpha, next) = (training.alpha(time), training.alpha(time - self.ratio));
        for (x, &answer) in sample.iter_mut().zip(answer) {
            let (old, answer) = (f64::from(*x), f64::from(answer));
            let picture = training.picture(alpha, answer, old);
            let noise = training.noise(alpha, answer, old);
            *x = (next.sqrt() * picture + (1.0 - next).sqrt() * noise) as f32;
        }
    }
}
