//! Renders one picture with a model, to try it and to measure:
//! `cargo run --release -p tintype-diffusion --example render -- FOLDER PROMPT PICTURE.png [WIDTHxHEIGHT [STEPS [GUIDANCE]]]`

#![expect(clippy::disallowed_methods, reason = "an example has no clock that tests move")]

use std::path::Path;
use std::time::Instant;

use tintype_diffusion::{Options, Order, Pipeline, Step};
use tintype_engine::CancellationToken;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, prompt, picture, rest @ ..] = arguments.as_slice() else {
        return Err("give a folder, a prompt, and the name of a PNG".into());
    };
    let (width, height) = rest.first().map_or("512x512", String::as_str).split_once('x').ok_or("512x512 is a size")?;
    let start = Instant::now();
    let mut pipeline = Pipeline::open(Path::new(folder), &Options::default())?;
    println!("opened and compared all weights: {:.2?}; {:?}", start.elapsed(), pipeline.traits());
    let mut settings = pipeline.traits().settings();
    if let Some(steps) = rest.get(1) {
        settings.steps = steps.parse()?;
    }
    if let Some(guidance) = rest.get(2) {
        settings.guidance = guidance.parse()?;
    }
    let order = Order { prompt, width: width.parse()?, height: height.parse()?, seed: 1, references: &[], mask: None };
    let mut last = Instant::now();
    let progress = |step: &Step<'_>| {
        println!("step {} of {}: {:.2?}", step.done, step.of, last.elapsed());
        last = Instant::now();
    };
    let result = pipeline.render(&order, &settings, progress, &CancellationToken::new())?;
    println!("decoded: {:.2?}; all: {:.2?}", last.elapsed(), start.elapsed());
    std::fs::write(picture, result.to_png())?;
    Ok(())
}
