//! The request of a submit and its parser.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tintype_engine::{MAX_SEED, RenderSettings};

use crate::ignored_fields::IgnoredFields;
use crate::json::{self, Json};
use crate::model::{CREDITS_PER_IMAGE, Id};
use crate::reference_url::{ReferenceUrl, UrlFault};
use crate::stored_reference::StoredReference;

/// Most images per task.
pub const MAX_IMAGES: u8 = 4;
/// Most reference images per task.
pub const MAX_REFERENCES: usize = 4;
/// Longest prompt, in characters.
pub const MAX_PROMPT_CHARS: usize = 32_000;

/// Defines the aspect ratios, in the order of the interface: spelling there, and size in pixels. These are `tt`, because
/// utoipa overlooks a `literal` in `rename`.
macro_rules! aspect_ratios {
    ($($(#[$each:meta])* $ratio:ident = $text:tt, $width:tt x $height:tt;)+) => {
        /// Aspect ratio of the images, about one megapixel each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
        pub enum AspectRatio {
            $(#[doc = concat!($width, "x", $height)] $(#[$each])* #[serde(rename = $text)] $ratio,)+
        }

        impl AspectRatio {
            /// All aspect ratios, in the order of the interface.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$ratio),+];

            /// Spelling in the interface, such as `16:9`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$ratio => $text,)+
                }
            }

            /// Width and height in pixels, with the exact ratio.
            pub const fn size(self) -> (u32, u32) {
                match self {
                    $(Self::$ratio => ($width, $height),)+
                }
            }
        }
    };
}

aspect_ratios! {
    #[default] Square = "1:1", 1024 x 1024;
    W16H9 = "16:9", 1280 x 720;
    W9H16 = "9:16", 720 x 1280;
    W4H3 = "4:3", 1152 x 864;
    W3H4 = "3:4", 864 x 1152;
    W3H2 = "3:2", 1248 x 832;
    W2H3 = "2:3", 832 x 1248;
    W5H4 = "5:4", 1120 x 896;
    W4H5 = "4:5", 896 x 1120;
    W2H1 = "2:1", 1440 x 720;
    W1H2 = "1:2", 720 x 1440;
    W21H9 = "21:9", 1568 x 672;
    W9H21 = "9:21", 672 x 1568;
}

impl AspectRatio {
    /// The ratio nearest to a size; sizes count from 1.
    pub fn nearest(width: u32, height: u32) -> Self {
        let distance = |ratio: Self| {
            let (own_width, own_height) = ratio.size();
            let stretch = f64::from(width) * f64::from(own_height) / (f64::from(height) * f64::from(own_width));
            stretch.ln().abs()
        };
        let nearest = Self::ALL.into_iter().min_by(|one, other| distance(*one).total_cmp(&distance(*other)));
        nearest.unwrap_or_default()
    }
}

impl fmt::Display for AspectRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AspectRatio {
    type Err = InvalidRequest;

    fn from_str(text: &str) -> Result<Self, InvalidRequest> {
        Self::ALL.into_iter().find(|ratio| ratio.as_str() == text).ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|ratio| ratio.as_str()).collect();
            InvalidRequest::AspectRatio(format!("must be one of {}", all.join(", ")))
        })
    }
}

/// A request for one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct GenerateRequest {
    /// Description of the images. At least one character that is not white space, and no U+0000.
    #[schema(
        min_length = 1,
        max_length = 32_000,
        pattern = r"^[^\u0000]*[^\u0000\s][^\u0000]*$",
        example = "A red fox in the snow at dawn"
    )]
    pub prompt: String,
    // No `default` in the schema: generators of clients then make the field one that must be given.
    /// Aspect ratio of the images. `1:1` if omitted.
    #[schema(required = false, example = "16:9")]
    pub aspect_ratio: AspectRatio,
    /// Number of images, 1 if omitted. Each costs 2 credits.
    #[schema(required = false, minimum = 1, maximum = 4, example = 2)]
    pub n: u8,
    /// Public https URLs of PNG, JPEG or WebP reference images; none if omitted. The service downloads them when it
    /// works on the task, and the task fails if it cannot.
    #[schema(required = false, value_type = Vec<ReferenceImage>, max_items = 4)]
    pub reference_images: Vec<String>,
    /// How the images are rendered: of OpenAI's API, the studio and presets.
    #[schema(ignore)]
    #[serde(skip_serializing_if = "TaskSettings::is_empty")]
    pub settings: TaskSettings,
    /// Id of the HTTP request that created the task, which the caller can quote to support.
    #[schema(ignore)]
    #[serde(skip)]
    pub request_id: Option<String>,
}

/// How the images of a task are rendered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskSettings {
    /// The preset that the caller chose, or the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The picture that says which part of the first reference changes, as a [`StoredReference`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// The settings for the engine, from the caller and the preset.
    #[serde(flatten)]
    pub render: RenderSettings,
}

impl TaskSettings {
    /// The settings as the database keeps them; `None` if nothing was chosen.
    pub fn to_json(&self) -> Option<String> {
        (!self.is_empty()).then(|| serde_json::to_string(self).expect("settings are always JSON"))
    }

    /// Whether nothing was chosen.
    pub fn is_empty(&self) -> bool {
        self.preset.is_none() && self.mask.is_none() && self.render.is_empty()
    }
}

/// The URL of a reference image: https, a public host name in its ASCII form, the usual port, no user name. A server
/// may be set up to allow other ports.
#[derive(Debug, utoipa::ToSchema)]
#[schema(
    value_type = String, format = "uri", max_length = 4_096, example = "https://example.com/fox.jpg",
    pattern = r"^[Hh][Tt][Tt][Pp][Ss]://([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,63}(:443)?(/([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*)?(\?([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?$"
)]
#[expect(dead_code, reason = "documents the rules of ReferenceUrl")]
pub struct ReferenceImage(String);

/// A fault in a body; displays as a message for API callers. The studio has its own messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// It is not an object of fields; the whole sentence.
    #[error("{0}")]
    Body(String),
    /// The prompt.
    #[error("prompt {0}.")]
    Prompt(PromptFault),
    /// The aspect ratio, with the rule that it breaks.
    #[error("aspect_ratio {0}.")]
    AspectRatio(String),
    /// The number of images.
    #[error("n must be an integer from 1 to 4.")]
    Count,
    /// The references are not a list.
    #[error("reference_images must be an array of https URLs.")]
    References,
    /// More than [`MAX_REFERENCES`].
    #[error("reference_images must have at most 4 entries.")]
    TooManyReferences,
    /// A reference is not text.
    #[error("reference_images[{0}] must be a string.")]
    ReferenceType(usize),
    /// A reference is neither a public URL nor, in the studio, a picture of the account.
    #[error("reference_images[{index}] {fault}.")]
    Reference {
        /// Its place, from 0.
        index: usize,
        /// The rule that it breaks.
        fault: UrlFault,
    },
}

/// The rule that a prompt breaks. Displays as the rest of a sentence about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromptFault {
    /// It is missing.
    #[error("is required")]
    Missing,
    /// It has nothing but white space.
    #[error("must not be empty")]
    Empty,
    /// No database keeps U+0000.
    #[error("must not contain U+0000")]
    Nul,
    /// More than [`MAX_PROMPT_CHARS`].
    #[error("must have at most 32,000 characters")]
    Length,
    /// It is not text.
    #[error("must be a string")]
    Type,
}

impl GenerateRequest {
    /// A request for one square image, without references and settings.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            aspect_ratio: AspectRatio::default(),
            n: 1,
            reference_images: Vec::new(),
            settings: TaskSettings::default(),
            request_id: None,
        }
    }

    /// Credits the task costs.
    pub fn cost(&self) -> i64 {
        CREDITS_PER_IMAGE * i64::from(self.n)
    }

    /// The seed of each image: the chosen one and those after it, or seeds that follow from the id of the task.
    pub fn seeds(&self, task_id: Id) -> impl Iterator<Item = u32> {
        let seed = move |index: u8| match self.settings.render.seed {
            Some(first) => (first + u32::from(index)) & MAX_SEED,
            None => own_seed(task_id, index),
        };
        (0..self.n).map(seed)
    }

    /// Parses a request body. `reference_ports` are the ports allowed in reference URLs.
    ///
    /// # Errors
    /// [`InvalidRequest`] with the first fault.
    pub fn parse(body: &[u8], reference_ports: &[u16]) -> Result<Self, InvalidRequest> {
        Self::parse_noting(body, reference_ports).map(|(request, _)| request)
    }

    /// Does the same, and returns the names of the fields that the service does not know too.
    ///
    /// # Errors
    /// [`InvalidRequest`] with the first fault.
    pub fn parse_noting(body: &[u8], reference_ports: &[u16]) -> Result<(Self, IgnoredFields), InvalidRequest> {
        Self::parse_fields(body, reference_ports, false)
    }

    /// Parses a person's request, whose references can also be pictures of the account.
    ///
    /// # Errors
    /// [`InvalidRequest`] with the first fault.
    pub fn parse_of_person(body: &[u8], reference_ports: &[u16]) -> Result<Self, InvalidRequest> {
        Self::parse_fields(body, reference_ports, true).map(|(request, _)| request)
    }

    /// The references to pictures of the account, each with its place among all references.
    pub fn own_references(&self) -> impl Iterator<Item = (usize, StoredReference)> {
        let own = |(index, text): (usize, &String)| Some((index, StoredReference::parse(text)?));
        self.reference_images.iter().enumerate().filter_map(own)
    }

    /// The mask, which is a picture of the account.
    pub fn own_mask(&self) -> Option<StoredReference> {
        self.settings.mask.as_deref().and_then(StoredReference::parse)
    }

    fn parse_fields(body: &[u8], ports: &[u16], may_be_own: bool) -> Result<(Self, IgnoredFields), InvalidRequest> {
        let mut fields = json::fields(body).map_err(InvalidRequest::Body)?;
        let mut take = |name: &str| {
            let index = fields.iter().position(|(known, _)| known == name)?;
            Some(fields.remove(index).1)
        };
        let request = Self {
            prompt: prompt(take("prompt"))?,
            aspect_ratio: aspect_ratio(take("aspect_ratio"))?,
            n: image_count(take("n"))?,
            reference_images: reference_images(take("reference_images"), ports, may_be_own)?,
            settings: TaskSettings::default(),
            request_id: None,
        };
        let mut ignored = IgnoredFields::default();
        fields.iter().for_each(|(name, _)| ignored.note(name));
        Ok((request, ignored))
    }
}

/// An image's seed if its caller chose none: different for every image, the same in every attempt.
fn own_seed(task_id: Id, index: u8) -> u32 {
    let digest = Sha256::new().chain_update(task_id.as_str()).chain_update([index]).finalize();
    let (first, _) = digest.split_first_chunk().expect("SHA-256 has 32 bytes");
    u32::from_le_bytes(*first) & MAX_SEED
}

pub(super) fn prompt(value: Option<Json>) -> Result<String, InvalidRequest> {
    let fault = match value {
        None => PromptFault::Missing,
        Some(Json::String(text)) if text.chars().all(char::is_whitespace) => PromptFault::Empty,
        Some(Json::String(text)) if text.contains('\0') => PromptFault::Nul,
        Some(Json::String(text)) if text.chars().count() > MAX_PROMPT_CHARS => PromptFault::Length,
        Some(Json::String(text)) => return Ok(text),
        Some(_) => PromptFault::Type,
    };
    Err(InvalidRequest::Prompt(fault))
}

fn aspect_ratio(value: Option<Json>) -> Result<AspectRatio, InvalidRequest> {
    match value {
        None => Ok(AspectRatio::default()),
        Some(Json::String(text)) => text.parse(),
        Some(_) => Err(InvalidRequest::AspectRatio("must be a string such as \"16:9\"".into())),
    }
}

/// Whether a task may have a number of images that is written like this in JSON, as a number or as its text.
pub fn is_image_count(written: &str) -> bool {
    image_count(Some(json::image_count(written.trim_matches('"')))).is_ok()
}

fn image_count(value: Option<Json>) -> Result<u8, InvalidRequest> {
    // In JSON Schema 2.0 is the integer 2, so the value counts, not the spelling.
    match value {
        None => Ok(1),
        Some(Json::Number(n)) if n.fract() == 0.0 && (1.0..=f64::from(MAX_IMAGES)).contains(&n) => Ok(n as u8),
        Some(_) => Err(InvalidRequest::Count),
    }
}

fn reference_images(value: Option<Json>, ports: &[u16], may_be_own: bool) -> Result<Vec<String>, InvalidRequest> {
    let entries = match value {
        None => return Ok(Vec::new()),
        Some(Json::Array(entries)) => entries,
        Some(_) => return Err(InvalidRequest::References),
    };
    if entries.len() > MAX_REFERENCES {
        return Err(InvalidRequest::TooManyReferences);
    }
    let checked = entries.into_iter().enumerate().map(|(index, entry)| match entry {
        Json::String(own) if may_be_own && StoredReference::parse(&own).is_some() => Ok(own),
        Json::String(url) => match ReferenceUrl::parse(&url, ports) {
            Ok(_) => Ok(url),
            Err(fault) => Err(InvalidRequest::Reference { index, fault }),
        },
        _ => Err(InvalidRequest::ReferenceType(index)),
    });
    checked.collect()
}
