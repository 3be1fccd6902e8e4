//! The tiny models in `parity/`, which most tests share.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;
use tintype_diffusion::{Options, Order, Pipeline, Settings};
use tintype_engine::{CancellationToken, Picture};

/// The tensors of a file.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub fn write(path: &Path, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor")));
    safetensors::serialize_to_file(views, None, path).expect("a file");
}

/// A tensor of numbers, which repeat. Those of other types than 16 bits have 32.
pub fn tensor(dtype: Dtype, shape: &[usize], numbers: &[f32]) -> (Dtype, Vec<usize>, Vec<u8>) {
    let numbers = numbers.iter().cycle().take(shape.iter().product());
    let bytes = match dtype {
        Dtype::F16 => numbers.flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect(),
        Dtype::BF16 => numbers.flat_map(|number| bf16::from_f32(*number).to_le_bytes()).collect(),
        _ => numbers.flat_map(|number| number.to_le_bytes()).collect(),
    };
    (dtype, shape.to_vec(), bytes)
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity").join(name)
}

/// A copy of a folder, to be changed.
pub fn copy(folder: &Path) -> TempDir {
    let copied = TempDir::new().expect("a folder");
    copy_to(folder, copied.path());
    copied
}

pub fn copy_to(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let from = entry.expect("an entry").path();
        let to = to.join(from.file_name().expect("a name"));
        if from.is_dir() { copy_to(&from, &to) } else { fs::copy(&from, &to).map(drop).expect("a copy") }
    }
}

/// A small picture in two steps.
pub fn render(pipeline: &mut Pipeline) -> Picture {
    let order = Order { prompt: "a fox", width: 64, height: 64, seed: 3, references: &[], mask: None };
    let settings = Settings { steps: 2, ..pipeline.traits().settings() };
    pipeline.render(&order, &settings, |_| {}, &CancellationToken::new()).expect("a picture")
}

pub fn picture(model: &Path, options: &Options) -> Picture {
    render(&mut Pipeline::open(model, options).expect("a model"))
}
