//! Stable Diffusion 1 and 2, and models distilled from them.

use std::path::Path;

use serde_json::json;
use tintype_engine::PromptSyntax;

use super::encoders::{ClipEncoder, ClipParts};
use super::latent::{Body, LatentDiffusion, TextEncoders};
use super::{Embedding, part_config};
use crate::config::Config;
use crate::models::unet::Unet;
use crate::quantise::WeightPreparation;
use crate::runtime::Sessions;
use crate::textual_inversion;
use crate::weights::Weights;
use crate::{Error, Result};

/// The parts of a model with `N` text encoders, wherever they are stored.
#[derive(Debug)]
pub(super) struct Parts<const N: usize> {
    pub index: Config,
    pub encoders: [ClipParts; N],
    pub unet: Config,
    pub unet_weights: Weights,
    /// `None` if another VAE replaces it.
    pub vae: Option<(Config, Weights)>,
    pub scheduler: Config,
}

impl<const N: usize> Parts<N> {
    /// The parts in a folder.
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

pub(super) fn open(parts: Parts<1>, suit: &mut WeightPreparation<'_>) -> Result<LatentDiffusion<ClipEncoder>> {
    let unet = Unet::read(&parts.unet)?;
    let [encoder] = parts.encoders;
    let encoder = ClipEncoder::open("text_encoder", encoder)?;
    if encoder.clip.width != unet.context {
        let (text, image) = (encoder.clip.width, unet.context);
        return Err(Error::Model(format!("the text encoder gives {text} numbers a token, but the UNet takes {image}")));
    }
    if unet.addition.is_some() {
        return Err(Error::Model("the UNet belongs to a StableDiffusionXLPipeline, but the model is not one".into()));
    }
    let [words] = textual_inversion::read(&suit.options.embeddings, [encoder.clip.width], encoder.room())?;
    let encoder = encoder.knowing(words);
    let tokens = encoder.clip.tokens;
    let scheduler = corrected(&parts.index, &parts.scheduler)?;
    let body = Body::open((unet, parts.unet_weights), parts.vae, scheduler, tokens, suit.options.vae.as_deref())?;
    let variants = [
        ("Stable Diffusion", 25, 7.5),
        ("Latent Consistency Model", 4, 8.5),
        ("Stable Diffusion with LCM", 4, 1.0),
        ("Stable Diffusion Turbo", 1, 0.0),
    ];
    let traits = body.traits(&parts.index, variants)?;
    Ok(LatentDiffusion { traits, text: encoder.prepared(suit)?, body: body.prepared(suit)? })
}

/// A scheduler's configuration, with outdated values replaced as these pipelines always do.
fn corrected(index: &Config, scheduler: &Config) -> Result<Config> {
    if index.text("_class_name", "")? == "LatentConsistencyModelPipeline" {
        return Ok(scheduler.clone());
    }
    let scheduler = scheduler.with("clip_sample", json!(false));
    // This scheduler has no offset.
    let has_offset = scheduler.text("_class_name", "")? != "DPMSolverSinglestepScheduler";
    Ok(if has_offset { scheduler.with("steps_offset", json!(1)) } else { scheduler })
}

impl TextEncoders for ClipEncoder {
    fn first(&self) -> &ClipEncoder {
        self
    }

    fn embed(&self, sessions: &Sessions, prompt: &str, syntax: PromptSyntax) -> Result<Embedding> {
        let [states] = self.run(sessions, &self.tokens(prompt, syntax)?, ["states"])?;
        Ok(Embedding { states, pooled: Vec::new() })
    }
}
