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

/// JSON that is also an expression of Python and of JavaScript: it holds strings, numbers and lists alone. Characters that
/// show nothing or turn the direction of the text are escaped, so that the snippet does what it looks like.
fn literal(value: &Value) -> String {
    let mut text = String::new();
    for character in value.to_string().chars() {
        let is_hidden = character.is_control()
            || matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
        if is_hidden {
            text.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            text.push(character);
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
        let body = literal(&fields(request));
        let address = literal(&Value::from(base));
        let shell = format!(
            "curl --fail-with-body {} \\\n  -H \"Authorization: Bearer $TINTYPE_API_KEY\" \\\n  -H 'Content-Type: application/json' \\\n  --data-raw {}\n",
            quoted(&format!("{base}/api/v1/images/generate")),
            quoted(&body)
        );
        // The address comes first in each, then the request.
        let filled = |template: &str| {
            let (start, rest) = template.split_once("BASE").expect("the template has an address");
            let (middle, end) = rest.split_once("REQUEST").expect("the template has a request");
            format!("{start}{address}{middle}{body}{end}")
        };
        Self { shell, python: filled(PYTHON), javascript: filled(JAVASCRIPT) }
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

    #[test]
    fn no_prompt_leaves_its_string() {
        let prompt = "it's \"quoted\" $(id) `id` \\ ${x} </script> %s\n\u{202e}\u{0} BASE REQUEST";
        let request = GenerateRequest {
            prompt: prompt.into(),
            aspect_ratio: AspectRatio::Square,
            n: 1,
            reference_images: Vec::new(),
            request_id: None,
        };
        let snippets = Snippets::new("https://pictures.example", &request);
        let body = literal(&fields(&request));
        assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON")["prompt"], prompt);
        for snippet in [&snippets.python, &snippets.javascript] {
            assert_eq!(snippet.matches(&body).count(), 1);
        }
        // Of a shell, only the apostrophe ends a word in apostrophes.
        let (_, word) = snippets.shell.split_once("--data-raw '").expect("a word");
        assert_eq!(word.trim_end().strip_suffix('\'').expect("its end").replace("'\\''", "’").matches('\'').count(), 0);
        assert!(!snippets.shell.contains(['\u{202e}', '\u{0}']));
    }
}
