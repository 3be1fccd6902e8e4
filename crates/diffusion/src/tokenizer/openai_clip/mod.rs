//! CLIP's vocabulary, as published by OpenAI under the MIT License (`LICENSE`). `make.py` wrote `merges.txt.gz`.

use serde_json::{Map, Value, json};

use super::clip::{BEGIN, END};
use super::{symbols, unpacked};

/// The merges, one per line, in the order in which they are applied.
const MERGES: &[u8] = include_bytes!("merges.txt.gz");

/// The vocabulary and the merges. The vocabulary consists of the symbols, the symbols at the end of a word, the merges'
/// results, and two special tokens.
pub(super) fn pieces() -> (Value, Value) {
    let merges = unpacked(MERGES);
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
