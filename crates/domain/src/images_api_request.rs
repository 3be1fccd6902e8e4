//! The requests of OpenAI's Images API, as the service takes them ([`super::images_api`] has the documents).

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tintype_engine::RenderSettings;

use super::images_api_fields::{Fields, invalid};
use crate::ignored_fields::IgnoredFields;
use crate::json::Json;
use crate::preset::OutOfBounds;
use crate::reference_url::ReferenceUrl;
use crate::request::{self, AspectRatio, GenerateRequest, MAX_IMAGES, MAX_REFERENCES, TaskSettings};

/// Longest name of a model, in characters.
pub const MAX_MODEL_CHARS: usize = 200;
const MAX_PARTIAL_IMAGES: u8 = 3;
/// Fields that are taken and change nothing: an engine of Tintype has no such choice.
const WITHOUT_EFFECT: [&str; 6] = ["quality", "style", "moderation", "user", "safety_identifier", "input_fidelity"];

/// Fields in which other services take images to edit. Without them a call would make, and charge, another picture.
const OF_OTHER_EDITS: [&str; 4] = ["image_url", "image_urls", "init_image", "reference_images"];

/// The two kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CallKind {
    /// `/images/generations`.
    Generation,
    /// `/images/edits`.
    Edit,
}

/// The format of the files of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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
    /// The settings that the caller asked for. The preset determines the task's settings.
    #[serde(skip_serializing_if = "RenderSettings::is_empty")]
    pub settings: RenderSettings,
    /// The format of the files.
    pub format: OutputFormat,
    /// Whether the answer holds URLs instead of files.
    pub as_urls: bool,
    /// For an answer as a stream of events: the most partial images that the caller would see before the picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<u8>,
    /// Whether the first picture to edit decides the size, if it comes with the call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub auto_size: bool,
    /// The size that the call named, as `WIDTHxHEIGHT`. The answer repeats it, and it changes nothing.
    #[serde(skip)]
    pub named_size: Option<String>,
    /// The names of fields that the service does not know.
    #[serde(skip)]
    pub ignored: IgnoredFields,
}

/// A picture that came with a call, and not by its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentPicture {
    /// Stands for the picture among the fields. No caller can guess it.
    pub mark: String,
    /// Stands for the picture among the references of the task until it is stored. The same bytes have the same name,
    /// and no URL is one.
    pub name: String,
}

/// A fault in a call; displays as a message for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidCall {
    /// A message for the caller.
    pub message: String,
    /// The field at fault, if it is one.
    pub param: Option<&'static str>,
}

impl ImagesCall {
    /// Parses a body in JSON. `reference_ports` are the ports allowed in URLs of input images.
    ///
    /// # Errors
    /// [`InvalidCall`] with the first fault.
    pub fn parse(kind: CallKind, body: &[u8], reference_ports: &[u16]) -> Result<Self, InvalidCall> {
        Self::of_fields(kind, Fields::of_json(body)?, reference_ports, &[])
    }

    /// Does the same for fields that were read already. `pictures` came with them.
    ///
    /// # Errors
    /// [`InvalidCall`] with the first fault.
    pub fn of_fields(
        kind: CallKind,
        mut fields: Fields,
        reference_ports: &[u16],
        pictures: &[SentPicture],
    ) -> Result<Self, InvalidCall> {
        fields.refuse_what_cannot_be_done(kind)?;
        let prompt = request::prompt(fields.take("prompt")).map_err(at("prompt"))?;
        let asked_as_urls = match fields.word("response_format")?.as_deref() {
            None => None,
            // Together's word is base64.
            Some("b64_json" | "base64") => Some(false),
            Some("url") => Some(true),
            Some(_) => return invalid("response_format", "must be b64_json or url"),
        };
        let format = fields.format()?;
        let model = fields.model()?;
        if asked_as_urls == Some(true) && format != OutputFormat::Png {
            return invalid("output_format", "must be png with response_format url: the URLs serve PNG files");
        }
        let partial_images = fields.integer("partial_images", 0..=MAX_PARTIAL_IMAGES)?.unwrap_or(0);
        let stream = fields.flag("stream")?.then_some(partial_images);
        let as_urls = asked_as_urls.unwrap_or_else(|| {
            model.as_deref().is_some_and(|model| answers_with_urls(kind, model))
                && format == OutputFormat::Png
                && stream.is_none()
        });
        if as_urls && stream.is_some() {
            return invalid("response_format", "must be b64_json with stream: the events hold files");
        }
        let named_size = fields.size()?;
        let size = named_size.as_ref().map(|(_, ratio)| *ratio);
        let mask = mask(&mut fields, pictures)?;
        let request = GenerateRequest {
            prompt,
            aspect_ratio: size.unwrap_or_default(),
            n: fields.count()?,
            reference_images: match kind {
                CallKind::Generation => Vec::new(),
                CallKind::Edit => input_images(&mut fields, reference_ports, pictures)?,
            },
            settings: TaskSettings { mask, ..TaskSettings::default() },
            request_id: None,
        };
        let settings = fields.settings()?;
        for name in WITHOUT_EFFECT {
            fields.take(name);
        }
        let mut ignored = IgnoredFields::default();
        fields.rest.iter().for_each(|(name, _)| ignored.note(name));
        let auto_size = kind == CallKind::Edit && size.is_none();
        let named_size = named_size.and_then(|(text, _)| text);
        Ok(Self { kind, request, model, settings, format, as_urls, stream, auto_size, named_size, ignored })
    }

    /// Identifies a call's choices: two bodies with the same meaning have the same digest. `salt` is different for each
    /// key, so that digests of one key's prompts don't help to guess another's.
    pub fn digest(&self, salt: &[u8]) -> [u8; 32] {
        let choices = serde_json::to_vec(self).expect("a call is always JSON");
        Sha256::new().chain_update(salt).chain_update(choices).finalize().into()
    }
}

/// The settings in a JSON object that holds nothing else.
///
/// # Errors
/// [`InvalidCall`] with the first fault.
pub fn settings_of_json(object: &[u8]) -> Result<RenderSettings, InvalidCall> {
    Fields::of_json(object)?.settings()
}

/// Whether OpenAI answers for this model with URLs unless the call says otherwise: its programs read nothing else. Of
/// these models only DALL·E 2 edits.
fn answers_with_urls(kind: CallKind, model: &str) -> bool {
    let start = if kind == CallKind::Edit { "dall-e-2" } else { "dall-e-" };
    model.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

impl From<OutOfBounds> for InvalidCall {
    fn from(fault: OutOfBounds) -> Self {
        Self { message: fault.to_string(), param: Some(fault.setting.as_str()) }
    }
}

fn at(param: &'static str) -> impl Fn(request::InvalidRequest) -> InvalidCall {
    move |fault| InvalidCall { message: fault.to_string(), param: Some(param) }
}

impl Fields {
    /// Rejects the fields that ask for other pictures than the service makes.
    fn refuse_what_cannot_be_done(&mut self, kind: CallKind) -> Result<(), InvalidCall> {
        if kind == CallKind::Generation {
            for name in ["images", "image", "mask"] {
                if self.take(name).is_some() {
                    return invalid(name, "belongs to /v1/images/edits");
                }
            }
            for name in OF_OTHER_EDITS {
                if self.take(name).is_some_and(|images| images != Json::Array(Vec::new())) {
                    return invalid(name, "is not supported: send images to /v1/images/edits, in the field image");
                }
            }
        }
        match self.word("background")?.as_deref() {
            None | Some("auto" | "opaque") => Ok(()),
            Some("transparent") => invalid("background", "transparent is not supported: images are opaque"),
            Some(_) => invalid("background", "must be auto or opaque"),
        }
    }

    fn format(&mut self) -> Result<OutputFormat, InvalidCall> {
        let compression = self.integer("output_compression", 0..=100)?;
        match self.word("output_format")?.map(|format| format.to_ascii_lowercase()).as_deref() {
            None | Some("png") => Ok(OutputFormat::Png),
            Some("jpeg" | "jpg") => Ok(OutputFormat::Jpeg(compression.unwrap_or(100))),
            Some("webp") => Ok(OutputFormat::Webp),
            Some(_) => invalid("output_format", "must be png, jpeg or webp"),
        }
    }

    fn model(&mut self) -> Result<Option<String>, InvalidCall> {
        let model = self.word("model")?;
        if model.as_ref().is_some_and(|model| model.chars().count() > MAX_MODEL_CHARS) {
            return invalid("model", "must have at most 200 characters");
        }
        Ok(model)
    }

    /// The settings for the engine. Like many programs, a seed of -1 leaves the choice to the service.
    fn settings(&mut self) -> Result<RenderSettings, InvalidCall> {
        let seed = match self.take("seed") {
            Some(Json::Number(-1.0)) | None => None,
            Some(seed) => {
                self.rest.push(("seed".into(), seed));
                self.count_of("seed")?
            }
        };
        let steps = match (self.count_of("steps")?, self.count_of("num_inference_steps")?) {
            (Some(_), Some(_)) => return invalid("steps", "and num_inference_steps exclude each other"),
            (steps, other) => steps.or(other),
        };
        Ok(RenderSettings {
            seed,
            negative_prompt: self.word("negative_prompt")?.filter(|words| !words.trim().is_empty()),
            steps,
            guidance_scale: self.number("guidance_scale")?,
            strength: self.number("strength")?,
            ..RenderSettings::default()
        })
    }

    fn count(&mut self) -> Result<u8, InvalidCall> {
        match self.integer("n", 1..=MAX_IMAGES) {
            Ok(count) => Ok(count.unwrap_or(1)),
            Err(_) => invalid("n", "must be an integer from 1 to 4"),
        }
    }

    /// The size that the call names, if it names one in pixels, with the nearest ratio; `None` leaves both to the service.
    /// Programs for other services name a ratio, in either field, or both sides in fields of their own.
    fn size(&mut self) -> Result<Option<(Option<String>, AspectRatio)>, InvalidCall> {
        let is_named = |text: &String| !text.eq_ignore_ascii_case("auto");
        let (param, text) = match self.word("size")?.filter(is_named) {
            Some(size) => ("size", size),
            None => match self.word("aspect_ratio")?.filter(is_named) {
                Some(ratio) => ("aspect_ratio", ratio),
                None => match (self.count_of("width")?, self.count_of("height")?) {
                    (None, None) => return Ok(None),
                    (Some(width @ 1..), Some(height @ 1..)) => ("width", format!("{width}x{height}")),
                    (None, _) | (Some(0), _) => return invalid("width", "must be a number of pixels, like height"),
                    (Some(_), _) => return invalid("height", "must be a number of pixels, like width"),
                },
            },
        };
        let side = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|side| digits && *side > 0)
        };
        let sides =
            text.split_once(['x', 'X', '*', '×', ':']).and_then(|(width, height)| side(width).zip(side(height)));
        let Some((width, height)) = sides else {
            return invalid(param, "must be auto, WIDTHxHEIGHT in pixels, such as 1024x1024, or a ratio, such as 16:9");
        };
        let named = (!text.contains(':')).then(|| format!("{width}x{height}"));
        Ok(Some((named, AspectRatio::nearest(width, height))))
    }
}

/// The references to the images to edit: URLs, and the names of pictures that came with the call.
fn input_images(fields: &mut Fields, ports: &[u16], pictures: &[SentPicture]) -> Result<Vec<String>, InvalidCall> {
    let (param, value) = match (fields.take("images"), fields.take("image")) {
        (Some(_), Some(_)) => return invalid("image", "and images exclude each other"),
        (Some(value), None) => ("images", value),
        (None, Some(value)) => ("image", value),
        (None, None) => return invalid("image", "is required: the images to edit"),
    };
    let entries = match value {
        Json::Array(entries) => entries,
        one => vec![one],
    };
    if entries.is_empty() || entries.len() > MAX_REFERENCES {
        return invalid(param, "must have 1 to 4 entries");
    }
    let reference = |(index, entry): (usize, Json)| {
        let wrong =
            |rule: String| Err(InvalidCall { message: format!("{param}[{index}] {rule}."), param: Some(param) });
        let Some(text) = url_of(entry) else {
            return wrong("must be an https or data URL, or an object with one in image_url or url".into());
        };
        if let Some(picture) = pictures.iter().find(|picture| picture.mark == text) {
            return Ok(picture.name.clone());
        }
        if !text.contains(':') {
            let also = "or a file in a form, or a data URL in JSON, such as data:image/png;base64,iVBORw0K";
            return wrong(format!("must be an https URL, {also}"));
        }
        match ReferenceUrl::parse(&text, ports) {
            Ok(_) => Ok(text),
            Err(fault) => wrong(fault.to_string()),
        }
    };
    entries.into_iter().enumerate().map(reference).collect()
}

/// The mask, which comes with the call: whether it suits its image has to be known before the charge.
fn mask(fields: &mut Fields, pictures: &[SentPicture]) -> Result<Option<String>, InvalidCall> {
    let Some(value) = fields.take("mask") else { return Ok(None) };
    let text = url_of(value);
    match pictures.iter().find(|picture| text.as_ref() == Some(&picture.mark)) {
        Some(picture) => Ok(Some(picture.name.clone())),
        None => invalid("mask", "must come with the call, as a file of a form or as a data URL in image_url"),
    }
}

/// An image's URL: a string, or an object's field `image_url`, which can itself be an object with the URL as in a chat,
/// or an object's field `url`, as in xAI's API. Other fields don't name a picture, except a reference to one of
/// OpenAI's files.
fn url_of(value: Json) -> Option<String> {
    let fields = match value {
        Json::String(text) => return Some(text),
        Json::Object(fields) => fields,
        _ => return None,
    };
    if fields.iter().any(|(name, value)| name == "file_id" && *value != Json::Null) {
        return None;
    }
    let has_image_url = fields.iter().any(|(name, value)| name == "image_url" && *value != Json::Null);
    match only(fields, if has_image_url { "image_url" } else { "url" })? {
        Json::String(text) => Some(text),
        Json::Object(fields) => match only(fields, "url")? {
            Json::String(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// The value of a field, unless it is missing or comes twice.
fn only(fields: Vec<(String, Json)>, name: &str) -> Option<Json> {
    let mut found = fields.into_iter().filter(|(field, _)| field == name).map(|(_, value)| value);
    match (found.next(), found.next()) {
        (Some(value), None) => Some(value),
        _ => None,
    }
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
            // Of Qwen-Image, and as in the native API.
            ("1328*1328", "1:1"),
            ("1024×1536", "2:3"),
            ("16:9", "16:9"),
            ("Auto", "1:1"),
            ("4294967295x1", "21:9"),
            ("1x4294967295", "9:21"),
            ("4294967295x4294967295", "1:1"),
        ] {
            let call = generation(&format!(r#"{{"prompt": "a", "size": "{size}"}}"#)).expect("a call");
            assert_eq!(call.request.aspect_ratio.as_str(), ratio, "{size}");
            let by_ratio = generation(&format!(r#"{{"prompt": "a", "size": "auto", "aspect_ratio": "{size}"}}"#));
            assert_eq!(by_ratio, Ok(call), "{size}");
        }
        let both = generation(r#"{"prompt": "a", "size": "512x512", "aspect_ratio": "16:9"}"#).expect("a call");
        assert_eq!(
            (both.request.aspect_ratio, both.ignored.to_string().as_str()),
            (AspectRatio::default(), "aspect_ratio")
        );
        for size in
            ["0x1", "1x0", "1024", "x", "-1x1", "+1x1", "1x1x1", "1:1:1", "4294967296x1", "1.5x1", " 1x1", "big"]
        {
            let fault = generation(&format!(r#"{{"prompt": "a", "size": "{size}"}}"#)).expect_err(size);
            assert_eq!(fault.param, Some("size"), "{size}");
        }
    }

    #[test]
    fn a_model_of_openai_that_answers_with_urls_does_so_here() {
        for (fields, as_urls) in [
            (r#""model": "dall-e-3""#, true),
            (r#""model": "DALL-E-2""#, true),
            (r#""model": "dall-e-3", "response_format": "b64_json""#, false),
            (r#""model": "dall-e-3", "response_format": null"#, true),
            (r#""model": "dall-e-3", "output_format": "jpeg""#, false),
            (r#""model": "dall-e-3", "stream": true"#, false),
            (r#""model": "gpt-image-1""#, false),
            (r#""model": "dall-e""#, false),
            (r#""model": "my-dall-e-3""#, false),
            (r#""model": "dall-é-3""#, false),
            (r#""n": 1"#, false),
        ] {
            let call = generation(&format!(r#"{{"prompt": "a", {fields}}}"#)).expect(fields);
            assert_eq!(call.as_urls, as_urls, "{fields}");
        }
        for (model, as_urls) in [("dall-e-2", true), ("dall-e-3", false)] {
            let body = format!(r#"{{"prompt": "a", "image": "https://example.com/a.png", "model": "{model}"}}"#);
            let call = ImagesCall::parse(CallKind::Edit, body.as_bytes(), &[443]).expect("a call");
            assert_eq!(call.as_urls, as_urls, "an edit of {model}");
        }
    }

    #[test]
    fn base64_without_its_type_is_told_what_to_send() {
        let body = br#"{"prompt": "a", "image": "iVBORw0KGgo"}"#;
        let fault = ImagesCall::parse(CallKind::Edit, body, &[443]).expect_err("no URL");
        assert!(fault.message.contains("or a data URL in JSON, such as data:image/png;base64,iVBORw0K."), "{fault}");
    }

    #[test]
    fn an_edit_takes_urls_and_pictures_that_came_with_it_and_nothing_else() {
        let picture = SentPicture { mark: "mark0".into(), name: "sha256:00".into() };
        let references = |body: &str| {
            let fields = Fields::of_json(body.as_bytes())?;
            let call = ImagesCall::of_fields(CallKind::Edit, fields, &[443], std::slice::from_ref(&picture))?;
            Ok::<_, InvalidCall>(call.request.reference_images)
        };
        let url = "https://example.com/a.png";
        for (images, expected) in [
            (r#""image": "mark0""#, vec!["sha256:00"]),
            (r#""image": ["https://example.com/a.png", {"image_url": "mark0"}]"#, vec![url, "sha256:00"]),
            (r#""images": [{"image_url": "mark0", "file_id": null}, {"image_url": "mark0"}]"#, vec!["sha256:00"; 2]),
            (r#""images": [{"type": "input_image", "image_url": "mark0"}]"#, vec!["sha256:00"]),
            (r#""image": {"type": "image_url", "url": "mark0"}"#, vec!["sha256:00"]),
            (r#""image": {"url": "mark0", "image_url": null}"#, vec!["sha256:00"]),
            (
                r#""images": [{"type": "image_url", "image_url": {"url": "mark0", "detail": "high"}}]"#,
                vec!["sha256:00"],
            ),
        ] {
            assert_eq!(references(&format!(r#"{{"prompt": "a", {images}}}"#)).expect(images), expected);
        }
        for (images, param) in [
            (r#""n": 1"#, "image"),
            (r#""image": []"#, "image"),
            (r#""image": "sha256:00""#, "image"),
            (r#""image": "mark1""#, "image"),
            (r#""image": "upload:FAAAAAAAAAAAAAAAAAAAA""#, "image"),
            (r#""images": [{"image_url": "result:FAAAAAAAAAAAAAAAAAAAA/1"}]"#, "images"),
            (r#""images": [{"file_id": "a"}]"#, "images"),
            (r#""images": [{"image_url": "mark0", "image_url": "mark0"}]"#, "images"),
            (r#""images": [{"image_url": {"uri": "mark0"}}]"#, "images"),
            (r#""images": [{"image_url": {"uri": "mark0"}, "url": "mark0"}]"#, "images"),
            (r#""images": [{"image_url": "mark0", "file_id": "a"}]"#, "images"),
            (r#""images": ["mark0"], "image": "mark0""#, "image"),
            (r#""image": ["mark0", "mark0", "mark0", "mark0", "mark0"]"#, "image"),
            (r#""image": 7"#, "image"),
            (r#""image": "http://example.com/a.png""#, "image"),
        ] {
            let fault = references(&format!(r#"{{"prompt": "a", {images}}}"#)).expect_err(images);
            assert_eq!(fault.param, Some(param), "{images}");
        }
    }

    #[test]
    fn a_form_means_the_same_as_json() {
        let text = |fields: &[(&str, &str)]| {
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        let form = |fields: &[(&str, &str)]| {
            let fields = Fields::of_form(text(fields), vec!["https://example.com/a.png".into()])?;
            ImagesCall::of_fields(CallKind::Edit, fields, &[443], &[])
        };
        let of_form = form(&[
            ("prompt", "7"),
            ("n", "2"),
            ("model", ""),
            ("stream", "False"),
            ("mask", ""),
            ("output_format", "jpeg"),
            ("output_compression", "80"),
            ("seed", "7"),
        ]);
        let json = r#"{"prompt": "7", "n": 2, "output_format": "jpeg", "output_compression": 80, "seed": 7,
            "images": [{"image_url": "https://example.com/a.png"}]}"#;
        let quoted = r#"{"prompt": "7", "n": "2", "model": "", "stream": "False", "output_format": "jpeg", "mask": "",
            "output_compression": "80", "seed": "7", "user": 5, "image": ["https://example.com/a.png"]}"#;
        for json in [json, quoted] {
            let of_json = Fields::of_json(json.as_bytes());
            let of_json = ImagesCall::of_fields(CallKind::Edit, of_json.expect("fields"), &[443], &[]);
            assert_eq!(of_form, of_json, "{json}");
        }
        for (fields, param) in [
            (&[("prompt", "a"), ("n", "two")][..], Some("n")),
            (&[("prompt", "a"), ("n", "-1")], Some("n")),
            (&[("prompt", "a"), ("stream", "yes")], Some("stream")),
            (&[("prompt", "a"), ("mask", "https://example.com/m.png")], Some("mask")),
            (&[("prompt", "")], Some("prompt")),
            (&[("prompt", "a"), ("prompt", "b")], None),
        ] {
            assert_eq!(form(fields).expect_err("a fault").param, param, "{fields:?}");
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
