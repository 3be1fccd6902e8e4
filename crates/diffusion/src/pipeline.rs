//! From a prompt to a picture.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use tintype_engine::{CancellationToken, Picture};

use crate::config::Config;
use crate::graph::Graph;
use crate::models::clip::{Clip, check_ids};
use crate::models::tiny_vae::TinyVae;
use crate::models::unet::Unet;
use crate::models::vae::Vae;
use crate::noise::Noise;
use crate::runtime::{Input, Session};
use crate::schedulers::scheduler;
use crate::tokenizer::Tokenizer;
use crate::weights::Weights;
use crate::{Error, Result};

/// The longest side of a picture, in pixels. No known model makes larger ones.
const MAX_SIDE: usize = 2048;

/// Prompts whose embeddings are kept. One of Stable Diffusion 1.5 has 231 kB.
const KEPT_PROMPTS: usize = 16;

/// How a picture is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Steps from noise to picture.
    pub steps: usize,
    /// How strongly the picture follows the prompt; at 1 or less the model is asked once a step instead of twice.
    pub guidance: f32,
    /// Words for things that the picture should not show.
    pub negative: String,
}

impl Default for Settings {
    /// The usual settings of Stable Diffusion 1.5.
    fn default() -> Self {
        Self { steps: 25, guidance: 7.5, negative: String::new() }
    }
}

/// One picture to make.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// The words for it.
    pub prompt: &'a str,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// The same seed gives the same picture.
    pub seed: u64,
}

/// The decoder of a model.
#[derive(Debug)]
enum Decoder {
    Large(Vae),
    Tiny(TinyVae),
}

/// A latent picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Latent {
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// Its numbers, in rows.
    pub numbers: Vec<f32>,
}

/// A model that is ready to make pictures.
///
/// The text encoder and the decoder are loaded when they are needed and dropped after, so that the memory is that of the
/// largest part and not of all. The UNet stays loaded for the latest size.
#[derive(Debug)]
pub struct Pipeline {
    tokenizer: Tokenizer,
    clip: Clip,
    clip_weights: Weights,
    unet: Unet,
    unet_weights: Weights,
    decoder: Decoder,
    decoder_weights: Weights,
    scheduler: Config,
    embeddings: VecDeque<(String, Vec<f32>)>,
    loaded: Option<([usize; 2], Session)>,
}

impl Pipeline {
    /// Reads a folder as `diffusers` writes it.
    ///
    /// # Errors
    /// If a part is missing or damaged, or of an architecture that this crate does not know.
    pub fn open(folder: &Path) -> Result<Self> {
        let index = Config::read(&folder.join("model_index.json"))?;
        let class = index.text("_class_name", "")?;
        if !["StableDiffusionPipeline", "LatentConsistencyModelPipeline"].contains(&class) {
            let known = "StableDiffusionPipeline and LatentConsistencyModelPipeline are supported";
            return Err(index.wrong("_class_name", known));
        }
        let config = |part: &str| Config::read(&folder.join(part).join("config.json"));
        let clip = Clip::read(&config("text_encoder")?)?;
        let unet = Unet::read(&config("unet")?)?;
        if clip.width != unet.context {
            let (text, image) = (clip.width, unet.context);
            return Err(Error::Model(format!(
                "the text encoder gives {text} numbers a token, but the UNet takes {image}"
            )));
        }
        let vae = config("vae")?;
        let decoder = match vae.text("_class_name", "AutoencoderKL")? {
            "AutoencoderTiny" => Decoder::Tiny(TinyVae::read(&vae)?),
            _ => Decoder::Large(Vae::read(&vae)?),
        };
        let decoded = match &decoder {
            Decoder::Large(vae) => vae.channels,
            Decoder::Tiny(vae) => vae.channels,
        };
        if decoded != unet.channels {
            let made = unet.channels;
            return Err(Error::Model(format!(
                "the UNet makes latent pictures of {made} channels, the autoencoder takes {decoded}"
            )));
        }
        let pipeline = Self {
            tokenizer: Tokenizer::read(&folder.join("tokenizer"), clip.tokens)?,
            clip_weights: Weights::open(&file(&folder.join("text_encoder"), "model")?)?,
            unet_weights: Weights::open(&file(&folder.join("unet"), "diffusion_pytorch_model")?)?,
            decoder_weights: Weights::open(&file(&folder.join("vae"), "diffusion_pytorch_model")?)?,
            scheduler: Config::read(&folder.join("scheduler").join("scheduler_config.json"))?,
            clip,
            unet,
            decoder,
            embeddings: VecDeque::new(),
            loaded: None,
        };
        pipeline.check()?;
        Ok(pipeline)
    }

    /// Compares all weights with the configuration and tries the tokenizer, so that an unusable model is found before the
    /// first prompt.
    fn check(&self) -> Result<()> {
        check_ids(&self.tokenizer.encode("")?, self.clip.vocabulary)?;
        scheduler(&self.scheduler, 1)?;
        self.clip.graph(&self.clip_weights)?;
        self.unet.graph(&self.unet_weights, 8, 8, self.clip.tokens)?;
        self.decoder_graph(8, 8)?;
        Ok(())
    }

    /// Pixels of a picture for each pixel of a latent picture, along a side.
    pub fn factor(&self) -> usize {
        match &self.decoder {
            Decoder::Large(vae) => vae.factor(),
            Decoder::Tiny(vae) => vae.factor(),
        }
    }

    /// Makes a picture. `progress` hears of every finished step.
    ///
    /// # Errors
    /// If the order does not suit the model, the runtime fails, the render is cancelled, or the result is no picture.
    pub fn render(
        &mut self,
        order: &Order<'_>,
        settings: &Settings,
        mut progress: impl FnMut(usize, usize),
        cancel: &CancellationToken,
    ) -> Result<Picture> {
        let shape = self.latent_shape(order.width, order.height)?;
        let context = self.embed(order.prompt)?;
        stop_if(cancel)?;
        let guided = settings.guidance > 1.0 && self.unet.guidance.is_none();
        let negative = if guided { Some(self.embed(&settings.negative)?) } else { None };
        stop_if(cancel)?;
        let guide = Guide { context, negative, guidance: settings.guidance };
        let latent = self.denoise(shape, order.seed, settings.steps, &guide, |done, of, _| {
            progress(done, of);
            stop_if(cancel)
        })?;
        let picture = self.decode(&latent)?;
        stop_if(cancel)?;
        Ok(picture)
    }

    fn latent_shape(&self, width: usize, height: usize) -> Result<[usize; 3]> {
        let factor = self.factor();
        let fits = |side: usize| side.is_multiple_of(factor) && (factor * 4..=MAX_SIDE).contains(&side);
        if !fits(width) || !fits(height) {
            return Err(Error::Order(format!(
                "{width}x{height}: the sides must be multiples of {factor}, from {} to {MAX_SIDE} pixels",
                factor * 4
            )));
        }
        Ok([self.unet.channels, height / factor, width / factor])
    }

    /// The tokens of a prompt.
    ///
    /// # Errors
    /// If the tokenizer cannot read the prompt, or does not belong to the model.
    pub fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        let ids = self.tokenizer.encode(prompt)?;
        check_ids(&ids, self.clip.vocabulary)?;
        Ok(ids)
    }

    /// The embedding of a prompt: one row for each token.
    ///
    /// # Errors
    /// As of [`Pipeline::tokens`], or if the runtime fails.
    pub fn embed(&mut self, prompt: &str) -> Result<Vec<f32>> {
        if let Some((_, found)) = self.embeddings.iter().find(|(kept, _)| kept == prompt) {
            return Ok(found.clone());
        }
        let ids = self.tokens(prompt)?;
        let session = Session::load(self.clip.graph(&self.clip_weights)?)?;
        let [states] = session.run(&[("ids", Input::Ids(&ids))], ["states"])?;
        finite(&states, "the text encoder gave numbers that are not finite")?;
        self.embeddings.truncate(KEPT_PROMPTS - 1);
        self.embeddings.push_front((prompt.to_owned(), states.clone()));
        Ok(states)
    }

    /// Makes a latent picture out of noise. `after` sees the result of each step and can end the work with an error.
    ///
    /// # Errors
    /// If the number of steps does not suit the scheduler, the runtime fails, the numbers do not stay finite, or `after`
    /// gives an error.
    pub fn denoise(
        &mut self,
        shape: [usize; 3],
        seed: u64,
        steps: usize,
        guide: &Guide,
        mut after: impl FnMut(usize, usize, &[f32]) -> Result<()>,
    ) -> Result<Latent> {
        let mut scheduler = scheduler(&self.scheduler, steps)?;
        let mut noise = Noise::new(seed);
        let [channels, height, width] = shape;
        let begin = noise.normal(channels * height * width);
        let mut sample: Vec<f32> = begin.into_iter().map(|x| x * scheduler.initial_scale()).collect();
        self.load(height, width)?;
        let times = scheduler.times().to_vec();
        for (step, time) in times.iter().enumerate() {
            let input = scheduler.scale(step, &sample);
            let mut answer = self.predict(shape, &input, *time, &guide.context, guide.guidance)?;
            if let Some(negative) = &guide.negative {
                let without = self.predict(shape, &input, *time, negative, guide.guidance)?;
                for (with, without) in answer.iter_mut().zip(without) {
                    *with = without + guide.guidance * (*with - without);
                }
            }
            scheduler.step(step, &answer, &mut sample, &mut noise);
            finite(&sample, "the model gave numbers that are not finite")?;
            after(step + 1, times.len(), &sample)?;
        }
        Ok(Latent { shape, numbers: sample })
    }

    /// Loads the UNet for a size, unless it is.
    fn load(&mut self, height: usize, width: usize) -> Result<()> {
        if self.loaded.as_ref().is_none_or(|(size, _)| *size != [height, width]) {
            // The old one goes first: both may not fit.
            self.loaded = None;
            let graph = self.unet.graph(&self.unet_weights, height, width, self.clip.tokens)?;
            self.loaded = Some(([height, width], Session::load(graph)?));
        }
        Ok(())
    }

    fn predict(
        &self,
        shape: [usize; 3],
        sample: &[f32],
        time: f32,
        context: &[f32],
        guidance: f32,
    ) -> Result<Vec<f32>> {
        let Some((_, session)) = &self.loaded else {
            return Err(Error::Run("the UNet is not loaded".into()));
        };
        let latent = [1, shape[0], shape[1], shape[2]];
        let time = self.unet.embed_time(time);
        let (times, tokens) = ([1, time.len()], [self.clip.tokens, self.clip.width]);
        let guidance = self.unet.guidance.map(|size| embed_guidance(guidance, size));
        let mut inputs = vec![
            ("latent", Input::Floats(&latent, sample)),
            ("time", Input::Floats(&times, &time)),
            ("context", Input::Floats(&tokens, context)),
        ];
        let guidances = [1, guidance.as_ref().map_or(0, Vec::len)];
        if let Some(guidance) = &guidance {
            inputs.push(("guidance", Input::Floats(&guidances, guidance)));
        }
        let [noise] = session.run(&inputs, ["noise"])?;
        Ok(noise)
    }

    fn decoder_graph(&self, height: usize, width: usize) -> Result<Graph> {
        match &self.decoder {
            Decoder::Large(vae) => vae.graph(&self.decoder_weights, height, width),
            Decoder::Tiny(vae) => vae.graph(&self.decoder_weights, height, width),
        }
    }

    /// Decodes a latent picture to numbers from about -1 to 1: red, green and blue planes.
    ///
    /// # Errors
    /// If the runtime fails.
    pub fn decode_planes(&self, latent: &Latent) -> Result<Vec<f32>> {
        let [channels, height, width] = latent.shape;
        let (scaling, shift) = match &self.decoder {
            Decoder::Large(vae) => (vae.scaling, vae.shift),
            Decoder::Tiny(vae) => (vae.scaling, 0.0),
        };
        let numbers: Vec<_> = latent.numbers.iter().map(|x| x / scaling + shift).collect();
        let session = Session::load(self.decoder_graph(height, width)?)?;
        let shape = [1, channels, height, width];
        let [planes] = session.run(&[("latent", Input::Floats(&shape, &numbers))], ["picture"])?;
        Ok(planes)
    }

    /// Decodes a latent picture.
    ///
    /// # Errors
    /// If the runtime fails, or the result is no picture.
    pub fn decode(&self, latent: &Latent) -> Result<Picture> {
        let planes = self.decode_planes(latent)?;
        finite(&planes, "the decoder gave numbers that are not finite")?;
        let [_, height, width] = latent.shape.map(|side| side * self.factor());
        let area = height * width;
        let byte = |x: f32| ((x / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
        let pixels = (0..area).flat_map(|at| [planes[at], planes[area + at], planes[2 * area + at]]);
        let bytes: Vec<u8> = pixels.map(byte).collect();
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(Error::Spoiled("the model gave an all black picture"));
        }
        let size = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        Picture::from_rgb(size(width), size(height), bytes)
            .ok_or_else(|| Error::Run("the decoder gave too few numbers".into()))
    }
}

/// The embeddings that lead a picture.
#[derive(Debug, Clone)]
pub struct Guide {
    /// The embedding of the prompt.
    pub context: Vec<f32>,
    /// The embedding of what it should not show, if the model is to be asked for both.
    pub negative: Option<Vec<f32>>,
    /// How strongly it follows the prompt.
    pub guidance: f32,
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

fn finite(numbers: &[f32], complaint: &'static str) -> Result<()> {
    if numbers.iter().all(|x| x.is_finite()) { Ok(()) } else { Err(Error::Spoiled(complaint)) }
}

fn stop_if(cancel: &CancellationToken) -> Result<()> {
    if cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
}

/// The file of weights in a part's folder: in full precision if it is there, else in half.
fn file(folder: &Path, stem: &str) -> Result<PathBuf> {
    let names = [format!("{stem}.safetensors"), format!("{stem}.fp16.safetensors")];
    let found = names.iter().map(|name| folder.join(name)).find(|path| path.exists());
    found.ok_or_else(|| {
        let (folder, name) = (folder.display(), &names[0]);
        Error::Model(format!(
            "{folder} lacks {name}; weights in other formats (.bin, .ckpt) or in several files are not read"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guidance_is_embedded_as_sines_and_cosines() {
        assert_eq!(embed_guidance(1.0, 5), [0.0, 0.0, 1.0, 1.0, 0.0]);
    }
}
