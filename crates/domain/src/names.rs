//! New names of people and accounts, which must not look like an existing name.
//!
//! Existing names stay usable, so only code that creates a name checks it here.

use unicode_properties::{GeneralCategory as Category, UnicodeGeneralCategory as _};
use unicode_security::restriction_level::{RestrictionLevel, RestrictionLevelDetection as _};

use super::person::person_name;
use super::text::{InvalidText, account_name};

/// The text cannot be a new name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It is not a name at all.
    #[error(transparent)]
    Text(#[from] InvalidText),
    /// It could be taken for another name.
    #[error("each word of a name has letters of one script, and no character of a name is invisible")]
    LookAlike,
}

/// Parses a new name of an account.
pub fn new_account_name(text: &str) -> Result<String, InvalidName> {
    checked(account_name(text)?)
}

/// Parses a new name of a person.
pub fn new_person_name(text: &str) -> Result<String, InvalidName> {
    checked(person_name(text)?)
}

/// A text that is the same for names that look alike; `None` for ASCII names, whose characters people can tell apart.
pub fn confusable_skeleton(name: &str) -> Option<String> {
    (!name.is_ascii()).then(|| skeleton(name))
}

/// Whether a name looks like the one whose [`confusable_skeleton`] is `other`.
pub fn is_confusable(name: &str, other: &str) -> bool {
    skeleton(name) == other
}

/// The skeleton of a name by Unicode Technical Standard #39.
fn skeleton(name: &str) -> String {
    unicode_security::skeleton(&name.to_lowercase()).collect()
}

fn checked(name: String) -> Result<String, InvalidName> {
    let mut words = name.split(|char: char| !is_of_word(char)).filter(|word| !word.is_empty());
    let is_plain = |word: &str| word.check_restriction_level(RestrictionLevel::HighlyRestrictive);
    if name.chars().any(is_invisible) || !words.all(is_plain) {
        return Err(InvalidName::LookAlike);
    }
    Ok(name)
}

fn is_of_word(char: char) -> bool {
    let marks = [Category::NonspacingMark, Category::SpacingMark, Category::EnclosingMark];
    char.is_alphanumeric() || marks.contains(&char.general_category())
}

/// Whether a character shows nothing, orders others, or looks different everywhere.
fn is_invisible(char: char) -> bool {
    match char.general_category() {
        Category::SpaceSeparator => char != ' ',
        Category::Control
        | Category::Format
        | Category::LineSeparator
        | Category::ParagraphSeparator
        | Category::PrivateUse
        | Category::Surrogate
        | Category::Unassigned => true,
        // A blank pattern of Braille.
        _ => char == '\u{2800}',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_one_script_are_new_names() {
        for name in [
            "ada",
            "Ada Lovelace (2)",
            "o'brien@example.com",
            "Jürgen Müller",
            "Łukasz Żółw",
            "yıldız",
            "Анна Каренина",
            "ACME Москва",
            "Ελένη",
            "山田 太郎",
            "ナイトtower",
            "김철수",
            "محمد",
            "दिव्या",
            "team 🎨",
        ] {
            assert_eq!(new_account_name(name).as_deref(), Ok(name));
        }
        assert_eq!(new_person_name(" Анна ").as_deref(), Ok("анна"));
    }

    #[test]
    fn names_that_hide_something_are_not() {
        for name in [
            "аda",
            "pаypal support",
            "ада\u{200b}",
            "a\u{202e}da",
            "ada\u{2066}",
            "ada\u{a0}1",
            "a\u{ad}da",
            "ada\u{fe0f}",
            "\u{3164}",
            "\u{2800}",
            "ａｄａ",
            "𝐚𝐝𝐚",
            "adа@example.com",
        ] {
            assert_eq!(new_account_name(name), Err(InvalidName::LookAlike), "{name:?}");
        }
        assert!(matches!(new_account_name(" "), Err(InvalidName::Text(_))));
    }

    #[test]
    fn a_name_in_another_script_may_look_like_one_that_exists() {
        let skeleton = confusable_skeleton("сосо").expect("not ASCII");
        assert!(
            is_confusable("coco", &skeleton) && is_confusable("Coco", &skeleton) && !is_confusable("cocoa", &skeleton)
        );
        assert_eq!(super::confusable_skeleton("coco"), None);
    }
}
