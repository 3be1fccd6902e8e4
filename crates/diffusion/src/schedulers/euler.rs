//! Euler's method on the noise levels, optionally with new noise in each step (ancestral).

use serde_json::json;

use super::levels::{Ladder, Levels, down_and_up};
use super::{Scheduler, Training, Trajectory};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

#[derive(Debug)]
pub(super) struct Euler {
    ladder: Ladder,
    ancestral: bool,
}

impl Euler {
    pub(super) fn new(
        config: &Config,
        training: Training,
        [steps, skipped]: [usize; 2],
        ancestral: bool,
    ) -> Result<Self> {
        config.only("interpolation_type", &json!("linear"))?;
        config.only("timestep_type", &json!("discrete"))?;
        let last = training.last_level(config, "zero")?;
        let ends =
            |[low, high]: [f64; 2]| Ok([config.fraction("sigma_min", low)?, config.fraction("sigma_max", high)?]);
        let (times, sigmas) = training.chosen(Levels::read(config)?, steps, ends)?;
        let ladder = Ladder {
            times: times.into_iter().skip(skipped).map(|time| time as f32).collect(),
            sigmas: sigmas.into_iter().skip(skipped).chain([last]).collect(),
            prediction: training.prediction,
            spacing: training.spacing,
            has_middles: false,
        };
        Ok(Self { ladder, ancestral })
    }
}

impl Scheduler for Euler {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.ladder
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        let (sigma, to) = (self.ladder.sigmas[step], self.ladder.sigmas[step + 1]);
        // An ancestral step goes further down, then up again with new noise.
        let [next, up] = if self.ancestral { down_and_up(sigma, to) } else { [to, 0.0] };
        for (x, &answer) in sample.iter_mut().zip(answer) {
            *x = (f64::from(*x) + self.ladder.slope(step, answer, *x) * (next - sigma)) as f32;
        }
        if self.ancestral {
            for (x, noise) in sample.iter_mut().zip(noise.normal(answer.len())) {
                *x += (f64::from(noise) * up) as f32;
            }
        }
    }
}
