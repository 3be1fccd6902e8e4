//! The render of a batch: pictures of one size that take each step together. A single picture is a batch of one.

use tintype_engine::{CancellationToken, Picture};

use super::{Embedding, Guide, Latent, Order, Pipeline, Settings, Step, finite, stop_if};
use crate::noise::Noise;
use crate::{Error, Result};

impl Pipeline {
    /// Makes a batch of pictures. Each is the picture that it would be alone, but for the rounding of single numbers.
    /// `progress` is called for every finished step, which is one of all pictures.
    ///
    /// # Errors
    /// If the orders suit neither each other nor the model, the runtime fails, the render is cancelled, or a result is no
    /// picture. One picture that fails ends all.
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
        let prompts = orders.iter().map(|order| self.embed(order.prompt)).collect::<Result<Vec<_>>>()?;
        stop_if(cancel)?;
        let negative = match self.asks_twice(settings.guidance) {
            true => Some(self.embed_negative(&settings.negative, &prompts[0])?),
            false => None,
        };
        let mut references = Vec::new();
        for reference in first.references {
            stop_if(cancel)?;
            references.push(self.look(reference, shape)?);
        }
        stop_if(cancel)?;
        let guide = Guide {
            prompt: Embedding::join(&prompts),
            strength: settings.strength,
            negative: negative.map(|negative| Embedding::join(&vec![negative; orders.len()])),
            guidance: settings.guidance,
            references,
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

    /// Whether these orders can be one batch.
    fn check(&self, orders: &[Order<'_>]) -> Result<()> {
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

    /// Makes a latent picture of each seed. `after` sees the results of each step and can end the work with an error.
    pub(super) fn denoise_batch(
        &self,
        shape: [usize; 3],
        seeds: &[u64],
        steps: usize,
        guide: &Guide,
        mut after: impl FnMut(&Step<'_>, &[Vec<f32>]) -> Result<()>,
    ) -> Result<Vec<Latent>> {
        let reference = guide.references.first().filter(|_| self.traits().begins_with_reference);
        // A scheduler remembers the steps of its picture.
        let scheduler = || self.family.scheduler(steps, shape, reference.map(|_| guide.strength));
        let mut schedulers = seeds.iter().map(|_| scheduler()).collect::<Result<Vec<_>>>()?;
        let mut noises: Vec<_> = seeds.iter().map(|seed| Noise::new(*seed)).collect();
        let mut samples = Vec::new();
        for (scheduler, noise) in schedulers.iter().zip(&mut noises) {
            let picture = reference.map(|reference| self.family.first(reference, noise));
            let begin = noise.normal(shape.iter().product());
            samples.push(match picture {
                Some(picture) => scheduler.noisy(&picture, &begin),
                None => begin.into_iter().map(|x| x * scheduler.initial_scale()).collect::<Vec<_>>(),
            });
        }
        let denoiser = self.family.denoiser(&self.sessions, seeds.len(), shape, guide)?;
        let times = scheduler()?.times().to_vec();
        for (step, time) in times.iter().enumerate() {
            let inputs = schedulers.iter().zip(&samples).flat_map(|(scheduler, sample)| scheduler.scale(step, sample));
            let inputs: Vec<f32> = inputs.collect();
            let mut answers = denoiser.predict(&inputs, *time, &guide.prompt)?;
            if let Some(negative) = &guide.negative {
                let without = denoiser.predict(&inputs, *time, negative)?;
                for (with, without) in answers.iter_mut().zip(without) {
                    *with = without + guide.guidance * (*with - without);
                }
            }
            let each = shape.iter().product();
            let before = samples.clone();
            for (at, answer) in answers.chunks_exact(each).enumerate() {
                schedulers[at].step(step, answer, &mut samples[at], &mut noises[at]);
                finite(&samples[at], "the model gave numbers that are not finite")?;
            }
            let preview = |picture: usize| {
                let answer = answers.chunks_exact(each).nth(picture)?;
                let numbers = schedulers[picture].picture(step, answer, &before[picture]);
                self.sketcher.as_ref()?.sketch(&*self.family, &self.sessions, &Latent { shape, numbers })
            };
            after(&Step { done: step + 1, of: times.len(), preview: &preview }, &samples)?;
        }
        Ok(samples.into_iter().map(|numbers| Latent { shape, numbers }).collect())
    }
}
