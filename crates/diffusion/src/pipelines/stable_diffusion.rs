//! Stable Diffusion 1 and 2, and models distilled from them.

use std::path::{Path, PathBuf};

use tintype_engine::Picture;

use super::latent::{Decoder, Loaded, MAX_BATCH};
use super::{Denoiser, Embedding, Family, Guide, Latent, Traits, part_config};
use crate::config::Config;
use crate::models::clip::{Clip, check_ids};
use crate::models::unet::Unet;
use crate::noise::Noise;
use crate::quantise::Suit;
use crate::runtime::{Input, Sessions};
use crate::schedulers::{Scheduler, scheduler};
use crate::tokenizer;
use crate::weights::Weights;
use crate::{Error, Result};

/// The part of the noise that a reference gets, from 0 to 1: what `diffusers` does unless it is told otherwise, and what
/// the makers of the turbo models advise.
const STRENGTH: f64 = 0.8;
const HALF_STRENGTH: f64 = 0.5;

#[derive(Debug)]
pub(super) struct StableDiffusion {
    traits: Traits,
    tokenizer: tokenizer::Clip,
    clip: Clip,
    clip_weights: Weights,
    unet: Unet,
    unet_weights: Weights,
    decoder: Decoder,
    scheduler: Config,
}

/// The parts of a model, wherever they lie.
pub(super) struct Parts {
    pub index: Config,
    pub clip: Config,
    pub clip_weights: Weights,
    pub unet: Config,
    pub unet_weights: Weights,
    pub vae: Config,
    pub vae_weights: Weights,
    pub scheduler: Config,
    /// A folder.
    pub tokenizer: PathBuf,
}

impl Parts {
    /// Those in a folder.
    pub fn of_folder(folder: &Path, index: Config) -> Result<Self> {
        Ok(Self {
            index,
            clip: part_config(folder, "text_encoder")?,
            unet: part_config(folder, "unet")?,
            vae: part_config(folder, "vae")?,
            scheduler: Config::read(&folder.join("scheduler").join("scheduler_config.json"))?,
            tokenizer: folder.join("tokenizer"),
            clip_weights: Weights::open_part(&folder.join("text_encoder"), "model")?,
            unet_weights: Weights::open_part(&folder.join("unet"), "diffusion_pytorch_model")?,
            vae_weights: Weights::open_part(&folder.join("vae"), "diffusion_pytorch_model")?,
        })
    }
}

impl StableDiffusion {
    pub(super) fn open(parts: Parts, suit: &mut Suit<'_>) -> Result<Self> {
        let clip = Clip::read(&parts.clip)?;
        let unet = Unet::read(&parts.unet)?;
        if clip.width != unet.context {
            let (text, image) = (clip.width, unet.context);
            return Err(Error::Model(format!(
                "the text encoder gives {text} numbers a token, but the UNet takes {image}"
            )));
        }
        if unet.addition.is_some() {
            return Err(Error::Model("the UNet is that of a StableDiffusionXLPipeline, which the model is not".into()));
        }
        let decoder = Decoder::read(&parts.vae, parts.vae_weights, &unet)?;
        let mut family = Self {
            traits: traits(&parts.index, &parts.scheduler, &unet, decoder.factor())?,
            tokenizer: tokenizer::Clip::read(&parts.tokenizer, clip.tokens)?,
            clip_weights: parts.clip_weights,
            unet_weights: parts.unet_weights,
            scheduler: parts.scheduler,
            clip,
            unet,
            decoder,
        };
        family.tokens("")?;
        family.scheduler(1, [0; 3], false)?;
        if family.decoder.encodes() {
            family.traits.references = 1;
        }
        let clip = family.clip.graph(&family.clip_weights)?.uses;
        let unet = family.unet.graph(&family.unet_weights, 1, [8, 8], family.clip.tokens)?.uses;
        family.clip_weights = suit.weights("text_encoder", family.clip_weights, &clip)?;
        family.unet_weights = suit.weights("unet", family.unet_weights, &unet)?;
        Ok(family)
    }
}

/// Nothing in a folder says how many steps suit the model, so its other fields must: a guidance input is that of LCM, and
/// only the turbo models begin at the very last time step of the training, because they take one step from there.
fn traits(index: &Config, scheduler: &Config, unet: &Unet, side_multiple: usize) -> Result<Traits> {
    let usual = Traits {
        family: "Stable Diffusion",
        references: 0,
        begins_with_reference: true,
        steps: 25,
        guidance: 7.5,
        side_multiple,
        batch: MAX_BATCH,
        negative: unet.guidance.is_none(),
    };
    if index.text("_class_name", "")? == "LatentConsistencyModelPipeline" || unet.guidance.is_some() {
        return Ok(Traits { family: "Latent Consistency Model", steps: 4, guidance: 8.5, ..usual });
    }
    if scheduler.text("timestep_spacing", "")? == "trailing" {
        return Ok(Traits { family: "Stable Diffusion Turbo", steps: 1, guidance: 0.0, ..usual });
    }
    Ok(usual)
}

impl Family for StableDiffusion {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3] {
        let factor = self.decoder.factor();
        [self.unet.channels, height / factor, width / factor]
    }

    fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        let ids = self.tokenizer.encode(prompt)?;
        check_ids(&ids, self.clip.vocabulary)?;
        Ok(ids)
    }

    fn embed(&self, sessions: &Sessions, prompt: &str) -> Result<Embedding> {
        let ids = self.tokens(prompt)?;
        let session = sessions.of("text_encoder", &[], || self.clip.graph(&self.clip_weights))?;
        let [states] = session.run(&[("ids", Input::Ids(&ids))], ["states"])?;
        Ok(Embedding { states, pooled: Vec::new() })
    }

    fn look(&self, sessions: &Sessions, reference: &Picture, [_, height, width]: [usize; 3]) -> Result<Latent> {
        let side = |length: usize| u32::try_from(length * self.decoder.factor()).unwrap_or(u32::MAX);
        self.decoder.encode(sessions, &reference.clone().fit(side(width), side(height)))
    }

    fn first(&self, reference: &Latent, noise: &mut Noise) -> Vec<f32> {
        self.decoder.draw(reference, noise)
    }

    fn scheduler(&self, steps: usize, _: [usize; 3], with_reference: bool) -> Result<Box<dyn Scheduler>> {
        if !with_reference {
            return scheduler(&self.scheduler, steps, 1.0);
        }
        // A model of one step takes it from the middle.
        let strength = if self.traits.steps == 1 { HALF_STRENGTH } else { STRENGTH };
        let least = (1.0 / strength).ceil() as usize;
        scheduler(&self.scheduler, steps.max(least), strength)
    }

    fn denoiser<'a>(
        &'a self,
        sessions: &Sessions,
        batch: usize,
        shape: [usize; 3],
        guide: &'a Guide,
    ) -> Result<Box<dyn Denoiser + 'a>> {
        let (tokens, factor) = (self.clip.tokens, self.decoder.factor());
        let loaded = Loaded::new(sessions, (&self.unet, &self.unet_weights), tokens, batch, shape, factor, guide)?;
        Ok(Box::new(loaded))
    }

    fn decodes_quickly(&self) -> bool {
        self.decoder.is_quick()
    }

    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
        self.decoder.decode(sessions, latent)
    }
}
