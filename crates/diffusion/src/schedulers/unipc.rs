//! UniPC (arXiv 2302.04867): predicts the next sample from the pictures predicted in previous steps, and corrects it
//! with the model's answer there.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::course::{Course, order, parts};
use super::{Scheduler, Training, Trajectory};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

#[derive(Debug)]
pub(super) struct UniPc {
    course: Course,
    order: usize,
    /// Whether the paper's function B is h itself, rather than e^h - 1.
    is_first: bool,
    lowers_final: bool,
    /// Steps after which the sample is not corrected.
    uncorrected: Vec<u64>,
    /// The latest predicted pictures, the newest first.
    pictures: VecDeque<Vec<f32>>,
    /// The sample before the last step, and the order of that step.
    last: Option<(Vec<f32>, usize)>,
}

impl UniPc {
    pub(super) fn new(config: &Config, training: Training, [steps, skipped]: [usize; 2]) -> Result<Self> {
        config.only("predict_x0", &json!(true))?;
        config.only("solver_p", &Value::Null)?;
        let order = order(config)?;
        let is_first = match config.text("solver_type", "bh2")? {
            "bh1" => true,
            "bh2" | "midpoint" | "heun" | "logrho" => false,
            _ => return Err(config.wrong("solver_type", "bh1 and bh2 are supported")),
        };
        let course = Course::read(config, &training, [steps, skipped], "zero")?;
        let lowers_final = config.flag("lower_order_final", true)?;
        // The log signal-to-noise ratio is infinite there.
        let ends_at_zero = course.sigmas[steps] == 0.0;
        if ends_at_zero && is_first {
            return Err(config.wrong("solver_type", "with final_sigmas_type zero, only bh2 works"));
        } else if ends_at_zero && !lowers_final && order > 1 {
            return Err(config.wrong("lower_order_final", "with final_sigmas_type zero, only true works"));
        }
        let uncorrected = match config.get("disable_corrector") {
            None => Vec::new(),
            Some(listed) => {
                let steps = listed.as_array().and_then(|listed| listed.iter().map(Value::as_u64).collect());
                steps.ok_or_else(|| config.wrong("disable_corrector", "a list of steps is needed"))?
            }
        };
        Ok(Self { course, order, is_first, lowers_final, uncorrected, pictures: VecDeque::new(), last: None })
    }

    /// Takes the step after `from`. If the picture predicted after it is known, it corrects the sample.
    fn go(&self, from: usize, order: usize, sample: &[f32], after: Option<&[f32]>) -> Vec<f32> {
        let ([_, before], [signal, noise]) = (parts(self.course.sigmas[from]), parts(self.course.sigmas[from + 1]));
        let length = self.course.lambda(from + 1) - self.course.lambda(from);
        let first = (-length).exp_m1();
        let scale = if self.is_first { -length } else { first };
        let mut ratios: Vec<f64> =
            (1..order).map(|age| (self.course.lambda(from - age) - self.course.lambda(from)) / length).collect();
        let weights = match (after, order) {
            (None, 1) => Vec::new(),
            (None, 2) | (Some(_), 1) => vec![0.5],
            (None, _) => weights(&ratios, -length, scale),
            (Some(_), _) => weights(&[&ratios[..], &[1.0]].concat(), -length, scale),
        };
        ratios.push(1.0);
        let mut next = Vec::with_capacity(sample.len());
        for (number, x) in sample.iter().enumerate() {
            let newest = f64::from(self.pictures[0][number]);
            let other = |age: usize| match after {
                Some(after) if age == order => f64::from(after[number]),
                _ => f64::from(self.pictures[age][number]),
            };
            let changes = weights.iter().zip(1..).map(|(weight, age)| weight * (other(age) - newest) / ratios[age - 1]);
            let change: f64 = changes.sum();
            next.push((noise / before * f64::from(*x) - signal * first * newest - signal * scale * change) as f32);
        }
        next
    }
}

/// The weights of the differences to other pictures, which lie at these ratios of a step's length: solves one equation
/// per picture by Gaussian elimination.
fn weights(ratios: &[f64], length: f64, scale: f64) -> Vec<f64> {
    let (count, mut factorial) = (ratios.len(), 1.0);
    let mut phi = length.exp_m1() / length - 1.0;
    let mut rows: Vec<Vec<f64>> = Vec::new();
    for power in 0..count {
        let row = ratios.iter().map(|ratio| ratio.powi(power as i32));
        rows.push(row.chain([phi * factorial / scale]).collect());
        factorial *= power as f64 + 2.0;
        phi = phi / length - 1.0 / factorial;
    }
    for pivot in 0..count {
        let divisor = rows[pivot][pivot];
        rows[pivot].iter_mut().for_each(|x| *x /= divisor);
        let reference = rows[pivot].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != pivot) {
            let factor = row[pivot];
            row.iter_mut().zip(&reference).for_each(|(x, y)| *x -= factor * y);
        }
    }
    rows.into_iter().filter_map(|row| row.last().copied()).collect()
}

impl Scheduler for UniPc {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.course
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], _: &mut Noise) {
        let at = self.course.skipped + step;
        let foreseen = self.course.picture(step, answer, sample);
        let last = self.last.take().filter(|_| !self.uncorrected.contains(&(at as u64 - 1)));
        if let Some((before, order)) = last {
            sample.copy_from_slice(&self.go(at - 1, order, &before, Some(&foreseen)));
        }
        self.pictures.truncate(self.order - 1);
        self.pictures.push_front(foreseen);
        let left = self.course.sigmas.len() - 1 - at;
        let most = if self.lowers_final { self.order.min(left) } else { self.order };
        let order = most.min(self.pictures.len());
        let next = self.go(at, order, sample, None);
        self.last = Some((sample.to_vec(), order));
        sample.copy_from_slice(&next);
    }
}
