//! FLUX.2 klein.

use std::sync::Arc;

use serde_json::json;
use tintype_engine::{Picture, PromptSyntax};

use super::encoders::{QwenEncoder, QwenParts, check_widths};
use super::family::planes;
use super::{Denoiser, Embedding, Family, Guide, Latent, Traits, decode, encoder_of_pictures};
use crate::config::Config;
use crate::models::flux2::Flux2;
use crate::models::vae::Vae;
use crate::quantise::WeightPreparation;
use crate::runtime::{Input, PartKey, Session, Sessions};
use crate::schedulers::{Flow, Scheduler, Shift};
use crate::tokenizer::Thinking;
use crate::weights::Weights;
use crate::{Error, Result};

/// Tokens of a prompt; shorter ones are padded.
const TOKENS: usize = 512;

/// The text encoder's layers after which states are taken.
const LAYERS: [usize; 3] = [9, 18, 27];

/// Two latent pixels of the autoencoder along each side, four in all, are one pixel of the transformer.
const PATCH: usize = 2;

/// As many references as the interface allows.
pub(super) const REFERENCES: usize = 4;

/// The most pixels of a reference. Larger ones are scaled down.
const REFERENCE_PIXELS: usize = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Flux2Klein {
    traits: Traits,
    encoder: QwenEncoder,
    transformer: Flux2,
    transformer_weights: Weights,
    vae: Vae,
    vae_weights: Weights,
    /// Means and standard deviations of the channels that the transformer sees.
    means: Vec<f32>,
    deviations: Vec<f32>,
    scheduler: Config,
}

impl Flux2Klein {
    pub(super) fn open(parts: QwenParts, suit: &mut WeightPreparation<'_>) -> Result<Self> {
        let QwenParts { index, encoder, tokenizer, transformer, vae: (vae_config, vae_weights), scheduler } = parts;
        let encoder_config = encoder.0.clone();
        let encoder = QwenEncoder::open(encoder, tokenizer.as_deref(), TOKENS, Thinking::Skipped)?;
        if encoder.qwen.layers <= LAYERS[LAYERS.len() - 1] {
            // The very last layer's states would be normalised.
            return Err(encoder_config.wrong("num_hidden_layers", "more than 27 layers are needed"));
        }
        let (transformer, transformer_weights) = (Flux2::read(&transformer.0)?, transformer.1);
        let vae = Vae::read(&vae_config)?;
        vae_config.only("patch_size", &json!([PATCH, PATCH]))?;
        let channels = vae.channels * PATCH * PATCH;
        let text = encoder.qwen.width * LAYERS.len();
        check_widths([text, transformer.context], [transformer.channels, channels])?;
        let epsilon = vae_config.fraction("batch_norm_eps", 1e-4)? as f32;
        let variances = vae_weights.numbers("bn.running_var", channels)?;
        let distilled = index.flag("is_distilled", false)?;
        let mut family = Self {
            traits: Traits {
                family: if distilled { "FLUX.2 klein" } else { "FLUX.2 klein base" },
                references: REFERENCES,
                begins_with_reference: false,
                masks: false,
                steps: if distilled { 4 } else { 50 },
                calls: 1,
                guidance: if distilled { 1.0 } else { 4.0 },
                side_multiple: vae.factor() * PATCH,
                trained_pixels: 0,
                batch: 1,
                negative: !distilled,
                strength: 1.0,
            },
            encoder,
            transformer,
            transformer_weights,
            means: vae_weights.numbers("bn.running_mean", channels)?,
            deviations: variances.iter().map(|variance| (variance + epsilon).sqrt()).collect(),
            vae,
            vae_weights,
            scheduler,
        };
        family.check()?;
        family.encoder = family.encoder.prepared(suit, TOKENS, &LAYERS)?;
        let uses = family.transformer.graph(&family.transformer_weights, [4, 4], &[], TOKENS)?.uses;
        family.vae_weights = suit.autoencoder(family.vae_weights);
        family.transformer_weights = suit.weights("transformer", family.transformer_weights, &uses)?;
        Ok(family)
    }

    /// Compares the unconverted weights with the configuration, and tries out the scheduler.
    fn check(&self) -> Result<()> {
        Flow::new(&self.scheduler, Shift::Fitted, 1, 1)?;
        self.vae.graph(&self.vae_weights, 8, 8)?;
        let side = self.traits.side_multiple;
        self.vae.encoder_graph(&self.vae_weights, side, side)?;
        Ok(())
    }

    /// The picture at the size at which a reference is seen: at most a megapixel, cropped around the centre to sides
    /// that suit the model.
    fn fit(&self, reference: &Picture) -> Result<Picture> {
        let (width, height) = (reference.width() as usize, reference.height() as usize);
        let scale = (REFERENCE_PIXELS as f64 / (width as f64 * height as f64)).sqrt().min(1.0);
        let multiple = self.traits.side_multiple;
        let [width, height] = [width, height].map(|side| (side as f64 * scale) as usize);
        let [to_width, to_height] = [width, height].map(|side| side / multiple * multiple);
        if to_width == 0 || to_height == 0 {
            return Err(Error::Order(format!("a reference picture has fewer than {multiple} pixels on a side")));
        }
        let picture = reference.clone().stretch(side(width), side(height));
        let (left, top) = ((width - to_width) / 2, (height - to_height) / 2);
        let rows = picture.as_rgb().chunks_exact(width * 3).skip(top).take(to_height);
        let bytes = rows.flat_map(|row| &row[left * 3..(left + to_width) * 3]).copied().collect();
        Picture::from_rgb(side(to_width), side(to_height), bytes)
            .ok_or_else(|| Error::Run("a reference picture has too few bytes".into()))
    }
}

fn side(pixels: usize) -> u32 {
    u32::try_from(pixels).unwrap_or(u32::MAX)
}

impl Family for Flux2Klein {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3] {
        let multiple = self.traits.side_multiple;
        [self.transformer.channels, height / multiple, width / multiple]
    }

    fn tokens(&self, prompt: &str, _: PromptSyntax) -> Result<Vec<i32>> {
        self.encoder.tokens(prompt)
    }

    fn embed(&self, sessions: &Sessions, prompt: &str, _: PromptSyntax) -> Result<Embedding> {
        let states = self.encoder.states(sessions, prompt, Some(TOKENS), LAYERS)?;
        let width = self.encoder.qwen.width;
        let token = |at: usize| states.iter().flat_map(move |states| &states[at * width..(at + 1) * width]);
        let states = (0..TOKENS).flat_map(token).copied().collect();
        Ok(Embedding { states, pooled: Vec::new() })
    }

    fn look(&self, sessions: &Sessions, reference: &Picture, _: [usize; 3]) -> Result<Latent> {
        let picture = self.fit(reference)?;
        let [width, height] = [picture.width() as usize, picture.height() as usize];
        let planes = planes(&picture);
        let graph = |height, width| self.vae.encoder_graph(&self.vae_weights, height, width);
        let session = encoder_of_pictures(sessions, [height, width], self.traits.side_multiple, graph)?;
        let shape = [1, 3, height, width];
        let [numbers] = session.run(&[("picture", Input::Floats(&shape, &planes))], ["latent"])?;
        let factor = self.vae.factor();
        let mut latent = patch(&numbers, [self.vae.channels, height / factor, width / factor]);
        let area = latent.shape[1] * latent.shape[2];
        for (at, channel) in latent.numbers.chunks_exact_mut(area).enumerate() {
            channel.iter_mut().for_each(|x| *x = (*x - self.means[at]) / self.deviations[at]);
        }
        Ok(latent)
    }

    fn scheduler(&self, steps: usize, [_, height, width]: [usize; 3], _: Option<f64>) -> Result<Box<dyn Scheduler>> {
        Ok(Box::new(Flow::new(&self.scheduler, Shift::Fitted, height * width, steps)?))
    }

    fn denoiser<'a>(
        &'a self,
        sessions: &Sessions,
        _batch: usize,
        shape: [usize; 3],
        guide: &'a Guide,
    ) -> Result<Box<dyn Denoiser + 'a>> {
        let [_, height, width] = shape;
        let sizes: Vec<_> = guide.references.iter().map(|latent| [latent.shape[1], latent.shape[2]]).collect();
        let all = [vec![[height, width]], sizes].concat();
        let examples = [(1, [6, 10, 4, 14].as_slice()), (1, [18, 22, 12, 8, 16, 26].as_slice())];
        let key = PartKey { part: "transformer", batch: 1, sizes: all.as_flattened(), examples };
        let session = sessions.of(key, |_, sizes| {
            let (pictures, _) = sizes.as_chunks::<2>();
            self.transformer.graph(&self.transformer_weights, pictures[0], &pictures[1..], TOKENS)
        })?;
        let references = guide.references.iter().flat_map(|latent| rows(&latent.numbers, latent.shape)).collect();
        Ok(Box::new(Loaded { transformer: &self.transformer, session, shape, references }))
    }

    fn positions(&self, latent: &Latent) -> Latent {
        let [_, height, width] = latent.shape;
        let channels = latent.numbers.chunks_exact(height * width).zip(self.means.iter().zip(&self.deviations));
        let numbers =
            channels.flat_map(|(channel, (mean, deviation))| channel.iter().map(move |x| x * deviation + mean));
        spread(&numbers.collect::<Vec<_>>(), latent.shape)
    }

    fn decode(&self, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
        let graph = |height, width| self.vae.graph(&self.vae_weights, height, width);
        decode(sessions, graph, [1.0, 0.0], &self.positions(latent))
    }
}

/// Turns squares of pixels into the channels of one pixel.
fn patch(numbers: &[f32], [channels, height, width]: [usize; 3]) -> Latent {
    let shape = [channels * PATCH * PATCH, height / PATCH, width / PATCH];
    let mut patched = Vec::with_capacity(numbers.len());
    for channel in 0..shape[0] {
        let (plane, down, right) = (channel / (PATCH * PATCH), channel / PATCH % PATCH, channel % PATCH);
        for row in 0..shape[1] {
            let row = plane * height + row * PATCH + down;
            patched.extend((0..shape[2]).map(|column| numbers[row * width + column * PATCH + right]));
        }
    }
    Latent { shape, numbers: patched }
}

/// Turns the channels of one pixel into squares of pixels: the inverse of [`patch`].
fn spread(numbers: &[f32], [channels, height, width]: [usize; 3]) -> Latent {
    let shape = [channels / (PATCH * PATCH), height * PATCH, width * PATCH];
    let mut spread = Vec::with_capacity(numbers.len());
    for plane in 0..shape[0] {
        for row in 0..shape[1] {
            let from = |column: usize| {
                let channel = (plane * PATCH + row % PATCH) * PATCH + column % PATCH;
                numbers[(channel * height + row / PATCH) * width + column / PATCH]
            };
            spread.extend((0..shape[2]).map(from));
        }
    }
    Latent { shape, numbers: spread }
}

struct Loaded<'a> {
    transformer: &'a Flux2,
    session: Arc<Session>,
    shape: [usize; 3],
    references: Vec<f32>,
}

/// One row for each position of a latent picture.
fn rows(numbers: &[f32], [channels, height, width]: [usize; 3]) -> impl Iterator<Item = f32> {
    let area = height * width;
    (0..area).flat_map(move |at| (0..channels).map(move |channel| numbers[channel * area + at]))
}

impl Denoiser for Loaded<'_> {
    fn predict(&self, sample: &[f32], time: f32, prompt: &Embedding) -> Result<Vec<f32>> {
        let pictures: Vec<f32> = rows(sample, self.shape).chain(self.references.iter().copied()).collect();
        let time = self.transformer.embed_time(time);
        let shape = [pictures.len() / self.shape[0], self.shape[0]];
        let inputs = [
            ("pictures", Input::Floats(&shape, &pictures)),
            ("time", Input::Floats(&[1, time.len()], &time)),
            ("context", Input::Floats(&[TOKENS, self.transformer.context], &prompt.states)),
        ];
        let [velocity] = self.session.run(&inputs, ["velocity"])?;
        Ok(velocity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_become_channels_and_back() {
        let numbers: Vec<f32> = (0..2 * 4 * 6).map(|x| x as f32).collect();
        let patched = patch(&numbers, [2, 4, 6]);
        assert_eq!(patched.shape, [8, 2, 3]);
        assert_eq!(patched.numbers[..8], [0.0, 2.0, 4.0, 12.0, 14.0, 16.0, 1.0, 3.0]);
        assert_eq!(spread(&patched.numbers, patched.shape).numbers, numbers);
    }
}
