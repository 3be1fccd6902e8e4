//! Text for terminals. Callers choose prompts and names, and some characters in them would move the cursor, hide text or
//! turn it round: those are shown by their numbers.

use unicode_properties::{GeneralCategory as Category, UnicodeGeneralCategory as _};

/// Whether a terminal acts on a character instead of showing it: control characters, and those that format, such as the
/// bidirectional ones. Line breaks and tabs lay out what commands print.
fn acts(character: char) -> bool {
    let category = character.general_category();
    let acts = matches!(
        category,
        Category::Control | Category::Format | Category::LineSeparator | Category::ParagraphSeparator
    );
    acts && !matches!(character, '\n' | '\t')
}

/// A text for display, with such characters shown as `\u{202e}`.
pub(super) fn visible(text: &str) -> String {
    replaced(text, |shown, character| shown.extend(character.escape_unicode()))
}

/// JSON for display, with such characters escaped within strings.
pub(super) fn visible_json(json: &str) -> String {
    replaced(json, |shown, character| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

fn replaced(text: &str, replace: impl Fn(&mut String, char)) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        // CSV ends its lines so.
        let ends_line = character == '\r' && characters.peek() == Some(&'\n');
        if acts(character) && !ends_line { replace(&mut shown, character) } else { shown.push(character) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_on_is_shown_by_its_number() {
        assert_eq!(visible("a\u{9b}31mb\u{1b}c\u{202e}d\re"), "a\\u{9b}31mb\\u{1b}c\\u{202e}d\\u{d}e");
        assert_eq!(visible("line\n\tÅngström 猫 🦊"), "line\n\tÅngström 猫 🦊");
        for hidden in ['\u{0}', '\u{7f}', '\u{200b}', '\u{200f}', '\u{2028}', '\u{2066}', '\u{61c}', '\u{e0041}'] {
            assert!(!visible(&hidden.to_string()).contains(hidden), "{hidden:?}");
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let value = serde_json::json!({ "prompt": "a\u{9b}b\u{202e}c\u{e0041}d\u{1}\n", "n": 1 });
        let shown = visible_json(&serde_json::to_string_pretty(&value).expect("JSON"));
        assert!(shown.chars().all(|character| !acts(character)), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value);
    }
}
