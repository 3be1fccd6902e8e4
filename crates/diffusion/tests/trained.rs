//! A small trained model: a picture shows what its prompt says. `train.py` trained the model and the LoRA beside this
//! file with the drawings of `drawings.py`. They are test data: they know three shapes and ten colours at 64 pixels.
//! The tokenizer is CLIP's, whose license is in `src/tokenizer/openai_clip`.
//!
//! The thresholds leave room for other seeds; `train.py WORK check` counts how many prompts come out right.

mod sight;

use std::path::{Path, PathBuf};

use tintype_diffusion::runtime::{Device, Runtime};
use tintype_diffusion::{Lora, Options, Order, Pipeline, Settings};
use tintype_engine::{CancellationToken, Picture};

use crate::parity::library::library;
use sight::{Shape, Sight, paint};

const SIDE: usize = 64;
const STEPS: usize = 12;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trained")
}

/// The model on each runtime, with LoRA files.
fn pipelines(loras: &[Lora]) -> impl Iterator<Item = (&'static str, Pipeline)> {
    let onnxruntime = || Runtime::onnxruntime(&library(), Device::Cpu).expect("ONNX Runtime");
    let open = move |runtime| {
        let options = Options { runtime, loras: loras.to_vec(), ..Options::default() };
        Pipeline::open(&folder().join("model"), &options).expect("a model")
    };
    [("rten", Runtime::Rten), ("ONNX Runtime", onnxruntime())]
        .into_iter()
        .map(move |(name, runtime)| (name, open(runtime)))
}

fn order(prompt: &str, seed: u64) -> Order<'_> {
    Order { prompt, width: SIDE, height: SIDE, seed, references: &[], mask: None }
}

fn settings(strength: f64) -> Settings {
    Settings { steps: STEPS, guidance: 4.0, strength, negative: String::new() }
}

fn render(pipeline: &mut Pipeline, order: &Order<'_>, strength: f64) -> Picture {
    pipeline.render(order, &settings(strength), |_| {}, &CancellationToken::new()).expect("a picture")
}

/// What pictures show, made in one batch.
fn see(pipeline: &mut Pipeline, prompts: &[&str]) -> Vec<Sight> {
    let orders: Vec<_> = (1..).zip(prompts).map(|(seed, prompt)| order(prompt, seed)).collect();
    let pictures = pipeline.render_batch(&orders, &settings(1.0), |_| {}, &CancellationToken::new());
    pictures.expect("pictures").iter().map(Sight::of).collect()
}

#[test]
fn a_picture_shows_the_shape_and_the_colours_of_its_prompt() {
    let cases = [
        ("a red circle", "red", Shape::Circle, "white"),
        ("a blue square", "blue", Shape::Square, "white"),
        ("a green triangle on a yellow background", "green", Shape::Triangle, "yellow"),
        ("A SCARLET DISC", "red", Shape::Circle, "white"),
        ("a drawing of a yellow square on a black background", "yellow", Shape::Square, "black"),
        ("lovely black triangle, in oil", "black", Shape::Triangle, "white"),
    ];
    for (name, mut pipeline) in pipelines(&[]) {
        let all = see(&mut pipeline, &cases.map(|(prompt, ..)| prompt));
        for ((prompt, colour, shape, ground), seen) in cases.iter().zip(all) {
            println!("{name}: {prompt}: {seen:?}");
            assert_eq!((seen.colour, seen.middle, seen.ground), (*colour, *colour, *ground), "{name}: {prompt}");
            assert_eq!(seen.shape(), Some(*shape), "{name}: {prompt}: {seen:?}");
        }
    }
}

#[test]
fn words_tell_size_and_place() {
    let (_, mut pipeline) = pipelines(&[]).next().expect("a runtime");
    let prompts =
        ["a small red circle", "a big red circle", "a purple square on the left", "a purple square on the right"];
    let all = see(&mut pipeline, &prompts);
    println!("{all:?}");
    let [small, big, left, right] = &all[..] else { panic!("{all:?}") };
    assert!(small.width() + 10.0 < big.width(), "{small:?} {big:?}");
    assert!(left.centre()[0] + 15.0 < right.centre()[0], "{left:?} {right:?}");
}

#[test]
fn a_lora_draws_outlines() {
    let lora = Lora { path: folder().join("outline.safetensors"), weight: 1.0 };
    let cases = [("a red circle", "red", Shape::Circle), ("a blue square", "blue", Shape::Square)];
    for (name, mut pipeline) in pipelines(std::slice::from_ref(&lora)) {
        let all = see(&mut pipeline, &cases.map(|(prompt, ..)| prompt));
        for ((prompt, colour, shape), seen) in cases.iter().zip(all) {
            println!("{name}: {prompt}: {seen:?}");
            assert_eq!((seen.colour, seen.middle, seen.ground), (*colour, "white", "white"), "{name}: {prompt}");
            assert_eq!(seen.shape_of_outline(), Some(*shape), "{name}: {prompt}: {seen:?}");
        }
    }
}

#[test]
fn a_mask_changes_its_part_into_what_the_prompt_says() {
    let references = [paint("red", Shape::Circle, [32.0, 32.0], 18.0)];
    let right = Picture::from_rgb(2, 1, vec![0, 0, 0, 255, 255, 255]).expect("a mask");
    for (name, mut pipeline) in pipelines(&[]) {
        let order = Order { references: &references, mask: Some(&right), ..order("a blue circle", 7) };
        let picture = render(&mut pipeline, &order, 1.0);
        let [left, right] = [[22, 32], [42, 32]].map(|at| sight::colour_at(&picture, at));
        assert_eq!((left, right), ("red", "blue"), "{name}");
        let apart = sight::difference(&picture, &references[0], 0..SIDE / 2 - 4);
        println!("{name}: the kept half differs by {apart:.1}");
        assert!(apart < 12.0, "{name}: {apart}");
    }
}

#[test]
fn a_reference_gives_the_place_and_the_prompt_the_colour() {
    let place = [47.0, 32.0];
    let references = [paint("red", Shape::Circle, place, 15.0)];
    let apart = |seen: &Sight| seen.centre().iter().zip(place).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    for (name, mut pipeline) in pipelines(&[]) {
        let alone = Sight::of(&render(&mut pipeline, &order("a green circle", 9), 1.0));
        let order = Order { references: &references, ..order("a green circle", 9) };
        let seen = Sight::of(&render(&mut pipeline, &order, 0.6));
        println!("{name}: {seen:?} {:?}, alone {:?}", seen.centre(), alone.centre());
        assert_eq!((seen.colour, seen.ground), ("green", "white"), "{name}: {seen:?}");
        assert!(apart(&seen) < 6.0 && apart(&alone) > 8.0, "{name}: {seen:?} {alone:?}");
    }
}
