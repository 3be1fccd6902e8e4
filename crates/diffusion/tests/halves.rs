//! Numbers of 16 bits on ONNX Runtime: how far their results are from those of 32.

use half::f16;
use tempfile::TempDir;
use tintype_diffusion::config::Config;
use tintype_diffusion::graph::Builder;
use tintype_diffusion::graph::rounding::Rounding;
use tintype_diffusion::models::vae::Vae;
use tintype_diffusion::noise::Noise;
use tintype_diffusion::quantise::{Rules, WeightPreparation};
use tintype_diffusion::runtime::{Device, Input, Runtime};
use tintype_diffusion::weights::{Floats, Weights};
use tintype_diffusion::{Error, Lora, Options, Pipeline, Precision};

use crate::fixtures::fixture;
use crate::parity::compared::compared;
use crate::parity::library::library;

fn options(precision: Precision) -> Options {
    let runtime = Runtime::onnxruntime(&library(), Device::Cpu).expect("ONNX Runtime");
    Options { precision, runtime, ..Options::default() }
}

#[test]
fn pictures_in_16_bits_are_close_to_32() {
    // The other models take a step or four. This one takes 25, with guidance, and an error grows with each.
    for (name, most) in [("sd15", 4.0), ("lcm", 0.1), ("klein", 0.1), ("sdxl", 0.1), ("z_image", 0.1)] {
        let options = options(Precision::F16);
        let suit = WeightPreparation { options: &options, rules: Rules::of_this_machine(), progress: &mut |_| {} };
        let found = compared(&fixture(name), suit);
        let most = [0.003, 0.003, most];
        assert!(found.iter().zip(most).all(|(found, most)| *found > 0.0 && *found < most), "{name}: {found:?}");
    }
}

#[test]
fn loras_are_merged_into_16_bits() {
    let cache = TempDir::new().expect("a folder");
    let path = fixture("lora").join("sdxl_kohya.safetensors");
    let loras = vec![Lora { path, weight: 0.7 }];
    let options = Options { loras, cache: Some(cache.path().into()), ..options(Precision::F16) };
    let suit = WeightPreparation { options: &options, rules: Rules::of_this_machine(), progress: &mut |_| {} };
    let found = compared(&fixture("sdxl"), suit);
    assert!(found.iter().zip([0.003, 0.003, 0.1]).all(|(found, most)| *found > 0.0 && *found < most), "{found:?}");
    // Beyond the range of 16 bits.
    let mut tensors = std::fs::read(&options.loras[0].path).expect("a file");
    let begin = 8 + usize::from_le_bytes(tensors[..8].try_into().expect("8 bytes"));
    tensors[begin..].as_chunks_mut::<2>().0.iter_mut().for_each(|half| *half = f16::MAX.to_le_bytes());
    let path = cache.path().join("strong.safetensors");
    std::fs::write(&path, tensors).expect("a file");
    let options = Options { loras: vec![Lora { path, weight: 1.0 }], ..options };
    let error = Pipeline::open(&fixture("sdxl"), &options).err();
    assert!(matches!(&error, Some(Error::Lora(text)) if text.contains("beyond the range")), "{error:?}");
}

/// The largest and the mean distance of colours from those of a decoder in 32 bits, of 255, for each way to compute it.
fn distances(vae: &Vae, weights: &Weights, runtime: &Runtime) -> [[f64; 2]; 3] {
    let shape = [1, vae.channels, 12, 16];
    let latent = Noise::new(3).normal(shape.iter().product());
    let decode = |rounding: Option<Rounding>| {
        let graph = vae.graph(weights, shape[2], shape[3]).expect("a graph");
        let graph = if let Some(rounding) = rounding { graph.rounded(rounding) } else { graph };
        let session = runtime.load(graph).expect("a session");
        let [planes] = session.run(&[("latent", Input::Floats(&shape, &latent))], ["picture"]).expect("planes");
        planes.into_iter().map(|x| f64::from(x.clamp(-1.0, 1.0)) * 127.5).collect::<Vec<_>>()
    };
    let wide = decode(None);
    [Rounding::Products, Rounding::All(Floats::F16), Rounding::All(Floats::Bf16)].map(|rounding| {
        let found = decode(Some(rounding));
        let apart = found.iter().zip(&wide).map(|(a, b)| (a - b).abs());
        [apart.clone().fold(0.0, f64::max), apart.sum::<f64>() / wide.len() as f64]
    })
}

#[test]
fn a_decoder_in_tf32_is_closer_to_32_bits_than_one_in_16() {
    let runtime = options(Precision::F32).runtime;
    let mut worst = [[0.0_f64; 2]; 3];
    for name in ["../trained/model", "sd15", "sdxl", "klein", "z_image", "other_vae/large"] {
        let folder =
            if name.contains('/') && !name.starts_with("..") { fixture(name) } else { fixture(name).join("vae") };
        let vae = Vae::read(&Config::read(&folder.join("config.json")).expect("a configuration")).expect("a decoder");
        let weights = Weights::open_part(&folder, "diffusion_pytorch_model").expect("weights");
        let found = distances(&vae, &weights, &runtime);
        println!("{name}: TF32 {:.3?}, f16 {:.3?}, bf16 {:.3?}", found[0], found[1], found[2]);
        for (worst, found) in worst.iter_mut().flatten().zip(found.as_flattened()) {
            *worst = worst.max(*found);
        }
    }
    let [tf32, f16, bf16] = worst;
    assert!(tf32[0] > 0.0 && tf32[0] < 2.0 && tf32[1] < 0.1, "TF32: {tf32:?}");
    assert!(f16[0] < 4.0 && f16[1] < 0.2 && f16[1] > tf32[1], "f16: {f16:?}");
    assert!(bf16[0] < 30.0 && bf16[1] < 1.5 && bf16[1] > 5.0 * tf32[1], "bf16: {bf16:?}");
}

#[test]
fn repeated_pixels_are_those_of_resize() {
    let runtime = options(Precision::F32).runtime;
    let numbers: Vec<f32> = (0_u8..2 * 3 * 4 * 5).map(f32::from).collect();
    for (any_size, [height, width]) in [(false, [8, 10]), (false, [7, 10]), (true, [8, 10]), (true, [7, 9])] {
        let weights = Weights::default().for_any_size(any_size);
        let mut b = Builder::new(&weights, "");
        let x = b.input("x", &[2, 3, 4, 5]);
        let resized = b.enlarge(&x, height, width);
        b.output("resized", &resized);
        let repeated = b.repeat_pixels(&x, height, width);
        b.output("repeated", &repeated);
        let session = runtime.load(b.finish(|_| true).expect("a graph")).expect("a session");
        let found = session.run(&[("x", Input::Floats(&[2, 3, 4, 5], &numbers))], ["resized", "repeated"]);
        let [resized, repeated] = found.expect("numbers");
        assert_eq!(repeated, resized, "{height}x{width}");
        assert_eq!(resized.len(), 2 * 3 * height * width);
    }
}

#[test]
fn a_type_that_the_processor_lacks_is_refused_with_a_message() {
    let mut pipeline = Pipeline::open(&fixture("lcm"), &options(Precision::Bf16)).expect("a model");
    let error = pipeline.embed("a fox").err();
    assert!(matches!(&error, Some(Error::Run(text)) if text.contains("refused a graph")), "{error:?}");
    for precision in [Precision::F16, Precision::Bf16] {
        let error = Pipeline::open(&fixture("lcm"), &Options { runtime: Runtime::Rten, ..options(precision) }).err();
        assert!(matches!(&error, Some(Error::Setting(text)) if text.contains("rten")), "{error:?}");
    }
}
