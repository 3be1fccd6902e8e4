//! Weights in 8 bits: how far their results are from those in 32, and what becomes of their files when things go wrong.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Barrier;

use safetensors::Dtype;
use tempfile::TempDir;
use tintype_diffusion::graph::{Builder, Graph};
use tintype_diffusion::noise::Noise;
use tintype_diffusion::quantise::{Bits, Progress, Rules, WeightPreparation, quantise, verify};
use tintype_diffusion::runtime::{Device, Input, Runtime};
use tintype_diffusion::weights::Weights;
use tintype_diffusion::{Error, Options, Pipeline, Precision};

use crate::fixtures::{fixture, tensor, write};
use crate::parity::compared::compared;
use crate::parity::library::library;

const EIGHT: Rules = Rules { bits: Bits::Eight, smallest: 1 };
const SEVEN: Rules = Rules { bits: Bits::Seven, smallest: 1 };

/// A linear layer of 96 inputs and 80 outputs over 40 rows.
struct Layer {
    folder: TempDir,
    x: Vec<f32>,
}

const ROWS: usize = 40;
const INPUTS: usize = 96;
const OUTPUTS: usize = 80;

impl Layer {
    /// Its numbers are random. `shape` changes them: it is given a row and a column.
    fn new(dtype: Dtype, activations: impl Fn(usize, usize) -> f32, weights: impl Fn(usize, usize) -> f32) -> Self {
        let folder = TempDir::new().expect("a folder");
        let mut noise = Noise::new(3);
        let mut matrix = |rows: usize, columns: usize, change: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            let numbers = noise.normal(rows * columns).into_iter().enumerate();
            numbers.map(|(at, x)| x * change(at / columns, at % columns)).collect()
        };
        let x = matrix(ROWS, INPUTS, &activations);
        let weight = matrix(OUTPUTS, INPUTS, &weights);
        let bias = matrix(1, OUTPUTS, &|_, _| 1.0);
        let path = folder.path().join("layer.safetensors");
        let tensors = [
            ("a.weight".to_owned(), tensor(dtype, &[OUTPUTS, INPUTS], &weight)),
            ("a.bias".to_owned(), tensor(dtype, &[OUTPUTS], &bias)),
        ];
        write(&path, &tensors.into());
        Self { folder, x }
    }

    fn plain() -> Self {
        Self::new(Dtype::F32, |_, _| 1.0, |_, _| 1.0)
    }

    fn weights(&self) -> Weights {
        Weights::open(&self.path("layer.safetensors")).expect("weights")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.path("cache/layer.w8a8")
    }

    fn graph(weights: &Weights) -> Graph {
        let mut b = Builder::new(weights, "");
        let x = b.input("x", &[ROWS, INPUTS]);
        let y = b.linear(&x, "a", OUTPUTS, true).expect("a layer");
        b.output("y", &y);
        b.finish(|_| false).expect("a graph")
    }

    fn quantise(&self, rules: Rules) -> Result<Weights, Error> {
        let mut heard = Vec::new();
        self.quantise_with(rules, &mut |progress: &Progress| heard.push(progress.clone()))
    }

    fn quantise_with(&self, rules: Rules, progress: &mut dyn FnMut(&Progress)) -> Result<Weights, Error> {
        let options = Options { precision: Precision::W8A8, cache: Some(self.path("cache")), ..Options::default() };
        let weights = self.weights();
        let uses = Self::graph(&weights).uses;
        WeightPreparation { options: &options, rules, progress }.weights("layer", weights, &uses)
    }

    /// Whether the file is made again.
    fn makes(&self, rules: Rules) -> bool {
        let mut count = 0;
        self.quantise_with(rules, &mut |_| count += 1).expect("weights");
        count > 0
    }

    fn run(&self, weights: &Weights) -> Vec<f32> {
        self.run_on(&Runtime::Rten, weights)
    }

    fn run_on(&self, runtime: &Runtime, weights: &Weights) -> Vec<f32> {
        let session = runtime.load(Self::graph(weights)).expect("a graph that runs");
        let [y] = session.run(&[("x", Input::Floats(&[ROWS, INPUTS], &self.x))], ["y"]).expect("a run");
        y
    }

    /// The error in 8 bits: of each row, relative to its size, the largest.
    fn error(&self, rules: Rules) -> f64 {
        let wide = self.run(&self.weights());
        let narrow = self.run(&self.quantise(rules).expect("weights"));
        wide.chunks(OUTPUTS).zip(narrow.chunks(OUTPUTS)).map(|(a, b)| distance(a, b)).fold(0.0, f64::max)
    }

    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("cache")).expect("a folder");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
    }
}

/// The size of the difference relative to the size of the first.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let size = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let gap = size(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    gap / size(&mut a.iter().copied().map(f64::from)).max(1e-30)
}

#[test]
fn a_layer_in_8_bits_is_close_to_32() {
    for dtype in [Dtype::F32, Dtype::BF16] {
        let layer = Layer::new(dtype, |_, _| 1.0, |_, _| 1.0);
        let eight = layer.error(EIGHT);
        let seven = layer.error(SEVEN);
        assert!(seven < 0.025, "{dtype}: {seven}");
        match Bits::of_this_machine() {
            Bits::Eight => assert!(eight > 1e-4 && eight < 0.015 && seven > eight, "{dtype}: {eight} {seven}"),
            // Its sums overflow, which is why it takes 7.
            Bits::Seven => assert!(eight > seven, "{dtype}: {eight} {seven}"),
        }
    }
}

fn onnxruntime() -> Runtime {
    Runtime::onnxruntime(&library(), Device::Cpu).expect("ONNX Runtime")
}

#[test]
fn a_layer_in_8_bits_is_the_same_on_onnx_runtime() {
    let layer = Layer::plain();
    for rules in [EIGHT, SEVEN] {
        let weights = layer.quantise(rules).expect("weights");
        let error = distance(&layer.run(&weights), &layer.run_on(&onnxruntime(), &weights));
        assert!(error < 1e-6, "{error}");
    }
}

#[test]
fn rows_and_outputs_that_stand_out_cost_the_others_nothing() {
    let rules = Rules { bits: Bits::of_this_machine(), smallest: 1 };
    // A step in 7 bits is twice as wide.
    let step = if rules.bits == Bits::Seven { 2.0 } else { 1.0 };
    let rows = |row, _| if row % 10 == 3 { 1000.0 } else { 1.0 };
    let error = Layer::new(Dtype::F32, rows, |_, _| 1.0).error(rules);
    assert!(error < 0.015 * step, "rows: {error}");
    let layer = Layer::new(Dtype::F32, |_, _| 1.0, |output, _| if output % 10 == 3 { 1000.0 } else { 1.0 });
    let (wide, narrow) = (layer.run(&layer.weights()), layer.run(&layer.quantise(rules).expect("weights")));
    for output in 0..OUTPUTS {
        let of = |numbers: &[f32]| -> Vec<f32> { numbers.iter().copied().skip(output).step_by(OUTPUTS).collect() };
        let error = distance(&of(&wide), &of(&narrow));
        assert!(error < 0.02 * step, "output {output}: {error}");
    }
    // One of the inputs: its numbers take the steps from the others of the row.
    let error = Layer::new(Dtype::F32, |_, input| if input == 5 { 30.0 } else { 1.0 }, |_, _| 1.0).error(rules);
    assert!(error < 0.05 * step, "input: {error}");
}

#[test]
fn rows_and_outputs_of_zeros_stay_zero() {
    let zero = |at: usize, _: usize| if at == 2 { 0.0 } else { 1.0 };
    let layer = Layer::new(Dtype::F32, zero, zero);
    let (wide, narrow) = (layer.run(&layer.weights()), layer.run(&layer.quantise(EIGHT).expect("weights")));
    assert_eq!(wide[2 * OUTPUTS..3 * OUTPUTS], narrow[2 * OUTPUTS..3 * OUTPUTS]);
    for row in 0..ROWS {
        assert_eq!(wide[row * OUTPUTS + 2].to_bits(), narrow[row * OUTPUTS + 2].to_bits());
    }
}

#[test]
fn seven_bits_do_not_fill_the_sums_of_older_processors() {
    // Two products of 255 and 63 are below 2^15, two of 255 and 127 are not.
    let layer = Layer::new(Dtype::F32, |_, _| 1.0, |_, _| 1.0);
    let weights = layer.quantise(SEVEN).expect("weights");
    let entry = weights.get("a.weight").expect("a matrix");
    assert_eq!(entry.shape, [INPUTS, OUTPUTS]);
    let sizes = weights.bytes(entry).iter().map(|byte| byte.cast_signed().unsigned_abs());
    assert_eq!(sizes.max(), Some(63));
    let eight = layer.quantise(EIGHT).expect("weights");
    let sizes = eight.bytes(eight.get("a.weight").expect("a matrix")).iter().map(|byte| byte.cast_signed());
    assert_eq!(sizes.map(i8::unsigned_abs).max(), Some(127));
}

#[test]
fn a_file_is_made_once_for_the_same_weights() {
    let layer = Layer::plain();
    assert!(layer.makes(EIGHT));
    assert!(!layer.makes(EIGHT));
    assert_eq!(layer.left(), ["layer.w8a8"]);
    // Other rules, another version of the weights, and another file with the name.
    assert!(layer.makes(SEVEN));
    assert!(layer.makes(EIGHT));
    let path = layer.path("layer.safetensors");
    let bytes = std::fs::read(&path).expect("a file");
    std::fs::remove_file(&path).expect("a file");
    std::fs::write(&path, bytes).expect("a file");
    assert!(layer.makes(EIGHT), "the weights have another time");
    std::fs::copy(layer.path("layer.safetensors"), layer.cache()).expect("a copy");
    assert!(layer.makes(EIGHT), "a file that is none of ours");
    assert!(!layer.makes(EIGHT));
}

#[test]
fn the_rest_of_a_crash_is_cleared_away() {
    let layer = Layer::plain();
    layer.quantise(EIGHT).expect("weights");
    let whole = std::fs::read(layer.cache()).expect("a file");
    for length in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        // Under the name of a finished file, which only a damaged disk can bring about, and under the other.
        std::fs::write(layer.cache(), &whole[..length]).expect("a file");
        std::fs::write(layer.path("cache/layer.partial"), &whole[..length]).expect("a file");
        assert!(layer.makes(EIGHT), "{length} bytes");
        assert_eq!(layer.left(), ["layer.w8a8"]);
        assert_eq!(std::fs::read(layer.cache()).expect("a file"), whole);
    }
}

#[test]
fn files_that_were_damaged_on_the_disk_are_made_anew_when_an_engine_starts() {
    let model = fixture("klein");
    let cache = TempDir::new().expect("a folder");
    let mut made = Vec::new();
    let mut start = || {
        let mut parts = Vec::new();
        quantise(&model, cache.path(), &mut |progress| parts.push(progress.part.clone())).expect("weights");
        parts.dedup();
        made.push(parts);
    };
    start();
    let path = cache.path().join("transformer.w8a8");
    let whole = std::fs::read(&path).expect("a file");
    let mut damaged = whole.clone();
    *damaged.last_mut().expect("a byte") ^= 1;
    std::fs::write(&path, damaged).expect("a file");
    start();
    start();
    assert_eq!(made[1..], [vec!["transformer".to_owned()], vec![]]);
    assert_eq!(std::fs::read(&path).expect("a file"), whole);
}

#[test]
fn a_link_is_not_followed() {
    let layer = Layer::plain();
    let precious = layer.path("precious");
    std::fs::write(&precious, "precious").expect("a file");
    std::fs::create_dir(layer.path("cache")).expect("a folder");
    std::os::unix::fs::symlink(&precious, layer.path("cache/layer.partial")).expect("a link");
    std::os::unix::fs::symlink(&precious, layer.cache()).expect("a link");
    assert!(layer.makes(EIGHT));
    assert_eq!(std::fs::read_to_string(&precious).expect("a file"), "precious");
    assert!(!layer.makes(EIGHT));
}

#[test]
fn a_digest_tells_damage() {
    let layer = Layer::plain();
    assert_eq!(verify(&layer.path("cache")).expect("no folder").len(), 0);
    layer.quantise(EIGHT).expect("weights");
    assert_eq!(verify(&layer.path("cache")).expect("whole files"), [layer.cache()]);
    let whole = std::fs::read(layer.cache()).expect("a file");
    let metadata = whole.windows(9).position(|window| window == b"\"sha256\":").expect("a digest");
    for at in [metadata + 12, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(layer.cache(), bytes).expect("a file");
        let error = verify(&layer.path("cache")).err();
        assert!(
            matches!(&error, Some(Error::Unusable(text) | Error::Files(text)) if text.contains("layer.w8a8")),
            "{at}: {error:?}"
        );
    }
}

#[test]
fn weights_that_are_not_finite_are_refused_by_name() {
    for stray in [f32::NAN, f32::INFINITY] {
        let layer =
            Layer::new(Dtype::F32, |_, _| 1.0, move |row, column| if (row, column) == (3, 5) { stray } else { 1.0 });
        let error = layer.quantise(EIGHT).err();
        assert!(matches!(&error, Some(Error::Model(text)) if text.contains("a.weight")), "{error:?}");
        assert!(layer.left().is_empty());
    }
}

#[test]
fn two_at_once_make_one_file() {
    let layer = Layer::plain();
    let start = Barrier::new(4);
    let made: Vec<bool> = std::thread::scope(|scope| {
        let one = || {
            start.wait();
            layer.makes(EIGHT)
        };
        let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    assert_eq!(made.iter().filter(|made| **made).count(), 1, "{made:?}");
    verify(&layer.path("cache")).expect("a whole file");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let layer = Layer::plain();
    std::fs::write(layer.path("cache"), "a file").expect("a file");
    let error = layer.quantise(EIGHT).err();
    assert!(matches!(&error, Some(Error::Unusable(text)) if text.contains("cache")), "{error:?}");
}

#[test]
fn a_full_disk_leaves_nothing() {
    let layer = Layer::plain();
    std::fs::create_dir(layer.path("cache")).expect("a folder");
    // A limit of the process stands for the disk: it gives the same kind of error, and no space is taken.
    let program = std::env::current_exe().expect("a program");
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 8; trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(program)
        .args(["--exact", "quantise::quantises_where_it_is_told", "--ignored", "--nocapture"])
        .env("QUANTISE_FOLDER", layer.folder.path())
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("FAILED AS IT SHOULD"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(layer.left().is_empty(), "{:?}", layer.left());
    assert!(layer.makes(EIGHT));
}

#[test]
#[ignore = "a part of another test, in a process of its own"]
#[expect(clippy::disallowed_methods, reason = "the other test has no other way to name a folder")]
fn quantises_where_it_is_told() {
    let Some(folder) = std::env::var_os("QUANTISE_FOLDER").map(PathBuf::from) else { return };
    let weights = Weights::open(&folder.join("layer.safetensors")).expect("weights");
    let uses = Layer::graph(&weights).uses;
    let options = Options { precision: Precision::W8A8, cache: Some(folder.join("cache")), ..Options::default() };
    let result =
        WeightPreparation { options: &options, rules: EIGHT, progress: &mut |_| {} }.weights("layer", weights, &uses);
    match result {
        Err(Error::Unusable(text)) if text.contains("need 1 MB") => println!("FAILED AS IT SHOULD: {text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pictures_in_8_bits_are_close_to_32() {
    pictures_in_8_bits_are_close_to_32_on(&Runtime::Rten, Bits::of_this_machine());
}

/// The pictures of processors without VNNI, on whichever this is.
#[test]
fn pictures_in_7_bits_are_close_to_32() {
    pictures_in_8_bits_are_close_to_32_on(&Runtime::Rten, Bits::Seven);
}

#[test]
fn pictures_in_8_bits_are_close_to_32_on_onnx_runtime() {
    pictures_in_8_bits_are_close_to_32_on(&onnxruntime(), Bits::of_this_machine());
}

fn pictures_in_8_bits_are_close_to_32_on(runtime: &Runtime, bits: Bits) {
    // Every layer of these is small, so all are rounded; their few channels have nothing to level the errors out.
    for (name, parts, most) in [
        ("sd15", ["text_encoder", "unet"], [0.05, 0.15, 8.0]),
        ("lcm", ["text_encoder", "unet"], [0.05, 0.05, 1.0]),
        ("klein", ["text_encoder", "transformer"], [0.1, 0.1, 8.0]),
        ("sdxl", ["text_encoder_2", "unet"], [0.1, 0.15, 8.0]),
        ("z_image", ["text_encoder", "transformer"], [0.1, 0.15, 8.0]),
    ] {
        let cache = TempDir::new().expect("a folder");
        let options = Options {
            precision: Precision::W8A8,
            cache: Some(cache.path().into()),
            runtime: runtime.clone(),
            ..Options::default()
        };
        let mut all = Vec::new();
        let mut progress = |progress: &Progress| all.push((progress.part.clone(), progress.done, progress.total));
        let suit = WeightPreparation { options: &options, rules: Rules { smallest: 4, bits }, progress: &mut progress };
        let found = compared(&fixture(name), suit);
        let most = most.map(|most| if bits == Bits::Seven { most * 2.0 } else { most });
        assert!(found.iter().zip(most).all(|(found, most)| *found > 0.0 && *found < most), "{name}: {found:?}");
        for part in parts {
            let heard: Vec<_> = all.iter().filter(|heard| heard.0 == part).collect();
            assert!(heard.is_sorted_by_key(|heard| heard.1), "{heard:?}");
            assert!(heard.last().is_some_and(|(_, done, total)| done == total), "{heard:?}");
        }
    }
}

#[test]
fn eight_bits_need_a_folder() {
    let options = Options { precision: Precision::W8A8, cache: None, ..Options::default() };
    let error = Pipeline::open(&fixture("lcm"), &options).err();
    assert!(matches!(error, Some(Error::Unusable(_))), "{error:?}");
    assert_eq!(
        std::fs::read_dir(fixture("lcm/cache")).map(|_| ()).map_err(|error| error.kind()),
        Err(ErrorKind::NotFound)
    );
}
