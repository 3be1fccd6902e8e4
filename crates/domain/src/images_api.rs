//! The documents of OpenAI's Images API, as its clients and servers exchange them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

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
    /// `low`, `medium` or `high`, or for some models `standard` or `hd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<String>,
    /// `b64_json` or `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<String>,
    /// `png`, `jpeg` or `webp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_format: Option<String>,
    /// Not in OpenAI's own API: vLLM-Omni, SGLang-Diffusion and LocalAI take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// What the image should not show; for vLLM-Omni and SGLang-Diffusion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub negative_prompt: Option<String>,
    /// Steps; for vLLM-Omni and SGLang-Diffusion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_inference_steps: Option<u32>,
    /// How closely the image follows the prompt; for vLLM-Omni and SGLang-Diffusion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance_scale: Option<f64>,
    /// Steps; for LocalAI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// LoRA files; for vLLM-Omni.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraRequest>,
    /// Reference pictures in base64; for LocalAI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ref_images: Option<Vec<String>>,
}

/// A LoRA as vLLM-Omni takes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoraRequest {
    /// What the server calls it from then on.
    pub name: String,
    /// The file or folder on the server's machine.
    pub path: String,
    /// How strongly it changes the model.
    pub scale: f64,
}

/// One picture: its file in base64, or the URL of its file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ImageData<'a> {
    /// The file in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b64_json: Option<Cow<'a, str>>,
    /// The URL of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// A message for people, which can repeat the prompt.
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
