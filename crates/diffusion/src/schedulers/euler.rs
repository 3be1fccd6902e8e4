//! Euler's method on the noise levels, also with new noise in each step (ancestral).

use serde_json::json;

use super::levels::{Levels, initial_scale, level, scaled};
use super::{Prediction, Scheduler, Spacing, Training};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

#[derive(Debug)]
pub(super) struct Euler {
    times: Vec<f32>,
    /// Standard deviations of the noise, one more than there are steps.
    sigmas: Vec<f64>,
    prediction: Prediction,
    spacing: Spacing,
    ancestral: bool,
}

impl Euler {
    pub(super) fn new(
        config: &Config,
        training: Training,
        [steps, skipped]: [usize; 2],
        ancestral: bool,
    ) -> Result<Self> {
        let levels = Levels::read(config)?;
        config.only("interpolation_type", &json!("linear"))?;
        config.only("timestep_type", &json!("discrete"))?;
        let last = match config.text("final_sigmas_type", "zero")? {
            "zero" => 0.0,
            "sigma_min" => level(training.alphas[0]),
            _ => return Err(config.wrong("final_sigmas_type", "zero and sigma_min are supported")),
        };
        let mut times = training.level_times(steps);
        let mut sigmas: Vec<f64> = times.iter().map(|&time| training.level_at(time)).collect();
        let ends = [config.fraction("sigma_min", sigmas[steps - 1])?, config.fraction("sigma_max", sigmas[0])?];
        if let Some(chosen) = levels.between(ends, steps) {
            (times, sigmas) = (training.times_of(&chosen), chosen);
        }
        let sigmas = sigmas.into_iter().skip(skipped).chain([last]).collect();
        let times = times.into_iter().skip(skipped).map(|time| time as f32).collect();
        Ok(Self { times, sigmas, prediction: training.prediction, spacing: training.spacing, ancestral })
    }
}

impl Scheduler for Euler {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn initial_scale(&self) -> f32 {
        initial_scale(&self.sigmas, self.spacing)
    }

    fn scale(&self, step: usize, sample: &[f32]) -> Vec<f32> {
        scaled(self.sigmas[step], sample)
    }

    fn noisy_at(&self, step: usize, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        picture.iter().zip(noise).map(|(x, noise)| x + noise * self.sigmas[step] as f32).collect()
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        let clean = |(answer, x): (&f32, &f32)| {
            self.prediction.picture(self.sigmas[step], f64::from(*answer), f64::from(*x)) as f32
        };
        answer.iter().zip(sample).map(clean).collect()
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        let (sigma, to) = (self.sigmas[step], self.sigmas[step + 1]);
        // An ancestral step goes further down, and up again with new noise.
        let up = if self.ancestral { (to * to * (sigma * sigma - to * to) / (sigma * sigma)).sqrt() } else { 0.0 };
        let next = if self.ancestral { (to * to - up * up).sqrt() } else { to };
        for (x, &answer) in sample.iter_mut().zip(answer) {
            let (old, answer) = (f64::from(*x), f64::from(answer));
            let picture = self.prediction.picture(sigma, answer, old);
            *x = (old + (old - picture) / sigma * (next - sigma)) as f32;
        }
        if self.ancestral {
            for (x, noise) in sample.iter_mut().zip(noise.normal(answer.len())) {
                *x += (f64::from(noise) * up) as f32;
            }
        }
    }
}
