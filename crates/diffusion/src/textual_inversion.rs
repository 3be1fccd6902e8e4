//! Textual inversion files: vectors that replace a new word in prompts.
//!
//! Like models, they are untrusted: names, shapes, types and numbers are checked before use.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::formats::check_format;
use crate::weights::Weights;
use crate::weights::float_formats::{self, SUPPORTED};
use crate::{Error, Result};

/// Most files per model.
pub const MAX_EMBEDDINGS: usize = 64;

/// Most characters in a word.
pub const MAX_WORD: usize = 100;

/// The tensor names for Stable Diffusion XL's two text encoders, in the encoders' order: the names that most programs
/// write, and others.
const OF_XL: [[&str; 2]; 2] = [["clip_l", "clip_g"], ["text_encoders_0", "text_encoders_1"]];

/// A textual inversion file, and its word in prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextualInversion {
    /// The safetensors file.
    pub path: PathBuf,
    /// The word. The default is the name inside the file if it looks like `<word>`, otherwise the file name without its
    /// extension.
    pub word: Option<String>,
}

/// A word with the vectors that replace it in a text encoder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OwnWord {
    /// In lower case.
    word: String,
    /// One for each place that it takes up.
    pub vectors: Vec<Vec<f32>>,
}

/// A part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Piece<'t, 'w> {
    /// Text for the tokenizer.
    Text(&'t str),
    /// A word to be replaced by its vectors.
    Word(&'w OwnWord),
}

impl OwnWord {
    /// Where the word ends in a text if it begins at a byte, ignoring case. It isn't found inside longer words:
    /// "drinking" doesn't contain "ink".
    fn end(&self, text: &str, begin: usize) -> Option<usize> {
        let joins = |letter: char| letter.is_alphanumeric() || letter == '_';
        let goes_on = |a: Option<char>, b: Option<char>| a.is_some_and(joins) && b.is_some_and(joins);
        let mut wanted = self.word.chars().peekable();
        if goes_on(text[..begin].chars().next_back(), wanted.peek().copied()) {
            return None;
        }
        let mut end = begin;
        for letter in text[begin..].chars() {
            if !letter.to_lowercase().all(|lower| wanted.next() == Some(lower)) {
                return None;
            }
            end += letter.len_utf8();
            if wanted.peek().is_none() {
                return (!goes_on(Some(letter), text[end..].chars().next())).then_some(end);
            }
        }
        None
    }
}

/// Splits a prompt at the words. If several begin at one place, the longest counts.
pub(crate) fn pieces<'t, 'w>(text: &'t str, words: &'w [OwnWord]) -> Vec<Piece<'t, 'w>> {
    let (mut pieces, mut begin) = (Vec::new(), 0);
    for (at, _) in text.char_indices() {
        let ends = words.iter().filter_map(|word| Some((word.end(text, at)?, word)));
        let Some((end, word)) = ends.filter(|_| at >= begin).max_by_key(|(end, _)| *end) else { continue };
        pieces.extend([Piece::Text(&text[begin..at]), Piece::Word(word)]);
        begin = end;
    }
    pieces.push(Piece::Text(&text[begin..]));
    pieces
}

/// Reads files for text encoders with these token embedding sizes, which take at most `places` tokens of a prompt.
/// Returns each encoder's words.
///
/// # Errors
/// If a file cannot be used or doesn't fit, or two files have the same word.
pub(crate) fn read<const N: usize>(
    files: &[TextualInversion],
    widths: [usize; N],
    places: usize,
) -> Result<[Vec<OwnWord>; N]> {
    if files.len() > MAX_EMBEDDINGS {
        let count = files.len();
        return Err(Error::Embedding(format!("{count} embeddings are too many: at most {MAX_EMBEDDINGS} are used")));
    }
    let mut words = [(); N].map(|()| Vec::<OwnWord>::new());
    for file in files {
        let file = EmbeddingFile::open(file)?;
        let word = file.word()?;
        if words.iter().flatten().any(|known| known.word == word) {
            return Err(
                file.wrong(&format!("the word {word:?} stands for another embedding, too: give one of them another"))
            );
        }
        let keys = file.keys(widths)?;
        let each: Vec<_> =
            keys.iter().zip(widths).map(|(key, width)| file.vectors(key, width, places)).collect::<Result<_>>()?;
        if each.iter().any(|vectors| vectors.len() != each[0].len()) {
            return Err(file.wrong("its tensors have different numbers of vectors: the file is damaged"));
        }
        for (words, vectors) in words.iter_mut().zip(each) {
            words.push(OwnWord { word: word.clone(), vectors });
        }
    }
    Ok(words)
}

struct EmbeddingFile<'a> {
    file: &'a TextualInversion,
    weights: Weights,
}

impl<'a> EmbeddingFile<'a> {
    fn open(file: &'a TextualInversion) -> Result<Self> {
        let unreadable = |error: Error| error.beside(Error::Embedding);
        check_format(&file.path).map_err(unreadable)?;
        Ok(Self { file, weights: Weights::open(&file.path).map_err(unreadable)? })
    }

    fn wrong(&self, what: &str) -> Error {
        Error::Embedding(format!("{}: {what}", self.file.path.display()))
    }

    /// The error for a file made for another model.
    fn foreign(&self, what: &str) -> Error {
        self.wrong(&format!(
            "{what}: the embedding was made for another family of models, so use one for this model or leave it out"
        ))
    }

    /// Its tensors' names, sorted.
    fn names(&self) -> Vec<&str> {
        self.weights.names().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The word in lower case.
    fn word(&self) -> Result<String> {
        let stem = || self.file.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let named = match self.names()[..] {
            [name] if name.len() > 2 && name.starts_with('<') && name.ends_with('>') => Some(name.to_owned()),
            _ => None,
        };
        let word = self.file.word.clone().or(named).or_else(stem).unwrap_or_default();
        let word = word.trim();
        if word.is_empty() || word.chars().count() > MAX_WORD || word.chars().any(char::is_control) {
            return Err(self.wrong(&format!("a word of 1 to {MAX_WORD} letters is needed for it, as in FILE=WORD")));
        }
        Ok(word.to_lowercase())
    }

    /// The tensor's name for each text encoder.
    fn keys<const N: usize>(&self, widths: [usize; N]) -> Result<[&str; N]> {
        let names = self.names();
        let width = |name: &str| self.weights.get(name).and_then(|entry| entry.shape.last().copied()).unwrap_or(0);
        let both = OF_XL.iter().find(|both| names.len() == both.len() && both.iter().all(|name| names.contains(name)));
        let keys: Vec<&str> = both.map_or(names, |both| both.to_vec());
        match (<[&str; N]>::try_from(&keys[..]), both.is_some(), keys.len()) {
            (Ok(keys), true, _) | (Ok(keys), _, 1) => Ok(keys),
            (_, true, _) => Err(self.foreign(&format!(
                "it has vectors of {} and {} numbers for the two text encoders of Stable Diffusion XL, but the one of \
                 this model takes {}",
                width(keys[0]),
                width(keys[1]),
                widths[0]
            ))),
            (_, _, 1) => Err(self.foreign(&format!(
                "{:?} has vectors of {} numbers for one text encoder, but this model has {N}, which take {} numbers",
                keys[0],
                width(keys[0]),
                widths.map(|width| width.to_string()).join(" and ")
            ))),
            _ => Err(self.wrong(&format!(
                "it has {} tensors and is not an embedding of textual inversion: those have one, or {} for Stable \
                 Diffusion XL",
                keys.len(),
                OF_XL[0].join(" and ")
            ))),
        }
    }

    fn vectors(&self, key: &str, width: usize, places: usize) -> Result<Vec<Vec<f32>>> {
        let entry = self.weights.get(key).ok_or_else(|| self.wrong(&format!("{key:?} is missing")))?;
        let (count, numbers) = match entry.shape[..] {
            [numbers] => (1, numbers),
            [count, numbers] => (count, numbers),
            _ => {
                let shape = &entry.shape;
                return Err(self.wrong(&format!(
                    "{key:?} has the shape {shape:?} and is not an embedding of textual inversion, which has a row for \
                     each vector"
                )));
            }
        };
        if float_formats::byte_size(entry.dtype).is_none() {
            return Err(self.wrong(&format!("{key:?} has the type {:?}; {SUPPORTED}", entry.dtype)));
        }
        if numbers != width {
            return Err(self.foreign(&format!(
                "{key:?} has vectors of {numbers} numbers, but the text encoder of this model takes {width}"
            )));
        }
        if !(1..=places).contains(&count) {
            return Err(self.wrong(&format!(
                "{key:?} has {count} vectors, but a prompt has room for 1 to {places}: use another embedding"
            )));
        }
        let numbers = entry.floats(self.weights.bytes(entry));
        if !numbers.iter().all(|number| number.is_finite()) {
            return Err(self.wrong(&format!(
                "{key:?} holds numbers that are not finite: the file is damaged, or its training failed"
            )));
        }
        Ok(numbers.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_alone_in_any_case() {
        let words: Vec<_> = ["ink", "ink-blot", "<cat>", "straße", "bad hands"]
            .map(|word| OwnWord { word: word.into(), vectors: Vec::new() })
            .into();
        let cut = |text: &'static str| {
            let pieces = pieces(text, &words).into_iter();
            pieces
                .map(|piece| match piece {
                    Piece::Text(text) => text.to_owned(),
                    Piece::Word(word) => format!("[{}]", word.word),
                })
                .collect::<String>()
        };
        for (text, expected) in [
            ("", ""),
            ("a fox", "a fox"),
            ("ink", "[ink]"),
            ("Ink, drinking INK inks ink_2 the (ink:1.2)", "[ink], drinking [ink] inks ink_2 the ([ink]:1.2)"),
            ("ink-blot ink-blots", "[ink-blot] [ink]-blots"),
            ("a<CAT>b <cat><cat> <ca", "a[<cat>]b [<cat>][<cat>] <ca"),
            ("STRASSE Straße", "STRASSE [straße]"),
            ("bad hands, bad  hands", "[bad hands], bad  hands"),
            ("İnk ink", "İnk [ink]"),
        ] {
            assert_eq!(cut(text), expected, "{text}");
        }
    }
}
