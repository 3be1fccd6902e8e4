//! Turn prompts into the tokens of a model.

mod clip;
mod qwen;

use std::path::Path;

use serde_json::{Value, json};

use crate::config::{Config, read_text};
use crate::{Error, Result};

pub use clip::Clip;
pub use qwen::{Qwen, Thinking};

/// The name of a special token, which is a string or an object around one.
fn special(config: &Config, key: &str) -> Option<String> {
    let value = config.get(key)?;
    let name = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
    name.map(str::to_owned)
}

/// The vocabulary and the merges, from the two files that older folders have or the one of newer ones.
fn pieces(folder: &Path) -> Result<(Value, Value)> {
    if !folder.join("vocab.json").exists() && folder.join("tokenizer.json").exists() {
        let whole = Config::read(&folder.join("tokenizer.json"))?;
        let model = whole.get("model").filter(|model| model.get("type").is_some_and(|kind| kind == "BPE"));
        let piece = |key: &str| model.and_then(|model| model.get(key)).cloned();
        return match (piece("vocab"), piece("merges")) {
            (Some(vocabulary @ Value::Object(_)), Some(merges @ Value::Array(_))) => Ok((vocabulary, merges)),
            _ => Err(whole.wrong("model", "a byte-pair encoding is needed")),
        };
    }
    let path = folder.join("vocab.json");
    let vocabulary: Value = serde_json::from_str(&read_text(&path)?)
        .map_err(|error| Error::Model(format!("{} is not JSON: {error}", path.display())))?;
    let merges = read_text(&folder.join("merges.txt"))?;
    let merges: Vec<_> = merges.lines().filter(|line| !line.starts_with("#version") && !line.is_empty()).collect();
    Ok((vocabulary, json!(merges)))
}

/// A token that is found in a prompt before anything else.
fn added(name: &str, id: i32) -> Value {
    json!({"id": id, "content": name, "special": true, "normalized": false,
        "single_word": false, "lstrip": false, "rstrip": false})
}
