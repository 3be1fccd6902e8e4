//! Compares tiny models with what `diffusers` makes of them. `parity/make.py` wrote both.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tintype_diffusion::config::Config;
use tintype_diffusion::graph::Graph;
use tintype_diffusion::models::clip::Clip;
use tintype_diffusion::models::tiny_vae::TinyVae;
use tintype_diffusion::models::unet::Unet;
use tintype_diffusion::models::vae::Vae;
use tintype_diffusion::noise::Noise;
use tintype_diffusion::pipelines::{Guide, embed_guidance};
use tintype_diffusion::runtime::{Input, Session};
use tintype_diffusion::schedulers::scheduler;
use tintype_diffusion::weights::Weights;
use tintype_diffusion::{Error, Options, Order, Pipeline, Settings};
use tintype_engine::CancellationToken;

/// The largest error that is tolerated, relative to the number or to the typical size of its tensor, whichever is larger.
const TOLERANCE: f64 = 1e-3;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity")
}

fn json(path: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(path)).expect("a fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().expect("a whole number")).expect("a small number")
}

/// The error of `found` relative to a list of expected numbers.
fn error(found: &[f64], expected: &[f64]) -> f64 {
    let typical = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len() as f64).sqrt();
    let apart = |(found, expected): (&f64, &f64)| (found - expected).abs() / expected.abs().max(typical);
    // A NaN must not pass as the smallest number.
    found.iter().zip(expected).map(apart).fold(0.0, |most, error| if error <= most { most } else { error })
}

/// Compares with an entry that holds some of the numbers, and two sums over all.
fn assert_close(name: &str, found: &[f32], expected: &Value) {
    assert_eq!(found.len(), count(&expected["length"]), "{name}");
    let all: Vec<f64> = found.iter().copied().map(f64::from).collect();
    let some: Vec<f64> = all.iter().copied().step_by(count(&expected["stride"])).collect();
    let worst = error(&some, &floats(&expected["numbers"]));
    let square = expected["square"].as_f64().expect("a number");
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let mean = (mean - expected["mean"].as_f64().expect("a number")).abs() / square.sqrt();
    let squares = all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64;
    let squares = (squares - square).abs() / square;
    println!("{name}: worst {worst:.1e}, mean {mean:.1e}, square {squares:.1e}");
    assert!(worst < TOLERANCE && mean < TOLERANCE && squares < TOLERANCE, "{name}: {worst:e} {mean:e} {squares:e}");
}

struct Model {
    name: &'static str,
    expected: Value,
}

impl Model {
    fn new(name: &'static str) -> Self {
        Self { name, expected: json(&format!("{name}/expected.json")) }
    }

    fn path(&self, part: &str) -> PathBuf {
        folder().join(self.name).join(part)
    }

    fn config(&self, part: &str) -> Config {
        Config::read(&self.path(part).join("config.json")).expect("a configuration")
    }

    fn weights(&self, part: &str, file: &str) -> Weights {
        Weights::open(&self.path(part).join(file)).expect("weights")
    }

    fn pipeline(&self) -> Pipeline {
        Pipeline::open(&self.path(""), &Options::default()).expect("a model")
    }

    fn size(&self) -> (usize, usize) {
        (count(&self.expected["width"]), count(&self.expected["height"]))
    }

    fn prompt(&self) -> &str {
        self.expected["prompt"].as_str().expect("a prompt")
    }

    fn order(&self) -> Order<'_> {
        let (width, height) = self.size();
        let seed = self.expected["seed"].as_u64().expect("a seed");
        Order { prompt: self.prompt(), width, height, seed, references: &[] }
    }

    fn settings(&self) -> Settings {
        Settings {
            steps: count(&self.expected["steps"]),
            guidance: self.expected["guidance"].as_f64().expect("a number") as f32,
            negative: self.expected["negative"].as_str().expect("a prompt").into(),
        }
    }

    fn assert_close(&self, name: &str, found: &[f32]) {
        let expected = &self.expected["values"][name];
        assert!(expected.is_object(), "{} lacks {name}", self.name);
        assert_close(&format!("{} {name}", self.name), found, expected);
    }

    /// All recorded values of a part, by the names that the graph gives them.
    fn assert_part(&self, part: &str, graph: Graph, inputs: &[(&str, Input<'_>)]) {
        let session = Session::load(graph).expect("a graph that runs");
        let values = self.expected["values"].as_object().expect("an object");
        let mut compared = 0;
        for name in values.keys().filter_map(|name| name.strip_prefix(part)) {
            let [found] = session.run(inputs, [name]).expect("a run");
            self.assert_close(&format!("{part}{name}"), &found);
            compared += 1;
        }
        assert!(compared > 0, "{part}");
    }

    fn latent(&self, channels: usize, factor: usize) -> ([usize; 4], Vec<f32>) {
        let (width, height) = self.size();
        let shape = [1, channels, height / factor, width / factor];
        (shape, Noise::new(7).normal(shape.iter().product()))
    }
}

fn models() -> [Model; 2] {
    [Model::new("sd15"), Model::new("lcm")]
}

#[test]
fn noise_is_that_of_pytorch() {
    for case in json("noise.json").as_array().expect("a list") {
        let seed = case["seed"].as_u64().expect("a seed");
        assert_close(&format!("seed {seed}"), &Noise::new(seed).normal(count(&case["length"])), case);
    }
    assert_ne!(Noise::new(1).normal(16), Noise::new(1 + (1 << 32)).normal(16), "the upper half of a seed counts");
}

#[test]
fn schedulers_take_the_same_steps() {
    for case in json("schedulers.json").as_array().expect("a list") {
        let fields = case["config"].as_object().expect("an object").clone();
        let name = format!("{} in {} steps", case["config"], case["steps"]);
        let mut scheduler = scheduler(&Config::of("case", fields), count(&case["steps"])).expect("a scheduler");
        let times: Vec<f64> = scheduler.times().iter().copied().map(f64::from).collect();
        let expected = floats(&case["times"]);
        assert_eq!(times.len(), expected.len(), "{name}");
        assert!(times.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3), "{name}: {times:?}, not {expected:?}");
        let mut noise = Noise::new(5);
        let mut sample: Vec<f32> = noise.normal(24).into_iter().map(|x| x * scheduler.initial_scale()).collect();
        for (step, after) in case["after"].as_array().expect("a list").iter().enumerate() {
            let time = times[step];
            let shown = scheduler.scale(step, &sample);
            let model = |(at, x): (usize, &f32)| f64::from(x.tanh()) * 0.7 + 0.1 * (time / 100.0 + at as f64).sin();
            let answer: Vec<f32> = shown.iter().enumerate().map(|shown| model(shown) as f32).collect();
            scheduler.step(step, &answer, &mut sample, &mut noise);
            let found: Vec<f64> = sample.iter().copied().map(f64::from).collect();
            let worst = error(&found, &floats(after));
            assert!(worst < TOLERANCE, "{name}: {worst:e} at step {step}: {found:?}, not {after}");
        }
    }
}

#[test]
fn prompts_have_the_same_tokens() {
    for model in models() {
        let pipeline = model.pipeline();
        for case in model.expected["tokens"].as_array().expect("a list") {
            let expected: Vec<i32> = floats(&case["ids"]).into_iter().map(|id| id as i32).collect();
            let prompt = case["prompt"].as_str().expect("a prompt");
            assert_eq!(pipeline.tokens(prompt).expect("tokens"), expected, "{} {prompt:?}", model.name);
        }
    }
}

#[test]
fn the_text_encoder_gives_the_same_numbers() {
    for model in models() {
        let ids = model.pipeline().tokens(model.prompt()).expect("tokens");
        let clip = Clip::read(&model.config("text_encoder")).expect("a text encoder");
        let graph = clip.graph(&model.weights("text_encoder", "model.safetensors")).expect("a graph");
        model.assert_part("text.", graph, &[("ids", Input::Ids(&ids))]);
    }
}

#[test]
fn every_block_of_the_unet_gives_the_same_numbers() {
    for model in models() {
        let mut pipeline = model.pipeline();
        let context = pipeline.embed(model.prompt()).expect("an embedding").states;
        let unet = Unet::read(&model.config("unet")).expect("a UNet");
        let ([_, _, height, width], latent) = model.latent(4, pipeline.traits().side_multiple);
        let weights = model.weights("unet", "diffusion_pytorch_model.safetensors");
        let tokens = context.len() / unet.context;
        let graph = unet.graph(&weights, height, width, tokens).expect("a graph");
        let time = unet.embed_time(801.0);
        let (latents, times, contexts) = ([1, 4, height, width], [1, time.len()], [tokens, unet.context]);
        let mut inputs = vec![
            ("latent", Input::Floats(&latents, &latent)),
            ("time", Input::Floats(&times, &time)),
            ("context", Input::Floats(&contexts, &context)),
        ];
        let guidance = unet.guidance.map(|size| embed_guidance(8.5, size));
        let guidances = [1, guidance.as_ref().map_or(0, Vec::len)];
        if let Some(guidance) = &guidance {
            inputs.push(("guidance", Input::Floats(&guidances, guidance)));
        }
        model.assert_part("unet.", graph, &inputs);
    }
}

#[test]
fn every_block_of_the_decoder_gives_the_same_numbers() {
    let [large, tiny] = models();
    let (shape, latent) = large.latent(4, 8);
    let vae = Vae::read(&large.config("vae")).expect("an autoencoder");
    let latent: Vec<_> = latent.into_iter().map(|x| x / vae.scaling).collect();
    let weights = large.weights("vae", "diffusion_pytorch_model.safetensors");
    let graph = vae.graph(&weights, shape[2], shape[3]).expect("a graph");
    large.assert_part("vae.", graph, &[("latent", Input::Floats(&shape, &latent))]);

    let (shape, latent) = tiny.latent(4, 8);
    let vae = TinyVae::read(&tiny.config("vae")).expect("an autoencoder");
    let latent: Vec<_> = latent.into_iter().map(|x| x / vae.scaling).collect();
    let weights = tiny.weights("vae", "diffusion_pytorch_model.safetensors");
    let graph = vae.graph(&weights, shape[2], shape[3]).expect("a graph");
    tiny.assert_part("vae.", graph, &[("latent", Input::Floats(&shape, &latent))]);
}

#[test]
fn every_step_and_the_picture_are_the_same() {
    for model in models() {
        let mut pipeline = model.pipeline();
        let (order, settings) = (model.order(), model.settings());
        let prompt = pipeline.embed(order.prompt).expect("an embedding");
        // Models whose guidance is an input are asked once a step.
        let negative = pipeline.traits().negative.then(|| pipeline.embed(&settings.negative).expect("an embedding"));
        let guide = Guide { prompt, negative, guidance: settings.guidance, references: Vec::new() };
        let shape = pipeline.latent_shape(order.width, order.height).expect("a size");
        let mut steps = Vec::new();
        let latent = pipeline.denoise(shape, order.seed, settings.steps, &guide, |_, _, sample| {
            steps.push(sample.to_vec());
            Ok(())
        });
        for (step, sample) in steps.iter().enumerate() {
            model.assert_close(&format!("step.{step}"), sample);
        }
        let decoded = pipeline.decode(&latent.expect("a latent picture")).expect("a picture");
        let mut heard = Vec::new();
        let picture = pipeline.render(&order, &settings, |done, of| heard.push((done, of)), &CancellationToken::new());
        let picture = picture.expect("a picture");
        assert_eq!(decoded, picture);
        assert_eq!(heard, (1..=steps.len()).map(|done| (done, steps.len())).collect::<Vec<_>>());
        assert_eq!((picture.width() as usize, picture.height() as usize), model.size());
        // Numbers that lie between two bytes may be rounded to either.
        let expected = &model.expected["values"]["picture"];
        let bytes = picture.as_rgb().iter().copied().step_by(count(&expected["stride"]));
        for (found, expected) in bytes.zip(floats(&expected["numbers"])) {
            assert!((f64::from(found) - expected).abs() <= 1.0, "{}: {found}, not {expected}", model.name);
        }
    }
}

#[test]
fn a_seed_decides_the_picture() {
    let model = Model::new("lcm");
    let (mut pipeline, settings, never) = (model.pipeline(), model.settings(), CancellationToken::new());
    let mut render = |seed, prompt| {
        let order = Order { seed, prompt, ..model.order() };
        pipeline.render(&order, &settings, |_, _| {}, &never).expect("a picture")
    };
    let first = render(1, "a fox");
    assert_ne!(render(2, "a fox"), first);
    assert_ne!(render(1, "a house"), first);
    assert_eq!(render(1, "a fox"), first);
}

#[test]
fn a_model_says_how_it_is_used() {
    let traits = |name| Model::new(name).pipeline().traits().clone();
    let [usual, distilled] = [traits("sd15"), traits("lcm")];
    assert_eq!((usual.steps, usual.guidance, usual.negative, usual.references), (25, 7.5, true, 0));
    assert_eq!((distilled.steps, distilled.guidance, distilled.negative, distilled.references), (4, 8.5, false, 0));
    assert_eq!((usual.side_multiple, distilled.side_multiple), (8, 8));
}

#[test]
fn a_cancelled_render_ends_between_steps() {
    let model = Model::new("lcm");
    let (mut pipeline, cancel) = (model.pipeline(), CancellationToken::new());
    let mut last = 0;
    let after = |done, _| {
        last = done;
        if done == 2 {
            cancel.cancel();
        }
    };
    let result = pipeline.render(&model.order(), &model.settings(), after, &cancel);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert_eq!(last, 2);
}
