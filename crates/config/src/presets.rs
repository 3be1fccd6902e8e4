//! Presets from `[preset.NAME]` tables in the config file.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Serialize};
use tintype_domain::model::MODEL_NAME;
use tintype_domain::preset::{MAX_PRESET_NAME, MAX_PRESETS, Preset, USUALLY_OPEN, check};
use tintype_domain::request::MAX_REFERENCES;
use tintype_engine::{Lora, MAX_LORAS, PromptSyntax, RenderSettings, Setting};
use tintype_system::watched_files::FileVersion;
use toml::de::DeValue;

use super::file::{ConfigFile, FileOrigin, FileSetting, Value, line_of, one_text, parsed, refusal, suggestion, text};

/// The names in a preset table, in the documentation's order.
const NAMES: [&str; 13] = [
    "engine",
    "description",
    "sample",
    "seed",
    "negative-prompt",
    "steps",
    "guidance-scale",
    "strength",
    "lora",
    "prompt",
    "quality",
    "callers",
    "references",
];
/// Most characters in a description.
const MAX_DESCRIPTION: usize = 200;
/// Most bytes in a quality.
const MAX_QUALITY: usize = 20;

/// Where the presets are.
#[derive(Debug, Clone, Default, Args)]
pub struct PresetSettings {
    /// The presets of the config file, as the layers of settings pass them on
    #[arg(long, hide = true, value_name = "JSON")]
    pub preset_table: Vec<PresetArgument>,
    /// The config file, whose presets may change
    #[arg(long, hide = true, value_name = "FILE")]
    pub preset_file: Option<PresetFile>,
}

impl PresetSettings {
    /// The presets at the start of this process.
    pub fn presets(&self) -> Vec<Preset> {
        self.preset_table.iter().map(|PresetArgument(preset)| preset.clone()).collect()
    }
}

/// A preset on the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct PresetArgument(pub Preset);

impl FromStr for PresetArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(Self).map_err(|error| error.to_string())
    }
}

/// The config file with the presets. It may not exist yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresetFile {
    /// Its path.
    pub path: PathBuf,
    /// Whether `--config` names it, so that any user can own it.
    pub is_named: bool,
    /// The version that [`PresetSettings::presets`] come from.
    pub version: Option<FileVersion>,
}

impl FromStr for PresetFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

impl PresetFile {
    /// A command's config file. `found` is its content, if it exists.
    pub(super) fn new(path: PathBuf, is_named: bool, found: Option<&ConfigFile>) -> Self {
        Self { path, is_named, version: found.and_then(|found| FileVersion::in_metadata(&found.metadata)) }
    }

    /// The flag that passes the file on; `None` if its path isn't UTF-8.
    pub(super) fn flag(&self) -> Option<String> {
        serde_json::to_string(self).ok().map(|file| format!("--preset-file={file}"))
    }

    /// Reloads the presets.
    ///
    /// # Errors
    /// A message for the operator with the file and the line.
    pub fn read(&self) -> Result<Vec<Preset>, String> {
        let path = &self.path;
        let origin = match self.is_named {
            true => FileOrigin::Named,
            false => FileOrigin::DataDirectory { any_owner: false },
        };
        let read = text(path, origin);
        let (text, _) = read.map_err(|error| format!("cannot read the config file {}: {error}", path.display()))?;
        let at = |offset: usize| line_of(&text, offset);
        let table = parsed(path, &text)?;
        let mut presets = Vec::new();
        for (name, value) in table.get_ref().iter().filter(|(name, _)| name.get_ref() == "preset") {
            let tables = PresetTable::read_all(at(name.span().start), value.get_ref(), &at);
            let tables = tables.map_err(|(line, reason)| refusal(path, line, &reason))?;
            presets.extend(tables.into_iter().map(|table| table.preset));
        }
        Ok(presets)
    }
}

#[derive(Debug)]
pub(super) struct PresetTable {
    pub(super) preset: Preset,
    pub(super) entries: Vec<FileSetting>,
}

impl PresetTable {
    /// Reads all tables. Errors contain a line.
    pub(super) fn read_all(
        line: usize,
        tables: &DeValue<'_>,
        at: &dyn Fn(usize) -> usize,
    ) -> Result<Vec<Self>, (usize, String)> {
        let DeValue::Table(tables) = tables else {
            return Err((line, "preset must be tables such as [preset.portrait]".into()));
        };
        if tables.len() > MAX_PRESETS {
            return Err((line, format!("{} presets are too many: keep at most {MAX_PRESETS}", tables.len())));
        }
        let read = |(name, table): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
            let name: &std::borrow::Cow<'_, str> = name.get_ref();
            Self::read(name, at(table.span().start), table.get_ref(), at)
                .map_err(|(line, reason)| (line, format!("[preset.{name}] {reason}")))
        };
        tables.iter().map(read).collect()
    }

    pub(super) fn flag(&self) -> String {
        let preset = serde_json::to_string(&self.preset).expect("presets are always JSON");
        format!("--preset-table={preset}")
    }

    fn read(
        name: &str,
        line: usize,
        table: &DeValue<'_>,
        at: &dyn Fn(usize) -> usize,
    ) -> Result<Self, (usize, String)> {
        let DeValue::Table(table) = table else { return Err((line, "must be a table".into())) };
        check_name(name).map_err(|reason| (line, reason))?;
        let mut found = BTreeMap::new();
        let mut entries = Vec::new();
        for (key, value) in table {
            let (line, key) = (at(key.span().start), key.get_ref().as_ref());
            if !NAMES.contains(&key) {
                return Err((line, suggestion(key, NAMES.into_iter(), "docs/operate/presets.md")));
            }
            let texts = texts(key, value.get_ref()).map_err(|reason| (line, reason))?;
            entries.push(FileSetting { name: key.to_owned(), line, value: Value::Texts(texts.clone()) });
            found.insert(key.to_owned(), (line, texts));
        }
        let preset = preset(name, &found)?;
        Ok(Self { preset, entries })
    }
}

fn texts(key: &str, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value {
        DeValue::Array(items) if ["callers", "lora"].contains(&key) => {
            items.iter().map(|item| one_text(key, item.get_ref())).collect()
        }
        DeValue::Array(_) => Err(format!("{key} takes one value, not a list")),
        _ if key == "callers" => Err("callers takes a list, such as [\"seed\", \"steps=10..50\"]".into()),
        value => Ok(vec![one_text(key, value)?]),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name == MODEL_NAME {
        return Err(format!("{MODEL_NAME} is the model without a preset and cannot be the name of one"));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=MAX_PRESET_NAME).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(format!("a preset has a name of 1 to {MAX_PRESET_NAME} letters, digits, dots, hyphens and underscores"))
}

/// A table's texts by name, with their lines.
type Found = BTreeMap<String, (usize, Vec<String>)>;

fn one<T: FromStr>(found: &Found, key: &str, what: &str) -> Result<Option<T>, (usize, String)> {
    let Some((line, texts)) = found.get(key) else { return Ok(None) };
    let text = texts.first().map_or("", String::as_str);
    text.parse().map(Some).map_err(|_| (*line, format!("{key} must be {what}")))
}

fn is_word(text: &str) -> bool {
    (1..=MAX_QUALITY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

fn loras(found: &Found) -> Result<Vec<Lora>, (usize, String)> {
    let Some((line, texts)) = found.get("lora") else { return Ok(Vec::new()) };
    if texts.len() > MAX_LORAS {
        return Err((*line, format!("lora: {} are too many: at most {MAX_LORAS} are used", texts.len())));
    }
    let read = texts.iter().map(|text| text.parse());
    read.collect::<Result<_, _>>().map_err(|reason: String| (*line, format!("lora: {reason}")))
}

fn preset(name: &str, found: &Found) -> Result<Preset, (usize, String)> {
    let line_of = |key: &str| found.get(key).map_or(1, |(line, _)| *line);
    let settings = RenderSettings {
        seed: one(found, "seed", "a whole number")?,
        negative_prompt: one(found, "negative-prompt", "a text")?,
        steps: one(found, "steps", "a whole number")?,
        guidance_scale: one(found, "guidance-scale", "a number")?,
        strength: one(found, "strength", "a number")?,
        loras: loras(found)?,
        prompt: one(found, "prompt", &PromptSyntax::NAMES.join(" or "))?,
        quality: one(found, "quality", "a word")?,
    };
    if settings.quality.as_ref().is_some_and(|quality| !is_word(quality)) {
        return Err((line_of("quality"), "quality must be a word such as high".into()));
    }
    for setting in settings.given() {
        let key = setting.as_str().replace('_', "-");
        check(&settings, setting, &setting.bounds())
            .map_err(|fault| (line_of(&key), format!("{key} {}", fault.rule)))?;
    }
    let description: String = one(found, "description", "a text")?.unwrap_or_default();
    if description.chars().count() > MAX_DESCRIPTION || description.chars().any(char::is_control) {
        let reason = format!("description must be one line of at most {MAX_DESCRIPTION} characters");
        return Err((line_of("description"), reason));
    }
    let sample: Option<PathBuf> = one(found, "sample", "a path")?;
    if sample.as_ref().is_some_and(|sample| sample.is_relative()) {
        return Err((line_of("sample"), "sample must be an absolute path".into()));
    }
    let references: Option<usize> = one(found, "references", "a whole number")?;
    if references.is_some_and(|most| most > MAX_REFERENCES) {
        return Err((line_of("references"), format!("references must be at most {MAX_REFERENCES}")));
    }
    let callers = match found.get("callers") {
        None => USUALLY_OPEN.map(|setting| (setting, setting.bounds())).into(),
        Some((line, texts)) => {
            let read = texts.iter().map(|text| caller_setting(text));
            read.collect::<Result<_, _>>().map_err(|reason| (*line, format!("callers: {reason}")))?
        }
    };
    let engine = one(found, "engine", "a text")?;
    Ok(Preset { name: name.to_owned(), description, sample, engine, settings, callers, references })
}

/// A setting that callers can change, such as `seed` or `steps=10..50`.
fn caller_setting(text: &str) -> Result<(Setting, RangeInclusive<f64>), String> {
    let (name, bounds) = text.split_once('=').map_or((text, None), |(name, bounds)| (name, Some(bounds)));
    let setting: Setting = name.trim().parse()?;
    let Some(bounds) = bounds else { return Ok((setting, setting.bounds())) };
    let usual = setting.bounds();
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| usual.contains(number));
    let range = bounds.split_once("..").and_then(|(from, to)| Some(number(from)?..=number(to)?));
    match range {
        Some(range) if range.start() <= range.end() && setting != Setting::NegativePrompt => Ok((setting, range)),
        _ if setting == Setting::NegativePrompt => Err("negative-prompt takes no bounds".into()),
        _ => Err(format!("{text:?} must be {name}=MIN..MAX within {}..{}", usual.start(), usual.end())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Result<Vec<Preset>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tintype.toml");
        std::fs::write(&path, text).expect("a file");
        PresetFile { path, is_named: true, version: None }
            .read()
            .map_err(|error| error.rsplit(", line ").next().unwrap_or("").into())
    }

    #[test]
    fn a_preset_is_read_with_its_bounds() {
        let found = read(
            "listen = \":1\"\n[preset.portrait]\nengine = \"sdxl\"\ndescription = \"Faces\"\nsteps = 30\n\
             sample = \"/samples/face.png\"\n\
             guidance-scale = 6.5\ncallers = [\"seed\", \"steps=10..50\", \"guidance-scale=1..12.5\"]\nreferences = 1\n\
             prompt = \"weighted\"\nquality = \"high\"\n\
             lora = [\"/loras/detail.safetensors:0.8\", \"ink\"]\n[preset.draft]\nlora = \"ink:2\"\n",
        );
        let found = found.expect("presets");
        assert_eq!(found.len(), 2);
        let portrait = found.iter().find(|preset| preset.name == "portrait").expect("a preset");
        assert_eq!((portrait.engine.as_deref(), portrait.references), (Some("sdxl"), Some(1)));
        assert_eq!(portrait.sample.as_deref(), Some(Path::new("/samples/face.png")));
        assert_eq!(portrait.settings.steps, Some(30));
        let RenderSettings { prompt, quality, .. } = &portrait.settings;
        assert_eq!((*prompt, quality.as_deref()), (Some(PromptSyntax::Weighted), Some("high")));
        assert_eq!(portrait.callers[&Setting::Steps], 10.0..=50.0);
        assert_eq!(portrait.callers[&Setting::GuidanceScale], 1.0..=12.5);
        assert_eq!(portrait.callers.len(), 3);
        let draft = found.iter().find(|preset| preset.name == "draft").expect("a preset");
        let loras = |preset: &Preset| -> Vec<_> {
            preset.settings.loras.iter().map(|lora| (lora.path.clone(), lora.weight)).collect()
        };
        assert_eq!(loras(portrait), [("/loras/detail.safetensors".to_owned(), 0.8), ("ink".to_owned(), 1.0)]);
        assert_eq!(loras(draft), [("ink".to_owned(), 2.0)]);
        assert_eq!(draft.callers.keys().copied().collect::<Vec<_>>(), USUALLY_OPEN);
    }

    #[test]
    fn a_fault_is_told_with_its_line_and_the_remedy() {
        for (text, fault) in [
            ("preset = 1", "1: preset must be tables such as [preset.portrait]"),
            ("[preset.\"a b\"]", "1: [preset.a b] a preset has a name"),
            ("[preset.a]\nstep = 1", "2: [preset.a] there is no setting \"step\": did you mean \"steps\"?"),
            ("[preset.a]\nsteps = 0", "2: [preset.a] steps must be from 1 to 150"),
            ("[preset.a]\nsteps = 1.5", "2: [preset.a] steps must be a whole number"),
            ("[preset.a]\nsteps = [1]", "2: [preset.a] steps takes one value, not a list"),
            ("[preset.a]\nstrength = nan", "2: [preset.a] strength must be"),
            ("[preset.a]\nseed = -1", "2: [preset.a] seed must be a whole number"),
            ("[preset.a]\nsample = \"boat.png\"", "2: [preset.a] sample must be an absolute path"),
            ("[preset.a]\nreferences = 5", "2: [preset.a] references must be at most 4"),
            ("[preset.a]\ncallers = \"seed\"", "2: [preset.a] callers takes a list"),
            ("[preset.a]\ncallers = [\"colour\"]", "2: [preset.a] callers: there is no setting \"colour\""),
            ("[preset.a]\ncallers = [\"steps=0..5\"]", "2: [preset.a] callers: \"steps=0..5\" must be steps=MIN..MAX"),
            ("[preset.a]\nprompt = \"loud\"", "2: [preset.a] prompt must be plain or weighted"),
            ("[preset.a]\nquality = \"very high\"", "2: [preset.a] quality must be a word such as high"),
            ("[preset.a]\ncallers = [\"quality\"]", "2: [preset.a] callers: there is no setting \"quality\""),
            ("[preset.a]\nlora = \"ink:99\"", "2: [preset.a] lora: the weight 99 of ink is not from -10 to 10"),
            ("[preset.a]\nlora = [\":1\"]", "2: [preset.a] lora: \":1\" is not a file with a weight"),
            ("[preset.a]\ncallers = [\"lora\"]", "2: [preset.a] callers: there is no setting \"lora\""),
            ("[preset.a]\ncallers = [\"steps=9..5\"]", "2: [preset.a] callers: \"steps=9..5\" must be"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.starts_with(fault), "{text}: {error}");
        }
    }
}
