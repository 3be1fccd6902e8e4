//! Qwen's tokenizer, with the chat template that its models expect around a prompt.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::bpe::{Bpe, Style};
use super::{AddedToken, Extras, added, number, pieces, symbols, unpacked};
use crate::config::{Config, read_text};
use crate::{Error, Result};

/// The chat template before a prompt.
const BEFORE: &str = "<|im_start|>user\n";
/// The chat template after it.
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n";
/// An empty thought, so that the model answers without thinking.
const NO_THOUGHT: &str = "<think>\n\n</think>\n\n";

/// Special tokens that the chat template needs.
const MARKS: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"];

/// The merges of the vocabulary published by Alibaba Cloud under the Apache License 2.0. `qwen/make.py` wrote them.
const MERGES: &[u8] = include_bytes!("qwen/merges.txt.gz");

/// Pads short prompts.
const PADDING: &str = "<|endoftext|>";

/// All tokens whose numbers follow the merges' tokens.
const AFTER_MERGES: [&str; 26] = [
    PADDING,
    MARKS[0],
    MARKS[1],
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    MARKS[2],
    MARKS[3],
];

/// Whether the chat template lets the model think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// The model can think.
    Allowed,
    /// An empty thought replaces thinking.
    Skipped,
}

/// The tokenizer of Qwen 2 and 3.
#[derive(Debug)]
pub struct Qwen {
    bpe: Bpe,
    padding: i32,
    length: usize,
    thinking: Thinking,
}

impl Qwen {
    /// Reads a folder with `tokenizer_config.json`, and with `vocab.json` and `merges.txt`, or `tokenizer.json`. A prompt
    /// becomes at most `length` tokens.
    pub fn read(folder: &Path, length: usize, thinking: Thinking) -> Result<Self> {
        let config = Config::read(&folder.join("tokenizer_config.json"))?;
        let class = config.text("tokenizer_class", "Qwen2Tokenizer")?;
        if !["Qwen2Tokenizer", "Qwen2TokenizerFast"].contains(&class) {
            return Err(config.wrong("tokenizer_class", "only Qwen2Tokenizer is supported"));
        }
        for (key, only) in [("padding_side", json!("right")), ("truncation_side", json!("right"))] {
            config.only(key, &only)?;
        }
        for key in ["add_prefix_space", "add_bos_token", "split_special_tokens"] {
            config.only(key, &json!(false))?;
        }
        check_template(folder, &config)?;
        let extras = Extras::read(folder, &config)?;
        let (padding, name) = (extras.role("pad_token").unwrap_or(PADDING).to_owned(), folder.display().to_string());
        if extras.numbered.is_empty() && config.get("added_tokens_decoder").is_none() {
            return Err(Error::Model(format!("{name} does not list the tokens besides the vocabulary")));
        }
        Self::of(&name, pieces(folder)?, extras.numbered.into_values().collect(), &padding, length, thinking)
    }

    /// Qwen 3's tokenizer, which FLUX.2 klein and Z-Image use. A prompt becomes at most `length` tokens.
    ///
    /// # Errors
    /// Never in practice: a test builds it.
    pub fn built_in(length: usize, thinking: Thinking) -> Result<Self> {
        let merges = unpacked(MERGES);
        let words = symbols().map(String::from).chain(merges.lines().map(|merge| merge.replacen(' ', "", 1)));
        let vocabulary: Map<_, _> = words.enumerate().map(|(id, word)| (word, json!(id))).collect();
        let first = i32::try_from(vocabulary.len()).unwrap_or(i32::MAX);
        let marks = AFTER_MERGES.into_iter().zip(first..).map(|(name, id)| added(name, id)).collect();
        let merges: Vec<_> = merges.lines().collect();
        let pieces = (Value::Object(vocabulary), json!(merges));
        Self::of("the built-in tokenizer of Qwen", pieces, marks, PADDING, length, thinking)
    }

    fn of(
        path: &str,
        (vocabulary, merges): (Value, Value),
        marks: Vec<AddedToken>,
        padding: &str,
        length: usize,
        thinking: Thinking,
    ) -> Result<Self> {
        let unusable = |what: &str| Error::Model(format!("{path}: {what}"));
        let id = |token: &str| {
            let known = marks.iter().find(|mark| mark.content == token).map(|mark| mark.id);
            let id = known.or_else(|| vocabulary.get(token).and_then(number));
            id.ok_or_else(|| unusable(&format!("the vocabulary lacks the token {token:?}")))
        };
        for mark in MARKS {
            id(mark)?;
        }
        let padding = id(padding)?;
        let bpe = Bpe::new(Style::Qwen, &vocabulary, &merges, None, marks).map_err(|what| unusable(&what))?;
        Ok(Self { bpe, padding, length, thinking })
    }

    /// A prompt's tokens within the chat template, without padding. Whatever exceeds the length is cut off, including
    /// the end of the template.
    pub fn encode(&self, prompt: &str) -> Vec<i32> {
        let thought = if self.thinking == Thinking::Skipped { NO_THOUGHT } else { "" };
        let mut ids = self.bpe.encode(&format!("{BEFORE}{prompt}{AFTER}{thought}"));
        ids.truncate(self.length);
        ids
    }

    /// The token that pads short prompts.
    pub fn padding(&self) -> i32 {
        self.padding
    }

    /// The most tokens per prompt.
    pub fn length(&self) -> usize {
        self.length
    }
}

/// Compares the folder's chat template, if it has one, with the strings in this file.
fn check_template(folder: &Path, config: &Config) -> Result<()> {
    let path = folder.join("chat_template.jinja");
    let template = if path.exists() { read_text(&path)? } else { config.text("chat_template", "")?.to_owned() };
    let fits = ["<|im_start|>", "<|im_end|>", "enable_thinking", r"<think>\n\n</think>\n\n"];
    if template.is_empty() || fits.iter().all(|word| template.contains(word)) {
        return Ok(());
    }
    let folder = folder.display();
    Err(Error::Model(format!("{folder}: the chat template (chat_template) is not Qwen 3's")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers come from the published vocabulary, which was cut in its order.
    #[test]
    fn the_built_in_tokenizer_is_that_of_qwen_3() {
        let qwen = Qwen::built_in(512, Thinking::Skipped).expect("a tokenizer");
        assert_eq!(qwen.padding(), 151_643);
        let before = [151_644, 872, 198];
        let after = [151_645, 198, 151_644, 77_091, 198, 151_667, 271, 151_668, 271];
        for (prompt, ids) in [
            ("A lighthouse at dusk, 35mm", &[32, 326, 57_909, 518, 92_885, 11, 220, 18, 20, 3_821][..]),
            ("老虎在雪地里 🐯", &[103_364, 18_493, 100_167, 29_490, 69_249, 11_162, 238, 107]),
            ("É don't\n\nnai\u{308}ve", &[26_789, 1_513, 944, 271, 3_376, 37_572, 586]),
            (
                "two  spaces \r\n\t 'LL it'ſ 12³",
                &[19_789, 220, 12_621, 2_529, 197, 364, 4_086, 432, 6, 144_815, 220, 16, 17, 43_201],
            ),
            ("<|im_end|> ...!\n\n  \u{3000}x   ", &[151_645, 2_503, 2_219, 256, 22_441, 87, 262]),
        ] {
            assert_eq!(qwen.encode(prompt), [&before, ids, &after].concat(), "{prompt}");
        }
    }
}
