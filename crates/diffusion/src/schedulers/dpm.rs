//! DPM-Solver++ (arXiv 2211.01095), which extrapolates from the pictures predicted in previous steps (multistep) or in
//! the same group (single-step); optionally with new noise in each step (SDE).

use std::collections::VecDeque;

use serde_json::Value;

use super::course::{Course, order, parts};
use super::{Scheduler, Training, Trajectory};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

#[derive(Debug)]
pub(super) struct Dpm {
    course: Course,
    order: usize,
    has_noise: bool,
    is_heun: bool,
    /// If there are few steps, the last ones have a lower order.
    lowers_final: bool,
    /// The very last step has order 1.
    ends_with_euler: bool,
    /// The latest predicted pictures, the newest first.
    pictures: VecDeque<Vec<f32>>,
    /// Set if steps are taken in groups.
    groups: Option<Groups>,
}

/// Groups of steps (the single-step solver). All steps of a group start from its first sample, and each goes further.
#[derive(Debug)]
struct Groups {
    /// Each step's order, which is also its number within its group.
    orders: Vec<usize>,
    /// The sample before the first step of the group.
    first: Vec<f32>,
}

impl Groups {
    fn read(config: &Config, order: usize, steps: usize, ends_at_zero: bool) -> Result<Self> {
        let lowers = config.flag("lower_order_final", false)? && steps.is_multiple_of(order);
        let mut orders: Vec<usize> = (0..steps).map(|at| at % order + 1).collect();
        if lowers || ends_at_zero {
            // The last group is split, so that the very last step has order 1.
            orders[steps - 1] = 1;
        }
        Ok(Self { orders, first: Vec::new() })
    }
}

impl Dpm {
    pub(super) fn new(
        config: &Config,
        training: Training,
        [steps, skipped]: [usize; 2],
        in_groups: bool,
    ) -> Result<Self> {
        config.only("variance_type", &Value::Null)?;
        let order = order(config)?;
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
        let course = Course::read(config, &training, [steps, skipped], "zero")?;
        let ends_at_zero = course.sigmas[steps] == 0.0;
        let groups = in_groups.then(|| Groups::read(config, order, steps, ends_at_zero)).transpose()?;
        Ok(Self {
            course,
            order,
            has_noise,
            is_heun,
            lowers_final: config.flag("lower_order_final", true)?,
            ends_with_euler: config.flag("euler_at_final", false)? || ends_at_zero,
            pictures: VecDeque::new(),
            groups,
        })
    }

    /// The order of step `at`, counting skipped steps. It is limited by the number of pictures predicted so far.
    fn order(&self, at: usize) -> usize {
        if let Some(groups) = &self.groups {
            return groups.orders[at].min(self.pictures.len());
        }
        let lowers = self.lowers_final && self.course.is_short();
        let most = match self.course.sigmas.len() - 1 - at {
            1 if self.ends_with_euler || lowers => 1,
            2 if lowers => 2,
            _ => self.order,
        };
        most.min(self.pictures.len())
    }
}

impl Scheduler for Dpm {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.course
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], noise: &mut Noise) {
        let at = self.course.skipped + step;
        let foreseen = self.course.picture(step, answer, sample);
        self.pictures.truncate(self.order - 1);
        self.pictures.push_front(foreseen);
        let order = self.order(at);
        let coefficients = StepCoefficients::new(self, at, order);
        if order == 1
            && let Some(groups) = &mut self.groups
        {
            groups.first = sample.to_vec();
        }
        let random = if self.has_noise { noise.normal(answer.len()) } else { vec![0.0; answer.len()] };
        for (number, x) in sample.iter_mut().enumerate() {
            let from = self.groups.as_ref().map_or(*x, |groups| groups.first[number]);
            let next = coefficients.next(f64::from(from), |age| f64::from(self.pictures[age][number]));
            *x = (next + coefficients.spread * f64::from(random[number])) as f32;
        }
    }
}

/// A step's coefficients, which are the same for the whole sample.
#[derive(Debug)]
struct StepCoefficients {
    /// Factors of the sample, the starting picture, and its first and second differences.
    factors: [f64; 4],
    /// The new noise's deviation.
    spread: f64,
    /// How many steps ago the step starts.
    begin: usize,
    /// The other pictures used: their ages, and their distances in step lengths.
    others: Vec<(usize, f64)>,
    /// Of two other pictures, use only the furthest.
    is_straight: bool,
}

impl StepCoefficients {
    fn new(dpm: &Dpm, at: usize, order: usize) -> Self {
        let begin = if dpm.groups.is_some() { order - 1 } else { 0 };
        let ([_, from], [signal, to]) = (parts(dpm.course.sigmas[at - begin]), parts(dpm.course.sigmas[at + 1]));
        let length = dpm.course.lambda(at + 1) - dpm.course.lambda(at - begin);
        // With noise, a step goes twice as far down, then up again.
        let way = if dpm.has_noise { 2.0 * length } else { length };
        let part = 1.0 - (-way).exp();
        let old = to / from * if dpm.has_noise { (-length).exp() } else { 1.0 };
        let slope = if order == 2 && !dpm.is_heun { part / 2.0 } else { 1.0 - part / way };
        let bend = (part - way) / (way * way) + if dpm.has_noise { -0.5 } else { 0.5 };
        // `diffusers` counts the bend twice for grouped steps, and our pictures must equal its pictures.
        let bend = if dpm.groups.is_some() { 2.0 * bend } else { bend };
        let away = |age: usize| (dpm.course.lambda(at - age) - dpm.course.lambda(at - begin)) / length;
        let mut others: Vec<_> = (0..order).filter(|age| *age != begin).map(|age| (age, away(age))).collect();
        others.sort_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()));
        Self {
            factors: [old, signal * part, signal * slope, signal * bend],
            spread: if dpm.has_noise { to * part.sqrt() } else { 0.0 },
            begin,
            others,
            is_straight: dpm.groups.is_some() && !dpm.is_heun,
        }
    }

    /// The next number, from the one at the start and the pictures by age.
    fn next(&self, from: f64, picture: impl Fn(usize) -> f64) -> f64 {
        let begin = picture(self.begin);
        let rise = |(age, away): (usize, f64)| (picture(age) - begin) / away;
        let (change, bend) = match self.others[..] {
            [] => (0.0, 0.0),
            [one] => (rise(one), 0.0),
            [_, far, ..] if self.is_straight => (rise(far), 0.0),
            [near, far, ..] => {
                let ((near, a), (far, b)) = ((rise(near), near.1), (rise(far), far.1));
                ((b * near - a * far) / (b - a), (far - near) / (b - a))
            }
        };
        // In the last step the length can be infinite, and so can factors that don't matter then.
        let [old, level, slope, curve] = self.factors;
        let bent =
            if self.others.is_empty() { 0.0 } else { slope * change + if bend == 0.0 { 0.0 } else { curve * bend } };
        old * from + level * begin + bent
    }
}
