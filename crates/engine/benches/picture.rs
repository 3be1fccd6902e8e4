//! Ratios of time and size: PNG encoders, and scaling to the exact size, on pictures like those of an engine.
//!
//! `cargo bench --manifest-path crates/engine/Cargo.toml`

use std::hint::black_box;
use std::time::{Duration, Instant};

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{DynamicImage, ExtendedColorType, ImageEncoder as _, RgbImage, imageops};
use tintype_engine::Picture;

/// Runs of each candidate; the fastest counts.
const RUNS: usize = 7;
const WIDTH: u32 = 1_024;
const HEIGHT: u32 = 1_024;

/// A picture with smooth light, edges and the grain of a photograph: `grain` levels of noise.
fn photograph(grain: u32) -> RgbImage {
    let mut state = 1_u64;
    let mut noise = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(grain + 1)) as f64 - f64::from(grain) / 2.0
    };
    RgbImage::from_fn(WIDTH, HEIGHT, |x, y| {
        let (x, y) = (f64::from(x) / f64::from(WIDTH), f64::from(y) / f64::from(HEIGHT));
        let light = (x * 7.0).sin() * (y * 5.0).cos() * 60.0 + 128.0;
        let edge = if (x - 0.5).hypot(y - 0.4) < 0.22 { 50.0 } else { 0.0 };
        let grain = noise();
        image::Rgb(
            [light + edge + grain, light * 0.8 + grain, 200.0 - light * 0.5 + edge + grain].map(|level| level as u8),
        )
    })
}

/// The least time of several runs, and the size of the result in bytes.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn measure(work: impl Fn() -> usize) -> (Duration, usize) {
    let run = || {
        let begun = Instant::now();
        let size = black_box(work());
        (begun.elapsed(), size)
    };
    (0..RUNS).map(|_| run()).min().expect("several runs")
}

fn encode(picture: &RgbImage, compression: CompressionType, filter: FilterType) -> usize {
    let mut png = Vec::with_capacity(picture.as_raw().len() / 2);
    PngEncoder::new_with_quality(&mut png, compression, filter)
        .write_image(picture.as_raw(), picture.width(), picture.height(), ExtendedColorType::Rgb8)
        .expect("memory takes a PNG");
    png.len()
}

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        eprintln!("this run measures nothing; use `cargo bench`");
        return;
    }
    for (name, picture) in [("smooth", photograph(0)), ("fine grain", photograph(6)), ("coarse grain", photograph(30))]
    {
        let fast = CompressionType::Fast;
        let before = measure(|| encode(&picture, fast, FilterType::Adaptive));
        for (candidate, compression, filter) in [
            ("fast, adaptive", fast, FilterType::Adaptive),
            ("fast, up", fast, FilterType::Up),
            ("fast, sub", fast, FilterType::Sub),
            ("fast, paeth", fast, FilterType::Paeth),
            ("default, adaptive", CompressionType::Default, FilterType::Adaptive),
        ] {
            let (time, size) = measure(|| encode(&picture, compression, filter));
            let (times, sizes) = (time.as_secs_f64() / before.0.as_secs_f64(), size as f64 / before.1 as f64);
            println!(
                "{name:<13} PNG {candidate:<18} {:>7.1} ms  time x{times:.2}  size x{sizes:.2}",
                time.as_secs_f64() * 1e3
            );
        }
        let rgb = || Picture::from_rgb(WIDTH, HEIGHT, picture.as_raw().clone()).expect("a picture");
        let dynamic = || DynamicImage::ImageRgb8(picture.clone());
        let (before, _) =
            measure(|| dynamic().resize_to_fill(1_280, 720, imageops::FilterType::Lanczos3).into_rgb8().len());
        let (after, _) = measure(|| rgb().fit(1_280, 720).as_rgb().len());
        let times = after.as_secs_f64() / before.as_secs_f64();
        println!("{name:<13} fit {:>25.1} ms  time x{times:.2} of the image crate", after.as_secs_f64() * 1e3);
    }
}
