//! Passwords that people may set.
//!
//! Guesses are limited, so a password only has to differ from the first guesses: common passwords
//! (`passwords/common.txt`), what people turn them into to satisfy rules, and names that an attacker knows.

use std::collections::HashSet;
use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization as _;

/// Fewest characters of a password.
pub const MIN_PASSWORD_CHARS: usize = 12;
/// Most bytes of a password.
pub const MAX_PASSWORD_BYTES: usize = 1_024;
/// Fewest characters of a name that no password contains. Shorter ones are part of too many words.
const MIN_NAME_CHARS: usize = 4;
/// Most digits and signs around a common password that don't make it a different one: as many as in a date.
const MAX_ADDED_CHARS: usize = 8;
/// A name that everyone knows here.
const SERVICE: &str = "tintype";

static COMMON: LazyLock<HashSet<&'static str>> =
    LazyLock::new(|| include_str!("passwords/common.txt").lines().collect());

/// The password is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPassword {
    /// It is too short or too long.
    #[error("a password has at least {MIN_PASSWORD_CHARS} characters and at most {MAX_PASSWORD_BYTES} bytes")]
    Length,
    /// It is one that many people have, or little more.
    #[error("this password is too easy to guess: choose several words that do not belong together")]
    Common,
    /// It contains a name that an attacker knows.
    #[error("a password must not contain the name of the person, of the account or of this service")]
    Name,
}

/// A password as it is checked and hashed: each letter and its accent are one character, because devices differ in that
/// (RFC 8265, 4.2.2).
pub fn composed(password: &str) -> String {
    password.nfc().collect()
}

/// Checks whether a person can use a password. `names` are the person's and the account's names.
pub fn check_password(password: &str, names: &[&str]) -> Result<(), InvalidPassword> {
    let password = composed(password);
    if password.chars().count() < MIN_PASSWORD_CHARS || password.len() > MAX_PASSWORD_BYTES {
        return Err(InvalidPassword::Length);
    }
    let text = password.to_lowercase();
    let known = names.iter().flat_map(|name| [*name, name.split('@').next().unwrap_or_default()]);
    for name in known.chain([SERVICE]) {
        if name.chars().count() >= MIN_NAME_CHARS && text.contains(&name.to_lowercase()) {
            return Err(InvalidPassword::Name);
        }
    }
    if is_common(&text) { Err(InvalidPassword::Common) } else { Ok(()) }
}

/// Whether a text in lower case is a common password, or what people make of one: twice, beside another one, with
/// digits and signs around it, or with letters replaced by signs; or one block or step repeated.
fn is_common(text: &str) -> bool {
    let chars: Vec<char> = text.chars().collect();
    let repeats = |block: usize| chars.iter().zip(&chars[block..]).all(|(one, next)| one == next);
    let step = |pair: &[char]| i64::from(u32::from(pair[1])) - i64::from(u32::from(pair[0]));
    if (1..=chars.len() / 2).any(repeats) || chars.windows(3).all(|three| step(&three[..2]) == step(&three[1..])) {
        return true;
    }
    let core = text.trim_matches(|char: char| !char.is_alphabetic());
    let is_dressed = chars.len() - core.chars().count() <= MAX_ADDED_CHARS;
    let forms = [text].into_iter().chain(is_dressed.then_some(core));
    forms.flat_map(|form| [form.to_owned(), form.chars().map(meant).collect()]).any(|form| is_listed(&form))
}

/// Whether a text consists of one or two common passwords.
fn is_listed(text: &str) -> bool {
    let halves = |(at, _)| COMMON.contains(&text[..at]) && COMMON.contains(&text[at..]);
    COMMON.contains(text) || text.char_indices().any(halves)
}

/// The letter that a sign replaces in a word.
fn meant(char: char) -> char {
    match char {
        '@' | '4' => 'a',
        '3' => 'e',
        '1' | '!' => 'i',
        '0' => 'o',
        '$' | '5' => 's',
        '7' => 't',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_lower_case_and_in_order_without_repetition() {
        let lines: Vec<_> = include_str!("passwords/common.txt").lines().collect();
        assert!(lines.len() > 10_000 && lines.is_sorted_by(|one, next| one < next));
        assert!(lines.iter().all(|line| line.len() >= 4 && line.to_lowercase() == *line));
    }

    #[test]
    fn a_password_has_12_characters_to_1024_bytes() {
        let long = "x7 ".repeat(342);
        for (password, is_good) in
            [("ten gulls 7", false), ("ten gu\u{308}lls 7", false), ("ten gulls 77", true), ("zehn Möwe 77", true)]
        {
            assert_eq!(check_password(password, &[]) != Err(InvalidPassword::Length), is_good, "{password}");
        }
        assert_eq!(check_password(&long, &[]), Err(InvalidPassword::Length));
    }

    #[test]
    fn common_passwords_and_what_is_made_of_them_are_refused() {
        for password in [
            "unbelievable",
            "1qaz2wsx3edc",
            "passwordpassword",
            "Password12345",
            "P@ssw0rd2024!",
            "monkey19870412",
            "dragonmaster",
            "!!!iloveyou!!!",
            "aaaaaaaaaaaa",
            "abcabcabcabcab",
            "abcdefghijklmn",
            "123456789012345",
            "qwertyuiop12",
        ] {
            assert_eq!(check_password(password, &[]), Err(InvalidPassword::Common), "{password}");
        }
        for password in
            ["correct horse battery", "a ferry at dusk, and 7 gulls", "kQ7!vz0pLw2#", "monkey 8213465 at sea"]
        {
            assert_eq!(check_password(password, &[]), Ok(()), "{password}");
        }
    }

    #[test]
    fn a_password_contains_no_name_that_an_attacker_knows() {
        let names = ["grace@example.com", "Lighthouse", "ada"];
        for password in ["see GRACE swim 9", "grace@example.com", "my lighthouse 77", "I like Tintype a lot"] {
            assert_eq!(check_password(password, &names), Err(InvalidPassword::Name), "{password}");
        }
        assert_eq!(check_password("on the canadian side", &names), Ok(()), "a short name is part of many words");
    }
}
