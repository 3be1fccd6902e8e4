//! Terms for the search of prompts. A prompt and a search are split in the same way, so that they meet. Terms in an
//! index can only be removed as they were made, so a change of the split needs a migration that indexes every prompt
//! again.
//!
//! A term begins with a tag of its account. So each entry of an index belongs to one account, and other accounts' words
//! affect neither the result of a search nor the time it takes.

use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

use super::model::Id;
use super::text::hex;

const MAX_CHARACTERS: usize = 40;
/// Most terms of a search; the others do not count.
const MAX_SOUGHT: usize = 16;
/// Fewest characters of a sought term that is also the beginning of longer ones: shorter beginnings have too many.
const MIN_BEGINNING: usize = 3;

/// A term to look for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchTerm {
    /// The term: letters and digits, or a symbol. It has no quotes, backslashes or white space.
    pub term: String,
    /// Whether longer terms that begin with it count, too.
    pub is_beginning: bool,
}

/// Whether a character belongs to a script without spaces between words, so that it counts as a word.
fn is_unspaced(character: char) -> bool {
    matches!(u32::from(character),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x2E80..=0x9FFF | 0xF900..=0xFAFF | 0x2_0000..=0x3_FFFF)
}

/// Whether a character that is neither a letter nor a digit is a word: emoji and other pictures, not punctuation.
fn is_symbol(character: char) -> bool {
    matches!(u32::from(character), 0xA9 | 0xAE | 0x2190..=0x2BFF | 0x3030 | 0x303D | 0x1_F000..=0x1_FBFF)
}

/// One of the two halves of an emoji flag.
fn is_flag_half(character: char) -> bool {
    matches!(character, '\u{1F1E6}'..='\u{1F1FF}')
}

/// A tag that makes one flag of many, such as Scotland's, out of 🏴 before it.
fn is_flag_tag(character: char) -> bool {
    matches!(character, '\u{E0020}'..='\u{E007F}')
}

/// How a text is being split.
#[derive(Default)]
struct Split {
    words: Vec<String>,
    word: String,
    length: usize,
}

impl Split {
    fn end_word(&mut self) {
        if !self.word.is_empty() {
            self.words.push(std::mem::take(&mut self.word));
        }
        self.length = 0;
    }

    fn add(&mut self, character: char) {
        let begins_alike = |is_part: fn(char) -> bool| self.word.chars().next().is_some_and(is_part);
        let is_letter = character.is_alphanumeric() && !is_symbol(character);
        let goes_on = match character {
            _ if is_letter => !is_unspaced(character) && !begins_alike(is_symbol),
            _ if is_flag_half(character) => self.length == 1 && begins_alike(is_flag_half),
            _ => is_flag_tag(character) && begins_alike(is_symbol),
        };
        if !goes_on {
            self.end_word();
        }
        if (goes_on || is_letter || is_symbol(character)) && self.length < MAX_CHARACTERS {
            self.word.push(character);
            self.length += 1;
        }
        if is_letter && is_unspaced(character) {
            self.end_word();
        }
    }
}

/// A text's words, each once: in lower case, without accents, with plain letter forms. Each symbol is a word, so an
/// emoji sequence is found by all of its parts, such as the people in a family, or a skin tone. A flag is one word.
/// Selectors between text and picture count as accents.
fn words(text: &str) -> Vec<String> {
    let mut split = Split::default();
    let plain = text.chars().flat_map(char::to_lowercase).nfkd().filter(|character| !is_combining_mark(*character));
    // Some compatibility forms turn into capitals.
    plain.flat_map(char::to_lowercase).for_each(|character| split.add(character));
    split.end_word();
    let mut words = split.words;
    words.sort_unstable();
    words.dedup();
    words
}

/// The tag of an account: twelve hexadecimal digits from the random end of its id. Two accounts could share one, so a
/// search compares the account as well.
fn tag(account_id: Id) -> String {
    let id = account_id.as_str();
    hex(&id.as_bytes()[id.len() - 6..])
}

/// The terms of a prompt, each once.
pub fn terms(account_id: Id, prompt: &str) -> Vec<String> {
    let tag = tag(account_id);
    words(prompt).into_iter().map(|word| format!("{tag}{word}")).collect()
}

/// The terms that a prompt must have for a search to find it; none if the text has no words.
pub fn sought(account_id: Id, text: &str) -> Vec<SearchTerm> {
    let tag = tag(account_id);
    let term =
        |word: String| SearchTerm { is_beginning: word.chars().count() >= MIN_BEGINNING, term: format!("{tag}{word}") };
    words(text).into_iter().take(MAX_SOUGHT).map(term).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_into_plain_words() {
        assert_eq!(
            words("A red-sailed SHIP, a Café & ＳＨＩＰ 16:9"),
            ["16", "9", "a", "cafe", "red", "sailed", "ship"]
        );
        assert_eq!(words("海の船 boat"), ["boat", "の", "海", "船"]);
        assert_eq!(words(" \"'*():^- \u{0} \n"), Vec::<String>::new());
        assert_eq!(words(&"a".repeat(500)), ["a".repeat(MAX_CHARACTERS)]);
        assert_eq!(words("a UV lamp, an ox"), ["a", "an", "lamp", "ox", "uv"]);
    }

    #[test]
    fn a_symbol_is_a_word_and_so_is_a_flag() {
        assert_eq!(words("a fox🦊dog 🦊🦊"), ["a", "dog", "fox", "🦊"]);
        assert_eq!(words("a🅰b"), ["a", "b", "🅰"], "Unicode counts it among the letters, too");
        assert_eq!(words("❤\u{FE0F} ❤ ©2"), ["2", "©", "❤"]);
        assert_eq!(words("1\u{FE0F}\u{20E3}"), ["1"], "a keycap");
        assert_eq!(words("👨\u{200D}👩\u{200D}👧"), ["👧", "👨", "👩"]);
        assert_eq!(words("👍🏽👍"), ["🏽", "👍"]);
        assert_eq!(words("🇩🇪🇫🇷 🇩🇪x🇩"), ["x", "🇩", "🇩🇪", "🇫🇷"]);
        let scotland = "🏴\u{E0067}\u{E0062}\u{E0073}\u{E0063}\u{E0074}\u{E007F}";
        assert_eq!(words(&format!("{scotland}a 🏴")), ["a", "🏴", scotland]);
        assert_eq!(words("\u{E0067}\u{200D}\u{FE0F}"), Vec::<String>::new());
        assert_eq!(words(&format!("🏴{}", "\u{E0067}".repeat(500)))[0].chars().count(), MAX_CHARACTERS);
    }

    #[test]
    fn terms_of_two_accounts_differ_and_contain_nothing_that_a_query_language_reads() {
        let [ada, eve] = ["-------------------_z", "-------------------_y"].map(|id| id.parse().expect("an id"));
        let [of_ada, of_eve] = [ada, eve].map(|account| terms(account, "a ship's \"bell\" OR É* \\ \u{0}"));
        assert!(of_ada.iter().all(|term| !of_eve.contains(term)));
        assert!(of_ada.iter().all(|term| term.chars().all(char::is_alphanumeric)));
        let sought = sought(ada, "a bel");
        assert_eq!(sought.iter().map(|one| one.is_beginning).collect::<Vec<_>>(), [false, true]);
        assert!(of_ada.contains(&sought[0].term));
        assert!(of_ada.iter().any(|term| term.starts_with(&sought[1].term)));
    }
}
