//! The scales of a LoRA written by the PEFT library, which keeps them in a separate file beside the tensors.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Layer, Layers, names};
use crate::Result;
use crate::config::Config;
use crate::weights::Weights;

const BESIDE: &str = "adapter_config.json";

/// The parts of models that LoRA files can change.
const PARTS: [&str; 4] = ["text_encoder", "text_encoder_2", "unet", "transformer"];

/// A file's scales for each part, with the names used in its metadata; none if it needs none, because another program
/// wrote it or its tensors contain them.
pub(super) fn scales(
    path: &Path,
    layers: &Layers,
    weights: &Weights,
) -> std::result::Result<Map<String, Value>, String> {
    let mut open = layers.iter().filter(|(_, layer)| layer.is_of_peft && layer.alpha.is_none()).peekable();
    if open.peek().is_none() {
        return Ok(Map::new());
    }
    let beside = path.with_file_name(BESIDE);
    if !beside.is_file() {
        // Trainers for FLUX.2 publish such names without that file: the product is added as it is.
        let Some((_, layer)) = open.find(|((_, name), _)| !names::is_original(name)) else { return Ok(Map::new()) };
        return Err(format!(
            "{:?} has a name of PEFT, which keeps the alpha of a LoRA in another file: put the {BESIDE} of this LoRA beside \
             it",
            layer.key()
        ));
    }
    read(&beside, layers, weights).map_err(|error| error.to_string())
}

/// Compares a file's metadata with its magnitudes, which PEFT ignores in parts whose metadata doesn't mention them.
pub(super) fn check_magnitudes(scales: &Map<String, Value>, layers: &Layers) -> std::result::Result<(), String> {
    for ((named, _), layer) in layers {
        let Some(key) = layer.magnitudes_of_peft() else { continue };
        let note = |part: &str, key: &str| scales.get(&format!("{part}.{key}"));
        let is_without = |part: &&&str| {
            names::belongs(named, part)
                && note(part, "lora_alpha").is_some()
                && note(part, "use_dora") != Some(&Value::Bool(true))
        };
        if let Some(part) = PARTS.iter().find(is_without) {
            return Err(format!(
                "{key:?} has magnitudes, but the file's metadata lacks {:?}, so PEFT ignores them: set it to true, or use \
                 another LoRA",
                format!("{part}.use_dora")
            ));
        }
    }
    Ok(())
}

fn read(path: &Path, layers: &Layers, weights: &Weights) -> Result<Map<String, Value>> {
    let config = Config::read(path)?;
    config.one_of("peft_type", &["LORA"])?;
    match (config.flag("use_dora", false)?, layers.values().find_map(Layer::magnitudes_of_peft)) {
        (true, None) => {
            return Err(config.wrong("use_dora", "the file holds no magnitudes, so it belongs to another LoRA"));
        }
        (false, Some(key)) => return Err(config.wrong("use_dora", &format!("true is needed for {key:?}"))),
        _ => {}
    }
    if config.get("lora_alpha").is_none() {
        return Err(config.wrong("lora_alpha", "a number is needed"));
    }
    config.fraction("lora_alpha", 0.0)?;
    config.flag("use_rslora", false)?;
    let of_layers = config.get("alpha_pattern").cloned().unwrap_or_else(|| json!({}));
    let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let is_known = |all: &Map<String, Value>| all.iter().all(|(name, alpha)| is_plain(name) && alpha.is_number());
    if !of_layers.as_object().is_some_and(is_known) {
        return Err(config.wrong("alpha_pattern", "names of layers with numbers are needed"));
    }
    check_ranks(&config, layers, weights)?;
    let mut scales = Map::new();
    for part in PARTS {
        for key in ["lora_alpha", "use_rslora", "alpha_pattern"] {
            scales.extend(config.get(key).map(|value| (format!("{part}.{key}"), value.clone())));
        }
    }
    Ok(scales)
}

/// Compares the configured rank with the tensors' rank, which counts: one folder can hold several LoRA files.
fn check_ranks(config: &Config, layers: &Layers, weights: &Weights) -> Result<()> {
    let expected = config.number_or("r", 8)?;
    // Some layers have other ranks.
    if config.get("rank_pattern").and_then(Value::as_object).is_some_and(|ranks| !ranks.is_empty()) {
        return Ok(());
    }
    for key in layers.values().filter(|layer| layer.is_of_peft).filter_map(Layer::down) {
        let found = weights.get(key).and_then(|entry| entry.shape.first().copied());
        if found.is_some_and(|found| found != expected) {
            let expected = format!("{key:?} has another rank, so it belongs to another LoRA");
            return Err(config.wrong("r", &expected));
        }
    }
    Ok(())
}
