//! Dialects of OpenAI's Images API: supported fields and sizes, and names of parts.

use std::path::Path;

use tintype_domain::images_api::LoraRequest;
use tintype_engine::{EngineError, Lora, Setting, Sizes};
use url::Url;

use super::super::prompt::for_engine;
use tintype_config::{EngineProfile, EngineSettings};

/// OpenAI's default model, unless `--model` names another.
const DEFAULT_MODEL: &str = "gpt-image-1";
/// Most references per task, unless the model accepts fewer.
const MAX_REFERENCES: usize = 4;
const MAX_PICTURES: usize = 10;

/// An engine's dialect, with its model.
#[derive(Debug, Clone)]
pub(super) struct Dialect {
    pub(super) profile: EngineProfile,
    pub(super) model: Option<String>,
    family: Family,
}

/// Families of OpenAI models with different fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    DallE2,
    DallE3,
    /// gpt-image-1 and its successors with three sizes.
    GptImage,
    /// gpt-image-2 and later, which render any size.
    GptImage2,
}

impl Family {
    fn of(model: &str) -> Self {
        match model {
            "dall-e-2" => Self::DallE2,
            "dall-e-3" => Self::DallE3,
            _ if model.starts_with("gpt-image-1") || model.starts_with("chatgpt-image") => Self::GptImage,
            _ => Self::GptImage2,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum References {
    /// As repeated parts with this name at `/images/edits`.
    Parts(&'static str),
    /// As base64 in `ref_images` at `/images/generations`.
    Json,
}

impl Dialect {
    pub(super) fn new(settings: &EngineSettings, urls: &[Url]) -> Self {
        let is_openai = |url: &Url| url.host_str().is_some_and(|host| host == "api.openai.com");
        let profile = settings.engine_profile.unwrap_or_else(|| match urls.iter().all(is_openai) {
            true => EngineProfile::OpenAi,
            false => EngineProfile::LocalAi,
        });
        let default = (profile == EngineProfile::OpenAi).then(|| DEFAULT_MODEL.to_owned());
        let model = settings.model.clone().or(default);
        let family = Family::of(model.as_deref().unwrap_or_default());
        Self { profile, model, family }
    }

    fn is_openai(&self) -> bool {
        self.profile == EngineProfile::OpenAi
    }

    pub(super) fn sizes(&self) -> Sizes {
        let three = |wide, tall| Sizes::Of(vec![(1_024, 1_024), wide, tall]);
        match self.family {
            _ if !self.is_openai() => Sizes::Any,
            Family::DallE2 => Sizes::Of(vec![(1_024, 1_024)]),
            Family::DallE3 => three((1_792, 1_024), (1_024, 1_792)),
            Family::GptImage => three((1_536, 1_024), (1_024, 1_536)),
            Family::GptImage2 => Sizes::Any,
        }
    }

    pub(super) fn max_references(&self) -> usize {
        match self.family {
            // Most of its models silently ignore references, so the operator must opt in.
            _ if self.profile == EngineProfile::LocalAi => 0,
            _ if !self.is_openai() => MAX_REFERENCES,
            Family::DallE2 => 1,
            Family::DallE3 => 0,
            Family::GptImage | Family::GptImage2 => MAX_REFERENCES,
        }
    }

    /// Pictures per call. A server that accepts seeds gets a separate call for each.
    pub(super) fn pictures_per_call(&self) -> usize {
        match self.is_openai() && self.family != Family::DallE3 {
            true => MAX_PICTURES,
            false => 1,
        }
    }

    /// Calls per server at a time. A server with one GPU renders one while the next one waits, so that the GPU is never
    /// idle.
    pub(super) fn calls_per_server(&self) -> usize {
        if self.is_openai() { 8 } else { 2 }
    }

    pub(super) fn settings(&self) -> Vec<Setting> {
        match self.profile {
            EngineProfile::OpenAi => Vec::new(),
            // It takes negative prompts after a bar in the prompt, and steps as `step`.
            EngineProfile::LocalAi => vec![Setting::Seed, Setting::NegativePrompt, Setting::Steps],
            EngineProfile::VllmOmni | EngineProfile::Sglang => {
                vec![Setting::Seed, Setting::NegativePrompt, Setting::Steps, Setting::GuidanceScale]
            }
        }
    }

    /// Whether the server supports `quality`: for OpenAI's own models, all but dall-e-2.
    pub(super) fn takes_quality(&self) -> bool {
        self.is_openai() && self.family != Family::DallE2
    }

    /// Whether the server supports `response_format`. GPT models reject it, and always answer in base64.
    pub(super) fn knows_response_format(&self) -> bool {
        !self.is_openai() || matches!(self.family, Family::DallE2 | Family::DallE3)
    }

    pub(super) fn references(&self) -> References {
        match self.profile {
            // Older models call a single picture `image`.
            EngineProfile::OpenAi if self.family == Family::DallE2 => References::Parts("image"),
            EngineProfile::OpenAi | EngineProfile::Sglang => References::Parts("image[]"),
            EngineProfile::VllmOmni => References::Parts("image"),
            EngineProfile::LocalAi => References::Json,
        }
    }

    /// The mask's part name, if the server supports masks.
    pub(super) fn mask_part(&self) -> Option<&'static str> {
        match self.profile {
            EngineProfile::OpenAi if self.family == Family::DallE3 => None,
            EngineProfile::OpenAi => Some("mask"),
            EngineProfile::VllmOmni => Some("mask_image"),
            EngineProfile::Sglang | EngineProfile::LocalAi => None,
        }
    }

    pub(super) fn takes_lora(&self) -> bool {
        self.profile == EngineProfile::VllmOmni
    }

    /// A call's LoRA, if the server supports one.
    ///
    /// # Errors
    /// [`EngineError::Permanent`]: there is more than one.
    pub(super) fn lora(&self, loras: &[Lora]) -> Result<Option<LoraRequest>, EngineError> {
        match loras {
            [] => Ok(None),
            _ if !self.takes_lora() => Ok(None),
            [Lora { path, weight }] => {
                let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or(path).to_owned();
                Ok(Some(LoraRequest { name, path: path.clone(), scale: *weight }))
            }
            _ => Err(EngineError::Permanent("the server takes one LoRA at a time: leave one in the preset".into())),
        }
    }

    /// The caller's prompt, as far as the server may see it.
    ///
    /// # Errors
    /// [`EngineError::Permanent`]: nothing is left of it.
    pub(super) fn prompt(&self, prompt: &str, negative: Option<&str>) -> Result<String, EngineError> {
        if self.profile != EngineProfile::LocalAi {
            return for_engine(prompt, &[]);
        }
        // LocalAI takes the words after a bar as a negative prompt.
        let words = for_engine(prompt, &["|"])?;
        let negative = negative.and_then(|negative| for_engine(negative, &["|"]).ok());
        Ok(negative.map_or(words.clone(), |negative| format!("{words}|{negative}")))
    }
}
