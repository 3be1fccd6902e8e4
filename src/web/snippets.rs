//! A task as a program would create it: for a shell, Python or JavaScript.

use serde_json::{Value, json};

use crate::domain::request::GenerateRequest;

/// The same call in several languages.
#[derive(Debug)]
pub(super) struct Snippets {
    pub(super) shell: String,
    pub(super) python: String,
    pub(super) javascript: String,
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

/// JSON, or the same expression of Python: it holds strings, numbers and lists alone. Hidden characters are escaped, so that
/// the snippet does what it looks like.
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

/// A word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl Snippets {
    /// Each with the name of its language.
    pub(super) fn all(&self) -> [(&'static str, &str); 3] {
        [("curl", &self.shell), ("Python", &self.python), ("JavaScript", &self.javascript)]
    }

    /// `base` is the address of this server, without a slash at the end.
    pub(super) fn new(base: &str, request: &GenerateRequest) -> Self {
        let (address, fields) = (Value::from(base), fields(request));
        // A line of a here-document: an argument would be too long for the kernel if the prompt is long.
        let shell = format!(
            "curl --fail-with-body {} \\\n  -H \"Authorization: Bearer $TINTYPE_API_KEY\" \\\n  -H 'Content-Type: application/json' \\\n  --data-binary @- <<'JSON'\n{}\nJSON\n",
            quoted(&format!("{base}/api/v1/images/generate")),
            literal(&fields, Escapes::Pairs)
        );
        // The address comes first in each, then the request.
        let filled = |template: &str, escapes| {
            let (start, rest) = template.split_once("BASE").expect("the template has an address");
            let (middle, end) = rest.split_once("REQUEST").expect("the template has a request");
            format!("{start}{}{middle}{}{end}", literal(&address, escapes), literal(&fields, escapes))
        };
        Self { shell, python: filled(PYTHON, Escapes::Numbers), javascript: filled(JAVASCRIPT, Escapes::Pairs) }
    }
}

const PYTHON: &str = r#"import json, os, time, urllib.request

base = BASE

def call(path, body=None):
    request = urllib.request.Request(base + path, data=body and json.dumps(body).encode())
    request.add_header("Authorization", "Bearer " + os.environ["TINTYPE_API_KEY"])
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["data"]

task = call("/api/v1/images/generate", REQUEST)
while task["status"] == "processing":
    time.sleep(5)
    task = call("/api/v1/images/task/" + task["task_id"])
print(task["error"] or [image["url"] for image in task["images"]])
"#;

const JAVASCRIPT: &str = r#"const base = BASE;

async function call(path, body) {
  const answer = await fetch(base + path, {
    method: body ? "POST" : "GET",
    headers: { Authorization: `Bearer ${process.env.TINTYPE_API_KEY}`, "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(await answer.text());
  return (await answer.json()).data;
}

(async () => {
  let task = await call("/api/v1/images/generate", REQUEST);
  while (task.status === "processing") {
    await new Promise((resolve) => setTimeout(resolve, 5000));
    task = await call(`/api/v1/images/task/${task.task_id}`);
  }
  console.log(task.error ?? task.images.map((image) => image.url));
})();
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::request::AspectRatio;

    const NASTY: &str =
        "it's \"quoted\" $(id) `id` \\ ${x} </script> %s\nJSON\n\u{202e}\u{0}\u{e0001}\u{e007f}\u{feff} BASE REQUEST";

    fn request(prompt: &str) -> GenerateRequest {
        GenerateRequest {
            prompt: prompt.into(),
            aspect_ratio: AspectRatio::Square,
            n: 1,
            reference_images: Vec::new(),
            request_id: None,
        }
    }

    #[test]
    fn no_prompt_leaves_its_string() {
        let request = request(NASTY);
        let snippets = Snippets::new("https://pictures.example", &request);
        let body = literal(&fields(&request), Escapes::Pairs);
        assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON")["prompt"], NASTY);
        for snippet in [&snippets.shell, &snippets.javascript] {
            assert_eq!(snippet.matches(&body).count(), 1);
        }
        // The shell reads the here-document up to the line with its name alone.
        let (_, document) = snippets.shell.split_once("<<'JSON'\n").expect("a document");
        assert_eq!(document, format!("{body}\nJSON\n"));
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
