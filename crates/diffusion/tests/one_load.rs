//! Parts that stay loaded: one session of each serves all sizes, references and batches, with the pictures that graphs for
//! one size make.

use tintype_diffusion::pipelines::{Guide, Residency};
use tintype_diffusion::runtime::plan::RESERVE;
use tintype_diffusion::runtime::{Device, Loads, Runtime};
use tintype_diffusion::{Error, Options, Order, Pipeline, Precision, Settings};
use tintype_engine::{CancellationToken, Picture};

use crate::fixtures::fixture;
use crate::parity::library::library;

/// Thirteen sizes of about one area, as the ratios of the interface give them.
const SIZES: [(usize, usize); 13] = [
    (80, 80),
    (64, 80),
    (80, 64),
    (64, 96),
    (96, 64),
    (80, 96),
    (96, 80),
    (64, 112),
    (112, 64),
    (64, 128),
    (128, 64),
    (80, 112),
    (112, 80),
];

/// The tiny models, each with the number of parts that a picture with a reference needs, if it takes one.
const MODELS: [(&str, usize); 5] = [("klein", 4), ("z_image", 3), ("sd15", 4), ("sdxl", 5), ("sdxs", 4)];

/// The device of the parts that stay: the processor, or a GPU with `TEST_DEVICE=cuda` and the library for it in place.
#[expect(clippy::disallowed_methods, reason = "where the tests run is no setting")]
fn device() -> Device {
    if std::env::var("TEST_DEVICE").is_ok_and(|device| device == "cuda") { Device::Cuda } else { Device::Cpu }
}

/// How far a colour may be from that of a graph for one size on the processor.
fn most_apart() -> u8 {
    if device() == Device::Cpu { 1 } else { 8 }
}

fn pipeline(name: &str, residency: Residency, precision: Precision) -> Pipeline {
    let device = if residency == Residency::Kept { device() } else { Device::Cpu };
    let runtime = Runtime::onnxruntime(&library(), device).expect("ONNX Runtime");
    let options = Options { runtime, residency, precision, ..Options::default() };
    Pipeline::open(&fixture(name), &options).expect("a model")
}

/// A picture of stripes.
fn reference(width: u32, height: u32) -> Picture {
    let bytes = (0..width * height * 3).map(|at| (at * 7 % 251) as u8).collect();
    Picture::from_rgb(width, height, bytes).expect("a picture")
}

fn render(pipeline: &mut Pipeline, orders: &[Order<'_>]) -> Vec<Picture> {
    let guidance = if pipeline.traits().negative { 3.0 } else { pipeline.traits().guidance };
    let settings = Settings { steps: 1, guidance, negative: "rain".into(), strength: 0.8 };
    let pictures = pipeline.render_batch(orders, &settings, |_| {}, &CancellationToken::new());
    pictures.expect("pictures")
}

/// The largest distance of a colour from that of another picture.
fn apart(found: &[Picture], expected: &[Picture]) -> u8 {
    assert_eq!(found.len(), expected.len());
    let bytes =
        |pictures: &[Picture]| pictures.iter().flat_map(|picture| picture.as_rgb().to_vec()).collect::<Vec<_>>();
    let (found, expected) = (bytes(found), bytes(expected));
    assert_eq!(found.len(), expected.len());
    found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0)
}

/// All orders of the test: of each size one, in turns without, with one of two references or with both, as the model takes
/// them; and a batch of 2, 3 and 4.
fn orders<'a>(pipeline: &Pipeline, references: &'a [Picture]) -> Vec<Vec<Order<'a>>> {
    let (most, batch) = (pipeline.traits().references, pipeline.traits().batch);
    let mut all = Vec::new();
    for (number, (width, height)) in SIZES.into_iter().enumerate() {
        let order = |references, seed| Order { prompt: "a lamp", width, height, seed, references, mask: None };
        let seen = [&references[..0], &references[..1], &references[1..], references][number % 4];
        all.push(vec![order(&seen[..seen.len().min(most)], 1)]);
        let count = number % 4 + 1;
        if number < 4 && count > 1 && count <= batch {
            all.push((0..count as u64).map(|seed| order(&[], seed)).collect());
        }
    }
    all
}

#[test]
fn one_session_of_each_part_serves_all_sizes_references_and_batches() {
    let references = [reference(64, 64), reference(96, 64)];
    for (name, parts) in MODELS {
        let mut kept = pipeline(name, Residency::Kept, Precision::F32);
        let mut fixed = pipeline(name, Residency::ByDevice, Precision::F32);
        let mut widest = 1;
        for orders in orders(&kept, &references) {
            widest = widest.max(orders.len());
            let (found, expected) = (render(&mut kept, &orders), render(&mut fixed, &orders));
            let size = (orders.len(), orders[0].width, orders[0].height, orders[0].references.len());
            let apart = apart(&found, &expected);
            println!("{name}: {size:?}: {apart} of 255");
            assert!(apart <= most_apart(), "{name}: {size:?}: {apart} of 255 from the pictures of graphs for one size");
        }
        assert_eq!(widest, kept.traits().batch.min(4), "{name}");
        let Loads { sessions, bytes, .. } = kept.loads();
        assert_eq!(sessions, parts, "{name}: sessions, of which each has weights of its own");
        let each = fixed.loads();
        println!("{name}: {sessions} sessions with {bytes} bytes; for one size each {}, {}", each.sessions, each.bytes);
        assert!(each.sessions > 13 * 2 && each.bytes > 5 * bytes, "{name}: {each:?}");
    }
}

#[test]
fn the_weights_that_are_loaded_are_those_of_one_size() {
    for (name, _) in MODELS {
        let order = Order { prompt: "a lamp", width: 64, height: 96, seed: 1, references: &[], mask: None };
        // Without guidance no part is needed twice.
        let settings = Settings { steps: 1, guidance: 0.0, negative: String::new(), strength: 0.8 };
        let loads = [Residency::Kept, Residency::ByDevice].map(|residency| {
            let mut pipeline = pipeline(name, residency, Precision::F32);
            pipeline.render(&order, &settings, |_| {}, &CancellationToken::new()).expect("a picture");
            pipeline.loads()
        });
        assert_eq!(loads[0], loads[1], "{name}");
        assert!(loads[0].bytes > 1000, "{name}: {loads:?}");
    }
}

#[test]
fn one_session_serves_all_sizes_in_16_bits() {
    for name in ["klein", "z_image", "sdxl"] {
        let mut kept = pipeline(name, Residency::Kept, Precision::F16);
        let mut fixed = pipeline(name, Residency::ByDevice, Precision::F16);
        for (width, height) in &SIZES[..3] {
            let order =
                Order { prompt: "a lamp", width: *width, height: *height, seed: 1, references: &[], mask: None };
            let orders = [order];
            let apart = apart(&render(&mut kept, &orders), &render(&mut fixed, &orders));
            println!("{name}: {width}x{height}: {apart} of 255 in 16 bits");
            assert!(apart <= most_apart(), "{name}: {width}x{height}: {apart} of 255");
        }
        let parts = if name == "sdxl" { 4 } else { 3 };
        assert_eq!(kept.loads().sessions, parts, "{name}");
    }
}

#[test]
fn guidance_in_one_run_gives_the_numbers_of_two() {
    for name in ["sd15", "sdxl"] {
        let found = [Residency::Kept, Residency::ByDevice].map(|residency| {
            let mut pipeline = pipeline(name, residency, Precision::F32);
            let (prompts, negative) = pipeline.embed_all(&["a lamp"], Some("rain")).expect("embeddings");
            let shape = pipeline.latent_shape(64, 96).expect("a shape");
            let prompt = prompts.into_iter().next().expect("an embedding");
            let guide = Guide { prompt, negative, guidance: 3.0, strength: 1.0, references: Vec::new(), mask: None };
            let before = pipeline.loads().runs;
            let latent = pipeline.denoise(shape, 7, 3, &guide, |_, _, _| Ok(())).expect("a latent picture");
            (latent.numbers, pipeline.loads().runs - before)
        });
        let [(one, runs), (two, twice)] = found;
        assert!(runs >= 3 && twice == 2 * runs, "{name}: {runs} runs, not half of {twice}");
        let size = (two.iter().map(|x| x * x).sum::<f32>() / two.len() as f32).sqrt();
        let apart = one.iter().zip(&two).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{name}: {apart:e} of {size}");
        // GPUs, and processors without wide vectors, add up in another order for two prompts.
        assert!(apart < 1e-3 * size, "{name}: {apart:e} of {size}");
    }
}

#[test]
fn parts_that_do_not_fit_together_are_loaded_for_each_use() {
    let runtime = Runtime::onnxruntime(&library(), Device::Cpu).expect("ONNX Runtime");
    let with = |device_memory| {
        let (runtime, residency) = (runtime.clone(), Residency::Kept);
        let options = Options { runtime, residency, device_memory, ..Options::default() };
        Pipeline::open(&fixture("klein"), &options).expect("a model")
    };
    let order = |prompt| [Order { prompt, width: 64, height: 64, seed: 1, references: &[], mask: None }];
    let mut free = with(None);
    let expected = ["a lamp", "a boat"].map(|prompt| render(&mut free, &order(prompt)));
    let all = free.loads();
    assert_eq!(all.sessions, 3);
    // The least memory in which the model still runs, to the nearest ten kilobytes, holds fewer parts at a time.
    let fits = |memory: u64| {
        let settings = Settings { steps: 1, guidance: 1.0, negative: String::new(), strength: 1.0 };
        with(Some(memory)).render(&order("a lamp")[0], &settings, |_| {}, &CancellationToken::new()).is_ok()
    };
    let (mut less, mut enough) = (RESERVE, RESERVE + (1 << 30));
    assert!(!fits(less) && fits(enough));
    while enough - less > 10_000 {
        let middle = less.midpoint(enough);
        *if fits(middle) { &mut enough } else { &mut less } = middle;
    }
    let mut tight = with(Some(enough));
    // A picture that is too large takes nothing from those that are not.
    let large = Order { width: 512, height: 512, ..order("a lamp")[0] };
    let settings = Settings { steps: 1, guidance: 1.0, negative: String::new(), strength: 1.0 };
    let refused = tight.render(&large, &settings, |_| {}, &CancellationToken::new());
    assert!(matches!(refused, Err(Error::Memory(_))), "{refused:?}");
    let found = ["a lamp", "a boat"].map(|prompt| render(&mut tight, &order(prompt)));
    assert!(found == expected, "other pictures");
    let sessions = tight.loads().sessions;
    assert!(sessions > all.sessions, "{sessions} loads in {enough} bytes");
}
