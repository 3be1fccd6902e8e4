//! The interface between a pipeline and the model families.

use std::fmt::Debug;

use tintype_engine::{Picture, PromptSyntax};

use super::{LatentMask, Traits};
use crate::noise::Noise;
use crate::runtime::Sessions;
use crate::schedulers::Scheduler;
use crate::{Error, Result};

/// A latent picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Latent {
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// Its numbers, in rows.
    pub numbers: Vec<f32>,
}

/// One or more prompts' embeddings, one after the other. All have the same number of tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// One row for each token.
    pub states: Vec<f32>,
    /// An embedding of the whole prompt, for models that take one.
    pub pooled: Vec<f32>,
}

impl Embedding {
    pub(super) fn join(embeddings: &[Embedding]) -> Self {
        let states = embeddings.iter().flat_map(|embedding| &embedding.states).copied().collect();
        let pooled = embeddings.iter().flat_map(|embedding| &embedding.pooled).copied().collect();
        Self { states, pooled }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.states.as_slice()) + size_of_val(self.pooled.as_slice())
    }
}

/// Everything that guides a picture, or the pictures of a batch.
#[derive(Debug, Clone)]
pub struct Guide {
    /// The embedding of each picture's prompt.
    pub prompt: Embedding,
    /// The embedding of each picture's negative prompt, if the model is to be asked for both.
    pub negative: Option<Embedding>,
    /// How much of the noise a picture that begins with its reference gets.
    pub strength: f64,
    /// How strongly the picture follows the prompt.
    pub guidance: f32,
    /// The encoded reference pictures.
    pub references: Vec<Latent>,
    /// The part of the first reference to redraw; `None` for all of it.
    pub mask: Option<LatentMask>,
}

/// A model family. Each method loads the part of the model that it needs and drops it at the end, so that memory is
/// only needed for the largest part.
pub(super) trait Family: Debug + Send {
    fn traits(&self) -> &Traits;

    /// The latent picture's shape for a size in pixels that suits the traits.
    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3];

    fn tokens(&self, prompt: &str, syntax: PromptSyntax) -> Result<Vec<i32>>;

    fn embed(&self, sessions: &Sessions, prompt: &str, syntax: PromptSyntax) -> Result<Embedding>;

    /// Whether it reads [`PromptSyntax::Weighted`]. If so, embeddings come in chunks, padded with empty ones.
    fn takes_weighted_prompts(&self) -> bool {
        false
    }

    /// Whether zeros, rather than an embedding, stand for an empty negative prompt.
    fn zeros_for_nothing(&self) -> bool {
        false
    }

    /// Whether the model is asked with and without the prompt at each step.
    fn asks_twice(&self, guidance: f32) -> bool {
        self.traits().negative && guidance > 1.0
    }

    /// Encodes a reference picture for a latent shape. Called only if the traits allow references.
    fn look(&self, _sessions: &Sessions, _reference: &Picture, _shape: [usize; 3]) -> Result<Latent> {
        Err(Error::Order("the model takes no reference pictures".into()))
    }

    /// Whether the model itself sees the mask and the kept part of the picture.
    fn sees_masks(&self) -> bool {
        false
    }

    /// Encodes the kept part of a reference picture, as [`Family::look`] does. Called only for models that see masks.
    fn look_around(&self, _sessions: &Sessions, _: &Picture, _mask: &Picture, _shape: [usize; 3]) -> Result<Latent> {
        Err(Error::Order("the model takes no masks".into()))
    }

    /// The latent picture to add noise to, from a reference encoded by [`Family::look`].
    fn first(&self, reference: &Latent, _noise: &mut Noise) -> Vec<f32> {
        reference.numbers.clone()
    }

    /// Creates a scheduler. For a picture that begins with a reference, `strength` is how much of the noise it gets,
    /// and only the last steps are taken.
    fn scheduler(&self, steps: usize, shape: [usize; 3], strength: Option<f64>) -> Result<Box<dyn Scheduler>>;

    /// Loads the denoiser for a batch of at most [`Traits::batch`] pictures, or twice as many if each comes with and
    /// without its prompt. The guide has all of their prompts.
    fn denoiser<'a>(
        &'a self,
        sessions: &Sessions,
        batch: usize,
        shape: [usize; 3],
        guide: &'a Guide,
    ) -> Result<Box<dyn Denoiser + 'a>>;

    /// The latent picture as the decoder sees it: each position becomes a square of the same number of pixels.
    fn positions(&self, latent: &Latent) -> Latent {
        latent.clone()
    }

    /// Whether decoding takes less time than a step.
    fn decodes_quickly(&self) -> bool {
        false
    }

    /// Returns red, green and blue planes, with values from about -1 to 1.
    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>>;
}

/// The denoiser: the part of a model that removes noise, loaded for one size and one batch.
pub(super) trait Denoiser {
    /// The answers for all pictures of the batch, one after the other. Samples and prompts have the same order. Each
    /// sample ends with what the model sees in addition.
    fn predict(&self, samples: &[f32], time: f32, prompts: &Embedding) -> Result<Vec<f32>>;
}

/// A picture's planes, with values from -1 to 1.
pub(super) fn planes(picture: &Picture) -> Vec<f32> {
    let bytes = picture.as_rgb();
    let planes = (0..3).flat_map(|plane| bytes[plane..].iter().step_by(3));
    planes.map(|byte| f32::from(*byte) / 255.0 * 2.0 - 1.0).collect()
}
