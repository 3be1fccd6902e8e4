//! How a picture is rendered, apart from its prompt, size and references.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The largest seed: 31 bits fit every engine's integers.
pub const MAX_SEED: u32 = (1 << 31) - 1;
/// The longest negative prompt, in characters.
pub const MAX_NEGATIVE_CHARS: usize = 4_000;

/// The largest weight of a LoRA, in both directions.
pub const MAX_LORA_WEIGHT: f64 = 10.0;
/// Most LoRAs per render.
pub const MAX_LORAS: usize = 16;

/// A LoRA: a small file that changes a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// The safetensors file, or its name on the engine's server.
    pub path: String,
    /// How strongly it changes the model.
    pub weight: f64,
}

impl FromStr for Lora {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A colon that isn't followed by a number is part of the name.
        let (path, weight) = match text.rsplit_once(':').map(|(path, weight)| (path, weight.trim().parse())) {
            Some((path, Ok(weight))) => (path, weight),
            _ => (text, 1.0),
        };
        let path = path.trim();
        if path.is_empty() {
            return Err(format!("{text:?} is not a file with a weight, such as detail.safetensors:0.8"));
        }
        if !(-MAX_LORA_WEIGHT..=MAX_LORA_WEIGHT).contains(&weight) {
            return Err(format!("the weight {weight} of {path} is not from -{MAX_LORA_WEIGHT} to {MAX_LORA_WEIGHT}"));
        }
        Ok(Self { path: path.to_owned(), weight })
    }
}

/// How a model reads prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptSyntax {
    /// As plain words. Whatever is too long is cut off.
    #[default]
    Plain,
    /// With emphasis, such as `(word:1.3)`. Long prompts are read in chunks.
    Weighted,
}

impl PromptSyntax {
    /// Its names on the command line, in the config file and in JSON.
    pub const NAMES: [&str; 2] = ["plain", "weighted"];
}

impl FromStr for PromptSyntax {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "plain" => Ok(Self::Plain),
            "weighted" => Ok(Self::Weighted),
            _ => Err(format!("there is no prompt syntax {name:?}: there are {}", Self::NAMES.join(" and "))),
        }
    }
}

/// The settings of a render. `None` leaves the choice to the engine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RenderSettings {
    /// The first picture's seed; further pictures count up from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// What the picture should not show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub negative_prompt: Option<String>,
    /// Steps from noise to picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// How strongly the picture follows the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance_scale: Option<f64>,
    /// How much the picture may differ from its reference, from 0 (not at all) to 1 (as if there were none).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<f64>,
    /// LoRAs in addition to the engine's own. Only presets choose them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loras: Vec<Lora>,
    /// How the prompt is read. Only presets choose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptSyntax>,
    /// The quality, as named by the engine's server. Only presets choose it, because it costs the operator more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<String>,
}

/// All numbers are finite, because settings from outside are checked against their bounds.
impl Eq for RenderSettings {}

/// A setting of a render.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// [`RenderSettings::seed`].
    Seed,
    /// [`RenderSettings::negative_prompt`].
    NegativePrompt,
    /// [`RenderSettings::steps`].
    Steps,
    /// [`RenderSettings::guidance_scale`].
    GuidanceScale,
    /// [`RenderSettings::strength`].
    Strength,
}

impl Setting {
    /// All settings.
    pub const ALL: [Self; 5] = [Self::Seed, Self::NegativePrompt, Self::Steps, Self::GuidanceScale, Self::Strength];

    /// Its name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::NegativePrompt => "negative_prompt",
            Self::Steps => "steps",
            Self::GuidanceScale => "guidance_scale",
            Self::Strength => "strength",
        }
    }

    /// The values that make sense for any engine. For texts, the length in characters.
    pub fn bounds(self) -> RangeInclusive<f64> {
        match self {
            Self::Seed => 0.0..=f64::from(MAX_SEED),
            Self::NegativePrompt => 0.0..=MAX_NEGATIVE_CHARS as f64,
            Self::Steps => 1.0..=150.0,
            Self::GuidanceScale => 0.0..=30.0,
            Self::Strength => 0.0..=1.0,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|setting| setting.as_str() == name.replace('-', "_"));
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("there is no setting {name:?}: there are {all}")
        })
    }
}

impl RenderSettings {
    /// Whether everything is left to the engine.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These settings, completed by `others`.
    pub fn or(self, others: &Self) -> Self {
        Self {
            seed: self.seed.or(others.seed),
            negative_prompt: self.negative_prompt.or_else(|| others.negative_prompt.clone()),
            steps: self.steps.or(others.steps),
            guidance_scale: self.guidance_scale.or(others.guidance_scale),
            strength: self.strength.or(others.strength),
            loras: if self.loras.is_empty() { others.loras.clone() } else { self.loras },
            prompt: self.prompt.or(others.prompt),
            quality: self.quality.or_else(|| others.quality.clone()),
        }
    }

    /// A numeric setting's value.
    pub fn number(&self, setting: Setting) -> Option<f64> {
        match setting {
            Setting::Seed => self.seed.map(f64::from),
            Setting::Steps => self.steps.map(f64::from),
            Setting::GuidanceScale => self.guidance_scale,
            Setting::Strength => self.strength,
            Setting::NegativePrompt => None,
        }
    }

    /// The settings that have a value.
    pub fn given(&self) -> impl Iterator<Item = Setting> {
        Setting::ALL.into_iter().filter(|setting| match setting {
            Setting::NegativePrompt => self.negative_prompt.is_some(),
            other => self.number(*other).is_some(),
        })
    }

    /// Clears a setting, which leaves it to the engine.
    pub fn clear(&mut self, setting: Setting) {
        match setting {
            Setting::Seed => self.seed = None,
            Setting::NegativePrompt => self.negative_prompt = None,
            Setting::Steps => self.steps = None,
            Setting::GuidanceScale => self.guidance_scale = None,
            Setting::Strength => self.strength = None,
        }
    }
}
