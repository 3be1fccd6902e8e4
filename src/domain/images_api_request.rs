//! The requests of OpenAI's Images API, as the service takes them ([`super::images_api`] has the documents).

use std::collections::HashSet;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::domain::ignored_fields::IgnoredFields;
use crate::domain::json::Json;
use crate::domain::reference_url::ReferenceUrl;
use crate::domain::request::{self, AspectRatio, GenerateRequest, MAX_IMAGES, MAX_REFERENCES};

/// Longest name of a model, in characters.
const MAX_MODEL_CHARS: usize = 200;
/// Fields that are taken and change nothing: an engine of Tintype has no such choice.
const WITHOUT_EFFECT: [&str; 5] = ["quality", "style", "moderation", "user", "input_fidelity"];

/// The two kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CallKind {
    /// `/images/generations`.
    Generation,
    /// `/images/edits`.
    Edit,
}

/// The format of the files of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum OutputFormat {
    /// The result files as they are.
    Png,
    /// JPEG with this quality, 0 to 100.
    Jpeg(u8),
    /// WebP without loss: there is no quality to choose.
    Webp,
}

impl OutputFormat {
    /// The word of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg(_) => "jpeg",
            Self::Webp => "webp",
        }
    }
}

/// A call with all of its choices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImagesCall {
    /// Whether it generates or edits.
    pub kind: CallKind,
    /// The task to make.
    pub request: GenerateRequest,
    /// The model that the caller named.
    pub model: Option<String>,
    /// The format of the files.
    pub format: OutputFormat,
    /// Whether the answer holds URLs instead of files.
    pub as_urls: bool,
    /// The names of fields that the service does not know.
    #[serde(skip)]
    pub ignored: IgnoredFields,
}

/// A fault in a call; displays as a sentence for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidCall {
    /// A sentence for the caller.
    pub message: String,
    /// The field at fault, if it is one.
    pub param: Option<&'static str>,
}

fn invalid<T>(param: &'static str, rule: &str) -> Result<T, InvalidCall> {
    Err(InvalidCall { message: format!("{param} {rule}."), param: Some(param) })
}

impl ImagesCall {
    /// Parses a body. A field that is null counts as absent, as the clients of OpenAI write it. `reference_ports` are the
    /// ports allowed in URLs of input images.
    ///
    /// # Errors
    /// [`InvalidCall`] with the first fault.
    pub fn parse(kind: CallKind, body: &[u8], reference_ports: &[u16]) -> Result<Self, InvalidCall> {
        let mut fields = Fields::parse(body)?;
        fields.refuse_what_cannot_be_done(kind)?;
        let prompt = request::prompt(fields.take("prompt")).map_err(at("prompt"))?;
        let as_urls = match fields.word("response_format")?.as_deref() {
            None | Some("b64_json") => false,
            Some("url") => true,
            Some(_) => return invalid("response_format", "must be b64_json or url"),
        };
        let format = fields.format()?;
        if as_urls && format != OutputFormat::Png {
            return invalid("output_format", "must be png with response_format url: the URLs serve PNG files");
        }
        if fields.flag("stream")? {
            return invalid("stream", "must be false: events are not supported");
        }
        fields.integer("partial_images", 0..=3)?;
        let request = GenerateRequest {
            prompt,
            aspect_ratio: fields.size()?,
            n: fields.count()?,
            reference_images: match kind {
                CallKind::Generation => Vec::new(),
                CallKind::Edit => input_images(fields.take("images"), reference_ports)?,
            },
            request_id: None,
        };
        let model = fields.word("model")?.filter(|model| !model.is_empty());
        if model.as_ref().is_some_and(|model| model.chars().count() > MAX_MODEL_CHARS) {
            return invalid("model", "must have at most 200 characters");
        }
        for name in WITHOUT_EFFECT {
            fields.word(name)?;
        }
        let mut ignored = IgnoredFields::default();
        fields.rest.iter().for_each(|(name, _)| ignored.note(name));
        Ok(Self { kind, request, model, format, as_urls, ignored })
    }

    /// Identifies the choices of the call: two bodies with the same meaning have the same digest. `salt` makes the prompts
    /// of one key useless for guesses at those of another.
    pub fn digest(&self, salt: &[u8]) -> [u8; 32] {
        let choices = serde_json::to_vec(self).expect("a call is always JSON");
        Sha256::new().chain_update(salt).chain_update(choices).finalize().into()
    }
}

fn at(param: &'static str) -> impl Fn(request::InvalidRequest) -> InvalidCall {
    move |fault| InvalidCall { message: fault.0, param: Some(param) }
}

/// The fields that nobody has taken yet.
struct Fields {
    rest: Vec<(String, Json)>,
}

impl Fields {
    fn parse(body: &[u8]) -> Result<Self, InvalidCall> {
        let fault = |message: String| InvalidCall { message, param: None };
        let parsed: Json = serde_json::from_slice(body)
            .map_err(|error| fault(format!("The body is not a valid JSON object: {error}.")))?;
        let Json::Object(rest) = parsed else { return Err(fault("The body must be a JSON object.".into())) };
        let mut seen = HashSet::new();
        if let Some((repeated, _)) = rest.iter().find(|(name, _)| !seen.insert(name.as_str())) {
            let shown: String = repeated.chars().take(40).collect();
            return Err(fault(format!("The body repeats the field {shown:?}.")));
        }
        Ok(Self { rest: rest.into_iter().filter(|(_, value)| *value != Json::Null).collect() })
    }

    fn take(&mut self, name: &str) -> Option<Json> {
        let index = self.rest.iter().position(|(known, _)| known == name)?;
        Some(self.rest.remove(index).1)
    }

    fn word(&mut self, name: &'static str) -> Result<Option<String>, InvalidCall> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(_) => invalid(name, "must be a string"),
        }
    }

    fn flag(&mut self, name: &'static str) -> Result<bool, InvalidCall> {
        match self.take(name) {
            None => Ok(false),
            Some(Json::Bool(value)) => Ok(value),
            Some(_) => invalid(name, "must be true or false"),
        }
    }

    fn integer(&mut self, name: &'static str, range: std::ops::RangeInclusive<u8>) -> Result<Option<u8>, InvalidCall> {
        let bounds = f64::from(*range.start())..=f64::from(*range.end());
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(number)) if number.fract() == 0.0 && bounds.contains(&number) => Ok(Some(number as u8)),
            Some(_) => invalid(name, &format!("must be an integer from {} to {}", range.start(), range.end())),
        }
    }

    /// Refuses the fields that ask for other pictures than the service makes.
    fn refuse_what_cannot_be_done(&mut self, kind: CallKind) -> Result<(), InvalidCall> {
        if self.take("mask").is_some() {
            return invalid("mask", "is not supported: leave it out to edit the whole image");
        }
        if kind == CallKind::Generation && self.take("images").is_some() {
            return invalid("images", "belongs to /v1/images/edits");
        }
        match self.word("background")?.as_deref() {
            None | Some("auto" | "opaque") => Ok(()),
            Some("transparent") => invalid("background", "transparent is not supported: images are opaque"),
            Some(_) => invalid("background", "must be auto or opaque"),
        }
    }

    fn format(&mut self) -> Result<OutputFormat, InvalidCall> {
        let compression = self.integer("output_compression", 0..=100)?;
        match self.word("output_format")?.as_deref() {
            None | Some("png") => Ok(OutputFormat::Png),
            Some("jpeg" | "jpg") => Ok(OutputFormat::Jpeg(compression.unwrap_or(100))),
            Some("webp") => Ok(OutputFormat::Webp),
            Some(_) => invalid("output_format", "must be png, jpeg or webp"),
        }
    }

    fn count(&mut self) -> Result<u8, InvalidCall> {
        match self.integer("n", 1..=MAX_IMAGES) {
            Ok(count) => Ok(count.unwrap_or(1)),
            Err(_) => invalid("n", "must be an integer from 1 to 4"),
        }
    }

    fn size(&mut self) -> Result<AspectRatio, InvalidCall> {
        let Some(text) = self.word("size")? else { return Ok(AspectRatio::default()) };
        if text.is_empty() || text == "auto" {
            return Ok(AspectRatio::default());
        }
        let side = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|side| digits && *side > 0)
        };
        let sides = text.split_once(['x', 'X']).and_then(|(width, height)| side(width).zip(side(height)));
        match sides {
            Some((width, height)) => Ok(AspectRatio::nearest(width, height)),
            None => invalid("size", "must be auto or WIDTHxHEIGHT in pixels, such as 1024x1024"),
        }
    }
}

/// The URLs of the images to edit.
fn input_images(value: Option<Json>, ports: &[u16]) -> Result<Vec<String>, InvalidCall> {
    let entries = match value {
        None => return invalid("images", "is required: the images to edit"),
        Some(Json::Array(entries)) => entries,
        Some(_) => return invalid("images", "must be an array of objects with image_url"),
    };
    if entries.is_empty() || entries.len() > MAX_REFERENCES {
        return invalid("images", "must have 1 to 4 entries");
    }
    let url = |(index, entry): (usize, Json)| {
        let wrong =
            |rule: String| Err(InvalidCall { message: format!("images[{index}]{rule}."), param: Some("images") });
        let Json::Object(fields) = entry else { return wrong(" must be an object with image_url".into()) };
        let mut fields = fields.into_iter().filter(|(_, value)| *value != Json::Null);
        match (fields.next(), fields.next()) {
            (Some((name, Json::String(url))), None) if name == "image_url" => match ReferenceUrl::parse(&url, ports) {
                Ok(_) => Ok(url),
                Err(fault) => wrong(format!(".image_url {fault}")),
            },
            _ => wrong(" must be an object with the one field image_url, a public https URL".into()),
        }
    };
    entries.into_iter().enumerate().map(url).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(body: &str) -> Result<ImagesCall, InvalidCall> {
        ImagesCall::parse(CallKind::Generation, body.as_bytes(), &[])
    }

    #[test]
    fn a_size_becomes_the_nearest_ratio() {
        for (size, ratio) in [
            ("auto", "1:1"),
            ("", "1:1"),
            ("512x512", "1:1"),
            ("1x1", "1:1"),
            ("1536x1024", "3:2"),
            ("1024x1536", "2:3"),
            ("1792x1024", "16:9"),
            ("1024X1792", "9:16"),
            ("4294967295x1", "21:9"),
            ("1x4294967295", "9:21"),
            ("4294967295x4294967295", "1:1"),
        ] {
            let call = generation(&format!(r#"{{"prompt": "a", "size": "{size}"}}"#)).expect("a call");
            assert_eq!(call.request.aspect_ratio.as_str(), ratio, "{size}");
        }
        for size in ["0x1", "1x0", "1024", "x", "-1x1", "+1x1", "1x1x1", "4294967296x1", "1.5x1", " 1x1", "big"] {
            let fault = generation(&format!(r#"{{"prompt": "a", "size": "{size}"}}"#)).expect_err(size);
            assert_eq!(fault.param, Some("size"), "{size}");
        }
    }

    #[test]
    fn a_digest_names_the_meaning_and_not_the_spelling() {
        let digest = |body: &str| generation(body).expect("a call").digest(b"key");
        let one = digest(r#"{"prompt": "a", "n": 2}"#);
        assert_eq!(one, digest(r#"{ "n": 2.0, "prompt": "\u0061", "size": null, "size ": 1 }"#));
        for other in [r#"{"prompt": "b", "n": 2}"#, r#"{"prompt": "a"}"#, r#"{"prompt": "a", "n": 2, "model": "m"}"#] {
            assert_ne!(one, digest(other), "{other}");
        }
        assert_ne!(one, generation(r#"{"prompt": "a", "n": 2}"#).expect("a call").digest(b"other"));
    }
}
