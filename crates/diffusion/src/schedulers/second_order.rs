//! Methods that ask the model twice a step. Heun's takes a step ahead, and then a better one with the mean of both slopes; that
//! of Katherine Crowson (KDPM2) goes half the way, and then takes the whole step with the slope found there, also with new
//! noise (ancestral).

use serde_json::json;

use super::levels::{Levels, initial_scale, scaled};
use super::{Prediction, Scheduler, Spacing, Training};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

/// Where a step asks the model for the second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Second {
    /// At its end, where the next step asks again.
    AtEnd,
    /// In the middle of it, by the logarithm of the noise.
    Halfway,
    /// In the middle of a step that goes further down, and up again with new noise (ancestral).
    Ancestral,
}

/// The level to which an ancestral step goes down, and by how much new noise it goes up again. In 32 bits, as where pictures
/// are to be equal: the level is a small difference of large numbers.
fn down_and_up(from: f64, to: f64) -> [f64; 2] {
    let [from, to] = [from as f32 * from as f32, to as f32 * to as f32];
    let up = (to * (from - to) / from).sqrt();
    [(to - up * up).sqrt(), up].map(f64::from)
}

/// The level in the middle of a step, by the logarithm.
fn middle(from: f64, to: f64) -> f64 {
    let [from, to] = [from, to].map(|level| f64::from((level as f32).ln()));
    f64::from(f64::midpoint(from, to) as f32).exp()
}

#[derive(Debug)]
pub(super) struct SecondOrder {
    times: Vec<f32>,
    /// The noise levels at which the model is asked, and the last one, at which it is not.
    sigmas: Vec<f64>,
    prediction: Prediction,
    spacing: Spacing,
    second: Second,
    /// The sample and its slope before a step.
    before: Option<(Vec<f32>, Vec<f64>)>,
}

impl SecondOrder {
    pub(super) fn new(
        config: &Config,
        training: Training,
        [steps, skipped]: [usize; 2],
        second: Second,
    ) -> Result<Self> {
        config.only("clip_sample", &json!(false))?;
        let levels = Levels::read(config)?;
        if second != Second::AtEnd && training.prediction == Prediction::Sample {
            return Err(config.wrong("prediction_type", "epsilon and v_prediction are supported"));
        }
        let mut times = training.level_times(steps);
        let mut sigmas: Vec<f64> = times.iter().map(|&time| training.level_at(time)).collect();
        if let Some(chosen) = levels.between([sigmas[steps - 1], sigmas[0]], steps) {
            times = training.times_of(&chosen);
            if levels == Levels::Karras && second != Second::AtEnd {
                times.iter_mut().for_each(|time| *time = time.round_ties_even());
            }
            sigmas = chosen;
        }
        let (mut all_times, mut all_sigmas) = (vec![times[0]], vec![sigmas[0]]);
        for at in 1..steps {
            let (time, sigma) = match second {
                Second::AtEnd => (times[at], sigmas[at]),
                Second::Halfway | Second::Ancestral => {
                    let [down, _] = down_and_up(sigmas[at - 1], sigmas[at]);
                    let end = if second == Second::Ancestral { down } else { sigmas[at] };
                    let middle = middle(sigmas[at - 1], end);
                    (training.times_of(&[middle])[0], middle)
                }
            };
            all_times.extend([time, times[at]]);
            all_sigmas.extend([sigma, sigmas[at]]);
        }
        Ok(Self {
            times: all_times.into_iter().skip(2 * skipped).map(|time| time as f32).collect(),
            sigmas: all_sigmas.into_iter().skip(2 * skipped).chain([0.0]).collect(),
            prediction: training.prediction,
            spacing: training.spacing,
            second,
            before: None,
        })
    }
}

impl Scheduler for SecondOrder {
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
        // In the middle of a step `diffusers` adds the noise of its end, and pictures are to equal its own.
        let is_middle = self.second != Second::AtEnd && step % 2 == 1;
        let level = self.sigmas[step + usize::from(is_middle)] as f32;
        picture.iter().zip(noise).map(|(x, noise)| x + noise * level).collect()
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        let (sigma, numbers) = (self.sigmas[step], answer.iter().zip(sample));
        numbers.map(|(answer, x)| self.prediction.picture(sigma, f64::from(*answer), f64::from(*x)) as f32).collect()
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        let sigma = self.sigmas[step];
        let slope = |(answer, x): (&f32, &f32)| {
            let (answer, x) = (f64::from(*answer), f64::from(*x));
            (x - self.prediction.picture(sigma, answer, x)) / sigma
        };
        let slopes: Vec<f64> = answer.iter().zip(sample.iter()).map(slope).collect();
        let length = |from: usize| self.sigmas[step + 1] - self.sigmas[from];
        match self.before.take() {
            None => {
                let length = length(step);
                self.before = Some((sample.to_vec(), slopes.clone()));
                sample.iter_mut().zip(slopes).for_each(|(x, slope)| *x = (f64::from(*x) + slope * length) as f32);
            }
            Some((from, first)) => {
                let (mut length, mut spread) = (length(step - 1), None);
                if self.second == Second::Ancestral {
                    let [down, up] = down_and_up(self.sigmas[step - 1], self.sigmas[step + 1]);
                    (length, spread) = (down - self.sigmas[step - 1], Some(up));
                }
                for (at, x) in sample.iter_mut().enumerate() {
                    let slope = match self.second {
                        Second::AtEnd => f64::midpoint(first[at], slopes[at]),
                        Second::Halfway | Second::Ancestral => slopes[at],
                    };
                    *x = (f64::from(from[at]) + slope * length) as f32;
                }
                if let Some(spread) = spread {
                    for (x, noise) in sample.iter_mut().zip(noise.normal(answer.len())) {
                        *x += (f64::from(noise) * spread) as f32;
                    }
                }
            }
        }
    }
}
