//! Noise levels for schedulers that ask the model at integer time steps of its training.

use super::{Training, Trajectory};

#[derive(Debug)]
pub(super) struct WholeTimes {
    pub training: Training,
    /// The time steps, the latest first.
    pub whole: Vec<i64>,
    times: Vec<f32>,
}

impl WholeTimes {
    pub(super) fn new(training: Training, whole: Vec<i64>) -> Self {
        let times = whole.iter().map(|&time| time as f32).collect();
        Self { training, whole, times }
    }
}

impl Trajectory for WholeTimes {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn noisy_at(&self, step: usize, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        let alpha = self.training.alpha(self.whole[step]);
        let (signal, level) = (alpha.sqrt() as f32, (1.0 - alpha).sqrt() as f32);
        picture.iter().zip(noise).map(|(x, noise)| signal * x + level * noise).collect()
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        let alpha = self.training.alpha(self.whole[step]);
        let numbers = answer.iter().zip(sample);
        numbers.map(|(answer, x)| self.training.picture(alpha, f64::from(*answer), f64::from(*x)) as f32).collect()
    }
}
