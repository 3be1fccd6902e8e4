//! DPM-Solver++ (arXiv 2211.01095), which extrapolates from the pictures that the last steps foresaw; also with new noise in
//! each step (SDE).

use std::collections::VecDeque;

use serde_json::Value;

use super::course::{Course, parts};
use super::{Prediction, Scheduler, Training};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

/// With fewer steps than this, the last ones are of a lower order.
const FEW: usize = 15;

#[derive(Debug)]
pub(super) struct Dpm {
    times: Vec<f32>,
    /// Deviations of the noise, one more than there are steps, those that are skipped included.
    sigmas: Vec<f64>,
    skipped: usize,
    prediction: Prediction,
    order: usize,
    has_noise: bool,
    is_heun: bool,
    /// The last steps are of a lower order if there are few.
    lowers_final: bool,
    /// The very last step is of the first order.
    ends_with_euler: bool,
    /// The latest pictures that were foreseen, the newest first.
    pictures: VecDeque<Vec<f32>>,
}

impl Dpm {
    pub(super) fn new(config: &Config, training: Training, [steps, skipped]: [usize; 2]) -> Result<Self> {
        config.only("variance_type", &Value::Null)?;
        let order = config.number_or("solver_order", 2)?;
        if order > 3 {
            return Err(config.wrong("solver_order", "1, 2 and 3 are supported"));
        }
        let has_noise = match config.text("algorithm_type", "dpmsolver++")? {
            "dpmsolver++" | "deis" => false,
            "sde-dpmsolver++" => true,
            _ => return Err(config.wrong("algorithm_type", "dpmsolver++ and sde-dpmsolver++ are supported")),
        };
        let is_heun = match config.text("solver_type", "midpoint")? {
            "midpoint" | "logrho" | "bh1" | "bh2" => false,
            "heun" => true,
            _ => return Err(config.wrong("solver_type", "midpoint and heun are supported")),
        };
        let Course { times, sigmas } = Course::read(config, &training, steps, "zero")?;
        let ends_at_zero = sigmas[steps] == 0.0;
        Ok(Self {
            times: times[skipped..].to_vec(),
            sigmas,
            skipped,
            prediction: training.prediction,
            order,
            has_noise,
            is_heun,
            lowers_final: config.flag("lower_order_final", true)?,
            ends_with_euler: config.flag("euler_at_final", false)? || ends_at_zero,
            pictures: VecDeque::new(),
        })
    }

    /// The order of a step, of all steps, for which so many pictures have been foreseen.
    fn order(&self, at: usize) -> usize {
        let all = self.sigmas.len() - 1;
        let lowers = self.lowers_final && all < FEW;
        let most = match all - at {
            1 if self.ends_with_euler || lowers => 1,
            2 if lowers => 2,
            _ => self.order,
        };
        most.min(self.pictures.len())
    }

    /// The half of the logarithm of signal to noise before a step.
    fn lambda(&self, at: usize) -> f64 {
        -self.sigmas[at].ln()
    }
}

impl Scheduler for Dpm {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn noisy(&self, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        let [signal, level] = parts(self.sigmas[self.skipped]).map(|part| part as f32);
        picture.iter().zip(noise).map(|(x, noise)| signal * x + level * noise).collect()
    }

    fn picture(&self, step: usize, answer: &[f32], sample: &[f32]) -> Vec<f32> {
        self.prediction.pictures(self.sigmas[self.skipped + step], answer, sample)
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        let at = self.skipped + step;
        let foreseen = self.picture(step, answer, sample);
        self.pictures.truncate(self.order - 1);
        self.pictures.push_front(foreseen);
        let order = self.order(at);
        let ([_, from], [signal, to]) = (parts(self.sigmas[at]), parts(self.sigmas[at + 1]));
        let length = self.lambda(at + 1) - self.lambda(at);
        // With noise, a step goes twice as far down, and up again.
        let way = if self.has_noise { 2.0 * length } else { length };
        let part = 1.0 - (-way).exp();
        let old = to / from * if self.has_noise { (-length).exp() } else { 1.0 };
        let slope = if order == 2 && !self.is_heun { part / 2.0 } else { 1.0 - part / way };
        let bend = (part - way) / (way * way) + if self.has_noise { -0.5 } else { 0.5 };
        let ratio = |age: usize| (self.lambda(at - age) - self.lambda(at - age - 1)) / length;
        let [first, second] = [1, 2].map(|least| if order > least { ratio(least - 1) } else { 1.0 });
        let random = if self.has_noise { noise.normal(answer.len()) } else { vec![0.0; answer.len()] };
        let spread = if self.has_noise { to * part.sqrt() } else { 0.0 };
        for (number, x) in sample.iter_mut().enumerate() {
            let picture = |age: usize| f64::from(self.pictures[age][number]);
            let mut next = old * f64::from(*x) + signal * part * picture(0) + spread * f64::from(random[number]);
            if order > 1 {
                let mut change = (picture(0) - picture(1)) / first;
                if order > 2 {
                    let difference = change - (picture(1) - picture(2)) / second;
                    change += first / (first + second) * difference;
                    next += signal * bend * difference / (first + second);
                }
                next += signal * slope * change;
            }
            *x = next as f32;
        }
    }
}
