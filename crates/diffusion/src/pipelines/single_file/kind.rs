//! Recognises a file's content by its tensors' names and sizes.

use super::tensors::Tensors;
use super::{CLIP, CLIP_XL, OPEN_CLIP, OPEN_CLIP_SGM, OPEN_CLIP_XL, UNET, VAE};
use crate::{Error, Result};

/// A model family that can be read from a single file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stable Diffusion 1, with CLIP.
    One,
    /// Stable Diffusion 2, with OpenCLIP.
    Two,
    /// Stable Diffusion XL, with both.
    Xl,
}

/// Names that identify files that aren't a model, or belong to another family: each with what the file is, and what to
/// do.
const OTHERS: [(&[&str], &str, &str); 10] = [
    (
        &[
            "lora_unet_",
            "lora_te",
            ".lora_up.",
            ".lora_down.",
            ".lora_A.",
            ".lora_B.",
            ".lora.up.",
            ".hada_w1",
            ".lokr_w",
        ],
        "a LoRA, which changes a model and is not one",
        "give a checkpoint as the model, and this file as --engine-lora",
    ),
    (
        &["emb_params", "string_to_param"],
        "an embedding of textual inversion and not a model",
        "give a checkpoint as the model, and this file as --engine-embedding",
    ),
    (&["control_model.", "controlnet_cond_embedding.", "input_hint_block."], "a ControlNet and not a model", COMPLETE),
    (&["joint_blocks."], "Stable Diffusion 3, which is not supported", COMPLETE),
    (&["double_blocks.", "single_transformer_blocks."], "FLUX.1 or a model like it, which is not supported", COMPLETE),
    (&["noise_refiner."], "Lumina 2 or a model like it, which is not supported", COMPLETE),
    (&["edm_mean"], "Playground 2.5, whose scheduler is not supported", COMPLETE),
    (&["edm_vpred."], "CosXL or a model like it, whose scheduler (EDM) is not supported", COMPLETE),
    (
        &["animate_diff", "motion_modules.", "temporal_transformer", "time_stack."],
        "a model for video, which is not supported",
        COMPLETE,
    ),
    (&["text_encoders.t5xxl.", "text_encoders.qwen"], "a model of another family, which is not supported", COMPLETE),
];

const COMPLETE: &str =
    "use a complete checkpoint of Stable Diffusion 1, 2 or XL, or the transformer of FLUX.2 klein or Z-Image";

/// Names that identify files with a single part of a model.
const PARTS: [(&[&str], &str); 5] = [
    (&["input_blocks.0.0.weight"], "a UNet alone"),
    (&["down_blocks.0.resnets.0.time_emb_proj.weight"], "a UNet alone, with the names of a diffusers folder"),
    (
        &["first_stage_model.", "decoder.conv_in.weight", "decoder.up.0.", "encoder.down."],
        "a VAE alone, which --engine-vae uses beside a model",
    ),
    (&["text_model.", "cond_stage_model.", "conditioner.embedders.", "resblocks."], "a text encoder alone"),
    (&["decoder.layers.", "encoder.layers."], "a tiny autoencoder or a text encoder alone"),
];

/// The family of a complete model, or of one that lacks only its VAE, for which another one can be used.
pub(super) fn identify(tensors: &Tensors) -> Result<Kind> {
    let is = |what: &str, remedy: &str| Error::Unusable(format!("{} is {what}: {remedy}", tensors.path));
    if let Some((_, what, remedy)) = OTHERS.iter().find(|(names, ..)| tensors.mentions(names)) {
        return Err(is(what, remedy));
    }
    if !tensors.has(&format!("{UNET}input_blocks.0.0.weight")) {
        if tensors.has("model_ema.") {
            return Err(is(
                "without its UNet (model.diffusion_model.), and its average (model_ema.) is not read",
                COMPLETE,
            ));
        }
        let part = PARTS.iter().find(|(names, _)| tensors.mentions(names));
        return Err(is(part.map_or("not a model that is read from one file", |(_, what)| what), COMPLETE));
    }
    if tensors.has(OPEN_CLIP_SGM) && !tensors.has(OPEN_CLIP_XL) && has_sizes_of_refiner(tensors) {
        return Err(is(
            "the refiner of Stable Diffusion XL, which finishes pictures of another model",
            "use the base model",
        ));
    }
    let is_for = |what| is(&format!("a model for {what}, which is not supported"), "use the usual one");
    match tensors.size(&format!("{UNET}input_blocks.0.0.weight"), 1)? {
        5 => return Err(is_for("pictures with depth")),
        7 => return Err(is_for("enlarging pictures")),
        8 => return Err(is_for("editing pictures")),
        _ => {}
    }
    complete(tensors).map_err(|what| is(&what, "use the complete checkpoint of this model"))
}

/// Token embedding size for the UNet of Stable Diffusion XL's refiner.
const REFINER_WIDTH: usize = 1280;

/// Stable Diffusion 2's UNet takes no picture sizes, and has another embedding size.
fn has_sizes_of_refiner(tensors: &Tensors) -> bool {
    tensors.has(&format!("{UNET}label_emb.")) || context(tensors) == Some(REFINER_WIDTH)
}

/// The UNet's token embedding size.
fn context(tensors: &Tensors) -> Option<usize> {
    tensors.last_size(UNET, ".attn2.to_k.weight")
}

/// Name prefix of Stable Diffusion 2's text encoder.
pub(super) fn open_clip_prefix(tensors: &Tensors) -> &'static str {
    if tensors.has(OPEN_CLIP) { OPEN_CLIP } else { OPEN_CLIP_SGM }
}

/// The family of a file with a UNet, or a message about what it is and lacks.
fn complete(tensors: &Tensors) -> std::result::Result<Kind, String> {
    let has = |prefix: &str| tensors.has(prefix);
    let kind = if has(CLIP_XL) || has(OPEN_CLIP_XL) {
        Kind::Xl
    } else if has(OPEN_CLIP) || has(OPEN_CLIP_SGM) {
        Kind::Two
    } else if has(CLIP) {
        Kind::One
    } else if has(&format!("{UNET}label_emb.")) {
        Kind::Xl
    } else {
        // Recognised by the UNet's embedding size.
        if context(tensors) == Some(1024) { Kind::Two } else { Kind::One }
    };
    let of_two = [open_clip_prefix(tensors)];
    let (family, encoders): (_, &[&str]) = match kind {
        Kind::One => (family(kind), &[CLIP]),
        Kind::Two => (family(kind), &of_two),
        Kind::Xl => (family(kind), &[CLIP_XL, OPEN_CLIP_XL]),
    };
    let missing = encoders.iter().filter(|prefix| !tensors.has(prefix)).count();
    let text = match (missing, encoders.len()) {
        (0, _) => None,
        (1, 2) => Some("one of its text encoders"),
        (_, 1) => Some("its text encoder"),
        _ => Some("its text encoders"),
    };
    let vae = if has_vae(tensors) { "" } else { " and its VAE" };
    text.map_or(Ok(kind), |text| Err(format!("{family} without {text}{vae}")))
}

/// Whether the file has a VAE with a decoder.
pub(super) fn has_vae(tensors: &Tensors) -> bool {
    tensors.has(&format!("{VAE}decoder."))
}

/// The error for a model without a VAE, if no other VAE is given.
pub(super) fn without_vae(kind: Kind, tensors: &Tensors) -> Error {
    let family = family(kind);
    Error::Unusable(format!(
        "{} is {family} without its VAE: use the complete checkpoint of this model, or give a VAE as --engine-vae",
        tensors.path
    ))
}

/// The family's display name.
fn family(kind: Kind) -> &'static str {
    match kind {
        Kind::One => "Stable Diffusion 1",
        Kind::Two => "Stable Diffusion 2",
        Kind::Xl => "Stable Diffusion XL",
    }
}
