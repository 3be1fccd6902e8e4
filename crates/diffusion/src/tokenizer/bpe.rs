//! Byte-pair encoding as in CLIP and Qwen: a text is split into words, a word into bytes, and neighbouring pieces are
//! then joined in the order of a list of merges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde_json::Value;
use unicode_normalization::UnicodeNormalization as _;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory as _};

use super::clip::{BEGIN, END};
use super::{number, symbols};

/// What can follow an apostrophe as a separate piece.
const CONTRACTIONS: [&str; 7] = ["s", "t", "re", "ve", "m", "ll", "d"];

/// A token that is found before the text is split into words.
#[derive(Debug, Clone)]
pub(super) struct AddedToken {
    pub content: String,
    pub id: i32,
    /// Whether it is matched in normalised text, and normalised itself.
    pub normalized: bool,
    /// Whether it must not touch a letter.
    pub single_word: bool,
    /// Whether it includes spaces before it.
    pub lstrip: bool,
    /// Whether it includes spaces after it.
    pub rstrip: bool,
}

/// Which model's words a text is split into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// In lower case; the last byte of each word has a symbol of its own.
    Clip,
    /// Words include the space before them.
    Qwen,
}

/// A model's vocabulary and merges.
#[derive(Debug)]
pub(super) struct Bpe {
    style: Style,
    /// The pieces for single bytes, within a word and at its end.
    bytes: [Vec<Option<i32>>; 2],
    /// The piece that two neighbours are merged into, with its rank in the list.
    merges: HashMap<(i32, i32), (usize, i32)>,
    /// Replaces a byte that has no piece.
    unknown: Option<i32>,
    raw: Vec<AddedToken>,
    normalized: Vec<AddedToken>,
}

enum Part<'a> {
    Text(&'a str),
    Token(i32),
}

impl Bpe {
    /// Reads a vocabulary, an object of numbers, and merges: pairs, or strings with a space between two pieces.
    pub(super) fn new(
        style: Style,
        vocabulary: &Value,
        merges: &Value,
        unknown: Option<i32>,
        added: impl IntoIterator<Item = AddedToken>,
    ) -> Result<Self, String> {
        let find = |piece: &str| vocabulary.get(piece).and_then(number);
        let id = |piece: &str| find(piece).ok_or_else(|| format!("the vocabulary lacks the piece {piece:?}"));
        let (suffix, mut bytes) = (style.suffix(), [vec![None; 256], vec![None; 256]]);
        for (byte, symbol) in symbols_of_bytes() {
            bytes[0][usize::from(byte)] = find(&symbol.to_string());
            bytes[1][usize::from(byte)] = find(&format!("{symbol}{suffix}"));
        }
        let mut known = HashMap::new();
        for (place, merge) in merges.as_array().into_iter().flatten().enumerate() {
            let pair = match (merge.as_str(), merge.as_array().map(Vec::as_slice)) {
                (Some(text), _) => text.split_once(' '),
                (_, Some([first, second])) => first.as_str().zip(second.as_str()),
                _ => None,
            };
            let (first, second) = pair.ok_or_else(|| format!("{merge} in the merges is not two pieces"))?;
            known.insert((id(first)?, id(second)?), (place, id(&format!("{first}{second}"))?));
        }
        let mut tokens: Vec<AddedToken> = Vec::new();
        for mut token in added.into_iter().filter(|token| !token.content.is_empty()) {
            tokens.retain(|other| other.content != token.content);
            token.id = find(&token.content).unwrap_or(token.id);
            tokens.push(token);
        }
        let (mut normalized, raw): (Vec<_>, _) = tokens.into_iter().partition(|token| token.normalized);
        normalized.iter_mut().for_each(|token| token.content = style.normalised(&token.content));
        Ok(Self { style, bytes, merges: known, unknown, raw, normalized })
    }

    pub(super) fn encode(&self, text: &str) -> Vec<i32> {
        let mut ids = Vec::new();
        for part in split(text, &self.raw) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => self.encode_part(&self.style.normalised(text), &mut ids),
            }
        }
        ids
    }

    fn encode_part(&self, text: &str, ids: &mut Vec<i32>) {
        for part in split(text, &self.normalized) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => self.style.words(text).into_iter().for_each(|word| ids.extend(self.merged(word))),
            }
        }
    }

    /// A word's pieces. Of all possible merges, the first in the list is applied first.
    fn merged(&self, word: &str) -> Vec<i32> {
        let end = word.len() - 1;
        let piece = |(at, byte): (usize, u8)| self.bytes[usize::from(at == end)][usize::from(byte)].or(self.unknown);
        // A piece that was merged into the one before it is `None`.
        let mut pieces: Vec<_> = word.bytes().enumerate().filter_map(piece).map(Some).collect();
        let mut before: Vec<_> = (0..pieces.len()).map(|at| at.wrapping_sub(1)).collect();
        let mut after: Vec<_> = (1..=pieces.len()).collect();
        let merge = |pieces: &[Option<i32>], first: usize, second: usize| {
            let pair = (pieces.get(first).copied().flatten()?, pieces.get(second).copied().flatten()?);
            self.merges.get(&pair).map(|(place, id)| Reverse((*place, first, second, *id)))
        };
        // Some entries are stale because their pieces have changed since. Searching all neighbours for each merge would
        // take seconds for the longest words.
        let mut possible: BinaryHeap<_> = (1..pieces.len()).filter_map(|at| merge(&pieces, at - 1, at)).collect();
        while let Some(found) = possible.pop() {
            let Reverse((_, first, second, id)) = found;
            if after[first] != second || merge(&pieces, first, second) != Some(found) {
                continue;
            }
            (pieces[first], pieces[second]) = (Some(id), None);
            after[first] = after[second];
            if let Some(before) = before.get_mut(after[first]) {
                *before = first;
            }
            possible.extend(merge(&pieces, first, after[first]));
            possible.extend(merge(&pieces, before[first], first));
        }
        pieces.into_iter().flatten().collect()
    }
}

/// The bytes with the characters that represent them: visible characters represent themselves.
fn symbols_of_bytes() -> impl Iterator<Item = (u8, char)> {
    let seen = |byte: &u8| symbols().any(|symbol| u32::from(symbol) == u32::from(*byte));
    (0..=u8::MAX).filter(seen).chain((0..=u8::MAX).filter(move |byte| !seen(byte))).zip(symbols())
}

/// Splits a text at these tokens, preferring the longest.
fn split<'a>(text: &'a str, tokens: &[AddedToken]) -> Vec<Part<'a>> {
    let (mut parts, mut from, mut at) = (Vec::new(), 0, 0);
    while let Some(first) = text[at..].chars().next() {
        let here = tokens.iter().filter(|token| text[at..].starts_with(&token.content));
        let Some(token) = here.max_by_key(|token| token.content.len()) else {
            at += first.len_utf8();
            continue;
        };
        let (before, after) = (&text[..at], &text[at + token.content.len()..]);
        if token.single_word && (before.ends_with(in_word) || after.starts_with(in_word)) {
            at += token.content.len();
            continue;
        }
        let to = if token.lstrip { before.trim_end().len().max(from) } else { at };
        parts.extend((from < to).then(|| Part::Text(&text[from..to])));
        parts.push(Part::Token(token.id));
        at = text.len() - if token.rstrip { after.trim_start() } else { after }.len();
        from = at;
    }
    parts.extend((from < text.len()).then(|| Part::Text(&text[from..])));
    parts
}

impl Style {
    /// The suffix of the symbol for a word's last byte.
    fn suffix(self) -> &'static str {
        if self == Self::Clip { "</w>" } else { "" }
    }

    fn normalised(self, text: &str) -> String {
        let mut normalised = String::new();
        for char in text.nfc() {
            match self {
                Self::Qwen => normalised.push(char),
                Self::Clip if !char.is_whitespace() => normalised.extend(char.to_lowercase()),
                Self::Clip if normalised.ends_with(' ') => {}
                Self::Clip => normalised.push(' '),
            }
        }
        normalised
    }

    /// A text's words. For CLIP, the whitespace between them is dropped.
    fn words(self, mut text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        while let Some(first) = text.chars().next() {
            let length = match self {
                Self::Clip => clip_word(text, first),
                Self::Qwen => qwen_word(text, first),
            };
            let (word, rest) = text.split_at(length);
            match [BEGIN, END].contains(&word) {
                // A special token that isn't among the added tokens.
                true => words.extend([&word[..2], &word[2..length - 2], &word[length - 2..]]),
                false if self == Self::Clip && first.is_whitespace() => {}
                false => words.push(word),
            }
            text = rest;
        }
        words
    }
}

/// The length of the first word: `<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+`.
fn clip_word(text: &str, first: char) -> usize {
    let mark = [BEGIN, END].into_iter().find(|mark| text.starts_with(mark));
    if let Some(length) = mark.map(str::len).or_else(|| contraction(text)) {
        return length;
    }
    if is_letter(first) {
        run(text, is_letter)
    } else if is_symbol(first) {
        run(text, is_symbol)
    } else {
        first.len_utf8()
    }
}

/// The length of the first word: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|`
/// `\s*[\r\n]+|\s+(?!\S)|\s+`.
fn qwen_word(text: &str, first: char) -> usize {
    let one = first.len_utf8();
    let letters = run(&text[one..], is_letter);
    let is_line_end = |char: char| matches!(char, '\r' | '\n');
    // Ignoring case, the long s counts as an s.
    let long = text.starts_with("'ſ").then_some("'ſ".len());
    if let Some(length) = long.or(contraction(text)) {
        return length;
    }
    if is_letter(first) || (letters > 0 && !first.is_numeric() && !is_line_end(first)) {
        return one + letters;
    }
    let space = usize::from(first == ' ');
    let symbols = run(&text[space..], is_symbol);
    if symbols > 0 {
        return space + symbols + run(&text[space + symbols..], is_line_end);
    }
    let spaces = &text[..run(text, char::is_whitespace)];
    match (spaces.rfind(is_line_end), spaces.chars().next_back()) {
        (_, None) => one,
        (Some(end), _) => end + 1,
        // The last space belongs to the next word.
        (None, Some(last)) if spaces.len() < text.len() && spaces.len() > one => spaces.len() - last.len_utf8(),
        _ => spaces.len(),
    }
}

/// The length of a contraction, including its apostrophe.
fn contraction(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let is = |end: &&&str| rest.get(..end.len()).is_some_and(|rest| rest.eq_ignore_ascii_case(end));
    CONTRACTIONS.iter().find(is).map(|end| 1 + end.len())
}

/// The length of the leading run of matching characters.
fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|char| !is(char)).unwrap_or(text.len())
}

fn is_letter(char: char) -> bool {
    char.general_category_group() == GeneralCategoryGroup::Letter
}

fn is_symbol(char: char) -> bool {
    !is_letter(char) && !char.is_numeric() && !char.is_whitespace()
}

/// Whether a character belongs to words, like `\w`.
fn in_word(char: char) -> bool {
    let category = char.general_category();
    let others = [GeneralCategory::DecimalNumber, GeneralCategory::ConnectorPunctuation];
    let is_mark = char.general_category_group() == GeneralCategoryGroup::Mark;
    char.is_alphabetic() || is_mark || others.contains(&category) || matches!(char, '\u{200c}' | '\u{200d}')
}
