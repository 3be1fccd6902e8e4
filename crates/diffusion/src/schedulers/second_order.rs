//! Methods that ask the model twice per step. Heun's method takes a step, then repeats it with the mean of both slopes.
//! Katherine Crowson's (KDPM2) goes half a step, then takes the whole step with the slope found there, optionally with
//! new noise (ancestral).

use serde_json::json;

use super::levels::{Ladder, Levels, down_and_up};
use super::{Prediction, Scheduler, Training, Trajectory};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

/// Where a step asks the model a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Second {
    /// At its end, where the next step asks again.
    AtEnd,
    /// In its middle, by the logarithm of the noise level.
    Halfway,
    /// In the middle of a step that goes further down, then up again with new noise (ancestral).
    Ancestral,
}

/// The level in the middle of a step, by logarithm.
fn middle(from: f64, to: f64) -> f64 {
    let [from, to] = [from, to].map(|level| f64::from((level as f32).ln()));
    f64::from(f64::midpoint(from, to) as f32).exp()
}

#[derive(Debug)]
pub(super) struct SecondOrder {
    ladder: Ladder,
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
        let (mut times, sigmas) = training.chosen(levels, steps, Ok)?;
        if levels == Levels::Karras && second != Second::AtEnd {
            times.iter_mut().for_each(|time| *time = time.round_ties_even());
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
        let ladder = Ladder {
            times: all_times.into_iter().skip(2 * skipped).map(|time| time as f32).collect(),
            sigmas: all_sigmas.into_iter().skip(2 * skipped).chain([0.0]).collect(),
            prediction: training.prediction,
            spacing: training.spacing,
            has_middles: second != Second::AtEnd,
        };
        Ok(Self { ladder, second, before: None })
    }
}

impl Scheduler for SecondOrder {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.ladder
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        let slopes = answer.iter().zip(sample.iter()).map(|(answer, x)| self.ladder.slope(step, *answer, *x));
        let (slopes, sigmas): (Vec<f64>, _) = (slopes.collect(), &self.ladder.sigmas);
        let length = |from: usize| sigmas[step + 1] - sigmas[from];
        match self.before.take() {
            None => {
                let length = length(step);
                self.before = Some((sample.to_vec(), slopes.clone()));
                sample.iter_mut().zip(slopes).for_each(|(x, slope)| *x = (f64::from(*x) + slope * length) as f32);
            }
            Some((from, first)) => {
                let (mut length, mut spread) = (length(step - 1), None);
                if self.second == Second::Ancestral {
                    let [down, up] = down_and_up(sigmas[step - 1], sigmas[step + 1]);
                    (length, spread) = (down - sigmas[step - 1], Some(up));
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
