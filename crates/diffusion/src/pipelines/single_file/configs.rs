//! A model's configurations, derived from its tensors' sizes and from what is known about its family.

use serde_json::{Value, json};

use super::UNET;
use super::kind::Kind;
use super::tensors::Tensors;
use crate::Result;

/// Attention head size in all text encoders, and in the UNets of Stable Diffusion 2 and XL.
const HEAD: usize = 64;

/// Heads per attention in Stable Diffusion 1's UNet.
const HEADS: usize = 8;

/// Groups of channels that are normalised together. Tiny models have fewer channels.
const GROUPS: usize = 32;

/// Picture sizes that Stable Diffusion XL's UNet takes in addition to the prompt's embedding.
const SIZES: usize = 6;

/// OpenCLIP's token embedding size in Stable Diffusion 2, and the number of layers used.
const OPEN_CLIP_WIDTH: usize = 1024;
const OPEN_CLIP_LAYERS: usize = 23;

/// What a model predicts, in `diffusers` terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prediction {
    Noise,
    Velocity,
}

impl Prediction {
    /// No tensor in a Stable Diffusion 2 file has to say what it predicts, so it is taken for 2.1 at 768 pixels, as in
    /// `diffusers`. Files that do say so have a marker tensor, or `modelspec` metadata. The inpainting model was only
    /// published for 512 pixels, where it predicts noise.
    pub(super) fn of(kind: Kind, tensors: &Tensors, note: Option<&str>) -> Self {
        match note {
            _ if tensors.shape("v_pred").is_some() => Self::Velocity,
            Some("v") => Self::Velocity,
            Some("epsilon") => Self::Noise,
            _ if kind == Kind::Two && !super::inpaints(tensors).unwrap_or(false) => Self::Velocity,
            _ => Self::Noise,
        }
    }
}

/// Layers per UNet block: the number of blocks before the first downsampling.
pub(super) fn unet_layers(tensors: &Tensors) -> usize {
    let blocks = tensors.count(&format!("{UNET}input_blocks."));
    let change = (1..blocks).find(|block| tensors.has(&format!("{UNET}input_blocks.{block}.0.op.")));
    change.unwrap_or(blocks).saturating_sub(1)
}

pub(super) fn unet(kind: Kind, tensors: &Tensors, prediction: Prediction) -> Result<Value> {
    let layers = unet_layers(tensors);
    let step = layers + 1;
    let levels = tensors.count(&format!("{UNET}input_blocks.")).div_ceil(step).max(1);
    let depth = |block: &str| tensors.count(&format!("{UNET}{block}.1.transformer_blocks."));
    let middle = tensors.count(&format!("{UNET}middle_block.1.transformer_blocks."));
    let (mut channels, mut depths, mut down, mut up) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for level in 0..levels {
        let block = 1 + level * step;
        channels.push(tensors.size(&format!("{UNET}input_blocks.{block}.0.in_layers.2.weight"), 0)?);
        let (going_down, going_up) =
            (depth(&format!("input_blocks.{block}")), depth(&format!("output_blocks.{}", (levels - 1 - level) * step)));
        down.push(if going_down > 0 { "CrossAttnDownBlock2D" } else { "DownBlock2D" });
        up.insert(0, if going_up > 0 { "CrossAttnUpBlock2D" } else { "UpBlock2D" });
        // The middle block has the last level's depth.
        let deepest = if level + 1 == levels { middle } else { 0 };
        depths.push(going_down.max(going_up).max(deepest).max(1));
    }
    let heads = |channels: &usize| if kind == Kind::One { HEADS.min(*channels) } else { (channels / HEAD).max(1) };
    let heads: Vec<_> = channels.iter().map(heads).collect();
    let sample = match (kind, prediction) {
        (Kind::One, _) | (Kind::Two, Prediction::Noise) => 64,
        (Kind::Two, Prediction::Velocity) => 96,
        (Kind::Xl, _) => 128,
    };
    // A 1x1 convolution in Stable Diffusion 1, a matrix in later models.
    let first = tensors.shape(&format!("{UNET}middle_block.1.proj_in.weight"));
    let mut config = json!({
        "_class_name": "UNet2DConditionModel", "sample_size": sample, "block_out_channels": channels,
        "attention_head_dim": heads, "layers_per_block": layers, "transformer_layers_per_block": depths,
        "cross_attention_dim": tensors.last_size(UNET, ".attn2.to_k.weight"), "down_block_types": down,
        "up_block_types": up, "norm_num_groups": GROUPS.min(channels[0]),
        "use_linear_projection": first.is_some_and(|shape| shape.len() == 2),
        "in_channels": tensors.size(&format!("{UNET}input_blocks.0.0.weight"), 1)?,
        "out_channels": tensors.size(&format!("{UNET}out.2.weight"), 0)?,
    });
    if kind == Kind::Xl {
        let inputs = tensors.size(&format!("{UNET}label_emb.0.0.weight"), 1)?;
        let pooled = super::pooled(tensors)?;
        config["addition_embed_type"] = json!("text_time");
        config["projection_class_embeddings_input_dim"] = json!(inputs);
        config["addition_time_embed_dim"] = json!(inputs.saturating_sub(pooled) / SIZES);
    }
    Ok(config)
}

/// Groups of channels that are normalised together, from the levels' channels.
fn groups(channels: &[usize]) -> usize {
    GROUPS.min(channels.first().copied().unwrap_or(GROUPS))
}

/// The autoencoder, with the scaling factor of its latents.
pub(super) fn autoencoder(tensors: &Tensors, scaling: f32) -> Result<Value> {
    let size = |block: String| tensors.size(&format!("{block}.resnets.0.conv1.weight"), 0);
    let levels = tensors.count("decoder.up_blocks.");
    // The way up is numbered from its end.
    let up = (0..levels).rev().map(|level| size(format!("decoder.up_blocks.{level}")));
    let up = up.collect::<Result<Vec<_>>>()?;
    let down = (0..levels).map(|level| size(format!("encoder.down_blocks.{level}")));
    let down = if tensors.has("encoder.") { down.collect::<Result<Vec<_>>>()? } else { up.clone() };
    Ok(json!({
        "_class_name": "AutoencoderKL", "block_out_channels": down, "decoder_block_out_channels": up,
        "scaling_factor": scaling, "latent_channels": tensors.size("decoder.conv_in.weight", 1)?,
        // Each level has one layer more on the way up.
        "layers_per_block": tensors.count("decoder.up_blocks.0.resnets.").saturating_sub(1),
        "norm_num_groups": groups(&up),
        "down_block_types": vec!["DownEncoderBlock2D"; levels], "up_block_types": vec!["UpDecoderBlock2D"; levels],
    }))
}

pub(super) fn flux2(tensors: &Tensors) -> Result<Value> {
    let size = |name: &str, axis| tensors.size(&format!("{name}.weight"), axis);
    let (width, head) = (size("x_embedder", 0)?, size("transformer_blocks.0.attn.norm_q", 0)?);
    let inner = size("transformer_blocks.0.ff.linear_out", 1)?;
    Ok(json!({
        "_class_name": "Flux2Transformer2DModel", "in_channels": size("x_embedder", 1)?,
        "joint_attention_dim": size("context_embedder", 1)?, "num_attention_heads": width / head.max(1),
        "attention_head_dim": head, "axes_dims_rope": vec![head / 4; 4],
        "mlp_ratio": inner as f64 / width.max(1) as f64, "num_layers": tensors.count("transformer_blocks."),
        "num_single_layers": tensors.count("single_transformer_blocks."),
        "timestep_guidance_channels": size("time_guidance_embed.timestep_embedder.linear_1", 1)?,
    }))
}

pub(super) fn z_image(tensors: &Tensors) -> Result<Value> {
    let size = |name: &str, axis| tensors.size(&format!("{name}.weight"), axis);
    let (width, head) = (size("cap_embedder.1", 0)?, size("layers.0.attention.norm_q", 0)?);
    Ok(json!({
        "_class_name": "ZImageTransformer2DModel", "in_channels": size("all_x_embedder.2-1", 1)? / 4, "dim": width,
        "cap_feat_dim": size("cap_embedder.1", 1)?, "n_heads": width / head.max(1), "n_kv_heads": width / head.max(1),
        "axes_dims": [head / 4, head / 8 * 3, head / 8 * 3], "axes_lens": [1536, 512, 512],
        "n_layers": tensors.count("layers."), "n_refiner_layers": tensors.count("noise_refiner."),
    }))
}

pub(super) fn qwen(tensors: &Tensors) -> Result<Value> {
    let size = |name: &str, axis| tensors.size(&format!("{name}.weight"), axis);
    let head = size("layers.0.self_attn.q_norm", 0)?;
    let heads = |name: &str| size(&format!("layers.0.self_attn.{name}"), 0).map(|rows| rows / head.max(1));
    Ok(json!({
        "hidden_size": size("embed_tokens", 1)?, "vocab_size": size("embed_tokens", 0)?, "head_dim": head,
        "num_attention_heads": heads("q_proj")?, "num_key_value_heads": heads("k_proj")?,
        "num_hidden_layers": tensors.count("layers."), "intermediate_size": size("layers.0.mlp.gate_proj", 0)?,
        "rope_theta": 1_000_000,
    }))
}

/// The first level in the names of CLIP's text encoder, which some programs omit. If a file has both names for a
/// weight, the name with this level counts.
pub(super) fn clip_level(tensors: &Tensors, prefix: &str) -> &'static str {
    if tensors.has(&format!("{prefix}text_model.")) { "text_model." } else { "" }
}

/// The CLIP text encoder with this name prefix.
pub(super) fn clip(tensors: &Tensors, prefix: &str) -> Result<Value> {
    let level = clip_level(tensors, prefix);
    let size = |name: &str, axis| tensors.size(&format!("{prefix}{level}{name}.weight"), axis);
    let width = size("embeddings.token_embedding", 1)?;
    Ok(json!({
        "architectures": ["CLIPTextModel"], "hidden_size": width, "vocab_size": size("embeddings.token_embedding", 0)?,
        "max_position_embeddings": size("embeddings.position_embedding", 0)?,
        "num_hidden_layers": tensors.count(&format!("{prefix}{level}encoder.layers.")),
        "intermediate_size": size("encoder.layers.0.mlp.fc1", 0)?, "num_attention_heads": (width / HEAD).max(1),
        "hidden_act": "quick_gelu",
    }))
}

/// How many layers of its text encoder Stable Diffusion 2 uses: all but the last, which files converted from folders
/// lack.
pub(super) fn used_layers(tensors: &Tensors, prefix: &str) -> Result<usize> {
    let layers = tensors.count(&format!("{prefix}transformer.resblocks."));
    let is_published = tensors.size(&format!("{prefix}token_embedding.weight"), 1)? == OPEN_CLIP_WIDTH;
    Ok(if is_published { layers.min(OPEN_CLIP_LAYERS) } else { layers.saturating_sub(1) })
}

/// The OpenCLIP text encoder with this name prefix and `layers` layers. `pooled` is the size of its embedding of the
/// whole prompt, if it has one.
pub(super) fn open_clip(tensors: &Tensors, prefix: &str, layers: usize, pooled: Option<usize>) -> Result<Value> {
    let size = |name: &str, axis| tensors.size(&format!("{prefix}{name}"), axis);
    let width = size("token_embedding.weight", 1)?;
    let class = if pooled.is_some() { "CLIPTextModelWithProjection" } else { "CLIPTextModel" };
    Ok(json!({
        "architectures": [class], "hidden_size": width, "vocab_size": size("token_embedding.weight", 0)?,
        "max_position_embeddings": size("positional_embedding", 0)?, "num_hidden_layers": layers,
        "intermediate_size": size("transformer.resblocks.0.mlp.c_fc.weight", 0)?,
        "num_attention_heads": (width / HEAD).max(1), "hidden_act": "gelu", "projection_dim": pooled,
    }))
}

/// The scheduler that `diffusers` assigns to such a file.
pub(super) fn scheduler(kind: Kind, tensors: &Tensors, prediction: Prediction) -> Value {
    let mut config = json!({
        "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "num_train_timesteps": 1000,
        "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1,
    });
    config["_class_name"] = json!(match kind {
        Kind::One => "PNDMScheduler",
        Kind::Two => "DDIMScheduler",
        Kind::Xl => "EulerDiscreteScheduler",
    });
    match kind {
        Kind::One => {}
        Kind::Two => config["clip_sample"] = json!(false),
        Kind::Xl => config["timestep_spacing"] = json!("leading"),
    }
    if prediction == Prediction::Velocity {
        config["prediction_type"] = json!("v_prediction");
        // Besides the marker for what it predicts, a model can have one for training that ended in pure noise (zero
        // terminal SNR).
        if kind == Kind::Xl && tensors.shape("ztsnr").is_some() {
            config["rescale_betas_zero_snr"] = json!(true);
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prediction(kind: Kind, names: &[&str], note: Option<&str>) -> (Prediction, Value) {
        let tensors = Tensors::named(names);
        let prediction = Prediction::of(kind, &tensors, note);
        (prediction, scheduler(kind, &tensors, prediction))
    }

    #[test]
    fn a_file_can_say_what_its_model_answers() {
        for (kind, names, note, expected) in [
            (Kind::One, &[][..], None, Prediction::Noise),
            (Kind::Two, &[], None, Prediction::Velocity),
            (Kind::Two, &[], Some("epsilon"), Prediction::Noise),
            (Kind::One, &[], Some("v"), Prediction::Velocity),
            (Kind::Xl, &[], None, Prediction::Noise),
            (Kind::Xl, &["v_pred"], None, Prediction::Velocity),
        ] {
            assert_eq!(prediction(kind, names, note).0, expected, "{kind:?} {names:?} {note:?}");
        }
        let (_, marked) = prediction(Kind::Xl, &["v_pred", "ztsnr"], None);
        assert_eq!(
            (&marked["prediction_type"], &marked["rescale_betas_zero_snr"]),
            (&json!("v_prediction"), &json!(true))
        );
        assert!(prediction(Kind::Xl, &["ztsnr"], None).1.get("rescale_betas_zero_snr").is_none());
    }

    #[test]
    fn schedulers_are_those_of_the_published_folders() {
        for (kind, class) in
            [(Kind::One, "PNDMScheduler"), (Kind::Two, "DDIMScheduler"), (Kind::Xl, "EulerDiscreteScheduler")]
        {
            assert_eq!(prediction(kind, &[], None).1["_class_name"], class);
        }
    }
}
