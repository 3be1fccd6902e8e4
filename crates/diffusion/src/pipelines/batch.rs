//! Renders batches: pictures of the same size that take each step together. A single picture is a batch of one.

use tintype_engine::{CancellationToken, Picture};

use super::{Denoiser, Embedding, Guide, Latent, LatentMask, Order, Pipeline, Settings, Step, finite, stop_if};
use crate::noise::Noise;
use crate::schedulers::Trajectory;
use crate::{Error, Result};

impl Pipeline {
    /// Makes a batch of pictures. Each is the same as if rendered alone, except for rounding. `progress` is called
    /// after each step, which is one step of all pictures.
    ///
    /// # Errors
    /// If the orders suit neither each other nor the model, the runtime fails, the render is cancelled, or a result
    /// isn't a picture. If one picture fails, all fail.
    pub fn render_batch(
        &mut self,
        orders: &[Order<'_>],
        settings: &Settings,
        mut progress: impl FnMut(&Step<'_>),
        cancel: &CancellationToken,
    ) -> Result<Vec<Picture>> {
        let Some(first) = orders.first() else { return Ok(Vec::new()) };
        let shape = self.latent_shape(first.width, first.height)?;
        self.check(orders)?;
        let prompts: Vec<_> = orders.iter().map(|order| order.prompt).collect();
        let negative = self.asks_twice(settings.guidance).then_some(settings.negative.as_str());
        let (prompts, negative) = self.embed_all(&prompts, negative)?;
        stop_if(cancel)?;
        let mut references = Vec::new();
        for reference in first.references {
            stop_if(cancel)?;
            references.push(self.look(reference, shape)?);
        }
        stop_if(cancel)?;
        let mask = self.look_at_mask(first, shape)?;
        stop_if(cancel)?;
        let guide = Guide {
            prompt: Embedding::join(&prompts),
            strength: settings.strength,
            negative: negative.map(|negative| Embedding::join(&vec![negative; orders.len()])),
            guidance: settings.guidance,
            references,
            mask,
        };
        let seeds: Vec<_> = orders.iter().map(|order| order.seed).collect();
        let latents = self.denoise_batch(shape, &seeds, settings.steps, &guide, |step, _| {
            progress(step);
            stop_if(cancel)
        })?;
        let mut pictures = Vec::new();
        for latent in &latents {
            pictures.push(self.decode(latent)?);
            stop_if(cancel)?;
        }
        Ok(pictures)
    }

    /// Checks that these orders can form a batch.
    fn check(&self, orders: &[Order<'_>]) -> Result<()> {
        orders.iter().try_for_each(|order| self.check_mask(order))?;
        let (most, batch) = (self.traits().references, self.traits().batch);
        if orders.iter().any(|order| order.references.len() > most) {
            return Err(Error::Order(format!("the model takes at most {most} reference pictures")));
        }
        let alike = |order: &Order<'_>| (order.width, order.height) == (orders[0].width, orders[0].height);
        let plain = |order: &Order<'_>| order.references.is_empty();
        match orders {
            [_] => Ok(()),
            _ if orders.len() > batch => {
                Err(Error::Order(format!("the model makes at most {batch} pictures at a time")))
            }
            _ if orders.iter().all(|order| alike(order) && plain(order)) => Ok(()),
            _ => Err(Error::Order("only pictures of one size and without references are made at a time".into())),
        }
    }

    /// Makes a latent picture for each seed. `after` sees each step's results and can stop the render with an error.
    pub(super) fn denoise_batch(
        &self,
        shape: [usize; 3],
        seeds: &[u64],
        steps: usize,
        guide: &Guide,
        mut after: impl FnMut(&Step<'_>, &[Vec<f32>]) -> Result<()>,
    ) -> Result<Vec<Latent>> {
        let reference = self.beginning(guide);
        // Each picture has its own scheduler, which remembers its steps.
        let scheduler = || self.family.scheduler(steps, shape, reference.map(|_| guide.strength));
        let mut schedulers = seeds.iter().map(|_| scheduler()).collect::<Result<Vec<_>>>()?;
        let mut noises: Vec<_> = seeds.iter().map(|seed| Noise::new(*seed)).collect();
        let begins = schedulers.iter().zip(&mut noises);
        let begins = begins.map(|(scheduler, noise)| self.begin(scheduler.trajectory(), shape, guide, noise));
        let (mut samples, rests): (Vec<_>, Vec<_>) = begins.unzip();
        let both = self.joined(guide);
        let batch = if both.is_some() { 2 * seeds.len() } else { seeds.len() };
        let denoiser = self.family.denoiser(&self.sessions, batch, shape, both.as_ref().unwrap_or(guide))?;
        let times = scheduler()?.trajectory().times().to_vec();
        for (step, time) in times.iter().enumerate() {
            let mut inputs = Vec::new();
            for ((scheduler, sample), rest) in schedulers.iter().zip(&samples).zip(&rests) {
                inputs.extend(scheduler.trajectory().scale(step, sample));
                inputs.extend(&rest.beside);
            }
            let answers = ask(&*denoiser, inputs, *time, guide, both.as_ref())?;
            let each = shape.iter().product();
            let before = samples.clone();
            for (at, answer) in answers.chunks_exact(each).enumerate() {
                schedulers[at].step(step, answer, &mut samples[at], &mut noises[at]);
                finite(&samples[at], "the model gave numbers that are not finite")?;
                if let (Some(mask), Some(kept)) = (&guide.mask, &rests[at].kept) {
                    let next = (step + 1 < times.len()).then_some(step + 1);
                    kept.restore(
                        &mut samples[at],
                        &mask.repaints,
                        next.map(|next| (schedulers[at].trajectory(), next)),
                    );
                }
            }
            let preview = |picture: usize| {
                let answer = answers.chunks_exact(each).nth(picture)?;
                let numbers = schedulers[picture].trajectory().picture(step, answer, &before[picture]);
                self.sketcher.as_ref()?.sketch(&*self.family, &self.sessions, &Latent { shape, numbers })
            };
            after(&Step { done: step + 1, of: times.len(), preview: &preview }, &samples)?;
        }
        Ok(samples.into_iter().map(|numbers| Latent { shape, numbers }).collect())
    }

    /// The guide with all prompts followed by all negative prompts, if the model is to be asked for both in one run.
    /// That keeps a GPU busier; a processor would only need more memory.
    fn joined(&self, guide: &Guide) -> Option<Guide> {
        let negative = guide.negative.as_ref()?;
        let alike = negative.states.len() == guide.prompt.states.len();
        let joins = self.sessions.keeps() && self.traits().batch > 1 && alike;
        let join = || Embedding::join(&[guide.prompt.clone(), negative.clone()]);
        joins.then(|| Guide { prompt: join(), ..guide.clone() })
    }

    fn beginning<'a>(&self, guide: &'a Guide) -> Option<&'a Latent> {
        guide.references.first().filter(|_| self.traits().begins_with_reference)
    }

    /// The first sample of a picture, and what a mask keeps. Noise is drawn in the same order as in `diffusers`, so
    /// that a seed makes the same picture.
    fn begin(
        &self,
        trajectory: &dyn Trajectory,
        shape: [usize; 3],
        guide: &Guide,
        noise: &mut Noise,
    ) -> (Vec<f32>, Rest) {
        let reference = self.beginning(guide);
        let is_all_noise = reference.is_none() || guide.mask.is_some() && guide.strength >= 1.0;
        let sees_rest = guide.mask.as_ref().is_some_and(|mask| mask.rest.is_some());
        let reference = reference.filter(|_| !(is_all_noise && sees_rest));
        let picture = reference.map(|reference| self.family.first(reference, noise));
        let begin = noise.normal(shape.iter().product());
        let sample = match &picture {
            Some(picture) if !is_all_noise => trajectory.noisy_at(0, picture, &begin),
            _ => begin.iter().map(|x| x * trajectory.initial_scale()).collect(),
        };
        let beside = self.beside(guide, noise);
        // A model that sees the kept part reproduces it itself.
        let picture = picture.filter(|_| guide.mask.is_some() && !sees_rest);
        (sample, Rest { beside, kept: picture.map(|picture| Kept { picture, noise: begin }) })
    }

    /// What the model sees in addition to a sample: the mask and the kept part of the picture. Empty for most models.
    pub(super) fn beside(&self, guide: &Guide, noise: &mut Noise) -> Vec<f32> {
        match (&guide.mask, self.beginning(guide)) {
            (Some(mask @ LatentMask { rest: Some(rest), .. }), _) => {
                [mask.channel(), self.family.first(rest, noise)].concat()
            }
            (Some(_), Some(reference)) => {
                // `diffusers` draws the kept part even if no model sees it, before the noise of later steps.
                self.family.first(reference, noise);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

/// The model's answers to samples, with and without the prompt if both are needed: in a single run if `both` is given.
fn ask(
    denoiser: &dyn Denoiser,
    mut samples: Vec<f32>,
    time: f32,
    guide: &Guide,
    both: Option<&Guide>,
) -> Result<Vec<f32>> {
    let (mut answers, without) = match (both, &guide.negative) {
        (Some(both), _) => {
            samples.extend_from_within(..);
            let mut answers = denoiser.predict(&samples, time, &both.prompt)?;
            let without = answers.split_off(answers.len() / 2);
            (answers, without)
        }
        (None, Some(negative)) => {
            let answers = denoiser.predict(&samples, time, &guide.prompt)?;
            (answers, denoiser.predict(&samples, time, negative)?)
        }
        (None, None) => return denoiser.predict(&samples, time, &guide.prompt),
    };
    for (with, without) in answers.iter_mut().zip(without) {
        *with = without + guide.guidance * (*with - without);
    }
    Ok(answers)
}

/// The kept part of a picture.
struct Rest {
    /// What the model sees in addition to each sample.
    beside: Vec<f32>,
    /// What a mask keeps, if the model doesn't see it.
    kept: Option<Kept>,
}

/// A partly kept picture, and the noise to add to it.
struct Kept {
    picture: Vec<f32>,
    noise: Vec<f32>,
}

impl Kept {
    /// Restores the kept part of the picture in a sample, with the next step's noise; without noise after the last
    /// step.
    fn restore(&self, sample: &mut [f32], repaints: &[bool], next: Option<(&dyn Trajectory, usize)>) {
        let kept = match next {
            Some((trajectory, step)) => &trajectory.noisy_at(step, &self.picture, &self.noise),
            None => &self.picture,
        };
        let repaints = repaints.iter().cycle();
        for ((x, kept), _) in sample.iter_mut().zip(kept).zip(repaints).filter(|(_, repaints)| !**repaints) {
            *x = *kept;
        }
    }
}
