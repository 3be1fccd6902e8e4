//! Stable Diffusion XL, and models distilled from it.

use tintype_engine::PromptSyntax;

use super::Embedding;
use super::encoders::{ClipEncoder, ClipParts};
use super::latent::{Body, LatentDiffusion, TextEncoders};
use super::stable_diffusion::Parts;
use crate::models::clip::Clip;
use crate::models::unet::Unet;
use crate::quantise::WeightPreparation;
use crate::runtime::Sessions;
use crate::textual_inversion;
use crate::{Error, Result};

fn encoder(part: &'static str, parts: ClipParts) -> Result<ClipEncoder> {
    if Clip::read(&parts.config)?.layers < 2 {
        return Err(Error::Model(format!("{part} has a single layer, but the last one is not used")));
    }
    ClipEncoder::open(part, parts)
}

/// The output with all tokens' states before the last layer.
fn layer(encoder: &ClipEncoder) -> String {
    format!("layer.{}", encoder.clip.layers - 2)
}

#[derive(Debug)]
pub(super) struct Encoders {
    first: ClipEncoder,
    second: ClipEncoder,
    /// Size of a whole prompt's embedding.
    pooled: usize,
    zeros: bool,
}

pub(super) fn open(parts: Parts<2>, suit: &mut WeightPreparation<'_>) -> Result<LatentDiffusion<Encoders>> {
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
        return Err(Error::Model("the UNet and the second text encoder do not belong to Stable Diffusion XL".into()));
    };
    unet.embed_addition(addition, &vec![0.0; pooled], &[0; 6])?;
    let widths = [first.clip.width, second.clip.width];
    let [words, words_2] = textual_inversion::read(&suit.options.embeddings, widths, first.room())?;
    let (first, second) = (first.knowing(words), second.knowing(words_2));
    let unet = (unet, parts.unet_weights);
    let body = Body::open(unet, parts.vae, parts.scheduler, first.clip.tokens, suit.options.vae.as_deref())?;
    let variants = [
        ("Stable Diffusion XL", 30, 5.0),
        ("Latent Consistency Model XL", 4, 8.0),
        ("Stable Diffusion XL with LCM", 4, 1.0),
        ("Stable Diffusion XL Turbo", 1, 0.0),
    ];
    let traits = body.traits(&parts.index, variants)?;
    let zeros = parts.index.flag("force_zeros_for_empty_prompt", true)?;
    let text = Encoders { first: first.prepared(suit)?, second: second.prepared(suit)?, pooled, zeros };
    Ok(LatentDiffusion { traits, text, body: body.prepared(suit)? })
}

impl TextEncoders for Encoders {
    fn first(&self) -> &ClipEncoder {
        &self.first
    }

    fn embed(&self, sessions: &Sessions, prompt: &str, syntax: PromptSyntax) -> Result<Embedding> {
        let tokens = self.first.tokens(prompt, syntax)?;
        let [first] = self.first.run(sessions, &tokens, [layer(&self.first).as_str()])?;
        let tokens = self.second.tokens(prompt, syntax)?;
        let [second, all] = self.second.run(sessions, &tokens, [layer(&self.second).as_str(), "projected"])?;
        // The first chunk represents the whole prompt.
        let last = tokens.first().map_or(0, |chunk| self.second.clip.last(&chunk.ids)) * self.pooled;
        let rows = first.chunks_exact(self.first.clip.width).zip(second.chunks_exact(self.second.clip.width));
        let states = rows.flat_map(|(first, second)| [first, second].concat()).collect();
        Ok(Embedding { states, pooled: all[last..last + self.pooled].to_vec() })
    }

    fn zeros_for_nothing(&self) -> bool {
        self.zeros
    }
}
