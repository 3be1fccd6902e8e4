//! A task as a program would create it: for a shell, Python or JavaScript.

use serde_json::{Value, json};

use tintype_domain::request::GenerateRequest;

#[derive(Debug)]
pub(in crate::studio) struct Snippets {
    pub(in crate::studio) shell: String,
    pub(in crate::studio) python: String,
    pub(in crate::studio) javascript: String,
}

/// The fields of a request, in the order of the interface.
fn fields(request: &GenerateRequest) -> Value {
    json!({
        "prompt": request.prompt,
        "aspect_ratio": request.aspect_ratio.as_str(),
        "n": request.n,
        "reference_images": request.reference_images,
    })
}

/// How a language writes a character above U+FFFF by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escapes {
    /// As two surrogates: JSON and JavaScript.
    Pairs,
    /// As one number: Python, to which two surrogates are two characters.
    Numbers,
}

/// Whether a character shows nothing, turns the direction of the text, or looks like a space without being one.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(u32::from(character),
            0xA0 | 0xAD | 0x34F | 0x61C | 0x115F | 0x1160 | 0x1680 | 0x17B4 | 0x17B5 | 0x180B..=0x180F | 0x2000..=0x200F
                | 0x2028..=0x202F | 0x205F..=0x206F | 0x2800 | 0x3164 | 0xFE00..=0xFE0F | 0xFEFF | 0xFFA0 | 0xFFF0..=0xFFFB
                | 0x1_BCA0..=0x1_BCA3 | 0x1_D173..=0x1_D17A | 0xE_0000..=0x10_FFFF)
}

/// A JSON or Python literal, which are the same because it only contains strings, numbers and lists. Hidden characters
/// are escaped, so that the snippet does what it appears to do.
fn literal(value: &Value, escapes: Escapes) -> String {
    let mut text = String::new();
    for character in value.to_string().chars() {
        if !is_hidden(character) {
            text.push(character);
        } else if escapes == Escapes::Numbers && character > '\u{ffff}' {
            text.push_str(&format!("\\U{:08x}", u32::from(character)));
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl Snippets {
    /// Each with the name of its language.
    pub(in crate::studio) fn all(&self) -> [(&'static str, &str); 3] {
        [("curl", &self.shell), ("Python", &self.python), ("JavaScript", &self.javascript)]
    }

    /// `base` is the address of this server, without a slash at the end.
    pub(in crate::studio) fn new(base: &str, request: &GenerateRequest) -> Self {
        let (address, fields) = (Value::from(base), fields(request));
        let filled = |template: &str, address: &str, key: &str, escapes| {
            let (body, mut text, mut rest) = (literal(&fields, escapes), String::new(), template);
            for (place, part) in [("__BASE__", address), ("__KEY__", key), ("__REQUEST__", &body)] {
                let (before, after) = rest.split_once(place).expect("the template has this place");
                text.push_str(before);
                text.push_str(part);
                rest = after;
            }
            text + rest
        };
        let [shell, python, javascript] = TEMPLATES;
        Self {
            shell: filled(shell, &quoted(base), "$TINTYPE_KEY", Escapes::Pairs),
            python: filled(
                python,
                &literal(&address, Escapes::Numbers),
                "os.environ.get(\"TINTYPE_KEY\", \"\")",
                Escapes::Numbers,
            ),
            javascript: filled(
                javascript,
                &literal(&address, Escapes::Pairs),
                "process.env.TINTYPE_KEY",
                Escapes::Pairs,
            ),
        }
    }
}

/// The programs, with places for the address of the server, the key and the body, in this order. The page `/docs/` fills
/// them too. The body of the shell is a line of a here-document: an argument would be too long for the kernel if the prompt
/// is long.
pub const TEMPLATES: [&str; 3] =
    [include_str!("../pages/snippet.sh"), include_str!("../pages/snippet.py"), include_str!("../pages/snippet.js")];

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "it's \"quoted\" $(id) `id` \\ ${x} </script> %s\nJSON\n\u{202e}\u{0}\u{e0001}\u{e007f}\u{feff} __BASE__ __REQUEST__";

    #[test]
    fn no_prompt_leaves_its_string() {
        let request = GenerateRequest::new(NASTY);
        let snippets = Snippets::new("https://pictures.example", &request);
        let body = literal(&fields(&request), Escapes::Pairs);
        assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON")["prompt"], NASTY);
        for snippet in [&snippets.shell, &snippets.javascript] {
            assert_eq!(snippet.matches(&body).count(), 1);
        }
        // The shell reads the here-document up to the line with its name alone.
        let (_, document) = snippets.shell.split_once("<<'JSON' || exit 1\n").expect("a document");
        assert!(document.starts_with(&format!("{body}\nJSON\n")), "{document}");
        for (_, snippet) in snippets.all() {
            assert!(!snippet.chars().any(|character| character != '\n' && is_hidden(character)), "{snippet}");
        }
    }

    #[test]
    fn characters_above_the_basic_plane_are_escaped_as_each_language_reads_them() {
        let tag = Value::from("a\u{e0041}\u{1f6a2}");
        assert_eq!(literal(&tag, Escapes::Pairs), "\"a\\udb40\\udc41\u{1f6a2}\"");
        assert_eq!(literal(&tag, Escapes::Numbers), "\"a\\U000e0041\u{1f6a2}\"");
    }
}
