//! The config file, `tintype.toml`: the settings under the names of their flags.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use toml::de::{DeTable, DeValue};

use super::layers::Setting;

/// Name of the config file in the data directory.
pub const CONFIG_FILE: &str = "tintype.toml";
/// Largest config file, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;
/// Names at least this similar to an unknown one are suggested, from 0 to 1.
const SIMILAR: f64 = 0.7;
/// The permission of all other users to read a file.
const READ_BY_ALL: u32 = 0o004;

/// Why a config file may not hold a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The file that `--config` names.
    Named,
    /// The file in the data directory, which cannot say where that directory is.
    DataDirectory {
        /// Whether the file may be any user's, because this process becomes the owner of the data before it acts on it.
        any_owner: bool,
    },
}

/// A config file that was read and checked.
#[derive(Debug)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) entries: Vec<Entry>,
}

/// One line of a config file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) value: Value,
}

/// The value of a setting.
#[derive(Debug)]
pub(super) enum Value {
    /// Of a flag that takes no value.
    Switch(bool),
    /// Of a flag that takes values, each as it is written on a command line.
    Texts(Vec<String>),
}

impl ConfigFile {
    /// Reads a config file whose names are those of `settings`. `None` if there is none in the data directory.
    ///
    /// # Errors
    /// A sentence for the operator that names the file and, where there is one, the line.
    pub(super) fn read(path: &Path, place: Place, settings: &[Setting]) -> Result<Option<Self>, String> {
        let (text, mode) = match text(path, place) {
            Ok(found) => found,
            Err(error) if place != Place::Named && is_out_of_reach(path, &error) => return Ok(None),
            Err(error) => return Err(format!("cannot read the config file {}: {error}", path.display())),
        };
        let at = |offset: usize| text[..offset.min(text.len())].matches('\n').count() + 1;
        let refuse = |line: usize, reason: String| format!("{}, line {line}: {reason}", path.display());
        let table = DeTable::parse(&text).map_err(|error| {
            // The rest of the message quotes the line, which may hold a secret.
            let reason = error.message().lines().next().unwrap_or("not valid TOML").to_owned();
            refuse(error.span().map_or(1, |span| at(span.start)), reason)
        })?;
        let mut entries = Vec::new();
        for (name, value) in table.get_ref() {
            let line = at(name.span().start);
            let name = name.get_ref().as_ref();
            let value = setting(name, place, settings).and_then(|setting| read_value(setting, value.get_ref()));
            entries.push(Entry { name: name.to_owned(), line, value: value.map_err(|reason| refuse(line, reason))? });
        }
        let file = Self { path: path.to_owned(), entries };
        file.check_pairs().and_then(|()| file.check_secrets(mode)).map_err(|(line, reason)| refuse(line, reason))?;
        Ok(Some(file))
    }

    /// The entry of a setting.
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Refuses a secret beside the file that holds it.
    fn check_pairs(&self) -> Result<(), (usize, String)> {
        let both = self.entries.iter().find(|entry| self.entry(&format!("{}-file", entry.name)).is_some());
        both.map_or(Ok(()), |Entry { name, line, .. }| {
            Err((*line, format!("{name} and {name}-file exclude each other")))
        })
    }

    /// Refuses a secret that every user of the machine can read.
    fn check_secrets(&self, mode: u32) -> Result<(), (usize, String)> {
        let open = mode & READ_BY_ALL != 0;
        match self.entries.iter().find(|entry| open && entry.holds_secret()) {
            Some(Entry { name, line, .. }) => Err((
                *line,
                format!(
                    "{name} holds a secret, and every user of this machine can read the file: \
                     run `chmod o-r {}`, or move the secret to a file of its own and set {name}-file",
                    self.path.display()
                ),
            )),
            None => Ok(()),
        }
    }
}

impl Entry {
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

/// The content of a file and its mode. The settings can name programs to run and keys to send, so a file that is merely
/// found must be of root or of this user.
fn text(path: &Path, place: Place) -> std::io::Result<(String, u32)> {
    let mut options = OpenOptions::new();
    options.read(true);
    if place != Place::Named {
        // The owner of the directory may have put a pipe there, whose opening would wait for a writer.
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    let (mode, owner) = (metadata.mode(), metadata.uid());
    if place != Place::Named && !metadata.is_file() {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "it is not a file"));
    }
    if place == (Place::DataDirectory { any_owner: false }) && ![0, geteuid().as_raw()].contains(&owner) {
        let reason = format!("it belongs to user {owner}: set --config to it if you trust it");
        return Err(std::io::Error::new(ErrorKind::PermissionDenied, reason));
    }
    let mut text = String::new();
    // The size in the metadata is no limit: it is 0 for a pipe or a device.
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(std::io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {MAX_BYTES} bytes"))),
        false => Ok((text, mode)),
    }
}

/// Whether there is no file, or its directory is closed to this user: then the command fails at the data itself, or,
/// like `tintype generate`, needs none of it.
fn is_out_of_reach(path: &Path, error: &std::io::Error) -> bool {
    let closed = || path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || closed()
}

fn setting<'a>(name: &str, place: Place, settings: &'a [Setting]) -> Result<&'a Setting, String> {
    if name == "config" || (name == "data" && place != Place::Named) {
        return Err(format!("{name} cannot be set in this file, which is found by it: use --{name}"));
    }
    settings.iter().find(|setting| setting.name == name).ok_or_else(|| {
        let similar = settings.iter().map(|setting| (strsim::jaro_winkler(name, &setting.name), &setting.name));
        let nearest = similar.max_by(|(one, _), (other, _)| one.total_cmp(other));
        match nearest.filter(|(similarity, _)| *similarity >= SIMILAR) {
            Some((_, nearest)) => format!("there is no setting {name:?}: did you mean {nearest:?}?"),
            None => format!("there is no setting {name:?}: `tintype config show` lists all of them"),
        }
    })
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
        value => vec![one_text(name, value)?],
    };
    texts.iter().try_for_each(|text| setting.check(text))?;
    Ok(Value::Texts(texts))
}

/// A value as it is written on a command line.
fn one_text(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Table(_) => Err(format!("{name} takes a value, not a table: settings are written as NAME = VALUE")),
        _ => Err(format!("{name} takes a text in quotes or a number")),
    }
}
