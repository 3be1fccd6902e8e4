//! Pictures as files that people keep: their names, and the details that a download embeds on request. The stored PNG has
//! neither.

use askama::Template;
use serde_json::{Map, Value};

use tintype_domain::model::Task;
use tintype_domain::request::{GenerateRequest, TaskSettings};
use tintype_domain::text;
use tintype_engine::Setting;
use tintype_system::clock::Timestamp;

use crate::studio::page::BYTE_ORDER_MARK;
use crate::studio::settings::value_of;

/// Most of a prompt in the name of a file, in bytes. File systems take 255.
const MAX_STEM: usize = 80;
/// Where the header of a PNG ends: its signature and the chunk IHDR. [`PictureFile::with_details`] needs no more.
pub(super) const PNG_HEADER: u64 = 8 + 4 + 4 + 13 + 4;
/// The keyword of the text with the fields of the form, which the script of the studio reads.
const FIELDS: &str = "Tintype";
/// The keyword of XMP (XMP specification, part 3, 1.1.5).
const XMP: &str = "XML:com.adobe.xmp";

/// The name of a file for a prompt, without its extension: letters and digits of any script, joined by hyphens.
pub(super) fn stem(prompt: &str) -> String {
    let mut stem = String::new();
    for char in prompt.chars().flat_map(char::to_lowercase) {
        let is_hidden = matches!(char, '\u{61c}' | '\u{2000}'..='\u{206f}' | '\u{feff}' | '\u{e000}'..='\u{f8ff}');
        let is_kept = if char.is_ascii() { char.is_ascii_alphanumeric() } else { !char.is_whitespace() && !is_hidden };
        if is_kept && !char.is_control() {
            if stem.len() + char.len_utf8() > MAX_STEM {
                break;
            }
            stem.push(char);
        } else if !stem.is_empty() && !stem.ends_with('-') {
            stem.push('-');
        }
    }
    let stem = stem.trim_end_matches('-');
    match stem {
        "" => "picture".into(),
        _ if is_device(stem) => format!("_{stem}"),
        _ => stem.to_owned(),
    }
}

/// Whether Windows reserves this name, in lower case, for a device, whatever extension follows.
fn is_device(stem: &str) -> bool {
    let number = stem.strip_prefix("com").or_else(|| stem.strip_prefix("lpt"));
    let is_port = |number: &str| number.chars().count() == 1 && "123456789¹²³".contains(number);
    matches!(stem, "con" | "prn" | "aux" | "nul") || number.is_some_and(is_port)
}

#[derive(Debug)]
pub(super) struct PictureFile {
    /// The name under which it is stored.
    pub(super) stored: String,
    pub(super) name: String,
    /// The fields of a form that makes it again.
    fields: Map<String, Value>,
    pub(super) created_at: Timestamp,
    is_edit: bool,
}

#[derive(Template)]
#[template(path = "picture.xmp", escape = "html")]
struct Xmp<'a> {
    created_at: Timestamp,
    /// The kind of source (IPTC digital source types).
    source: &'a str,
    prompt: &'a str,
}

impl PictureFile {
    /// The pictures of a completed task, which are stored under these names.
    pub(super) fn of(task: &Task, request: &GenerateRequest, stored: &[String]) -> Vec<Self> {
        let stem = stem(&request.prompt);
        let mut pictures = Vec::new();
        for (number, (stored, seed)) in (1..).zip(stored.iter().zip(request.seeds(task.id))) {
            let name = if request.n == 1 { format!("{stem}.png") } else { format!("{stem}-{number}.png") };
            pictures.push(Self {
                stored: stored.clone(),
                name,
                fields: fields(request, seed),
                created_at: task.created_at(),
                is_edit: !request.reference_images.is_empty(),
            });
        }
        pictures
    }

    /// The name of a file with all pictures of the task, without its extension.
    pub(super) fn stem(&self) -> String {
        stem(self.field("prompt"))
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// The byte order mark and the first line of a table of pictures (RFC 4180).
    pub(super) fn csv_header() -> String {
        let settings = Setting::ALL.map(Setting::as_str).join(",");
        format!("{BYTE_ORDER_MARK}file,created_at,shape,preset,{settings},prompt\r\n")
    }

    /// The line of the picture in that table, for the file with this name.
    pub(super) fn csv_line(&self, name: &str) -> String {
        let names = ["shape", "preset"].into_iter().chain(Setting::ALL.map(Setting::as_str)).chain(["prompt"]);
        let fields: Vec<_> = names.map(|name| text::csv_field(self.field(name))).collect();
        format!("{},{},{}\r\n", text::csv_field(name), self.created_at, fields.join(","))
    }

    /// The PNG with its prompt, its settings and the mark of generated pictures; unchanged if it is not a PNG.
    pub(super) fn with_details(&self, png: &[u8]) -> Result<Vec<u8>, askama::Error> {
        let Some((header, rest)) =
            png.split_at_checked(PNG_HEADER as usize).filter(|_| png.starts_with(b"\x89PNG\r\n\x1a\n"))
        else {
            return Ok(png.to_vec());
        };
        let source = if self.is_edit { "compositeWithTrainedAlgorithmicMedia" } else { "trainedAlgorithmicMedia" };
        // XML takes no other control characters (XML 1.0, 2.2).
        let is_xml = |char: &char| !char.is_control() || matches!(char, '\t' | '\n' | '\r');
        let prompt: String = self.field("prompt").chars().filter(is_xml).collect();
        let xmp = Xmp { created_at: self.created_at, source, prompt: &prompt }.render()?;
        let fields = Value::Object(self.fields.clone()).to_string();
        Ok([header, &text_chunk(XMP, xmp.trim_end()), &text_chunk(FIELDS, &fields), rest].concat())
    }
}

/// The fields of a form that makes a picture with this seed again.
fn fields(request: &GenerateRequest, seed: u32) -> Map<String, Value> {
    let TaskSettings { preset, render, .. } = &request.settings;
    let mut fields = vec![("prompt", request.prompt.clone()), ("shape", request.aspect_ratio.to_string())];
    fields.extend(preset.clone().map(|preset| ("preset", preset)));
    let settings = Setting::ALL.into_iter().filter(|setting| *setting != Setting::Seed);
    fields.extend(settings.filter_map(|setting| Some((setting.as_str(), value_of(render, setting)?))));
    fields.push((Setting::Seed.as_str(), seed.to_string()));
    fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// A chunk of international text, not compressed (PNG specification, 11.3.3.4).
fn text_chunk(keyword: &str, text: &str) -> Vec<u8> {
    let body = [b"iTXt", keyword.as_bytes(), b"\0\0\0\0\0", text.as_bytes()].concat();
    let length = u32::try_from(body.len() - 4).expect("a prompt and its settings are short");
    [&length.to_be_bytes()[..], &body, &crc32fast::hash(&body).to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_after_its_prompt() {
        for (prompt, name) in [
            ("A lighthouse in fog, oil on canvas!", "a-lighthouse-in-fog-oil-on-canvas"),
            ("  ../../etc/passwd ", "etc-passwd"),
            ("CON", "_con"),
            ("Prn!", "_prn"),
            ("aux", "_aux"),
            ("nul", "_nul"),
            ("COM1", "_com1"),
            ("lpt9.", "_lpt9"),
            ("com²", "_com²"),
            ("con.png", "con-png"),
            ("console", "console"),
            ("com", "com"),
            ("com0", "com0"),
            ("COM10", "com10"),
            ("Füchse im Schnee", "füchse-im-schnee"),
            ("雪の中の狐", "雪の中の狐"),
            ("बर्फ में लोमड़ी", "बर्फ-में-लोमड़ी"),
            ("🦊 in snow", "🦊-in-snow"),
            ("a\u{202e}gnp.exe\0\r\nb", "a-gnp-exe-b"),
            ("\\/:*?\"<>|", "picture"),
            ("", "picture"),
        ] {
            assert_eq!(stem(prompt), name, "{prompt}");
        }
        assert_eq!(stem(&"狐".repeat(200)).len(), 78);
    }

    #[test]
    fn what_is_no_png_stays_as_it_is() {
        let picture = PictureFile {
            stored: String::new(),
            name: "a.png".into(),
            fields: Map::new(),
            created_at: Timestamp::from_millis(0),
            is_edit: false,
        };
        for bytes in [&b"GIF89a"[..], b"", b"\x89PNG\r\n\x1a\n"] {
            assert_eq!(picture.with_details(bytes).expect("a template"), bytes);
        }
    }
}
