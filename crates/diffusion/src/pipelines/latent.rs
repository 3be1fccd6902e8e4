//! The parts that all pipelines of Stable Diffusion share: the UNet, and either of two decoders.

use std::sync::Arc;

use tintype_engine::Picture;

use super::family::planes;
use super::{Denoiser, Embedding, Guide, Latent, decode};
use crate::config::Config;
use crate::graph::Graph;
use crate::models::tiny_vae::TinyVae;
use crate::models::unet::Unet;
use crate::models::vae::Vae;
use crate::noise::Noise;
use crate::runtime::{Input, Session, Sessions};
use crate::weights::Weights;
use crate::{Error, Result};

/// The most pictures of a batch. More take no less time each.
pub(super) const MAX_BATCH: usize = 8;

/// The decoder of a model.
#[derive(Debug)]
enum Kind {
    Large(Vae),
    Tiny(TinyVae),
}

/// Whether the weights of an autoencoder, a large or a tiny one, are also those of its encoder.
pub(super) fn encodes(weights: &Weights) -> bool {
    ["encoder.conv_in.weight", "encoder.layers.0.weight"].iter().any(|first| weights.get(first).is_some())
}

/// The decoder of a model with its weights.
#[derive(Debug)]
pub(super) struct Decoder {
    kind: Kind,
    weights: Weights,
}

impl Decoder {
    /// Reads the configuration of the decoder for the latent pictures of a UNet, and compares its weights.
    pub(super) fn read(config: &Config, weights: Weights, unet: &Unet) -> Result<Self> {
        let kind = match config.text("_class_name", "AutoencoderKL")? {
            "AutoencoderTiny" => Kind::Tiny(TinyVae::read(config)?),
            _ => Kind::Large(Vae::read(config)?),
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
        if decoder.encodes() {
            let side = decoder.factor() * 8;
            decoder.encoder_graph(side, side)?;
        }
        Ok(decoder)
    }

    /// Pixels of the picture for each pixel of the latent picture, along a side.
    pub(super) fn factor(&self) -> usize {
        match &self.kind {
            Kind::Large(vae) => vae.factor(),
            Kind::Tiny(vae) => vae.factor(),
        }
    }

    /// Whether it takes less time than a step.
    pub(super) fn is_quick(&self) -> bool {
        matches!(self.kind, Kind::Tiny(_))
    }

    fn graph(&self, height: usize, width: usize) -> Result<Graph> {
        match &self.kind {
            Kind::Large(vae) => vae.graph(&self.weights, height, width),
            Kind::Tiny(vae) => vae.graph(&self.weights, height, width),
        }
    }

    /// Whether its files hold an encoder, too.
    pub(super) fn encodes(&self) -> bool {
        encodes(&self.weights)
    }

    fn encoder_graph(&self, height: usize, width: usize) -> Result<Graph> {
        match &self.kind {
            Kind::Large(vae) => vae.encoder_graph(&self.weights, height, width),
            Kind::Tiny(vae) => vae.encoder_graph(&self.weights, height, width),
        }
    }

    /// Encodes a picture: the channels of the latent picture, and from a large autoencoder as many more of the deviations
    /// around it. Both are scaled.
    pub(super) fn encode(&self, sessions: &Sessions, picture: &Picture) -> Result<Latent> {
        let [height, width] = [picture.height() as usize, picture.width() as usize];
        let (planes, shape) = (planes(picture), [1, 3, height, width]);
        let graph = || self.encoder_graph(height, width);
        let session = sessions.of("vae_encoder", &[height, width], graph)?;
        let inputs = [("picture", Input::Floats(&shape, planes.as_slice()))];
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

    /// One of the latent pictures that an encoded picture stands for.
    pub(super) fn draw(&self, encoded: &Latent, noise: &mut Noise) -> Vec<f32> {
        if matches!(self.kind, Kind::Tiny(_)) {
            return encoded.numbers.clone();
        }
        let (means, deviations) = encoded.numbers.split_at(encoded.numbers.len() / 2);
        let noise = noise.normal(means.len());
        means.iter().zip(deviations).zip(noise).map(|((mean, deviation), noise)| mean + deviation * noise).collect()
    }

    pub(super) fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
        let [_, height, width] = latent.shape;
        let (scaling, shift) = match &self.kind {
            Kind::Large(vae) => (vae.scaling, vae.shift),
            Kind::Tiny(vae) => (vae.scaling, 0.0),
        };
        decode(sessions, || self.graph(height, width), [scaling, shift], latent)
    }
}

/// The UNet, loaded for one size and one batch.
pub(super) struct Loaded<'a> {
    unet: &'a Unet,
    session: Arc<Session>,
    shape: [usize; 3],
    batch: usize,
    tokens: usize,
    guidance: Option<Vec<f32>>,
    sizes: [usize; 6],
}

impl<'a> Loaded<'a> {
    /// `factor` is the number of pixels of the picture for each pixel of the latent picture, along a side.
    pub(super) fn new(
        sessions: &Sessions,
        (unet, weights): (&'a Unet, &Weights),
        tokens: usize,
        batch: usize,
        shape: [usize; 3],
        factor: usize,
        guide: &Guide,
    ) -> Result<Self> {
        let [_, height, width] = shape;
        let graph = || unet.graph(weights, batch, [height, width], tokens);
        let session = sessions.of_batch("unet", batch, &[height, width], graph)?;
        let guidance = unet.guidance.map(|size| embed_guidance(guide.guidance, size));
        // The picture is neither scaled nor cut: its size before, where it begins, and its size now.
        let (height, width) = (height * factor, width * factor);
        Ok(Self { unet, session, shape, batch, tokens, guidance, sizes: [height, width, 0, 0, height, width] })
    }
}

impl Denoiser for Loaded<'_> {
    fn predict(&self, samples: &[f32], time: f32, prompts: &Embedding) -> Result<Vec<f32>> {
        let latent = [self.batch, self.shape[0], self.shape[1], self.shape[2]];
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

/// The embedding of the guidance that distilled models take.
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
