//! Presets: settings of an engine under a name, which an operator offers and callers choose.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tintype_engine::{RenderSettings, Setting};

use crate::request::TaskSettings;

/// The preset of callers who name none, and of the native API, if an operator offers it.
pub const DEFAULT_PRESET: &str = "default";
/// Most presets. All of them are in the model list.
pub const MAX_PRESETS: usize = 100;
/// The settings that callers can change by default: none of them makes a render slower, at other callers' expense.
pub const USUALLY_OPEN: [Setting; 3] = [Setting::Seed, Setting::NegativePrompt, Setting::Strength];
/// Longest name, in bytes.
pub const MAX_PRESET_NAME: usize = 64;

/// A preset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Preset {
    /// Its name: letters, digits, dots, hyphens and underscores.
    pub name: String,
    /// One sentence for callers.
    pub description: String,
    /// A picture that shows people what to expect.
    pub sample: Option<PathBuf>,
    /// The engine that renders its tasks; `None` for any.
    pub engine: Option<String>,
    /// The settings of its tasks.
    pub settings: RenderSettings,
    /// The settings that callers may change, each with its bounds.
    pub callers: BTreeMap<Setting, RangeInclusive<f64>>,
    /// The most reference images per task; `None` for the engine's limit.
    pub references: Option<usize>,
}

/// A caller asks for a setting out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} {rule}.")]
pub struct OutOfBounds {
    /// The setting.
    pub setting: Setting,
    /// What it must be, such as `must be from 1 to 50`.
    pub rule: String,
}

/// The settings that a task gets when a caller asks for some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The engine that the task needs; `None` for any.
    pub engine: Option<String>,
    /// The settings of the task.
    pub settings: TaskSettings,
    /// The settings that the preset does not let callers change.
    pub ignored: Vec<Setting>,
}

impl Preset {
    /// A preset without a name, for callers who name none where no default is offered.
    pub fn unnamed(engine: Option<&str>) -> Self {
        let callers = USUALLY_OPEN.map(|setting| (setting, setting.bounds())).into();
        Self { engine: engine.map(str::to_owned), callers, ..Self::default() }
    }

    /// A task's settings, if a caller asked for `asked`.
    ///
    /// # Errors
    /// [`OutOfBounds`] with the first fault.
    pub fn choose(&self, mut asked: RenderSettings) -> Result<Chosen, OutOfBounds> {
        let mut ignored = Vec::new();
        for setting in asked.given().collect::<Vec<_>>() {
            match self.callers.get(&setting) {
                Some(bounds) => check(&asked, setting, bounds)?,
                None => {
                    asked.clear(setting);
                    ignored.push(setting);
                }
            }
        }
        let preset = (!self.name.is_empty()).then(|| self.name.clone());
        let engine = self.engine.clone();
        // Callers name no files of the operator, and choose nothing else that only a preset does.
        asked = RenderSettings { loras: Vec::new(), prompt: None, quality: None, ..asked };
        Ok(Chosen { engine, settings: TaskSettings { preset, mask: None, render: asked.or(&self.settings) }, ignored })
    }

    /// The settings that callers may change, without those that the engine of the preset does not take.
    pub fn on_engine(mut self, taken: &[Setting]) -> Self {
        self.callers.retain(|setting, _| taken.contains(setting));
        self
    }
}

/// Checks a setting against its bounds.
pub fn check(settings: &RenderSettings, setting: Setting, bounds: &RangeInclusive<f64>) -> Result<(), OutOfBounds> {
    let value = match setting {
        Setting::NegativePrompt => settings.negative_prompt.as_ref().map(|words| words.chars().count() as f64),
        other => settings.number(other),
    };
    let rule = match value {
        Some(value) if !bounds.contains(&value) => match setting {
            Setting::NegativePrompt => format!("must have at most {} characters", bounds.end()),
            _ => format!("must be from {} to {}", bounds.start(), bounds.end()),
        },
        _ if setting == Setting::NegativePrompt && has_nul(settings) => "must not contain U+0000".into(),
        _ => return Ok(()),
    };
    Err(OutOfBounds { setting, rule })
}

/// No database keeps U+0000.
fn has_nul(settings: &RenderSettings) -> bool {
    settings.negative_prompt.as_ref().is_some_and(|words| words.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portrait() -> Preset {
        Preset {
            name: "portrait".into(),
            settings: RenderSettings { steps: Some(30), guidance_scale: Some(6.5), ..RenderSettings::default() },
            callers: BTreeMap::from([(Setting::Steps, 10.0..=50.0), (Setting::Seed, Setting::Seed.bounds())]),
            ..Preset::default()
        }
    }

    #[test]
    fn callers_change_what_the_preset_lets_them_within_its_bounds() {
        let asked = RenderSettings { steps: Some(12), seed: Some(7), ..RenderSettings::default() };
        let chosen = portrait().choose(asked).expect("within bounds");
        assert_eq!(chosen.settings.preset.as_deref(), Some("portrait"));
        let expected =
            RenderSettings { steps: Some(12), seed: Some(7), guidance_scale: Some(6.5), ..RenderSettings::default() };
        assert_eq!((chosen.settings.render, chosen.ignored), (expected, vec![]));
        for steps in [9, 51] {
            let asked = RenderSettings { steps: Some(steps), ..RenderSettings::default() };
            let fault = portrait().choose(asked).expect_err("out of bounds").to_string();
            assert_eq!(fault, "steps must be from 10 to 50.");
        }
    }

    #[test]
    fn other_settings_stay_as_the_preset_has_them_and_are_named() {
        let asked = RenderSettings { guidance_scale: Some(99.0), strength: Some(0.5), ..RenderSettings::default() };
        let chosen = portrait().choose(asked).expect("ignored");
        assert_eq!(chosen.settings.render, portrait().settings);
        assert_eq!(chosen.ignored, [Setting::GuidanceScale, Setting::Strength]);
    }

    #[test]
    fn without_a_preset_callers_change_what_takes_no_time_and_the_engine_knows() {
        let asked = RenderSettings { seed: Some(1), steps: Some(5), ..RenderSettings::default() };
        let chosen =
            Preset::unnamed(None).on_engine(&[Setting::Seed, Setting::Steps]).choose(asked).expect("within bounds");
        let expected = RenderSettings { seed: Some(1), ..RenderSettings::default() };
        assert_eq!(chosen.settings, TaskSettings { render: expected, ..TaskSettings::default() });
        assert_eq!(chosen.ignored, [Setting::Steps]);
        let words = |words: String| RenderSettings { negative_prompt: Some(words), ..RenderSettings::default() };
        let all = Preset::unnamed(None);
        assert!(all.choose(words("a".repeat(4_000))).is_ok());
        let fault = all.choose(words("a".repeat(4_001))).expect_err("too long").to_string();
        assert_eq!(fault, "negative_prompt must have at most 4000 characters.");
        assert!(all.choose(words("\0".into())).is_err());
    }
}
