//! The texts that operators write, with their limits, and numbers and times in the texts that operators read.

use std::time::Duration;

/// Most characters of an account's or a person's name.
pub const MAX_NAME_CHARS: usize = 100;
/// Most characters of a key's label.
pub const MAX_LABEL_CHARS: usize = 100;
/// Most characters of a ledger note.
pub const MAX_NOTE_CHARS: usize = 500;
/// Most characters of the reason for failing a task, which its owner reads.
pub const MAX_REASON_CHARS: usize = 500;

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text is too long, empty, or holds control characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} must have {min} to {max} characters, without line breaks and other control characters; this one has {chars}"
)]
pub struct InvalidText {
    what: &'static str,
    min: usize,
    max: usize,
    chars: usize,
}

/// Parses the name of an account; drops white space around it.
pub fn account_name(text: &str) -> Result<String, InvalidText> {
    checked("an account's name", text.trim(), 1, MAX_NAME_CHARS)
}

/// Parses the name of a person; drops white space around it.
pub(super) fn person_name(text: &str) -> Result<String, InvalidText> {
    checked("a person's name", text.trim(), 1, MAX_NAME_CHARS)
}

/// Parses the label of a key; drops white space around it.
pub fn key_label(text: &str) -> Result<String, InvalidText> {
    checked("a key's label", text.trim(), 0, MAX_LABEL_CHARS)
}

/// Parses the note of a ledger entry; drops white space around it.
pub fn ledger_note(text: &str) -> Result<String, InvalidText> {
    checked("a note", text.trim(), 0, MAX_NOTE_CHARS)
}

/// Parses a note that an entry must have; drops white space around it.
pub fn ledger_reason(text: &str) -> Result<String, InvalidText> {
    checked("a note", text.trim(), 1, MAX_NOTE_CHARS)
}

/// A field of a CSV file (RFC 4180) that no spreadsheet takes for a formula.
pub fn csv_field(text: &str) -> String {
    // Some drop white space before a formula, and take the wide signs of East Asian keyboards for the narrow ones.
    const SIGNS: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];
    let is_formula = text.starts_with('\t') || text.trim_start().starts_with(SIGNS);
    let guard = if is_formula { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

/// Parses the reason for failing a task; drops white space around it.
pub fn failure_reason(text: &str) -> Result<String, InvalidText> {
    checked("a reason", text.trim(), 1, MAX_REASON_CHARS)
}

/// A number and its noun, such as `1 task` or `2 tasks`.
pub fn counted(number: impl Into<i128>, singular: &str, plural: &str) -> String {
    let number = number.into();
    format!("{number} {}", if number == 1 { singular } else { plural })
}

/// The units of [`in_words`] in seconds.
const UNITS: [(u64, &str, &str); 4] =
    [(86_400, "day", "days"), (3_600, "hour", "hours"), (60, "minute", "minutes"), (1, "second", "seconds")];

/// A duration in words, such as `1 day 2 hours`. Parts of a second are left out.
pub fn in_words(duration: Duration) -> String {
    let mut left = duration.as_secs();
    let mut parts = Vec::new();
    for (seconds, one, many) in UNITS {
        let count = left / seconds;
        left %= seconds;
        if count > 0 || (parts.is_empty() && seconds == 1) {
            parts.push(counted(count, one, many));
        }
    }
    parts.join(" ")
}

/// The duration that [`in_words`] has written.
pub fn of_words(text: &str) -> Option<Duration> {
    let words: Vec<&str> = text.split(' ').collect();
    let part = |part: &[&str]| {
        let [count, unit] = part else { return None };
        let (seconds, ..) = UNITS.into_iter().find(|(_, one, many)| [one, many].contains(&unit))?;
        count.parse::<u64>().ok()?.checked_mul(seconds)
    };
    words.chunks(2).map(part).sum::<Option<u64>>().map(Duration::from_secs)
}

fn checked(what: &'static str, text: &str, min: usize, max: usize) -> Result<String, InvalidText> {
    let chars = text.chars().count();
    if (min..=max).contains(&chars) && !text.contains(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(InvalidText { what, min, max, chars })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_counted_in_characters() {
        assert_eq!(key_label(&"ü".repeat(MAX_LABEL_CHARS)).map(|label| label.chars().count()), Ok(MAX_LABEL_CHARS));
        let error = key_label(&"ü".repeat(MAX_LABEL_CHARS + 1)).expect_err("one too many");
        assert_eq!(
            error.to_string(),
            "a key's label must have 0 to 100 characters, without line breaks and other control characters; this one has 101"
        );
    }

    #[test]
    fn a_duration_is_in_words() {
        let cases = [
            (0, "0 seconds"),
            (1, "1 second"),
            (90, "1 minute 30 seconds"),
            (86_400, "1 day"),
            (180_000, "2 days 2 hours"),
        ];
        for (seconds, words) in cases {
            assert_eq!(in_words(Duration::from_secs(seconds)), words);
            assert_eq!(of_words(words), Some(Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn a_field_that_a_spreadsheet_takes_for_a_formula_gets_an_apostrophe() {
        for text in ["=1", "+1", "-1", "@a", "\ta", "\r=1", "\n=1", " =1", "\u{a0}=1", "＝1", "＋1", "－1", "＠a"] {
            assert_eq!(csv_field(text), format!("\"'{text}\""));
        }
        for text in ["", "1=1", "a fox\n=", " a fox"] {
            assert_eq!(csv_field(text), format!("\"{text}\""));
        }
    }

    #[test]
    fn control_characters_are_refused() {
        for text in ["a\0b", "a\nb", "a\u{7f}b"] {
            assert!(account_name(text).is_err() && ledger_note(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_and_reasons_are_not_empty() {
        assert_eq!(account_name(" ada ").as_deref(), Ok("ada"));
        assert!(account_name(" ").is_err() && failure_reason("\t").is_err() && ledger_reason("  ").is_err());
        assert_eq!(ledger_reason(" a refund ").as_deref(), Ok("a refund"));
        assert_eq!([key_label(""), key_label("  "), ledger_note(" ")], [(); 3].map(|()| Ok(String::new())));
    }
}
