//! Models with another VAE than their own.

use std::path::PathBuf;

use tempfile::TempDir;
use tintype_diffusion::{Options, Pipeline, Settings};

use crate::parity::rig::{Model, folder, json, picture, runtimes};

#[test]
fn pictures_with_another_vae_are_those_of_diffusers() {
    let alone = TempDir::new().expect("a folder");
    for case in json("other_vae/expected.json").as_array().expect("a list") {
        let name = case["model"].as_str().expect("a name");
        let file = case["vae"].as_str().expect("a path");
        let mut vae = folder().join("other_vae").join(file);
        // Without the configuration beside it.
        if file.contains('/') {
            let copy: PathBuf = alone.path().join(file.replace('/', "-"));
            std::fs::copy(&vae, &copy).expect("a copy");
            vae = copy;
        }
        println!("{name} with {file}");
        let model = Model { name: "other_vae", expected: case.clone() };
        for runtime in runtimes() {
            let options = Options { runtime, vae: Some(vae.clone()), ..Options::default() };
            let mut pipeline = Pipeline::open(&folder().join(name), &options).expect("a model");
            let (width, height) = model.size();
            let shape = pipeline.latent_shape(width, height).expect("a size");
            let encoded = pipeline.look(&picture(width, height), shape).expect("a latent picture");
            model.assert_close("means", &encoded.numbers[..shape.iter().product()]);
            let settings = Settings { strength: 1.0, ..model.settings() };
            model.assert_last(&mut pipeline, &model.order(), &settings);
        }
    }
}
