//! The tokenizer of CLIP.

use std::path::Path;

use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::{added, pieces, special};
use crate::config::Config;
use crate::{Error, Result};

/// Where CLIP's tokenizer splits text, before it looks for known pieces.
const WORDS: &str = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// The tokenizer of CLIP.
#[derive(Debug)]
pub struct Clip {
    bpe: Tokenizer,
    begin: i32,
    end: i32,
    padding: i32,
    length: usize,
}

impl Clip {
    /// Reads `vocab.json`, `merges.txt` and `tokenizer_config.json` of a folder. All prompts become `length` tokens.
    ///
    /// # Errors
    /// If a file is missing, damaged, or of another kind of tokenizer.
    pub fn read(folder: &Path, length: usize) -> Result<Self> {
        let config = Config::read(&folder.join("tokenizer_config.json"))?;
        let class = config.text("tokenizer_class", "CLIPTokenizer")?;
        if !["CLIPTokenizer", "CLIPTokenizerFast"].contains(&class) {
            return Err(config.wrong("tokenizer_class", "only CLIPTokenizer is supported"));
        }
        let unusable = |what: &str| Error::Model(format!("{}: {what}", folder.display()));
        if length < 3 {
            return Err(unusable("the text encoder takes fewer than 3 tokens"));
        }
        let name = |key: &str, default: &str| special(&config, key).unwrap_or_else(|| default.to_owned());
        let (begin, end) = (name("bos_token", "<|startoftext|>"), name("eos_token", "<|endoftext|>"));
        let (unknown, padding) = (name("unk_token", &end), name("pad_token", &end));
        let (vocabulary, merges) = pieces(folder)?;
        let id = |token: &str| {
            let id = vocabulary.get(token).and_then(Value::as_i64).and_then(|id| i32::try_from(id).ok());
            id.ok_or_else(|| unusable(&format!("the vocabulary lacks the token {token:?}")))
        };
        let (begin_id, end_id, padding_id) = (id(&begin)?, id(&end)?, id(&padding)?);
        let mut specials = vec![added(&begin, begin_id), added(&end, end_id)];
        // Also a padding that is an ordinary word, such as the "!" of Stable Diffusion 2, is then found everywhere.
        if padding_id != begin_id && padding_id != end_id {
            specials.push(added(&padding, padding_id));
        }
        let description = json!({
            "version": "1.0",
            "added_tokens": specials,
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "NFC"},
                {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
                {"type": "Lowercase"},
            ]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Removed", "invert": true},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            ]},
            "post_processor": null,
            "decoder": null,
            "model": {"type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": "",
                "end_of_word_suffix": "</w>", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocabulary, "merges": merges},
        });
        let bpe: Tokenizer = serde_json::from_value(description).map_err(|error| unusable(&error.to_string()))?;
        Ok(Self { bpe, begin: begin_id, end: end_id, padding: padding_id, length })
    }

    /// The tokens of a prompt: begin, as much of the prompt as fits, end, padding.
    ///
    /// # Errors
    /// If the vocabulary does not cover the prompt.
    pub fn encode(&self, prompt: &str) -> Result<Vec<i32>> {
        let encoding = self.bpe.encode_fast(prompt, false);
        let encoding = encoding.map_err(|_| Error::Order("the tokenizer cannot read the prompt".into()))?;
        let words = encoding.get_ids().iter().map(|&id| i32::try_from(id).unwrap_or(i32::MAX));
        let mut ids = vec![self.begin];
        ids.extend(words.take(self.length - 2));
        ids.push(self.end);
        ids.resize(self.length, self.padding);
        Ok(ids)
    }
}
