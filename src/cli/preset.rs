//! `tintype preset`: the presets of the config file.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tintype_config::PresetSettings;
use tintype_domain::preset::Preset;

use super::printing::JsonArgs;
use super::{Outcome, show};

#[derive(Debug, Subcommand)]
pub(super) enum PresetCommand {
    /// List the presets: their engines, their settings, and what callers may change
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    presets: PresetSettings,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct ShownPreset {
    name: String,
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<PathBuf>,
    engine: Option<String>,
    settings: Value,
    /// The settings that callers may change: the least and the most, or null for a text.
    callers: Map<String, Value>,
    references: Option<usize>,
}

impl ShownPreset {
    fn new(preset: Preset) -> Result<Self, serde_json::Error> {
        let callers = preset.callers.iter().map(|(setting, bounds)| {
            let bounds = match setting {
                tintype_engine::Setting::NegativePrompt => Value::Null,
                _ => json!([number(*bounds.start()), number(*bounds.end())]),
            };
            (setting.as_str().to_owned(), bounds)
        });
        Ok(Self {
            callers: callers.collect(),
            settings: serde_json::to_value(&preset.settings)?,
            name: preset.name,
            description: preset.description,
            sample: preset.sample,
            engine: preset.engine,
            references: preset.references,
        })
    }

    fn text(&self) -> String {
        let Self { name, description, sample, engine, settings, callers, references } = self;
        let mut text = name.clone();
        if !description.is_empty() {
            text += &format!("\n  {description}");
        }
        if let Some(sample) = sample {
            text += &format!("\n  sample: {}", sample.display());
        }
        text += &format!("\n  engine: {}", engine.as_deref().unwrap_or("any"));
        let settings = settings.as_object().into_iter().flatten().map(|(name, value)| format!("{name} {value}"));
        let settings = settings.collect::<Vec<_>>();
        if !settings.is_empty() {
            text += &format!("\n  settings: {}", settings.join(", "));
        }
        let callers = callers.iter().map(|(name, bounds)| match bounds.as_array().map(Vec::as_slice) {
            Some([least, most]) if name != "seed" => format!("{name} ({least} to {most})"),
            _ => name.clone(),
        });
        let callers = callers.collect::<Vec<_>>();
        let callers = if callers.is_empty() { "nothing".to_owned() } else { callers.join(", ") };
        text += &format!("\n  callers may change: {callers}");
        if let Some(most) = references {
            text += &format!("\n  reference images: {most}");
        }
        text
    }
}

/// A number as people write it: 10, not 10.0.
fn number(number: f64) -> Value {
    if number.fract() == 0.0 { json!(number as i64) } else { json!(number) }
}

pub(super) fn run(command: PresetCommand) -> Outcome {
    let PresetCommand::List(args) = command;
    let shown = args.presets.presets().into_iter().map(ShownPreset::new).collect::<Result<Vec<_>, _>>()?;
    show(args.json, &shown, || match shown.as_slice() {
        [] => "There are no presets: add a table [preset.NAME] to the config file (docs/operate/presets.md).".into(),
        shown => shown.iter().map(ShownPreset::text).collect::<Vec<_>>().join("\n"),
    })
}
