//! DEIS (arXiv 2204.13902), which extrapolates the noise of previous steps, in the logarithm of the noise level.

use std::collections::VecDeque;

use super::course::{Course, order, parts};
use super::{Scheduler, Training, Trajectory};
use crate::Result;
use crate::config::Config;
use crate::noise::Noise;

#[derive(Debug)]
pub(super) struct Deis {
    course: Course,
    order: usize,
    lowers_final: bool,
    /// The latest noise predictions, the newest first.
    noises: VecDeque<Vec<f32>>,
}

impl Deis {
    pub(super) fn new(config: &Config, training: Training, steps: [usize; 2]) -> Result<Self> {
        config.one_of("algorithm_type", &["deis", "dpmsolver", "dpmsolver++"])?;
        config.one_of("solver_type", &["logrho", "midpoint", "heun", "bh1", "bh2"])?;
        let order = order(config)?;
        let course = Course::read(config, &training, steps, "sigma_min")?;
        Ok(Self { course, order, lowers_final: config.flag("lower_order_final", true)?, noises: VecDeque::new() })
    }

    fn order(&self, at: usize) -> usize {
        let lowers = self.lowers_final && self.course.is_short();
        let most = match self.course.sigmas.len() - 1 - at {
            left @ 1..=2 if lowers => left.min(self.order),
            _ => self.order,
        };
        most.min(self.noises.len())
    }

    /// The weight of the noise predicted `age` steps ago: the integral, from this level to the next, of the Lagrange
    /// polynomial that is 1 at that noise's level and 0 at the other noises' levels.
    fn weight(&self, at: usize, age: usize, order: usize) -> f64 {
        let logarithm = |age: usize| self.course.sigmas[at - age].ln();
        let others: Vec<f64> = (0..order).filter(|other| *other != age).map(logarithm).collect();
        let integral = |level: f64| {
            let x = level.ln();
            level
                * match others[..] {
                    [] => 1.0,
                    [c] => x - 1.0 - c,
                    [c, d, ..] => c * d - (c + d) * (x - 1.0) + x * x - 2.0 * x + 2.0,
                }
        };
        let scale: f64 = others.iter().map(|other| logarithm(age) - other).product();
        (integral(self.course.sigmas[at + 1]) - integral(self.course.sigmas[at])) / scale
    }
}

impl Scheduler for Deis {
    fn trajectory(&self) -> &dyn Trajectory {
        &self.course
    }

    fn step(&mut self, step: usize, answer: &[f32], sample: &mut [f32], _: &mut Noise) {
        let at = self.course.skipped + step;
        let ([from, deviation], [to, _]) = (parts(self.course.sigmas[at]), parts(self.course.sigmas[at + 1]));
        let pictures = self.course.picture(step, answer, sample);
        let noise = |(x, picture): (&f32, f32)| ((f64::from(*x) - from * f64::from(picture)) / deviation) as f32;
        self.noises.truncate(self.order - 1);
        self.noises.push_front(sample.iter().zip(pictures).map(noise).collect());
        let order = self.order(at);
        let weights: Vec<f64> = (0..order).map(|age| self.weight(at, age, order)).collect();
        for (number, x) in sample.iter_mut().enumerate() {
            let noises = self.noises.iter().map(|noise| f64::from(noise[number]));
            let change: f64 = noises.zip(&weights).map(|(noise, weight)| noise * weight).sum();
            *x = (to * (f64::from(*x) / from + change)) as f32;
        }
    }
}
