//! Terms for the search of prompts. A prompt and a search are split in the same way, so that they meet.
//!
//! A term begins with a tag of its account. The entries of an index therefore belong to one account each, and the words of
//! others change neither the answer to a search nor the work that it takes.

use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

use super::model::Id;

/// Most characters of a term.
const MAX_CHARACTERS: usize = 40;
/// Most terms of a search; the others do not count.
const MAX_SOUGHT: usize = 16;
/// Fewest characters of a sought term that is also the beginning of longer ones: shorter beginnings have too many.
const MIN_BEGINNING: usize = 3;

/// A term to look for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought {
    /// The term, of letters and digits alone.
    pub term: String,
    /// Whether longer terms that begin with it count, too.
    pub is_beginning: bool,
}

/// Whether a character belongs to a script without spaces between words, so that it is a word by itself.
fn is_unspaced(character: char) -> bool {
    matches!(u32::from(character),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x2E80..=0x9FFF | 0xF900..=0xFAFF | 0x2_0000..=0x3_FFFF)
}

/// The words of a text, each once: in lower case, without accents, and in the plain forms of their letters.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut length = 0;
    let plain = text.chars().flat_map(char::to_lowercase).nfkd().filter(|character| !is_combining_mark(*character));
    // Some compatibility forms turn into capitals.
    for character in plain.flat_map(char::to_lowercase).chain([' ']) {
        let goes_on = character.is_alphanumeric() && !is_unspaced(character);
        if !goes_on && !word.is_empty() {
            words.push(std::mem::take(&mut word));
            length = 0;
        }
        if goes_on && length < MAX_CHARACTERS {
            word.push(character);
            length += 1;
        } else if character.is_alphanumeric() && !goes_on {
            words.push(character.into());
        }
    }
    words.sort_unstable();
    words.dedup();
    words
}

/// The tag of an account: twelve hexadecimal digits from the random end of its id. Two accounts could share one, so whoever
/// reads an index compares the account as well.
fn tag(account_id: Id) -> String {
    let id = account_id.as_str();
    id.as_bytes()[id.len() - 6..].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The terms of a prompt, each once.
pub fn terms(account_id: Id, prompt: &str) -> Vec<String> {
    let tag = tag(account_id);
    words(prompt).into_iter().map(|word| format!("{tag}{word}")).collect()
}

/// The terms that a prompt must have for a search to find it; none if the text has no words.
pub fn sought(account_id: Id, text: &str) -> Vec<Sought> {
    let tag = tag(account_id);
    let term =
        |word: String| Sought { is_beginning: word.chars().count() >= MIN_BEGINNING, term: format!("{tag}{word}") };
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
    }

    #[test]
    fn terms_of_two_accounts_differ_and_contain_nothing_but_letters_and_digits() {
        let [ada, eve] = ["-------------------_z", "-------------------_y"].map(|id| id.parse().expect("an id"));
        let [of_ada, of_eve] = [ada, eve].map(|account| terms(account, "a ship's \"bell\" OR É*"));
        assert!(of_ada.iter().all(|term| !of_eve.contains(term)));
        assert!(of_ada.iter().all(|term| term.chars().all(char::is_alphanumeric)));
        let sought = sought(ada, "a bel");
        assert_eq!(sought.iter().map(|one| one.is_beginning).collect::<Vec<_>>(), [false, true]);
        assert!(of_ada.contains(&sought[0].term));
        assert!(of_ada.iter().any(|term| term.starts_with(&sought[1].term)));
    }
}
