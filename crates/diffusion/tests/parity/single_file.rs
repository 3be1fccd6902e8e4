//! Stable Diffusion 1, 2 and XL in one file, with nothing beside it.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tintype_diffusion::pipelines::{masks, recognise, references};
use tintype_diffusion::quantise::{Bits, Rules, WeightPreparation, verify};
use tintype_diffusion::{Error, Options, Pipeline, Precision, Traits, compare};
use tintype_engine::CancellationToken;

use crate::parity::rig::{self, Model, count, folder, json, pipelines_of};
use crate::parity::whole_file::write_whole_file;

/// The configuration of a scheduler beside a file.
const SCHEDULER: &str = "scheduler/scheduler_config.json";

/// Writes the beginning of a file: all but the numbers.
fn begin(file: &mut impl Write, header: Map<String, Value>) {
    let header = Value::Object(header).to_string();
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(header.as_bytes()).expect("written");
}

/// A model in one file.
struct Single {
    _folder: TempDir,
    path: PathBuf,
    model: Model,
}

impl Single {
    fn new(name: &'static str) -> Self {
        let expected = json(&format!("single/{name}.json"));
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("model.safetensors");
        write_whole_file(&rig::folder(), name, &path);
        Self { _folder: folder, path, model: Model { name, expected } }
    }
}

#[test]
fn a_single_file_gives_the_picture_of_diffusers() {
    for name in ["sd1", "sd2", "sdxl"] {
        let Single { path, model, _folder } = &Single::new(name);
        model.assert_run("", pipelines_of(path), &model.order(), &model.settings());
    }
}

#[test]
fn a_single_file_says_how_it_is_used() {
    let (usual, xl) = ("StableDiffusionPipeline", "StableDiffusionXLPipeline");
    for (name, class, side, pictures, steps) in
        [("sd1", usual, 64, 1, 25), ("sd2", usual, 96, 1, 25), ("sdxl", xl, 128, 1, 30)]
    {
        let Single { path, model, _folder } = &Single::new(name);
        assert_eq!(recognise(path).expect("a model").class, class);
        assert_eq!((references(path), masks(path)), (pictures, pictures > 0), "{name}");
        let pipeline = Pipeline::open(path, &Options::default()).expect("a model");
        let traits = pipeline.traits();
        assert_eq!((traits.references, traits.steps, traits.negative), (pictures, steps, true), "{name}");
        assert_eq!(traits.trained_pixels, (side * traits.side_multiple).pow(2), "{name}");
        assert!(count(&model.expected["steps"]) < steps, "the recorded run is a short one");
    }
}

/// The same file with another header, whose tensors lie where they lay. The header and the bytes after it can be changed.
fn rewritten(path: &Path, change: impl FnOnce(&mut Map<String, Value>, &mut Vec<u8>)) -> Vec<u8> {
    let own = std::fs::read(path).expect("a file");
    let length = u64::from_le_bytes(own[..8].try_into().expect("eight bytes"));
    let (header, data) = own[8..].split_at(usize::try_from(length).expect("a small header"));
    let (mut header, mut data) = (serde_json::from_slice(header).expect("a header"), data.to_vec());
    change(&mut header, &mut data);
    let mut file = Vec::new();
    begin(&mut file, header);
    file.extend(data);
    file
}

/// Writes a file as large as a published one that takes no disk. The UNet takes so many channels.
fn published(name: &str, path: &Path, inputs: usize) {
    published_as(name, path, inputs, |name| Some(name.to_owned()));
}

/// Such a file with other names of tensors, and without those for which there is none.
fn published_as(name: &str, path: &Path, inputs: usize, rename: impl Fn(&str) -> Option<String>) {
    let recorded = File::open(folder().join("single/published.json.gz")).expect("a fixture");
    let recorded: Value = serde_json::from_reader(GzDecoder::new(recorded)).expect("JSON");
    let (mut header, mut length) = (Map::new(), 0);
    for (name, mut shape) in recorded[name].as_object().expect("tensors").clone() {
        if name == "model.diffusion_model.input_blocks.0.0.weight" {
            shape[1] = json!(inputs);
        }
        let Some(name) = rename(&name) else { continue };
        let begin = length;
        length += shape.as_array().expect("sizes").iter().map(count).product::<usize>() * 2;
        header.insert(name, json!({"dtype": "F16", "shape": shape, "data_offsets": [begin, length]}));
    }
    let mut file = File::create(path).expect("a file");
    begin(&mut file, header);
    let begin = file.stream_position().expect("a position");
    file.set_len(begin + length as u64).expect("a long file");
}

fn traits(path: &Path) -> Traits {
    Pipeline::open(path, &Options::default()).expect("a model").traits().clone()
}

#[test]
fn published_files_are_read_by_their_names_and_sizes() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    for (name, family, side) in
        [("sd1", "Stable Diffusion", 512), ("sd2", "Stable Diffusion", 768), ("sdxl", "Stable Diffusion XL", 1024)]
    {
        published(name, &path, 4);
        let traits = traits(&path);
        assert_eq!((traits.family, traits.trained_pixels), (family, side * side), "{name}");
    }
}

#[test]
fn a_file_for_inpainting_is_known_by_its_channels() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    for (name, class) in [
        ("sd1", "StableDiffusionInpaintPipeline"),
        ("sd2", "StableDiffusionInpaintPipeline"),
        ("sdxl", "StableDiffusionXLInpaintPipeline"),
    ] {
        published(name, &path, 9);
        assert_eq!((recognise(&path).expect("a model").class, masks(&path), references(&path)), (class, true, 1));
        let traits = traits(&path);
        // That of Stable Diffusion 2 was only published for 512 pixels, where it predicts noise.
        let side = if name == "sdxl" { 1024 } else { 512 };
        assert_eq!((traits.masks, traits.trained_pixels), (true, side * side), "{name}");
    }
}

#[test]
fn the_names_of_later_programs_do_not_make_stable_diffusion_2_a_refiner() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let later = |name: &str| Some(name.replace("cond_stage_model.model.", "conditioner.embedders.0.model."));
    published_as("sd2", &path, 4, later);
    assert_eq!(recognise(&path).expect("a model").class, "StableDiffusionPipeline");
    let traits = traits(&path);
    assert_eq!((traits.family, traits.trained_pixels), ("Stable Diffusion", 768 * 768));
}

#[test]
fn a_file_without_a_vae_takes_another_one() {
    let expected = Single::new("sd1");
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    // The tensors stay in the file, under names that nothing reads.
    let file = rewritten(&expected.path, |header, _| {
        let names = std::mem::take(header).into_iter();
        header.extend(names.map(|(name, entry)| (name.replace("first_stage_model.", "other."), entry)));
    });
    std::fs::write(&path, file).expect("a file");
    assert!(matches!(Pipeline::open(&path, &Options::default()), Err(Error::Unusable(_))));
    let options = Options { vae: Some(expected.path.clone()), ..Options::default() };
    let mut pipelines = [&path, &expected.path].map(|path| Pipeline::open(path, &options).expect("a model"));
    let [one, other] = pipelines.each_mut().map(|pipeline| {
        let (order, settings) = (expected.model.order(), expected.model.settings());
        pipeline.render(&order, &settings, |_| {}, &CancellationToken::new()).expect("a picture")
    });
    assert_eq!(one, other);
}

#[test]
fn of_two_names_for_one_weight_the_longer_one_counts() {
    let expected = Single::new("sd1");
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let file = rewritten(&expected.path, |header, data| {
        let mut copies = Map::new();
        for (name, entry) in &*header {
            let Some(rest) = name.strip_prefix("cond_stage_model.transformer.text_model.encoder.") else { continue };
            let bytes = count(&entry["data_offsets"][1]) - count(&entry["data_offsets"][0]);
            let (begin, mut entry) = (data.len(), entry.clone());
            data.resize(begin + bytes, 0);
            entry["data_offsets"] = json!([begin, data.len()]);
            copies.insert(format!("cond_stage_model.transformer.encoder.{rest}"), entry);
        }
        assert!(!copies.is_empty());
        header.extend(copies);
    });
    std::fs::write(&path, file).expect("a file");
    let Single { model, .. } = &expected;
    model.assert_run("", pipelines_of(&path), &model.order(), &model.settings());
}

#[test]
fn what_a_file_cannot_tell_may_lie_beside_it() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let beside = |name: &str, config: Value| {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, config.to_string()).expect("a file");
    };
    published("sdxl", &path, 4);
    let scheduler = json!({"_class_name": "LCMScheduler", "beta_schedule": "scaled_linear", "beta_start": 0.00085,
        "beta_end": 0.012, "num_train_timesteps": 1000});
    assert_eq!(traits(&path).steps, 30);
    beside(SCHEDULER, scheduler);
    assert_eq!((traits(&path).family, traits(&path).steps), ("Stable Diffusion XL with LCM", 4));
    beside(SCHEDULER, json!({"_class_name": "UnknownScheduler"}));
    assert!(matches!(Pipeline::open(&path, &Options::default()), Err(Error::Scheduler(_))));
    std::fs::remove_file(folder.path().join(SCHEDULER)).expect("a file");
    // The configuration of a VAE that lies there with its weights is that of these, and not of the file.
    beside("vae/config.json", json!({"_class_name": "AutoencoderDC"}));
    assert!(matches!(Pipeline::open(&path, &Options::default()), Err(Error::Model(_))));
    let weights = folder.path().join("vae/diffusion_pytorch_model.safetensors");
    std::fs::write(weights, "weights").expect("a file");
    assert_eq!(traits(&path).steps, 30);
    std::fs::write(folder.path().join("model_index.json"), "{}").expect("a file");
    assert!(matches!(Pipeline::open(&path, &Options::default()), Err(Error::Model(_))));
}

#[test]
fn a_single_file_is_made_smaller_in_a_folder_of_its_own() {
    let Single { path, model, _folder } = &Single::new("sdxl");
    let cache = TempDir::new().expect("a folder");
    let options = Options { precision: Precision::W8A8, cache: Some(cache.path().into()), ..Options::default() };
    let rules = Rules { bits: Bits::of_this_machine(), smallest: 1 };
    let suit = WeightPreparation { options: &options, rules, progress: &mut |_| {} };
    let never = CancellationToken::new();
    let found = compare(path, suit, &model.order(), &model.settings(), &never).expect("a difference");
    assert!(found.prompt > 0.0 && found.prompt < 0.1 && found.answer < 0.15, "{found:?}");
    let made = verify(cache.path()).expect("whole files").len();
    assert_eq!((made, _folder.path().read_dir().expect("a folder").count()), (3, 1));
}

#[test]
fn notes_of_several_programs_say_what_a_model_predicts() {
    let expected = Single::new("sd2");
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("model.safetensors");
    for (notes, side) in [
        (json!({}), 96),
        (json!({"modelspec.predict_key": "epsilon"}), 64),
        (json!({"modelspec.predict_key": "v"}), 96),
        (json!({"modelspec.prediction_type": "epsilon"}), 64),
    ] {
        let file = rewritten(&expected.path, |header, _| drop(header.insert("__metadata__".into(), notes.clone())));
        std::fs::write(&path, file).expect("a file");
        let traits = traits(&path);
        assert_eq!(traits.trained_pixels, (side * traits.side_multiple).pow(2), "{notes}");
    }
}
