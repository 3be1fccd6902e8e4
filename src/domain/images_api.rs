//! The documents of OpenAI's Images API, as its clients and servers exchange them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Most pictures of one answer.
pub const MAX_PICTURES: usize = 10;

/// The body of `POST /images/generations`. A field that is `None` is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationRequest {
    /// The prompt.
    pub prompt: String,
    /// Name of the model; absent for the server's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Number of pictures, 1 to 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// `WIDTHxHEIGHT` in pixels, or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// `b64_json` or `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<String>,
    /// `png`, `jpeg` or `webp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_format: Option<String>,
    /// Not in OpenAI's own API: vLLM-Omni, SGLang-Diffusion and LocalAI take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Of LocalAI only: reference pictures in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ref_images: Option<Vec<String>>,
}

/// The answer to a generation or an edit. It may be an error under a status of 200.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ImagesAnswer<'a> {
    /// Time of the answer in seconds since 1970.
    #[serde(default)]
    pub created: i64,
    /// The pictures, up to [`MAX_PICTURES`]; any further ones are not kept.
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty", deserialize_with = "first_pictures")]
    pub data: Vec<ImageData<'a>>,
}

/// Reads a list that may be as long as its sender likes.
fn first_pictures<'a, D: Deserializer<'a>>(list: D) -> Result<Vec<ImageData<'a>>, D::Error> {
    struct First;
    impl<'a> Visitor<'a> for First {
        type Value = Vec<ImageData<'a>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of pictures")
        }

        fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut pictures = Vec::new();
            while pictures.len() < MAX_PICTURES
                && let Some(picture) = list.next_element()?
            {
                pictures.push(picture);
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(pictures)
        }
    }
    list.deserialize_seq(First)
}

/// One picture: its file in base64, or the URL of its file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ImageData<'a> {
    /// The file in base64.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub b64_json: Option<Cow<'a, str>>,
    /// The URL of the file.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Cow<'a, str>>,
}

/// The body of an error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorObject,
}

/// An error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorObject {
    /// A sentence for people, which may repeat the prompt.
    #[serde(default)]
    pub message: String,
    /// The kind of error, such as `invalid_request_error`.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// The field that is wrong.
    #[serde(default)]
    pub param: Option<String>,
    /// The exact error, such as `moderation_blocked`. Some servers send a number.
    #[serde(default)]
    pub code: Option<serde_json::Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_no_more_pictures_than_there_can_be() {
        let answer = format!(r#"{{"data": [{{"b64_json": "AA=="}}, {}{{}}]}}"#, "{},".repeat(1_000));
        let answer: ImagesAnswer<'_> = serde_json::from_str(&answer).expect("an answer");
        assert_eq!(answer.data.len(), MAX_PICTURES);
        assert_eq!(answer.data[0].b64_json.as_deref(), Some("AA=="));
    }
}
