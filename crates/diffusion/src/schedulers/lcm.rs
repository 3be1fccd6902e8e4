//! Latent consistency models: each answer leads to a picture, which gets noise for the next level.

use super::whole::WholeTimes;
use super::{Scheduler, Training, Trajectory};
use crate::config::Config;
use crate::noise::Noise;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Lcm {
    times: WholeTimes,
    scaling: f64,
}

impl Lcm {
    pub(super) fn new(config: &Config, training: Training, steps: usize, strength: f64) -> Result<Self> {
        let times = distilled_timesteps(config, training, steps, strength)?;
        Ok(Self { times, scaling: config.fraction("timestep_scaling", 10.0)? })
    }
}

/// The time steps of a distilled model: `steps` of those that it was distilled for, the noisiest first.
pub(super) fn distilled_timesteps(
    config: &Config,
    training: Training,
    steps: usize,
    strength: f64,
) -> Result<WholeTimes> {
    let all = training.alphas.len();
    let original = config.number_or("original_inference_steps", 50)?;
    if original > all {
        return Err(config.wrong("original_inference_steps", "more than the steps of the training"));
    }
    let kept = (original as f64 * strength) as usize;
    if steps > kept {
        return Err(Error::Order(format!("{steps} steps are more than the {kept} of this model")));
    }
    let skip = all / original;
    let level = |at: usize| ((kept - at * kept / steps) * skip - 1) as i64;
    Ok(WholeTimes::new(training, (0..steps).map(level).collect()))
}

impl Scheduler for Lcm {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.times
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        const DEVIATION: f64 = 0.5;
        let WholeTimes { training, whole, .. } = &self.times;
        let (time, next) = (whole[step], whole.get(step + 1));
        let alpha = training.alpha(time);
        let scaled = time as f64 * self.scaling;
        let sum = scaled * scaled + DEVIATION * DEVIATION;
        let (skip, out) = (DEVIATION * DEVIATION / sum, scaled / sum.sqrt());
        for (x, &answer) in sample.iter_mut().zip(answer) {
            let old = f64::from(*x);
            *x = (out * training.picture(alpha, f64::from(answer), old) + skip * old) as f32;
        }
        if let Some(&next) = next {
            let alpha = training.alpha(next);
            let noise = noise.normal(sample.len());
            for (x, noise) in sample.iter_mut().zip(noise) {
                *x = (alpha.sqrt() * f64::from(*x) + (1.0 - alpha).sqrt() * f64::from(noise)) as f32;
            }
        }
    }
}
