//! CPU time and memory of models of true shapes. `benches/measure` makes the models and compares; alone: `cargo bench -p
//! tintype-diffusion --bench parts -- FOLDER [LIBRARY.so] [direct] [rows:N] [PART...]`, with rten or with a library of ONNX
//! Runtime, with the convolutions of the runtime, and with other numbers of rows that the wide layers of klein work on at a
//! time.

#![expect(clippy::disallowed_methods, reason = "a benchmark has no clock that tests move")]

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tintype_diffusion::config::Config;
use tintype_diffusion::graph::Graph;
use tintype_diffusion::models::flux2::Flux2;
use tintype_diffusion::models::unet::Unet;
use tintype_diffusion::models::vae::Vae;
use tintype_diffusion::noise::Noise;
use tintype_diffusion::quantise::{Rules, WeightPreparation};
use tintype_diffusion::runtime::{Device, Input, Runtime};
use tintype_diffusion::weights::Weights;
use tintype_diffusion::{Error, Options, Precision, Result};

/// Rows of the prompt's embedding, for FLUX.2 klein and for Stable Diffusion 1.5.
const TEXT: usize = 512;
const WORDS: usize = 77;
/// The folder of all of FLUX.2 klein. The others hold a few of its blocks.
const WHOLE: &str = "klein";

/// The CPU time of this process so far, in seconds.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// The memory of this process that is not of mapped files, in GiB.
fn own_memory() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / (1 << 20) as f64
}

/// Watches the memory of this process while `work` runs, and says the largest that it saw.
fn largest_memory<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut largest = own_memory();
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                largest = largest.max(own_memory());
            }
            largest
        });
        let result = work();
        ended.store(true, Ordering::Relaxed);
        (result, watch.join().unwrap_or_default())
    })
}

/// The runtime that is measured.
static RUNTIME: OnceLock<Runtime> = OnceLock::new();

fn runtime() -> &'static Runtime {
    RUNTIME.get_or_init(Runtime::default)
}

/// Whether the convolutions are those of the runtime.
static DIRECT: AtomicBool = AtomicBool::new(false);

/// The weights of a part, for convolutions of the kind that is measured.
fn weights_of(folder: &Path) -> Result<Weights> {
    let weights = Weights::open_part(folder, "diffusion_pytorch_model")?;
    Ok(if DIRECT.load(Ordering::Relaxed) { weights.with_direct_convolutions() } else { weights })
}

fn say(part: &str, value: f64, unit: &str) {
    let engine = match (runtime(), DIRECT.load(Ordering::Relaxed)) {
        (Runtime::Rten, false) => "tintype",
        (Runtime::Rten, true) => "rten",
        (Runtime::OnnxRuntime(_), false) => "tintype-ort",
        (Runtime::OnnxRuntime(_), true) => "ort",
    };
    println!("{part}\t{engine}\t{value:.3}\t{unit}");
}

/// Runs a graph three times after one that does not count, and says the middle time.
fn time(graph: Graph, inputs: &[(&str, Vec<usize>)], output: &str, name: &str) -> Result<()> {
    let mut noise = Noise::new(1);
    let numbers: Vec<_> = inputs.iter().map(|(_, shape)| noise.normal(shape.iter().product())).collect();
    let inputs: Vec<_> =
        inputs.iter().zip(&numbers).map(|((name, shape), numbers)| (*name, Input::Floats(shape, numbers))).collect();
    let start = Instant::now();
    let session = runtime().load(graph)?;
    let load = start.elapsed().as_secs_f64();
    let mut after = 0.0_f64;
    let (found, largest) = largest_memory(|| {
        let run = || {
            let begin = cpu();
            session.run(&inputs, [output])?;
            after = after.max(own_memory());
            Ok(cpu() - begin)
        };
        std::iter::repeat_with(run).take(4).collect::<Result<Vec<_>>>()
    });
    let mut found = found?.split_off(1);
    found.sort_by(f64::total_cmp);
    say(&format!("{name} load"), load, "s");
    say(&format!("{name} memory at most"), largest, "GiB");
    say(&format!("{name} memory after a run"), after, "GiB");
    say(name, found[1], "CPU-s");
    Ok(())
}

/// The weights of klein in 8 bits.
fn narrow(folder: &Path, part: &str, model: &Flux2) -> Result<Weights> {
    let options = Options { precision: Precision::W8A8, cache: Some(folder.join("cache")), ..Options::default() };
    let weights = Weights::open_part(&folder.join(part), "diffusion_pytorch_model")?;
    let uses = model.graph(&weights, [8, 8], &[], 8)?.uses;
    let mut suit = WeightPreparation { options: &options, rules: Rules::of_this_machine(), progress: &mut |_| {} };
    suit.weights(part, weights, &uses)
}

fn klein(folder: &Path, part: &str, rows_at_a_time: Option<usize>) -> Result<()> {
    let config = Config::read(&folder.join(part).join("config.json"))?;
    let mut model = Flux2::read(&config)?;
    model.rows_at_a_time = rows_at_a_time.unwrap_or(model.rows_at_a_time);
    let file = folder.join("cache").join(format!("{part}.w8a8"));
    if !file.exists() {
        let begin = cpu();
        narrow(folder, part, &model)?;
        say(&format!("{part} quantising"), cpu() - begin, "s of CPU time");
    }
    let start = Instant::now();
    let weights = narrow(folder, part, &model)?;
    say(&format!("{part} opening"), start.elapsed().as_secs_f64(), "s");
    // The whole model at 1024x1024 takes a quarter of an hour here, and ONNX Runtime more memory than most machines have.
    let sides: &[(usize, usize)] = if part == WHOLE { &[(512, 32)] } else { &[(512, 32), (1024, 64)] };
    for &(side, rows) in sides {
        let graph = model.graph(&weights, [rows, rows], &[], TEXT)?;
        let inputs = [
            ("pictures", vec![rows * rows, model.channels]),
            ("time", vec![1, model.embed_time(0.5).len()]),
            ("context", vec![TEXT, model.context]),
        ];
        time(graph, &inputs, "velocity", &format!("{part} {side}"))?;
    }
    Ok(())
}

fn unet(folder: &Path) -> Result<()> {
    let part = folder.join("unet");
    let model = Unet::read(&Config::read(&part.join("config.json"))?)?;
    let weights = weights_of(&part)?;
    let graph = model.graph(&weights, 1, [64, 64], WORDS)?;
    let inputs = [
        ("latent", vec![1, model.channels, 64, 64]),
        ("time", vec![1, model.embed_time(500.0).len()]),
        ("context", vec![WORDS, model.context]),
    ];
    time(graph, &inputs, "noise", "unet 512")
}

fn vae(folder: &Path) -> Result<()> {
    let part = folder.join("vae");
    let model = Vae::read(&Config::read(&part.join("config.json"))?)?;
    let weights = weights_of(&part)?;
    let graph = model.graph(&weights, 64, 64)?;
    time(graph, &[("latent", vec![1, 4, 64, 64])], "picture", "vae 512")
}

fn klein_vae(folder: &Path) -> Result<()> {
    let part = folder.join("klein-vae");
    let model = Vae::read(&Config::read(&part.join("config.json"))?)?;
    let weights = weights_of(&part)?;
    let graph = model.graph(&weights, 64, 64)?;
    time(graph, &[("latent", vec![1, model.channels, 64, 64])], "picture", "klein-vae 512")
}

fn main() -> Result<()> {
    // `cargo bench` adds an option of its own.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [folder, parts @ ..] = arguments.as_slice() else {
        println!("give the folder of models that benches/measure makes");
        return Ok(());
    };
    let folder = Path::new(folder);
    let mut rows = None;
    for part in parts {
        match part.as_str() {
            library if library.contains(".so") => {
                let runtime = Runtime::onnxruntime(Path::new(library), Device::Cpu)?;
                RUNTIME.set(runtime).map_err(|_| Error::Run("the library comes before the parts".into()))?;
            }
            "direct" => DIRECT.store(true, Ordering::Relaxed),
            part if part.starts_with("rows:") => rows = part[5..].parse().ok(),
            "unet" => unet(folder)?,
            "vae" => vae(folder)?,
            "klein-vae" => klein_vae(folder)?,
            _ => klein(folder, part, rows)?,
        }
    }
    Ok(())
}
