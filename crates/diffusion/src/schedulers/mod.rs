//! Schedulers choose a picture's noise levels, and take the steps from one level to the next.
//!
//! A model's `scheduler_config.json` names its scheduler and the constants that the model was trained with.

mod course;
mod ddim;
mod deis;
mod dpm;
mod euler;
mod flow;
mod lcm;
mod levels;
mod options;
mod pndm;
mod second_order;
mod tcd;
mod unipc;
mod whole;

use serde_json::json;

use crate::config::Config;
use crate::noise::Noise;
use crate::{Error, Result};

use levels::{Levels, level, time_of};
use second_order::{Second, SecondOrder};

pub use flow::{Flow, Shift};

/// Most training steps, and so the most steps for a picture.
const MAX_STEPS: usize = 10_000;

/// Schedulers whose steps ask the model twice.
pub const TWICE: [&str; 3] = ["HeunDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler"];

/// Schedulers for models distilled to few steps.
pub const DISTILLED: [&str; 2] = ["LCMScheduler", "TCDScheduler"];

/// The noise levels that a picture passes, independent of the method that takes the steps between them.
pub trait Trajectory {
    /// The time steps for the model's calls, in order.
    fn times(&self) -> &[f32];

    /// The standard deviation of the noise that a picture starts with.
    fn initial_scale(&self) -> f32 {
        1.0
    }

    /// The model's input at a step.
    fn scale(&self, _step: usize, sample: &[f32]) -> Vec<f32> {
        sample.to_vec()
    }

    /// A picture with the noise that a sample has before a step.
    fn noisy_at(&self, step: usize, picture: &[f32], noise: &[f32]) -> Vec<f32>;

    /// The noise-free picture that the model's answer to a sample stands for.
    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32>;
}

/// A scheduler, set to a number of steps: noise levels, and a method for the steps.
pub trait Scheduler: std::fmt::Debug + Send {
    /// The noise levels.
    fn trajectory(&self) -> &dyn Trajectory;

    /// Takes one step, given the model's answer. Steps are taken in order, starting with 0.
    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prediction {
    /// The noise in the sample.
    Epsilon,
    /// The velocity between noise and picture.
    Velocity,
    /// The picture.
    Sample,
}

impl Prediction {
    /// The picture that an answer stands for. `sigma` is the noise's deviation in the sample.
    fn picture(self, sigma: f64, answer: f64, sample: f64) -> f64 {
        match self {
            Self::Epsilon => sample - sigma * answer,
            Self::Velocity => answer * -sigma / (sigma * sigma + 1.0).sqrt() + sample / (sigma * sigma + 1.0),
            Self::Sample => answer,
        }
    }
}

/// How time steps are spread over the training's time steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spacing {
    Linspace,
    Leading,
    Trailing,
}

/// The training's noise levels, which all schedulers share.
#[derive(Debug, Clone)]
struct Training {
    /// The picture's share of the variance at each training time step.
    alphas: Vec<f64>,
    /// The picture's share of the variance after the last step.
    last_alpha: f64,
    prediction: Prediction,
    spacing: Spacing,
    offset: usize,
    /// Predicted pictures are clipped to this range.
    clip: Option<f64>,
}

/// Sets a configuration's scheduler to a number of steps. Only the last `strength` of them, from 0 to 1, are taken:
/// less than 1 for a picture that begins with another one. Schedulers for latent consistency models take all steps,
/// starting from a lower noise level.
///
/// # Errors
/// If the configuration asks for an unknown scheduler or option value, or doesn't allow the number of steps. Options
/// that the scheduler doesn't have are ignored.
pub fn scheduler(config: &Config, steps: usize, strength: f64) -> Result<Box<dyn Scheduler>> {
    let name = config.text("_class_name", "")?;
    let config = &options::own(config, name);
    let clips = ["DDIMScheduler", "LCMScheduler"].contains(&name);
    let training = Training::read(config, name, clips)?;
    if steps == 0 || steps > training.alphas.len() {
        return Err(Error::Order(format!("{steps} steps are not from 1 to {}", training.alphas.len())));
    }
    let skipped = steps - ((steps as f64 * strength) as usize).min(steps);
    if skipped == steps {
        return Err(Error::Order(format!("of {steps} steps none is left at a strength of {strength}")));
    }
    choose(config, name, training, [steps, skipped], strength).map_err(|error| error.beside(Error::Scheduler))
}

/// The scheduler of a class, for training constants already read.
fn choose(
    config: &Config,
    name: &str,
    training: Training,
    [steps, skipped]: [usize; 2],
    strength: f64,
) -> Result<Box<dyn Scheduler>> {
    Ok(match name {
        "DDIMScheduler" => Box::new(ddim::Ddim::new(training, steps, skipped)),
        "DPMSolverMultistepScheduler" => Box::new(dpm::Dpm::new(config, training, [steps, skipped], false)?),
        "DPMSolverSinglestepScheduler" => Box::new(dpm::Dpm::new(config, training, [steps, skipped], true)?),
        "EulerAncestralDiscreteScheduler" => Box::new(euler::Euler::new(config, training, [steps, skipped], true)?),
        "EulerDiscreteScheduler" => Box::new(euler::Euler::new(config, training, [steps, skipped], false)?),
        "DEISMultistepScheduler" => Box::new(deis::Deis::new(config, training, [steps, skipped])?),
        "HeunDiscreteScheduler" => Box::new(SecondOrder::new(config, training, [steps, skipped], Second::AtEnd)?),
        "KDPM2DiscreteScheduler" => Box::new(SecondOrder::new(config, training, [steps, skipped], Second::Halfway)?),
        "KDPM2AncestralDiscreteScheduler" => {
            Box::new(SecondOrder::new(config, training, [steps, skipped], Second::Ancestral)?)
        }
        "LCMScheduler" => Box::new(lcm::Lcm::new(config, training, steps, strength)?),
        "PNDMScheduler" => Box::new(pndm::Pndm::new(config, training, steps, skipped)?),
        "TCDScheduler" => Box::new(tcd::Tcd::new(config, training, steps, strength)?),
        "UniPCMultistepScheduler" => Box::new(unipc::UniPc::new(config, training, [steps, skipped])?),
        _ => {
            let known = "DDIMScheduler, DEISMultistepScheduler, DPMSolverMultistepScheduler, DPMSolverSinglestepScheduler, EulerAncestralDiscreteScheduler, \
                         EulerDiscreteScheduler, HeunDiscreteScheduler, KDPM2AncestralDiscreteScheduler, KDPM2DiscreteScheduler, LCMScheduler, \
                         PNDMScheduler, TCDScheduler";
            return Err(config.wrong("_class_name", &format!("{known} and UniPCMultistepScheduler are supported")));
        }
    })
}

impl Training {
    fn read(config: &Config, name: &str, clips: bool) -> Result<Self> {
        let none = serde_json::Value::Null;
        config.only("trained_betas", &none)?;
        config.only("thresholding", &json!(false))?;
        let steps = config.number_or("num_train_timesteps", 1000)?;
        if steps > MAX_STEPS {
            return Err(config.wrong("num_train_timesteps", "at most 10000 are supported"));
        }
        let is_distilled = DISTILLED.contains(&name);
        let (begin, end) = if is_distilled || TWICE.contains(&name) { (0.00085, 0.012) } else { (0.0001, 0.02) };
        let (begin, end) = (config.fraction("beta_start", begin)?, config.fraction("beta_end", end)?);
        let schedule = config.text("beta_schedule", if is_distilled { "scaled_linear" } else { "linear" })?;
        if !["linear", "scaled_linear", "squaredcos_cap_v2"].contains(&schedule) {
            return Err(config.wrong("beta_schedule", "linear, scaled_linear and squaredcos_cap_v2 are supported"));
        }
        if !(begin > 0.0 && begin <= end && end < 1.0) {
            return Err(config.wrong("beta_start", "0 < beta_start <= beta_end < 1 is needed"));
        }
        let line = |from: f64, to: f64, at: usize| (from + (to - from) * at as f64 / (steps.max(2) - 1) as f64) as f32;
        let beta = |at| match schedule {
            "linear" => line(begin, end, at),
            "scaled_linear" => line(begin.sqrt(), end.sqrt(), at).powi(2),
            _ => cosine_beta(at, steps),
        };
        let prediction = match config.text("prediction_type", "epsilon")? {
            "epsilon" => Prediction::Epsilon,
            "v_prediction" => Prediction::Velocity,
            "sample" => Prediction::Sample,
            _ => return Err(config.wrong("prediction_type", "epsilon, v_prediction and sample are supported")),
        };
        let mut alphas = products((0..steps).map(|at| 1.0 - beta(at)));
        if config.flag("rescale_betas_zero_snr", false)? {
            alphas = without_signal(&alphas);
            if name == "DDIMScheduler" || is_distilled {
                if prediction == Prediction::Epsilon {
                    return Err(config.wrong("prediction_type", "with rescale_betas_zero_snr, v_prediction is needed"));
                }
            } else {
                // The smallest positive 16-bit float, because other code divides by it.
                alphas[steps - 1] = 2_f64.powi(-24);
            }
        }
        let to_one = config.flag("set_alpha_to_one", name != "PNDMScheduler")?;
        let leads = is_distilled || ["DDIMScheduler", "PNDMScheduler"].contains(&name);
        let spacing = if leads { "leading" } else { "linspace" };
        Ok(Self {
            last_alpha: if to_one { 1.0 } else { alphas[0] },
            alphas,
            prediction,
            spacing: match config.text("timestep_spacing", spacing)? {
                "linspace" => Spacing::Linspace,
                "leading" => Spacing::Leading,
                "trailing" => Spacing::Trailing,
                _ => return Err(config.wrong("timestep_spacing", "linspace, leading and trailing are supported")),
            },
            offset: config.number_or_none("steps_offset")?,
            clip: if clips && config.flag("clip_sample", !is_distilled)? {
                Some(config.fraction("clip_sample_range", 1.0)?)
            } else {
                None
            },
        })
    }

    /// The picture's share of the variance at a training time step; before the first one, the share after the last
    /// step.
    fn alpha(&self, time: i64) -> f64 {
        usize::try_from(time).ok().map_or(self.last_alpha, |time| self.alphas[time.min(self.alphas.len() - 1)])
    }

    /// All time steps' noise levels, which rise.
    fn levels(&self) -> Vec<f64> {
        self.alphas.iter().map(|alpha| f64::from(level(*alpha) as f32)).collect()
    }

    /// The noise level at a time, interpolated between time steps.
    fn level_at(&self, time: f64) -> f64 {
        let [low, high] = [time.floor(), time.ceil()].map(|time| level(self.alpha(time as i64)));
        low + (high - low) * (time - time.floor())
    }

    /// The times, the latest first, for schedulers that can interpolate between training levels.
    fn level_times(&self, steps: usize) -> Vec<f64> {
        match self.spacing {
            Spacing::Linspace => {
                let ratio = (self.alphas.len() - 1) as f64 / (steps.max(2) - 1) as f64;
                (0..steps).rev().map(|at| ratio * at as f64).collect()
            }
            Spacing::Leading | Spacing::Trailing => self.times(steps).iter().map(|&time| time as f64).collect(),
        }
    }

    /// `steps` times and their noise levels, chosen by `levels`. `ends` maps the lowest and highest levels at even time
    /// steps to the ends to choose between.
    fn chosen(
        &self,
        levels: Levels,
        steps: usize,
        ends: impl Fn([f64; 2]) -> Result<[f64; 2]>,
    ) -> Result<(Vec<f64>, Vec<f64>)> {
        let times = self.level_times(steps);
        let sigmas: Vec<f64> = times.iter().map(|&time| self.level_at(time)).collect();
        Ok(match levels.between(ends([sigmas[steps - 1], sigmas[0]])?, steps) {
            Some(chosen) => (self.times_of(&chosen), chosen),
            None => (times, sigmas),
        })
    }

    /// The noise level after the last step. `usual` is the default for `final_sigmas_type`.
    fn last_level(&self, config: &Config, usual: &str) -> Result<f64> {
        match config.text("final_sigmas_type", usual)? {
            "zero" => Ok(0.0),
            "sigma_min" => Ok(level(self.alphas[0])),
            _ => Err(config.wrong("final_sigmas_type", "zero and sigma_min are supported")),
        }
    }

    fn times_of(&self, levels: &[f64]) -> Vec<f64> {
        let trained = self.levels();
        levels.iter().map(|level| time_of(*level, &trained)).collect()
    }

    /// Integer time steps, the latest (noisiest) first.
    fn times(&self, steps: usize) -> Vec<i64> {
        let all = self.alphas.len();
        let mut times: Vec<i64> = match self.spacing {
            Spacing::Linspace => {
                let line = |at: usize| (all - 1) as f64 * at as f64 / (steps.max(2) - 1) as f64;
                (0..steps).rev().map(|at| line(at).round_ties_even() as i64).collect()
            }
            Spacing::Leading => (0..steps).rev().map(|at| (at * (all / steps) + self.offset) as i64).collect(),
            Spacing::Trailing => {
                let ratio = all as f64 / steps as f64;
                (0..steps).map(|at| (all as f64 - ratio * at as f64).round_ties_even() as i64 - 1).collect()
            }
        };
        let last = (all - 1) as i64;
        times.iter_mut().for_each(|time| *time = (*time).clamp(0, last));
        times
    }

    /// The picture that the model's answer stands for.
    fn picture(&self, alpha: f64, answer: f64, sample: f64) -> f64 {
        let (signal, noise) = (alpha.sqrt(), (1.0 - alpha).sqrt());
        let picture = match self.prediction {
            Prediction::Epsilon => (sample - noise * answer) / signal,
            Prediction::Velocity => signal * sample - noise * answer,
            Prediction::Sample => answer,
        };
        self.clip.map_or(picture, |range| picture.clamp(-range, range))
    }

    /// The noise that the model's answer stands for.
    fn noise(&self, alpha: f64, answer: f64, sample: f64) -> f64 {
        let (signal, noise) = (alpha.sqrt(), (1.0 - alpha).sqrt());
        match self.prediction {
            Prediction::Epsilon => answer,
            Prediction::Velocity => signal * answer + noise * sample,
            Prediction::Sample => (sample - signal * answer) / noise,
        }
    }
}

/// The noise of step `at` of `steps`, if the signal falls as a squared cosine.
fn cosine_beta(at: usize, steps: usize) -> f32 {
    let signal = |at: usize| {
        let part = at as f64 / steps as f64;
        ((part + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2)
    };
    (1.0 - signal(at + 1) / signal(at)).min(0.999) as f32
}

/// Cumulative products, in 32 bits as in training.
fn products(factors: impl Iterator<Item = f32>) -> Vec<f64> {
    let mut product = 1.0;
    let next = |factor| {
        product *= f64::from(factor);
        f64::from(product as f32)
    };
    factors.map(next).collect()
}

/// This schedule, rescaled so that nothing of the picture is left at its end (arXiv 2305.08891), in 32 bits as above.
fn without_signal(alphas: &[f64]) -> Vec<f64> {
    let signals: Vec<f32> = alphas.iter().map(|alpha| (*alpha as f32).sqrt()).collect();
    let (first, last) = (signals[0], signals[signals.len() - 1]);
    let scale = first / (first - last);
    let alphas: Vec<f32> = signals.iter().map(|signal| ((signal - last) * scale).powi(2)).collect();
    let factors = alphas.iter().enumerate().map(|(at, alpha)| if at == 0 { *alpha } else { alpha / alphas[at - 1] });
    products(factors.map(|factor| 1.0 - (1.0 - factor)))
}
