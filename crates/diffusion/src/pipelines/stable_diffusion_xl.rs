//! Stable Diffusion XL, and models distilled from it.

use tintype_engine::{Picture, PromptSyntax};

use super::encoders::{ClipEncoder, ClipParts};
use super::latent::{Body, HALF_STRENGTH, MAX_BATCH, STRENGTH};
use super::stable_diffusion::Parts;
use super::{Denoiser, Embedding, Family, Guide, Latent, Traits};
use crate::models::clip::Clip;
use crate::models::unet::Unet;
use crate::noise::Noise;
use crate::quantise::WeightPreparation;
use crate::runtime::Sessions;
use crate::schedulers::Scheduler;
use crate::textual_inversion;
use crate::{Error, Result};

/// One of the two text encoders.
fn encoder(part: &'static str, parts: ClipParts) -> Result<ClipEncoder> {
    if Clip::read(&parts.config)?.layers < 2 {
        return Err(Error::Model(format!("{part} has a single layer, but the last one is not used")));
    }
    ClipEncoder::open(part, parts)
}

/// The output with the states of all tokens before the last layer.
fn layer(encoder: &ClipEncoder) -> String {
    format!("layer.{}", encoder.clip.layers - 2)
}

#[derive(Debug)]
pub(super) struct StableDiffusionXl {
    traits: Traits,
    first: ClipEncoder,
    second: ClipEncoder,
    /// Numbers in the embedding of a whole prompt.
    pooled: usize,
    body: Body,
    zeros: bool,
}

impl StableDiffusionXl {
    pub(super) fn open(parts: Parts<2>, suit: &mut WeightPreparation<'_>) -> Result<Self> {
        let unet = Unet::read(&parts.unet)?;
        let [first, second] = parts.encoders;
        let (first, second) = (encoder("text_encoder", first)?, encoder("text_encoder_2", second)?);
        let (text, image) = (first.clip.width + second.clip.width, unet.context);
        if text != image || first.clip.tokens != second.clip.tokens {
            return Err(Error::Model(format!(
                "the text encoders give {text} numbers a token, but the UNet takes {image}, or they take other numbers of \
                 tokens"
            )));
        }
        let (Some(addition), Some(pooled)) = (unet.addition, second.clip.projection) else {
            return Err(Error::Model(
                "the UNet and the second text encoder do not belong to Stable Diffusion XL".into(),
            ));
        };
        unet.embed_addition(addition, &vec![0.0; pooled], &[0; 6])?;
        let widths = [first.clip.width, second.clip.width];
        let [words, words_2] = textual_inversion::read(&suit.options.embeddings, widths, first.room())?;
        let (first, second) = (first.knowing(words), second.knowing(words_2));
        let unet = (unet, parts.unet_weights);
        let body = Body::open(unet, parts.vae, parts.scheduler, first.clip.tokens, suit.options.vae.as_deref())?;
        Ok(Self {
            traits: traits(&body)?,
            first: first.prepared(suit)?,
            second: second.prepared(suit)?,
            pooled,
            body: body.prepared(suit)?,
            zeros: parts.index.flag("force_zeros_for_empty_prompt", true)?,
        })
    }
}

/// As for Stable Diffusion, the fields of the scheduler must tell a distilled model.
fn traits(body: &Body) -> Result<Traits> {
    let distilled = body.unet.guidance.is_some();
    let usual = Traits {
        family: "Stable Diffusion XL",
        references: usize::from(body.decoder.encodes()),
        begins_with_reference: true,
        masks: body.decoder.encodes(),
        steps: 30,
        calls: body.calls()?,
        guidance: 5.0,
        side_multiple: body.decoder.factor(),
        trained_pixels: body.unet.area * body.decoder.factor().pow(2),
        batch: MAX_BATCH,
        negative: !distilled,
        strength: STRENGTH,
    };
    if distilled {
        return Ok(Traits { family: "Latent Consistency Model XL", steps: 4, guidance: 8.0, ..usual });
    }
    if body.is_consistent()? {
        return Ok(Traits { family: "Stable Diffusion XL with LCM", steps: 4, guidance: 1.0, ..usual });
    }
    if body.is_turbo()? {
        return Ok(Traits {
            family: "Stable Diffusion XL Turbo",
            steps: 1,
            guidance: 0.0,
            strength: HALF_STRENGTH,
            ..usual
        });
    }
    Ok(usual)
}

impl Family for StableDiffusionXl {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3] {
        self.body.latent_shape(width, height)
    }

    /// Those of the first text encoder; the second one has other padding.
    fn tokens(&self, prompt: &str, syntax: PromptSyntax) -> Result<Vec<i32>> {
        Ok(self.first.tokens(prompt, syntax)?.into_iter().flat_map(|chunk| chunk.ids).collect())
    }

    fn embed(&self, sessions: &Sessions, prompt: &str, syntax: PromptSyntax) -> Result<Embedding> {
        let tokens = self.first.tokens(prompt, syntax)?;
        let [first] = self.first.run(sessions, &tokens, [layer(&self.first).as_str()])?;
        let tokens = self.second.tokens(prompt, syntax)?;
        let [second, all] = self.second.run(sessions, &tokens, [layer(&self.second).as_str(), "projected"])?;
        // The first chunk stands for the whole prompt.
        let last = tokens.first().map_or(0, |chunk| self.second.clip.last(&chunk.ids)) * self.pooled;
        let rows = first.chunks_exact(self.first.clip.width).zip(second.chunks_exact(self.second.clip.width));
        let states = rows.flat_map(|(first, second)| [first, second].concat()).collect();
        Ok(Embedding { states, pooled: all[last..last + self.pooled].to_vec() })
    }

    fn takes_weighted_prompts(&self) -> bool {
        true
    }

    fn zeros_for_nothing(&self) -> bool {
        self.zeros
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
