//! The preset and the settings of a task in the studio's forms.

use std::iter;

use serde_json::{Map, Value};
use tintype_domain::images_api_request::{InvalidCall, settings_of_json};
use tintype_domain::preset::{Chosen, DEFAULT_PRESET};
use tintype_domain::request::TaskSettings;
use tintype_engine::{RenderSettings, Setting};
use tintype_store::EngineState;

use super::failures::setting_refusal;
use super::session::{Fields, Visitor};
use crate::service::presets::Presets;

pub(super) struct SettingField {
    pub(super) name: &'static str,
    /// The least and the most value and the step of a number; `None` for a text.
    pub(super) bounds: Option<(f64, f64, &'static str)>,
    pub(super) value: String,
}

pub(super) struct PresetOption {
    /// Its name in forms; empty for the default one.
    pub(super) name: String,
    pub(super) description: String,
    pub(super) sample: Option<String>,
    /// The names of the settings that people may change, separated by spaces.
    pub(super) opens: String,
    /// Whether it takes a mask for a reference.
    pub(super) paints: bool,
    pub(super) chosen: bool,
}

/// The presets to choose from, the default one first. `chosen` is the selected preset's name, and `engines` are all
/// workers' engines.
pub(super) fn options(presets: &Presets, engines: &[EngineState], chosen: &str) -> Vec<PresetOption> {
    let all = presets.all();
    let others = all.iter().filter(|preset| preset.name != DEFAULT_PRESET).map(|preset| preset.name.as_str());
    let option = |name: &str| {
        let preset = presets.of_form(name)?;
        Some(PresetOption {
            sample: preset.sample.is_some().then(|| format!("/studio/presets/{}/sample", preset.name)),
            opens: preset.callers.keys().map(|setting| setting.as_str()).collect::<Vec<_>>().join(" "),
            paints: presets.engine_for_mask(preset.engine, 1, engines).is_ok(),
            description: preset.description,
            chosen: name == chosen,
            name: name.to_owned(),
        })
    };
    iter::once("").chain(others).filter_map(option).collect()
}

/// The settings that people may change with at least one preset, as they are filled in.
pub(super) fn fields(presets: &Presets, filled: &RenderSettings) -> Vec<SettingField> {
    let mut open = presets.unnamed(None).callers;
    for preset in presets.all().iter().filter_map(|preset| presets.named(&preset.name)) {
        for (setting, bounds) in preset.callers {
            let widest = open.entry(setting).or_insert_with(|| bounds.clone());
            *widest = widest.start().min(*bounds.start())..=widest.end().max(*bounds.end());
        }
    }
    let field = |(setting, bounds): (Setting, std::ops::RangeInclusive<f64>)| SettingField {
        name: setting.as_str(),
        bounds: match setting {
            Setting::NegativePrompt => None,
            Setting::Seed | Setting::Steps => Some((*bounds.start(), *bounds.end(), "1")),
            Setting::GuidanceScale | Setting::Strength => Some((*bounds.start(), *bounds.end(), "any")),
        },
        value: value_of(filled, setting).unwrap_or_default(),
    };
    open.into_iter().map(field).collect()
}

/// The value of a setting, as forms and pages write it.
pub(super) fn value_of(settings: &RenderSettings, setting: Setting) -> Option<String> {
    match setting {
        Setting::NegativePrompt => settings.negative_prompt.clone(),
        other => settings.number(other).map(|number| number.to_string()),
    }
}

/// The settings of a form as it was filled in. An empty field leaves its setting to the preset.
pub(super) fn read(fields: &Fields) -> Result<RenderSettings, InvalidCall> {
    let given = Setting::ALL.into_iter().filter_map(|setting| {
        let text = fields.text(setting.as_str()).trim();
        (!text.is_empty()).then(|| (setting.as_str().to_owned(), Value::from(text)))
    });
    settings_of_json(Value::Object(given.collect::<Map<_, _>>()).to_string().as_bytes())
}

/// Applies the preset and the settings of a form, or returns the message that refuses them. A setting without effect is
/// refused, too.
pub(super) fn choose(visitor: &Visitor, fields: &Fields) -> Result<Chosen, String> {
    let name = fields.text("preset");
    let preset = visitor.studio.shared.presets.of_form(name);
    let preset = preset.ok_or_else(|| visitor.texts.word("no-preset", name))?;
    let refusal = |setting: Setting| {
        let bounds = preset.callers.get(&setting);
        let characters = fields.text(setting.as_str()).trim().chars().count() as f64;
        let is_too_long = bounds.is_some_and(|bounds| characters > *bounds.end());
        setting_refusal(visitor.texts, setting, bounds, is_too_long)
    };
    let asked = read(fields).map_err(|fault| {
        let setting = Setting::ALL.into_iter().find(|setting| fault.param == Some(setting.as_str()));
        setting.map_or_else(|| visitor.texts.get("error-request"), refusal)
    })?;
    let chosen = preset.choose(asked).map_err(|fault| refusal(fault.setting))?;
    match chosen.ignored.first() {
        Some(setting) => Err(refusal(*setting)),
        None => Ok(chosen),
    }
}

/// The preset and the settings for a form that repeats a task: those that the preset now lets people change.
pub(super) fn to_repeat(presets: &Presets, settings: &TaskSettings) -> (String, RenderSettings) {
    let name = settings.preset.clone().filter(|name| name != DEFAULT_PRESET).unwrap_or_default();
    let Some(preset) = presets.of_form(&name) else { return Default::default() };
    let mut render = settings.render.clone();
    for setting in Setting::ALL.into_iter().filter(|setting| !preset.callers.contains_key(setting)) {
        render.clear(setting);
    }
    (name, render)
}
