//! Names of fields that a submit carries and the service does not know.

use std::fmt;

const MAX_NAMES: usize = 10;
/// Longest name that is shown whole, in characters as they are shown.
const MAX_NAME_CHARS: usize = 40;
/// Stands for the rest of a name or of the list.
const CUT: &str = "...";

/// The names of ignored fields. Displays as a list for a header: a caller chooses the names, so every byte outside of
/// `A-Z a-z 0-9 _ -` is shown as `%` and two hexadecimal digits, and a long name or list is cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoredFields {
    shown: Vec<String>,
    more: bool,
}

impl IgnoredFields {
    /// Notes the name of a field.
    pub fn note(&mut self, name: &str) {
        if self.shown.len() < MAX_NAMES {
            self.shown.push(shown(name));
        } else {
            self.more = true;
        }
    }

    /// Whether all fields of the submit are known.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }
}

impl fmt::Display for IgnoredFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown.join(", "))?;
        if self.more { write!(f, ", {CUT}") } else { Ok(()) }
    }
}

fn shown(name: &str) -> String {
    let mut shown = String::new();
    for byte in name.bytes() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let piece = if plain { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        if shown.len() + piece.len() > MAX_NAME_CHARS {
            return shown + CUT;
        }
        shown += &piece;
    }
    // An empty list member means nothing in a header (RFC 9110, section 5.6.1).
    if shown.is_empty() { "\"\"".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> String {
        let mut ignored = IgnoredFields::default();
        names.iter().for_each(|name| ignored.note(name));
        assert_eq!(ignored.is_empty(), names.is_empty());
        ignored.to_string()
    }

    #[test]
    fn names_are_listed_in_the_order_of_the_body() {
        assert_eq!(list(&["size", "aspect", "Prompt", "negative_prompt"]), "size, aspect, Prompt, negative_prompt");
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn a_hostile_name_is_shown_in_safe_characters_and_cut() {
        for (name, shown) in [
            ("", "\"\""),
            ("...", "%2E%2E%2E"),
            ("a, b", "a%2C%20b"),
            ("a\r\nset-cookie: b=c", "a%0D%0Aset-cookie%3A%20b%3Dc"),
            ("größe", "gr%C3%B6%C3%9Fe"),
            ("\u{0}\u{7f}", "%00%7F"),
            (&"x".repeat(40), &"x".repeat(40)),
            (&"x".repeat(41), &("x".repeat(40) + "...")),
            (&"x".repeat(200_000), &("x".repeat(40) + "...")),
            (&("x".repeat(38) + "%"), &("x".repeat(38) + "...")),
        ] {
            assert_eq!(list(&[name]), shown);
        }
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<_> = (0..1_000).map(|number| format!("f{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(list(&names[..10]), "f0, f1, f2, f3, f4, f5, f6, f7, f8, f9");
        assert_eq!(list(&names), "f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, ...");
    }
}
