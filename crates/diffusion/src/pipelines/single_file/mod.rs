//! Models in files with the weight names of the original programs: Stable Diffusion 1, 2 and XL in a single file,
//! FLUX.2 klein and Z-Image in one file per part (`transformers`).
//!
//! A Stable Diffusion file contains neither configurations nor a tokenizer. Its tensors' names and sizes reveal the
//! family (`kind`) and the configurations (`configs`); CLIP's vocabulary is built in. Configurations that a file cannot
//! reveal may lie beside it, as in a `diffusers` folder: see `BESIDE`.

mod configs;
mod kind;
mod names;
mod tensors;
mod transformers;
mod vae;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use self::configs::Prediction;
use self::kind::Kind;
use self::tensors::Tensors;
use self::transformers::{Family, Found};
use super::ModelParts;
use super::encoders::{ClipParts, ClipTokenizer};
use super::stable_diffusion::Parts;
use crate::Result;
use crate::config::Config;
use crate::weights::Weights;

pub(crate) use names::unet as original_unet_name;
pub(crate) use transformers::transformer_layers;
pub(super) use vae::vae_parts;

/// Configuration files beside a model file, which replace the family's defaults.
const BESIDE: [&str; 3] = ["unet/config.json", "vae/config.json", "scheduler/scheduler_config.json"];

/// Name prefixes of each part's weights.
const UNET: &str = "model.diffusion_model.";
const VAE: &str = "first_stage_model.";
const CLIP: &str = "cond_stage_model.transformer.";
const OPEN_CLIP: &str = "cond_stage_model.model.";
/// OpenCLIP's prefix in later programs, and of the only text encoder in Stable Diffusion XL's refiner.
const OPEN_CLIP_SGM: &str = "conditioner.embedders.0.model.";
const CLIP_XL: &str = "conditioner.embedders.0.transformer.";
const OPEN_CLIP_XL: &str = "conditioner.embedders.1.model.";

const VAE_PARTS: [&str; 5] = ["encoder.", "decoder.", "quant_conv.", "post_quant_conv.", "bn."];

const WEIGHTS: [&str; 7] = ["safetensors", "bin", "ckpt", "pt", "pth", "gguf", "msgpack"];

/// The most folder entries that are read.
const MAX_ENTRIES: usize = 1_000;

/// The scaling factors of latents, which normalise their deviation to about 1.
pub(super) const SCALING: f32 = 0.18215;
pub(super) const SCALING_XL: f32 = 0.13025;

/// The tokens that pad short prompts.
const END: &str = "<|endoftext|>";
const FIRST: &str = "!";

/// Metadata about what the model predicts, from training programs and ComfyUI.
const PREDICTION_NOTES: [&str; 2] = ["modelspec.prediction_type", "modelspec.predict_key"];

/// Whether a tensor belongs to an autoencoder. Files can also contain tensors from its training.
fn is_of_vae(name: &str) -> bool {
    VAE_PARTS.iter().any(|part| name.starts_with(part))
}

/// What a file is, from its own header and the headers of files beside it.
#[derive(Debug)]
pub struct Recognised {
    /// The class of the pipeline.
    pub class: &'static str,
    /// The folder that contains its files, directly or in subfolders.
    pub folder: PathBuf,
    /// The model's files in this folder, the given one first.
    pub files: Vec<PathBuf>,
    /// The most reference pictures.
    pub(super) references: usize,
}

/// Recognises the model in a file.
pub fn recognise(path: &Path) -> Result<Recognised> {
    let tensors = Tensors::read(path)?;
    let (class, references, folder, files) = match Found::of(path, &tensors)? {
        Some(found) => {
            let (class, references) = match found.family {
                Family::Klein => (super::KLEIN, super::flux2_klein::REFERENCES),
                Family::ZImage => (super::Z_IMAGE, 0),
            };
            (class, references, found.folder.clone(), found.files())
        }
        None => {
            let class = class_of(kind::identify(&tensors)?, &tensors)?;
            // A model without a VAE is used with another one, which has an encoder unless it was made for decoding
            // only.
            let encodes = !kind::has_vae(&tensors) || tensors.has(&format!("{VAE}encoder.conv_in.weight"));
            let folder = path.parent().unwrap_or(Path::new("")).to_owned();
            let beside = BESIDE.into_iter().filter_map(|name| beside(path, name));
            (class, usize::from(encodes), folder, std::iter::once(path.to_owned()).chain(beside).collect())
        }
    };
    let inside = |file: PathBuf| file.strip_prefix(&folder).map(Path::to_owned).unwrap_or(file);
    let files = files.into_iter().map(inside).collect();
    Ok(Recognised { class, files, references, folder })
}

/// In addition to the latent picture, inpainting models see a mask and another latent picture.
fn inpaints(tensors: &Tensors) -> Result<bool> {
    Ok(tensors.size(&format!("{UNET}input_blocks.0.0.weight"), 1)? == 9)
}

fn class_of(kind: Kind, tensors: &Tensors) -> Result<&'static str> {
    Ok(match (kind, inpaints(tensors)?) {
        (Kind::One | Kind::Two, false) => "StableDiffusionPipeline",
        (Kind::One | Kind::Two, true) => "StableDiffusionInpaintPipeline",
        (Kind::Xl, false) => "StableDiffusionXLPipeline",
        (Kind::Xl, true) => "StableDiffusionXLInpaintPipeline",
    })
}

/// Reads a file's parts. The file must contain a VAE unless the model `has_other_vae`.
pub(super) fn parts(path: &Path, has_other_vae: bool) -> Result<ModelParts> {
    // Before the weights are read, so that a file of another kind is named, whatever its numbers are.
    let tensors = Tensors::read(path)?;
    if let Some(found) = Found::of(path, &tensors)? {
        let parts = Box::new(found.parts()?);
        return Ok(if found.family == Family::Klein { ModelParts::Klein(parts) } else { ModelParts::ZImage(parts) });
    }
    let kind = kind::identify(&tensors)?;
    let weights = Weights::open(path)?;
    let tensors = Tensors::of(&weights);
    if !has_other_vae && !kind::has_vae(&tensors) {
        return Err(kind::without_vae(kind, &tensors));
    }
    Ok(match kind {
        Kind::One => {
            ModelParts::Usual(Box::new(body(path, kind, &tensors, &weights, [clip(&tensors, &weights, CLIP)?])?))
        }
        Kind::Two => {
            let prefix = kind::open_clip_prefix(&tensors);
            let encoder = open_clip(&tensors, &weights, prefix, configs::used_layers(&tensors, prefix)?, None)?;
            ModelParts::Usual(Box::new(body(path, kind, &tensors, &weights, [encoder])?))
        }
        Kind::Xl => {
            let layers = tensors.count(&format!("{OPEN_CLIP_XL}transformer.resblocks."));
            let second = open_clip(&tensors, &weights, OPEN_CLIP_XL, layers, Some(pooled(&tensors)?))?;
            let first = clip(&tensors, &weights, CLIP_XL)?;
            ModelParts::Xl(Box::new(body(path, kind, &tensors, &weights, [first, second])?))
        }
    })
}

/// Size of a whole prompt's embedding.
fn pooled(tensors: &Tensors) -> Result<usize> {
    let rows = format!("{OPEN_CLIP_XL}text_projection.weight");
    if tensors.shape(&rows).is_some() {
        return tensors.size(&rows, 0);
    }
    tensors.size(&format!("{OPEN_CLIP_XL}text_projection"), 1)
}

/// A part's weights, under their `diffusers` names.
fn part(weights: &Weights, prefix: &str, rename: impl Fn(&str) -> Option<String>) -> Weights {
    weights.renamed(|name| rename(name.strip_prefix(prefix)?))
}

/// A built-in configuration, with a name for messages.
fn config(path: &Path, part: &str, fields: Value) -> Config {
    let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
    Config::of(&format!("{} ({part})", path.display()), fields)
}

fn clip(tensors: &Tensors, weights: &Weights, prefix: &str) -> Result<ClipParts> {
    let level = configs::clip_level(tensors, prefix);
    Ok(ClipParts {
        config: config(Path::new(&tensors.path), "text encoder", configs::clip(tensors, prefix)?),
        weights: part(weights, prefix, |name| names::clip(name, level)),
        tokenizer: ClipTokenizer::BuiltIn(END),
    })
}

fn open_clip(
    tensors: &Tensors,
    weights: &Weights,
    prefix: &str,
    layers: usize,
    pooled: Option<usize>,
) -> Result<ClipParts> {
    let fields = configs::open_clip(tensors, prefix, layers, pooled)?;
    Ok(ClipParts {
        config: config(Path::new(&tensors.path), "text encoder of OpenCLIP", fields),
        weights: part(weights, prefix, |name| names::open_clip(name, layers, pooled.is_some()))
            .cut(names::open_clip_inputs),
        tokenizer: ClipTokenizer::BuiltIn(FIRST),
    })
}

/// All parts except the text encoders.
fn body<const N: usize>(
    path: &Path,
    kind: Kind,
    tensors: &Tensors,
    weights: &Weights,
    encoders: [ClipParts; N],
) -> Result<Parts<N>> {
    let [unet, vae, scheduler] = BESIDE.map(|name| beside(path, name));
    let config = |beside: Option<PathBuf>, name: &str, fields: &dyn Fn() -> Result<Value>| match beside {
        Some(beside) => Config::read(&beside),
        None => Ok(config(path, name, fields()?)),
    };
    let own_vae = if kind::has_vae(tensors) {
        let scaling = if kind == Kind::Xl { SCALING_XL } else { SCALING };
        let (fields, weights) = vae::autoencoder(weights, VAE, scaling)?;
        Some((config(vae, "VAE", &|| Ok(fields.clone()))?, weights))
    } else {
        None
    };
    let prediction = Prediction::of(kind, tensors, PREDICTION_NOTES.iter().find_map(|note| weights.note(note)));
    let layers = configs::unet_layers(tensors);
    Ok(Parts {
        index: self::config(path, "model", json!({ "_class_name": class_of(kind, tensors)? })),
        encoders,
        unet: config(unet, "UNet", &|| configs::unet(kind, tensors, prediction))?,
        // An unknown name stays, so that the graph rejects it.
        unet_weights: part(weights, UNET, |name| Some(names::unet(name, layers).unwrap_or_else(|| name.to_owned()))),
        vae: own_vae,
        scheduler: config(scheduler, "scheduler", &|| Ok(configs::scheduler(kind, tensors, prediction)))?,
    })
}

/// The configuration from [`BESIDE`] that lies beside a file, if it belongs to the file. If its folder contains
/// weights, it belongs to them instead, unless the file lies in a complete model's folder.
fn beside(path: &Path, name: &str) -> Option<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let config = folder.join(name);
    let belongs = || folder.join("model_index.json").is_file() || !config.parent().is_some_and(holds_weights);
    (config.is_file() && belongs()).then_some(config)
}

fn holds_weights(folder: &Path) -> bool {
    let is_weights = |name: &Path| {
        let extension = name.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        extension.is_some_and(|extension| WEIGHTS.contains(&extension.as_str()))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.take(MAX_ENTRIES).any(|entry| is_weights(Path::new(&entry.file_name())))
}
