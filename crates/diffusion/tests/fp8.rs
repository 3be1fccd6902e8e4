//! Weights in floating-point numbers of 8 bits, as programs publish them: with a scale for each layer, or as they are.

use std::fs;
use std::path::PathBuf;

use safetensors::Dtype;
use tempfile::TempDir;
use tintype_diffusion::weights::Weights;
use tintype_diffusion::weights::float_formats::to_f32;
use tintype_diffusion::{Error, Lora, Options, Pipeline, Precision};

use crate::fixtures::{Tensors, copy, fixture, picture, write};
use crate::parity::comfyui::{FILES, write_comfyui};

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// How a program writes a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// ComfyUI, at first.
    Old,
    /// ComfyUI later, and the makers of FLUX.2.
    New,
    /// Without scales.
    Plain,
}

/// The weights of a part in 8 bits, and the same numbers in 32.
fn rounded(weights: &Weights, dtype: Dtype, form: Form) -> [Tensors; 2] {
    let codes: Vec<u8> = (0..=255).collect();
    let table: Vec<_> = codes.iter().zip(to_f32(&codes, dtype)).filter(|(_, number)| number.is_finite()).collect();
    let (mut small, mut wide) = (Tensors::new(), Tensors::new());
    for name in weights.names() {
        let entry = weights.get(name).expect("a tensor");
        let numbers = entry.floats(weights.bytes(entry));
        let Some(layer) = name.strip_suffix(".weight").filter(|_| entry.shape.len() > 1) else {
            let tensor = (Dtype::F32, entry.shape.clone(), bytes(&numbers));
            small.insert(name.to_owned(), tensor.clone());
            wide.insert(name.to_owned(), tensor);
            continue;
        };
        let most = numbers.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
        let scale = if form == Form::Plain { 1.0 } else { most / 448.0 };
        let nearest = |number: &f32| {
            let apart = |value: f32| (value - number / scale).abs();
            table.iter().min_by(|(_, one), (_, other)| apart(*one).total_cmp(&apart(*other))).expect("a code")
        };
        let found: Vec<_> = numbers.iter().map(nearest).collect();
        let codes = found.iter().map(|(code, _)| **code).collect();
        small.insert(name.to_owned(), (dtype, entry.shape.clone(), codes));
        let same: Vec<_> = found.iter().map(|(_, number)| number * scale).collect();
        wide.insert(name.to_owned(), (Dtype::F32, entry.shape.clone(), bytes(&same)));
        let mut beside = |end: &str, dtype, shape: &[usize], bytes: Vec<u8>| {
            small.insert(format!("{layer}.{end}"), (dtype, shape.to_vec(), bytes));
        };
        match form {
            Form::Old => {
                beside("scale_weight", Dtype::F32, &[1], bytes(&[scale]));
                beside("scale_input", Dtype::F32, &[], bytes(&[1.0]));
            }
            Form::New => {
                beside("weight_scale", Dtype::F32, &[], bytes(&[scale]));
                beside("input_scale", Dtype::F32, &[], bytes(&[0.5]));
                let note = br#"{"format": "float8_e4m3fn"}"#;
                beside("comfy_quant", Dtype::U8, &[note.len()], note.to_vec());
            }
            Form::Plain => {}
        }
    }
    if form == Form::Old {
        small.insert("scaled_fp8".into(), (dtype, vec![0], Vec::new()));
    }
    [small, wide]
}

/// The file of a part of a tiny model, in a copy of it, and its weights.
fn part(name: &str, part: &str) -> (TempDir, PathBuf, Weights) {
    let folder = copy(&fixture(name));
    let stem = if part == "text_encoder" { "model" } else { "diffusion_pytorch_model" };
    let weights = Weights::open_part(&folder.path().join(part), stem).expect("weights");
    let path = folder.path().join(part).join(format!("{stem}.safetensors"));
    // The other weights that lie there would come first.
    for entry in fs::read_dir(folder.path().join(part)).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.to_string_lossy().contains(".safetensors") {
            fs::remove_file(path).expect("a file");
        }
    }
    (folder, path, weights)
}

#[test]
fn a_picture_with_weights_in_8_bits_is_that_of_the_same_numbers_in_32() {
    for (name, of, dtype, form) in [
        ("sd15", "unet", Dtype::F8_E4M3, Form::Old),
        ("sd15", "text_encoder", Dtype::F8_E5M2, Form::Plain),
        ("klein", "transformer", Dtype::F8_E4M3, Form::New),
        ("klein", "text_encoder", Dtype::F8_E4M3, Form::New),
    ] {
        let (folder, path, weights) = part(name, of);
        let cache = TempDir::new().expect("a folder");
        let lora = Lora { path: fixture("lora").join(format!("{name}_kohya.safetensors")), weight: 0.7 };
        let merged = Options { loras: vec![lora], ..Options::default() };
        let cached = Options { precision: Precision::W8A8, cache: Some(cache.path().into()), ..Options::default() };
        let made = rounded(&weights, dtype, form).map(|tensors| {
            write(&path, &tensors);
            [Options::default(), merged.clone(), cached.clone()].map(|options| picture(folder.path(), &options))
        });
        assert!(made[0] == made[1], "{name} {of} {form:?}");
        assert!(made[0][0] != made[0][1], "the LoRA counts");
        assert!(made[0][0] != picture(&fixture(name), &Options::default()), "rounding shows");
    }
}

#[test]
fn files_for_comfyui_may_have_8_bits() {
    for (name, form) in [("klein", Form::New), ("z_image", Form::Old), ("z_image", Form::Plain)] {
        let folder = TempDir::new().expect("a folder");
        let path = write_comfyui(&fixture(""), name, folder.path());
        let text = folder.path().join(FILES[1].1);
        let weights = [&path, &text].map(|path| Weights::open(path).expect("weights"));
        let [transformers, texts] = weights.map(|weights| rounded(&weights, Dtype::F8_E4M3, form));
        let plain = picture(&path, &Options::default());
        let [small, wide] = [0, 1].map(|at| {
            write(&path, &transformers[at]);
            write(&text, &texts[at]);
            picture(&path, &Options::default())
        });
        assert!(small == wide && small != plain, "{name} {form:?}");
    }
}

#[test]
fn other_formats_of_8_bits_are_refused() {
    let (folder, path, weights) = part("sd15", "unet");
    let [usual, _] = rounded(&weights, Dtype::F8_E4M3, Form::New);
    let layer = "mid_block.attentions.0.transformer_blocks.0.attn1.to_v";
    let (name, scale) = (format!("{layer}.weight"), format!("{layer}.weight_scale"));
    type Change<'a> = &'a dyn Fn(&mut Tensors);
    let changes: [(&str, Change<'_>); 8] = [
        ("scales blocks", &|all| drop(all.insert(scale.clone(), (Dtype::F32, vec![2, 1], bytes(&[1.0, 2.0]))))),
        ("not finite", &|all| drop(all.insert(scale.clone(), (Dtype::F32, vec![], bytes(&[f32::NAN]))))),
        ("has the type I8", &|all| all.get_mut(&name).expect("a layer").0 = Dtype::I8),
        ("_2\" belongs to a format that scales blocks", &|all| {
            drop(all.insert(format!("{scale}_2"), (Dtype::F32, vec![], bytes(&[1.0]))));
        }),
        ("_inv\" belongs to a format that scales blocks", &|all| {
            drop(all.insert(format!("{scale}_inv"), (Dtype::F32, vec![1, 1], bytes(&[1.0]))));
        }),
        ("scalar\" belongs to a format that scales blocks", &|all| {
            drop(all.insert(format!("{layer}.weight_scalar"), (Dtype::F32, vec![], bytes(&[1.0]))));
        }),
        ("weight_scale\" is a second scale", &|all| {
            drop(all.insert(format!("{layer}.scale_weight"), (Dtype::F32, vec![], bytes(&[1.0]))));
        }),
        ("has the type BOOL", &|all| drop(all.insert(scale.clone(), (Dtype::BOOL, vec![], vec![1])))),
    ];
    for (expected, change) in changes {
        let mut tensors = usual.clone();
        change(&mut tensors);
        write(&path, &tensors);
        let (Error::Unusable(text) | Error::Model(text)) =
            Pipeline::open(folder.path(), &Options::default()).expect_err("no model")
        else {
            panic!("no message")
        };
        assert!(text.contains(expected) && text.contains(layer), "{text}");
        println!("{text}");
    }
}

#[test]
fn a_base_that_is_not_finite_is_not_blamed_on_a_lora() {
    let (folder, path, weights) = part("sd15", "unet");
    let changed = "mid_block.attentions.0.transformer_blocks.0.attn2.to_v.weight";
    let tensors = weights.names().map(|name| {
        let entry = weights.get(name).expect("a tensor");
        let mut numbers = entry.floats(weights.bytes(entry));
        if name == changed {
            numbers[3] = f32::NAN;
        }
        (name.to_owned(), (Dtype::F32, entry.shape.clone(), bytes(&numbers)))
    });
    write(&path, &tensors.collect());
    let lora = Lora { path: fixture("lora/sd15_dora.safetensors"), weight: 1.0 };
    let options = Options { loras: vec![lora], ..Options::default() };
    let Error::Model(text) = Pipeline::open(folder.path(), &options).expect_err("no model") else {
        panic!("no message")
    };
    assert!(text.contains(changed) && text.contains("not finite"), "{text}");
}

#[test]
fn floats_of_64_bits_are_read() {
    let (folder, path, weights) = part("sd15", "unet");
    let plain = picture(&fixture("sd15"), &Options::default());
    let tensors = weights.names().map(|name| {
        let entry = weights.get(name).expect("a tensor");
        let numbers = entry.floats(weights.bytes(entry)).into_iter().map(f64::from);
        let bytes = numbers.flat_map(f64::to_le_bytes).collect();
        (name.to_owned(), (Dtype::F64, entry.shape.clone(), bytes))
    });
    write(&path, &tensors.collect());
    assert!(picture(folder.path(), &Options::default()) == plain);
}
