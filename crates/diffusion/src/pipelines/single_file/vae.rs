//! A separate autoencoder, in a file or folder, for Stable Diffusion 1, 2 and XL.

use std::path::Path;

use serde_json::{Value, json};

use super::configs;
use super::tensors::Tensors;
use super::{VAE, config, is_of_vae, names, part};
use crate::config::Config;
use crate::formats::check_format;
use crate::weights::Weights;
use crate::{Error, Result};

/// The stem of the weights files' names in a folder.
const STEM: &str = "diffusion_pytorch_model";

/// The most layers of a tiny autoencoder that are counted.
const MAX_LAYERS: usize = 256;

/// Reads an autoencoder: a folder in `diffusers` format, or a file with `diffusers` or original names. A file doesn't
/// say how latents are scaled, so `scaling` is used.
pub(in crate::pipelines) fn vae_parts(path: &Path, scaling: f32) -> Result<(Config, Weights)> {
    if path.is_dir() {
        let config = path.join("config.json");
        if !config.exists() && path.join("vae/config.json").exists() {
            let path = path.display();
            return Err(Error::Files(format!(
                "{path} is the folder of a whole model and holds no config.json: its VAE is the folder {path}/vae"
            )));
        }
        return Ok((Config::read(&config)?, Weights::open_part(path, STEM)?));
    }
    check_format(path)?;
    let weights = Weights::open(path)?;
    let tensors = Tensors::of(&weights);
    let prefix = if tensors.has(VAE) { VAE } else { "" };
    let has = |name: &str| tensors.has(&format!("{prefix}{name}"));
    if has("decoder.layers.0.weight") {
        return Ok((
            config(path, "tiny VAE", tiny(&tensors, prefix)?),
            part(&weights, prefix, |name| Some(name.into())),
        ));
    }
    if !has("decoder.up_blocks.") && !has("decoder.up.") {
        let why = if has("1.weight") && has("3.conv.0.weight") {
            "has the names of the first program of the tiny autoencoder: use the folder for diffusers"
        } else {
            "holds no autoencoder"
        };
        return Err(Error::Model(format!("{} {why}", tensors.path)));
    }
    let (fields, weights) = autoencoder(&weights, prefix, scaling)?;
    // In a part's folder, its configuration lies beside the file.
    let beside = path.with_file_name("config.json");
    let is_of_folder = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(STEM));
    let config = if is_of_folder && beside.is_file() { Config::read(&beside)? } else { config(path, "VAE", fields) };
    Ok((config, weights))
}

/// The autoencoder with this name prefix, under `diffusers` or original names: its configuration, and its weights under
/// `diffusers` names.
pub(super) fn autoencoder(weights: &Weights, prefix: &str, scaling: f32) -> Result<(Value, Weights)> {
    let levels = Tensors::of(weights).count(&format!("{prefix}decoder.up."));
    // An unknown name stays, so that the graph rejects it.
    let renamed = |name: &str| is_of_vae(name).then(|| names::vae(name, levels).unwrap_or_else(|| name.to_owned()));
    let weights = part(weights, prefix, renamed);
    Ok((configs::autoencoder(&Tensors::of(&weights), scaling)?, weights))
}

fn tiny(tensors: &Tensors, prefix: &str) -> Result<Value> {
    // A level ends with a single convolution. Layers without weights are numbered, too.
    let levels = |side: &str| {
        let has = |layer: usize, name: &str| tensors.has(&format!("{prefix}{side}.layers.{layer}.{name}"));
        let (mut counts, mut blocks) = (Vec::new(), 0);
        for layer in 1..MAX_LAYERS {
            if has(layer, "conv.0.weight") {
                blocks += 1;
            } else if has(layer, "weight") {
                counts.push(std::mem::take(&mut blocks));
            }
        }
        counts
    };
    let (down, up) = (levels("encoder"), levels("decoder"));
    let channels = tensors.size(&format!("{prefix}decoder.layers.0.weight"), 0)?;
    let latent = tensors.size(&format!("{prefix}decoder.layers.0.weight"), 1)?;
    Ok(json!({
        "_class_name": "AutoencoderTiny", "latent_channels": latent,
        "num_encoder_blocks": down, "encoder_block_out_channels": vec![channels; down.len()],
        "num_decoder_blocks": up, "decoder_block_out_channels": vec![channels; up.len()],
    }))
}
