//! Euler's method on the noise levels, also with new noise in each step (ancestral).

use serde_json::json;

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
    leading: bool,
    ancestral: bool,
}

impl Euler {
    pub(super) fn new(
        config: &Config,
        training: Training,
        [steps, skipped]: [usize; 2],
        ancestral: bool,
    ) -> Result<Self> {
        for key in ["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"] {
            config.only(key, &json!(false))?;
        }
        for key in ["sigma_min", "sigma_max"] {
            config.only(key, &serde_json::Value::Null)?;
        }
        config.only("interpolation_type", &json!("linear"))?;
        config.only("timestep_type", &json!("discrete"))?;
        let sigma = |alpha: f64| ((1.0 - alpha) / alpha).sqrt();
        let last = match config.text("final_sigmas_type", "zero")? {
            "zero" => 0.0,
            "sigma_min" => sigma(training.alphas[0]),
            _ => return Err(config.wrong("final_sigmas_type", "zero and sigma_min are supported")),
        };
        let times: Vec<f64> = match training.spacing {
            // Unlike the other schedulers, this one knows levels between those of the training.
            Spacing::Linspace => {
                let ratio = (training.alphas.len() - 1) as f64 / (steps.max(2) - 1) as f64;
                (0..steps).rev().map(|at| ratio * at as f64).collect()
            }
            Spacing::Leading | Spacing::Trailing => training.times(steps).iter().map(|&time| time as f64).collect(),
        };
        let level = |time: f64| {
            let (below, above) = (time.floor() as i64, time.ceil() as i64);
            let (low, high) = (sigma(training.alpha(below)), sigma(training.alpha(above)));
            low + (high - low) * (time - time.floor())
        };
        let sigmas = times.iter().skip(skipped).map(|&time| level(time)).chain([last]).collect();
        let times = times.into_iter().skip(skipped).map(|time| time as f32).collect();
        Ok(Self {
            times,
            sigmas,
            prediction: training.prediction,
            leading: training.spacing == Spacing::Leading,
            ancestral,
        })
    }

    /// The picture that the model's answer stands for, where the noise has this deviation.
    fn clean(&self, sigma: f64, answer: f64, sample: f64) -> f64 {
        match self.prediction {
            Prediction::Epsilon => sample - sigma * answer,
            Prediction::Velocity => answer * -sigma / (sigma * sigma + 1.0).sqrt() + sample / (sigma * sigma + 1.0),
            Prediction::Sample => answer,
        }
    }
}

impl Scheduler for Euler {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn initial_scale(&self) -> f32 {
        let most = self.sigmas.iter().copied().fold(0.0, f64::max);
        (if self.leading { (most * most + 1.0).sqrt() } else { most }) as f32
    }

    fn scale(&self, step: usize, sample: &[f32]) -> Vec<f32> {
        let scale = (self.sigmas[step].powi(2) + 1.0).sqrt().recip();
        sample.iter().map(|x| (f64::from(*x) * scale) as f32).collect()
    }

    fn noisy(&self, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        picture.iter().zip(noise).map(|(x, noise)| x + noise * self.sigmas[0] as f32).collect()
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        let clean = |(answer, x): (&f32, &f32)| self.clean(self.sigmas[step], f64::from(*answer), f64::from(*x)) as f32;
        answer.iter().zip(sample).map(clean).collect()
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        let (sigma, to) = (self.sigmas[step], self.sigmas[step + 1]);
        // An ancestral step goes further down, and up again with new noise.
        let up = if self.ancestral { (to * to * (sigma * sigma - to * to) / (sigma * sigma)).sqrt() } else { 0.0 };
        let next = if self.ancestral { (to * to - up * up).sqrt() } else { to };
        for (x, &answer) in sample.iter_mut().zip(answer) {
            let (old, answer) = (f64::from(*x), f64::from(answer));
            let picture = self.clean(sigma, answer, old);
            *x = (old + (old - picture) / sigma * (next - sigma)) as f32;
        }
        if self.ancestral {
            for (x, noise) in sample.iter_mut().zip(noise.normal(answer.len())) {
                *x += (f64::from(noise) * up) as f32;
            }
        }
    }
}
