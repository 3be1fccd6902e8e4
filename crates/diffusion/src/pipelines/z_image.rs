//! Z-Image.

use std::path::Path;
use std::sync::Arc;

use super::{Denoiser, Embedding, Family, Guide, Latent, Traits, decode, part_config};
use crate::config::Config;
use crate::models::clip::check_ids;
use crate::models::qwen3::Qwen3;
use crate::models::vae::Vae;
use crate::models::z_image::ZImage as Transformer;
use crate::quantise::Suit;
use crate::runtime::{Input, Session, Sessions};
use crate::schedulers::{Flow, Scheduler, Shift};
use crate::tokenizer::{Qwen, Thinking};
use crate::weights::Weights;
use crate::{Error, Result};

/// The most tokens of a prompt.
const TOKENS: usize = 512;

/// Sides of latent pictures are even.
const PATCH: usize = 2;

#[derive(Debug)]
pub(super) struct ZImage {
    traits: Traits,
    tokenizer: Qwen,
    encoder: Qwen3,
    /// The files of the model, for the table of words: weights in 8 bits have none.
    encoder_words: Weights,
    encoder_weights: Weights,
    transformer: Transformer,
    transformer_weights: Weights,
    vae: Vae,
    vae_weights: Weights,
    scheduler: Config,
}

impl ZImage {
    pub(super) fn open(folder: &Path, suit: &mut Suit<'_>) -> Result<Self> {
        let encoder = Qwen3::read(&part_config(folder, "text_encoder")?)?;
        let transformer = Transformer::read(&part_config(folder, "transformer")?)?;
        if encoder.width != transformer.context {
            let (text, image) = (encoder.width, transformer.context);
            return Err(Error::Model(format!(
                "the text encoder gives {text} numbers a token, but the transformer takes {image}"
            )));
        }
        let vae = Vae::read(&part_config(folder, "vae")?)?;
        if vae.channels != transformer.channels {
            let (made, taken) = (transformer.channels, vae.channels);
            return Err(Error::Model(format!(
                "the transformer makes latent pictures of {made} channels, the autoencoder takes {taken}"
            )));
        }
        let mut family = Self {
            traits: Traits {
                family: "Z-Image",
                references: 0,
                begins_with_reference: false,
                steps: 8,
                guidance: 1.0,
                side_multiple: vae.factor() * PATCH,
                batch: 1,
                negative: true,
            },
            tokenizer: Qwen::read(&folder.join("tokenizer"), TOKENS, Thinking::Allowed)?,
            encoder,
            encoder_words: Weights::open_part(&folder.join("text_encoder"), "model")?,
            encoder_weights: Weights::open_part(&folder.join("text_encoder"), "model")?,
            transformer,
            transformer_weights: Weights::open_part(&folder.join("transformer"), "diffusion_pytorch_model")?,
            vae,
            vae_weights: Weights::open_part(&folder.join("vae"), "diffusion_pytorch_model")?,
            scheduler: Config::read(&folder.join("scheduler").join("scheduler_config.json"))?,
        };
        family.check()?;
        let uses = family.encoder.graph(&family.encoder_weights, 1, &[family.layer()])?.uses;
        family.encoder_weights = suit.weights("text_encoder", family.encoder_weights, &uses)?;
        let uses = family.transformer.graph(&family.transformer_weights, [8, 8], 1)?.uses;
        family.transformer_weights = suit.weights("transformer", family.transformer_weights, &uses)?;
        Ok(family)
    }

    /// The layer after which states are taken: the last but one.
    fn layer(&self) -> usize {
        self.encoder.layers - 1
    }

    /// Compares the weights that stay as they are with the configuration, and tries the tokenizer.
    fn check(&self) -> Result<()> {
        if self.layer() == 0 {
            return Err(Error::Model("the text encoder has a single layer, but the last one is not used".into()));
        }
        self.encoder.words(&self.encoder_words, &self.tokens("")?)?;
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

    fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        let ids = self.tokenizer.encode(prompt)?;
        check_ids(&ids, self.encoder.vocabulary)?;
        Ok(ids)
    }

    fn embed(&self, sessions: &Sessions, prompt: &str) -> Result<Embedding> {
        // A token sees only those before it, so padding after them would change nothing.
        let ids = self.tokens(prompt)?;
        let mask = Qwen3::mask(ids.len(), ids.len());
        let words = self.encoder.words(&self.encoder_words, &ids)?;
        let graph = || self.encoder.graph(&self.encoder_weights, ids.len(), &[self.layer()]);
        let session = sessions.of("text_encoder", &[ids.len()], graph)?;
        let shapes = ([ids.len(), self.encoder.width], [1, 1, 1, ids.len()]);
        let inputs = [("words", Input::Floats(&shapes.0, &words)), ("mask", Input::Floats(&shapes.1, &mask))];
        let [states] = session.run(&inputs, [format!("layer.{}", self.layer()).as_str()])?;
        Ok(Embedding { states, pooled: Vec::new() })
    }

    fn scheduler(&self, steps: usize, [_, height, width]: [usize; 3], _: bool) -> Result<Box<dyn Scheduler>> {
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
                let graph = || self.transformer.graph(&self.transformer_weights, [height, width], tokens);
                loaded.push((tokens, sessions.of("transformer", &[height, width, tokens], graph)?));
            }
        }
        Ok(Box::new(Loaded { transformer: &self.transformer, sessions: loaded, shape }))
    }

    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
        let [_, height, width] = latent.shape;
        let graph = || self.vae.graph(&self.vae_weights, height, width);
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
        // The scheduler goes from picture to noise and back.
        velocity.iter_mut().for_each(|x| *x = -*x);
        Ok(velocity)
    }
}
