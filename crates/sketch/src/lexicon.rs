//! An index from words to glyphs, built from the emoji annotations of the Unicode Consortium.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::LazyLock;

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

/// The hashed words of one language; the texts stay in the data of the `emoji` crate.
#[derive(Debug, Default)]
pub struct Lexicon {
    exact: HashMap<u64, Candidate>,
    stems: HashMap<u64, Candidate>,
}

/// A keyword that more emoji share is too unspecific to use.
const MAX_SHARED: usize = 3;

// Each language is indexed separately on first use, so a prompt pays only for its own languages.
static LEXICONS: [LazyLock<Lexicon>; 9] = [
    LazyLock::new(|| Lexicon::build(Language::English)),
    LazyLock::new(|| Lexicon::build(Language::German)),
    LazyLock::new(|| Lexicon::build(Language::French)),
    LazyLock::new(|| Lexicon::build(Language::Spanish)),
    LazyLock::new(|| Lexicon::build(Language::Italian)),
    LazyLock::new(|| Lexicon::build(Language::Portuguese)),
    LazyLock::new(|| Lexicon::build(Language::Russian)),
    LazyLock::new(|| Lexicon::build(Language::Chinese)),
    LazyLock::new(|| Lexicon::build(Language::Japanese)),
];

impl Lexicon {
    /// The index of `language`, built on first use.
    pub fn of(language: Language) -> &'static Self {
        &LEXICONS[language as usize]
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
        let mut drawable: Vec<&'static emoji::Emoji> =
            emoji::lookup_by_glyph::iter_emoji().filter(|emoji| is_drawable(emoji)).collect();
        drawable.sort_unstable_by_key(|emoji| emoji.glyph);
        let shared = shared_keywords(&drawable, language);
        let mut lexicon = Self::default();
        for emoji in drawable {
            for annotation in emoji.annotations.iter().filter(|annotation| annotation.lang == language.code()) {
                let name = annotation.tts.map(fold).unwrap_or_default();
                lexicon.add(language, &name, emoji, 0);
                for keyword in annotation.keywords.iter().map(|keyword| fold(keyword)) {
                    let count = shared.get(&hash(&keyword)).copied().unwrap_or(0);
                    if let Some(rank) = rank(&keyword, &name, count, language) {
                        lexicon.add(language, &keyword, emoji, rank);
                    }
                }
            }
        }
        lexicon
    }

    fn add(&mut self, language: Language, phrase: &str, emoji: &'static emoji::Emoji, rank: Rank) {
        if phrase.chars().count() < if language.is_unspaced() { 1 } else { 3 } {
            return;
        }
        let candidate = Candidate { emoji: whole(emoji.glyph), rank };
        keep_better(&mut self.exact, hash(phrase), candidate);
        if !language.is_unspaced() {
            keep_better(&mut self.stems, hash(&language.stem(phrase)), candidate);
        }
    }
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

/// Number of emoji for each keyword.
fn shared_keywords(drawable: &[&'static emoji::Emoji], language: Language) -> HashMap<u64, usize> {
    let mut shared = HashMap::new();
    for annotation in drawable.iter().flat_map(|emoji| emoji.annotations) {
        if annotation.lang == language.code() {
            for keyword in annotation.keywords {
                *shared.entry(hash(&fold(keyword))).or_insert(0) += 1;
            }
        }
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

/// Whether an emoji can be a subject; symbols, gestures, clocks and framed landscapes cannot.
fn is_drawable(emoji: &emoji::Emoji) -> bool {
    if emoji.is_variant || emoji.glyph.chars().any(|c| ('\u{1f3fb}'..='\u{1f3ff}').contains(&c)) {
        return false;
    }
    match emoji.group {
        "Animals & Nature" | "Food & Drink" => emoji.glyph != "🐾",
        "Activities" => !matches!(emoji.subgroup, "award-medal") && !matches!(emoji.glyph, "✨" | "🖼️" | "🌌"),
        "Objects" => !matches!(emoji.subgroup, "sound" | "mail" | "writing" | "lock"),
        "People & Body" => {
            matches!(emoji.subgroup, "person" | "person-role" | "person-fantasy" | "person-activity" | "person-sport")
        }
        "Smileys & Emotion" => emoji.subgroup == "face-costume",
        "Travel & Places" => match emoji.subgroup {
            "sky & weather" | "hotel" => false,
            "time" => matches!(emoji.glyph, "⌛" | "⏳" | "⏰" | "🕰️"),
            "place-geographic" => emoji.glyph == "🌋",
            _ => !"🌁🌃🏙️🌄🌅🌆🌇🌉♨️🗾🗺️🚏🛣️🛤️🚥🚦🛑🚧🌐".contains(emoji.glyph),
        },
        _ => false,
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
