//! What all Stable Diffusion pipelines share: the UNet, either of two decoders, and the scheduler.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use tintype_engine::{Picture, PromptSyntax};

use super::encoders::ClipEncoder;
use super::family::planes;
use super::mask::repainted;
use super::{Denoiser, Embedding, Family, Guide, Latent, Traits, decode, encoder_of_pictures, single_file};
use crate::config::Config;
use crate::graph::Graph;
use crate::models::tiny_vae::TinyVae;
use crate::models::unet::Unet;
use crate::models::vae::Vae;
use crate::noise::Noise;
use crate::quantise::WeightPreparation;
use crate::runtime::{Input, PartKey, Session, Sessions};
use crate::schedulers::{DISTILLED, Scheduler, TWICE, scheduler};
use crate::weights::Weights;
use crate::{Error, Result};

/// The most pictures in a batch. More save no further time per picture.
const MAX_BATCH: usize = 8;

/// How much noise a reference gets, from 0 to 1: the default in `diffusers` for Stable Diffusion, and for turbo models
/// their makers' advice.
const STRENGTH: f64 = 0.8;
const HALF_STRENGTH: f64 = 0.5;
/// The least noise. Less would not be visible.
const LEAST_STRENGTH: f64 = 0.02;

/// How much the factors of two autoencoders of one family can differ, relative to each other.
const SAME_SCALING: f32 = 0.01;

/// Latent pixels of the pictures that turbo models were trained on.
const TURBO_AREA: usize = 64 * 64;

#[derive(Debug)]
enum Kind {
    Large(Vae),
    Tiny(TinyVae),
}

/// Whether an autoencoder's weights, large or tiny, include its encoder.
pub(super) fn encodes(weights: &Weights) -> bool {
    ["encoder.conv_in.weight", "encoder.layers.0.weight"].iter().any(|first| weights.get(first).is_some())
}

#[derive(Debug)]
struct Decoder {
    kind: Kind,
    weights: Weights,
}

impl Decoder {
    /// Reads the decoder's configuration for a UNet's latent pictures, and compares its weights.
    fn read(config: &Config, weights: Weights, unet: &Unet) -> Result<Self> {
        let kind = match config.text("_class_name", "AutoencoderKL")? {
            "AutoencoderTiny" => Kind::Tiny(TinyVae::read(config)?),
            _ => {
                let mut vae = Vae::read(config)?;
                // These families' pipelines ignore it.
                vae.shift = 0.0;
                Kind::Large(vae)
            }
        };
        let (made, taken) = match &kind {
            Kind::Large(vae) => (unet.channels, vae.channels),
            Kind::Tiny(vae) => (unet.channels, vae.channels),
        };
        if made != taken {
            return Err(Error::Model(format!(
                "the UNet makes latent pictures of {made} channels, the autoencoder takes {taken}"
            )));
        }
        let decoder = Self { kind, weights };
        decoder.graph(8, 8)?;
        if unet.sees_masks() && !decoder.encodes() {
            return Err(Error::Model(
                "the UNet was made for inpainting, which needs the encoder of the autoencoder, but its files hold none"
                    .into(),
            ));
        }
        if decoder.encodes() {
            let side = decoder.factor() * 8;
            decoder.encoder_graph(side, side)?;
        }
        Ok(decoder)
    }

    /// The decoder in a file or folder, replacing the model's `own`, if it has one.
    fn other(path: &Path, own: Option<&Self>, unet: &Unet) -> Result<Self> {
        let by_family = if unet.addition.is_some() { single_file::SCALING_XL } else { single_file::SCALING };
        let scaling = own.and_then(Self::scaling).unwrap_or(by_family);
        let wrong = |what: String| {
            let path = path.display().to_string();
            let named = if what.contains(&path) { String::new() } else { format!("the VAE {path}: ") };
            Error::Vae(format!("{named}{what}: use a VAE that was made for this model, or leave it out"))
        };
        let unusable = |error: Error| error.beside(wrong);
        let (config, weights) = single_file::vae_parts(path, scaling).map_err(unusable)?;
        config.one_of("_class_name", &["AutoencoderKL", "AutoencoderTiny"]).map_err(unusable)?;
        let other = Self::read(&config, weights, unet).map_err(unusable)?;
        let [found, wanted] = [other.factor(), own.map_or(other.factor(), Self::factor)];
        if found != wanted {
            return Err(wrong(format!(
                "it makes {found} pixels of each pixel of a latent picture, along a side, but {wanted} are needed"
            )));
        }
        if let Some(found) = other.scaling().filter(|found| (found / scaling - 1.0).abs() > SAME_SCALING) {
            return Err(wrong(format!(
                "its latent pictures are scaled by {found}, but those of this model by {scaling}, so it belongs to another \
                 family"
            )));
        }
        if own.is_some_and(Self::encodes) && !other.encodes() {
            return Err(wrong("it holds no encoder, which reference pictures need".into()));
        }
        Ok(other)
    }

    /// The latents' scaling factor, which tells families apart; `None` for a tiny autoencoder, which scales by itself.
    fn scaling(&self) -> Option<f32> {
        match &self.kind {
            Kind::Large(vae) => Some(vae.scaling),
            Kind::Tiny(_) => None,
        }
    }

    /// Pixels per latent pixel, along a side.
    fn factor(&self) -> usize {
        match &self.kind {
            Kind::Large(vae) => vae.factor(),
            Kind::Tiny(vae) => vae.factor(),
        }
    }

    fn graph(&self, height: usize, width: usize) -> Result<Graph> {
        match &self.kind {
            Kind::Large(vae) => vae.graph(&self.weights, height, width),
            Kind::Tiny(vae) => vae.graph(&self.weights, height, width),
        }
    }

    /// Whether its files also contain an encoder.
    fn encodes(&self) -> bool {
        encodes(&self.weights)
    }

    fn encoder_graph(&self, height: usize, width: usize) -> Result<Graph> {
        match &self.kind {
            Kind::Large(vae) => vae.encoder_graph(&self.weights, height, width),
            Kind::Tiny(vae) => vae.encoder_graph(&self.weights, height, width),
        }
    }

    /// Encodes a picture's planes of the given size: the latent picture's channels, and from a large autoencoder the
    /// same number of channels for the standard deviation. Both are scaled.
    fn encode(&self, sessions: &Sessions, planes: &[f32], [height, width]: [usize; 2]) -> Result<Latent> {
        let shape = [1, 3, height, width];
        let graph = |height, width| self.encoder_graph(height, width);
        let session = encoder_of_pictures(sessions, [height, width], self.factor(), graph)?;
        let inputs = [("picture", Input::Floats(&shape, planes))];
        let (channels, numbers) = match &self.kind {
            Kind::Tiny(vae) => {
                let [latent] = session.run(&inputs, ["latent"])?;
                (vae.channels, latent.into_iter().map(|x| x * vae.scaling).collect())
            }
            Kind::Large(vae) => {
                let [latent, spread] = session.run(&inputs, ["latent", "spread"])?;
                let latent = latent.into_iter().map(|x| (x - vae.shift) * vae.scaling);
                let deviations = spread.into_iter().map(|x| (x.clamp(-30.0, 20.0) / 2.0).exp() * vae.scaling);
                (vae.channels * 2, latent.chain(deviations).collect())
            }
        };
        let factor = self.factor();
        Ok(Latent { shape: [channels, height / factor, width / factor], numbers })
    }

    /// Draws one of the latent pictures that an encoded picture stands for.
    fn draw(&self, encoded: &Latent, noise: &mut Noise) -> Vec<f32> {
        if matches!(self.kind, Kind::Tiny(_)) {
            return encoded.numbers.clone();
        }
        let (means, deviations) = encoded.numbers.split_at(encoded.numbers.len() / 2);
        let noise = noise.normal(means.len());
        means.iter().zip(deviations).zip(noise).map(|((mean, deviation), noise)| mean + deviation * noise).collect()
    }

    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
        let (scaling, shift) = match &self.kind {
            Kind::Large(vae) => (vae.scaling, vae.shift),
            Kind::Tiny(vae) => (vae.scaling, 0.0),
        };
        decode(sessions, |height, width| self.graph(height, width), [scaling, shift], latent)
    }
}

/// A model's UNet with everything that turns its answers into pictures.
#[derive(Debug)]
pub(super) struct Body {
    unet: Unet,
    weights: Weights,
    /// Tokens per chunk of a prompt.
    tokens: usize,
    decoder: Decoder,
    scheduler: Config,
}

impl Body {
    /// Compares the weights with the configurations, and tries out the scheduler. The VAE at `other` replaces the
    /// model's.
    pub(super) fn open(
        (unet, weights): (Unet, Weights),
        vae: Option<(Config, Weights)>,
        scheduler: Config,
        tokens: usize,
        other: Option<&Path>,
    ) -> Result<Self> {
        let own = vae.map(|(config, weights)| Decoder::read(&config, weights, &unet)).transpose()?;
        let decoder = match (own, other) {
            (own, Some(path)) => Decoder::other(path, own.as_ref(), &unet)?,
            (Some(own), None) => own,
            (None, None) => return Err(Error::Unusable("the model has no VAE: give one as --engine-vae".into())),
        };
        let body = Self { unet, weights, tokens, decoder, scheduler };
        body.scheduler(1, 1.0)?;
        body.unet.graph(&body.weights, 1, [8, 8], tokens)?;
        Ok(body)
    }

    /// These parts with weights in the requested precision.
    pub(super) fn prepared(self, suit: &mut WeightPreparation<'_>) -> Result<Self> {
        let uses = self.unet.graph(&self.weights, 1, [8, 8], self.tokens)?.uses;
        let decoder = Decoder { weights: suit.autoencoder(self.decoder.weights), ..self.decoder };
        Ok(Self { weights: suit.weights("unet", self.weights, &uses)?, decoder, ..self })
    }

    /// The model's traits. `variants` holds a family, the steps and the guidance for each way in which the model can have
    /// been made: `[usual, distilled, consistent, turbo]`. No field in a folder says how many steps suit the model, so
    /// others must tell: LCM has a guidance input, or its own scheduler if its weights were merged into another model.
    pub(super) fn traits(&self, index: &Config, variants: [(&'static str, usize, f32); 4]) -> Result<Traits> {
        let [usual, distilled, consistent, turbo] = variants;
        let takes_guidance = self.unet.guidance.is_some();
        let class = self.scheduler.text("_class_name", "")?;
        let ((family, steps, guidance), strength) =
            if takes_guidance || index.text("_class_name", "")? == "LatentConsistencyModelPipeline" {
                (distilled, STRENGTH)
            } else if self.is_consistent()? {
                (consistent, STRENGTH)
            } else if self.is_turbo()? {
                (turbo, HALF_STRENGTH)
            } else {
                (usual, STRENGTH)
            };
        Ok(Traits {
            family,
            references: usize::from(self.decoder.encodes()),
            begins_with_reference: true,
            masks: self.decoder.encodes(),
            steps,
            calls: if TWICE.contains(&class) { 2 } else { 1 },
            guidance,
            side_multiple: self.decoder.factor(),
            trained_pixels: self.unet.area * self.decoder.factor().pow(2),
            batch: MAX_BATCH,
            negative: !takes_guidance,
            strength,
        })
    }

    /// Whether the model was made for a single step. No field says so, but turbo models are trained at 512 pixels,
    /// predict noise, and begin at the training's very last time step.
    fn is_turbo(&self) -> Result<bool> {
        let scheduler = &self.scheduler;
        let is_euler = scheduler.text("_class_name", "")?.starts_with("Euler");
        let begins_last = scheduler.text("timestep_spacing", "")? == "trailing";
        let predicts_noise = scheduler.text("prediction_type", "epsilon")? == "epsilon";
        Ok(is_euler && begins_last && predicts_noise && self.unet.area <= TURBO_AREA)
    }

    /// Whether the scheduler takes a distilled model's few steps. The distilled weights may have been merged into
    /// another model.
    fn is_consistent(&self) -> Result<bool> {
        Ok(DISTILLED.contains(&self.scheduler.text("_class_name", "")?))
    }

    /// The smallest part of the noise, from 0 to 1, that has `steps` steps in a latent consistency model.
    fn part_of_steps(&self, steps: usize) -> Result<f64> {
        let all = self.scheduler.number_or("original_inference_steps", 50)?;
        // Half a step more, because the scheduler rounds down; and that part must contain one of the steps.
        Ok(((steps as f64 + 0.5) / all as f64).max(1.0 / steps as f64).min(1.0))
    }

    /// Encodes a reference picture for a latent shape. The part that a mask marks becomes grey.
    fn look(
        &self,
        sessions: &Sessions,
        reference: &Picture,
        mask: Option<&Picture>,
        [_, rows, columns]: [usize; 3],
    ) -> Result<Latent> {
        let size = [rows, columns].map(|side| side * self.decoder.factor());
        let [height, width] = size.map(|side| u32::try_from(side).unwrap_or(u32::MAX));
        let mut planes = planes(&reference.clone().fit(width, height));
        if let Some(mask) = mask {
            let repainted = repainted(mask, size);
            for plane in planes.chunks_exact_mut(repainted.len()) {
                plane.iter_mut().zip(&repainted).filter(|(_, repaints)| **repaints).for_each(|(x, _)| *x = 0.0);
            }
        }
        self.decoder.encode(sessions, &planes, size)
    }

    /// Creates a scheduler. For a picture that begins with a reference, `strength` is how much of the noise it gets.
    fn scheduler_for(&self, steps: usize, strength: Option<f64>) -> Result<Box<dyn Scheduler>> {
        let Some(strength) = strength else { return self.scheduler(steps, 1.0) };
        let strength = strength.clamp(LEAST_STRENGTH, 1.0);
        if self.is_consistent()? {
            // All of its steps are in the last part of the noise, which must contain enough of them.
            let least = self.part_of_steps(steps)?;
            return self.scheduler(steps, strength.max(least));
        }
        // At least one step remains, starting from the middle for a one-step model.
        let least = (1.0 / strength).ceil() as usize;
        self.scheduler(steps.max(least), strength)
    }

    /// Creates a scheduler for the last `strength` of all noise, from 0 to 1.
    fn scheduler(&self, steps: usize, strength: f64) -> Result<Box<dyn Scheduler>> {
        scheduler(&self.scheduler, steps, strength)
    }
}

/// The CLIP text encoders in front of a UNet.
pub(super) trait TextEncoders: Debug + Send {
    /// The first encoder. Others can only differ in their padding.
    fn first(&self) -> &ClipEncoder;

    fn embed(&self, sessions: &Sessions, prompt: &str, syntax: PromptSyntax) -> Result<Embedding>;

    /// As [`Family::zeros_for_nothing`].
    fn zeros_for_nothing(&self) -> bool {
        false
    }
}

/// A model whose UNet makes a latent picture from its text encoders' output.
#[derive(Debug)]
pub(super) struct LatentDiffusion<T> {
    pub traits: Traits,
    pub text: T,
    pub body: Body,
}

impl<T: TextEncoders> Family for LatentDiffusion<T> {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3] {
        let factor = self.body.decoder.factor();
        [self.body.unet.channels, height / factor, width / factor]
    }

    fn tokens(&self, prompt: &str, syntax: PromptSyntax) -> Result<Vec<i32>> {
        Ok(self.text.first().tokens(prompt, syntax)?.into_iter().flat_map(|chunk| chunk.ids).collect())
    }

    fn embed(&self, sessions: &Sessions, prompt: &str, syntax: PromptSyntax) -> Result<Embedding> {
        self.text.embed(sessions, prompt, syntax)
    }

    fn takes_weighted_prompts(&self) -> bool {
        true
    }

    fn zeros_for_nothing(&self) -> bool {
        self.text.zeros_for_nothing()
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
        let [_, height, width] = shape;
        let Body { unet, weights, tokens: in_chunk, decoder, .. } = &self.body;
        // A long prompt has several chunks of tokens.
        let chunk = batch * in_chunk * unet.context;
        let tokens = guide.prompt.states.len() / chunk * in_chunk;
        let examples = [(2, [10, 14, *in_chunk]), (3, [22, 26, 2 * in_chunk])];
        let examples = examples.each_ref().map(|(batch, sizes)| (*batch, sizes.as_slice()));
        let key = PartKey { part: "unet", batch, sizes: &[height, width, tokens], examples };
        let session = sessions.of(key, |batch, sizes| unet.graph(weights, batch, [sizes[0], sizes[1]], sizes[2]))?;
        let guidance = unet.guidance.map(|size| embed_guidance(guide.guidance, size));
        // The picture is neither scaled nor cropped: its original size, the crop's corner, and its target size.
        let [height, width] = [height, width].map(|side| side * decoder.factor());
        let sizes = [height, width, 0, 0, height, width];
        Ok(Box::new(Loaded { unet, session, shape, batch, tokens, guidance, sizes }))
    }

    fn decodes_quickly(&self) -> bool {
        matches!(self.body.decoder.kind, Kind::Tiny(_))
    }

    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
        self.body.decoder.decode(sessions, latent)
    }
}

/// The UNet, loaded for one size and one batch.
struct Loaded<'a> {
    unet: &'a Unet,
    session: Arc<Session>,
    shape: [usize; 3],
    batch: usize,
    tokens: usize,
    guidance: Option<Vec<f32>>,
    sizes: [usize; 6],
}

impl Denoiser for Loaded<'_> {
    fn predict(&self, samples: &[f32], time: f32, prompts: &Embedding) -> Result<Vec<f32>> {
        let latent = [self.batch, self.unet.inputs, self.shape[1], self.shape[2]];
        let time = self.unet.embed_time(time);
        let (times, tokens) = ([1, time.len()], [self.batch * self.tokens, self.unet.context]);
        let mut inputs = vec![
            ("latent", Input::Floats(&latent, samples)),
            ("time", Input::Floats(&times, &time)),
            ("context", Input::Floats(&tokens, &prompts.states)),
        ];
        let guidances = [1, self.guidance.as_ref().map_or(0, Vec::len)];
        if let Some(guidance) = &self.guidance {
            inputs.push(("guidance", Input::Floats(&guidances, guidance)));
        }
        let addition = self.unet.addition;
        let of = |addition| {
            let pooled = prompts.pooled.chunks((prompts.pooled.len() / self.batch).max(1));
            let each = pooled.map(|pooled| self.unet.embed_addition(addition, pooled, &self.sizes));
            each.collect::<Result<Vec<_>>>().map(|each| each.concat())
        };
        let addition = addition.map(of).transpose()?;
        let additions = [self.batch, addition.as_ref().map_or(0, Vec::len) / self.batch];
        if let Some(addition) = &addition {
            inputs.push(("addition", Input::Floats(&additions, addition)));
        }
        let [noise] = self.session.run(&inputs, ["noise"])?;
        Ok(noise)
    }
}

/// The guidance embedding that distilled models take.
pub fn embed_guidance(guidance: f32, size: usize) -> Vec<f32> {
    let half = size / 2;
    let frequency = |at: usize| (-(10_000_f64.ln()) * at as f64 / (half as f64 - 1.0)).exp() as f32;
    let angles: Vec<_> = (0..half).map(|at| (guidance - 1.0) * 1000.0 * frequency(at)).collect();
    let mut numbers: Vec<_> =
        angles.iter().map(|angle| angle.sin()).chain(angles.iter().map(|angle| angle.cos())).collect();
    numbers.resize(size, 0.0);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guidance_is_embedded_as_sines_and_cosines() {
        assert_eq!(embed_guidance(1.0, 5), [0.0, 0.0, 1.0, 1.0, 0.0]);
    }
}
