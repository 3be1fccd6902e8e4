//! Trajectory consistency distillation (arXiv 2402.19159): each answer leads to a picture with less noise than the next
//! level, and new noise makes up the difference.

use super::lcm::distilled_timesteps;
use super::whole::WholeTimes;
use super::{Scheduler, Training, Trajectory};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

/// How far below the next time step a step goes before new noise is added, as a share of that time step. The paper
/// calls it gamma.
const ETA: f32 = 0.3;

#[derive(Debug)]
pub(super) struct Tcd {
    times: WholeTimes,
}

impl Tcd {
    pub(super) fn new(config: &Config, training: Training, steps: usize, strength: f64) -> Result<Self> {
        Ok(Self { times: distilled_timesteps(config, training, steps, strength)? })
    }
}

impl Scheduler for Tcd {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.times
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        let WholeTimes { training, whole, .. } = &self.times;
        let next = whole.get(step + 1).copied();
        let below = ((1.0 - ETA) * next.unwrap_or(0) as f32).floor() as i64;
        let [alpha, below] = [whole[step], below].map(|time| training.alpha(time));
        for (x, &answer) in sample.iter_mut().zip(answer) {
            let (old, answer) = (f64::from(*x), f64::from(answer));
            let picture = training.picture(alpha, answer, old);
            *x = (below.sqrt() * picture + (1.0 - below).sqrt() * training.noise(alpha, answer, old)) as f32;
        }
        if let Some(next) = next {
            let signal_ratio = training.alpha(next) / below;
            let noise = noise.normal(sample.len());
            for (x, noise) in sample.iter_mut().zip(noise) {
                *x = (signal_ratio.sqrt() * f64::from(*x) + (1.0 - signal_ratio).sqrt() * f64::from(noise)) as f32;
            }
        }
    }
}
