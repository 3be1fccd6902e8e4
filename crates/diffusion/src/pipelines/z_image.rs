//! Z-Image.

use std::sync::Arc;

use tintype_engine::PromptSyntax;

use super::encoders::{QwenEncoder, QwenParts, check_widths};
use super::{Denoiser, Embedding, Family, Guide, Latent, Traits, decode};
use crate::config::Config;
use crate::models::vae::Vae;
use crate::models::z_image::ZImage as Transformer;
use crate::quantise::WeightPreparation;
use crate::runtime::{Input, PartKey, Session, Sessions};
use crate::schedulers::{Flow, Scheduler, Shift};
use crate::tokenizer::Thinking;
use crate::weights::Weights;
use crate::{Error, Result};

/// The most tokens of a prompt.
const TOKENS: usize = 512;

/// From this noise shift on, a model is the base model. Nothing else in a folder says so: published base models have a
/// shift of 6, Turbo models a shift of 3.
const BASE_SHIFT: f64 = 5.5;

/// Sides of latents are even.
const PATCH: usize = 2;

#[derive(Debug)]
pub(super) struct ZImage {
    traits: Traits,
    encoder: QwenEncoder,
    transformer: Transformer,
    transformer_weights: Weights,
    vae: Vae,
    vae_weights: Weights,
    scheduler: Config,
}

impl ZImage {
    pub(super) fn open(parts: QwenParts, suit: &mut WeightPreparation<'_>) -> Result<Self> {
        let QwenParts { encoder, tokenizer, transformer, vae: (vae, vae_weights), scheduler, .. } = parts;
        let encoder = QwenEncoder::open(encoder, tokenizer.as_deref(), TOKENS, Thinking::Allowed)?;
        let (transformer, transformer_weights) = (Transformer::read(&transformer.0)?, transformer.1);
        let vae = Vae::read(&vae)?;
        check_widths([encoder.qwen.width, transformer.context], [transformer.channels, vae.channels])?;
        let is_turbo = scheduler.fraction("shift", 1.0)? < BASE_SHIFT;
        let mut family = Self {
            traits: Traits {
                family: "Z-Image",
                references: 0,
                begins_with_reference: false,
                masks: false,
                steps: if is_turbo { 8 } else { 50 },
                calls: 1,
                // The base model is made for a guidance that `diffusers` counts as 5.
                guidance: if is_turbo { 1.0 } else { 6.0 },
                side_multiple: vae.factor() * PATCH,
                trained_pixels: 0,
                batch: 1,
                negative: true,
                strength: 1.0,
            },
            encoder,
            transformer,
            transformer_weights,
            vae,
            vae_weights,
            scheduler,
        };
        family.check()?;
        let layer = family.layer();
        family.encoder = family.encoder.prepared(suit, 1, &[layer])?;
        let uses = family.transformer.graph(&family.transformer_weights, [8, 8], 1)?.uses;
        family.vae_weights = suit.autoencoder(family.vae_weights);
        family.transformer_weights = suit.weights("transformer", family.transformer_weights, &uses)?;
        Ok(family)
    }

    /// The layer whose states are used: the last but one.
    fn layer(&self) -> usize {
        self.encoder.qwen.layers - 1
    }

    /// Compares the unconverted weights with the configuration, and tries out the scheduler.
    fn check(&self) -> Result<()> {
        if self.layer() == 0 {
            return Err(Error::Model("the text encoder has a single layer, but the last one is not used".into()));
        }
        Flow::new(&self.scheduler, Shift::Line, 1, 1)?;
        self.vae.graph(&self.vae_weights, 8, 8)?;
        Ok(())
    }
}

impl Family for ZImage {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3] {
        let factor = self.vae.factor();
        [self.transformer.channels, height / factor, width / factor]
    }

    fn tokens(&self, prompt: &str, _: PromptSyntax) -> Result<Vec<i32>> {
        self.encoder.tokens(prompt)
    }

    fn embed(&self, sessions: &Sessions, prompt: &str, _: PromptSyntax) -> Result<Embedding> {
        let [states] = self.encoder.states(sessions, prompt, None, [self.layer()])?;
        Ok(Embedding { states, pooled: Vec::new() })
    }

    fn scheduler(&self, steps: usize, [_, height, width]: [usize; 3], _: Option<f64>) -> Result<Box<dyn Scheduler>> {
        let positions = (height / PATCH) * (width / PATCH);
        Ok(Box::new(Flow::new(&self.scheduler, Shift::Line, positions, steps)?))
    }

    fn denoiser<'a>(
        &'a self,
        sessions: &Sessions,
        _batch: usize,
        shape: [usize; 3],
        guide: &'a Guide,
    ) -> Result<Box<dyn Denoiser + 'a>> {
        let mut loaded: Vec<(usize, Arc<Session>)> = Vec::new();
        for embedding in [Some(&guide.prompt), guide.negative.as_ref()].into_iter().flatten() {
            let tokens = embedding.states.len() / self.transformer.context;
            if loaded.iter().all(|(known, _)| *known != tokens) {
                let [_, height, width] = shape;
                let examples = [(1, [12, 20, 5].as_slice()), (1, [28, 44, 40].as_slice())];
                let sizes = [height, width, tokens];
                let key = PartKey { part: "transformer", batch: 1, sizes: &sizes, examples };
                let graph = |_, sizes: &[usize]| {
                    self.transformer.graph(&self.transformer_weights, [sizes[0], sizes[1]], sizes[2])
                };
                loaded.push((tokens, sessions.of(key, graph)?));
            }
        }
        Ok(Box::new(Loaded { transformer: &self.transformer, sessions: loaded, shape }))
    }

    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
        let graph = |height, width| self.vae.graph(&self.vae_weights, height, width);
        decode(sessions, graph, [self.vae.scaling, self.vae.shift], latent)
    }
}

/// The transformer, loaded for each number of tokens.
struct Loaded<'a> {
    transformer: &'a Transformer,
    sessions: Vec<(usize, Arc<Session>)>,
    shape: [usize; 3],
}

impl Denoiser for Loaded<'_> {
    fn predict(&self, sample: &[f32], time: f32, prompt: &Embedding) -> Result<Vec<f32>> {
        let tokens = prompt.states.len() / self.transformer.context;
        let session = self.sessions.iter().find(|(known, _)| *known == tokens);
        let (_, session) = session.ok_or_else(|| Error::Run("no graph is loaded for the prompt".into()))?;
        let time = self.transformer.embed_time(time);
        let latent = [1, self.shape[0], self.shape[1], self.shape[2]];
        let (times, contexts) = ([1, time.len()], [tokens, self.transformer.context]);
        let inputs = [
            ("latent", Input::Floats(&latent, sample)),
            ("time", Input::Floats(&times, &time)),
            ("context", Input::Floats(&contexts, &prompt.states)),
        ];
        let [mut velocity] = session.run(&inputs, ["velocity"])?;
        // The scheduler's velocity points from picture to noise.
        velocity.iter_mut().for_each(|x| *x = -*x);
        Ok(velocity)
    }
}
