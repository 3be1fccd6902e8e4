//! Files that are not a model, or lack a part: the refusal says what the file is, and what to do.

use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tintype_diffusion::pipelines::{class_of_file, references};
use tintype_diffusion::{Error, Options, Pipeline};

/// The name and the sizes of a tensor.
type Tensor<'a> = (&'a str, &'a [usize]);

/// Writes a file of zeros with these tensors.
fn write(path: &Path, tensors: &[Tensor<'_>]) {
    let (mut header, mut length) = (Map::new(), 0);
    for (name, shape) in tensors {
        let begin = length;
        length += shape.iter().product::<usize>() * 2;
        header.insert((*name).into(), json!({"dtype": "F16", "shape": shape, "data_offsets": [begin, length]}));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + length, 0);
    std::fs::write(path, file).expect("a file");
}

/// The refusal of a file, which is the same whether the file is opened or only recognised.
fn refusal(path: &Path) -> String {
    let recognised = class_of_file(path).expect_err("no model");
    let opened = Pipeline::open(path, &Options::default()).expect_err("no model");
    let (Error::Unusable(recognised), Error::Unusable(opened)) = (recognised, opened) else { panic!("no message") };
    assert_eq!(recognised, opened);
    assert_eq!(references(path), 0);
    assert!(recognised.starts_with(&path.display().to_string()), "{recognised}");
    recognised
}

const UNET: Tensor<'_> = ("model.diffusion_model.input_blocks.0.0.weight", &[4, 4, 3, 3]);
const VAE: Tensor<'_> = ("first_stage_model.decoder.conv_in.weight", &[4, 4, 3, 3]);
const CLIP: Tensor<'_> = ("cond_stage_model.transformer.text_model.embeddings.token_embedding.weight", &[8, 4]);
const SIZES: Tensor<'_> = ("model.diffusion_model.label_emb.0.0.weight", &[4, 4]);

/// The UNet with so many channels of input.
fn takes(channels: &'static [usize; 4]) -> Tensor<'static> {
    (UNET.0, channels)
}

#[test]
fn a_file_that_is_not_a_complete_model_is_refused_by_what_it_is() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("file.safetensors");
    let context = ("model.diffusion_model.middle_block.1.transformer_blocks.0.attn2.to_k.weight", &[4, 1024][..]);
    let cases: [(&[Tensor<'_>], &str); 25] = [
        (&[UNET], "is Stable Diffusion 1 without its text encoder and its VAE: use the complete checkpoint"),
        (&[UNET, context], "is Stable Diffusion 2 without its text encoder and its VAE"),
        (&[UNET, SIZES], "is Stable Diffusion XL without its text encoders and its VAE"),
        (&[UNET, VAE], "is Stable Diffusion 1 without its text encoder:"),
        (
            &[UNET, VAE, ("conditioner.embedders.0.transformer.text_model.x", &[1])],
            "is Stable Diffusion XL without one of its text encoders:",
        ),
        (&[takes(&[4, 8, 3, 3]), CLIP, VAE], "is a model for editing pictures"),
        (&[takes(&[4, 7, 3, 3]), CLIP, VAE], "is a model for enlarging pictures"),
        (&[takes(&[4, 5, 3, 3]), CLIP, VAE], "is a model for pictures with depth"),
        (
            &[UNET, VAE, SIZES, ("conditioner.embedders.0.model.positional_embedding", &[1])],
            "is the refiner of Stable Diffusion XL, which finishes pictures of another model: use the base model",
        ),
        (&[UNET, VAE, CLIP, ("edm_mean", &[1])], "is Playground 2.5"),
        (&[UNET, VAE, CLIP, ("edm_vpred.sigma_max", &[1])], "is CosXL or a model like it, whose scheduler (EDM)"),
        (&[("model.diffusion_model.joint_blocks.0.x", &[1])], "is Stable Diffusion 3, which is not supported"),
        (&[("double_blocks.0.img_attn.norm.key_norm.scale", &[1])], "is FLUX.1 or a model like it"),
        (&[("double_blocks.0.x.weight", &[1]), ("double_blocks.0.x.weight_scale_inv", &[1])], "is FLUX.1"),
        (&[("double_stream_modulation_img.lin.weight", &[1]), ("double_blocks.0.x", &[1])], "pull klein-4b`"),
        (&[("model.diffusion_model.noise_refiner.0.x", &[1])], "pull z-image-turbo`"),
        (&[("lora_unet_mid_block_attentions_0_proj_in.lora_down.weight", &[1])], "is a LoRA, which changes a model"),
        (&[("unet.down_blocks.0.attentions.0.to_q.lora_A.weight", &[1])], "is a LoRA"),
        (&[("emb_params", &[1])], "is an embedding of textual inversion"),
        (&[("control_model.time_embed.0.weight", &[1])], "is a ControlNet"),
        (&[("input_blocks.0.0.weight", &[1])], "is a UNet alone"),
        (&[VAE], "is a VAE alone"),
        (&[CLIP], "is a text encoder alone"),
        (&[VAE, CLIP, ("model_ema.diffusion_modelinput_blocks00weight", &[1])], "is without its UNet"),
        (&[("x", &[1])], "is not a model that is read from one file: use a complete checkpoint"),
    ];
    for (tensors, expected) in cases {
        write(&path, tensors);
        let refusal = refusal(&path);
        assert!(refusal.contains(expected), "{refusal:?} lacks {expected:?}");
    }
}

#[test]
fn a_file_of_another_format_is_refused_by_its_name_or_its_first_bytes() {
    let folder = TempDir::new().expect("a folder");
    let cases: [(&str, &[u8], &str); 13] = [
        ("model.ckpt", b"anything", "is a pickle, which can run code when it is read: convert it to safetensors"),
        ("model.pt", b"", "is a pickle"),
        ("zip.safetensors", b"PK\x03\x04 and so on", "is a pickle"),
        ("old.safetensors", &[0x80, 0x02, 0x8a, 0x0a], "is a pickle"),
        ("model.gguf", b"GGUF\x03\0\0\0", "is a GGUF file"),
        ("page.safetensors", b"<!DOCTYPE html><html>", "is a web page or an error message of the site instead of"),
        ("blank.safetensors", b"\n\n  <html>", "is a web page"),
        ("error.safetensors", br#"{"error":"Unauthorized"}"#, "download it again, with a token"),
        ("text.safetensors", b"Entry not found", "an error message of the site"),
        ("new.safetensors", &[0x80, 0x04, 0x95, 0x01], "is a pickle"),
        ("packed.safetensors", b"7z\xbc\xaf\x27\x1c\0\x04", "is an archive: unpack it"),
        ("picture.safetensors", b"\x89PNG\r\n\x1a\n", "is a picture and holds no weights"),
        ("config.json", b"{\"sample_size\": 64}", "holds no weights: give the folder of the whole model"),
    ];
    for (name, bytes, expected) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let refusal = refusal(&path);
        assert!(refusal.contains(expected), "{refusal:?} lacks {expected:?}");
    }
}

#[test]
fn a_header_may_be_as_long_as_the_format_allows() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    write(&path, &[UNET, CLIP, VAE]);
    let own = std::fs::read(&path).expect("a file");
    let length = usize::try_from(u64::from_le_bytes(own[..8].try_into().expect("8 bytes"))).expect("a small header");
    let (header, data) = own[8..].split_at(length);
    let mut header: Map<String, Value> = serde_json::from_slice(header).expect("a header");
    header.insert("__metadata__".into(), json!({"ss_tag_frequency": "x".repeat(20 << 20)}));
    let header = Value::Object(header).to_string();
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()).expect("a file");
    assert_eq!(class_of_file(&path).expect("a model"), "StableDiffusionPipeline");
}

#[test]
fn a_damaged_header_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let with = |length: u64, header: &str| [&length.to_le_bytes(), header.as_bytes()].concat();
    for bytes in [
        Vec::new(),
        vec![1; 7],
        with(u64::MAX, "{}"),
        with(1 << 30, "{}"),
        with(3, "{}"),
        with(2, "[]"),
        with(20, r#"{"a":{"shape":[-1]}}"#),
        with(20, r#"{"a":{"shape":"xx"}}"#),
        with(54, r#"{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}"#),
    ] {
        std::fs::write(&path, &bytes).expect("a file");
        for error in [class_of_file(&path).err(), Pipeline::open(&path, &Options::default()).err()] {
            let Some(Error::Files(text)) = &error else { panic!("{bytes:?}: {error:?}") };
            assert!(text.contains("is damaged"), "{text}");
        }
    }
    assert!(class_of_file(&folder.path().join("missing.safetensors")).is_err());
    assert!(class_of_file(folder.path()).is_err());
}

#[test]
fn sizes_that_lead_nowhere_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let decoder = ("first_stage_model.decoder.up.0.block.0.conv1.weight", &[0, 4, 3, 3][..]);
    let block = ("model.diffusion_model.input_blocks.1.0.in_layers.2.weight", &[0, 4, 3, 3][..]);
    let places = ("cond_stage_model.transformer.text_model.embeddings.position_embedding.weight", &[77, 4][..]);
    let inner = ("cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight", &[16, 4][..]);
    let last = ("model.diffusion_model.out.2.weight", &[4, 4, 3, 3][..]);
    let no_sizes = (CLIP.0, &[][..]);
    let no_input = (UNET.0, &[4][..]);
    for tensors in [
        vec![no_input, VAE, CLIP],
        vec![UNET, VAE, no_sizes],
        vec![UNET, VAE, CLIP],
        vec![UNET, VAE, CLIP, places, inner],
        vec![UNET, VAE, CLIP, places, inner, block, last],
        vec![UNET, VAE, CLIP, places, inner, block, last, decoder],
    ] {
        write(&path, &tensors);
        let error = Pipeline::open(&path, &Options::default()).err();
        assert!(matches!(error, Some(Error::Model(_))), "{tensors:?}: {error:?}");
    }
}

#[test]
fn a_file_that_lacks_its_vae_alone_needs_another_one() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("file.safetensors");
    write(&path, &[UNET, CLIP]);
    assert_eq!(class_of_file(&path).expect("a model"), "StableDiffusionPipeline");
    let Err(Error::Unusable(text)) = Pipeline::open(&path, &Options::default()) else { panic!("no message") };
    assert!(text.contains("is Stable Diffusion 1 without its VAE: use the complete checkpoint"), "{text}");
    assert!(text.ends_with("or give a VAE as --engine-vae"), "{text}");
}
