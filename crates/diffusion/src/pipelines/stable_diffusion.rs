//! Stable Diffusion 1 and 2, and models distilled from them.

use std::path::Path;

use serde_json::json;
use tintype_engine::{Picture, PromptSyntax};

use super::encoders::{ClipEncoder, ClipParts};
use super::latent::{Body, HALF_STRENGTH, MAX_BATCH, STRENGTH};
use super::{Denoiser, Embedding, Family, Guide, Latent, Traits, part_config};
use crate::config::Config;
use crate::models::unet::Unet;
use crate::noise::Noise;
use crate::quantise::WeightPreparation;
use crate::runtime::Sessions;
use crate::schedulers::Scheduler;
use crate::textual_inversion;
use crate::weights::Weights;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct StableDiffusion {
    traits: Traits,
    encoder: ClipEncoder,
    body: Body,
}

/// The parts of a model with so many text encoders, wherever they lie.
#[derive(Debug)]
pub(super) struct Parts<const N: usize> {
    pub index: Config,
    pub encoders: [ClipParts; N],
    pub unet: Config,
    pub unet_weights: Weights,
    /// `None` if another one replaces it.
    pub vae: Option<(Config, Weights)>,
    pub scheduler: Config,
}

impl<const N: usize> Parts<N> {
    /// Those in a folder.
    pub fn of_folder(folder: &Path, index: Config, encoders: [ClipParts; N]) -> Result<Self> {
        Ok(Self {
            index,
            encoders,
            unet: part_config(folder, "unet")?,
            vae: Some((
                part_config(folder, "vae")?,
                Weights::open_part(&folder.join("vae"), "diffusion_pytorch_model")?,
            )),
            scheduler: Config::read(&folder.join("scheduler").join("scheduler_config.json"))?,
            unet_weights: Weights::open_part(&folder.join("unet"), "diffusion_pytorch_model")?,
        })
    }
}

impl StableDiffusion {
    pub(super) fn open(parts: Parts<1>, suit: &mut WeightPreparation<'_>) -> Result<Self> {
        let unet = Unet::read(&parts.unet)?;
        let [encoder] = parts.encoders;
        let encoder = ClipEncoder::open("text_encoder", encoder)?;
        if encoder.clip.width != unet.context {
            let (text, image) = (encoder.clip.width, unet.context);
            return Err(Error::Model(format!(
                "the text encoder gives {text} numbers a token, but the UNet takes {image}"
            )));
        }
        if unet.addition.is_some() {
            return Err(Error::Model(
                "the UNet belongs to a StableDiffusionXLPipeline, but the model is not one".into(),
            ));
        }
        let [words] = textual_inversion::read(&suit.options.embeddings, [encoder.clip.width], encoder.room())?;
        let encoder = encoder.knowing(words);
        let tokens = encoder.clip.tokens;
        let scheduler = corrected(&parts.index, &parts.scheduler)?;
        let body = Body::open((unet, parts.unet_weights), parts.vae, scheduler, tokens, suit.options.vae.as_deref())?;
        Ok(Self { traits: traits(&parts.index, &body)?, encoder: encoder.prepared(suit)?, body: body.prepared(suit)? })
    }
}

/// The configuration of a scheduler with what pipelines of this family use in place of outdated values, whatever it says.
fn corrected(index: &Config, scheduler: &Config) -> Result<Config> {
    if index.text("_class_name", "")? == "LatentConsistencyModelPipeline" {
        return Ok(scheduler.clone());
    }
    let scheduler = scheduler.with("clip_sample", json!(false));
    // This one knows no offset.
    let has_offset = scheduler.text("_class_name", "")? != "DPMSolverSinglestepScheduler";
    Ok(if has_offset { scheduler.with("steps_offset", json!(1)) } else { scheduler })
}

/// Nothing in a folder says how many steps suit the model, so its other fields must: a guidance input is that of LCM, and
/// so is its scheduler, where its weights were merged into another model.
fn traits(index: &Config, body: &Body) -> Result<Traits> {
    let distilled = body.unet.guidance.is_some();
    let usual = Traits {
        family: "Stable Diffusion",
        references: usize::from(body.decoder.encodes()),
        begins_with_reference: true,
        masks: body.decoder.encodes(),
        steps: 25,
        calls: body.calls()?,
        guidance: 7.5,
        side_multiple: body.decoder.factor(),
        trained_pixels: body.unet.area * body.decoder.factor().pow(2),
        batch: MAX_BATCH,
        negative: !distilled,
        strength: STRENGTH,
    };
    if index.text("_class_name", "")? == "LatentConsistencyModelPipeline" || distilled {
        return Ok(Traits { family: "Latent Consistency Model", steps: 4, guidance: 8.5, ..usual });
    }
    if body.is_consistent()? {
        return Ok(Traits { family: "Stable Diffusion with LCM", steps: 4, guidance: 1.0, ..usual });
    }
    if body.is_turbo()? {
        return Ok(Traits {
            family: "Stable Diffusion Turbo",
            steps: 1,
            guidance: 0.0,
            strength: HALF_STRENGTH,
            ..usual
        });
    }
    Ok(usual)
}

impl Family for StableDiffusion {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3] {
        self.body.latent_shape(width, height)
    }

    fn tokens(&self, prompt: &str, syntax: PromptSyntax) -> Result<Vec<i32>> {
        Ok(self.encoder.tokens(prompt, syntax)?.into_iter().flat_map(|chunk| chunk.ids).collect())
    }

    fn embed(&self, sessions: &Sessions, prompt: &str, syntax: PromptSyntax) -> Result<Embedding> {
        let [states] = self.encoder.run(sessions, &self.encoder.tokens(prompt, syntax)?, ["states"])?;
        Ok(Embedding { states, pooled: Vec::new() })
    }

    fn takes_weighted_prompts(&self) -> bool {
        true
    }

    fn look(&self, sessions: &Sessions, reference: &Picture, shape: [usize; 3]) -> Result<Latent> {
        self.body.look(sessions, reference, None, shape)
    }

    fn sees_masks(&self) -> bool {
        self.body.unet.sees_masks()
    }

    fn look_around(
        &self,
        sessions: &Sessions,
        reference: &Picture,
        mask: &Picture,
        shape: [usize; 3],
    ) -> Result<Latent> {
        self.body.look(sessions, reference, Some(mask), shape)
    }

    fn first(&self, reference: &Latent, noise: &mut Noise) -> Vec<f32> {
        self.body.decoder.draw(reference, noise)
    }

    fn scheduler(&self, steps: usize, _: [usize; 3], strength: Option<f64>) -> Result<Box<dyn Scheduler>> {
        self.body.scheduler_for(steps, strength)
    }

    fn denoiser<'a>(
        &'a self,
        sessions: &Sessions,
        batch: usize,
        shape: [usize; 3],
        guide: &'a Guide,
    ) -> Result<Box<dyn Denoiser + 'a>> {
        self.body.denoiser(sessions, batch, shape, guide)
    }

    fn decodes_quickly(&self) -> bool {
        self.body.decoder.is_quick()
    }

    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
        self.body.decoder.decode(sessions, latent)
    }
}
