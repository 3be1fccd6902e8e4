//! The vocabulary of CLIP, as OpenAI published it under the MIT License (`LICENSE`). `make.py` wrote `merges.txt.gz`.

use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};

use super::clip::{BEGIN, END};

/// The merges, one a line, the first to be applied first.
const MERGES: &[u8] = include_bytes!("merges.txt.gz");

/// The characters that stand for bytes, in the order of the vocabulary: those that can be seen for themselves, then
/// others for the rest.
const SYMBOLS: [(char, char); 4] = [('!', '~'), ('¡', '¬'), ('®', 'ÿ'), ('Ā', 'Ń')];

/// The vocabulary and the merges. The words are the symbols, the symbols at the end of a word, the results of the
/// merges, and two marks.
pub(super) fn pieces() -> (Value, Value) {
    let mut merges = String::new();
    GzDecoder::new(MERGES).read_to_string(&mut merges).expect("a test reads the merges");
    let symbols = || SYMBOLS.into_iter().flat_map(|(first, last)| first..=last);
    let words = symbols()
        .map(String::from)
        .chain(symbols().map(|symbol| format!("{symbol}</w>")))
        .chain(merges.lines().map(|merge| merge.replacen(' ', "", 1)))
        .chain([BEGIN.to_owned(), END.to_owned()]);
    let vocabulary: Map<_, _> = words.enumerate().map(|(id, word)| (word, json!(id))).collect();
    let merges: Vec<_> = merges.lines().collect();
    (Value::Object(vocabulary), json!(merges))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabulary_is_complete() {
        let (vocabulary, merges) = pieces();
        let vocabulary = vocabulary.as_object().expect("an object");
        assert_eq!((vocabulary.len(), merges.as_array().map(Vec::len)), (49_408, Some(48_894)));
        for (word, id) in [
            ("!", 0),
            ("Ń", 255),
            ("!</w>", 256),
            ("in", 512),
            ("a</w>", 320),
            ("photo</w>", 1125),
            ("cat</w>", 2368),
            (BEGIN, 49_406),
            (END, 49_407),
        ] {
            assert_eq!(vocabulary[word], id, "{word}");
        }
    }
}
