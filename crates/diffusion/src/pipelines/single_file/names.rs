//! Translates original weight names to `diffusers` names.

use crate::models::clip::TRANSPOSED_PROJECTION;

/// The layers of a residual block: original and `diffusers` names.
const RESIDUAL: [(&str, &str); 6] = [
    ("in_layers.0.", "norm1."),
    ("in_layers.2.", "conv1."),
    ("emb_layers.1.", "time_emb_proj."),
    ("out_layers.0.", "norm2."),
    ("out_layers.3.", "conv2."),
    ("skip_connection.", "conv_shortcut."),
];

/// The layers of the autoencoder's attention: original and `diffusers` names.
const ATTENTION: [(&str, &str); 5] =
    [("norm.", "group_norm."), ("q.", "to_q."), ("k.", "to_k."), ("v.", "to_v."), ("proj_out.", "to_out.0.")];

/// The layers of OpenCLIP's text encoder: original and `diffusers` names.
const OPEN_CLIP: [(&str, &str); 6] = [
    ("ln_1.", "layer_norm1."),
    ("ln_2.", "layer_norm2."),
    ("mlp.c_fc.", "mlp.fc1."),
    ("mlp.c_proj.", "mlp.fc2."),
    ("attn.out_proj.", "self_attn.out_proj."),
    ("attn.in_proj_", "self_attn.in_proj."),
];

/// A UNet weight's name, given the number of layers per block; `None` if it is unknown.
pub(crate) fn unet(name: &str, layers: usize) -> Option<String> {
    let (head, rest) = name.split_once('.')?;
    let (number, rest) = rest.split_once('.')?;
    let number: usize = number.parse().ok()?;
    let sizes = |rest: &str| renamed(rest, &[("0.", "add_embedding.linear_1."), ("2.", "add_embedding.linear_2.")]);
    match (head, number) {
        ("label_emb", 0) => return sizes(rest),
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

/// The name of a residual block's or transformer's weight.
fn layer(block: &str, at: usize, rest: &str) -> String {
    match renamed(rest, &RESIDUAL) {
        Some(rest) => format!("{block}.resnets.{at}.{rest}"),
        None => format!("{block}.attentions.{at}.{rest}"),
    }
}

fn renamed(name: &str, pairs: &[(&str, &str)]) -> Option<String> {
    pairs.iter().find_map(|(there, here)| Some(format!("{here}{}", name.strip_prefix(there)?)))
}

/// The name of a CLIP text encoder's weight, if names begin with `level`; `None` for anything else in the file.
pub(super) fn clip(name: &str, level: &str) -> Option<String> {
    let name = name.strip_prefix(level)?;
    let known = ["embeddings.token_embedding.", "embeddings.position_embedding.", "encoder.", "final_layer_norm."];
    known.iter().any(|part| name.starts_with(part)).then(|| name.to_owned())
}

/// The name of an OpenCLIP text encoder's weight. The encoder has `layers` layers; `projects` says whether it has an
/// embedding of the whole prompt. `None` for further layers and anything else in the file. An attention's inputs share
/// one matrix, which [`open_clip_inputs`] splits.
pub(super) fn open_clip(name: &str, layers: usize, projects: bool) -> Option<String> {
    match name {
        "token_embedding.weight" => return Some("embeddings.token_embedding.weight".into()),
        "positional_embedding" => return Some("embeddings.position_embedding.weight".into()),
        "text_projection" => return projects.then(|| TRANSPOSED_PROJECTION.into()),
        "text_projection.weight" => return projects.then(|| name.into()),
        _ => {}
    }
    if let Some(rest) = name.strip_prefix("ln_final.") {
        return Some(format!("final_layer_norm.{rest}"));
    }
    let (layer, rest) = name.strip_prefix("transformer.resblocks.")?.split_once('.')?;
    let layer: usize = layer.parse().ok().filter(|layer| *layer < layers)?;
    // An unknown name stays, so that the graph rejects it.
    let rest = renamed(rest, &OPEN_CLIP).unwrap_or_else(|| rest.to_owned());
    Some(format!("encoder.layers.{layer}.{rest}"))
}

/// The names of the three parts of a weight named by [`open_clip`].
pub(super) fn open_clip_inputs(name: &str) -> Option<[String; 3]> {
    let (layer, kind) = name.split_once(".in_proj.")?;
    Some(["q", "k", "v"].map(|part| format!("{layer}.{part}_proj.{kind}")))
}

/// The name of a weight in an autoencoder with `levels` levels; `None` if it is unknown.
pub(super) fn vae(name: &str, levels: usize) -> Option<String> {
    let (side, rest) = name.split_once('.')?;
    let (head, tail) = rest.split_once('.')?;
    let name = match head {
        "norm_out" => format!("conv_norm_out.{tail}"),
        // FLUX.2 keeps these inside the encoder and the decoder.
        "quant_conv" | "post_quant_conv" => return Some(rest.to_owned()),
        "mid" => match tail.split_once('.')? {
            ("block_1", rest) => format!("mid_block.resnets.0.{rest}"),
            ("block_2", rest) => format!("mid_block.resnets.1.{rest}"),
            ("attn_1", rest) => {
                // Newer programs use `diffusers` names here.
                let rest = renamed(rest, &ATTENTION).unwrap_or_else(|| rest.to_owned());
                format!("mid_block.attentions.0.{rest}")
            }
            _ => return None,
        },
        "up" | "down" => {
            let (level, rest) = tail.split_once('.')?;
            let level: usize = level.parse().ok().filter(|level| *level < levels)?;
            // The way up is numbered from its end.
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
