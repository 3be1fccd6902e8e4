//! Stable Diffusion 1, 2 and XL in one file, with the names of weights that their first programs gave them.
//!
//! Such a file holds neither configurations nor a tokenizer. The names and sizes of its tensors tell the family
//! (`kind`) and the configurations (`configs`); the vocabulary of CLIP comes with this program. What a file cannot
//! tell may lie beside it, as in a folder that `diffusers` writes: see [`BESIDE`].

mod configs;
mod kind;
mod names;
mod tensors;
mod vae;

use std::path::Path;

use serde_json::{Map, Value, json};

use self::configs::Prediction;
use self::kind::Kind;
use self::tensors::Tensors;
use super::encoders::{ClipParts, ClipTokenizer};
use super::stable_diffusion::Parts;
use crate::Result;
use crate::config::Config;
use crate::weights::Weights;

pub(crate) use names::unet as original_unet_name;
pub(crate) use tensors::check_format;
pub(super) use vae::vae_parts;

/// Configurations beside a file that replace those of its family, if they are there.
pub const BESIDE: [&str; 3] = ["unet/config.json", "vae/config.json", "scheduler/scheduler_config.json"];

/// The names of all weights of a part begin with this.
const UNET: &str = "model.diffusion_model.";
const VAE: &str = "first_stage_model.";
const CLIP: &str = "cond_stage_model.transformer.";
const OPEN_CLIP: &str = "cond_stage_model.model.";
const CLIP_XL: &str = "conditioner.embedders.0.transformer.";
const OPEN_CLIP_XL: &str = "conditioner.embedders.1.model.";

/// The parts of an autoencoder.
const VAE_PARTS: [&str; 4] = ["encoder.", "decoder.", "quant_conv.", "post_quant_conv."];

/// The factors by which latent pictures are scaled, so that their numbers vary by about 1.
pub(super) const SCALING: f32 = 0.18215;
pub(super) const SCALING_XL: f32 = 0.13025;

/// The tokens that fill up short prompts.
const END: &str = "<|endoftext|>";
const FIRST: &str = "!";

/// A note on what the model answers.
const PREDICTION_NOTE: &str = "modelspec.prediction_type";

/// The parts of a model in one file.
#[derive(Debug)]
pub(super) enum Single {
    /// Stable Diffusion 1 or 2.
    Usual(Box<Parts<1>>),
    Xl(Box<Parts<2>>),
}

/// The class of the pipeline of a model in one file, by the header of the file alone.
///
/// # Errors
/// A sentence on what the file is, or lacks, and what to do.
pub fn class(path: &Path) -> Result<&'static str> {
    let tensors = Tensors::read(path)?;
    class_of(kind::identify(&tensors)?, &tensors)
}

/// The most reference pictures that a model in one file takes, by the header of the file alone.
///
/// # Errors
/// As of [`class`].
pub(super) fn references(path: &Path) -> Result<usize> {
    let tensors = Tensors::read(path)?;
    kind::identify(&tensors)?;
    Ok(usize::from(tensors.has(&format!("{VAE}encoder.conv_in.weight"))))
}

fn class_of(kind: Kind, tensors: &Tensors) -> Result<&'static str> {
    // Besides the latent picture, models for inpainting see a mask and another latent picture.
    let inpaints = tensors.size(&format!("{UNET}input_blocks.0.0.weight"), 1)? == 9;
    Ok(match (kind, inpaints) {
        (Kind::One | Kind::Two, false) => "StableDiffusionPipeline",
        (Kind::One | Kind::Two, true) => "StableDiffusionInpaintPipeline",
        (Kind::Xl, false) => "StableDiffusionXLPipeline",
        (Kind::Xl, true) => "StableDiffusionXLInpaintPipeline",
    })
}

/// Reads the parts of a file.
///
/// # Errors
/// If the file is damaged or of another kind, or lacks a part.
pub(super) fn parts(path: &Path) -> Result<Single> {
    tensors::check_format(path)?;
    let weights = Weights::open(path)?;
    let tensors = Tensors::of(&weights);
    let kind = kind::identify(&tensors)?;
    Ok(match kind {
        Kind::One => Single::Usual(Box::new(body(path, kind, &tensors, &weights, [clip(&tensors, &weights, CLIP)?])?)),
        Kind::Two => {
            let encoder = open_clip(&tensors, &weights, OPEN_CLIP, configs::used_layers(&tensors)?, None)?;
            Single::Usual(Box::new(body(path, kind, &tensors, &weights, [encoder])?))
        }
        Kind::Xl => {
            let layers = tensors.count(&format!("{OPEN_CLIP_XL}transformer.resblocks."));
            let second = open_clip(&tensors, &weights, OPEN_CLIP_XL, layers, Some(pooled(&tensors)?))?;
            let first = clip(&tensors, &weights, CLIP_XL)?;
            Single::Xl(Box::new(body(path, kind, &tensors, &weights, [first, second])?))
        }
    })
}

/// Numbers in the embedding of a whole prompt.
fn pooled(tensors: &Tensors) -> Result<usize> {
    let rows = format!("{OPEN_CLIP_XL}text_projection.weight");
    if tensors.shape(&rows).is_some() {
        return tensors.size(&rows, 0);
    }
    tensors.size(&format!("{OPEN_CLIP_XL}text_projection"), 1)
}

/// The weights of a part, under the names of `diffusers`.
fn part(weights: &Weights, prefix: &str, rename: impl Fn(&str) -> Option<String>) -> Weights {
    weights.renamed(|name| rename(name.strip_prefix(prefix)?))
}

/// A configuration of this program's own, with a name for messages.
fn config(path: &Path, part: &str, fields: Value) -> Config {
    let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
    Config::of(&format!("{} ({part})", path.display()), fields)
}

fn clip(tensors: &Tensors, weights: &Weights, prefix: &str) -> Result<ClipParts> {
    Ok(ClipParts {
        config: config(Path::new(&tensors.path), "text encoder", configs::clip(tensors, prefix)?),
        weights: part(weights, prefix, names::clip),
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

/// All parts besides the text encoders.
fn body<const N: usize>(
    path: &Path,
    kind: Kind,
    tensors: &Tensors,
    weights: &Weights,
    encoders: [ClipParts; N],
) -> Result<Parts<N>> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let [unet, vae, scheduler] = BESIDE.map(|name| folder.join(name));
    let config = |beside: &Path, name: &str, fields: &dyn Fn() -> Result<Value>| {
        if beside.is_file() { Config::read(beside) } else { Ok(config(path, name, fields()?)) }
    };
    let prediction = Prediction::of(kind, tensors, weights.note(PREDICTION_NOTE));
    let (layers, levels) = (configs::unet_layers(tensors), configs::vae_levels(tensors, VAE));
    let scaling = if kind == Kind::Xl { SCALING_XL } else { SCALING };
    // A name that is not known stays, so that the graph refuses it.
    let known = |name: &str, renamed: Option<String>| renamed.unwrap_or_else(|| name.to_owned());
    Ok(Parts {
        index: self::config(path, "model", json!({ "_class_name": class_of(kind, tensors)? })),
        encoders,
        unet: config(&unet, "UNet", &|| configs::unet(kind, tensors, prediction))?,
        unet_weights: part(weights, UNET, |name| Some(known(name, names::unet(name, layers)))),
        vae: config(&vae, "VAE", &|| configs::vae(tensors, VAE, scaling))?,
        vae_weights: part(weights, VAE, |name| {
            // Files can also hold what its training needed.
            let used = VAE_PARTS.iter().any(|part| name.starts_with(part));
            used.then(|| known(name, names::vae(name, levels)))
        }),
        scheduler: config(&scheduler, "scheduler", &|| Ok(configs::scheduler(kind, tensors, prediction)))?,
    })
}
