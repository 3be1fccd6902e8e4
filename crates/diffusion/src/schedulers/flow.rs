//! Euler's method on a straight path from noise to picture (rectified flow).

use serde_json::json;

use super::{Scheduler, Trajectory};
use crate::config::Config;
use crate::noise::Noise;
use crate::{Error, Result};

/// Most steps of a picture.
const MAX_STEPS: usize = 1000;

/// The scheduler, set to a number of steps.
#[derive(Debug)]
pub struct Flow {
    times: Vec<f32>,
    /// The noise's share of the sample, before each step and after the last one.
    sigmas: Vec<f32>,
}

/// How a model's steps depend on the picture size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// Two lines fitted to FLUX.2 pictures, one for 10 steps and one for 200.
    Fitted,
    /// A line through two sizes given in the configuration.
    Line,
}

impl Shift {
    fn of(self, config: &Config, positions: usize, steps: usize) -> Result<f64> {
        let positions = positions as f64;
        Ok(match self {
            Self::Fitted => {
                let at_200 = 0.000_169_27 * positions + 0.456_666_66;
                let at_10 = 8.738_095_24e-5 * positions + 1.898_333_33;
                if positions > 4300.0 {
                    return Ok(at_200);
                }
                let slope = (at_200 - at_10) / 190.0;
                slope * steps as f64 + (at_200 - 200.0 * slope)
            }
            Self::Line => {
                let sizes =
                    (config.fraction("base_image_seq_len", 256.0)?, config.fraction("max_image_seq_len", 4096.0)?);
                let shifts = (config.fraction("base_shift", 0.5)?, config.fraction("max_shift", 1.15)?);
                let slope = (shifts.1 - shifts.0) / (sizes.1 - sizes.0);
                positions * slope + (shifts.0 - slope * sizes.0)
            }
        })
    }
}

impl Flow {
    /// Reads the configuration and sets the scheduler to a number of steps for a latent picture with `positions`
    /// positions.
    ///
    /// # Errors
    /// If the configuration asks for another scheduler or an unknown option, or doesn't allow the number of steps.
    pub fn new(config: &Config, shift: Shift, positions: usize, steps: usize) -> Result<Self> {
        if config.text("_class_name", "")? != "FlowMatchEulerDiscreteScheduler" {
            return Err(config.wrong("_class_name", "FlowMatchEulerDiscreteScheduler is needed"));
        }
        let no = json!(false);
        for key in
            ["invert_sigmas", "stochastic_sampling", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"]
        {
            config.only(key, &no)?;
        }
        config.only("shift_terminal", &serde_json::Value::Null)?;
        let training = config.number_or("num_train_timesteps", 1000)?;
        // The pipelines divide by this number, whatever the configuration says.
        if training != 1000 {
            return Err(config.wrong("num_train_timesteps", "only 1000 is supported"));
        }
        let fixed = config.fraction("shift", 1.0)?;
        if !(fixed > 0.0 && fixed <= 1e6) {
            return Err(config.wrong("shift", "a number above 0 is needed"));
        }
        let dynamic = config.flag("use_dynamic_shifting", false)?;
        let linear = match config.text("time_shift_type", "exponential")? {
            "exponential" => false,
            "linear" => true,
            _ => return Err(config.wrong("time_shift_type", "exponential and linear are supported")),
        };
        if steps == 0 || steps > MAX_STEPS {
            return Err(Error::Order(format!("{steps} steps are not from 1 to {MAX_STEPS}")));
        }
        let mu = shift.of(config, positions, steps)?;
        let factor = match (dynamic, linear) {
            (false, _) => fixed,
            (true, false) => mu.exp(),
            (true, true) => mu,
        };
        if !(factor.is_finite() && factor > 0.0) {
            return Err(config.wrong("max_shift", "the noise levels that it leads to are not finite"));
        }
        let last = 1.0 / steps as f64;
        let level = |step: usize| {
            let part = if steps == 1 { 1.0 } else { 1.0 + (last - 1.0) * step as f64 / (steps - 1) as f64 };
            (factor * part / (1.0 + (factor - 1.0) * part)) as f32
        };
        let sigmas: Vec<f32> = (0..steps).map(level).chain([0.0]).collect();
        Ok(Self { times: sigmas[..steps].iter().map(|sigma| sigma * 1000.0).collect(), sigmas })
    }
}

impl Trajectory for Flow {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn noisy_at(&self, step: usize, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        let level = self.sigmas[step];
        picture.iter().zip(noise).map(|(x, noise)| (1.0 - level) * x + level * noise).collect()
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        sample.iter().zip(answer).map(|(x, answer)| x - self.sigmas[step] * answer).collect()
    }
}

impl Scheduler for Flow {
    fn trajectory(&self) -> &dyn Trajectory {
        self
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], _: &mut Noise) {
        let way = self.sigmas[step + 1] - self.sigmas[step];
        for (x, answer) in sample.iter_mut().zip(answer) {
            *x += way * answer;
        }
    }
}
