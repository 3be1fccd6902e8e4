//! Words for settings, light, weather, styles, colours and relations, in nine languages.

use std::collections::HashMap;
use std::sync::LazyLock;

use rust_stemmers::{Algorithm, Stemmer};

use super::colour::Tint;
use super::glyph::Glyph;

/// An enum whose variants are found by their names in lower case, as the vocabulary spells them.
macro_rules! named {
    ($(#[$about:meta])* $name:ident { $($variant:ident),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($variant,)+
        }

        impl $name {
            /// Finds a value by its name in the vocabulary.
            pub fn named(name: &str) -> Option<Self> {
                [$((stringify!($variant), Self::$variant)),+]
                    .into_iter()
                    .find_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
            }
        }
    };
}
pub(crate) use named;

/// A supported language, in the order of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    English,
    German,
    French,
    Spanish,
    Italian,
    Portuguese,
    Russian,
    Chinese,
    Japanese,
}

impl Language {
    /// Every language, English first.
    pub const ALL: [Self; 9] = [
        Self::English,
        Self::German,
        Self::French,
        Self::Spanish,
        Self::Italian,
        Self::Portuguese,
        Self::Russian,
        Self::Chinese,
        Self::Japanese,
    ];

    /// The ISO 639 code, as the emoji annotations and `vocabulary.txt` use it.
    pub fn code(self) -> &'static str {
        ["en", "de", "fr", "es", "it", "pt", "ru", "zh", "ja"][self as usize]
    }

    /// Whether the language is written without spaces and therefore matched by substring.
    pub fn is_unspaced(self) -> bool {
        matches!(self, Self::Chinese | Self::Japanese)
    }

    /// Whether adjectives may follow the noun.
    pub fn is_romance(self) -> bool {
        matches!(self, Self::French | Self::Spanish | Self::Italian | Self::Portuguese)
    }

    /// Reduces every word of a folded phrase to its stem.
    pub fn stem(self, phrase: &str) -> String {
        let algorithm = match self {
            Self::English => Algorithm::English,
            Self::German => Algorithm::German,
            Self::French => Algorithm::French,
            Self::Spanish => Algorithm::Spanish,
            Self::Italian => Algorithm::Italian,
            Self::Portuguese => Algorithm::Portuguese,
            Self::Russian => Algorithm::Russian,
            Self::Chinese | Self::Japanese => return phrase.to_owned(),
        };
        let stemmer = Stemmer::create(algorithm);
        let stems: Vec<_> = phrase.split(' ').map(|word| stemmer.stem(word)).collect();
        stems.join(" ")
    }
}

named! {
    /// Setting of a scene.
    Setting {
        Forest,
        Jungle,
        Meadow,
        Garden,
        Mountains,
        Sea,
        Beach,
        Lake,
        Desert,
        City,
        Street,
        Snow,
        Space,
        Moon,
        Underwater,
        Room,
        Table,
        Sky,
    }
}

named! {
    /// Time of day.
    Hour {
        Dawn,
        Day,
        Sunset,
        Dusk,
        Night,
    }
}

named! {
    /// A phenomenon in the sky or in the air.
    Phenomenon {
        Moon,
        Stars,
        Sun,
        Aurora,
        Rain,
        Snow,
        Fog,
        Storm,
        Rainbow,
        Clouds,
        Wind,
        Autumn,
    }
}

named! {
    /// Style of a picture.
    Style {
        Watercolour,
        Oil,
        Neon,
        Pixel,
        Sepia,
        Tintype,
        Noir,
        Pencil,
        Comic,
        Pastel,
        Flat,
        Glass,
    }
}

named! {
    /// Relation between two subjects.
    Relation {
        In,
        On,
        Riding,
        Under,
        Above,
        Beside,
        Behind,
        Wearing,
    }
}

named! {
    /// Pose of a subject.
    Pose {
        Flying,
        Swimming,
    }
}

/// Contribution of a word or phrase to a scene.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Meaning {
    Setting(Setting),
    Hour(Hour),
    Phenomenon(Phenomenon),
    Style(Style),
    Tint(Tint),
    Count(u8),
    Relation(Relation),
    Pose(Pose),
    Size(f32),
    Thing(Glyph),
    /// A word to ignore, although it may match an emoji by accident.
    Ignored,
    /// A function word, which only helps to detect the language.
    Particle,
}

impl Meaning {
    /// Words so common that they reveal the language of a prompt.
    pub fn tells_language(self) -> bool {
        matches!(self, Self::Particle | Self::Count(1) | Self::Relation(_))
    }

    fn named(key: &'static str) -> Option<Self> {
        let (kind, name) = key.split_once('.').unwrap_or((key, ""));
        Some(match kind {
            "setting" => Self::Setting(Setting::named(name)?),
            "hour" => Self::Hour(Hour::named(name)?),
            "sky" | "weather" => Self::Phenomenon(Phenomenon::named(name)?),
            "style" => Self::Style(Style::named(name)?),
            "colour" => Self::Tint(Tint::named(name)?),
            "count" => Self::Count(name.parse().ok()?),
            "relation" => Self::Relation(Relation::named(name)?),
            "pose" => Self::Pose(Pose::named(name)?),
            "size" if name == "big" => Self::Size(1.5),
            "size" if name == "small" => Self::Size(0.6),
            "draw" => Self::Thing(Glyph::of_drawing(name)?),
            "thing" => Self::Thing(Glyph::of_emoji(name)?),
            "ignore" => Self::Ignored,
            "particle" => Self::Particle,
            _ => return None,
        })
    }
}

/// The words of one language.
#[derive(Debug, Default)]
pub struct Vocabulary {
    exact: HashMap<String, Meaning>,
    stems: HashMap<String, Meaning>,
}

static VOCABULARIES: LazyLock<[Vocabulary; 9]> = LazyLock::new(|| {
    let mut all: [Vocabulary; 9] = std::array::from_fn(|_| Vocabulary::default());
    for (meaning, language, phrase) in rows(include_str!("vocabulary.txt")) {
        let vocabulary = &mut all[language as usize];
        let folded = fold(phrase);
        // The first row of the file wins, so settings come before subjects with the same name.
        if !language.is_unspaced() && !matches!(meaning, Meaning::Particle) {
            vocabulary.stems.entry(language.stem(&folded)).or_insert(meaning);
        }
        vocabulary.exact.entry(folded).or_insert(meaning);
    }
    all
});

impl Vocabulary {
    /// The words of `language`.
    pub fn of(language: Language) -> &'static Self {
        &VOCABULARIES[language as usize]
    }

    /// Meaning of exactly this folded phrase.
    pub fn exact(&self, phrase: &str) -> Option<Meaning> {
        self.exact.get(phrase).copied()
    }

    /// Meaning of a phrase with this stem.
    pub fn stem(&self, stem: &str) -> Option<Meaning> {
        self.stems.get(stem).copied()
    }
}

/// Rows of `vocabulary.txt`. Malformed rows are skipped here; a test rejects them.
fn rows(text: &'static str) -> impl Iterator<Item = (Meaning, Language, &'static str)> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(key, list)| Some((Meaning::named(key)?, list)))
        .flat_map(|(meaning, list)| {
            list.split("; ")
                .filter_map(|part| part.split_once(' '))
                .filter_map(|(code, words)| {
                    Some((Language::ALL.into_iter().find(|language| language.code() == code)?, words))
                })
                .flat_map(move |(language, words)| words.split(", ").map(move |word| (meaning, language, word)))
        })
}

/// Folds text for comparison: lower case, without accents, with apostrophes and hyphens as spaces.
pub fn fold(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for c in text.chars().flat_map(char::to_lowercase) {
        match c {
            'à'..='å' | 'ā' => folded.push('a'),
            'è'..='ë' | 'ē' | 'ę' => folded.push('e'),
            'ì'..='ï' | 'ī' => folded.push('i'),
            'ò'..='ö' | 'ø' | 'ō' => folded.push('o'),
            'ù'..='ü' | 'ū' => folded.push('u'),
            'ç' => folded.push('c'),
            'ñ' => folded.push('n'),
            'ß' => folded.push_str("ss"),
            'œ' => folded.push_str("oe"),
            'æ' => folded.push_str("ae"),
            'ё' => folded.push('е'),
            '\'' | '’' | '-' | '‐' | '‑' => folded.push(' '),
            // Combining accents of text in decomposed form.
            '\u{300}'..='\u{36f}' => {}
            '\u{ff01}'..='\u{ff5e}' => folded.push(char::from_u32(c as u32 - 0xfee0).unwrap_or(c)),
            other => folded.push(other),
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_vocabulary_is_valid() {
        for line in include_str!("vocabulary.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (key, list) = line.split_once(": ").unwrap_or_else(|| panic!("no key: {line}"));
            assert!(Meaning::named(key).is_some(), "unknown key {key}");
            for part in list.split("; ") {
                let code = part.split_once(' ').map(|(code, _)| code);
                assert!(Language::ALL.iter().any(|language| Some(language.code()) == code), "{key}: {part}");
            }
        }
    }

    #[test]
    fn words_are_found_by_form_and_by_stem() {
        let english = Vocabulary::of(Language::English);
        assert_eq!(english.exact("forest"), Some(Meaning::Setting(Setting::Forest)));
        assert_eq!(english.stem(&Language::English.stem("forests")), Some(Meaning::Setting(Setting::Forest)));
        assert_eq!(Vocabulary::of(Language::French).exact(&fold("Forêt")), Some(Meaning::Setting(Setting::Forest)));
    }
}
