//! LoRA files that come from strangers, and the files into which they are merged.

use std::path::PathBuf;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use tempfile::TempDir;
use tintype_diffusion::quantise::{Bits, Rules, WeightPreparation, prepare, verify};
use tintype_diffusion::weights::Weights;
use tintype_diffusion::{Error, Lora, Options, Pipeline, Precision};
use tintype_engine::Picture;

use crate::fixtures::{self, fixture, render};
use crate::parity::whole_file::write_whole_file;

/// A tensor for a file: its name, its sizes and its numbers, which repeat.
type Tensor = (String, Vec<usize>, Vec<f32>);

const TARGET: &str = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_v";
const CONVOLUTION: &str = "lora_unet_mid_block_resnets_0_conv1";

fn tensor(name: impl Into<String>, shape: &[usize]) -> Tensor {
    (name.into(), shape.to_vec(), vec![0.25, -0.5, 0.75])
}

/// The two matrices of a layer.
fn pair(layer: &str, down: &[usize], up: &[usize]) -> [Tensor; 2] {
    [tensor(format!("{layer}.lora_down.weight"), down), tensor(format!("{layer}.lora_up.weight"), up)]
}

/// A small change of the tiny Stable Diffusion 1.5.
fn usual() -> Vec<Tensor> {
    pair(TARGET, &[2, 8], &[8, 2]).into()
}

struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_as(&self, name: &str, dtype: Dtype, tensors: &[Tensor]) -> PathBuf {
        let path = self.path(name);
        let tensors = tensors.iter();
        let tensors = tensors.map(|(name, shape, numbers)| (name.clone(), fixtures::tensor(dtype, shape, numbers)));
        fixtures::write(&path, &tensors.collect());
        path
    }

    fn write(&self, tensors: &[Tensor]) -> PathBuf {
        self.write_as("some.safetensors", Dtype::F32, tensors)
    }

    /// The options with one file.
    fn options(&self, path: PathBuf, weight: f64) -> Options {
        Options { loras: vec![Lora { path, weight }], ..Options::default() }
    }

    fn cached(&self, path: PathBuf, weight: f64) -> Options {
        Options { cache: Some(self.path("cache")), ..self.options(path, weight) }
    }

    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("cache")).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

/// The message with which a model refuses to open.
fn refusal(name: &str, options: &Options) -> String {
    match Pipeline::open(&fixture(name), options) {
        Err(Error::Lora(message)) => message,
        other => panic!("{name}: {other:?}"),
    }
}

fn refused(tensors: &[Tensor], words: &[&str]) -> String {
    let case = Case::new();
    let path = case.write(tensors);
    let message = refusal("sd15", &case.options(path, 1.0));
    let missing: Vec<_> = words.iter().chain([&"some.safetensors"]).filter(|word| !message.contains(**word)).collect();
    assert!(missing.is_empty(), "{message:?} lacks {missing:?}");
    println!("{message}");
    message
}

fn picture(options: &Options) -> Picture {
    fixtures::picture(&fixture("sd15"), options)
}

#[test]
fn a_lora_of_another_family_is_refused_by_its_first_name() {
    let foreign = "another family";
    refused(&pair("lora_unet_input_blocks_9_1_proj_in", &[2, 8], &[8, 2]), &["input_blocks_9_1", "layer", foreign]);
    refused(&pair("lora_te2_text_model_encoder_layers_0_mlp_fc1", &[2, 8], &[8, 2]), &["lora_te2", "part", foreign]);
    refused(&pair("transformer.transformer_blocks.0.attn.to_q", &[2, 8], &[8, 2]), &["part", foreign]);
    refused(&pair("lora_unet_double_blocks_0_img_attn_qkv", &[2, 8], &[24, 2]), &["double_blocks", "layer", foreign]);
    refused(&pair(TARGET, &[2, 16], &[8, 2]), &["lora_down", "[2, 16]", "[8, 8]", foreign]);
    refused(&pair(TARGET, &[2, 8], &[16, 2]), &["lora_up", "[16, 2]", foreign]);
    refused(&pair(TARGET, &[2, 8, 3, 3], &[8, 2, 1, 1]), &["[2, 8, 3, 3]", foreign]);
    refused(&pair(CONVOLUTION, &[2, 8], &[8, 2]), &["[2, 8]", "[8, 8, 3, 3]", foreign]);
    refused(&pair("lora_unet_mid_block_resnets_0_norm1", &[2, 8], &[8, 2]), &["layer", foreign]);
    refused(&pair("text_encoder.text_model.embeddings.token_embedding", &[2, 16], &[614, 2]), &["layer", foreign]);
    for name in ["klein", "z_image"] {
        let case = Case::new();
        let message = refusal(name, &case.options(case.write(&usual()), 1.0));
        assert!(message.contains(TARGET) && message.contains(foreign), "{message}");
    }
}

#[test]
fn names_that_lead_nowhere_are_refused() {
    for name in [
        "lora_unet_",
        "lora_unet_input_blocks_",
        "lora_unet_input_blocks_0",
        "lora_unet_input_blocks_0_1_",
        "lora_unet_input_blocks_18446744073709551615_1_proj_in",
        "lora_unet_input_blocks_99999999999999999999_1_proj_in",
        "lora_unet_output_blocks_-1_1_proj_in",
        "lora_unet_middle_block_18446744073709551615_conv1",
        "lora_unet_label_emb_0",
        "lora_unet_time_embed_1",
        "lora_unet_layers_0_attention_qkv",
        "lora_unet_single_blocks_",
        "lora_unet_double_blocks_0_txt_attn_qkv",
        "unet..",
        "text_encoder.text_model.text_model.",
        &"down_blocks_".repeat(10_000),
    ] {
        refused(&pair(name, &[2, 8], &[8, 2]), &["layer", "another family"]);
    }
    for name in ["", ".", "naïve.名前.🦊", "lora_prior_unet_a", "model.layers.0.self_attn.q_proj"] {
        let message = refused(&pair(name, &[2, 8], &[8, 2]), &["layer", "not known to this release"]);
        assert!(!message.contains("another family"), "{message}");
    }
}

#[test]
fn files_that_are_not_complete_are_refused() {
    let [down, up] = pair(TARGET, &[2, 8], &[8, 2]);
    refused(std::slice::from_ref(&down), &["lora_down", "complete"]);
    refused(std::slice::from_ref(&up), &["lora_up", "complete"]);
    refused(&[tensor(format!("{TARGET}.alpha"), &[])], &["alpha", "complete"]);
    refused(&[], &["no tensors"]);
    refused(&pair(TARGET, &[2, 8], &[8, 3]), &["rank 3", "has 2"]);
    refused(&pair(TARGET, &[0, 8], &[8, 0]), &["rank 0"]);
    refused(&pair(TARGET, &[2_049, 8], &[8, 2_049]), &["rank 2049", "2048"]);
    refused(&pair(TARGET, &[2], &[8, 2]), &["[2]"]);
    refused(&pair(TARGET, &[], &[8, 2]), &["[]"]);
    refused(&pair(TARGET, &[2, 8], &[]), &["[]"]);
    let diffusers = TARGET.replace("lora_unet_mid_block_attentions_0_", "unet.mid_block.attentions.0.");
    let twice = [usual(), pair(&diffusers, &[2, 8], &[8, 2]).into()].concat();
    refused(&twice, &["another tensor of the file"]);
    let other = tensor(format!("{TARGET}.lora_A.weight"), &[2, 8]);
    refused(&[down, other, up], &["one layer"]);
    let alpha = tensor(format!("{TARGET}.alpha"), &[2]);
    refused(&[usual(), vec![alpha]].concat(), &["alpha", "single number"]);
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    for stray in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in 0..2 {
            let mut tensors = usual();
            tensors[at].2 = vec![1.0, 1.0, stray];
            refused(&tensors, &[if at == 0 { "lora_down" } else { "lora_up" }, "not finite"]);
        }
        let alpha = (format!("{TARGET}.alpha"), Vec::new(), vec![stray]);
        refused(&[usual(), vec![alpha]].concat(), &["alpha", "not finite"]);
    }
    let alpha = (format!("{TARGET}.alpha"), Vec::new(), vec![f32::MAX]);
    let case = Case::new();
    let message = refusal("sd15", &case.options(case.write(&[usual(), vec![alpha]].concat()), 10.0));
    assert!(message.contains("alpha") || message.contains("range"), "{message}");
}

#[test]
fn other_ways_to_change_a_model_are_refused_by_name() {
    for (name, way) in [
        ("oft_blocks", "OFT"),
        ("lora_B.bias", "biases"),
        ("diff", "whole tensors"),
        ("diff_b", "biases"),
        ("w_norm", "trains norms"),
        ("b_norm", "trains norms"),
    ] {
        let more = tensor(format!("{TARGET}.{name}"), &[2]);
        refused(&[usual(), vec![more]].concat(), &[way, name, "use a LoRA without it"]);
    }
    refused(&[tensor("down_blocks.0.resnets.0.conv1.weight", &[2])], &["not a tensor of a LoRA"]);
    refused(&[tensor("weight", &[2])], &["not a tensor of a LoRA"]);
    let bundled = tensor("bundle_emb.hands.string_to_param.*", &[2, 8]);
    refused(&[usual(), vec![bundled]].concat(), &["bundle_emb", "bundles an embedding", "use a LoRA without it"]);
    let checkpoint = tensor("model.diffusion_model.input_blocks.0.0.weight", &[8, 4, 3, 3]);
    refused(std::slice::from_ref(&checkpoint), &["is a checkpoint and not a LoRA: give it as --model"]);
    refused(&[usual(), vec![checkpoint]].concat(), &["not a tensor of a LoRA"]);
    refused(&[tensor("first_stage_model.decoder.conv_in.weight", &[2])], &["a VAE as --engine-vae"]);
}

/// A tensor for the layer that is changed.
fn of_target(name: &str, shape: &[usize]) -> Tensor {
    tensor(format!("{TARGET}.{name}"), shape)
}

#[test]
fn matrices_that_do_not_fit_together_are_refused() {
    let both = |one: [usize; 2], other: [usize; 2]| [of_target("lokr_w1", &one), of_target("lokr_w2", &other)];
    refused(&both([2, 2], [4, 2]), &["[2, 2]", "[8, 8]", "another family"]);
    refused(&both([1 << 40, 0], [1 << 40, 0]), &["another family"]);
    refused(&both([0, 8], [0, 1]), &["another family"]);
    refused(&[of_target("lokr_w1", &[2, 2])], &["lokr_w1", "complete"]);
    refused(&[of_target("lokr_w1_a", &[2, 1]), of_target("lokr_w2", &[4, 4])], &["go down", "complete"]);
    let hada = |name: &str, shape| of_target(&format!("hada_{name}"), shape);
    let first = [hada("w1_a", &[8, 2]), hada("w1_b", &[2, 8])];
    refused(&first, &["hada_w1_b", "go down", "complete"]);
    refused(&[usual(), first.clone().into()].concat(), &["one layer", "damaged"]);
    let second = [hada("w2_a", &[8, 2]), hada("w2_b", &[3, 8])];
    refused(&[first.to_vec(), second.into()].concat(), &["rank 2", "has 3"]);
    let second = [hada("w2_a", &[8, 3]), hada("w2_b", &[3, 8])];
    refused(&[first.to_vec(), second.into()].concat(), &["hada_w2_b", "rank 3", "has 2", "damaged"]);
    for more in ["lokr_w2_a", "lokr_w2_b", "lokr_t2"] {
        let tensors = [both([2, 2], [4, 4]).to_vec(), vec![of_target(more, &[4, 1])]].concat();
        refused(&tensors, &[more, "lokr_w2\" are for one layer", "damaged"]);
    }
    refused(&[of_target("lokr_w1", &[2, 2]), of_target("lokr_w2", &[0, 1 << 40, 1 << 40])], &["lokr_w2", "too large"]);
    refused(&pair(TARGET, &[0, 1 << 40, 1 << 40], &[8, 0]), &["lora_down", "too large"]);
    for middle in [&[2, 2, 3, 3], &[2, 3, 1, 1], &[2, 2, 1 << 40, 0], &[2_049, 2, 1, 1]] {
        refused(&[usual(), vec![of_target("lora_mid.weight", middle)]].concat(), &["lora_mid"]);
    }
    let empty = [of_target("lora_up.weight", &[8, 0]), of_target("lora_down.weight", &[0, 8])];
    refused(&[empty.to_vec(), vec![of_target("lora_mid.weight", &[2, 0, 3, 3])]].concat(), &["lora_mid"]);
    for (name, shape) in [
        ("dora_scale", vec![7, 1]),
        ("dora_scale", vec![1, 7]),
        ("dora_scale", vec![1, 4]),
        ("dora_scale", vec![1, 1]),
        ("dora_scale", vec![1, 0]),
        ("lora_magnitude_vector", vec![7]),
        ("lora_magnitude_vector.weight", vec![0]),
    ] {
        refused(&[usual(), vec![of_target(name, &shape)]].concat(), &[name, "8 outputs"]);
    }
    refused(&[of_target("dora_scale", &[8, 1])], &["dora_scale", "complete"]);
    let convolution = pair(CONVOLUTION, &[2, 8, 3, 3], &[8, 2, 1, 1]);
    let pixels = tensor(format!("{CONVOLUTION}.dora_scale"), &[1, 72]);
    refused(&[convolution.to_vec(), vec![pixels]].concat(), &["[1, 72]", "8 inputs"]);
}

#[test]
fn magnitudes_of_inputs_do_not_fit_a_fused_layer() {
    let case = Case::new();
    let weights =
        Weights::open_part(&fixture("klein").join("transformer"), "diffusion_pytorch_model").expect("weights");
    let shape = &weights.get("transformer_blocks.0.attn.to_q.weight").expect("a layer").shape;
    let layer = "diffusion_model.double_blocks.0.img_attn.qkv";
    let [rows, columns] = [shape[0] * 3, shape[1]];
    let with = |magnitudes: &[usize]| {
        let magnitudes = tensor(format!("{layer}.dora_scale"), magnitudes);
        let tensors = [pair(layer, &[2, columns], &[rows, 2]).to_vec(), vec![magnitudes]].concat();
        case.options(case.write(&tensors), 1.0)
    };
    let message = refusal("klein", &with(&[1, columns]));
    assert!(message.contains("3 layers in place of this one") && !message.contains("another family"), "{message}");
    Pipeline::open(&fixture("klein"), &with(&[rows, 1])).expect("a model");
}

#[test]
fn a_product_is_the_same_change_in_every_form() {
    let case = Case::new();
    // Three layers share the rows of one, and two halves of another are exchanged.
    for layer in ["diffusion_model.double_blocks.0.img_attn.qkv", "diffusion_model.final_layer.adaLN_modulation.1"] {
        let weights =
            Weights::open_part(&fixture("klein").join("transformer"), "diffusion_pytorch_model").expect("weights");
        let is_joined = layer.ends_with("qkv");
        let (name, times) = if is_joined { ("transformer_blocks.0.attn.to_q", 3) } else { ("norm_out.linear", 1) };
        let shape = &weights.get(&format!("{name}.weight")).expect("a layer").shape;
        let [rows, columns] = [shape[0] * times, shape[1]];
        let numbers = |rows: usize| (0..rows).map(|x| (x % 7) as f32 / 4.0 - 0.5).collect::<Vec<_>>();
        let (up, down) = (numbers(rows), numbers(columns));
        let whole = up.iter().flat_map(|up| down.iter().map(move |down| up * down)).collect();
        let made = |tensors: &[(&str, [usize; 2], Vec<f32>)]| {
            let tensors =
                tensors.iter().map(|(end, shape, numbers)| (format!("{layer}.{end}"), shape.to_vec(), numbers.clone()));
            let path = case.write(&tensors.collect::<Vec<_>>());
            fixtures::picture(&fixture("klein"), &case.options(path, 1.0))
        };
        let plain =
            made(&[("lora_up.weight", [rows, 1], up.clone()), ("lora_down.weight", [1, columns], down.clone())]);
        let ones = |count| vec![1.0; count];
        let elements = made(&[
            ("hada_w1_a", [rows, 1], up.clone()),
            ("hada_w1_b", [1, columns], ones(columns)),
            ("hada_w2_a", [rows, 1], ones(rows)),
            ("hada_w2_b", [1, columns], down.clone()),
        ]);
        let small = made(&[("lokr_w1", [1, 1], ones(1)), ("lokr_w2", [rows, columns], whole)]);
        let large = made(&[("lokr_w1", [rows, 1], up.clone()), ("lokr_w2", [1, columns], down.clone())]);
        assert!(plain != fixtures::picture(&fixture("klein"), &Options::default()), "{layer}");
        assert!(plain == elements && plain == small && plain == large, "{layer}");
    }
}

#[test]
fn counters_of_the_training_are_ignored() {
    let case = Case::new();
    let plain = picture(&case.options(case.write(&usual()), 1.0));
    let counted = [usual(), vec![tensor("iteration", &[]), tensor("global_step", &[1])]].concat();
    assert!(picture(&case.options(case.write(&counted), 1.0)) == plain);
    refused(&[usual(), vec![tensor("iteration", &[2])]].concat(), &["iteration", "not a tensor of a LoRA"]);
}

#[test]
fn the_layers_of_many_programs_are_found() {
    let case = Case::new();
    let plain = picture(&case.options(case.write(&usual()), 1.0));
    let dotted = "mid_block.attentions.0.transformer_blocks.0.attn1.to_v";
    for name in [
        TARGET.replace("lora_unet_", "lycoris_"),
        TARGET.replace("lora_unet_", ""),
        format!("model.diffusion_model.{dotted}"),
        format!("unet.{dotted}"),
    ] {
        assert!(picture(&case.options(case.write(&pair(&name, &[2, 8], &[8, 2])), 1.0)) == plain, "{name}");
    }
    let of_text = |layer: &str| picture(&case.options(case.write(&pair(layer, &[2, 16], &[16, 2])), 1.0));
    let changed = of_text("lora_te_text_model_encoder_layers_0_self_attn_q_proj");
    assert!(changed != picture(&Options::default()));
    let layer = "text_model.encoder.layers.0.self_attn.q_proj";
    assert!(of_text(&format!("text_encoders.clip_l.transformer.{layer}")) == changed);
    assert!(of_text(&format!("text_encoder.{layer}")) == changed);
}

#[test]
fn layers_beside_the_blocks_have_two_names() {
    for (name, layer, first) in [
        ("klein", "x_embedder", "img_in"),
        ("klein", "context_embedder", "txt_in"),
        ("klein", "time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer"),
        ("klein", "proj_out", "final_layer.linear"),
        ("klein", "norm_out.linear", "final_layer.adaLN_modulation.1"),
        ("z_image", "all_x_embedder.2-1", "x_embedder"),
        ("z_image", "all_final_layer.2-1.linear", "final_layer.linear"),
        ("z_image", "all_final_layer.2-1.adaLN_modulation.1", "final_layer.adaLN_modulation.1"),
    ] {
        let case = Case::new();
        let weights =
            Weights::open_part(&fixture(name).join("transformer"), "diffusion_pytorch_model").expect("weights");
        let shape = &weights.get(&format!("{layer}.weight")).expect("a layer").shape;
        let mut up: Vec<f32> = (0..shape[0] * 2).map(|x| (x % 7) as f32 / 4.0 - 0.5).collect();
        let changed = |layer: &str, up: &[f32]| {
            let [down, _] = pair(layer, &[2, shape[1]], &[shape[0], 2]);
            let path = case.write(&[down, (format!("{layer}.lora_up.weight"), vec![shape[0], 2], up.to_vec())]);
            let mut pipeline = Pipeline::open(&fixture(name), &case.options(path, 1.0)).expect("a model");
            render(&mut pipeline)
        };
        let usual = changed(&format!("transformer.{layer}"), &up);
        if layer == "norm_out.linear" {
            // Here the shift comes before the scale.
            up.rotate_left(shape[0]);
        }
        assert!(changed(&format!("diffusion_model.{first}"), &up) == usual, "{name}: {first}");
        up.fill(0.0);
        assert!(changed(&format!("transformer.{layer}"), &up) != usual, "{name}: {layer}");
    }
}

#[test]
fn the_length_of_a_header_is_not_taken_for_the_beginning_of_a_pickle() {
    let case = Case::new();
    let plain = picture(&case.options(case.write(&usual()), 1.0));
    let own = std::fs::read(case.path("some.safetensors")).expect("a file");
    let length = usize::from(own[0]) + usize::from(own[1]) * 256;
    let (header, data) = own[8..].split_at(length);
    let padding = vec![b' '; 0x280 - length];
    std::fs::write(case.path("b.safetensors"), [&[0x80, 2, 0, 0, 0, 0, 0, 0], header, &padding, data].concat())
        .expect("a file");
    assert!(picture(&case.options(case.path("b.safetensors"), 1.0)) == plain);
}

#[test]
fn a_file_of_peft_is_scaled_by_the_configuration_beside_it() {
    let case = Case::new();
    let dotted = "mid_block.attentions.0.transformer_blocks.0.attn1.to_v";
    let tensors = |layer: &str, [inputs, outputs]: [usize; 2]| {
        vec![
            tensor(format!("base_model.model.{layer}.lora_A.weight"), &[2, inputs]),
            tensor(format!("base_model.model.{layer}.lora_B.weight"), &[outputs, 2]),
        ]
    };
    let beside = case.path("adapter_config.json");
    let magnitudes = [".default.weight", ".default", ".weight", ""]
        .map(|end| tensor(format!("base_model.model.{dotted}.lora_magnitude_vector{end}"), &[8]));
    let open = |config: serde_json::Value, layer: &str| {
        std::fs::write(&beside, config.to_string()).expect("a file");
        let size = if layer.starts_with("text_model.") { 16 } else { 8 };
        let path = case.write(&tensors(layer, [size; 2]));
        Pipeline::open(&fixture("sd15"), &case.options(path, 1.0)).map(|mut pipeline| render(&mut pipeline))
    };
    let by = |config, layer: &str| open(config, layer).expect("a picture");
    let twice = picture(&case.options(case.write(&usual()), 2.0));
    let unet = format!("unet.{dotted}");
    for (config, layer) in [
        (json!({"peft_type": "LORA", "lora_alpha": 4, "r": 2, "use_dora": false, "rank_pattern": {}}), dotted),
        (json!({"lora_alpha": 4, "r": 2, "use_rslora": false}), unet.as_str()),
        (json!({"lora_alpha": 8_f64.sqrt(), "r": 2, "use_rslora": true}), dotted),
        (json!({"lora_alpha": 9, "r": 2, "alpha_pattern": {"attn1.to_v": 4}}), dotted),
        (json!({"lora_alpha": 4, "r": 16, "rank_pattern": {"attn1.to_v": 2}}), dotted),
    ] {
        assert!(by(config.clone(), layer) == twice, "{config}");
    }
    let text = "text_model.encoder.layers.0.self_attn.q_proj";
    let usual_text = pair(&format!("text_encoder.{text}"), &[2, 16], &[16, 2]);
    let changed = picture(&case.options(case.write(&usual_text), 2.0));
    assert!(by(json!({"lora_alpha": 4, "r": 2}), text) == changed);
    for (config, word) in [
        (json!({"r": 2}), "lora_alpha"),
        (json!({"lora_alpha": "4", "r": 2}), "lora_alpha"),
        (json!({"lora_alpha": 4, "r": 4}), "belongs to another LoRA"),
        (json!({"lora_alpha": 4, "r": 2, "use_dora": true}), "use_dora"),
        (json!({"lora_alpha": 4, "r": 2, "peft_type": "LOHA"}), "peft_type"),
        (json!({"lora_alpha": 4, "r": 2, "alpha_pattern": {"^.*to_v$": 4}}), "alpha_pattern"),
        (json!([]), "adapter_config.json"),
    ] {
        let Err(Error::Lora(message)) = open(config.clone(), dotted) else { panic!("{config}") };
        assert!(message.contains(word) && message.contains("some.safetensors"), "{message}");
    }
    let with_magnitudes = magnitudes.map(|more| {
        let path = case.write(&[tensors(dotted, [8, 8]), vec![more]].concat());
        for without in [json!({"lora_alpha": 4, "r": 2}), json!({"lora_alpha": 4, "r": 2, "use_dora": false})] {
            std::fs::write(&beside, without.to_string()).expect("a file");
            let message = refusal("sd15", &case.options(path.clone(), 1.0));
            assert!(message.contains("use_dora") && message.contains("lora_magnitude_vector"), "{message}");
        }
        std::fs::write(&beside, json!({"lora_alpha": 4, "r": 2, "use_dora": true}).to_string()).expect("a file");
        picture(&case.options(path, 1.0))
    });
    assert!(with_magnitudes.iter().all(|picture| *picture == with_magnitudes[0] && *picture != twice));
    std::fs::remove_file(&beside).expect("a file");
    let refusal = refused(&tensors(dotted, [8, 8]), &["base_model.model.", "put the adapter_config.json of this LoRA"]);
    assert!(!refusal.contains("another family"), "{refusal}");
    // A number in the file itself counts as ever.
    let alpha = (format!("base_model.model.{dotted}.alpha"), Vec::new(), vec![4.0]);
    let path = case.write(&[tensors(dotted, [8, 8]), vec![alpha]].concat());
    assert!(picture(&case.options(path, 1.0)) == twice);
}

#[test]
fn files_for_flux_2_have_the_names_of_several_programs() {
    let case = Case::new();
    let picture_of = |name: &str, [down, up]: [&[usize]; 2]| {
        let tensors = [tensor(format!("{name}.lora_A.weight"), down), tensor(format!("{name}.lora_B.weight"), up)];
        let options = case.options(case.write(&tensors), 1.0);
        fixtures::picture(&fixture("klein"), &options)
    };
    for (original, new, shapes) in [
        ("double_blocks.0.img_attn.proj", "transformer_blocks.0.attn.to_out.0", [&[2, 32][..], &[32, 2]]),
        ("single_blocks.1.linear2", "single_transformer_blocks.1.attn.to_out", [&[2, 128], &[32, 2]]),
        ("final_layer.linear", "proj_out", [&[2, 32], &[16, 2]]),
    ] {
        let expected = picture_of(&format!("transformer.{new}"), shapes);
        // Trainers write these without the configuration of PEFT.
        for name in [
            format!("base_model.model.{original}"),
            format!("diffusion_model.{original}"),
            format!("transformer.base_model.model.{new}"),
            new.to_owned(),
        ] {
            assert!(picture_of(&name, shapes) == expected, "{name}");
        }
    }
    let plain = [
        tensor("base_model.model.proj_out.lora_A.weight", &[2, 32]),
        tensor("base_model.model.proj_out.lora_B.weight", &[16, 2]),
    ];
    let message = refusal("klein", &case.options(case.write(&plain), 1.0));
    assert!(message.contains("put the adapter_config.json of this LoRA"), "{message}");
}

#[test]
fn the_projection_of_a_whole_prompt_is_changed() {
    let case = Case::new();
    let path = case.write(&pair("lora_te2_text_projection", &[2, 12], &[12, 2]));
    Pipeline::open(&fixture("sdxl"), &case.options(path, 1.0)).expect("a model");
}

#[test]
fn files_of_other_formats_are_refused() {
    let case = Case::new();
    for (name, bytes, word) in [
        ("a.pt", &b"PK\x03\x04"[..], "pickle"),
        ("a.ckpt", b"", "pickle"),
        ("b.safetensors", b"\x80\x02}q", "pickle"),
        ("c.safetensors", b"GGUF", "GGUF"),
        ("d.safetensors", b"", "damaged"),
        ("e.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff{}", "damaged"),
        ("f.safetensors", b"<!DOCTYPE html>", "web page"),
    ] {
        let path = case.path(name);
        std::fs::write(&path, bytes).expect("a file");
        let message = refusal("sd15", &case.options(path, 1.0));
        assert!(message.contains(name) && message.contains(word), "{message}");
    }
    let message = refusal("sd15", &case.options(case.path("none.safetensors"), 1.0));
    assert!(message.contains("cannot read") && message.contains("none.safetensors"), "{message}");
    let message = refusal("sd15", &case.options(case.folder.path().into(), 1.0));
    assert!(message.contains("is not a file"), "{message}");
    let whole = std::fs::read(case.write(&usual())).expect("a file");
    for length in 0..whole.len() {
        let path = case.path("short.safetensors");
        std::fs::write(&path, &whole[..length]).expect("a file");
        assert!(refusal("sd15", &case.options(path, 1.0)).contains("short.safetensors"));
    }
    let eight = case.write_as("g.safetensors", Dtype::I32, &usual());
    let message = refusal("sd15", &case.options(eight, 1.0));
    assert!(message.contains("I32") && message.contains("supported"), "{message}");
}

#[test]
fn the_scales_of_a_header_count() {
    let case = Case::new();
    let magnitudes = tensor(format!("{TARGET}.lora_magnitude_vector"), &[8]);
    let picture_of = |tensors: &[Tensor], notes: serde_json::Value| {
        let path = case.write(tensors);
        let bytes = std::fs::read(&path).expect("a file");
        let tensors = SafeTensors::deserialize(&bytes).expect("weights");
        let named = tensors.names().into_iter().map(|name| (name, tensors.tensor(name).expect("a tensor")));
        let notes = [("lora_adapter_metadata".to_owned(), notes.to_string())].into();
        safetensors::serialize_to_file(named, Some(notes), &path).expect("a file");
        Pipeline::open(&fixture("sd15"), &case.options(path, 1.0)).map(|mut pipeline| render(&mut pipeline))
    };
    let picture_with = |notes| picture_of(&usual(), notes);
    let by = |notes| picture_with(notes).expect("a picture");
    let twice = picture(&case.options(case.write(&usual()), 2.0));
    assert!(by(json!({"unet.r": 2, "unet.lora_alpha": 4})) == twice);
    assert!(by(json!({"unet.lora_alpha": 4, "text_encoder.lora_alpha": 9})) == twice);
    let layer = TARGET.trim_start_matches("lora_unet_");
    assert!(by(json!({"unet.lora_alpha": 9, "unet.alpha_pattern": {layer: 4}})) == twice);
    assert!(by(json!({"unet.lora_alpha": 8_f64.sqrt(), "unet.use_rslora": true})) == twice);
    let plain = picture(&case.options(case.write(&usual()), 1.0));
    assert!(by(json!({"unet.lora_alpha": "many"})) == plain && by(json!({})) == plain);
    let all = [usual(), vec![magnitudes]].concat();
    for without in [json!({"unet.lora_alpha": 4}), json!({"unet.lora_alpha": 4, "unet.use_dora": false})] {
        assert!(matches!(picture_of(&all, without), Err(Error::Lora(text)) if text.contains("unet.use_dora")));
    }
    for with in [json!({"unet.lora_alpha": 4, "unet.use_dora": true}), json!({"text_encoder.lora_alpha": 4})] {
        assert!(picture_of(&all, with).expect("a picture") != plain);
    }
    for damaged in [json!([]), json!("x"), json!(null)] {
        assert!(matches!(picture_with(damaged), Err(Error::Lora(text)) if text.contains("lora_adapter_metadata")));
    }
}

#[test]
fn an_alpha_may_be_a_number_of_any_type() {
    let case = Case::new();
    let twice = picture(&case.options(case.write(&usual()), 2.0));
    for (dtype, bytes) in [
        (Dtype::I64, 4_i64.to_le_bytes().to_vec()),
        (Dtype::F64, 4_f64.to_le_bytes().to_vec()),
        (Dtype::I32, 4_i32.to_le_bytes().to_vec()),
        (Dtype::U8, vec![4]),
        (Dtype::BF16, half::bf16::from_f32(4.0).to_le_bytes().to_vec()),
    ] {
        let path = case.write(&usual());
        let file = std::fs::read(&path).expect("a file");
        let tensors = SafeTensors::deserialize(&file).expect("weights");
        let alpha = TensorView::new(dtype, vec![1], &bytes).expect("a tensor");
        let tensors = tensors.iter().map(|(name, view)| (name.to_owned(), view));
        let all = tensors.chain([(format!("{TARGET}.alpha"), alpha)]);
        safetensors::serialize_to_file(all, None, &path).expect("a file");
        assert!(picture(&case.options(path, 1.0)) == twice, "{dtype:?}");
    }
}

#[test]
fn a_pointer_of_git_lfs_is_told_from_a_file() {
    let case = Case::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa\nsize 133\n";
    let path = case.path("some.safetensors");
    std::fs::write(&path, pointer).expect("a file");
    let message = refusal("sd15", &case.options(path.clone(), 1.0));
    assert!(message.contains("git lfs pull"), "{message}");
    let error = Pipeline::open(&path, &Options::default()).expect_err("no model").to_string();
    assert!(error.contains("git lfs pull"), "{error}");
}

#[test]
fn weights_have_bounds() {
    let case = Case::new();
    let path = case.write(&usual());
    for weight in [f64::NAN, f64::INFINITY, 10.01, -10.01] {
        let message = refusal("sd15", &case.options(path.clone(), weight));
        assert!(message.contains("from -10 to 10"), "{message}");
    }
    let many = vec![Lora { path: path.clone(), weight: 1.0 }; 17];
    let message = refusal("sd15", &Options { loras: many, ..Options::default() });
    assert!(message.contains("17") && message.contains("16"), "{message}");
    let plain = picture(&Options::default());
    assert!(picture(&case.options(path.clone(), 0.0)) == plain);
    let changed = picture(&case.options(path.clone(), 1.0));
    assert!(changed != plain);
    // What one adds the other takes away.
    let [there, back] = [2.0, -2.0].map(|weight| Lora { path: path.clone(), weight });
    let both = picture(&Options { loras: vec![there, back], ..Options::default() });
    let apart = both.as_rgb().iter().zip(plain.as_rgb()).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(apart <= Some(1), "{apart:?}");
    assert!(picture(&case.options(case.write_as("half.safetensors", Dtype::F16, &usual()), 1.0)) == changed);
}

#[test]
fn merged_weights_are_kept_by_what_they_are_made_of() {
    let case = Case::new();
    let path = case.write(&[usual(), pair(CONVOLUTION, &[2, 8, 3, 3], &[8, 2, 1, 1]).into()].concat());
    let made = |options: &Options| {
        let mut parts = Vec::new();
        prepare(&fixture("sd15"), options, &mut |progress| parts.push(progress.part.clone())).expect("a model");
        parts.dedup();
        parts
    };
    let one = case.cached(path.clone(), 1.0);
    assert_eq!(made(&one), ["unet"]);
    let first = case.left();
    assert!(first.len() == 1 && first[0].starts_with("unet-") && first[0].ends_with(".merged"), "{first:?}");
    assert_eq!(made(&one), Vec::<String>::new());
    let kept = picture(&one);
    assert!(picture(&Options { cache: None, ..one.clone() }) == kept, "in memory as from a file");
    // Another weight, and another file of the same name.
    let two = case.cached(path.clone(), 0.5);
    assert_eq!(made(&two), ["unet"]);
    assert!(picture(&two) != kept);
    assert_eq!(made(&one), Vec::<String>::new(), "engines with other weights do not disturb each other");
    case.write(&usual());
    assert_eq!(made(&one), ["unet"]);
    assert!(picture(&one) != kept);
    assert_eq!(verify(&case.path("cache")).expect("whole files").len(), 3);
    // Damage is found when an engine that needs the file starts. Another one leaves it alone.
    let damaged = case.path("cache").join(&first[0]);
    let mut bytes = std::fs::read(&damaged).expect("a file");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(&damaged, bytes).expect("a file");
    assert!(verify(&case.path("cache")).is_err());
    assert_eq!(made(&one), Vec::<String>::new());
    assert!(damaged.exists() && verify(&case.path("cache")).is_err());
    let whole = case.write(&[usual(), pair(CONVOLUTION, &[2, 8, 3, 3], &[8, 2, 1, 1]).into()].concat());
    assert_eq!(made(&case.cached(whole, 1.0)), ["unet"]);
    assert_eq!(verify(&case.path("cache")).expect("whole files").len(), 3);
    std::fs::write(case.path("cache/unet-0123456789abcdef.partial"), "of a crash").expect("a file");
    let in_use = case.cached(path.clone(), 0.1);
    for weight in [0.1, 0.2, 0.3, 0.4, 0.6] {
        made(&case.cached(path.clone(), weight));
        assert!(weight <= 0.1 || made(&in_use).is_empty(), "what an engine uses stays");
    }
    assert_eq!(case.left().len(), 4, "files that are no longer used do not fill the disk");
}

#[test]
fn a_lora_in_8_bits_is_known_by_its_scales() {
    let case = Case::new();
    let with = |scale: f32| {
        let scale = (format!("{TARGET}.lora_up.weight_scale"), Vec::new(), vec![scale]);
        picture(&case.cached(case.write(&[usual(), vec![scale]].concat()), 1.0))
    };
    let [one, two] = [with(1.0), with(2.0)];
    assert!(one != two && case.left().len() == 2, "{:?}", case.left());
}

#[test]
fn magnitudes_of_a_transposed_layer_fit_it() {
    let case = Case::new();
    let single = case.path("model.safetensors");
    write_whole_file(&fixture(""), "sdxl", &single);
    let lora = |magnitudes: &[usize]| {
        let dora = tensor("lora_te2_text_projection.dora_scale", magnitudes);
        case.write(&[pair("lora_te2_text_projection", &[2, 12], &[10, 2]).to_vec(), vec![dora]].concat())
    };
    let made = |magnitudes: &[usize]| fixtures::picture(&single, &case.options(lora(magnitudes), 1.0));
    // 12 inputs and 10 outputs.
    let plain = fixtures::picture(&single, &Options::default());
    let [of_inputs, of_outputs] = [made(&[1, 12]), made(&[10, 1])];
    assert!(of_inputs != plain && of_outputs != plain && of_inputs != of_outputs);
    for count in [1, 4, 6, 10, 24] {
        let options = case.options(lora(&[1, count]), 1.0);
        let Err(Error::Lora(message)) = Pipeline::open(&single, &options) else { panic!("{count}") };
        assert!(message.contains("dora_scale") && message.contains("12 inputs"), "{message}");
    }
}

#[test]
fn weights_in_8_bits_are_made_of_merged_ones() {
    let case = Case::new();
    let path = case.write(&usual());
    let narrow = |loras: &Options| Options { precision: Precision::W8A8, ..loras.clone() };
    let rules = Rules { bits: Bits::of_this_machine(), smallest: 4 };
    let render = |options: &Options| {
        let suit = WeightPreparation { options, rules, progress: &mut |_| {} };
        render(&mut Pipeline::open_with(&fixture("sd15"), suit).expect("a model"))
    };
    let changed = narrow(&case.cached(path, 3.0));
    let plain = Options { loras: Vec::new(), ..changed.clone() };
    let [with, without] = [render(&changed), render(&plain)];
    assert_eq!(case.left().len(), 3, "the text encoder once, the UNet twice: {:?}", case.left());
    assert!(render(&changed) == with);
    let wide = picture(&Options { precision: Precision::F32, cache: None, ..changed.clone() });
    let gap = |one: &Picture, other: &Picture| -> u64 {
        one.as_rgb().iter().zip(other.as_rgb()).map(|(a, b)| u64::from(a.abs_diff(*b))).sum()
    };
    assert!(gap(&with, &wide) * 2 < gap(&without, &wide), "{} {}", gap(&with, &wide), gap(&without, &wide));
    let unwritable = narrow(&Options { cache: None, ..changed });
    assert!(
        matches!(Pipeline::open(&fixture("sd15"), &unwritable), Err(Error::Unusable(text)) if text.contains("folder"))
    );
}
