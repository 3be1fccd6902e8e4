//! CLIP's tokenizer.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::bpe::{Bpe, Style};
use super::{AddedToken, Extras, number, openai_clip, pieces};
use crate::config::Config;
use crate::{Error, Result};

/// From this value on, a prompt length means no limit.
const NO_LIMIT: u64 = 1 << 20;

pub(super) const BEGIN: &str = "<|startoftext|>";
pub(super) const END: &str = "<|endoftext|>";

/// CLIP's tokenizer.
#[derive(Debug)]
pub struct Clip {
    bpe: Bpe,
    begin: i32,
    end: i32,
    padding: i32,
    length: usize,
}

impl Clip {
    /// Reads a folder with `tokenizer_config.json`, and with `vocab.json` and `merges.txt`, or `tokenizer.json`; also
    /// `special_tokens_map.json` and `added_tokens.json`, if they are there. All prompts become `length` tokens.
    pub fn read(folder: &Path, length: usize) -> Result<Self> {
        let config = Config::read(&folder.join("tokenizer_config.json"))?;
        let class = config.text("tokenizer_class", "CLIPTokenizer")?;
        if !["CLIPTokenizer", "CLIPTokenizerFast"].contains(&class) {
            return Err(config.wrong("tokenizer_class", "only CLIPTokenizer is supported"));
        }
        for key in ["padding_side", "truncation_side"] {
            config.only(key, &json!("right"))?;
        }
        let limit = config.get("model_max_length").and_then(Value::as_u64);
        // A larger number means no limit.
        if limit.is_some_and(|limit| limit < NO_LIMIT && limit != length as u64) {
            return Err(config.wrong("model_max_length", &format!("the text encoder takes {length} tokens")));
        }
        Self::of(&folder.display().to_string(), Extras::read(folder, &config)?, pieces(folder)?, length)
    }

    /// The tokenizer that OpenAI published with CLIP, which all Stable Diffusion models use. All prompts become
    /// `length` tokens; short ones are padded.
    ///
    /// # Errors
    /// If the vocabulary lacks the padding token, or `length` is too small.
    pub fn built_in(padding: &str, length: usize) -> Result<Self> {
        let special = |name: &str| json!({"content": name, "normalized": true});
        let mut extras = Extras::default();
        for (role, token) in [("bos_token", special(BEGIN)), ("eos_token", special(END)), ("unk_token", special(END))] {
            extras.roles.insert(role.into(), token);
        }
        extras.roles.insert("pad_token".into(), json!(padding));
        Self::of("the built-in tokenizer of CLIP", extras, openai_clip::pieces(), length)
    }

    fn of(path: &str, extras: Extras, (vocabulary, merges): (Value, Value), length: usize) -> Result<Self> {
        let unusable = |what: &str| Error::Model(format!("{path}: {what}"));
        if length < 3 {
            return Err(unusable("the text encoder takes fewer than 3 tokens"));
        }
        let name = |role: &str, default: &str| extras.role(role).unwrap_or(default).to_owned();
        let (begin, end) = (name("bos_token", BEGIN), name("eos_token", END));
        let (unknown, padding) = (name("unk_token", END), name("pad_token", END));
        let id = |token: &str| {
            let id = vocabulary.get(token).and_then(number).or_else(|| extras.id(token));
            id.ok_or_else(|| unusable(&format!("the vocabulary lacks the token {token:?}")))
        };
        let [begin_id, end_id, unknown_id, padding_id] = [id(&begin)?, id(&end)?, id(&unknown)?, id(&padding)?];
        // This finds the padding everywhere, even an ordinary word such as the "!" of Stable Diffusion 2.
        let mut specials: BTreeMap<i32, AddedToken> = BTreeMap::new();
        for (role, name, id) in [
            ("bos_token", &begin, begin_id),
            ("eos_token", &end, end_id),
            ("unk_token", &unknown, unknown_id),
            ("pad_token", &padding, padding_id),
        ] {
            specials.insert(id, extras.special(role, name, id));
        }
        specials.extend(extras.numbered);
        let bpe = Bpe::new(Style::Clip, &vocabulary, &merges, Some(unknown_id), specials.into_values());
        let bpe = bpe.map_err(|what| unusable(&what))?;
        Ok(Self { bpe, begin: begin_id, end: end_id, padding: padding_id, length })
    }

    /// A prompt's tokens: begin, as much of the prompt as fits, end, padding.
    pub fn encode(&self, prompt: &str) -> Vec<i32> {
        self.framed(&self.pieces(prompt))
    }

    /// A text's tokens, without a limit.
    pub(crate) fn pieces(&self, text: &str) -> Vec<i32> {
        self.bpe.encode(text)
    }

    /// Begin, as many of the tokens as fit, end, padding.
    pub(crate) fn framed(&self, tokens: &[i32]) -> Vec<i32> {
        let mut ids = vec![self.begin];
        ids.extend(tokens.iter().take(self.room()));
        ids.push(self.end);
        ids.resize(self.length, self.padding);
        ids
    }

    /// The number of prompt tokens that fit.
    pub(crate) fn room(&self) -> usize {
        self.length - 2
    }

    pub(crate) fn begin(&self) -> i32 {
        self.begin
    }
}
