//! The config file, `tintype.toml`: the settings under the names of their flags.

use std::borrow::Cow;
use std::fs::{Metadata, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::engines::{NamedEngine, table_argument, table_settings, table_within};
use super::layers::Setting;
use super::presets::PresetTable;

/// Name of the config file in the data directory.
pub const CONFIG_FILE: &str = "tintype.toml";
/// Largest config file, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;
/// Minimum similarity for suggesting a name instead of an unknown one, from 0 to 1.
const SIMILAR: f64 = 0.7;
/// The permission for all users to read a file.
const READ_BY_ALL: u32 = 0o004;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileOrigin {
    /// The file that `--config` names.
    Named,
    /// The file in the data directory, which cannot define where that directory is.
    DataDirectory {
        /// Whether any user can own the file, because this process becomes the data's owner before using it.
        any_owner: bool,
    },
}

#[derive(Debug)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) metadata: Metadata,
    pub(super) entries: Vec<FileSetting>,
    pub(super) engines: Vec<EngineTable>,
    pub(super) presets: Vec<PresetTable>,
}

#[derive(Debug)]
pub(super) struct EngineTable {
    pub(super) name: String,
    pub(super) entries: Vec<FileSetting>,
    /// Its form on the command line.
    pub(super) argument: String,
}

#[derive(Debug)]
pub(super) struct FileSetting {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    /// A flag without a value.
    Switch(bool),
    /// A flag's values, as written on a command line.
    Texts(Vec<String>),
}

impl Value {
    fn within(self, directory: Option<&Path>, setting: &Setting) -> Self {
        match (self, directory) {
            (Self::Texts(texts), Some(directory)) => {
                Self::Texts(texts.into_iter().map(|text| setting.within(directory, text)).collect())
            }
            (value, _) => value,
        }
    }
}

impl ConfigFile {
    /// Reads a config file whose names must be in `settings`. Relative paths start in `directory`, or else in that of this
    /// process. `None` if there is none in the data directory.
    ///
    /// # Errors
    /// A message for the operator with the file and, if known, the line.
    pub(super) fn read(
        path: &Path,
        origin: FileOrigin,
        settings: &[Setting],
        directory: Option<&Path>,
    ) -> Result<Option<Self>, String> {
        let (text, metadata) = match text(path, origin) {
            Ok(found) => found,
            Err(error) if origin != FileOrigin::Named && is_out_of_reach(path, &error) => return Ok(None),
            Err(error) => return Err(format!("cannot read the config file {}: {error}", path.display())),
        };
        let at = |offset: usize| line_of(&text, offset);
        let refuse = |line: usize, reason: String| refusal(path, line, &reason);
        let table = parsed(path, &text)?;
        let (mut entries, mut engines, mut presets) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in table.get_ref() {
            let line = at(name.span().start);
            let name = name.get_ref().as_ref();
            if let ("engine", DeValue::Table(tables)) = (name, value.get_ref()) {
                for (name, table) in tables {
                    let line = at(name.span().start);
                    let read = EngineTable::read(name.get_ref(), line, table.get_ref(), &at);
                    let mut read =
                        read.map_err(|(line, reason)| refuse(line, format!("[engine.{}] {reason}", name.get_ref())))?;
                    if let Some(directory) = directory {
                        read.argument = table_within(directory, &read.argument);
                    }
                    engines.push(read);
                }
                continue;
            }
            if name == "preset" {
                let read = PresetTable::read_all(line, value.get_ref(), &at);
                presets = read.map_err(|(line, reason)| refuse(line, reason))?;
                continue;
            }
            let value = setting(name, origin, settings)
                .and_then(|setting| Ok(read_value(setting, value.get_ref())?.within(directory, setting)));
            entries.push(FileSetting {
                name: name.to_owned(),
                line,
                value: value.map_err(|reason| refuse(line, reason))?,
            });
        }
        let file = Self { path: path.to_owned(), metadata, entries, engines, presets };
        for entries in std::iter::once(&file.entries).chain(file.engines.iter().map(|table| &table.entries)) {
            let checked = check_pairs(entries).and_then(|()| file.check_secrets(entries));
            checked.map_err(|(line, reason)| refuse(line, reason))?;
        }
        Ok(Some(file))
    }

    /// Rejects a secret that every user of the machine can read.
    fn check_secrets(&self, entries: &[FileSetting]) -> Result<(), (usize, String)> {
        let open = self.metadata.mode() & READ_BY_ALL != 0;
        match entries.iter().find(|entry| open && entry.holds_secret()) {
            Some(FileSetting { name, line, .. }) => Err((
                *line,
                format!(
                    "{name} holds a secret, and the mode of the file lets every user read it: \
                     run `chmod o-r {}`, or move the secret to a file of its own and set {name}-file",
                    self.path.display()
                ),
            )),
            None => Ok(()),
        }
    }
}

/// Rejects a secret if there is also a file for it.
fn check_pairs(entries: &[FileSetting]) -> Result<(), (usize, String)> {
    let has_file = |entry: &&FileSetting| entries.iter().any(|other| other.name == format!("{}-file", entry.name));
    entries.iter().find(has_file).map_or(Ok(()), |FileSetting { name, line, .. }| {
        Err((*line, format!("{name} and {name}-file exclude each other: set only one of them")))
    })
}

impl EngineTable {
    /// Reads the table that begins on this line. Errors also contain a line.
    fn read(
        name: &str,
        line: usize,
        table: &DeValue<'_>,
        at: &dyn Fn(usize) -> usize,
    ) -> Result<Self, (usize, String)> {
        let DeValue::Table(table) = table else {
            return Err((line, "must be a table with at least kind = \"…\"".into()));
        };
        let settings = table_settings();
        let (mut entries, mut flags) = (Vec::new(), Vec::new());
        for (name, value) in table {
            let (line, name) = (at(name.span().start), name.get_ref().as_ref());
            let read = || {
                let setting =
                    named(name, &settings).ok_or_else(|| unknown(name, &settings, "docs/operate/engines.md"))?;
                let value = match name {
                    "extra" => Value::Texts(vec![extra(value.get_ref())?]),
                    _ => read_value(setting, value.get_ref())?,
                };
                Ok((setting, value))
            };
            let (setting, value) = read().map_err(|reason| (line, reason))?;
            flags.extend(setting.flags(&value));
            entries.push(FileSetting { name: name.to_owned(), line, value });
        }
        NamedEngine::from_table(name, &flags).map_err(|reason| (line, reason))?;
        Ok(Self { name: name.to_owned(), entries, argument: table_argument(name, flags) })
    }
}

/// The table `[engine.NAME.extra]` as JSON.
fn extra(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::Table(_) => Ok(as_json(value)?.to_string()),
        _ => Err("extra must be a table, such as [engine.gpu.extra]".into()),
    }
}

fn as_json(value: &DeValue<'_>) -> Result<serde_json::Value, String> {
    Ok(match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            parsed.map_err(|_| format!("extra: {} is too large", number.as_str()))?.into()
        }
        DeValue::Float(number) => {
            let parsed: Option<f64> = number.as_str().parse().ok();
            let number = parsed.and_then(serde_json::Number::from_f64);
            number.ok_or("extra: numbers must be finite")?.into()
        }
        DeValue::Array(items) => {
            items.iter().map(|item| as_json(item.get_ref())).collect::<Result<Vec<_>, _>>()?.into()
        }
        DeValue::Table(pairs) => {
            let pair = |(name, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
                Ok::<_, String>((name.get_ref().to_string(), as_json(value.get_ref())?))
            };
            serde_json::Value::Object(pairs.iter().map(pair).collect::<Result<_, _>>()?)
        }
        DeValue::Datetime(_) => return Err("extra: write a date as a text in quotes".into()),
    })
}

impl FileSetting {
    /// Whether the value is an API key, or a URL with a password.
    fn holds_secret(&self) -> bool {
        let Value::Texts(texts) = &self.value else { return false };
        let has_password = |text: &String| {
            let url = url::Url::parse(text);
            url.is_ok_and(|url| url.password().is_some() || url.query_pairs().any(|(name, _)| name == "password"))
        };
        ["key", "engine-key"].contains(&self.name.as_str()) || texts.iter().any(has_password)
    }
}

/// The line of an offset in a text, counted from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset.min(text.len())].matches('\n').count() + 1
}

pub(super) fn refusal(path: &Path, line: usize, reason: &str) -> String {
    format!("{}, line {line}: {reason}", path.display())
}

pub(super) fn parsed<'a>(path: &Path, text: &'a str) -> Result<Spanned<DeTable<'a>>, String> {
    DeTable::parse(text).map_err(|error| {
        // The rest of the message quotes the line, which can contain a secret.
        let reason = error.message().lines().next().unwrap_or("not valid TOML");
        refusal(path, error.span().map_or(1, |span| line_of(text, span.start)), reason)
    })
}

/// A file's content and metadata. Settings can name programs to run and keys to send, so unless a flag names the file,
/// it must belong to root or this user.
pub(super) fn text(path: &Path, origin: FileOrigin) -> std::io::Result<(String, Metadata)> {
    let mut options = OpenOptions::new();
    options.read(true);
    if origin != FileOrigin::Named {
        // The directory's owner could have put a pipe there; opening it would wait for a writer.
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if origin != FileOrigin::Named && !metadata.is_file() {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "it is not a file"));
    }
    if origin == (FileOrigin::DataDirectory { any_owner: false }) && ![0, geteuid().as_raw()].contains(&metadata.uid())
    {
        let owner = metadata.uid();
        let reason = format!("it belongs to user {owner}: set --config to it if you trust it");
        return Err(std::io::Error::new(ErrorKind::PermissionDenied, reason));
    }
    let mut text = String::new();
    // The size in the metadata isn't a limit: it is 0 for pipes and devices.
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(std::io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {MAX_BYTES} bytes"))),
        false => Ok((text, metadata)),
    }
}

/// Whether there is no file, or this user cannot access its directory: then the command fails at the data itself, or,
/// like `tintype generate`, needs nothing from it.
fn is_out_of_reach(path: &Path, error: &std::io::Error) -> bool {
    let closed = || path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || closed()
}

fn setting<'a>(name: &str, origin: FileOrigin, settings: &'a [Setting]) -> Result<&'a Setting, String> {
    if name == "config" || (name == "data" && origin != FileOrigin::Named) {
        return Err(format!("{name} cannot be set in this file, which is found by it: use --{name}"));
    }
    named(name, settings).ok_or_else(|| unknown(name, settings, "`tintype serve --help`"))
}

fn named<'a>(name: &str, settings: &'a [Setting]) -> Option<&'a Setting> {
    settings.iter().find(|setting| setting.name == name)
}

/// The error for an unknown name. `list` lists all names.
fn unknown(name: &str, settings: &[Setting], list: &str) -> String {
    suggestion(name, settings.iter().map(|setting| setting.name.as_str()), list)
}

pub(super) fn suggestion<'a>(name: &str, names: impl Iterator<Item = &'a str>, list: &str) -> String {
    match nearest(name, names) {
        Some(nearest) => format!("there is no setting {name:?}: did you mean {nearest:?}?"),
        None => format!("there is no setting {name:?}: {list} lists all of them"),
    }
}

/// The most similar known name, if any is similar.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let similar = names.map(|known| (strsim::jaro_winkler(name, known), known));
    let nearest = similar.max_by(|(one, _), (other, _)| one.total_cmp(other));
    nearest.filter(|(similarity, _)| *similarity >= SIMILAR).map(|(_, nearest)| nearest)
}

fn read_value(setting: &Setting, value: &DeValue<'_>) -> Result<Value, String> {
    let name = &setting.name;
    if setting.is_switch() {
        let switched = value.as_bool().ok_or_else(|| format!("{name} must be true or false"))?;
        return Ok(Value::Switch(switched));
    }
    let texts = match value {
        DeValue::Array(items) if setting.takes_many() => {
            items.iter().map(|item| one_text(name, item.get_ref())).collect::<Result<Vec<_>, _>>()?
        }
        DeValue::Array(_) => return Err(format!("{name} takes one value, not a list")),
        DeValue::Table(pairs) if setting.takes_pairs() => pairs
            .iter()
            .map(|(key, value)| {
                let key = key.get_ref();
                Ok(format!("{key}={}", one_text(&format!("{name}.{key}"), value.get_ref())?))
            })
            .collect::<Result<Vec<_>, String>>()?,
        value => vec![one_text(name, value)?],
    };
    texts.iter().try_for_each(|text| setting.check(text))?;
    Ok(Value::Texts(texts))
}

/// A value as written on a command line.
pub(super) fn one_text(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Table(_) => Err(format!("{name} takes a value, not a table: settings are written as NAME = VALUE")),
        _ => Err(format!("{name} takes a text in quotes or a number")),
    }
}
