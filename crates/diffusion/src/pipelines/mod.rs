//! From a prompt to a picture. Each model family has its own file; everything shared is here.

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
use stable_diffusion::Parts;

pub use compare::{Difference, compare};
pub use family::{Embedding, Guide, Latent};
pub use latent::embed_guidance;
pub use mask::LatentMask;
pub use single_file::{Recognised, recognise};
pub(crate) use single_file::{original_unet_name, transformer_layers};

/// The longest side of a picture, in pixels. No known model makes larger ones.
pub const MAX_SIDE: usize = 2048;

/// Memory for prompt embeddings, in bytes, so that a repeated prompt is encoded once. Stable Diffusion 1.5 needs 231 kB
/// for each. The latest two always stay: a prompt and a negative prompt.
const KEPT_BYTES: usize = 64 << 20;

/// Encoded reference pictures that are kept, so that a task with several pictures encodes its references once.
const KEPT_REFERENCES: usize = 4;

/// The supported pipelines, by their names in `diffusers`.
pub const KNOWN: [&str; 9] = [USUAL[0], USUAL[1], USUAL[2], USUAL[3], XL[0], XL[1], XL[2], KLEIN, Z_IMAGE];

/// Pipelines of Stable Diffusion 1 and 2. The image-to-image pipeline has the same parts.
const USUAL: [&str; 4] = [
    "StableDiffusionPipeline",
    "LatentConsistencyModelPipeline",
    "StableDiffusionInpaintPipeline",
    "StableDiffusionImg2ImgPipeline",
];

const XL: [&str; 3] =
    ["StableDiffusionXLPipeline", "StableDiffusionXLInpaintPipeline", "StableDiffusionXLImg2ImgPipeline"];

const KLEIN: &str = "Flux2KleinPipeline";
const Z_IMAGE: &str = "ZImagePipeline";

/// The parts that LoRA files can change, by folder name.
const WITH_LORAS: [&str; 2] = ["text_encoder", "unet"];
const WITH_LORAS_XL: [&str; 3] = ["text_encoder", "text_encoder_2", "unet"];

/// How a model is loaded.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The precision.
    pub precision: Precision,
    /// The folder for files made from its weights.
    pub cache: Option<PathBuf>,
    /// The runtime.
    pub runtime: Runtime,
    /// LoRA files to merge into its weights.
    pub loras: Vec<Lora>,
    /// Textual inversion embeddings, each for a word in prompts.
    pub embeddings: Vec<TextualInversion>,
    /// A VAE's file or folder, which replaces the model's own VAE.
    pub vae: Option<PathBuf>,
    /// How prompts are read, until [`Pipeline::read_prompts`] changes it. Only Stable Diffusion 1, 2 and XL support
    /// weighted prompts.
    pub prompts: PromptSyntax,
    /// How long its parts stay loaded.
    pub residency: Residency,
    /// Device memory that its parts can use, in bytes. If they don't all fit, some are loaded again for each use (see
    /// [`crate::runtime::plan`]). `None` means all of the device's memory; then all parts stay.
    pub device_memory: Option<u64>,
}

/// How long a model's parts stay loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Residency {
    /// On the processor each part is dropped after use; on other devices all stay.
    #[default]
    ByDevice,
    /// All parts stay. Each is loaded once for all sizes and batches.
    Kept,
}

impl Options {
    pub(crate) fn keeps_parts(&self) -> bool {
        self.residency == Residency::Kept || self.runtime.is_remote()
    }
}

/// A model's precision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats in the text encoder and the denoiser, 32-bit floats in the decoder, whose products have 10 bits of
    /// precision on an NVIDIA GPU (TF32). Only for [`Runtime::OnnxRuntime`].
    F16,
    /// 16-bit floats with the range of 32 bits.
    Bf16,
    /// 8-bit weights and activations in the large matrix multiplications, 32-bit floats elsewhere.
    W8A8,
}

/// A model's abilities, and the settings that it was made for.
#[derive(Debug, Clone, PartialEq)]
pub struct Traits {
    /// Its family, as a display name.
    pub family: &'static str,
    /// The most reference pictures.
    pub references: usize,
    /// Whether a picture begins with its noised reference, rather than with noise alone.
    pub begins_with_reference: bool,
    /// Whether it takes masks, which keep part of the reference.
    pub masks: bool,
    /// The usual number of steps.
    pub steps: usize,
    /// How often a scheduler step asks the model: once or twice.
    pub calls: usize,
    /// The usual guidance.
    pub guidance: f32,
    /// Both sides of a picture, in pixels, are multiples of this.
    pub side_multiple: usize,
    /// Pixels of the pictures that it was trained on; 0 if it supports any size.
    pub trained_pixels: usize,
    /// The most pictures in a batch.
    pub batch: usize,
    /// Whether negative prompts have an effect, if the guidance is above 1.
    pub negative: bool,
    /// How much noise a picture that begins with its reference usually gets, from 0 to 1.
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
    /// How strongly the picture follows the prompt. At 1 or less the model is asked once per step instead of twice. For
    /// Z-Image, `diffusers` counts from 0 instead.
    pub guidance: f32,
    /// What the picture should not show.
    pub negative: String,
    /// How much a picture may differ from the reference that it begins with, as its share of the noise (0 to 1). With a
    /// mask and a strength of 1, the redrawn part begins with noise alone.
    pub strength: f64,
}

/// One picture to make.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// The prompt.
    pub prompt: &'a str,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// The same seed gives the same picture.
    pub seed: u64,
    /// Pictures that the prompt refers to.
    pub references: &'a [Picture],
    /// Which part of the only reference is redrawn: white is redrawn, black is kept. It is fitted to the picture's size
    /// like the reference, and each pixel counts as the nearer of the two.
    pub mask: Option<&'a Picture>,
}

/// A finished step of a batch.
pub struct Step<'a> {
    /// Steps done, including this one.
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
    /// A small picture of what the model currently sees in the noise of one of the batch's pictures, counted from 0. It
    /// is made on demand. `None` unless the pipeline has [learnt](Pipeline::learn_previews) to make previews.
    pub fn preview(&self, picture: usize) -> Option<Picture> {
        (self.preview)(picture)
    }
}

/// A model ready to make pictures.
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

#[derive(Debug)]
struct EncodedReference {
    picture: Picture,
    /// The mask whose part was left out, if any.
    mask: Option<Picture>,
    /// The shape of the latent picture that it was encoded for.
    shape: [usize; 3],
    latent: Latent,
}

/// The most reference pictures for the model in a folder or single file, from its index and the names in its files,
/// without opening it. 0 if they cannot be read.
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

/// Whether the model in a folder or single file takes masks, from its index and the names in its files, without opening
/// it. `false` if they cannot be read.
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

/// Whether the model in a folder or single file supports weighted prompts, from its index, without opening it.
pub fn weighted_prompts(folder: &Path) -> Result<bool> {
    if folder.is_file() {
        return recognise(folder).map(|found| is_stable_diffusion(found.class));
    }
    Config::read(&folder.join("model_index.json"))?.text("_class_name", "").map(is_stable_diffusion)
}

/// Whether a pipeline class is for Stable Diffusion 1, 2 or XL: with CLIP text encoders, and a UNet that makes several
/// pictures at a time.
pub fn is_stable_diffusion(class: &str) -> bool {
    USUAL.contains(&class) || XL.contains(&class)
}

/// The parts that LoRA files can change, for a pipeline class.
fn parts_with_loras(class: &str) -> &'static [&'static str] {
    match class {
        class if XL.contains(&class) => &WITH_LORAS_XL,
        KLEIN | Z_IMAGE => &["transformer"],
        _ => &WITH_LORAS,
    }
}

/// Rejects options that need a CLIP text encoder, if the pipeline class has none.
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

/// The parts of a model, wherever they are stored.
#[derive(Debug)]
enum ModelParts {
    /// Stable Diffusion 1 or 2.
    Usual(Box<Parts<1>>),
    Xl(Box<Parts<2>>),
    Klein(Box<QwenParts>),
    ZImage(Box<QwenParts>),
}

impl ModelParts {
    /// The parts in a folder in `diffusers` format.
    fn of_folder(folder: &Path) -> Result<Self> {
        let index = Config::read(&folder.join("model_index.json"))?;
        let encoder = |part, tokenizer| ClipParts::of_folder(folder, part, tokenizer);
        let class = index.text("_class_name", "")?;
        Ok(match class {
            class if USUAL.contains(&class) => {
                let encoders = [encoder("text_encoder", "tokenizer")?];
                Self::Usual(Box::new(Parts::of_folder(folder, index, encoders)?))
            }
            class if XL.contains(&class) => {
                let encoders = [encoder("text_encoder", "tokenizer")?, encoder("text_encoder_2", "tokenizer_2")?];
                Self::Xl(Box::new(Parts::of_folder(folder, index, encoders)?))
            }
            KLEIN => Self::Klein(Box::new(QwenParts::of_folder(folder, index)?)),
            Z_IMAGE => Self::ZImage(Box::new(QwenParts::of_folder(folder, index)?)),
            _ => return Err(index.wrong("_class_name", &format!("{} are supported", KNOWN.join(", ")))),
        })
    }

    /// A class of the family.
    fn class(&self) -> &'static str {
        match self {
            Self::Usual(_) => USUAL[0],
            Self::Xl(_) => XL[0],
            Self::Klein(_) => KLEIN,
            Self::ZImage(_) => Z_IMAGE,
        }
    }
}

impl Pipeline {
    /// Reads a folder in `diffusers` format, or a single file as other programs use, and compares all weights with the
    /// configuration, so that an unusable model is found before the first prompt. Missing 8-bit weights are made.
    ///
    /// # Errors
    /// If a part is missing or damaged, or has an architecture that this crate doesn't know, or 8-bit weights cannot be
    /// made.
    pub fn open(folder: &Path, options: &Options) -> Result<Self> {
        Self::open_with(folder, WeightPreparation { options, rules: Rules::of_this_machine(), progress: &mut |_| {} })
    }

    /// Like [`Pipeline::open`], with other rules for 8-bit weights, or with a progress callback for making them, which
    /// takes a while.
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
        let parts = if folder.is_file() {
            single_file::parts(folder, suit.options.vae.is_some())?
        } else {
            ModelParts::of_folder(folder)?
        };
        let class = parts.class();
        lora::check(&suit.options.loras, parts_with_loras(class))?;
        check_additions(suit.options, class)?;
        let family: Box<dyn Family> = match parts {
            ModelParts::Usual(parts) => Box::new(stable_diffusion::open(*parts, &mut suit)?),
            ModelParts::Xl(parts) => Box::new(stable_diffusion_xl::open(*parts, &mut suit)?),
            ModelParts::Klein(parts) => Box::new(flux2_klein::Flux2Klein::open(*parts, &mut suit)?),
            ModelParts::ZImage(parts) => Box::new(z_image::ZImage::open(*parts, &mut suit)?),
        };
        let (embeddings, references) = Default::default();
        Ok(Self { family, sessions, prompts: suit.options.prompts, sketcher: None, embeddings, references })
    }

    /// What has been loaded so far.
    pub fn loads(&self) -> Loads {
        self.sessions.loads()
    }

    /// The model's abilities.
    pub fn traits(&self) -> &Traits {
        self.family.traits()
    }

    /// Makes a picture. `progress` is called for every finished step.
    ///
    /// # Errors
    /// If the order doesn't suit the model, the runtime fails, the render is cancelled, or the result isn't a picture.
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

    /// Whether each step asks the model with and without the prompt, for this guidance.
    pub fn asks_twice(&self, guidance: f32) -> bool {
        self.family.asks_twice(guidance)
    }

    /// The latent picture's shape for a size in pixels.
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

    /// A prompt's tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot read the prompt, or doesn't belong to the model.
    pub fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        self.family.tokens(prompt, self.prompts)
    }

    /// Sets how prompts are read from now on. Models other than Stable Diffusion 1, 2 and XL still read plain words.
    pub fn read_prompts(&mut self, syntax: PromptSyntax) {
        if self.prompts != syntax && self.family.takes_weighted_prompts() {
            self.prompts = syntax;
            self.embeddings.clear();
        }
    }

    /// A prompt's embedding.
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

    /// The embedding of a negative prompt, to go with the embedding of its prompt.
    pub fn embed_negative(&mut self, negative: &str, prompt: &Embedding) -> Result<Embedding> {
        if negative.is_empty() && self.family.zeros_for_nothing() {
            let zeros = |numbers: &[f32]| vec![0.0; numbers.len()];
            return Ok(Embedding { states: zeros(&prompt.states), pooled: zeros(&prompt.pooled) });
        }
        self.embed(negative)
    }

    /// The embeddings of prompts and negative prompts, all with the same number of tokens: prompts with fewer chunks
    /// are padded with empty ones.
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

    /// Encodes a reference picture for a latent shape.
    pub fn look(&mut self, reference: &Picture, shape: [usize; 3]) -> Result<Latent> {
        self.encoded(reference, None, shape)
    }

    /// Encodes a reference picture without the part that a mask leaves out, if there is one.
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

    /// Makes a latent picture out of noise. `after` sees each step's result and can stop the render with an error.
    ///
    /// # Errors
    /// If the number of steps doesn't suit the scheduler, the runtime fails, the numbers don't stay finite, or `after`
    /// returns an error.
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

    /// Prepares [`Step::preview`], once. Unless the model has a tiny autoencoder, this runs its decoder for a picture
    /// of about 128 pixels per side.
    pub fn learn_previews(&mut self) -> Result<()> {
        if self.sketcher.is_none() {
            self.sketcher = Some(Sketcher::new(&*self.family, &self.sessions)?);
        }
        Ok(())
    }

    /// Decodes a latent picture.
    pub fn decode(&self, latent: &Latent) -> Result<Picture> {
        picture(latent, &planes_of(&*self.family, &self.sessions, latent)?)
    }
}

fn planes_of(family: &dyn Family, sessions: &Sessions, latent: &Latent) -> Result<Vec<f32>> {
    let planes = family.decode(sessions, latent)?;
    finite(&planes, "the decoder gave numbers that are not finite")?;
    Ok(planes)
}

/// Turns the planes decoded from a latent picture into a picture.
fn picture(latent: &Latent, planes: &[f32]) -> Result<Picture> {
    let [channels, rows, columns] = latent.shape;
    let area = planes.len() / 3;
    // The decoder enlarges both sides by the same factor.
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

/// Reads a part's `config.json`.
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

/// An encoder session for a picture whose height and width are multiples of `factor`.
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

/// Undoes a latent picture's scaling and decodes it.
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
