//! Masked editing: parts of pictures are redrawn, the rest is kept.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use half::f16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};
use serde_json::{Value, json};
use tempfile::TempDir;
use tintype_diffusion::noise::Noise;
use tintype_diffusion::pipelines::{masks, references};
use tintype_diffusion::quantise::{Bits, Rules, WeightPreparation};
use tintype_diffusion::{Error, Options, Order, Pipeline, Precision, Settings, compare};
use tintype_engine::{CancellationToken, Picture};

use crate::fixtures::copy;
use crate::parity::rig::{Model, folder, json, picture, pipelines_of};

/// A mask by the formula of `shared.py`.
fn mask(width: usize, height: usize) -> Picture {
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| [((x * 53 + y * 31) % 256) as u8; 3]));
    Picture::from_rgb(width as u32, height as u32, pixels.flatten().collect()).expect("a picture")
}

/// A picture of one shade of grey.
fn plain(width: u32, height: u32, shade: u8) -> Picture {
    Picture::from_rgb(width, height, vec![shade; (width * height * 3) as usize]).expect("a picture")
}

fn set(path: &Path, key: &str, value: Value) {
    let text = fs::read_to_string(path).expect("a file");
    let mut fields: Value = serde_json::from_str(&text).expect("JSON");
    fields[key] = value;
    fs::write(path, fields.to_string()).expect("written");
}

/// Lets the UNet of a model see a mask and a picture: its first layer gets the noise of a seed, as in `masks.py`.
fn let_see(model: &Path) {
    let class = model.join("model_index.json");
    let xl = fs::read_to_string(&class).expect("a file").contains("StableDiffusionXL");
    let name = if xl { "StableDiffusionXLInpaintPipeline" } else { "StableDiffusionInpaintPipeline" };
    set(&class, "_class_name", json!(name));
    set(&model.join("unet/config.json"), "in_channels", json!(9));
    let path = model.join("unet/diffusion_pytorch_model.safetensors");
    let file = fs::read(&path).expect("weights");
    let tensors = SafeTensors::deserialize(&file).expect("weights");
    let mut all: HashMap<_, _> = tensors.tensors().into_iter().collect();
    let channels = all["conv_in.weight"].shape()[0];
    let noise = Noise::new(9).normal(channels * 9 * 3 * 3);
    let bytes: Vec<u8> = noise.iter().flat_map(|x| f16::from_f32(x * 0.125).to_le_bytes()).collect();
    let first = TensorView::new(Dtype::F16, vec![channels, 9, 3, 3], &bytes).expect("a tensor");
    all.insert("conv_in.weight".into(), first);
    fs::write(&path, serialize(&all, None).expect("weights")).expect("written");
}

fn open(folder: &TempDir) -> Pipeline {
    Pipeline::open(folder.path(), &Options::default()).expect("a model")
}

#[test]
fn every_step_and_the_picture_are_the_same() {
    for run in json("masks.json").as_array().expect("a list") {
        let name = run["model"].as_str().expect("a name");
        let folder = copy(&folder().join(name));
        let scheduler = folder.path().join("scheduler/scheduler_config.json");
        fs::write(scheduler, run["scheduler"].to_string()).expect("written");
        if run["sees_masks"] == true {
            let_see(folder.path());
        }
        println!("{name}: {} at {} in {}", run["order"], run["strength"], run["scheduler"]["_class_name"]);
        let model = Model { name: "masks", expected: run.clone() };
        let (width, height) = model.size();
        let (references, mask) = ([picture(width, height)], mask(width, height));
        let order = match run["order"].as_str() {
            Some("masked") => Order { references: &references, mask: Some(&mask), ..model.order() },
            Some("reference") => Order { references: &references, ..model.order() },
            _ => model.order(),
        };
        let settings = Settings { strength: run["strength"].as_f64().expect("a number"), ..model.settings() };
        // A mask that the graph does not see is the same to every runtime.
        let runtimes = if run["sees_masks"] == true { usize::MAX } else { 1 };
        model.assert_run("", pipelines_of(folder.path()).take(runtimes), &order, &settings);
    }
}

#[test]
fn a_model_says_whether_it_takes_masks() {
    for (name, takes) in
        [("sd15", true), ("lcm", true), ("turbo", true), ("sdxl", true), ("klein", false), ("z_image", false)]
    {
        let path = folder().join(name);
        assert_eq!((masks(&path), Model::new(name).pipeline().traits().masks), (takes, takes), "{name}");
    }
    for name in ["sd15", "sdxl"] {
        let folder = copy(&folder().join(name));
        let_see(folder.path());
        assert_eq!((masks(folder.path()), references(folder.path())), (true, 1), "{name}");
        let traits = open(&folder).traits().clone();
        assert_eq!(
            (traits.masks, traits.references, traits.strength),
            (true, 1, if name == "sdxl" { 0.5 } else { 0.8 })
        );
    }
    assert!(!masks(Path::new("/missing")));
}

#[test]
fn masks_that_do_not_suit_are_refused() {
    let (picture, mask) = (plain(64, 64, 90), plain(64, 64, 255));
    let pictures = [picture.clone(), picture];
    for (name, references, word) in [
        ("sd15", 0, "exactly 1 reference picture, not 0"),
        ("sd15", 2, "exactly 1 reference picture, not 2"),
        ("sdxl", 0, "exactly 1 reference picture, not 0"),
        ("klein", 1, "takes no masks"),
        ("z_image", 1, "takes no masks"),
    ] {
        let mut pipeline = Model::new(name).pipeline();
        let references = &pictures[..references];
        let order = Order { prompt: "a fox", width: 64, height: 64, seed: 1, references, mask: Some(&mask) };
        let settings = pipeline.traits().settings();
        let result = pipeline.render(&order, &settings, |_| {}, &CancellationToken::new());
        assert!(matches!(&result, Err(Error::Order(text)) if text.contains(word)), "{name}: {result:?}");
        let shape = pipeline.latent_shape(64, 64).expect("a shape");
        assert!(matches!(pipeline.look_at_mask(&order, shape), Err(Error::Order(_))), "{name}");
    }
    let mut pipeline = Model::new("sd15").pipeline();
    let references = &pictures[..1];
    let order = Order { prompt: "a fox", width: 64, height: 64, seed: 1, references, mask: Some(&mask) };
    let settings = pipeline.traits().settings();
    let result = pipeline.render_batch(&[order, order], &settings, |_| {}, &CancellationToken::new());
    assert!(matches!(&result, Err(Error::Order(text)) if text.contains("without references")), "{result:?}");
}

#[test]
fn a_mask_of_another_size_is_fitted_like_the_reference() {
    let mut pipeline = Model::new("lcm").pipeline();
    let references = [picture(64, 64)];
    let mut render = |mask: &Picture| {
        let order =
            Order { prompt: "a fox", width: 64, height: 64, seed: 1, references: &references, mask: Some(mask) };
        let settings = Settings { strength: 1.0, ..pipeline.traits().settings() };
        pipeline.render(&order, &settings, |_| {}, &CancellationToken::new()).expect("a picture")
    };
    let (all, nothing) = (render(&plain(64, 64, 255)), render(&plain(64, 64, 0)));
    assert_ne!(all, nothing);
    assert_eq!((render(&plain(3, 200, 128)), render(&plain(200, 3, 127))), (all, nothing));
}

#[test]
fn a_model_that_sees_masks_makes_a_picture_of_words_also_in_a_batch() {
    let folder = copy(&folder().join("sd15"));
    let_see(folder.path());
    let (mut pipeline, never) = (open(&folder), CancellationToken::new());
    let settings = Settings { steps: 2, ..pipeline.traits().settings() };
    let order = |seed| Order { prompt: "a fox", width: 64, height: 48, seed, references: &[], mask: None };
    let batch = pipeline.render_batch(&[order(1), order(2)], &settings, |_| {}, &never).expect("pictures");
    for (seed, picture) in (1..).zip(&batch) {
        let alone = pipeline.render(&order(seed), &settings, |_| {}, &never).expect("a picture");
        let apart = picture.as_rgb().iter().zip(alone.as_rgb()).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(apart <= Some(1), "{apart:?}");
    }
    assert_ne!(batch[0], batch[1]);
    // A reference without a mask is redrawn, too.
    let references = [picture(64, 48)];
    let order = Order { references: &references, ..order(1) };
    pipeline.render(&order, &Settings { strength: 0.5, ..settings }, |_| {}, &never).expect("a picture");
}

#[test]
fn a_model_that_sees_masks_can_be_made_smaller() {
    let (folder, cache) = (copy(&folder().join("sd15")), TempDir::new().expect("a folder"));
    let_see(folder.path());
    let options = Options { precision: Precision::W8A8, cache: Some(cache.path().into()), ..Options::default() };
    let (references, mask) = ([picture(64, 64)], mask(64, 64));
    let order = Order { prompt: "a fox", width: 64, height: 64, seed: 1, references: &[], mask: None };
    for order in [order, Order { references: &references, mask: Some(&mask), ..order }] {
        let rules = Rules { bits: Bits::of_this_machine(), smallest: 1 };
        let suit = WeightPreparation { options: &options, rules, progress: &mut |_| {} };
        let settings = Model::new("sd15").settings();
        let found = compare(folder.path(), suit, &order, &settings, &CancellationToken::new()).expect("a difference");
        assert!(found.answer > 0.0 && found.answer < 0.15, "{found:?}");
    }
}

#[test]
fn a_model_that_sees_masks_needs_its_encoder() {
    let folder = copy(&folder().join("sd15"));
    let_see(folder.path());
    let path = folder.path().join("vae/diffusion_pytorch_model.safetensors");
    let file = fs::read(&path).expect("weights");
    let tensors = SafeTensors::deserialize(&file).expect("weights").tensors();
    let decoder: HashMap<_, _> = tensors.into_iter().filter(|(name, _)| !name.starts_with("encoder.")).collect();
    fs::write(&path, serialize(&decoder, None).expect("weights")).expect("written");
    let result = Pipeline::open(folder.path(), &Options::default());
    assert!(matches!(&result, Err(Error::Model(text)) if text.contains("needs the encoder")), "{result:?}");
    assert!(!masks(folder.path()));
}
