//! An index from words to glyphs, built from the emoji annotations of the Unicode Consortium.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::OnceLock;

use super::dice::hash;
use super::vocabulary::{Language, fold};

/// Confidence that a word means an emoji; lower is better.
type Rank = u8;

/// An emoji that a word may mean.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    emoji: &'static str,
    rank: Rank,
}

/// The hashed words of one language; the texts stay in `WORDS`.
#[derive(Debug, Default)]
pub struct Lexicon {
    exact: HashMap<u64, Candidate>,
    stems: HashMap<u64, Candidate>,
}

/// A keyword that more emoji share is too unspecific to use.
const MAX_SHARED: usize = 3;

/// For each language the emoji that can be subjects (no symbols, gestures, clocks and framed landscapes), with the names and
/// keywords of release 38 of Unicode's CLDR, sorted by emoji.
const WORDS: [&str; 9] = [
    include_str!("words/en.txt"),
    include_str!("words/de.txt"),
    include_str!("words/fr.txt"),
    include_str!("words/es.txt"),
    include_str!("words/it.txt"),
    include_str!("words/pt.txt"),
    include_str!("words/ru.txt"),
    include_str!("words/zh.txt"),
    include_str!("words/ja.txt"),
];

// Each language is indexed separately on first use, so a prompt pays only for its own languages.
static LEXICONS: [OnceLock<Lexicon>; 9] = [const { OnceLock::new() }; 9];

impl Lexicon {
    /// The index of `language`, built on first use.
    pub fn of(language: Language) -> &'static Self {
        LEXICONS[language as usize].get_or_init(|| Self::build(language))
    }

    /// The emoji with exactly this folded phrase.
    pub fn exact(&self, phrase: &str) -> Option<&'static str> {
        self.exact.get(&hash(phrase)).map(|candidate| candidate.emoji)
    }

    /// The emoji with a phrase that has this stem.
    pub fn stem(&self, stem: &str) -> Option<&'static str> {
        self.stems.get(&hash(stem)).map(|candidate| candidate.emoji)
    }

    fn build(language: Language) -> Self {
        let words = WORDS[language as usize];
        let shared = shared_keywords(words);
        let mut lexicon = Self::default();
        for Words { emoji, name, keywords } in words_of(words) {
            let name = fold(name);
            lexicon.add(language, &name, emoji, 0);
            for keyword in keywords.map(fold) {
                let count = shared.get(&hash(&keyword)).copied().unwrap_or(0);
                if let Some(rank) = rank(&keyword, &name, count, language) {
                    lexicon.add(language, &keyword, emoji, rank);
                }
            }
        }
        lexicon
    }

    fn add(&mut self, language: Language, phrase: &str, emoji: &'static str, rank: Rank) {
        if phrase.chars().count() < if language.is_unspaced() { 1 } else { 3 } {
            return;
        }
        let candidate = Candidate { emoji: whole(emoji), rank };
        keep_better(&mut self.exact, hash(phrase), candidate);
        if !language.is_unspaced() {
            keep_better(&mut self.stems, hash(&language.stem(phrase)), candidate);
        }
    }
}

struct Words<K> {
    emoji: &'static str,
    name: &'static str,
    keywords: K,
}

/// Reads the lines of a file of `words`: an emoji, its name, and its keywords.
fn words_of(lines: &'static str) -> impl Iterator<Item = Words<impl Iterator<Item = &'static str>>> {
    lines.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        let (emoji, name) = (fields.next()?, fields.next()?);
        Some(Words { emoji, name, keywords: fields.next()?.split('|').filter(|keyword| !keyword.is_empty()) })
    })
}

fn keep_better(index: &mut HashMap<u64, Candidate>, key: u64, candidate: Candidate) {
    match index.entry(key) {
        Slot::Vacant(slot) => {
            slot.insert(candidate);
        }
        // Emoji are sorted, so ties are resolved deterministically.
        Slot::Occupied(mut slot) if candidate.rank < slot.get().rank => {
            slot.insert(candidate);
        }
        Slot::Occupied(_) => {}
    }
}

fn shared_keywords(words: &'static str) -> HashMap<u64, usize> {
    let mut shared = HashMap::new();
    for keyword in words_of(words).flat_map(|words| words.keywords) {
        *shared.entry(hash(&fold(keyword))).or_insert(0) += 1;
    }
    shared
}

fn rank(keyword: &str, name: &str, shared: usize, language: Language) -> Option<Rank> {
    let in_name =
        if language.is_unspaced() { name.contains(keyword) } else { name.split(' ').any(|word| word == keyword) };
    match (in_name, shared) {
        (true, 0..=6) => Some(1 + (shared / 3) as Rank),
        (false, 0..=1) => Some(3),
        (false, 2..=MAX_SHARED) => Some(4),
        _ => None,
    }
}

/// The emoji of the whole animal for an emoji that shows only its face.
fn whole(emoji: &'static str) -> &'static str {
    match emoji {
        "🐱" => "🐈",
        "🐶" => "🐕",
        "🐴" => "🐎",
        "🐮" => "🐄",
        "🐷" => "🐖",
        "🐭" => "🐁",
        "🐰" => "🐇",
        "🐯" => "🐅",
        "🐵" => "🐒",
        "🐲" => "🐉",
        "🐳" => "🐋",
        "🐔" => "🐓",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_of_every_language_find_their_emoji() {
        for (language, word, emoji) in [
            (Language::English, "hedgehog", "🦔"),
            (Language::German, "fuchs", "🦊"),
            (Language::French, "renard", "🦊"),
            (Language::Spanish, "zorro", "🦊"),
            (Language::Italian, "volpe", "🦊"),
            (Language::Portuguese, "raposa", "🦊"),
            (Language::Russian, "лисица", "🦊"),
            (Language::Chinese, "狐狸", "🦊"),
            (Language::Japanese, "キツネ", "🦊"),
        ] {
            assert_eq!(Lexicon::of(language).exact(word), Some(emoji), "{word}");
        }
    }

    #[test]
    fn words_without_a_picture_find_nothing() {
        for word in ["animal", "face", "nature", "ok", "in"] {
            assert_eq!(Lexicon::of(Language::English).exact(word), None, "{word}");
        }
    }
}
