//! Heun's method on the noise levels: a step ahead, then a better one from the mean of the slopes at both ends.

use serde_json::json;

use super::levels::Levels;
use super::{Prediction, Scheduler, Spacing, Training};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

/// Each level but the first is asked about twice: at the end of a step, and at the begin of the next.
#[derive(Debug)]
pub(super) struct Heun {
    times: Vec<f32>,
    /// One more than there are times.
    sigmas: Vec<f64>,
    prediction: Prediction,
    leading: bool,
    /// The sample and its slope before a step ahead.
    ahead: Option<(Vec<f32>, Vec<f64>)>,
}

impl Heun {
    pub(super) fn new(config: &Config, training: Training, [steps, skipped]: [usize; 2]) -> Result<Self> {
        config.only("clip_sample", &json!(false))?;
        let levels = Levels::read(config)?;
        if levels == Levels::Lu {
            return Err(config.wrong("use_lu_lambdas", "only false is supported"));
        }
        let mut times = training.level_times(steps);
        let mut sigmas: Vec<f64> = times.iter().map(|&time| training.level_at(time)).collect();
        if let Some(chosen) = levels.between([sigmas[steps - 1], sigmas[0]], steps) {
            (times, sigmas) = (training.times_of(&chosen), chosen);
        }
        let twice = |numbers: &[f64]| -> Vec<f64> {
            numbers.iter().enumerate().flat_map(|(at, x)| vec![*x; if at == 0 { 1 } else { 2 }]).collect()
        };
        Ok(Self {
            times: twice(&times).into_iter().skip(2 * skipped).map(|time| time as f32).collect(),
            sigmas: twice(&sigmas).into_iter().skip(2 * skipped).chain([0.0]).collect(),
            prediction: training.prediction,
            leading: training.spacing == Spacing::Leading,
            ahead: None,
        })
    }
}

impl Scheduler for Heun {
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
        let (sigma, numbers) = (self.sigmas[step], answer.iter().zip(sample));
        numbers.map(|(answer, x)| self.prediction.picture(sigma, f64::from(*answer), f64::from(*x)) as f32).collect()
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], _: &mut Noise) {
        let sigma = self.sigmas[step];
        let slope = |(answer, x): (&f32, &f32)| {
            let (answer, x) = (f64::from(*answer), f64::from(*x));
            (x - self.prediction.picture(sigma, answer, x)) / sigma
        };
        let slopes: Vec<f64> = answer.iter().zip(sample.iter()).map(slope).collect();
        match self.ahead.take() {
            None => {
                let length = self.sigmas[step + 1] - sigma;
                self.ahead = Some((sample.to_vec(), slopes.clone()));
                sample.iter_mut().zip(slopes).for_each(|(x, slope)| *x = (f64::from(*x) + slope * length) as f32);
            }
            Some((from, first)) => {
                let length = sigma - self.sigmas[step - 1];
                for (at, x) in sample.iter_mut().enumerate() {
                    *x = (f64::from(from[at]) + (first[at] + slopes[at]) / 2.0 * length) as f32;
                }
            }
        }
    }
}
