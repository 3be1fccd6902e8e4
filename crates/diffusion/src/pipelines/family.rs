//! The seam between a pipeline and the families of models.

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

/// The embedding of a prompt, or those of several prompts of as many tokens, one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// One row for each token.
    pub states: Vec<f32>,
    /// Numbers for the whole prompt, for models that take them.
    pub pooled: Vec<f32>,
}

impl Embedding {
    /// The embeddings of several prompts as one.
    pub(super) fn join(embeddings: &[Embedding]) -> Self {
        let states = embeddings.iter().flat_map(|embedding| &embedding.states).copied().collect();
        let pooled = embeddings.iter().flat_map(|embedding| &embedding.pooled).copied().collect();
        Self { states, pooled }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.states.as_slice()) + size_of_val(self.pooled.as_slice())
    }
}

/// All that leads a picture, or the pictures of one batch.
#[derive(Debug, Clone)]
pub struct Guide {
    /// The embedding of the prompt of each picture.
    pub prompt: Embedding,
    /// The embedding of what each picture should not show, if the model is to be asked for both.
    pub negative: Option<Embedding>,
    /// The part of the noise that a picture which begins with its reference gets.
    pub strength: f64,
    /// How strongly the picture follows the prompt.
    pub guidance: f32,
    /// The encoded reference pictures.
    pub references: Vec<Latent>,
    /// The part of the first reference that is redrawn; `None` for all of it.
    pub mask: Option<LatentMask>,
}

/// A family of models. Each method loads the part of the model that it needs, and drops it at the end, so that the memory
/// is that of the largest part and not of all.
pub(super) trait Family: Debug + Send {
    fn traits(&self) -> &Traits;

    /// The shape of the latent picture for a size in pixels, of which both sides suit the traits.
    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3];

    fn tokens(&self, prompt: &str, syntax: PromptSyntax) -> Result<Vec<i32>>;

    fn embed(&self, sessions: &Sessions, prompt: &str, syntax: PromptSyntax) -> Result<Embedding>;

    /// Whether it reads [`PromptSyntax::Weighted`]. Embeddings then are in chunks, which are filled up with empty ones.
    fn takes_weighted_prompts(&self) -> bool {
        false
    }

    /// Whether zeros, and not an embedding, stand for nothing that the picture should not show.
    fn zeros_for_nothing(&self) -> bool {
        false
    }

    /// Whether the model is asked with and without the prompt at each step.
    fn asks_twice(&self, guidance: f32) -> bool {
        self.traits().negative && guidance > 1.0
    }

    /// Encodes a reference picture for a latent picture of a shape. Called only if the traits allow one.
    fn look(&self, _sessions: &Sessions, _reference: &Picture, _shape: [usize; 3]) -> Result<Latent> {
        Err(Error::Order("the model takes no reference pictures".into()))
    }

    /// Whether the model itself sees the mask and the part of the picture that is kept.
    fn sees_masks(&self) -> bool {
        false
    }

    /// Encodes what a mask keeps of a reference picture, as [`Family::look`] does. Called only for models that see masks.
    fn look_around(&self, _sessions: &Sessions, _: &Picture, _mask: &Picture, _shape: [usize; 3]) -> Result<Latent> {
        Err(Error::Order("the model takes no masks".into()))
    }

    /// The latent picture to which noise is added, of a reference as [`Family::look`] encodes it.
    fn first(&self, reference: &Latent, _noise: &mut Noise) -> Vec<f32> {
        reference.numbers.clone()
    }

    /// A scheduler. For a picture that begins with a reference, `strength` is the part of the noise that it gets, and the
    /// steps are the last ones.
    fn scheduler(&self, steps: usize, shape: [usize; 3], strength: Option<f64>) -> Result<Box<dyn Scheduler>>;

    /// Loads the part that removes the noise, for a batch of at most [`Traits::batch`] pictures, or of twice as many if each
    /// comes with and without its prompt. The guide has the prompts of all of them.
    fn denoiser<'a>(
        &'a self,
        sessions: &Sessions,
        batch: usize,
        shape: [usize; 3],
        guide: &'a Guide,
    ) -> Result<Box<dyn Denoiser + 'a>>;

    /// The latent picture as the decoder sees it, each position a square of as many pixels.
    fn positions(&self, latent: &Latent) -> Latent {
        latent.clone()
    }

    /// Whether the decoder takes less than a step.
    fn decodes_quickly(&self) -> bool {
        false
    }

    /// Gives red, green and blue planes of numbers from about -1 to 1.
    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>>;
}

/// The part of a model that removes the noise, loaded for one size and one batch.
pub(super) trait Denoiser {
    /// The answers for all pictures of the batch, one after the other. Samples and prompts come in the same order. Each
    /// sample ends with what the model sees beside it.
    fn predict(&self, samples: &[f32], time: f32, prompts: &Embedding) -> Result<Vec<f32>>;
}

/// The planes of a picture, of numbers from -1 to 1.
pub(super) fn planes(picture: &Picture) -> Vec<f32> {
    let bytes = picture.as_rgb();
    let planes = (0..3).flat_map(|plane| bytes[plane..].iter().step_by(3));
    planes.map(|byte| f32::from(*byte) / 255.0 * 2.0 - 1.0).collect()
}
