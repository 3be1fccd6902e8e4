//! Whether CUDA has a kernel for every operator of every graph. One that it lacks would run on the processor, with copies of
//! its feature maps there and back. `cuda.txt` lists the kernels and says where the list is from.

use std::collections::{BTreeSet, HashMap};

use rten_onnx::onnx::{DataType, GraphProto, ModelProto, NodeProto};
use serde_json::Value;
use tintype_diffusion::config::Config;
use tintype_diffusion::graph::Graph;
use tintype_diffusion::graph::template::Template;
use tintype_diffusion::models::clip::Clip;
use tintype_diffusion::models::flux2::Flux2;
use tintype_diffusion::models::qwen3::Qwen3;
use tintype_diffusion::models::tiny_vae::TinyVae;
use tintype_diffusion::models::unet::Unet;
use tintype_diffusion::models::vae::Vae;
use tintype_diffusion::models::z_image::ZImage;
use tintype_diffusion::weights::{Floats, Weights};

use crate::fixtures::fixture;

const LIST: &str = include_str!("placement/cuda.txt");

/// The tiny models of all families.
const MODELS: [&str; 8] = ["sd15", "lcm", "turbo", "sdxs", "sdxl", "klein", "z_image", "other_vae"];

/// A kernel of the list.
struct Kernel {
    /// The version of the operator in the opset of the graphs.
    version: u32,
    first: u32,
    last: Option<u32>,
    /// Types of each input.
    inputs: Vec<Vec<&'static str>>,
}

impl Kernel {
    fn is_for_the_version(&self) -> bool {
        self.first == self.version || self.last.is_some_and(|last| (self.first..=last).contains(&self.version))
    }

    fn takes(&self, at: usize, kind: &str) -> bool {
        let types = self.inputs.get(at).or(self.inputs.last());
        types.is_some_and(|types| types.contains(&kind))
    }
}

fn kernels() -> HashMap<&'static str, Kernel> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#') && !line.starts_with("release "));
    let kernel = |line: &'static str| {
        let [name, version, versions, types] =
            line.split_whitespace().collect::<Vec<_>>().try_into().expect("four columns");
        let (first, last) = match versions.split_once('-') {
            Some((first, last)) => (first, Some(last.parse().expect("a version"))),
            None => (versions.strip_suffix('+').expect("a version and a plus"), None),
        };
        let inputs = types.split(';').map(|types| types.split(',').collect()).collect();
        let [version, first] = [version, first].map(|version| version.parse().expect("a version"));
        (name, Kernel { version, first, last, inputs })
    };
    lines.map(kernel).collect()
}

fn name_of(data_type: DataType) -> &'static str {
    match data_type {
        DataType::FLOAT => "float",
        DataType::FLOAT16 => "float16",
        DataType::BFLOAT16 => "bfloat16",
        DataType::INT32 => "int32",
        DataType::INT64 => "int64",
        DataType::INT8 => "int8",
        DataType::UINT8 => "uint8",
        other => panic!("the type {other:?} is not in the list"),
    }
}

/// The type of what a node gives.
fn result(node: &NodeProto, inputs: &[&'static str]) -> &'static str {
    match node.op_type.as_deref() {
        Some("Cast") => {
            let to = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("to"));
            let to = to.and_then(|attribute| attribute.i).expect("a type");
            name_of(DataType(i32::try_from(to).expect("a small number")))
        }
        Some("QuantizeLinear") => inputs[2],
        Some("MatMulInteger") => "int32",
        _ => inputs[0],
    }
}

/// The operators of an ONNX file that CUDA has no kernel for, each with the reason.
fn lacking(onnx: &[u8]) -> BTreeSet<String> {
    let graph: GraphProto = ModelProto::parse_buf(onnx).expect("ONNX").graph.expect("a graph");
    let mut types: HashMap<String, &'static str> = HashMap::new();
    for tensor in &graph.initializer {
        types.insert(tensor.name.clone().expect("a name"), name_of(tensor.data_type.expect("a type")));
    }
    for input in &graph.input {
        let tensor = input.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref()).expect("a tensor");
        types.insert(input.name.clone().expect("a name"), name_of(tensor.elem_type.expect("a type")));
    }
    let (kernels, mut lacking) = (kernels(), BTreeSet::new());
    assert!(graph.node.len() > 10, "a graph");
    for node in &graph.node {
        let op = node.op_type.as_deref().expect("an operator");
        let inputs: Vec<_> = node.input.iter().map(|name| if name.is_empty() { "" } else { types[name] }).collect();
        match kernels.get(op) {
            None => drop(lacking.insert(format!("{op}: not in the list"))),
            Some(kernel) if !kernel.is_for_the_version() => {
                lacking.insert(format!("{op}: no kernel for its version {}", kernel.version));
            }
            Some(kernel) => {
                let wrong = inputs.iter().enumerate().find(|(at, kind)| !kind.is_empty() && !kernel.takes(*at, kind));
                lacking.extend(wrong.map(|(at, kind)| format!("{op}: no kernel for input {at} of {kind}")));
            }
        }
        types.insert(node.output[0].clone(), result(node, &inputs));
    }
    lacking
}

/// How graphs are written.
#[derive(Clone, Copy, Debug)]
struct Way {
    floats: Floats,
    any_size: bool,
}

/// The two graphs of each part of a model for different sizes, by the names of the parts.
fn graphs(model: &str, way: Way) -> Vec<(String, [Graph; 2])> {
    let folder = fixture(model);
    let mut all = Vec::new();
    let parts = std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    for part in parts.filter(|part| part.join("config.json").is_file()) {
        let name = part.file_name().expect("a name").to_string_lossy().into_owned();
        let config = Config::read(&part.join("config.json")).expect("a configuration");
        let stem = if name.starts_with("text_encoder") { "model" } else { "diffusion_pytorch_model" };
        let weights = Weights::open_part(&part, stem).expect("weights");
        let weights = weights.computing_in(way.floats).for_any_size(way.any_size);
        for (kind, both) in of_part(&config, &weights) {
            all.push((format!("{model}/{name} {kind}"), both));
        }
    }
    assert!(!all.is_empty(), "{model}");
    all
}

fn of_part(config: &Config, weights: &Weights) -> Vec<(&'static str, [Graph; 2])> {
    let class = match config.get("_class_name").or(config.get("model_type")) {
        Some(Value::String(class)) => class.clone(),
        other => panic!("{other:?}"),
    };
    let two = |graph: &dyn Fn(usize) -> tintype_diffusion::Result<Graph>| [0, 1].map(|at| graph(at).expect("a graph"));
    let sizes = [[6, 10], [14, 22]];
    match class.as_str() {
        "clip_text_model" => {
            let clip = Clip::read(config).expect("a text encoder");
            vec![("plain", two(&|_| clip.graph(weights))), ("vectors", two(&|_| clip.graph_with_vectors(weights)))]
        }
        "qwen3" => {
            let qwen = Qwen3::read(config).expect("a text encoder");
            vec![("states", two(&|at| qwen.graph(weights, [5, 11][at], &[1, qwen.layers - 1])))]
        }
        "UNet2DConditionModel" => {
            let unet = Unet::read(config).expect("a UNet");
            vec![("noise", two(&|at| unet.graph(weights, at + 2, sizes[at], [77, 154][at])))]
        }
        "Flux2Transformer2DModel" => {
            let flux = Flux2::read(config).expect("a transformer");
            let references = [vec![[4, 14]], vec![[12, 8], [16, 26]]];
            vec![("velocity", two(&|at| flux.graph(weights, sizes[at], &references[at], 512)))]
        }
        "ZImageTransformer2DModel" => {
            let transformer = ZImage::read(config).expect("a transformer");
            let sizes = [[12, 20], [28, 44]];
            vec![("velocity", two(&|at| transformer.graph(weights, sizes[at], [5, 40][at])))]
        }
        "AutoencoderTiny" => {
            let vae = TinyVae::read(config).expect("an autoencoder");
            let encoder = |height, width| vae.encoder_graph(weights, height, width);
            of_autoencoder(weights, &encoder, &|height, width| vae.graph(weights, height, width), vae.factor())
        }
        "AutoencoderKL" | "AutoencoderKLFlux2" => {
            let vae = Vae::read(config).expect("an autoencoder");
            let encoder = |height, width| vae.encoder_graph(weights, height, width);
            of_autoencoder(weights, &encoder, &|height, width| vae.graph(weights, height, width), vae.factor())
        }
        other => panic!("{other} is not covered"),
    }
}

type Writes<'a> = &'a dyn Fn(usize, usize) -> tintype_diffusion::Result<Graph>;

/// The graphs of an encoder, if the file has one, and of a decoder.
fn of_autoencoder(
    weights: &Weights,
    encoder: Writes<'_>,
    decoder: Writes<'_>,
    factor: usize,
) -> Vec<(&'static str, [Graph; 2])> {
    let encodes = weights.names().any(|name| name.starts_with("encoder."));
    let both = |writes: Writes<'_>, by: usize| {
        [[6, 10], [14, 22]].map(|[height, width]| writes(height * by, width * by).expect("a graph"))
    };
    let encode = encodes.then(|| ("encode", both(encoder, factor)));
    encode.into_iter().chain([("decode", both(decoder, 1))]).collect()
}

#[test]
fn cuda_has_a_kernel_for_every_operator_of_every_graph() {
    for floats in [Floats::F32, Floats::F16, Floats::Bf16] {
        for model in MODELS {
            for (name, [one, other]) in graphs(model, Way { floats, any_size: true }) {
                let template = Template::of(&one, &other).expect("a file").expect("one graph for all sizes");
                for onnx in [one.onnx().expect("a file"), template.onnx] {
                    let lacking = lacking(&onnx);
                    assert!(lacking.is_empty(), "{name} in {floats:?} would run on the processor: {lacking:?}");
                }
            }
        }
    }
}

#[test]
fn graphs_for_one_size_would_run_in_part_on_the_processor() {
    let found: BTreeSet<_> = MODELS
        .iter()
        .flat_map(|model| graphs(model, Way { floats: Floats::F32, any_size: false }))
        .flat_map(|(_, [one, _])| lacking(&one.onnx().expect("a file")))
        .collect();
    let expected = [
        "Identity: no kernel for its version 23".to_owned(),
        "InstanceNormalization: no kernel for its version 22".to_owned(),
    ];
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn the_list_is_that_of_the_pinned_release() {
    let pinned = include_str!("../../engines/src/models/library.toml");
    let version = pinned.lines().find_map(|line| line.strip_prefix("version = ")).expect("a version").trim_matches('"');
    let listed = LIST.lines().find_map(|line| line.strip_prefix("release ")).expect("a release");
    assert_eq!(listed, version, "compare cuda.txt with the kernels of the new release");
}
