//! Models with what `diffusers` makes of them, and their comparison.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tintype_diffusion::config::Config;
use tintype_diffusion::graph::Graph;
use tintype_diffusion::models::vae::Vae;
use tintype_diffusion::noise::Noise;
use tintype_diffusion::pipelines::Guide;
use tintype_diffusion::runtime::{Device, Input, Runtime};
use tintype_diffusion::weights::Weights;
use tintype_diffusion::{Options, Order, Pipeline, Settings};
use tintype_engine::{CancellationToken, Picture};

use crate::parity::library::library;

/// The largest error that is tolerated, relative to the number or to the typical size of its tensor, whichever is larger.
pub const TOLERANCE: f64 = 1e-3;

/// The folder of the models: the committed ones, or those that `run` has just made.
pub fn folder() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "this chooses the test's input; the program reads no such variable")]
    let made = std::env::var_os("PARITY_MODELS").map(PathBuf::from);
    made.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity"))
}

pub fn json(path: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(path)).expect("a fixture");
    serde_json::from_str(&text).expect("JSON")
}

pub fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

pub fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().expect("a whole number")).expect("a small number")
}

/// The error of `found` relative to a list of expected numbers.
pub fn error(found: &[f64], expected: &[f64]) -> f64 {
    let typical = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len() as f64).sqrt();
    let apart = |(found, expected): (&f64, &f64)| (found - expected).abs() / expected.abs().max(typical);
    // A NaN must not pass as the smallest number.
    found.iter().zip(expected).map(apart).fold(0.0, |most, error| if error <= most { most } else { error })
}

/// Compares with an entry that holds some of the numbers, and two sums over all.
pub fn assert_close(name: &str, found: &[f32], expected: &Value) {
    assert_within(name, found, expected, TOLERANCE);
}

/// Compares like [`assert_close`], but tolerates another error of single numbers.
pub fn assert_within(name: &str, found: &[f32], expected: &Value, tolerance: f64) {
    assert_eq!(found.len(), count(&expected["length"]), "{name}");
    let [worst, mean, squares] = errors(found, expected);
    println!("{name}: worst {worst:.1e}, mean {mean:.1e}, square {squares:.1e}");
    assert!(worst < tolerance && mean < TOLERANCE && squares < TOLERANCE, "{name}: {worst:e} {mean:e} {squares:e}");
}

/// The errors of single numbers and of two sums over all, as in [`assert_close`].
pub fn errors(found: &[f32], expected: &Value) -> [f64; 3] {
    let all: Vec<f64> = found.iter().copied().map(f64::from).collect();
    let some: Vec<f64> = all.iter().copied().step_by(count(&expected["stride"])).collect();
    let worst = error(&some, &floats(&expected["numbers"]));
    let square = expected["square"].as_f64().expect("a number");
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let mean = (mean - expected["mean"].as_f64().expect("a number")).abs() / square.sqrt();
    let squares = all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64;
    [worst, mean, (squares - square).abs() / square]
}

/// A picture by the formula of `shared.py`.
pub fn picture(width: usize, height: usize) -> Picture {
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| [x * 3 + y, x + y * 2, x * y / 16]));
    let bytes = pixels.flatten().map(|number| (number % 510).abs_diff(255) as u8).collect();
    Picture::from_rgb(width as u32, height as u32, bytes).expect("a picture")
}

/// Every runtime, each on the processor.
pub fn runtimes() -> [Runtime; 2] {
    [Runtime::Rten, Runtime::onnxruntime(&library(), Device::Cpu).expect("ONNX Runtime")]
}

/// The model of a folder on each runtime.
pub fn pipelines_of(folder: &Path) -> impl Iterator<Item = Pipeline> + use<> {
    let options = runtimes().map(|runtime| Options { runtime, ..Options::default() });
    let folder = folder.to_owned();
    options.into_iter().map(move |options| Pipeline::open(&folder, &options).expect("a model"))
}

/// What guides the pictures of an order.
///
/// # Errors
/// If the order doesn't suit the model.
pub fn guide(pipeline: &mut Pipeline, order: &Order<'_>, settings: &Settings) -> tintype_diffusion::Result<Guide> {
    let prompt = pipeline.embed(order.prompt)?;
    let negative = pipeline.asks_twice(settings.guidance);
    let negative = negative.then(|| pipeline.embed_negative(&settings.negative, &prompt)).transpose()?;
    let shape = pipeline.latent_shape(order.width, order.height)?;
    let references = order.references.iter().map(|seen| pipeline.look(seen, shape)).collect::<Result<_, _>>()?;
    let mask = pipeline.look_at_mask(order, shape)?;
    Ok(Guide { prompt, negative, guidance: settings.guidance, strength: settings.strength, references, mask })
}

/// A tiny model, with what `diffusers` makes of it.
pub struct Model {
    pub name: &'static str,
    pub expected: Value,
}

impl Model {
    pub fn new(name: &'static str) -> Self {
        Self { name, expected: json(&format!("{name}/expected.json")) }
    }

    pub fn path(&self, part: &str) -> PathBuf {
        folder().join(self.name).join(part)
    }

    pub fn config(&self, part: &str) -> Config {
        Config::read(&self.path(part).join("config.json")).expect("a configuration")
    }

    pub fn weights(&self, part: &str) -> Weights {
        let encoder = part.starts_with("text_encoder");
        let stem = if encoder { "model" } else { "diffusion_pytorch_model" };
        Weights::open_part(&self.path(part), stem).expect("weights")
    }

    pub fn pipeline(&self) -> Pipeline {
        Pipeline::open(&self.path(""), &Options::default()).expect("a model")
    }

    /// One pipeline on each runtime.
    pub fn pipelines(&self) -> impl Iterator<Item = Pipeline> {
        pipelines_of(&self.path(""))
    }

    pub fn size(&self) -> (usize, usize) {
        (count(&self.expected["width"]), count(&self.expected["height"]))
    }

    pub fn prompt(&self) -> &str {
        self.expected["prompt"].as_str().expect("a prompt")
    }

    pub fn order(&self) -> Order<'_> {
        let (width, height) = self.size();
        let seed = self.expected["seed"].as_u64().expect("a seed");
        Order { prompt: self.prompt(), width, height, seed, references: &[], mask: None }
    }

    pub fn settings(&self) -> Settings {
        Settings {
            steps: count(&self.expected["steps"]),
            guidance: self.expected["guidance"].as_f64().expect("a number") as f32,
            negative: self.expected["negative"].as_str().expect("a prompt").into(),
            strength: if self.expected["steps"] == 1 { 0.5 } else { 0.8 },
        }
    }

    pub fn assert_close(&self, name: &str, found: &[f32]) {
        let expected = &self.expected["values"][name];
        assert!(expected.is_object(), "{} lacks {name}", self.name);
        assert_close(&format!("{} {name}", self.name), found, expected);
    }

    /// All recorded values of a part, by the names that the graph gives them.
    pub fn assert_part(&self, part: &str, graph: Graph, inputs: &[(&str, Input<'_>)]) {
        let values = self.expected["values"].as_object().expect("an object");
        for runtime in runtimes() {
            let session = runtime.load(graph.clone()).expect("a graph that runs");
            let mut compared = 0;
            for name in values.keys().filter_map(|name| name.strip_prefix(part)) {
                let found = session.run(inputs, [name]);
                let [found] = found.unwrap_or_else(|error| panic!("{part}{name} on {runtime:?}: {error}"));
                self.assert_close(&format!("{part}{name}"), &found);
                compared += 1;
            }
            assert!(compared > 0, "{part}");
        }
    }

    /// All recorded values of a transformer over the recorded prompt, late in the removal of the noise. `time` is the
    /// embedding of the moment; a row of the prompt has `width` numbers.
    pub fn assert_transformer(&self, graph: Graph, latent: (&str, Input<'_>), time: &[f32], width: usize) {
        let context = self.pipeline().embed(self.prompt()).expect("an embedding").states;
        let (times, contexts) = ([1, time.len()], [context.len() / width, width]);
        let inputs = [latent, ("time", Input::Floats(&times, time)), ("context", Input::Floats(&contexts, &context))];
        self.assert_part("transformer.", graph, &inputs);
    }

    /// All recorded values of the decoder of an autoencoder, for numbers as the model makes them.
    pub fn assert_decoder(&self) {
        let vae = Vae::read(&self.config("vae")).expect("an autoencoder");
        let (shape, latent) = self.latent(vae.channels, 8);
        let latent: Vec<_> = latent.into_iter().map(|x| x / vae.scaling + vae.shift).collect();
        let graph = vae.graph(&self.weights("vae"), shape[2], shape[3]).expect("a graph");
        self.assert_part("vae.", graph, &[("latent", Input::Floats(&shape, &latent))]);
    }

    pub fn latent(&self, channels: usize, factor: usize) -> ([usize; 4], Vec<f32>) {
        let (width, height) = self.size();
        let shape = [1, channels, height / factor, width / factor];
        (shape, Noise::new(7).normal(shape.iter().product()))
    }

    /// Compares a picture with the one that is recorded under a name.
    pub fn assert_picture(&self, name: &str, picture: &Picture) {
        assert_eq!((picture.width() as usize, picture.height() as usize), self.size());
        // Numbers that lie between two bytes may be rounded to either.
        let expected = &self.expected["values"][name];
        let bytes = picture.as_rgb().iter().copied().step_by(count(&expected["stride"]));
        for (found, expected) in bytes.zip(floats(&expected["numbers"])) {
            assert!((f64::from(found) - expected).abs() <= 1.0, "{}: {found}, not {expected}", self.name);
        }
    }

    /// Compares the tokens of all recorded prompts.
    pub fn assert_tokens(&self) {
        let pipeline = self.pipeline();
        for case in self.expected["tokens"].as_array().expect("a list") {
            let expected: Vec<i32> = floats(&case["ids"]).into_iter().map(|id| id as i32).collect();
            let prompt = case["prompt"].as_str().expect("a prompt");
            assert_eq!(pipeline.tokens(prompt).expect("tokens"), expected, "{} {prompt:?}", self.name);
        }
    }

    /// Makes the latent picture step by step and compares each, and then the whole picture as it is delivered. Recorded
    /// names begin with `run`.
    pub fn assert_run(
        &self,
        run: &str,
        pipelines: impl Iterator<Item = Pipeline>,
        order: &Order<'_>,
        settings: &Settings,
    ) {
        for mut pipeline in pipelines {
            self.assert_run_of(run, &mut pipeline, order, settings);
        }
    }

    /// Makes the latent picture and compares it, and the picture.
    pub fn assert_last(&self, pipeline: &mut Pipeline, order: &Order<'_>, settings: &Settings) {
        let guide = guide(pipeline, order, settings).expect("a guide");
        let shape = pipeline.latent_shape(order.width, order.height).expect("a size");
        let latent = pipeline.denoise(shape, order.seed, settings.steps, &guide, |_, _, _| Ok(()));
        let latent = latent.expect("a latent picture");
        self.assert_close("latent", &latent.numbers);
        self.assert_picture("picture", &pipeline.decode(&latent).expect("a picture"));
    }

    fn assert_run_of(&self, run: &str, pipeline: &mut Pipeline, order: &Order<'_>, settings: &Settings) {
        let guide = guide(pipeline, order, settings).expect("a guide");
        let shape = pipeline.latent_shape(order.width, order.height).expect("a size");
        let mut steps = Vec::new();
        let latent = pipeline.denoise(shape, order.seed, settings.steps, &guide, |_, _, sample| {
            steps.push(sample.to_vec());
            Ok(())
        });
        for (step, sample) in steps.iter().enumerate() {
            self.assert_close(&format!("{run}step.{step}"), sample);
        }
        let decoded = pipeline.decode(&latent.expect("a latent picture")).expect("a picture");
        let mut heard = Vec::new();
        let picture =
            pipeline.render(order, settings, |step| heard.push((step.done, step.of)), &CancellationToken::new());
        let picture = picture.expect("a picture");
        assert_eq!(decoded, picture);
        assert_eq!(heard, (1..=steps.len()).map(|done| (done, steps.len())).collect::<Vec<_>>());
        self.assert_picture(&format!("{run}picture"), &picture);
    }
}
