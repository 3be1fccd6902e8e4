//! Compares tiny models with what `diffusers` makes of them. `make.py` wrote both.

pub mod comfyui;
pub mod compared;
mod families;
mod flux2_klein;
mod generated;
pub mod library;
mod lora;
mod masks;
mod other_vae;
pub mod rig;
mod single_file;
mod stable_diffusion;
mod textual_inversion;
mod weighted;
pub mod whole_file;
mod z_image;

use std::fs;

use safetensors::Dtype;
use tempfile::TempDir;
use tintype_diffusion::config::Config;
use tintype_diffusion::noise::Noise;
use tintype_diffusion::schedulers::scheduler;
use tintype_diffusion::tokenizer::Clip;
use tintype_diffusion::weights::float_formats;

use rig::{TOLERANCE, assert_close, count, error, floats, json};

#[test]
fn noise_is_that_of_pytorch() {
    for case in json("noise.json").as_array().expect("a list") {
        let seed = case["seed"].as_u64().expect("a seed");
        assert_close(&format!("seed {seed}"), &Noise::new(seed).normal(count(&case["length"])), case);
    }
    assert_ne!(Noise::new(1).normal(16), Noise::new(1 + (1 << 32)).normal(16), "the upper half of a seed counts");
}

#[test]
fn floats_of_8_bits_are_those_of_pytorch() {
    let codes: Vec<u8> = (0..=255).collect();
    for (name, dtype) in [("F8_E4M3", Dtype::F8_E4M3), ("F8_E5M2", Dtype::F8_E5M2)] {
        let found = float_formats::to_f32(&codes, dtype);
        let found: Vec<_> = found.iter().map(|x| (!x.is_nan()).then(|| x.to_bits().cast_signed())).collect();
        assert_eq!(serde_json::json!(found), json("float8.json")[name], "{name}");
    }
}

#[test]
fn schedulers_take_the_same_steps() {
    let mut seen = 0;
    for case in json("schedulers.json").as_array().expect("a list") {
        let fields = case["config"].as_object().expect("an object").clone();
        let name = format!("{} in {} steps", case["config"], case["steps"]);
        let mut scheduler = scheduler(&Config::of("case", fields), count(&case["steps"]), 1.0).expect("a scheduler");
        let times: Vec<f64> = scheduler.trajectory().times().iter().copied().map(f64::from).collect();
        let expected = floats(&case["times"]);
        assert_eq!(times.len(), expected.len(), "{name}");
        assert!(times.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3), "{name}: {times:?}, not {expected:?}");
        let (mut noise, scale) = (Noise::new(5), scheduler.trajectory().initial_scale());
        let mut sample: Vec<f32> = noise.normal(24).into_iter().map(|x| x * scale).collect();
        for (step, after) in case["after"].as_array().expect("a list").iter().enumerate() {
            let time = times[step];
            let shown = scheduler.trajectory().scale(step, &sample);
            let model = |(at, x): (usize, &f32)| f64::from(x.tanh()) * 0.7 + 0.1 * (time / 100.0 + at as f64).sin();
            let answer: Vec<f32> = shown.iter().enumerate().map(|shown| model(shown) as f32).collect();
            // Previews show it.
            if let Some(picture) = case["pictures"].get(step) {
                seen += 1;
                let found: Vec<f64> =
                    scheduler.trajectory().picture(step, &answer, &sample).iter().copied().map(f64::from).collect();
                let worst = error(&found, &floats(picture));
                assert!(worst < TOLERANCE, "{name}: {worst:e} in the picture of step {step}");
            }
            scheduler.step(step, &answer, &mut sample, &mut noise);
            let found: Vec<f64> = sample.iter().copied().map(f64::from).collect();
            let worst = error(&found, &floats(after));
            assert!(worst < TOLERANCE, "{name}: {worst:e} at step {step}: {found:?}, not {after}");
        }
    }
    assert!(seen > 30, "diffusers tells the pictures of DDIM and of both of Euler: {seen}");
}

#[test]
fn published_tokenizers_of_clip_give_the_same_tokens() {
    let recorded = json("clip_tokenizers.json");
    for case in recorded["cases"].as_array().expect("a list") {
        let folder = TempDir::new().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
        for (name, text) in recorded["pieces"].as_object().expect("files") {
            write(name, text.as_str().expect("a text"));
        }
        for (name, content) in case["files"].as_object().expect("files") {
            write(name, &content.to_string());
        }
        let tokenizer = Clip::read(folder.path(), 77).expect("a tokenizer");
        let prompts = recorded["prompts"].as_array().expect("a list");
        for (prompt, ids) in prompts.iter().zip(case["ids"].as_array().expect("a list")) {
            let found = tokenizer.encode(prompt.as_str().expect("a text"));
            assert_eq!(serde_json::json!(found), *ids, "{prompt} with {}", case["files"]);
        }
    }
}

#[test]
fn the_vocabulary_in_the_program_is_that_of_clip() {
    for case in json("clip_vocabulary.json").as_array().expect("a list") {
        let words = Clip::built_in(case["padding"].as_str().expect("a word"), 77).expect("a tokenizer");
        for prompt in case["prompts"].as_array().expect("a list") {
            let text = prompt["prompt"].as_str().expect("a text");
            assert_eq!(serde_json::json!(words.encode(text)), prompt["ids"], "{text:?} with {}", case["padding"]);
        }
    }
}
