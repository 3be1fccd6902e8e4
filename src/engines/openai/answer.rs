//! Reads the answers of a server, including those that are wrong.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::Value;
use tintype_engine::EngineError;

use super::super::endpoint::{Answer, Endpoint, Fault, Words};
use crate::domain::images_api::{ErrorObject, ImageData, ImagesAnswer};

/// Some servers leave out the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Codes and types of the errors by which servers refuse a brief for its content.
const REFUSALS: [&str; 5] = [
    "content_policy_violation",
    "moderation_blocked",
    "content_filter",
    "contentFilter",
    "ResponsibleAIPolicyViolation",
];

/// Longest error that is parsed, in bytes. Parsed, it takes many times as much.
const MAX_ERROR: usize = 64 * 1024;

/// The file of one picture.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum File {
    Bytes(Vec<u8>),
    At(String),
}

/// Any of the shapes in which servers write errors.
#[derive(Debug, Default, Deserialize)]
struct ErrorShapes {
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    detail: Option<Value>,
    #[serde(default)]
    message: Option<String>,
}

/// The words of a server about an error, and whether they refuse the brief for its content.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) words: Words,
    pub(super) is_refusal: bool,
}

impl Complaint {
    /// The error in a body, if it holds one: OpenAI's `{"error": {…}}`, `{"error": "…"}` of sd-server, and `{"detail": …}`
    /// of FastAPI.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        if body.len() > MAX_ERROR {
            return None;
        }
        let shapes: ErrorShapes = serde_json::from_slice(body).ok()?;
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let words = |code: Option<String>, message: Option<String>| Words { code, message };
        match (shapes.error, shapes.detail, shapes.message) {
            (Some(Value::String(message)), _, _) => Some(Self { words: words(None, Some(message)), is_refusal: false }),
            (Some(error @ Value::Object(_)), _, _) => {
                let error: ErrorObject = serde_json::from_value(error).unwrap_or_default();
                let code = error.code.as_ref().and_then(text);
                let names = [code.as_deref(), error.kind.as_deref()];
                let is_refusal = names.iter().flatten().any(|name| REFUSALS.contains(name));
                let words = words(code.or(error.kind), Some(error.message));
                Some(Self { words, is_refusal })
            }
            (_, Some(Value::Array(faults)), _) => {
                let fault = faults.first()?;
                let words = words(text(&fault["type"]), text(&fault["msg"]));
                Some(Self { words, is_refusal: false })
            }
            (_, Some(detail), _) => Some(Self { words: words(None, text(&detail)), is_refusal: false }),
            (_, _, Some(message)) => Some(Self { words: words(None, Some(message)), is_refusal: false }),
            _ => None,
        }
    }
}

/// The files of an answer, which must be at least `count`.
///
/// # Errors
/// The fault that the answer means.
pub(super) fn files(endpoint: &Endpoint, answer: &Answer, count: usize) -> Result<Vec<File>, Fault> {
    let name = endpoint.name();
    let complaint = || Complaint::read(&answer.body);
    if !answer.status.is_success() {
        let complaint = complaint().unwrap_or_default();
        let refused = complaint.is_refusal && answer.status.is_client_error();
        return Err(match refused {
            true => EngineError::Refused(format!("{name}{}", endpoint.quoted(&complaint.words))).into(),
            false => endpoint.failure(answer, &complaint.words),
        });
    }
    let nonsense = |what: String| Fault::from(EngineError::Temporary(format!("{name} {what}")));
    let parsed: ImagesAnswer<'_> = match serde_json::from_slice(&answer.body) {
        Ok(parsed) => parsed,
        // The error of the parser may quote the answer, and so the prompt.
        Err(error) => {
            let media_type = answer.media_type();
            let kind =
                if media_type.contains("json") || media_type.is_empty() { "no Images API answer" } else { &media_type };
            return Err(nonsense(format!(
                "answered 200 with {kind} (line {}, column {})",
                error.line(),
                error.column()
            )));
        }
    };
    if parsed.data.len() < count {
        if let Some(complaint) = complaint() {
            let words = endpoint.quoted(&complaint.words);
            return Err(match complaint.is_refusal {
                true => EngineError::Refused(format!("{name}{words}")).into(),
                false => nonsense(format!("answered 200 with an error inside{words}")),
            });
        }
        return Err(nonsense(format!("returned {} pictures instead of {count}", parsed.data.len())));
    }
    let files = parsed.data.into_iter().take(count).map(|data| file(data).map_err(|what| nonsense(what.into())));
    files.collect()
}

/// The file of one picture; the error is the rest of a sentence about the server.
fn file(data: ImageData<'_>) -> Result<File, &'static str> {
    let inline = data.b64_json.filter(|text| !text.is_empty());
    let inline = inline.or_else(|| data.url.clone().filter(|url| url.starts_with("data:")));
    match (inline, data.url) {
        (Some(text), _) => decode(text).map(File::Bytes),
        (None, Some(url)) if !url.is_empty() => Ok(File::At(url.into_owned())),
        (None, _) => Err("returned a picture with neither b64_json nor url"),
    }
}

fn decode(text: Cow<'_, str>) -> Result<Vec<u8>, &'static str> {
    // A data URL holds a comma, and base64 none.
    let text = text.rsplit_once(',').map_or(&*text, |(_, base64)| base64);
    let text: Cow<'_, str> = match text.bytes().any(|byte| byte.is_ascii_whitespace()) {
        true => text.split_ascii_whitespace().collect::<String>().into(),
        false => text.into(),
    };
    BASE64.decode(text.as_bytes()).map_err(|_| "returned a picture that is no base64")
}
