//! Several pictures at a time, each as if it were made alone.

use tintype_engine::{CancellationToken, Picture};

use super::{Embedding, Guide, Latent, Order, Pipeline, Settings, finite, stop_if};
use crate::noise::Noise;
use crate::{Error, Result};

impl Pipeline {
    /// Makes pictures of one size and without references in the same steps. Each is the picture that it would be alone, but
    /// for the rounding of single numbers. `progress` hears of every finished step, which is one of all pictures. Models other
    /// than Stable Diffusion make them one after the other.
    ///
    /// # Errors
    /// If the orders do not suit each other, or as of [`Pipeline::render`]: one picture that fails ends all.
    pub fn render_together(
        &mut self,
        orders: &[Order<'_>],
        settings: &Settings,
        mut progress: impl FnMut(usize, usize),
        cancel: &CancellationToken,
    ) -> Result<Vec<Picture>> {
        let Some(first) = orders.first() else { return Ok(Vec::new()) };
        let suits = |order: &Order<'_>| {
            (order.width, order.height) == (first.width, first.height) && order.references.is_empty()
        };
        if !orders.iter().all(suits) {
            return Err(Error::Order("pictures of one size and without references can be made together".into()));
        }
        if !self.family.joins() {
            return orders
                .iter()
                .map(|order| self.render(order, settings, |step| progress(step.done, step.of), cancel))
                .collect();
        }
        let shape = self.latent_shape(first.width, first.height)?;
        let prompts = orders.iter().map(|order| self.embed(order.prompt)).collect::<Result<Vec<_>>>()?;
        stop_if(cancel)?;
        let negative = match self.asks_twice(settings.guidance) {
            true => Some(self.embed_negative(&settings.negative, &prompts[0])?),
            false => None,
        };
        let guide = Guide { prompt: prompts[0].clone(), negative, guidance: settings.guidance, references: Vec::new() };
        let seeds: Vec<_> = orders.iter().map(|order| order.seed).collect();
        let latents = self.denoise_together(shape, &seeds, settings.steps, &prompts, &guide, |done, of| {
            progress(done, of);
            stop_if(cancel)
        })?;
        latents.iter().map(|latent| self.decode(latent)).collect()
    }

    fn denoise_together(
        &self,
        shape: [usize; 3],
        seeds: &[u64],
        steps: usize,
        prompts: &[Embedding],
        guide: &Guide,
        mut after: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<Vec<Latent>> {
        // A scheduler remembers the steps of its picture.
        let mut schedulers =
            seeds.iter().map(|_| self.family.scheduler(steps, shape, false)).collect::<Result<Vec<_>>>()?;
        let mut noises: Vec<_> = seeds.iter().map(|seed| Noise::new(*seed)).collect();
        let begin = |noise: &mut Noise| noise.normal(shape.iter().product());
        let scaled = |numbers: Vec<f32>| numbers.into_iter().map(|x| x * schedulers[0].initial_scale()).collect();
        let mut samples: Vec<Vec<f32>> = noises.iter_mut().map(begin).map(scaled).collect();
        let denoiser = self.family.denoiser_together(&self.sessions, seeds.len(), shape, guide)?;
        let prompts: Vec<_> = prompts.iter().collect();
        let times = schedulers[0].times().to_vec();
        for (step, time) in times.iter().enumerate() {
            let inputs: Vec<_> =
                schedulers.iter().zip(&samples).map(|(scheduler, sample)| scheduler.scale(step, sample)).collect();
            let mut answers = denoiser.predict_together(&inputs, *time, &prompts)?;
            if let Some(negative) = &guide.negative {
                let without = denoiser.predict_together(&inputs, *time, &vec![negative; prompts.len()])?;
                for (with, without) in answers.iter_mut().flatten().zip(without.into_iter().flatten()) {
                    *with = without + guide.guidance * (*with - without);
                }
            }
            for (at, sample) in samples.iter_mut().enumerate() {
                schedulers[at].step(step, &answers[at], sample, &mut noises[at]);
                finite(sample, "the model gave numbers that are not finite")?;
            }
            after(step + 1, times.len())?;
        }
        Ok(samples.into_iter().map(|numbers| Latent { shape, numbers }).collect())
    }
}
