//! The time steps and noise levels of the multistep schedulers (DPM-Solver++ and UniPC).

use serde_json::{Value, json};

use super::levels::Levels;
use super::{Prediction, Spacing, Training, Trajectory};
use crate::Result;
use crate::config::Config;

/// With fewer steps than this, the last ones have a lower order.
const FEW: usize = 15;

/// The steps that a picture takes from noise.
#[derive(Debug)]
pub(super) struct Course {
    /// Integer time steps, the latest first, without skipped ones.
    times: Vec<f32>,
    /// The noise's deviation before each step and after the last one, including skipped steps.
    pub sigmas: Vec<f64>,
    pub skipped: usize,
    prediction: Prediction,
}

impl Course {
    /// Reads a configuration. `end` is the default for its `final_sigmas_type`.
    pub(super) fn read(config: &Config, training: &Training, [steps, skipped]: [usize; 2], end: &str) -> Result<Self> {
        config.only("use_flow_sigmas", &json!(false))?;
        let last = training.last_level(config, end)?;
        let (choice, trained) = (Levels::read(config)?, training.levels());
        let ends =
            [config.fraction("sigma_min", trained[0])?, config.fraction("sigma_max", trained[trained.len() - 1])?];
        let (times, mut sigmas): (Vec<f64>, Vec<f64>) = match choice.between(ends, steps) {
            Some(chosen) => {
                let rounds = [Levels::Karras, Levels::Lu].contains(&choice);
                let whole = |time: f64| if rounds { time.round_ties_even() } else { time.trunc() };
                (training.times_of(&chosen).into_iter().map(whole).collect(), chosen)
            }
            None => {
                let times = times(training, steps, begin(config, &trained)?);
                let sigmas = times.iter().map(|&time| training.level_at(time)).collect();
                (times, sigmas)
            }
        };
        sigmas.push(last);
        let times = times.into_iter().skip(skipped).map(|time| time as f32).collect();
        Ok(Self { times, sigmas, skipped, prediction: training.prediction })
    }

    /// Whether there are so few steps that the last ones may need a lower order.
    pub(super) fn is_short(&self) -> bool {
        self.sigmas.len() - 1 < FEW
    }

    /// Half of the log signal-to-noise ratio before a step, counting skipped steps.
    pub(super) fn lambda(&self, at: usize) -> f64 {
        -self.sigmas[at].ln()
    }
}

impl Trajectory for Course {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn noisy_at(&self, step: usize, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        let [signal, level] = parts(self.sigmas[self.skipped + step]).map(|part| part as f32);
        picture.iter().zip(noise).map(|(x, noise)| signal * x + level * noise).collect()
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        let sigma = self.sigmas[self.skipped + step];
        let [signal, _] = parts(sigma);
        let numbers = answer.iter().zip(sample).map(|(answer, x)| (f64::from(*answer), f64::from(*x)));
        numbers.map(|(answer, x)| self.prediction.picture(sigma, answer, x / signal) as f32).collect()
    }
}

pub(super) fn order(config: &Config) -> Result<usize> {
    match config.number_or("solver_order", 2)? {
        order @ ..=3 => Ok(order),
        _ => Err(config.wrong("solver_order", "1, 2 and 3 are supported")),
    }
}

/// Pictures begin below this time step: the number of training steps, or less if `lambda_min_clipped` limits the
/// signal-to-noise ratio.
fn begin(config: &Config, trained: &[f64]) -> Result<usize> {
    match config.get("lambda_min_clipped").and_then(Value::as_str) {
        Some("-Infinity") => Ok(trained.len()),
        _ => {
            let least = config.fraction("lambda_min_clipped", f64::NEG_INFINITY)?;
            let begin = trained.partition_point(|level| -level.ln() >= least);
            if begin == 0 { Err(config.wrong("lambda_min_clipped", "no time step is left")) } else { Ok(begin) }
        }
    }
}

/// Integer time steps. These schedulers always drop the last one.
fn times(training: &Training, steps: usize, begin: usize) -> Vec<f64> {
    let all = training.alphas.len();
    let times: Vec<f64> = match training.spacing {
        Spacing::Linspace => {
            (1..=steps).rev().map(|at| ((begin - 1) as f64 * at as f64 / steps as f64).round_ties_even()).collect()
        }
        Spacing::Leading => (1..=steps).rev().map(|at| (at * (begin / (steps + 1)) + training.offset) as f64).collect(),
        Spacing::Trailing => {
            let ratio = all as f64 / steps as f64;
            (0..steps).map(|at| (begin as f64 - ratio * at as f64).round_ties_even() - 1.0).collect()
        }
    };
    times.into_iter().map(|time| time.clamp(0.0, (all - 1) as f64)).collect()
}

/// The amounts of picture and noise in a sample with variance 1. `sigma` is the noise's deviation relative to the
/// picture.
pub(super) fn parts(sigma: f64) -> [f64; 2] {
    let signal = (sigma * sigma + 1.0).sqrt().recip();
    [signal, sigma * signal]
}
