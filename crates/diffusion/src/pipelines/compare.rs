//! Measures how far a model in 8 or 16 bits deviates from the same model in 32 bits.

use std::path::Path;

use tintype_engine::CancellationToken;

use super::{Embedding, Guide, Options, Order, Pipeline, Precision, Settings, stop_if};
use crate::Result;
use crate::noise::Noise;
use crate::quantise::WeightPreparation;

/// The differences between a model in 32 bits and in another precision. All are 0 if there is no difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Size of the difference between the prompt's embeddings, relative to the embedding's size.
    pub prompt: f64,
    /// Relative difference between the denoiser's first answers to the same noise and embedding.
    pub answer: f64,
}

/// Asks a model the same in 32 bits and in another precision, and compares the answers. Both are read from `folder`;
/// `suit` says how the second one is loaded. The 32-bit model can need several times the memory.
pub fn compare(
    folder: &Path,
    suit: WeightPreparation<'_>,
    order: &Order<'_>,
    settings: &Settings,
    cancel: &CancellationToken,
) -> Result<Difference> {
    let mut wide = Pipeline::open(folder, &Options { precision: Precision::F32, ..suit.options.clone() })?;
    let mut narrow = Pipeline::open_with(folder, suit)?;
    let embedding = wide.embed(order.prompt)?;
    stop_if(cancel)?;
    let prompt = distance(&embedding.states, &narrow.embed(order.prompt)?.states);
    stop_if(cancel)?;
    let first = answer(&mut wide, &embedding, order, settings)?;
    stop_if(cancel)?;
    let answer = distance(&first, &answer(&mut narrow, &embedding, order, settings)?);
    Ok(Difference { prompt, answer })
}

fn answer(pipeline: &mut Pipeline, prompt: &Embedding, order: &Order<'_>, settings: &Settings) -> Result<Vec<f32>> {
    let shape = pipeline.latent_shape(order.width, order.height)?;
    let references = order.references.iter().map(|reference| pipeline.look(reference, shape)).collect::<Result<_>>()?;
    let mask = pipeline.look_at_mask(order, shape)?;
    let guide =
        Guide { prompt: prompt.clone(), negative: None, strength: 1.0, guidance: settings.guidance, references, mask };
    let scheduler = pipeline.family.scheduler(settings.steps, shape, None)?;
    let trajectory = scheduler.trajectory();
    let mut noise = Noise::new(order.seed);
    let begin = noise.normal(shape.iter().product());
    let sample: Vec<f32> = begin.into_iter().map(|x| x * trajectory.initial_scale()).collect();
    let time = trajectory.times().first().copied().unwrap_or_default();
    let denoiser = pipeline.family.denoiser(&pipeline.sessions, 1, shape, &guide)?;
    let input = [trajectory.scale(0, &sample), pipeline.beside(&guide, &mut noise)].concat();
    denoiser.predict(&input, time, &guide.prompt)
}

/// The size of the difference, relative to the size of the first.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let size = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let gap = size(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    gap / size(&mut a.iter().copied().map(f64::from)).max(f64::MIN_POSITIVE)
}
