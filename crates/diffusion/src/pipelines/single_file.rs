//! Stable Diffusion in one file, with the names of weights that its first program gave them.
//!
//! Such a file holds neither configurations nor a tokenizer. The configurations of Stable Diffusion 1.5 are built in;
//! those of another model, and a tokenizer always, lie beside the file as in a folder that `diffusers` writes.

use std::path::Path;

use serde_json::{Value, json};

use super::stable_diffusion::Parts;
use crate::config::Config;
use crate::weights::Weights;
use crate::{Error, Result};

/// The names of all weights of a part begin with this.
const UNET: &str = "model.diffusion_model.";
const VAE: &str = "first_stage_model.";
const CLIP: &str = "cond_stage_model.transformer.";

/// The layers of a residual block, there and here.
const RESIDUAL: [(&str, &str); 6] = [
    ("in_layers.0.", "norm1."),
    ("in_layers.2.", "conv1."),
    ("emb_layers.1.", "time_emb_proj."),
    ("out_layers.0.", "norm2."),
    ("out_layers.3.", "conv2."),
    ("skip_connection.", "conv_shortcut."),
];

/// The layers of the autoencoder's attention, there and here.
const ATTENTION: [(&str, &str); 5] =
    [("norm.", "group_norm."), ("q.", "to_q."), ("k.", "to_k."), ("v.", "to_v."), ("proj_out.", "to_out.0.")];

/// Reads the parts of a file.
///
/// # Errors
/// If the file is damaged or of another kind, or the tokenizer beside it is missing.
pub(super) fn parts(path: &Path) -> Result<Parts> {
    let weights = Weights::open(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let config = |name: &str, built_in: Value| {
        let beside = folder.join(name);
        match built_in {
            Value::Object(fields) if !beside.exists() => {
                Ok(Config::of(&format!("{} ({name})", path.display()), fields))
            }
            _ => Config::read(&beside),
        }
    };
    let [unet, vae] = [config("unet/config.json", unet())?, config("vae/config.json", vae())?];
    let layers = unet.number_or("layers_per_block", 2)?;
    let levels = vae.names("up_block_types")?.len();
    let part = |prefix: &str, rename: &dyn Fn(&str) -> Option<String>| {
        let found = weights.renamed(|name| {
            let name = name.strip_prefix(prefix)?;
            // A name that is not known stays, so that the graph refuses it.
            Some(rename(name).unwrap_or_else(|| name.to_owned()))
        });
        if found.names().next().is_none() {
            let path = path.display();
            return Err(Error::Model(format!(
                "{path} has no weights whose names begin with {prefix:?}; only whole models of Stable Diffusion 1 are \
                 read from one file"
            )));
        }
        Ok(found)
    };
    let tokenizer = folder.join("tokenizer");
    if !tokenizer.is_dir() {
        let (path, tokenizer) = (path.display(), tokenizer.display());
        return Err(Error::Model(format!(
            "{path} needs {tokenizer} beside it, with vocab.json, merges.txt and tokenizer_config.json of the model"
        )));
    }
    Ok(Parts {
        index: config("model_index.json", json!({ "_class_name": "StableDiffusionPipeline" }))?,
        clip_weights: part(CLIP, &|_| None)?,
        unet_weights: part(UNET, &|name| unet_name(name, layers))?,
        vae_weights: part(VAE, &|name| vae_name(name, levels))?,
        clip: config("text_encoder/config.json", clip())?,
        unet,
        vae,
        scheduler: config("scheduler/scheduler_config.json", scheduler())?,
        tokenizer,
    })
}

fn clip() -> Value {
    json!({
        "architectures": ["CLIPTextModel"], "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "hidden_act": "quick_gelu",
    })
}

fn unet() -> Value {
    let (down, up) = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D");
    json!({
        "_class_name": "UNet2DConditionModel", "block_out_channels": [320, 640, 1280, 1280], "attention_head_dim": 8,
        "cross_attention_dim": 768, "layers_per_block": 2, "down_block_types": [down, down, down, "DownBlock2D"],
        "up_block_types": ["UpBlock2D", up, up, up],
    })
}

fn vae() -> Value {
    json!({
        "_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "latent_channels": 4,
        "layers_per_block": 2, "scaling_factor": 0.18215, "down_block_types": vec!["DownEncoderBlock2D"; 4],
        "up_block_types": vec!["UpDecoderBlock2D"; 4],
    })
}

fn scheduler() -> Value {
    json!({
        "_class_name": "PNDMScheduler", "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012,
        "num_train_timesteps": 1000, "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1,
    })
}

/// The name of a weight of the UNet, given the layers of a block; `None` if it is not known.
fn unet_name(name: &str, layers: usize) -> Option<String> {
    let (head, rest) = name.split_once('.')?;
    let (number, rest) = rest.split_once('.')?;
    let number: usize = number.parse().ok()?;
    match (head, number) {
        ("time_embed", 0 | 2) => return Some(format!("time_embedding.linear_{}.{rest}", number / 2 + 1)),
        ("out", 0) => return Some(format!("conv_norm_out.{rest}")),
        ("out", 2) => return Some(format!("conv_out.{rest}")),
        ("middle_block", 0..=2) => return Some(layer("mid_block", number / 2, rest)),
        _ => {}
    }
    let (_, rest) = rest.split_once('.')?;
    match head {
        "input_blocks" if number == 0 => Some(format!("conv_in.{rest}")),
        "input_blocks" => {
            let (level, at) = ((number - 1) / (layers + 1), (number - 1) % (layers + 1));
            let block = format!("down_blocks.{level}");
            Some(match rest.strip_prefix("op.") {
                Some(rest) => format!("{block}.downsamplers.0.conv.{rest}"),
                None => layer(&block, at, rest),
            })
        }
        "output_blocks" => {
            let block = format!("up_blocks.{}", number / (layers + 1));
            Some(match rest.strip_prefix("conv.") {
                Some(rest) => format!("{block}.upsamplers.0.conv.{rest}"),
                None => layer(&block, number % (layers + 1), rest),
            })
        }
        _ => None,
    }
}

/// The name of a weight of a residual block or of a transformer.
fn layer(block: &str, at: usize, rest: &str) -> String {
    match renamed(rest, &RESIDUAL) {
        Some(rest) => format!("{block}.resnets.{at}.{rest}"),
        None => format!("{block}.attentions.{at}.{rest}"),
    }
}

fn renamed(name: &str, pairs: &[(&str, &str)]) -> Option<String> {
    pairs.iter().find_map(|(there, here)| Some(format!("{here}{}", name.strip_prefix(there)?)))
}

/// The name of a weight of the autoencoder with so many levels; `None` if it is not known.
fn vae_name(name: &str, levels: usize) -> Option<String> {
    let (side, rest) = name.split_once('.')?;
    let (head, tail) = rest.split_once('.')?;
    let name = match head {
        "norm_out" => format!("conv_norm_out.{tail}"),
        "mid" => match tail.split_once('.')? {
            ("block_1", rest) => format!("mid_block.resnets.0.{rest}"),
            ("block_2", rest) => format!("mid_block.resnets.1.{rest}"),
            ("attn_1", rest) => format!("mid_block.attentions.0.{}", renamed(rest, &ATTENTION)?),
            _ => return None,
        },
        "up" | "down" => {
            let (level, rest) = tail.split_once('.')?;
            let level: usize = level.parse().ok().filter(|level| *level < levels)?;
            // The way up is counted from its end.
            let level = if head == "up" { levels - 1 - level } else { level };
            let block = format!("{head}_blocks.{level}");
            match rest.strip_prefix("block.") {
                Some(rest) => format!("{block}.resnets.{}", rest.replacen(".nin_shortcut.", ".conv_shortcut.", 1)),
                None => format!("{block}.{head}samplers.0.{}", rest.strip_prefix(&format!("{head}sample."))?),
            }
        }
        _ => return None,
    };
    Some(format!("{side}.{name}"))
}
