//! From a prompt to a picture. One file for each family of models; everything that they share is here.

mod batch;
mod compare;
mod encoders;
mod family;
mod flux2_klein;
mod latent;
mod mask;
mod preview;
mod single_file;
mod stable_diffusion;
mod stable_diffusion_xl;
mod weighted;
mod z_image;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tintype_engine::{CancellationToken, Picture, PromptSyntax};

use crate::config::Config;
use crate::graph::Graph;
use crate::lora::{self, Lora};
use crate::quantise::{Rules, WeightPreparation};
use crate::runtime::{Input, Loads, PartKey, Runtime, Session, Sessions};
use crate::textual_inversion::TextualInversion;
use crate::weights::Weights;
use crate::{Error, Result};

use encoders::{ClipParts, QwenParts};
use family::{Denoiser, Family};
use preview::Sketcher;
use single_file::Single;
use stable_diffusion::Parts;

pub use compare::{Difference, compare};
pub use family::{Embedding, Guide, Latent};
pub use latent::embed_guidance;
pub use mask::LatentMask;
pub use single_file::{Recognised, recognise};
pub(crate) use single_file::{original_unet_name, transformer_layers};

/// The longest side of a picture, in pixels. No known model makes larger ones.
pub const MAX_SIDE: usize = 2048;

/// Memory for the embeddings of prompts, in bytes, so that a prompt that comes again is encoded once. One of Stable
/// Diffusion 1.5 has 231 kB. The latest two always stay: a prompt, and what its picture should not show.
const KEPT_BYTES: usize = 64 << 20;

/// Encoded reference pictures that are kept, so that those of a task with several pictures are encoded once.
const KEPT_REFERENCES: usize = 4;

/// The pipelines that are supported, by the names that `diffusers` gives them.
pub const KNOWN: [&str; 9] = [USUAL[0], USUAL[1], USUAL[2], USUAL[3], XL[0], XL[1], XL[2], KLEIN, Z_IMAGE];

/// Those of Stable Diffusion 1 and 2. A pipeline for pictures that begin with others has the same parts.
const USUAL: [&str; 4] = [
    "StableDiffusionPipeline",
    "LatentConsistencyModelPipeline",
    "StableDiffusionInpaintPipeline",
    "StableDiffusionImg2ImgPipeline",
];

/// Those of Stable Diffusion XL.
const XL: [&str; 3] =
    ["StableDiffusionXLPipeline", "StableDiffusionXLInpaintPipeline", "StableDiffusionXLImg2ImgPipeline"];

/// The other families.
const KLEIN: &str = "Flux2KleinPipeline";
const Z_IMAGE: &str = "ZImagePipeline";

/// The parts that LoRA files can change, by the names of their folders.
const WITH_LORAS: [&str; 2] = ["text_encoder", "unet"];
const WITH_LORAS_XL: [&str; 3] = ["text_encoder", "text_encoder_2", "unet"];

/// How a model is loaded.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The precision.
    pub precision: Precision,
    /// The folder for files that are made from its weights.
    pub cache: Option<PathBuf>,
    /// The runtime.
    pub runtime: Runtime,
    /// LoRA files, which are merged into its weights.
    pub loras: Vec<Lora>,
    /// Embeddings of textual inversion, each for a word in prompts.
    pub embeddings: Vec<TextualInversion>,
    /// The file or the folder of a VAE that replaces the one of the model.
    pub vae: Option<PathBuf>,
    /// How prompts are read, until [`Pipeline::read_prompts`] says otherwise. Only Stable Diffusion 1, 2 and XL read
    /// weighted ones.
    pub prompts: PromptSyntax,
    /// How long its parts stay loaded.
    pub residency: Residency,
    /// Memory of the device that its parts may use, in bytes. If they do not fit together, some are loaded again for
    /// each use (see [`crate::runtime::plan`]). `None` for all that the device has: then all stay.
    pub device_memory: Option<u64>,
}

/// How long the parts of a model stay loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Residency {
    /// On the processor each part is dropped after its use; on a device of its own all stay.
    #[default]
    ByDevice,
    /// All parts stay, each loaded once for all sizes and batches.
    Kept,
}

impl Options {
    /// Whether the parts stay loaded.
    pub(crate) fn keeps_parts(&self) -> bool {
        self.residency == Residency::Kept || self.runtime.is_remote()
    }
}

/// The precision of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats in the text encoder and in the part that removes the noise, 32-bit ones in the decoder, whose products
    /// have 10 bits of precision on an NVIDIA GPU (TF32). Only for [`Runtime::OnnxRuntime`].
    F16,
    /// Fractions of 16 bits with the range of 32 bits.
    Bf16,
    /// 8-bit weights and activations in the large matrix multiplications, 32-bit floats elsewhere.
    W8A8,
}

/// The abilities of a model, and the settings for which it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Traits {
    /// Its family, for people.
    pub family: &'static str,
    /// The most reference pictures that it takes.
    pub references: usize,
    /// Whether a picture begins with its reference, made noisy, and not with noise alone.
    pub begins_with_reference: bool,
    /// Whether it takes masks, which keep a part of the reference.
    pub masks: bool,
    /// The usual number of steps.
    pub steps: usize,
    /// How often a step of its scheduler asks the model: once or twice.
    pub calls: usize,
    /// The usual guidance.
    pub guidance: f32,
    /// Both sides of a picture, in pixels, are multiples of this.
    pub side_multiple: usize,
    /// Pixels of the pictures that it was trained with; 0 if it makes any size.
    pub trained_pixels: usize,
    /// The most pictures of a batch.
    pub batch: usize,
    /// Whether words for things that the picture should not show have an effect, given a guidance above 1.
    pub negative: bool,
    /// The usual part of the noise that a picture which begins with its reference gets, from 0 to 1.
    pub strength: f64,
}

impl Traits {
    /// The usual settings.
    pub fn settings(&self) -> Settings {
        Settings { steps: self.steps, guidance: self.guidance, negative: String::new(), strength: self.strength }
    }
}

/// How a picture is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Steps from noise to picture.
    pub steps: usize,
    /// How strongly the picture follows the prompt; at 1 or less the model is asked once a step instead of twice. For
    /// Z-Image `diffusers` counts from 0 instead.
    pub guidance: f32,
    /// Words for things that the picture should not show.
    pub negative: String,
    /// How far a picture that begins with its reference may be from it: the part of the noise that it gets, from 0 to 1.
    /// With a mask and 1, the part that is redrawn begins with noise alone.
    pub strength: f64,
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
    /// Pictures to which the prompt refers.
    pub references: &'a [Picture],
    /// Which part of the only reference is redrawn: white is, and black is kept. It is fitted to the size of the
    /// picture like the reference, and each of its pixels counts as the nearer of the two.
    pub mask: Option<&'a Picture>,
}

/// A step of a batch that is done.
pub struct Step<'a> {
    /// Steps done, with this one.
    pub done: usize,
    /// All steps.
    pub of: usize,
    preview: &'a dyn Fn(usize) -> Option<Picture>,
}

impl Debug for Step<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("done", &self.done).field("of", &self.of).finish_non_exhaustive()
    }
}

impl Step<'_> {
    /// A small picture of what the model sees by now in the noise of a picture of the batch, counted from 0. It is made when
    /// it is asked for. `None` unless the pipeline has [learnt](Pipeline::learn_previews) to make them.
    pub fn preview(&self, picture: usize) -> Option<Picture> {
        (self.preview)(picture)
    }
}

/// A model that is ready to make pictures.
#[derive(Debug)]
pub struct Pipeline {
    family: Box<dyn Family>,
    sessions: Sessions,
    prompts: PromptSyntax,
    sketcher: Option<Sketcher>,
    /// The latest first.
    embeddings: VecDeque<(String, Embedding)>,
    references: VecDeque<EncodedReference>,
}

/// A reference picture that has been encoded.
#[derive(Debug)]
struct EncodedReference {
    picture: Picture,
    /// What was left out of it, if anything was.
    mask: Option<Picture>,
    /// The shape of the latent picture that it was encoded for.
    shape: [usize; 3],
    latent: Latent,
}

/// The most reference pictures that the model in a folder or a single file takes, by its index and the names in its
/// files: it is not opened. None if they cannot be read.
pub fn references(folder: &Path) -> usize {
    if folder.is_file() {
        return recognise(folder).map_or(0, |found| found.references);
    }
    let count = || {
        let index = Config::read(&folder.join("model_index.json")).ok()?;
        let is_klein = index.text("_class_name", "").ok()? == KLEIN;
        is_klein.then_some(flux2_klein::REFERENCES)
    };
    count().unwrap_or_else(|| usize::from(masks(folder)))
}

/// Whether the model in a folder or a single file takes masks, by its index and the names in its files: it is not opened.
/// `false` if they cannot be read.
pub fn masks(folder: &Path) -> bool {
    if folder.is_file() {
        return recognise(folder).is_ok_and(|found| found.references > 0 && is_stable_diffusion(found.class));
    }
    let encodes = || {
        let index = Config::read(&folder.join("model_index.json")).ok()?;
        let class = index.text("_class_name", "").ok()?;
        if !is_stable_diffusion(class) {
            return None;
        }
        let weights = Weights::open_part(&folder.join("vae"), "diffusion_pytorch_model").ok()?;
        Some(latent::encodes(&weights))
    };
    encodes().unwrap_or(false)
}

/// Whether the model in a folder or a single file reads weighted prompts, by its index: it is not opened.
///
/// # Errors
/// If the index cannot be read.
pub fn weighted_prompts(folder: &Path) -> Result<bool> {
    if folder.is_file() {
        return recognise(folder).map(|found| is_stable_diffusion(found.class));
    }
    Config::read(&folder.join("model_index.json"))?.text("_class_name", "").map(is_stable_diffusion)
}

/// Whether a class of pipelines is one of Stable Diffusion 1, 2 or XL: with text encoders of CLIP, and a UNet that
/// makes several pictures at a time.
pub fn is_stable_diffusion(class: &str) -> bool {
    USUAL.contains(&class) || XL.contains(&class)
}

/// The parts of a class of pipelines that LoRA files can change.
fn parts_with_loras(class: &str) -> &'static [&'static str] {
    match class {
        class if XL.contains(&class) => &WITH_LORAS_XL,
        KLEIN | Z_IMAGE => &["transformer"],
        _ => &WITH_LORAS,
    }
}

/// Refuses what only models with a text encoder of CLIP take, if a class of pipelines has none.
fn check_additions(options: &Options, class: &str) -> Result<()> {
    let stray = |path: &Path, what: &str| {
        let path = path.display();
        format!("{path}: {what} for Stable Diffusion 1, 2 and XL: leave it out, or use such a model")
    };
    match (options.embeddings.first(), &options.vae) {
        _ if is_stable_diffusion(class) => Ok(()),
        (Some(TextualInversion { path, .. }), _) => {
            Err(Error::Embedding(stray(path, "embeddings of textual inversion are")))
        }
        (None, Some(path)) => Err(Error::Vae(stray(path, "another VAE is"))),
        (None, None) if options.prompts == PromptSyntax::Weighted => Err(Error::Setting(
            "weighted prompts are for Stable Diffusion 1, 2 and XL: use plain ones, or such a model".into(),
        )),
        (None, None) => Ok(()),
    }
}

impl Pipeline {
    /// Reads a folder as `diffusers` writes it, or a file as other programs read it, and compares all weights with the
    /// configuration, so that an unusable model is found before the first prompt. Weights in 8 bits are made
    /// if they are not there.
    ///
    /// # Errors
    /// If a part is missing or damaged, or of an architecture that this crate does not know, or weights in 8 bits cannot be
    /// made.
    pub fn open(folder: &Path, options: &Options) -> Result<Self> {
        Self::open_with(folder, WeightPreparation { options, rules: Rules::of_this_machine(), progress: &mut |_| {} })
    }

    /// Like [`Pipeline::open`], with other rules for weights in 8 bits, or with an ear for their making, which takes a
    /// while.
    ///
    /// # Errors
    /// As [`Pipeline::open`].
    pub fn open_with(folder: &Path, mut suit: WeightPreparation<'_>) -> Result<Self> {
        let Options { precision, runtime, .. } = suit.options;
        if matches!((precision, runtime), (Precision::F16 | Precision::Bf16, Runtime::Rten)) {
            return Err(Error::Setting(
                "numbers of 16 bits need another runtime than rten: give another --engine-precision or --engine-runtime"
                    .into(),
            ));
        }
        let Options { device_memory, .. } = *suit.options;
        let sessions = Sessions::new(runtime.clone(), suit.options.keeps_parts(), device_memory);
        if folder.is_file() {
            let single = single_file::parts(folder, suit.options.vae.is_some())?;
            let class = match &single {
                Single::Usual(_) => USUAL[0],
                Single::Xl(_) => XL[0],
                Single::Klein(_) => KLEIN,
                Single::ZImage(_) => Z_IMAGE,
            };
            lora::check(&suit.options.loras, parts_with_loras(class))?;
            check_additions(suit.options, class)?;
            let family: Box<dyn Family> = match single {
                Single::Usual(parts) => Box::new(stable_diffusion::open(*parts, &mut suit)?),
                Single::Xl(parts) => Box::new(stable_diffusion_xl::open(*parts, &mut suit)?),
                Single::Klein(parts) => Box::new(flux2_klein::Flux2Klein::open(*parts, &mut suit)?),
                Single::ZImage(parts) => Box::new(z_image::ZImage::open(*parts, &mut suit)?),
            };
            return Ok(Self::of(family, sessions, suit.options.prompts));
        }
        let index = Config::read(&folder.join("model_index.json"))?;
        let encoder = |part, tokenizer| ClipParts::of_folder(folder, part, tokenizer);
        let class = index.text("_class_name", "")?;
        lora::check(&suit.options.loras, parts_with_loras(class))?;
        check_additions(suit.options, class)?;
        let family: Box<dyn Family> = match class {
            class if USUAL.contains(&class) => {
                let encoders = [encoder("text_encoder", "tokenizer")?];
                Box::new(stable_diffusion::open(Parts::of_folder(folder, index, encoders)?, &mut suit)?)
            }
            class if XL.contains(&class) => {
                let encoders = [encoder("text_encoder", "tokenizer")?, encoder("text_encoder_2", "tokenizer_2")?];
                Box::new(stable_diffusion_xl::open(Parts::of_folder(folder, index, encoders)?, &mut suit)?)
            }
            KLEIN => Box::new(flux2_klein::Flux2Klein::open(QwenParts::of_folder(folder, index)?, &mut suit)?),
            Z_IMAGE => Box::new(z_image::ZImage::open(QwenParts::of_folder(folder, index)?, &mut suit)?),
            _ => return Err(index.wrong("_class_name", &format!("{} are supported", KNOWN.join(", ")))),
        };
        Ok(Self::of(family, sessions, suit.options.prompts))
    }

    fn of(family: Box<dyn Family>, sessions: Sessions, prompts: PromptSyntax) -> Self {
        let (embeddings, references) = Default::default();
        Self { family, sessions, prompts, sketcher: None, embeddings, references }
    }

    /// The parts that have been loaded so far.
    pub fn loads(&self) -> Loads {
        self.sessions.loads()
    }

    /// The abilities of the model.
    pub fn traits(&self) -> &Traits {
        self.family.traits()
    }

    /// Makes a picture. `progress` is called for every finished step.
    ///
    /// # Errors
    /// If the order does not suit the model, the runtime fails, the render is cancelled, or the result is no picture.
    pub fn render(
        &mut self,
        order: &Order<'_>,
        settings: &Settings,
        progress: impl FnMut(&Step<'_>),
        cancel: &CancellationToken,
    ) -> Result<Picture> {
        let pictures = self.render_batch(std::slice::from_ref(order), settings, progress, cancel)?;
        pictures.into_iter().next().ok_or_else(|| Error::Run("the decoder gave no picture".into()))
    }

    /// Whether the model is asked with and without the prompt at each step, given this guidance.
    pub fn asks_twice(&self, guidance: f32) -> bool {
        self.family.asks_twice(guidance)
    }

    /// The shape of the latent picture for a size in pixels.
    ///
    /// # Errors
    /// If the size does not suit the model.
    pub fn latent_shape(&self, width: usize, height: usize) -> Result<[usize; 3]> {
        let multiple = self.traits().side_multiple;
        let fits = |side: usize| side.is_multiple_of(multiple) && (multiple * 4..=MAX_SIDE).contains(&side);
        if !fits(width) || !fits(height) {
            return Err(Error::Order(format!(
                "{width}x{height}: the sides must be multiples of {multiple}, from {} to {MAX_SIDE} pixels",
                multiple * 4
            )));
        }
        Ok(self.family.latent_shape(width, height))
    }

    /// The tokens of a prompt.
    ///
    /// # Errors
    /// If the tokenizer cannot read the prompt, or does not belong to the model.
    pub fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        self.family.tokens(prompt, self.prompts)
    }

    /// Reads prompts so from now on. Models other than Stable Diffusion 1, 2 and XL go on to read plain words.
    pub fn read_prompts(&mut self, syntax: PromptSyntax) {
        if self.prompts != syntax && self.family.takes_weighted_prompts() {
            self.prompts = syntax;
            self.embeddings.clear();
        }
    }

    /// The embedding of a prompt.
    ///
    /// # Errors
    /// As [`Pipeline::tokens`], or if the runtime fails.
    pub fn embed(&mut self, prompt: &str) -> Result<Embedding> {
        if let Some((_, found)) = self.embeddings.iter().find(|(kept, _)| kept == prompt) {
            return Ok(found.clone());
        }
        let embedding = self.family.embed(&self.sessions, prompt, self.prompts)?;
        finite(&embedding.states, "the text encoder gave numbers that are not finite")?;
        finite(&embedding.pooled, "the text encoder gave numbers that are not finite")?;
        self.embeddings.push_front((prompt.to_owned(), embedding.clone()));
        let size = |(prompt, embedding): &(String, Embedding)| prompt.len() + embedding.bytes();
        while self.embeddings.len() > 2 && self.embeddings.iter().map(size).sum::<usize>() > KEPT_BYTES {
            self.embeddings.pop_back();
        }
        Ok(embedding)
    }

    /// The embedding of what a picture should not show, beside that of its prompt.
    ///
    /// # Errors
    /// As [`Pipeline::embed`].
    pub fn embed_negative(&mut self, negative: &str, prompt: &Embedding) -> Result<Embedding> {
        if negative.is_empty() && self.family.zeros_for_nothing() {
            let zeros = |numbers: &[f32]| vec![0.0; numbers.len()];
            return Ok(Embedding { states: zeros(&prompt.states), pooled: zeros(&prompt.pooled) });
        }
        self.embed(negative)
    }

    /// The embeddings of prompts, and of what their pictures should not show, all with as many tokens: prompts in fewer
    /// chunks than others get empty ones.
    ///
    /// # Errors
    /// As [`Pipeline::embed`].
    pub fn embed_all(
        &mut self,
        prompts: &[&str],
        negative: Option<&str>,
    ) -> Result<(Vec<Embedding>, Option<Embedding>)> {
        let mut all = prompts.iter().map(|prompt| self.embed(prompt)).collect::<Result<Vec<_>>>()?;
        let longest = all.iter().max_by_key(|embedding| embedding.states.len()).cloned();
        if let (Some(negative), Some(longest)) = (negative, longest) {
            all.push(self.embed_negative(negative, &longest)?);
        }
        let most = all.iter().map(|embedding| embedding.states.len()).max().unwrap_or(0);
        if all.iter().any(|embedding| embedding.states.len() < most) && self.family.takes_weighted_prompts() {
            let empty = self.embed("")?.states;
            for embedding in &mut all {
                let missing = most - embedding.states.len();
                embedding.states.extend(empty.iter().cycle().take(missing));
            }
        }
        let negative = negative.and_then(|_| all.pop());
        Ok((all, negative))
    }

    /// Encodes a reference picture for a latent picture of a shape.
    ///
    /// # Errors
    /// If the model takes none, or the runtime fails.
    pub fn look(&mut self, reference: &Picture, shape: [usize; 3]) -> Result<Latent> {
        self.encoded(reference, None, shape)
    }

    /// Encodes a reference picture, of which a mask leaves a part out if there is one.
    fn encoded(&mut self, reference: &Picture, mask: Option<&Picture>, shape: [usize; 3]) -> Result<Latent> {
        let same =
            |seen: &&EncodedReference| seen.shape == shape && seen.picture == *reference && seen.mask.as_ref() == mask;
        if let Some(seen) = self.references.iter().find(same) {
            return Ok(seen.latent.clone());
        }
        let latent = match mask {
            None => self.family.look(&self.sessions, reference, shape)?,
            Some(mask) => self.family.look_around(&self.sessions, reference, mask, shape)?,
        };
        finite(&latent.numbers, "the encoder of reference pictures gave numbers that are not finite")?;
        self.references.truncate(KEPT_REFERENCES - 1);
        let seen = EncodedReference { picture: reference.clone(), mask: mask.cloned(), shape, latent: latent.clone() };
        self.references.push_front(seen);
        Ok(latent)
    }

    /// Makes a latent picture out of noise. `after` sees the result of each step and can end the work with an error.
    ///
    /// # Errors
    /// If the number of steps does not suit the scheduler, the runtime fails, the numbers do not stay finite, or `after`
    /// gives an error.
    pub fn denoise(
        &self,
        shape: [usize; 3],
        seed: u64,
        steps: usize,
        guide: &Guide,
        mut after: impl FnMut(usize, usize, &[f32]) -> Result<()>,
    ) -> Result<Latent> {
        let after = |step: &Step<'_>, samples: &[Vec<f32>]| after(step.done, step.of, &samples[0]);
        let latents = self.denoise_batch(shape, &[seed], steps, guide, after)?;
        latents.into_iter().next().ok_or_else(|| Error::Run("the model gave no picture".into()))
    }

    /// Prepares [`Step::preview`], once. Unless the model has a tiny autoencoder, this runs its decoder for a picture of
    /// about 128 pixels a side.
    ///
    /// # Errors
    /// If the runtime fails.
    pub fn learn_previews(&mut self) -> Result<()> {
        if self.sketcher.is_none() {
            self.sketcher = Some(Sketcher::new(&*self.family, &self.sessions)?);
        }
        Ok(())
    }

    /// Decodes a latent picture.
    ///
    /// # Errors
    /// If the runtime fails, or the result is no picture.
    pub fn decode(&self, latent: &Latent) -> Result<Picture> {
        picture(latent, &planes_of(&*self.family, &self.sessions, latent)?)
    }
}

/// Decodes a latent picture to red, green and blue planes.
fn planes_of(family: &dyn Family, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
    let planes = family.decode(sessions, latent)?;
    finite(&planes, "the decoder gave numbers that are not finite")?;
    Ok(planes)
}

/// Makes a picture of the planes that a latent picture was decoded to.
fn picture(latent: &Latent, planes: &[f32]) -> Result<Picture> {
    let [channels, rows, columns] = latent.shape;
    let area = planes.len() / 3;
    // The decoder enlarges both sides alike.
    let factor = (area / (rows * columns).max(1)).isqrt();
    let [height, width] = [rows * factor, columns * factor];
    if height * width != area {
        return Err(Error::Run(format!("the decoder gave {} numbers for {channels}x{rows}x{columns}", planes.len())));
    }
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

fn finite(numbers: &[f32], complaint: &'static str) -> Result<()> {
    if numbers.iter().all(|x| x.is_finite()) { Ok(()) } else { Err(Error::Spoiled(complaint)) }
}

fn stop_if(cancel: &CancellationToken) -> Result<()> {
    if cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
}

/// Reads `config.json` of a part.
///
/// # Errors
/// If it cannot be read, or says that the weights are quantised.
fn part_config(folder: &Path, part: &str) -> Result<Config> {
    let config = Config::read(&folder.join(part).join("config.json"))?;
    match config.get("quantization_config") {
        None => Ok(config),
        Some(how) => {
            let method =
                how.get("quant_method").or(how.get("quant_type")).and_then(Value::as_str).unwrap_or("a library");
            Err(Error::Unusable(format!(
                "{}: the weights are quantised by {method}, which is not supported: use the model in F16, BF16 or F32",
                config.path()
            )))
        }
    }
}

/// The session of an encoder for a picture of a height and a width, of which both are multiples of `factor`.
fn encoder_of_pictures(
    sessions: &Sessions,
    size: [usize; 2],
    factor: usize,
    graph: impl Fn(usize, usize) -> Result<Graph>,
) -> Result<Arc<Session>> {
    let [one, other] = [[6, 10], [14, 22]].map(|size: [usize; 2]| size.map(|side| side * factor));
    let key = PartKey { part: "vae_encoder", batch: 1, sizes: &size, examples: [(1, &one), (1, &other)] };
    sessions.of(key, |_, size| graph(size[0], size[1]))
}

/// Scales a latent picture back and decodes it.
fn decode(
    sessions: &Sessions,
    graph: impl Fn(usize, usize) -> Result<Graph>,
    [scaling, shift]: [f32; 2],
    latent: &Latent,
) -> Result<Vec<f32>> {
    let [channels, height, width] = latent.shape;
    let numbers: Vec<_> = latent.numbers.iter().map(|x| x / scaling + shift).collect();
    let shape = [1, channels, height, width];
    let examples = [(1, [6, 10].as_slice()), (1, &[14, 22])];
    let key = PartKey { part: "vae", batch: 1, sizes: &[height, width], examples };
    let session = sessions.of(key, |_, size| graph(size[0], size[1]))?;
    let [planes] = session.run(&[("latent", Input::Floats(&shape, &numbers))], ["picture"])?;
    Ok(planes)
}
