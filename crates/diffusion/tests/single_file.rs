//! Models in files as other programs read them. If a file is not a model, or lacks a part, the refusal says what the file
//! is, and what to do.

use std::fs;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tintype_diffusion::pipelines::{masks, recognise, references};
use tintype_diffusion::{Error, Lora, Options, Pipeline};
use tintype_engine::Picture;

use crate::fixtures::{self, Tensors, fixture, tensor};
use crate::parity::comfyui::{FILES, part, write_comfyui, write_configurations};

/// The name and the sizes of a tensor.
type Tensor<'a> = (&'a str, &'a [usize]);

/// Writes a file of zeros with these tensors.
fn write(path: &Path, tensors: &[Tensor<'_>]) {
    let tensors = tensors.iter().map(|(name, shape)| ((*name).to_owned(), tensor(Dtype::F16, shape, &[0.0])));
    fixtures::write(path, &tensors.collect());
}

/// The refusal of a file, which is the same whether the file is opened or only recognised.
fn refusal(path: &Path) -> String {
    let recognised = recognise(path).expect_err("no model");
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
    let cases: [(&[Tensor<'_>], &str); 27] = [
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
        (
            &[("double_stream_modulation_img.lin.weight", &[1]), ("double_blocks.0.x", &[1])],
            "is the transformer of FLUX.2 klein alone, and no text encoder (Qwen 3 with 0 numbers a token) of this model",
        ),
        (&[("double_stream_modulation_img.lin.weight", &[1]), ("guidance_in.in_layer.weight", &[1])], "is FLUX.2 dev"),
        (&[("model.diffusion_model.noise_refiner.0.x", &[1])], "is Lumina 2"),
        (
            &[("noise_refiner.0.x", &[1]), ("x_pad_token", &[1, 4]), ("cap_embedder.1.weight", &[4, 6])],
            "is the transformer of Z-Image alone, and no text encoder (Qwen 3 with 6 numbers a token) of this model lies",
        ),
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
    assert_eq!(recognise(&path).expect("a model").class, "StableDiffusionPipeline");
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
        for error in [recognise(&path).err(), Pipeline::open(&path, &Options::default()).err()] {
            let Some(Error::Files(text)) = &error else { panic!("{bytes:?}: {error:?}") };
            assert!(text.contains("is damaged"), "{text}");
        }
    }
    assert!(recognise(&folder.path().join("missing.safetensors")).is_err());
    assert!(recognise(folder.path()).is_err());
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
    assert_eq!(recognise(&path).expect("a model").class, "StableDiffusionPipeline");
    let Err(Error::Unusable(text)) = Pipeline::open(&path, &Options::default()) else { panic!("no message") };
    assert!(text.contains("is Stable Diffusion 1 without its VAE: use the complete checkpoint"), "{text}");
    assert!(text.ends_with("or give a VAE as --engine-vae"), "{text}");
}

fn picture(path: &Path, loras: &[Lora]) -> Picture {
    fixtures::picture(path, &Options { loras: loras.to_vec(), ..Options::default() })
}

/// The same tensors under names that begin so.
fn prefixed(tensors: Tensors, prefix: &str) -> Tensors {
    tensors.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect()
}

#[test]
fn files_for_comfyui_give_the_picture_of_the_folder() {
    for (name, class, pictures) in [("klein", "Flux2KleinPipeline", 4), ("z_image", "ZImagePipeline", 0)] {
        let expected = picture(&fixture(name), &[]);
        let folder = TempDir::new().expect("a folder");
        let path = write_comfyui(&fixture(""), name, folder.path());
        let found = recognise(&path).expect("a model");
        assert_eq!((found.class, references(&path), masks(&path)), (class, pictures, false));
        assert_eq!((found.folder.as_path(), found.files[0].as_path()), (folder.path(), Path::new(FILES[0].1)));
        let beside = ["model_index.json", "vae/config.json", "tokenizer/tokenizer_config.json", FILES[1].1, FILES[2].1];
        assert!(beside.iter().all(|file| found.files.contains(&PathBuf::from(file))), "{found:?}");
        assert!(picture(&path, &[]) == expected, "{name}: files of ComfyUI");
        for kind in ["kohya", "peft"] {
            let lora = [Lora { path: fixture("lora").join(format!("{name}_{kind}.safetensors")), weight: 0.7 }];
            let changed = picture(&fixture(name), &lora);
            assert!(picture(&path, &lora) == changed && changed != expected, "{name}: {kind}");
        }
        // A file that another one has in part, or has nothing to do with.
        let mut tensors = prefixed(part(&fixture(""), name, "transformer"), FILES[0].2);
        if name == "z_image" {
            tensors.insert(format!("{}norm_final.weight", FILES[0].2), (Dtype::F32, vec![4], vec![0; 16]));
        }
        fixtures::write(&path, &tensors);
        fs::write(folder.path().join("text_encoders/a.safetensors"), "damaged").expect("a file");
        fs::copy(&path, folder.path().join("text_encoders/b.safetensors")).expect("a copy");
        assert!(picture(&path, &[]) == expected, "{name}: with a prefix");

        let flat = TempDir::new().expect("a folder");
        write_configurations(&fixture(""), name, flat.path());
        for (_, file, _) in FILES {
            let to = Path::new(file).file_name().expect("a name");
            fs::copy(folder.path().join(file), flat.path().join(to)).expect("a copy");
        }
        assert!(picture(&flat.path().join("model.safetensors"), &[]) == expected, "{name}: in one folder");

        let whole = TempDir::new().expect("a folder");
        write_configurations(&fixture(""), name, whole.path());
        let all = FILES.iter().flat_map(|(of, _, prefix)| prefixed(part(&fixture(""), name, of), prefix));
        let path = whole.path().join("whole.safetensors");
        fixtures::write(&path, &all.collect());
        assert!(picture(&path, &[]) == expected, "{name}: in one file");
        assert!(!recognise(&path).expect("a model").files[1..].contains(&PathBuf::from("whole.safetensors")));
    }
}

#[test]
fn a_transformer_lies_beside_the_parts_of_a_folder() {
    for name in ["klein", "z_image"] {
        let folder = TempDir::new().expect("a folder");
        for part in ["text_encoder", "vae", "tokenizer", "model_index.json"] {
            std::os::unix::fs::symlink(fixture(name).join(part), folder.path().join(part)).expect("a link");
        }
        fs::create_dir(folder.path().join("unet")).expect("a folder");
        let path = folder.path().join("unet/tuned.safetensors");
        let expected = picture(&fixture(name), &[]);
        // The names of `diffusers`, too.
        fs::copy(fixture(name).join("transformer/diffusion_pytorch_model.safetensors"), &path).expect("a copy");
        assert!(picture(&path, &[]) == expected, "{name}");
        fixtures::write(&path, &part(&fixture(""), name, "transformer"));
        assert!(picture(&path, &[]) == expected, "{name}");
        let files = recognise(&path).expect("a model").files;
        let index = PathBuf::from("text_encoder/model.safetensors.index.json");
        assert!(files.contains(&"text_encoder/config.json".into()) && files.contains(&"vae/config.json".into()));
        assert_eq!((files.contains(&index), files.len() > 8), (name == "klein", true), "{files:?}");
    }
}

/// Writes a file of zeros as large as a published one, which takes no disk.
fn published(path: &Path, tensors: &Value) {
    let (mut header, mut length) = (Map::new(), 0);
    for (name, shape) in tensors.as_object().expect("tensors") {
        let begin = length;
        length +=
            shape.as_array().expect("sizes").iter().map(|size| size.as_u64().expect("a size")).product::<u64>() * 2;
        header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, length]}));
    }
    let header = Value::Object(header).to_string();
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).expect("a file");
    let file = fs::File::options().write(true).open(path).expect("a file");
    file.set_len(8 + header.len() as u64 + length).expect("a long file");
}

#[test]
fn published_files_for_comfyui_need_nothing_else() {
    let recorded = fs::File::open(fixture("comfyui/published.json.gz")).expect("a fixture");
    let recorded: Value = serde_json::from_reader(GzDecoder::new(recorded)).expect("JSON");
    for (name, family, steps, guidance) in [
        ("flux-2-klein-4b", "FLUX.2 klein", 4, 1.0),
        ("flux-2-klein-base-9b", "FLUX.2 klein base", 50, 4.0),
        ("z_image_turbo_bf16", "Z-Image", 8, 1.0),
        ("z_image_bf16", "Z-Image", 50, 6.0),
    ] {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join(format!("diffusion_models/{name}.safetensors"));
        published(&path, &recorded[name][0]);
        published(&folder.path().join("text_encoders/qwen_3_4b.safetensors"), &recorded[name][1]);
        published(&folder.path().join("vae/flux2-vae.safetensors"), &recorded[name][2]);
        let pipeline = Pipeline::open(&path, &Options::default()).expect("a model");
        let traits = pipeline.traits();
        assert_eq!((traits.family, traits.steps), (family, steps), "{name}");
        assert!((traits.guidance - guidance).abs() < f32::EPSILON && traits.side_multiple == 16, "{name}");
    }
}

#[test]
fn hostile_files_for_comfyui_are_refused_by_their_tensors() {
    type Change<'a> = &'a dyn Fn(&mut Tensors);
    fn shape<'t>(all: &'t mut Tensors, name: &str) -> &'t mut Vec<usize> {
        &mut all.get_mut(name).expect("a tensor").1
    }
    let qkv = "double_blocks.0.img_attn.qkv.weight";
    let big = 1 << 40;
    let cases: [(&str, &str, Change<'_>); 9] = [
        ("klein", "transformer_blocks.0.attn.to_q.weight", &|all| drop(all.remove(qkv))),
        ("klein", "img_attn.qkv.weight", &|all| *shape(all, qkv) = vec![32, 96]),
        ("klein", "img_attn.qkv.weight", &|all| {
            let (_, shape, bytes) = all.get_mut(qkv).expect("a tensor");
            *shape = vec![95, 32];
            bytes.truncate(95 * 32 * 2);
        }),
        ("klein", "single_blocks.9.linear3.weight", &|all| {
            drop(all.insert("single_blocks.9.linear3.weight".into(), (Dtype::F32, vec![], vec![0; 4])));
        }),
        ("klein", "attention_head_dim", &|all| {
            let norm = "double_blocks.0.img_attn.norm.query_norm.scale".to_owned();
            drop(all.insert(norm, (Dtype::F32, vec![0, big], Vec::new())));
        }),
        ("klein", "transformer_blocks.0.ff.linear_in.weight", &|all| {
            drop(all.insert("double_blocks.0.img_mlp.2.weight".into(), (Dtype::F32, vec![32, 0], Vec::new())));
        }),
        ("klein", "final_layer.adaLN_modulation.1.weight", &|all| {
            *shape(all, "final_layer.adaLN_modulation.1.weight") = vec![32, 64];
        }),
        ("z_image", "layers.0.attention.to_q.weight", &|all| drop(all.remove("layers.0.attention.qkv.weight"))),
        ("z_image", "axes_dims", &|all| {
            drop(all.insert("layers.0.attention.q_norm.weight".into(), (Dtype::F32, vec![0, big], Vec::new())));
        }),
    ];
    for (name, expected, change) in cases {
        let folder = TempDir::new().expect("a folder");
        let path = write_comfyui(&fixture(""), name, folder.path());
        let mut tensors = part(&fixture(""), name, "transformer");
        change(&mut tensors);
        fixtures::write(&path, &tensors);
        let (Error::Unusable(text) | Error::Model(text)) =
            Pipeline::open(&path, &Options::default()).expect_err("no model")
        else {
            panic!("no message for {expected}")
        };
        assert!(text.contains(expected), "{text:?} lacks {expected:?}");
    }
    // Parts of another model are not taken for its own.
    let folder = TempDir::new().expect("a folder");
    let path = write_comfyui(&fixture(""), "klein", folder.path());
    let words = "model.embed_tokens.weight";
    let mut text = part(&fixture(""), "klein", "text_encoder");
    *shape(&mut text, words) = vec![722, 6];
    fixtures::write(&folder.path().join(FILES[1].1), &text);
    assert!(refusal(&path).contains("no text encoder (Qwen 3 with 12 numbers a token) of this model lies beside it"));
    *shape(&mut text, words) = vec![361, 12];
    fixtures::write(&folder.path().join(FILES[1].1), &text);
    // One whose download has broken off is not called missing.
    fs::write(folder.path().join(FILES[2].1), [255; 7]).expect("a file");
    let error = recognise(&path).expect_err("no model").to_string();
    assert!(error.contains(FILES[2].1) && error.contains("damaged"), "{error}");
    fs::remove_file(folder.path().join(FILES[2].1)).expect("removed");
    assert!(
        refusal(&path).contains("no VAE (with 4 channels) of this model lies beside it: put one, such as flux2-vae")
    );
}
