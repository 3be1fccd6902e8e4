//! Turns prompts into a model's tokens.

mod bpe;
mod clip;
mod openai_clip;
mod qwen;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};

use crate::config::{Config, read_text};
use crate::{Error, Result};

use bpe::AddedToken;
pub use clip::Clip;
pub use qwen::{Qwen, Thinking};

/// The characters that represent bytes, in the vocabularies' order: visible characters represent themselves, then
/// others represent the rest.
fn symbols() -> impl Iterator<Item = char> {
    [('!', '~'), ('¡', '¬'), ('®', 'ÿ'), ('Ā', 'Ń')].into_iter().flat_map(|(first, last)| first..=last)
}

/// Unpacks a built-in vocabulary's merges, one per line, in the order in which they are applied.
fn unpacked(merges: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(merges).read_to_string(&mut text).expect("a test reads the merges");
    text
}

/// The vocabulary and merges, from the two files in older folders or the single one in newer folders.
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
        .map_err(|error| Error::Files(format!("{} is not JSON: {error}", path.display())))?;
    let merges = read_text(&folder.join("merges.txt"))?;
    let merges: Vec<_> = merges.lines().filter(|line| !line.starts_with("#version") && !line.is_empty()).collect();
    Ok((vocabulary, json!(merges)))
}

fn added(name: &str, id: i32) -> AddedToken {
    described(name, id, true, &Value::Null)
}

/// A token with the flags from an object.
fn described(name: &str, id: i32, special: bool, flags: &Value) -> AddedToken {
    let flag = |key: &str, default: bool| flags.get(key).and_then(Value::as_bool).unwrap_or(default);
    AddedToken {
        content: name.into(),
        id,
        normalized: flag("normalized", !special),
        single_word: flag("single_word", false),
        lstrip: flag("lstrip", false),
        rstrip: flag("rstrip", false),
    }
}

/// Tokens in addition to a vocabulary's pieces, as `transformers` reads them from up to four files.
#[derive(Debug, Default)]
struct Extras {
    /// Tokens with a role, such as `pad_token`, by role.
    roles: Map<String, Value>,
    numbered: BTreeMap<i32, AddedToken>,
}

/// The roles of special tokens.
const ROLES: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

impl Extras {
    fn read(folder: &Path, config: &Config) -> Result<Self> {
        let mut extras = Self::default();
        for role in ROLES {
            extras.roles.extend(config.get(role).map(|token| (role.to_owned(), token.clone())));
        }
        if let Some(listed) = config.get("added_tokens_decoder") {
            let wrong = || config.wrong("added_tokens_decoder", "an object of tokens is needed");
            for (id, token) in listed.as_object().ok_or_else(wrong)? {
                extras.add(id.parse().map_err(|_| wrong())?, token).ok_or_else(wrong)?;
            }
            return Ok(extras);
        }
        // Only this file has the right padding in published Stable Diffusion 2 folders; their configuration differs.
        let map = folder.join("special_tokens_map.json");
        if map.exists() {
            let map = Config::read(&map)?;
            for role in ROLES {
                extras.roles.extend(map.get(role).map(|token| (role.to_owned(), token.clone())));
            }
        }
        let list = folder.join("added_tokens.json");
        if list.exists() {
            let unusable = || Error::Files(format!("{} holds no object of tokens", list.display()));
            let whole: Value = serde_json::from_str(&read_text(&list)?).map_err(|_| unusable())?;
            for (name, id) in whole.as_object().ok_or_else(unusable)? {
                let special = extras.roles.values().any(|token| content(token) == Some(name));
                let token = json!({"content": name, "special": special, "normalized": !special});
                extras.add(number(id).ok_or_else(unusable)?, &token).ok_or_else(unusable)?;
            }
        }
        let whole = folder.join("tokenizer.json");
        if whole.exists() {
            let whole = Config::read(&whole)?;
            let wrong = || whole.wrong("added_tokens", "a list of tokens is needed");
            let listed = whole.get("added_tokens").map(|listed| listed.as_array().ok_or_else(wrong)).transpose()?;
            for token in listed.into_iter().flatten() {
                let id = token.get("id").and_then(number).ok_or_else(wrong)?;
                extras.add(id, token).ok_or_else(wrong)?;
            }
        }
        Ok(extras)
    }

    /// Adds a token; `None` if it isn't one.
    fn add(&mut self, id: i32, token: &Value) -> Option<()> {
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        self.numbered.insert(id, described(content(token)?, id, special, token));
        Some(())
    }

    /// The special token with a role.
    fn special(&self, role: &str, name: &str, id: i32) -> AddedToken {
        described(name, id, true, self.roles.get(role).unwrap_or(&Value::Null))
    }

    fn role(&self, role: &str) -> Option<&str> {
        self.roles.get(role).and_then(content)
    }

    /// The number of a token that is not in the vocabulary.
    fn id(&self, name: &str) -> Option<i32> {
        self.numbered.values().find(|token| token.content == name).map(|token| token.id)
    }
}

/// A token's text, which is either a string or an object around one.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content").and_then(Value::as_str))
}

fn number(id: &Value) -> Option<i32> {
    id.as_i64().and_then(|id| i32::try_from(id).ok())
}
