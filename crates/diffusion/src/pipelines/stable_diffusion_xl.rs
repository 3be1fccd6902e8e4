//! Stable Diffusion XL, and models distilled from it.

use std::path::Path;

use super::latent::{Decoder, Loaded, MAX_BATCH};
use super::{Denoiser, Embedding, Family, Guide, Latent, Traits, part_config};
use crate::config::Config;
use crate::models::clip::{Clip, check_ids};
use crate::models::unet::Unet;
use crate::quantise::Suit;
use crate::runtime::{Input, Sessions};
use crate::schedulers::{Scheduler, scheduler as set};
use crate::tokenizer;
use crate::weights::Weights;
use crate::{Error, Result};

/// One of the two text encoders, with its tokenizer.
#[derive(Debug)]
struct Encoder {
    tokenizer: tokenizer::Clip,
    clip: Clip,
    weights: Weights,
}

impl Encoder {
    fn open(folder: &Path, suffix: &str) -> Result<Self> {
        let part = format!("text_encoder{suffix}");
        let clip = Clip::read(&part_config(folder, &part)?)?;
        if clip.layers < 2 {
            return Err(Error::Model(format!("{part} has a single layer, but the last one is not used")));
        }
        let tokenizer = tokenizer::Clip::read(&folder.join(format!("tokenizer{suffix}")), clip.tokens)?;
        let weights = Weights::open_part(&folder.join(&part), "model")?;
        clip.graph(&weights)?;
        let encoder = Self { tokenizer, clip, weights };
        encoder.tokens("")?;
        Ok(encoder)
    }

    /// The same with weights for the precision that was asked for.
    fn suited(self, part: &str, suit: &mut Suit<'_>) -> Result<Self> {
        let uses = self.clip.graph(&self.weights)?.uses;
        Ok(Self { weights: suit.weights(part, self.weights, &uses)?, ..self })
    }

    fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        let ids = self.tokenizer.encode(prompt)?;
        check_ids(&ids, self.clip.vocabulary)?;
        Ok(ids)
    }

    /// The states of all tokens before the last layer.
    fn embed(&self, sessions: &Sessions, prompt: &str) -> Result<Vec<f32>> {
        let ids = self.tokens(prompt)?;
        let session = sessions.of("text_encoder", &[], || self.clip.graph(&self.weights))?;
        let [states] = session.run(&[("ids", Input::Ids(&ids))], [self.layer().as_str()])?;
        Ok(states)
    }

    /// The same, and an embedding of the whole prompt.
    fn embed_whole(&self, sessions: &Sessions, prompt: &str, size: usize) -> Result<[Vec<f32>; 2]> {
        let ids = self.tokens(prompt)?;
        let session = sessions.of("text_encoder_2", &[], || self.clip.graph(&self.weights))?;
        let [states, all] = session.run(&[("ids", Input::Ids(&ids))], [self.layer().as_str(), "projected"])?;
        let last = self.clip.last(&ids) * size;
        Ok([states, all[last..last + size].to_vec()])
    }

    fn layer(&self) -> String {
        format!("layer.{}", self.clip.layers - 2)
    }
}

#[derive(Debug)]
pub(super) struct StableDiffusionXl {
    traits: Traits,
    first: Encoder,
    second: Encoder,
    /// Numbers in the embedding of a whole prompt.
    pooled: usize,
    unet: Unet,
    unet_weights: Weights,
    decoder: Decoder,
    scheduler: Config,
    zeros: bool,
}

impl StableDiffusionXl {
    pub(super) fn open(folder: &Path, index: &Config, suit: &mut Suit<'_>) -> Result<Self> {
        let unet = Unet::read(&part_config(folder, "unet")?)?;
        let [first, second] = [Encoder::open(folder, "")?, Encoder::open(folder, "_2")?];
        let (text, image) = (first.clip.width + second.clip.width, unet.context);
        if text != image || first.clip.tokens != second.clip.tokens {
            return Err(Error::Model(format!(
                "the text encoders give {text} numbers a token, but the UNet takes {image}, or they take other numbers of \
                 tokens"
            )));
        }
        let (Some(addition), Some(pooled)) = (unet.addition, second.clip.projection) else {
            return Err(Error::Model(
                "the UNet and the second text encoder are not those of Stable Diffusion XL".into(),
            ));
        };
        unet.embed_addition(addition, &vec![0.0; pooled], &[0; 6])?;
        let weights = Weights::open_part(&folder.join("vae"), "diffusion_pytorch_model")?;
        let decoder = Decoder::read(&part_config(folder, "vae")?, weights, &unet)?;
        let weights = Weights::open_part(&folder.join("unet"), "diffusion_pytorch_model")?;
        let uses = unet.graph(&weights, 1, [8, 8], first.clip.tokens)?.uses;
        let scheduler = Config::read(&folder.join("scheduler").join("scheduler_config.json"))?;
        set(&scheduler, 1, 1.0)?;
        Ok(Self {
            traits: traits(&scheduler, &unet, decoder.factor())?,
            first: first.suited("text_encoder", suit)?,
            second: second.suited("text_encoder_2", suit)?,
            pooled,
            unet_weights: suit.weights("unet", weights, &uses)?,
            unet,
            decoder,
            scheduler,
            zeros: index.flag("force_zeros_for_empty_prompt", true)?,
        })
    }
}

/// As for Stable Diffusion, the fields of the scheduler must tell a distilled model.
fn traits(scheduler: &Config, unet: &Unet, side_multiple: usize) -> Result<Traits> {
    let usual = Traits {
        family: "Stable Diffusion XL",
        references: 0,
        begins_with_reference: false,
        steps: 30,
        guidance: 5.0,
        side_multiple,
        batch: MAX_BATCH,
        negative: unet.guidance.is_none(),
    };
    if unet.guidance.is_some() {
        return Ok(Traits { family: "Latent Consistency Model XL", steps: 4, guidance: 8.0, ..usual });
    }
    if scheduler.text("timestep_spacing", "")? == "trailing" {
        return Ok(Traits { family: "Stable Diffusion XL Turbo", steps: 1, guidance: 0.0, ..usual });
    }
    Ok(usual)
}

impl Family for StableDiffusionXl {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3] {
        let factor = self.decoder.factor();
        [self.unet.channels, height / factor, width / factor]
    }

    /// Those of the first text encoder; the second one has other padding.
    fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        self.first.tokens(prompt)
    }

    fn embed(&self, sessions: &Sessions, prompt: &str) -> Result<Embedding> {
        let first = self.first.embed(sessions, prompt)?;
        let [second, pooled] = self.second.embed_whole(sessions, prompt, self.pooled)?;
        let rows = first.chunks_exact(self.first.clip.width).zip(second.chunks_exact(self.second.clip.width));
        Ok(Embedding { states: rows.flat_map(|(first, second)| [first, second].concat()).collect(), pooled })
    }

    fn zeros_for_nothing(&self) -> bool {
        self.zeros
    }

    fn scheduler(&self, steps: usize, _: [usize; 3], _: bool) -> Result<Box<dyn Scheduler>> {
        set(&self.scheduler, steps, 1.0)
    }

    fn denoiser<'a>(
        &'a self,
        sessions: &Sessions,
        batch: usize,
        shape: [usize; 3],
        guide: &'a Guide,
    ) -> Result<Box<dyn Denoiser + 'a>> {
        let (tokens, factor) = (self.first.clip.tokens, self.decoder.factor());
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
