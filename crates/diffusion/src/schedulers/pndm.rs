//! Pseudo numerical methods for diffusion models, with linear multisteps only.

use std::collections::VecDeque;

use super::whole::WholeTimes;
use super::{Prediction, Scheduler, Training, Trajectory};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

#[derive(Debug)]
pub(super) struct Pndm {
    times: WholeTimes,
    ratio: i64,
    /// The latest answers, the newest first.
    answers: VecDeque<Vec<f32>>,
    /// The sample before the first step, which is taken twice.
    first: Vec<f32>,
}

impl Pndm {
    pub(super) fn new(config: &Config, training: Training, steps: usize, skipped: usize) -> Result<Self> {
        if !config.flag("skip_prk_steps", false)? {
            return Err(config.wrong("skip_prk_steps", "only true is supported"));
        }
        if training.prediction == Prediction::Sample {
            return Err(config.wrong("prediction_type", "epsilon and v_prediction are supported"));
        }
        let mut whole = training.times(steps);
        if let Some(&second) = whole.get(1) {
            whole.insert(1, second);
        }
        whole.drain(..skipped);
        let ratio = (training.alphas.len() / steps) as i64;
        let times = WholeTimes::new(training, whole);
        Ok(Self { times, ratio, answers: VecDeque::new(), first: Vec::new() })
    }

    /// A linear combination of the latest answers.
    fn combined(&self, at: usize) -> f64 {
        let answer = |age: usize| f64::from(self.answers[age][at]);
        match self.answers.len() {
            1 => answer(0),
            2 => (3.0 * answer(0) - answer(1)) / 2.0,
            3 => (23.0 * answer(0) - 16.0 * answer(1) + 5.0 * answer(2)) / 12.0,
            _ => (55.0 * answer(0) - 59.0 * answer(1) + 37.0 * answer(2) - 9.0 * answer(3)) / 24.0,
        }
    }
}

impl Scheduler for Pndm {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.times
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], _: &mut Noise) {
        let (mut time, mut next) = (self.times.whole[step], self.times.whole[step] - self.ratio);
        // The second step repeats the first one with the mean of both answers.
        let again = step == 1;
        if again {
            (time, next) = (time + self.ratio, time);
            sample.copy_from_slice(&self.first);
        } else {
            self.answers.truncate(3);
            self.answers.push_front(answer.to_vec());
        }
        if step == 0 {
            self.first = sample.to_vec();
        }
        let (alpha, after) = (self.times.training.alpha(time), self.times.training.alpha(next));
        let weight = (after / alpha).sqrt();
        let divisor = alpha * (1.0 - after).sqrt() + (alpha * (1.0 - alpha) * after).sqrt();
        for (at, x) in sample.iter_mut().enumerate() {
            let old = f64::from(*x);
            let mut answer = if again { (f64::from(answer[at]) + self.combined(at)) / 2.0 } else { self.combined(at) };
            if self.times.training.prediction == Prediction::Velocity {
                answer = alpha.sqrt() * answer + (1.0 - alpha).sqrt() * old;
            }
            *x = (weight * old - (after - alpha) * answer / divisor) as f32;
        }
    }
}
