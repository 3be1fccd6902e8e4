//! Maps the layer names in LoRA files, as training programs write them, to a model's tensors.
//!
//! Some programs write dots as underscores, so names are compared with underscores only. Layers can also have their
//! original names, where one matrix can stand for several of `diffusers`.

use std::collections::HashMap;

use crate::graph::Uses;
use crate::models::clip::TRANSPOSED_PROJECTION;
use crate::models::flux2::{NORM_OUT, ORIGINAL_NORM_OUT};
use crate::pipelines::{original_unet_name, transformer_layers};
use crate::weights::Weights;

/// The parts that make the picture. Names without a part belong to them.
const MAIN: [&str; 2] = ["unet", "transformer"];

/// Prefix of all names in files that PEFT writes itself.
const OF_PEFT: &str = "base_model.model.";

/// Prefixes of layer names, by part. A name without a part belongs to the part that makes the picture.
const PREFIXES: [(&str, &str); 18] = [
    ("lora_unet_", ""),
    ("lora_te1_", "text_encoder"),
    ("lora_te2_", "text_encoder_2"),
    ("lora_te3_", "text_encoder_3"),
    ("lora_te_", "text_encoder"),
    ("lora_transformer_", "transformer"),
    ("lycoris_unet_", ""),
    ("lycoris_", ""),
    ("text_encoder_3.", "text_encoder_3"),
    ("text_encoder_2.", "text_encoder_2"),
    ("text_encoder.", "text_encoder"),
    ("text_encoders.clip_l.transformer.", "text_encoder"),
    ("text_encoders.clip_g.transformer.", "text_encoder_2"),
    ("unet.", "unet"),
    // SimpleTuner.
    ("transformer.base_model.model.", "transformer"),
    ("transformer.", "transformer"),
    ("model.diffusion_model.", ""),
    ("diffusion_model.", ""),
];

/// First words of layer names in the models that LoRA files exist for. They identify names without a prefix.
const HEADS: [&str; 14] = [
    "down_blocks",
    "mid_block",
    "up_blocks",
    "input_blocks",
    "middle_block",
    "output_blocks",
    "double_blocks",
    "single_blocks",
    "transformer_blocks",
    "single_transformer_blocks",
    "joint_blocks",
    "layers",
    "noise_refiner",
    "context_refiner",
];

/// How a layer's matrices are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Algorithm {
    /// A single one: plain LoRA.
    Lora,
    /// Element by element: LoHa.
    Loha,
    /// Kronecker product: LoKr.
    Lokr,
}

/// A tensor's role in such a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MatrixRole {
    /// From the layer's inputs to the rank.
    Down,
    /// From the rank to the layer's outputs.
    Up,
    /// Between the two, for each pixel of a convolution kernel.
    Mid,
    /// The whole matrix.
    Full,
}

/// A LoRA tensor's role in its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Part of the first or second matrix.
    Matrix(Algorithm, usize, MatrixRole),
    /// The factor that the product is multiplied by, times the rank.
    Alpha,
    /// Magnitudes of rows, from PEFT.
    PeftMagnitude,
    /// Magnitudes of rows or columns, from LyCORIS and OneTrainer.
    DoraScale,
}

const DOWN: Role = Role::Matrix(Algorithm::Lora, 0, MatrixRole::Down);
const UP: Role = Role::Matrix(Algorithm::Lora, 0, MatrixRole::Up);

/// Suffixes of tensor names.
const SUFFIXES: [(&str, Role); 33] = [
    (".lora_down.weight", DOWN),
    (".lora_up.weight", UP),
    (".lora_A.weight", DOWN),
    (".lora_B.weight", UP),
    (".lora_A.default.weight", DOWN),
    (".lora_B.default.weight", UP),
    (".lora.down.weight", DOWN),
    (".lora.up.weight", UP),
    (".lora_linear_layer.down.weight", DOWN),
    (".lora_linear_layer.up.weight", UP),
    ("_lora.down.weight", DOWN),
    ("_lora.up.weight", UP),
    ("_lora.alpha", Role::Alpha),
    (".alpha", Role::Alpha),
    (".lora_mid.weight", Role::Matrix(Algorithm::Lora, 0, MatrixRole::Mid)),
    (".hada_w1_b", Role::Matrix(Algorithm::Loha, 0, MatrixRole::Down)),
    (".hada_w1_a", Role::Matrix(Algorithm::Loha, 0, MatrixRole::Up)),
    (".hada_t1", Role::Matrix(Algorithm::Loha, 0, MatrixRole::Mid)),
    (".hada_w2_b", Role::Matrix(Algorithm::Loha, 1, MatrixRole::Down)),
    (".hada_w2_a", Role::Matrix(Algorithm::Loha, 1, MatrixRole::Up)),
    (".hada_t2", Role::Matrix(Algorithm::Loha, 1, MatrixRole::Mid)),
    (".lokr_w1", Role::Matrix(Algorithm::Lokr, 0, MatrixRole::Full)),
    (".lokr_w1_b", Role::Matrix(Algorithm::Lokr, 0, MatrixRole::Down)),
    (".lokr_w1_a", Role::Matrix(Algorithm::Lokr, 0, MatrixRole::Up)),
    (".lokr_w2", Role::Matrix(Algorithm::Lokr, 1, MatrixRole::Full)),
    (".lokr_w2_b", Role::Matrix(Algorithm::Lokr, 1, MatrixRole::Down)),
    (".lokr_w2_a", Role::Matrix(Algorithm::Lokr, 1, MatrixRole::Up)),
    (".lokr_t2", Role::Matrix(Algorithm::Lokr, 1, MatrixRole::Mid)),
    (".dora_scale", Role::DoraScale),
    (".lora_magnitude_vector", Role::PeftMagnitude),
    (".lora_magnitude_vector.weight", Role::PeftMagnitude),
    (".lora_magnitude_vector.default", Role::PeftMagnitude),
    (".lora_magnitude_vector.default.weight", Role::PeftMagnitude),
];

/// Parts of names that reveal other methods of changing a model, which LoRA files can also contain.
const OTHER_WAYS: [(&str, &str); 7] = [
    (".oft_", "OFT"),
    (".boft_", "OFT"),
    (".lora_embedding_", "a LoRA of the table of words"),
    (".lora_B.bias", "a LoRA with biases"),
    (".lora_up.bias", "a LoRA with biases"),
    ("bundle_emb.", "a LoRA that bundles an embedding"),
    ("emb_params", "an embedding of textual inversion"),
];

/// Suffixes that reveal such methods.
const OTHER_ENDS: [(&str, &str); 4] = [
    (".diff_b", "a LoRA with biases"),
    (".diff", "a LoRA with whole tensors"),
    (".w_norm", "a LoRA that also trains norms"),
    (".b_norm", "a LoRA that also trains norms"),
];

/// Splits a tensor's name into its layer and its role; `None` if it isn't a LoRA tensor.
pub(super) fn split(key: &str) -> Option<(&str, Role)> {
    SUFFIXES.iter().find_map(|(suffix, role)| Some((key.strip_suffix(suffix)?, *role)))
}

/// The unsupported method that a name reveals.
pub(super) fn other_way(key: &str) -> Option<&'static str> {
    let inside = || OTHER_WAYS.iter().find_map(|(word, way)| key.contains(word).then_some(*way));
    OTHER_ENDS.iter().find_map(|(end, way)| key.ends_with(end).then_some(*way)).or_else(inside)
}

/// A layer's place, from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place<'a> {
    /// The part of the model; empty if the name doesn't say.
    pub part: &'static str,
    /// The rest of the name.
    pub layer: &'a str,
    /// Whether the name follows the conventions of a known program or model.
    pub is_known: bool,
    /// Whether the PEFT library itself wrote the file.
    pub is_of_peft: bool,
}

pub(super) fn place(name: &str) -> Place<'_> {
    let inner = name.strip_prefix(OF_PEFT);
    let layer = inner.unwrap_or(name);
    let place = Place { part: "", layer, is_known: true, is_of_peft: inner.is_some() };
    // The first level of CLIP's text encoder, which PEFT treats as a model of its own.
    if layer.starts_with("text_model.") {
        return Place { part: "text_encoder", ..place };
    }
    match PREFIXES.iter().find_map(|(prefix, part)| Some((*part, layer.strip_prefix(prefix)?))) {
        Some((part, layer)) => Place { part, layer, ..place },
        None => Place { is_known: HEADS.iter().any(|head| layer.starts_with(head)), ..place },
    }
}

/// Whether a layer of the part `named`, as returned by [`place`], belongs to a part of the model.
pub(super) fn belongs(named: &str, part: &str) -> bool {
    named == part || (named.is_empty() && MAIN.contains(&part))
}

#[derive(Debug)]
pub(super) struct Names {
    /// Tensor names by layer name.
    tensors: HashMap<String, String>,
    /// Residual blocks per block on the UNet's way down.
    layers: usize,
}

impl Names {
    /// The linear layers and convolutions that a graph uses.
    pub(super) fn of(weights: &Weights, uses: &Uses) -> Self {
        let is_layer = |name: &&String| {
            let sizes = weights.get(name).map_or(0, |entry| entry.shape.len());
            [2, 4].contains(&sizes) && !name.contains("embeddings.")
        };
        let layers = uses.all.iter().filter(is_layer);
        let tensors = layers.filter_map(|name| {
            let transposed = || (name == TRANSPOSED_PROJECTION).then_some("text_projection");
            Some((plain(name.strip_suffix(".weight").or_else(transposed)?), name.clone()))
        });
        let block = |at: usize| weights.get(&format!("down_blocks.0.resnets.{at}.conv1.weight")).is_some();
        Self { tensors: tensors.collect(), layers: (0..64).take_while(|at| block(*at)).count() }
    }

    /// A layer's tensors: one, or the three that share one tensor's rows; `None` if the model has no such layer.
    pub(super) fn find(&self, layer: &str) -> Option<Vec<&str>> {
        // Older programs insert the name of the code that computes attention, and omit a level or name it differently.
        let layer = plain(layer).replace("_processor_", "_");
        let one = |name: &str| self.tensors.get(name).map(String::as_str);
        let swapped = |from: &str, to: &str| Some(format!("{}{to}", layer.strip_suffix(from)?));
        let old = [("_to_out", "_to_out_0"), ("_to_out", "_out_proj"), ("_to_q", "_q_proj"), ("_to_k", "_k_proj")];
        let mut old = old.into_iter().chain([("_to_v", "_v_proj")]).filter_map(|(from, to)| swapped(from, to));
        if let Some(found) = one(&layer).or_else(|| original_unet(&layer, self.layers).and_then(|name| one(&name))) {
            return Some(vec![found]);
        }
        if let Some(found) = old.find_map(|name| one(&name)) {
            return Some(vec![found]);
        }
        let norms = [NORM_OUT, ORIGINAL_NORM_OUT].map(plain);
        let other = norms.contains(&layer).then(|| norms.into_iter().filter(|norm| *norm != layer).collect());
        let mut names = transformer_layers(&layer, "_").chain(other);
        names.find_map(|names: Vec<_>| names.iter().map(|name| one(name)).collect())
    }
}

/// A name with underscores only, without a level that newer files lack.
fn plain(name: &str) -> String {
    let plain = name.replace('.', "_");
    plain.strip_prefix("text_model_").map(str::to_owned).unwrap_or(plain)
}

/// The `diffusers` name of a UNet layer that has its original name.
fn original_unet(layer: &str, layers: usize) -> Option<String> {
    let heads = ["input_blocks", "output_blocks", "middle_block", "label_emb", "time_embed", "out"];
    let (head, rest) = heads.iter().find_map(|head| Some((*head, layer.strip_prefix(head)?.strip_prefix('_')?)))?;
    let numbers = if head.ends_with("_blocks") || head == "label_emb" { 2 } else { 1 };
    let fields: Vec<_> = rest.splitn(numbers + 1, '_').collect();
    let mut name = format!("{head}.{}.", fields.get(..numbers)?.join("."));
    if let Some(rest) = fields.get(numbers) {
        let split = rest.rsplit_once('_').filter(|(layers, _)| layers.ends_with("_layers"));
        name.push_str(&split.map_or_else(|| (*rest).to_owned(), |(layers, at)| format!("{layers}.{at}")));
        name.push('.');
    }
    let found = original_unet_name(&name, layers)?;
    // The place in a block says the same as the layer's name.
    let places: &[&str] = match head {
        "input_blocks" | "output_blocks" if found.contains(".attentions.") => &["1"],
        "output_blocks" if found.contains(".upsamplers.") => &["1", "2"],
        "input_blocks" | "output_blocks" => &["0"],
        _ => return Some(plain(found.trim_end_matches('.'))),
    };
    places.contains(&fields[1]).then(|| plain(found.trim_end_matches('.')))
}

/// Whether a layer of FLUX.2 or Z-Image has its original name.
pub(super) fn is_original(layer: &str) -> bool {
    layer == ORIGINAL_NORM_OUT || transformer_layers(layer, ".").next().is_some()
}

/// Whether the layer, under its name in a file, has the same outputs as `tensor` but with the halves swapped: in the
/// last norm of FLUX.2, scale and shift.
pub(super) fn swaps_halves(key: &str, tensor: &str) -> bool {
    let is_original = |name: &str| name.contains("adaLN_modulation");
    let is_norm = [NORM_OUT, ORIGINAL_NORM_OUT].contains(&tensor.trim_end_matches(".weight"));
    is_norm && is_original(key) != is_original(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_many_programs_are_split() {
        for (key, layer, role) in [
            ("lora_unet_a_b.lora_down.weight", "lora_unet_a_b", DOWN),
            ("lora_unet_a_b.alpha", "lora_unet_a_b", Role::Alpha),
            ("unet.a.b.lora_B.weight", "unet.a.b", UP),
            ("unet.a.processor.to_q_lora.up.weight", "unet.a.processor.to_q", UP),
            ("text_encoder.a.q_proj.lora_linear_layer.down.weight", "text_encoder.a.q_proj", DOWN),
            ("lycoris_a.lokr_w2", "lycoris_a", Role::Matrix(Algorithm::Lokr, 1, MatrixRole::Full)),
            ("unet.a.lora_magnitude_vector.weight", "unet.a", Role::PeftMagnitude),
        ] {
            assert_eq!(split(key), Some((layer, role)), "{key}");
        }
        assert_eq!(split("a.b.weight"), None);
        assert_eq!(other_way("lora_unet_a.oft_blocks"), Some("OFT"));
        assert_eq!(other_way("lora_unet_a.diff_b"), Some("a LoRA with biases"));
        assert_eq!(other_way("model.diffusion_model.a.lora_A.weight"), None);
    }

    #[test]
    fn layers_are_placed_by_their_prefixes() {
        for (name, part, layer, is_known) in [
            ("lora_te2_text_model_a", "text_encoder_2", "text_model_a", true),
            ("down_blocks.0", "", "down_blocks.0", true),
            ("model.diffusion_model.layers.0", "", "layers.0", true),
            ("base_model.model.unet.mid_block.a", "unet", "mid_block.a", true),
            ("base_model.model.text_model.encoder.a", "text_encoder", "text_model.encoder.a", true),
            ("text_encoders.clip_g.transformer.text_model.a", "text_encoder_2", "text_model.a", true),
            ("lycoris_mid_block_a", "", "mid_block_a", true),
            ("lora_transformer_layers_0", "transformer", "layers_0", true),
            ("transformer.base_model.model.proj_out", "transformer", "proj_out", true),
            ("lora_te3_encoder_a", "text_encoder_3", "encoder_a", true),
            ("some.other.name", "", "some.other.name", false),
            ("", "", "", false),
        ] {
            let is_of_peft = name.starts_with("base_model.");
            assert_eq!(place(name), Place { part, layer, is_known, is_of_peft }, "{name}");
        }
    }

    #[test]
    fn the_first_names_of_a_unet_are_those_of_diffusers() {
        for (there, here) in [
            (
                "input_blocks_4_1_transformer_blocks_0_attn1_to_k",
                "down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_k",
            ),
            ("input_blocks_4_0_in_layers_2", "down_blocks_1_resnets_0_conv1"),
            ("input_blocks_4_0_emb_layers_1", "down_blocks_1_resnets_0_time_emb_proj"),
            ("input_blocks_4_0_skip_connection", "down_blocks_1_resnets_0_conv_shortcut"),
            ("input_blocks_3_0_op", "down_blocks_0_downsamplers_0_conv"),
            ("input_blocks_0_0", "conv_in"),
            ("middle_block_1_proj_in", "mid_block_attentions_0_proj_in"),
            ("middle_block_2_out_layers_3", "mid_block_resnets_1_conv2"),
            ("output_blocks_2_2_conv", "up_blocks_0_upsamplers_0_conv"),
            (
                "output_blocks_5_1_transformer_blocks_1_ff_net_0_proj",
                "up_blocks_1_attentions_2_transformer_blocks_1_ff_net_0_proj",
            ),
            ("label_emb_0_2", "add_embedding_linear_2"),
            ("time_embed_0", "time_embedding_linear_1"),
            ("out_2", "conv_out"),
        ] {
            assert_eq!(original_unet(there, 2).as_deref(), Some(here), "{there}");
        }
        for name in ["down_blocks_0", "input_blocks_0_1", "input_blocks_4_0_proj_in", "output_blocks_2_0_conv", "out"] {
            assert_eq!(original_unet(name, 2), None, "{name}");
        }
    }
}
