//! FLUX.2 klein and Z-Image in files for ComfyUI, made of the folders. `comfyui.py` recorded what such files hold.

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::Value;
use tintype_diffusion::weights::Weights;

use crate::fixtures::{Tensors, write};

fn count(value: &Value) -> usize {
    usize::try_from(value.as_u64().expect("a whole number")).expect("a small number")
}

/// The tensors of a part of the model `name` of the folder `recorded`, as a file holds them.
pub fn part(recorded: &Path, name: &str, part: &str) -> Tensors {
    let stem = if part == "text_encoder" { "model" } else { "diffusion_pytorch_model" };
    let weights = Weights::open_part(&recorded.join(name).join(part), stem).expect("weights");
    if part == "text_encoder" {
        let tensors = weights.names().map(|name| {
            let entry = weights.get(name).expect("a tensor");
            let tensor = (entry.dtype, entry.shape.clone(), weights.bytes(entry).to_vec());
            (format!("model.{}", name.trim_start_matches("model.")), tensor)
        });
        return tensors.collect();
    }
    let text = std::fs::read_to_string(recorded.join("comfyui/rows.json")).expect("a fixture");
    let rows: Value = serde_json::from_str(&text).expect("JSON");
    let tensor = |(name, recorded): (&String, &Value)| {
        let shape = recorded["shape"].as_array().expect("sizes").iter().map(count).collect::<Vec<_>>();
        let (mut dtype, mut bytes) = (Dtype::F32, Vec::new());
        for part in recorded["rows"].as_array().expect("a list") {
            let entry = weights.get(part[0].as_str().expect("a name")).expect("a tensor");
            let each = entry.bytes.len() / entry.shape.first().copied().unwrap_or(1);
            dtype = entry.dtype;
            bytes.extend(&weights.bytes(entry)[count(&part[1]) * each..count(&part[2]) * each]);
        }
        (name.clone(), (dtype, shape, bytes))
    };
    rows[name][part].as_object().expect("tensors").iter().map(tensor).collect()
}

/// The files of a part in the folder of ComfyUI, and how the names of its tensors begin in one file for all.
pub const FILES: [(&str, &str, &str); 3] = [
    ("transformer", "diffusion_models/model.safetensors", "model.diffusion_model."),
    ("text_encoder", "text_encoders/qwen_3_tiny.safetensors", "text_encoders.qwen3_tiny.transformer."),
    ("vae", "vae/tiny-vae.safetensors", "vae."),
];

/// What the tensors of the tiny models do not tell, or tell otherwise than those of the published ones.
pub fn write_configurations(recorded: &Path, name: &str, to: &Path) {
    std::fs::create_dir_all(to.join("tokenizer")).expect("a folder");
    std::fs::create_dir_all(to.join("vae")).expect("a folder");
    let tokenizer = std::fs::read_dir(recorded.join(name).join("tokenizer")).expect("a folder");
    let tokenizer = tokenizer.map(|entry| format!("tokenizer/{}", entry.expect("an entry").file_name().display()));
    for file in tokenizer.chain(["model_index.json", "vae/config.json"].map(str::to_owned)) {
        std::fs::copy(recorded.join(name).join(&file), to.join(&file)).expect("a copy");
    }
}

/// Lays out a model as ComfyUI does. Gives the file of the transformer.
pub fn write_comfyui(recorded: &Path, name: &str, to: &Path) -> PathBuf {
    write_configurations(recorded, name, to);
    for (of, file, _) in FILES {
        std::fs::create_dir_all(to.join(file).parent().expect("a folder")).expect("a folder");
        write(&to.join(file), &part(recorded, name, of));
    }
    to.join(FILES[0].1)
}
