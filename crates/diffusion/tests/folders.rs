//! Folders of models: damaged and foreign ones are refused with a message that names the cause, before anything is
//! rendered, and unusual ones give the usual picture.

use std::path::PathBuf;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;
use tintype_diffusion::{Error, Options, Order, Pipeline, Settings};
use tintype_engine::CancellationToken;

use crate::fixtures::{copy, fixture};

/// A copy of a tiny model, to be damaged.
struct Model {
    folder: TempDir,
}

impl Model {
    fn copy(name: &str) -> Self {
        Self { folder: copy(&fixture(name)) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Sets a field of a JSON file; null removes it.
    fn set(&self, path: &str, key: &str, value: Value) {
        let path = self.path(path);
        let text = std::fs::read_to_string(&path).expect("a file");
        let mut object: Value = serde_json::from_str(&text).expect("JSON");
        object[key] = value;
        std::fs::write(&path, object.to_string()).expect("a file");
    }

    /// Changes the bytes of a file.
    fn change(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.path(path);
        let mut bytes = std::fs::read(&path).expect("a file");
        change(&mut bytes);
        std::fs::write(&path, bytes).expect("a file");
    }

    /// Replaces all numbers of 32 bits in a file of weights.
    fn fill(&self, path: &str, number: f32) {
        self.change(path, |bytes| {
            let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            let begin = 8 + usize::try_from(header).expect("a small header");
            for slot in bytes[begin..].chunks_exact_mut(4) {
                slot.copy_from_slice(&number.to_le_bytes());
            }
        });
    }

    fn assert_refused(&self, words: &[&str]) {
        match Pipeline::open(self.folder.path(), &Options::default()) {
            Err(Error::Model(message) | Error::Files(message) | Error::Scheduler(message)) => {
                let missing: Vec<_> = words.iter().filter(|word| !message.contains(**word)).collect();
                assert!(missing.is_empty(), "{message:?} lacks {missing:?}");
            }
            other => panic!("{words:?}: {other:?}"),
        }
    }

    fn render(&self, width: usize, height: usize, steps: usize) -> Result<tintype_engine::Picture, Error> {
        let mut pipeline = Pipeline::open(self.folder.path(), &Options::default())?;
        let order = Order { prompt: "a fox", width, height, seed: 1, references: &[], mask: None };
        let settings = Settings { steps, ..pipeline.traits().settings() };
        pipeline.render(&order, &settings, |_| {}, &CancellationToken::new())
    }
}

const UNET: &str = "unet/diffusion_pytorch_model.safetensors";
const VAE: &str = "vae/diffusion_pytorch_model.safetensors";

#[test]
fn missing_and_damaged_files_are_named() {
    for path in [
        "model_index.json",
        "unet/config.json",
        "vae/config.json",
        "text_encoder/config.json",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer/vocab.json",
        "tokenizer/merges.txt",
    ] {
        let model = Model::copy("sd15");
        std::fs::write(model.path(path), b"\xff\xfe").expect("a file");
        model.assert_refused(&[path]);
        std::fs::remove_file(model.path(path)).expect("a file");
        model.assert_refused(&[path]);
    }
    for path in [UNET, VAE, "text_encoder/model.safetensors"] {
        let model = Model::copy("sd15");
        model.change(path, |bytes| bytes.truncate(bytes.len() - 1));
        model.assert_refused(&[path, "damaged"]);
        model.change(path, Vec::clear);
        model.assert_refused(&[path]);
        std::fs::remove_file(model.path(path)).expect("a file");
        model.assert_refused(&[path.rsplit('/').next().expect("a name")]);
    }
}

#[test]
fn a_link_to_a_file_that_is_gone_is_named() {
    for path in [UNET, "unet/config.json"] {
        let model = Model::copy("sd15");
        std::fs::remove_file(model.path(path)).expect("a file");
        std::os::unix::fs::symlink("../../blobs/0123", model.path(path)).expect("a link");
        model.assert_refused(&[path, "is a symbolic link to ../../blobs/0123, which is not there"]);
    }
}

#[test]
fn configurations_may_begin_with_a_byte_order_mark() {
    let model = Model::copy("sd15");
    for path in ["model_index.json", "unet/config.json", "tokenizer/vocab.json", "tokenizer/merges.txt"] {
        model.change(path, |bytes| drop(bytes.splice(..0, *b"\xef\xbb\xbf")));
    }
    Pipeline::open(model.folder.path(), &Options::default()).expect("a model");
}

#[test]
fn weights_that_are_not_read_are_named() {
    let unusable = |model: &Model| match Pipeline::open(model.folder.path(), &Options::default()) {
        Err(Error::Unusable(message)) => message,
        other => panic!("{other:?}"),
    };
    for other in ["diffusion_pytorch_model.non_ema.safetensors", "diffusion_pytorch_model.bin"] {
        let model = Model::copy("sd15");
        std::fs::rename(model.path(UNET), model.path("unet").join(other)).expect("a file");
        let message = unusable(&model);
        assert!(message.contains(&format!("as {other:?} alone, which is not read: use a model with its")), "{message}");
    }
    let model = Model::copy("klein");
    std::fs::remove_file(model.path("text_encoder/model.safetensors.index.json")).expect("a file");
    assert!(unusable(&model).contains("without their index: model.safetensors.index.json is missing"));
    for (part, method) in [("unet", "bitsandbytes"), ("text_encoder", "torchao"), ("vae", "quanto")] {
        let model = Model::copy("sd15");
        model.set(&format!("{part}/config.json"), "quantization_config", json!({"quant_method": method}));
        let message = unusable(&model);
        let said =
            format!("{part}/config.json: the weights are quantised by {method}, which is not supported: use the");
        assert!(message.contains(&said), "{message}");
    }
    let model = Model::copy("sd15");
    std::fs::write(model.path(UNET), "<!DOCTYPE html>").expect("a file");
    assert!(unusable(&model).contains("is a web page"));
}

#[test]
fn other_architectures_are_refused() {
    let cases = [
        ("model_index.json", "_class_name", json!("FluxPipeline"), "StableDiffusionPipeline"),
        ("unet/config.json", "_class_name", json!("UNet3DConditionModel"), "UNet2DConditionModel"),
        ("unet/config.json", "addition_embed_type", json!("text_time"), "projection_class_embeddings_input_dim"),
        ("unet/config.json", "addition_embed_type", json!("image"), "text_time"),
        ("unet/config.json", "in_channels", json!(8), "inpainting"),
        // The weights are those of a model that sees no mask.
        ("unet/config.json", "in_channels", json!(9), "conv_in"),
        (
            "unet/config.json",
            "attention_head_dim",
            json!(3),
            "unet/config.json: \"attention_head_dim\" is 3, but 4 channels cannot be split into 3 heads",
        ),
        ("unet/config.json", "attention_head_dim", json!(0), "attention_head_dim"),
        ("unet/config.json", "block_out_channels", json!([4, 4, 8]), "block_out_channels"),
        ("unet/config.json", "block_out_channels", json!([4, 4, 8, 12]), "shape"),
        ("unet/config.json", "block_out_channels", json!([4, 4, 8, 18446744073709551615_u64]), "block_out_channels"),
        ("unet/config.json", "layers_per_block", json!(1_000_000), "64"),
        ("unet/config.json", "layers_per_block", json!(1), "shape"),
        ("unet/config.json", "cross_attention_dim", json!(8), "text encoder"),
        ("unet/config.json", "norm_num_groups", json!(3), "groups"),
        ("unet/config.json", "down_block_types", json!(["AttnDownBlock2D"]), "up_block_types"),
        ("vae/config.json", "_class_name", json!("AutoencoderDC"), "AutoencoderKL"),
        ("vae/config.json", "latent_channels", json!(16), "channels"),
        ("text_encoder/config.json", "architectures", json!(["T5EncoderModel"]), "CLIPTextModel"),
        ("text_encoder/config.json", "vocab_size", json!(700), "shape"),
        ("text_encoder/config.json", "num_hidden_layers", json!(1), "another architecture"),
        ("text_encoder/config.json", "num_hidden_layers", json!(3), "missing"),
        ("tokenizer/tokenizer_config.json", "tokenizer_class", json!("T5Tokenizer"), "CLIPTokenizer"),
        ("tokenizer/tokenizer_config.json", "pad_token", json!("<pad>"), "<pad>"),
        ("scheduler/scheduler_config.json", "_class_name", json!("DDPMScheduler"), "EulerDiscreteScheduler"),
        ("scheduler/scheduler_config.json", "beta_schedule", json!("sigmoid"), "scaled_linear"),
        ("scheduler/scheduler_config.json", "beta_end", json!(1.5), "beta"),
        ("scheduler/scheduler_config.json", "num_train_timesteps", json!(1_000_000), "10000"),
        ("scheduler/scheduler_config.json", "skip_prk_steps", json!(false), "skip_prk_steps"),
    ];
    for (path, key, value, word) in cases {
        let model = Model::copy("sd15");
        model.set(path, key, value);
        model.assert_refused(&[word]);
    }
}

#[test]
fn other_transformers_and_their_parts_are_refused() {
    let cases = [
        ("klein", "transformer/config.json", "_class_name", json!("FluxTransformer2DModel"), "Flux2Transformer2DModel"),
        ("klein", "transformer/config.json", "num_attention_heads", json!(3), "shape"),
        ("klein", "transformer/config.json", "num_attention_heads", json!(1 << 20), "shape"),
        ("klein", "transformer/config.json", "attention_head_dim", json!(1 << 20), "1024"),
        ("klein", "transformer/config.json", "axes_dims_rope", json!([4, 4, 4, 6]), "axes_dims_rope"),
        ("klein", "transformer/config.json", "joint_attention_dim", json!(48), "text encoder"),
        ("klein", "transformer/config.json", "in_channels", json!(64), "channels"),
        ("klein", "transformer/config.json", "mlp_ratio", json!(1e300), "mlp_ratio"),
        ("klein", "transformer/config.json", "mlp_ratio", json!(2.0), "shape"),
        ("klein", "transformer/config.json", "num_layers", json!(1), "another architecture"),
        ("klein", "transformer/config.json", "num_single_layers", json!(1_000_000), "missing"),
        ("klein", "transformer/config.json", "rope_theta", json!(0), "rope_theta"),
        ("klein", "text_encoder/config.json", "architectures", json!(["Qwen2ForCausalLM"]), "Qwen3ForCausalLM"),
        ("klein", "text_encoder/config.json", "num_hidden_layers", json!(20), "27"),
        ("klein", "text_encoder/config.json", "num_hidden_layers", json!(27), "more than 27 layers"),
        ("klein", "text_encoder/config.json", "vocab_size", json!(700), "shape"),
        ("klein", "text_encoder/config.json", "head_dim", json!(1 << 20), "1024"),
        ("klein", "text_encoder/config.json", "num_key_value_heads", json!(3), "num_key_value_heads"),
        ("klein", "text_encoder/config.json", "use_sliding_window", json!(true), "use_sliding_window"),
        ("klein", "text_encoder/config.json", "rope_parameters", json!({"rope_type": "yarn"}), "rope_type"),
        ("klein", "vae/config.json", "latent_channels", json!(8), "channels"),
        ("klein", "vae/config.json", "batch_norm_eps", json!("x"), "batch_norm_eps"),
        ("klein", "vae/config.json", "patch_size", json!([4, 4]), "patch_size"),
        ("klein", "vae/config.json", "down_block_types", json!(["DownEncoderBlock2D"]), "up_block_types"),
        ("klein", "tokenizer/tokenizer_config.json", "tokenizer_class", json!("LlamaTokenizer"), "Qwen2Tokenizer"),
        ("klein", "tokenizer/tokenizer_config.json", "chat_template", json!("{{ messages }}"), "chat_template"),
        ("klein", "tokenizer/tokenizer_config.json", "padding_side", json!("left"), "padding_side"),
        ("klein", "tokenizer/tokenizer_config.json", "added_tokens_decoder", json!({}), "<|im_start|>"),
        ("klein", "tokenizer/tokenizer_config.json", "added_tokens_decoder", json!({"x": 1}), "added_tokens_decoder"),
        ("klein", "tokenizer/tokenizer_config.json", "pad_token", json!("<pad>"), "<pad>"),
        ("klein", "scheduler/scheduler_config.json", "_class_name", json!("DDIMScheduler"), "FlowMatchEuler"),
        ("klein", "scheduler/scheduler_config.json", "shift_terminal", json!(0.1), "shift_terminal"),
        ("klein", "scheduler/scheduler_config.json", "time_shift_type", json!("cubic"), "exponential"),
        ("klein", "scheduler/scheduler_config.json", "shift", json!(-1), "shift"),
        ("z_image", "transformer/config.json", "siglip_feat_dim", json!(1152), "siglip_feat_dim"),
        ("z_image", "transformer/config.json", "axes_dims", json!([4, 4, 4]), "axes_dims"),
        ("z_image", "transformer/config.json", "axes_lens", json!([1, 1, 1]), "axes_lens"),
        ("z_image", "transformer/config.json", "n_kv_heads", json!(1), "n_kv_heads"),
        ("z_image", "transformer/config.json", "t_scale", json!(1), "t_scale"),
        ("z_image", "transformer/config.json", "n_layers", json!(1), "another architecture"),
        ("z_image", "text_encoder/config.json", "num_hidden_layers", json!(1), "single layer"),
        ("z_image", "tokenizer/tokenizer.json", "model", json!({"type": "Unigram"}), "byte-pair"),
        ("z_image", "tokenizer/tokenizer.json", "added_tokens", json!([{"id": -1}]), "added_tokens"),
        ("sdxl", "unet/config.json", "projection_class_embeddings_input_dim", json!(61), "sizes"),
        ("sdxl", "unet/config.json", "addition_embed_type", Value::Null, "Stable Diffusion XL"),
        ("sdxl", "text_encoder_2/config.json", "architectures", json!(["CLIPTextModel"]), "another architecture"),
        ("sdxl", "text_encoder_2/config.json", "projection_dim", json!(13), "shape"),
        ("sdxl", "text_encoder/config.json", "num_hidden_layers", json!(1), "single layer"),
        ("sdxl", "model_index.json", "_class_name", json!("StableDiffusionPipeline"), "text encoder"),
    ];
    for (name, path, key, value, word) in cases {
        let model = Model::copy(name);
        model.set(path, key, value);
        model.assert_refused(&[word]);
    }
}

#[test]
fn a_prompt_longer_than_the_model_takes_is_cut_off() {
    for (name, most) in [("sd15", 77), ("klein", 512), ("z_image", 512), ("sdxl", 77)] {
        let model = Model::copy(name);
        let pipeline = Pipeline::open(model.folder.path(), &Options::default()).expect("a model");
        assert_eq!(pipeline.tokens(&"word ".repeat(8_000)).expect("tokens").len(), most, "{name}");
    }
}

#[test]
fn references_that_do_not_suit_are_refused() {
    let picture = |width: u32, height: u32| {
        let bytes = vec![100; width as usize * height as usize * 3];
        tintype_engine::Picture::from_rgb(width, height, bytes).expect("a picture")
    };
    let refused = |name: &str, references: &[tintype_engine::Picture], word: &str| {
        let model = Model::copy(name);
        let mut pipeline = Pipeline::open(model.folder.path(), &Options::default()).expect("a model");
        let order = Order { prompt: "a fox", width: 64, height: 64, seed: 1, references, mask: None };
        let settings = pipeline.traits().settings();
        let result = pipeline.render(&order, &settings, |_| {}, &CancellationToken::new());
        assert!(matches!(&result, Err(Error::Order(message)) if message.contains(word)), "{name}: {result:?}");
    };
    refused("sd15", &[picture(64, 64), picture(64, 64)], "at most 1");
    refused("sdxl", &[picture(64, 64), picture(64, 64)], "at most 1");
    refused("z_image", &[picture(64, 64)], "at most 0");
    refused("klein", &vec![picture(64, 64); 5], "at most 4");
    refused("klein", &[picture(64, 15)], "fewer than 16");
    // A strip that is a megapixel wide becomes thinner than a pixel.
    refused("klein", &[picture(2_000_000, 1)], "fewer than 16");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let model = Model::copy("sd15");
    model.set("tokenizer/vocab.json", "<|endoftext|>", json!(49_407));
    model.assert_refused(&["49407", "614"]);
}

/// Cuts a file of weights into two with an index, as models of several gigabytes come.
fn split(model: &Model, part: &str) {
    let whole = std::fs::read(model.path(&format!("{part}.safetensors"))).expect("a file");
    let tensors = SafeTensors::deserialize(&whole).expect("weights");
    let mut map = serde_json::Map::new();
    let mut shards = [Vec::new(), Vec::new()];
    for (at, name) in tensors.names().into_iter().enumerate() {
        shards[at % 2].push((name, tensors.tensor(name).expect("a tensor")));
        map.insert(name.into(), json!(format!("shard-{}.safetensors", at % 2)));
    }
    let folder = model.path(part).parent().expect("a folder").to_owned();
    for (number, shard) in shards.into_iter().enumerate() {
        let path = folder.join(format!("shard-{number}.safetensors"));
        safetensors::serialize_to_file(shard, None, &path).expect("a file");
    }
    let index = json!({"metadata": {}, "weight_map": map});
    std::fs::write(model.path(&format!("{part}.safetensors.index.json")), index.to_string()).expect("a file");
    std::fs::remove_file(model.path(&format!("{part}.safetensors"))).expect("a file");
}

#[test]
fn weights_in_several_files_give_the_same_picture() {
    for name in ["sd15", "lcm"] {
        let picture = Model::copy(name).render(64, 64, 2).expect("a picture");
        let model = Model::copy(name);
        for part in ["unet/diffusion_pytorch_model", "vae/diffusion_pytorch_model", "text_encoder/model"] {
            split(&model, part);
        }
        assert_eq!(model.render(64, 64, 2).expect("a picture"), picture, "{name}");
    }
}

#[test]
fn a_damaged_index_of_weights_is_named() {
    let index = "unet/diffusion_pytorch_model.safetensors.index.json";
    let damaged = |change: &dyn Fn(&Model), words: &[&str]| {
        let model = Model::copy("sd15");
        split(&model, "unet/diffusion_pytorch_model");
        change(&model);
        model.assert_refused(words);
    };
    damaged(&|model| model.set(index, "weight_map", json!([])), &[index, "weight_map"]);
    damaged(&|model| model.set(index, "weight_map", json!({})), &["1 to 64 files"]);
    let leads_away = json!({"conv_in.bias": "../vae/diffusion_pytorch_model.safetensors"});
    damaged(&|model| model.set(index, "weight_map", leads_away.clone()), &["without a folder"]);
    let none = json!({"conv_in.bias": ".."});
    damaged(&|model| model.set(index, "weight_map", none.clone()), &["without a folder"]);
    let one = json!({"conv_in.bias": "shard-0.safetensors"});
    damaged(&|model| model.set(index, "weight_map", one.clone()), &["not by the index"]);
    damaged(&|model| std::fs::remove_file(model.path("unet/shard-1.safetensors")).expect("a file"), &["shard-1"]);
    damaged(&|model| model.change("unet/shard-1.safetensors", |bytes| bytes.truncate(100)), &["shard-1", "damaged"]);
    let missing = |model: &Model| {
        let text = std::fs::read_to_string(model.path(index)).expect("a file");
        let whole: Value = serde_json::from_str(&text).expect("JSON");
        let mut map = whole["weight_map"].clone();
        map["one.more"] = json!("shard-0.safetensors");
        model.set(index, "weight_map", map);
    };
    damaged(&missing, &["one.more", "none of the files"]);
}

#[test]
fn weights_at_odd_addresses_give_the_same_picture() {
    // 16-bit and 32-bit weights.
    for name in ["sd15", "lcm"] {
        let picture = Model::copy(name).render(64, 64, 2).expect("a picture");
        for odd in 1..4 {
            let model = Model::copy(name);
            for path in [UNET, VAE, "text_encoder/model.safetensors"] {
                model.change(path, |bytes| {
                    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
                    bytes[..8].copy_from_slice(&(header + odd).to_le_bytes());
                    let end = 8 + usize::try_from(header).expect("a small header");
                    bytes.splice(end..end, vec![b' '; usize::try_from(odd).expect("a small number")]);
                });
            }
            assert_eq!(model.render(64, 64, 2).expect("a picture"), picture, "{name} at {odd}");
        }
    }
}

#[test]
fn sizes_and_steps_that_do_not_suit_are_refused() {
    let model = Model::copy("lcm");
    for (width, height, steps) in [(60, 64, 2), (64, 0, 2), (8, 8, 2), (64, 4096, 2), (64, 64, 0), (64, 64, 51)] {
        let result = model.render(width, height, steps);
        assert!(matches!(result, Err(Error::Order(_))), "{width}x{height} in {steps}: {result:?}");
    }
    assert!(model.render(64, 64, 1).is_ok());
}

#[test]
fn a_picture_that_is_none_is_never_delivered() {
    let model = Model::copy("lcm");
    model.fill(UNET, f32::NAN);
    let result = model.render(64, 64, 2);
    assert!(matches!(result, Err(Error::Spoiled(_))), "{result:?}");

    let model = Model::copy("lcm");
    model.fill(VAE, f32::INFINITY);
    let result = model.render(64, 64, 2);
    assert!(matches!(result, Err(Error::Spoiled(_))), "{result:?}");

    // Every layer gives 0, which this decoder shifts to -1: black.
    let model = Model::copy("lcm");
    model.fill(VAE, 0.0);
    let result = model.render(64, 64, 2);
    assert!(matches!(result, Err(Error::Spoiled(message)) if message.contains("black")), "{result:?}");
}

#[test]
fn a_model_is_used_as_its_files_say() {
    const SCHEDULER: &str = "scheduler/scheduler_config.json";
    let changes = [
        ("turbo", SCHEDULER, "timestep_spacing", json!("trailing"), (1, 0.0)),
        ("turbo", SCHEDULER, "prediction_type", json!("v_prediction"), (25, 7.5)),
        ("turbo", "unet/config.json", "sample_size", json!(96), (25, 7.5)),
        ("sd15", SCHEDULER, "_class_name", json!("LCMScheduler"), (4, 1.0)),
        ("sdxl", SCHEDULER, "_class_name", json!("LCMScheduler"), (4, 1.0)),
        ("sdxl", SCHEDULER, "_class_name", json!("TCDScheduler"), (4, 1.0)),
    ];
    for (name, path, key, value, expected) in changes {
        let model = Model::copy(name);
        model.set(path, key, value);
        let pipeline = Pipeline::open(model.folder.path(), &Options::default()).expect("a model");
        assert_eq!((pipeline.traits().steps, pipeline.traits().guidance), expected, "{name}: {key}");
    }
    let model = Model::copy("turbo");
    model.set(SCHEDULER, "_class_name", json!("HeunDiscreteScheduler"));
    let pipeline = Pipeline::open(model.folder.path(), &Options::default()).expect("a model");
    assert_eq!(pipeline.traits().calls, 2);
    let model = Model::copy("sd15");
    model.set("unet/config.json", "sample_size", json!([64, 96]));
    let pipeline = Pipeline::open(model.folder.path(), &Options::default()).expect("a model");
    assert_eq!(pipeline.traits().trained_pixels, 64 * 96 * 64);
    model.set("unet/config.json", "sample_size", json!("large"));
    model.assert_refused(&["sample_size"]);
}

#[test]
fn a_picture_may_be_as_near_to_its_reference_as_is_wanted() {
    let reference = tintype_engine::Picture::from_rgb(16, 16, vec![90; 16 * 16 * 3]).expect("a picture");
    for name in ["sd15", "lcm"] {
        let model = Model::copy(name);
        let mut pipeline = Pipeline::open(model.folder.path(), &Options::default()).expect("a model");
        for (strength, steps) in [(0.0, 4), (0.02, 1), (0.1, 4), (0.14, 7), (0.5, 25), (1.0, 4)] {
            let references = [reference.clone()];
            let order = Order { prompt: "a fox", width: 64, height: 64, seed: 1, references: &references, mask: None };
            let settings = Settings { steps, strength, ..pipeline.traits().settings() };
            let made = pipeline.render(&order, &settings, |_| {}, &CancellationToken::new());
            assert!(made.is_ok(), "{name} {strength} {steps}: {made:?}");
        }
    }
}

#[test]
fn what_the_training_of_an_autoencoder_needed_is_ignored() {
    let model = Model::copy("sd15");
    let usual = model.render(64, 64, 1).expect("a picture");
    model.change(VAE, |bytes| {
        let tensors = SafeTensors::deserialize(bytes).expect("weights");
        let more = TensorView::new(Dtype::F32, vec![1], &[0; 4]).expect("a tensor");
        let all = tensors.iter().map(|(name, view)| (name.to_owned(), view)).chain([("loss.logvar".to_owned(), more)]);
        *bytes = safetensors::serialize(all, None).expect("a file");
    });
    assert!(model.render(64, 64, 1).expect("a picture") == usual);
}

#[test]
fn options_that_a_scheduler_does_not_have_are_ignored() {
    let config = "scheduler/scheduler_config.json";
    for (class, options) in [
        ("PNDMScheduler", vec![("rescale_betas_zero_snr", json!(true)), ("thresholding", json!(true))]),
        ("EulerAncestralDiscreteScheduler", vec![("use_karras_sigmas", json!(true)), ("use_flow_sigmas", json!(true))]),
        (
            "DPMSolverSinglestepScheduler",
            vec![("use_lu_lambdas", json!(true)), ("timestep_spacing", json!("trailing"))],
        ),
        ("KDPM2DiscreteScheduler", vec![("clip_sample", json!("often")), ("variance_type", json!("learned"))]),
    ] {
        let model = Model::copy("sd15");
        model.set(config, "_class_name", json!(class));
        let usual = model.render(64, 64, 2).expect("a picture");
        for (key, value) in options {
            model.set(config, key, value);
            assert!(model.render(64, 64, 2).expect("a picture") == usual, "{class} with {key}");
        }
    }
    // What it has counts, and is named.
    let model = Model::copy("sd15");
    model.set(config, "_class_name", json!("DDIMScheduler"));
    model.set(config, "thresholding", json!(true));
    model.assert_refused(&[config, "thresholding"]);
}

#[test]
fn the_base_model_of_z_image_is_known_by_its_shift() {
    let model = Model::copy("z_image");
    for (shift, steps, guidance) in [(3.0, 8, 1.0), (6.0, 50, 6.0)] {
        model.set("scheduler/scheduler_config.json", "shift", json!(shift));
        let pipeline = Pipeline::open(model.folder.path(), &Options::default()).expect("a model");
        let traits = pipeline.traits();
        assert_eq!((traits.steps, traits.guidance.to_bits()), (steps, f32::to_bits(guidance)), "{shift}");
    }
}

#[test]
fn a_pipeline_for_pictures_from_others_has_the_same_parts() {
    for (name, class) in [("sd15", "StableDiffusionImg2ImgPipeline"), ("sdxl", "StableDiffusionXLImg2ImgPipeline")] {
        let model = Model::copy(name);
        let open = || Pipeline::open(model.folder.path(), &Options::default()).expect("a model").traits().clone();
        let usual = open();
        model.set("model_index.json", "_class_name", json!(class));
        assert_eq!(open(), usual);
    }
}
