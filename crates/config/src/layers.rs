//! Settings come in layers: flags override environment variables, which override the config file, which overrides
//! defaults. The file's values join the command line as flags, so that rules between flags also apply to them.

use std::any::TypeId;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use rustix::process::geteuid;
use serde::Serialize;

use super::commands::{Needs, SettingsFrom};
use super::engines::table_settings;
use super::environment::{STARTED_AGAIN, check_variables, is_empty_variable, variables_with};
use super::file::{CONFIG_FILE, ConfigFile, EngineTable, FileOrigin, FileSetting, Value, nearest};
use super::in_force::SettingsInForce;
use super::installation::Installation;
use super::presets::{PresetFile, PresetTable};
use tintype_domain::string_enum;

/// Prefix of all settings' environment variables.
const PREFIX: &str = "TINTYPE_";
/// The hidden flag for `[engine.NAME]` tables.
pub(super) const TABLES: &str = "engine_table";
/// The hidden flag for presets.
const PRESET_FILE: &str = "preset_file";
const MASK: &str = "********";

/// The command line after reading the environment and the config file.
#[derive(Debug)]
pub struct CommandLine {
    /// All flags' values.
    pub matches: ArgMatches,
    /// What the chosen command needs.
    pub needs: Needs,
    /// The chosen command's settings.
    pub settings: Vec<ShownSetting>,
    /// The server whose settings the command uses.
    pub adopted: AdoptedSettings,
    /// The settings of the server that the command runs.
    pub in_force: SettingsInForce,
    /// A message for each environment variable that looks like a setting but isn't one.
    pub unknown_variables: Vec<String>,
}

/// The server whose settings a command uses.
#[derive(Debug, Clone, Default)]
pub struct AdoptedSettings {
    /// Where the settings come from, such as `the running server's (process 7)`; `None` if the command uses its own.
    pub origin: Option<String>,
    /// Whether that server runs: the settings may also come from a stopped unit.
    pub is_running: bool,
    /// A message for the operator if this user can't read the server's settings.
    pub unread: Option<String>,
    /// Whether this command's environment names another database, which the server's overrides.
    pub other_database: bool,
    /// A message for the operator if the config file cannot be used, and the command does without it.
    pub unused_file: Option<String>,
    /// Whether the settings include those that the server read from its config file.
    is_complete: bool,
    /// Where relative paths in the server's config file start.
    directory: Option<PathBuf>,
}

/// A setting, its value and its origin, without secrets.
#[derive(Debug, Serialize)]
pub struct ShownSetting {
    /// Name, the same as its flag's.
    pub name: String,
    /// Values as written; `None` if it is not set.
    pub value: Option<Vec<String>>,
    /// The layer that the value comes from.
    pub source: Source,
    /// The environment variable, or the file with the line.
    pub origin: Option<String>,
}

string_enum! {
    /// A layer of settings.
    pub enum Source: "source" {
        /// A flag of this command.
        Flag = "flag",
        /// An environment variable.
        Environment = "environment",
        /// The config file.
        File = "file",
        /// Nothing sets it.
        Default = "default",
    }
}

/// The settings cannot be used.
#[derive(Debug)]
pub enum SettingsError {
    /// The command line cannot be parsed, or asks for help. The notes name config file lines that were involved.
    Usage(clap::Error, Vec<String>),
    /// The config file cannot be read: a message for the operator.
    File(String),
}

impl From<clap::Error> for SettingsError {
    fn from(error: clap::Error) -> Self {
        Self::Usage(error, Vec::new())
    }
}

/// A flag that has an environment variable, so it can also be set in the config file.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) name: String,
    arg: Arg,
}

impl Setting {
    pub(super) fn of(arg: &Arg) -> Option<Self> {
        let variable = arg.get_env()?.to_str()?.strip_prefix(PREFIX)?;
        Some(Self { name: variable.to_lowercase().replace('_', "-"), arg: arg.clone() })
    }

    /// A flag under another name.
    pub(super) fn named(name: &str, arg: &Arg) -> Self {
        Self { name: name.to_owned(), arg: arg.clone() }
    }

    pub(super) fn variable(&self) -> String {
        variable_of(&self.name)
    }

    pub(super) fn long(&self) -> &str {
        self.arg.get_long().unwrap_or(&self.name)
    }

    /// Whether each value is the path of a file or directory.
    fn is_path(&self) -> bool {
        self.arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
    }

    /// A value with paths that do not depend on the process's directory.
    pub(super) fn within(&self, directory: &Path, value: String) -> String {
        let joined = |path: &str| directory.join(path).to_string_lossy().into_owned();
        match (self.long(), value.split_once(':')) {
            // A bare name is looked for in PATH.
            ("engine-program", _) if !value.contains('/') => value,
            // One or several files, each with a weight or a word.
            ("engine-lora" | "engine-embedding", _) => value.split(',').map(joined).collect::<Vec<_>>().join(","),
            ("database" | "files", Some((scheme @ ("sqlite" | "file"), path))) => format!("{scheme}:{}", joined(path)),
            _ if self.is_path() => joined(&value),
            _ => value,
        }
    }

    pub(super) fn default(&self) -> Option<&OsStr> {
        self.arg.get_default_values().first().map(AsRef::as_ref)
    }

    /// Whether the command line has this flag.
    pub(super) fn is_flag_of(&self, matches: &ArgMatches) -> bool {
        self.source(matches) == Some(ValueSource::CommandLine)
    }

    /// The values as written; `None` if the flag is missing or its value isn't UTF-8.
    pub(super) fn raw(&self, matches: &ArgMatches) -> Option<Vec<String>> {
        let id = self.arg.get_id().as_str();
        if self.is_switch() {
            return Some(vec![matches.try_get_one::<bool>(id).ok()??.to_string()]);
        }
        matches.try_get_raw(id).ok()??.map(|value| value.to_str().map(str::to_owned)).collect()
    }

    fn value_of_variable(&self, texts: Vec<String>) -> Value {
        match texts.first() {
            Some(text) if self.is_switch() => {
                Value::Switch(!matches!(text.to_lowercase().as_str(), "" | "n" | "no" | "f" | "false" | "off" | "0"))
            }
            _ => Value::Texts(texts),
        }
    }

    pub(super) fn is_switch(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::SetTrue)
    }

    pub(super) fn takes_many(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    /// Whether each value is written `NAME=VALUE`, so that the config file can contain them as a table.
    pub(super) fn takes_pairs(&self) -> bool {
        let is_pair = |name: &clap::builder::Str| name.contains('=');
        self.takes_many() && self.arg.get_value_names().is_some_and(|names| names.iter().any(is_pair))
    }

    pub(super) fn check(&self, text: &str) -> Result<(), String> {
        let alone = Arg::new("value").action(ArgAction::Append).value_parser(self.arg.get_value_parser().clone());
        let alone = self.arg.get_value_delimiter().into_iter().fold(alone, Arg::value_delimiter);
        let parsed = Command::new("tintype").no_binary_name(true).arg(alone.long("value"));
        parsed.try_get_matches_from([format!("--value={text}")]).map(drop).map_err(|error| {
            let possible = self.arg.get_possible_values();
            let names: Vec<_> = possible.iter().map(clap::builder::PossibleValue::get_name).collect();
            match error.source() {
                Some(reason) => format!("{}: {reason}", self.name),
                None if names.is_empty() => format!("{} cannot be {text:?}", self.name),
                None => format!("{} cannot be {text:?}: choose one of {}", self.name, names.join(", ")),
            }
        })
    }

    pub(super) fn flags(&self, value: &Value) -> Vec<String> {
        match value {
            Value::Switch(true) => vec![format!("--{}", self.long())],
            Value::Switch(false) => Vec::new(),
            Value::Texts(texts) => texts.iter().map(|text| format!("--{}={text}", self.long())).collect(),
        }
    }

    fn is_secret(&self) -> bool {
        self.arg.is_hide_env_values_set()
    }

    /// Whether a flag or an environment variable sets it.
    pub(super) fn is_explicit(&self, matches: &ArgMatches) -> bool {
        self.source(matches).is_some_and(|source| source != ValueSource::DefaultValue)
    }

    fn source(&self, matches: &ArgMatches) -> Option<ValueSource> {
        matches.value_source(self.arg.get_id().as_str())
    }

    fn value(&self, matches: &ArgMatches) -> Option<Vec<String>> {
        let id = self.arg.get_id().as_str();
        if self.is_switch() {
            return Some(vec![matches.get_flag(id).to_string()]);
        }
        Some(matches.get_raw(id)?.map(|value| self.masked(value.to_string_lossy().into_owned())).collect())
    }

    fn masked(&self, value: String) -> String {
        if self.is_secret() && !value.starts_with("sqlite:") { MASK.into() } else { value }
    }
}

fn variable_of(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"))
}

/// Reads the command line, the environment and the config file.
///
/// # Errors
/// [`SettingsError`]. A request for help or the version is one too.
pub fn read(command: Command, arguments: &[OsString]) -> Result<CommandLine, SettingsError> {
    let command = taking_negative_numbers(command);
    let mut known = command.clone();
    known.build();
    let set = without_variables(command, &is_empty_variable);
    let (set, arguments, mut adopted) = with_installation(set, &known, arguments).map_err(SettingsError::File)?;
    let arguments = &arguments;
    // This pass finds the command and the config file. The second one repeats its errors, including the file.
    let first = match set.clone().ignore_errors(true).try_get_matches_from(arguments) {
        Ok(first) => first,
        Err(error) => return Err(set.try_get_matches_from(arguments).err().unwrap_or(error).into()),
    };
    check_variables(PREFIX).map_err(SettingsError::File)?;
    let (of_command, matches) = leaf(&known, &first);
    let settings: Vec<_> = of_command.get_arguments().filter_map(Setting::of).collect();
    check_pairs(&settings, matches)?;
    let file = file_in_use(&first, &known, &mut adopted).map_err(SettingsError::File)?;
    let entries = file.iter().flat_map(|file| &file.entries);
    let added: Vec<(&Setting, &FileSetting)> = entries
        .filter_map(|entry| settings.iter().find(|setting| setting.name == entry.name).map(|setting| (setting, entry)))
        .filter(|(setting, _)| !setting.is_explicit(matches))
        .filter(|(setting, _)| {
            let partner = partner(setting, &settings);
            !partner.is_some_and(|partner| partner.is_explicit(matches))
        })
        .collect();
    // A secret in a flag overrides one in the environment, no matter which of the two forms each has.
    let outdone: Vec<_> = settings
        .iter()
        .filter(|setting| setting.source(matches) == Some(ValueSource::EnvVariable))
        .filter(|setting| {
            let partner = partner(setting, &settings);
            partner.is_some_and(|partner| partner.source(matches) == Some(ValueSource::CommandLine))
        })
        .map(|setting| OsString::from(setting.variable()))
        .collect();
    let set = without_variables(set, &|variable| outdone.iter().any(|name| name == variable));
    let has_engines = of_command.get_arguments().any(|arg| arg.get_id() == TABLES);
    let tables: &[_] = file.as_ref().filter(|_| has_engines).map_or(&[], |file| &file.engines);
    let takes_presets = of_command.get_arguments().any(|arg| arg.get_id() == PRESET_FILE);
    let preset_file = takes_presets.then(|| preset_file(&first, file.as_ref())).flatten();
    let presets = file.iter().filter(|_| takes_presets).flat_map(|file| file.presets.iter().map(PresetTable::flag));
    let with_file = with_flags(arguments, preset_file.into_iter().chain(presets));
    let matches = set.try_get_matches_from(with_entries(&with_file, &added, tables)).map_err(|error| {
        let text = error.to_string();
        let taking_part = added.iter().filter(|(setting, _)| text.contains(&format!("--{}", setting.long())));
        let note = |(setting, entry): &(&Setting, &FileSetting)| {
            format!("--{} is set in {}", setting.long(), place(file.as_ref(), entry))
        };
        // Only a setting's value can come from elsewhere: other mistakes are on the command line.
        let at_fault = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(arg)) => arg.split(' ').next().and_then(|flag| flag.strip_prefix("--")),
            _ => None,
        };
        let is_setting = settings.iter().any(|setting| Some(setting.long()) == at_fault);
        let origin = adopted.origin.iter().filter(|_| is_setting);
        let origin = origin.map(|origin| format!("the settings are {origin}"));
        SettingsError::Usage(error, taking_part.map(note).chain(origin).collect())
    })?;
    let (command, of_command) = leaf(&known, &matches);
    let in_force = SettingsInForce::of(command, of_command);
    let shown = settings.iter().filter(|setting| !setting.arg.is_hide_set() && setting.name != "config");
    let settings = shown.map(|setting| show(setting, of_command, &added, file.as_ref()));
    let of_tables = tables.iter().flat_map(|table| show_table(table, file.as_ref()));
    let of_presets = file.iter().filter(|_| takes_presets).flat_map(show_presets);
    let settings = settings.chain(of_tables).chain(of_presets).collect();
    let needs = Needs::named(&matches)
        .ok_or_else(|| SettingsError::File("this command is missing in the list of what commands need".into()))?;
    Ok(CommandLine { matches, needs, settings, adopted, in_force, unknown_variables: unknown_variables(&known) })
}

fn show(
    setting: &Setting,
    matches: &ArgMatches,
    added: &[(&Setting, &FileSetting)],
    file: Option<&ConfigFile>,
) -> ShownSetting {
    let entry = added.iter().find(|(added, _)| added.name == setting.name).map(|(_, entry)| *entry);
    let (source, origin) = match (entry, setting.source(matches)) {
        (Some(entry), _) => (Source::File, Some(place(file, entry))),
        (None, Some(ValueSource::CommandLine)) => (Source::Flag, None),
        (None, Some(ValueSource::EnvVariable)) => (Source::Environment, Some(setting.variable())),
        (None, _) => (Source::Default, None),
    };
    ShownSetting { name: setting.name.clone(), value: setting.value(matches), source, origin }
}

fn show_table(table: &EngineTable, file: Option<&ConfigFile>) -> Vec<ShownSetting> {
    let settings = table_settings();
    let show = |entry: &FileSetting| {
        let setting = settings.iter().find(|setting| setting.name == entry.name);
        let masked = |text: &String| setting.map_or_else(|| MASK.to_owned(), |setting| setting.masked(text.clone()));
        show_entry(&format!("engine.{}", table.name), entry, file, masked)
    };
    table.entries.iter().map(show).collect()
}

fn show_presets(file: &ConfigFile) -> Vec<ShownSetting> {
    let show = |table: &PresetTable, entry: &FileSetting| {
        show_entry(&format!("preset.{}", table.preset.name), entry, Some(file), String::clone)
    };
    file.presets.iter().flat_map(|table| table.entries.iter().map(|entry| show(table, entry))).collect()
}

fn show_entry(
    table: &str,
    entry: &FileSetting,
    file: Option<&ConfigFile>,
    shown: impl Fn(&String) -> String,
) -> ShownSetting {
    let value = match &entry.value {
        Value::Switch(on) => vec![on.to_string()],
        Value::Texts(texts) => texts.iter().map(shown).collect(),
    };
    let (name, origin) = (format!("{table}.{}", entry.name), place(file, entry));
    ShownSetting { name, value: Some(value), source: Source::File, origin: Some(origin) }
}

/// The flag with the config file, for a server that reloads its presets.
fn preset_file(matches: &ArgMatches, file: Option<&ConfigFile>) -> Option<String> {
    let named = matches.try_get_one::<PathBuf>("config").ok().flatten();
    let path = named.cloned().unwrap_or_else(|| data_of(matches).join(CONFIG_FILE));
    PresetFile::new(path, named.is_some(), file).flag()
}

fn data_of(matches: &ArgMatches) -> &Path {
    matches.try_get_one::<PathBuf>("data").ok().flatten().map_or(Path::new("."), PathBuf::as_path)
}

fn place(file: Option<&ConfigFile>, entry: &FileSetting) -> String {
    let path = file.map_or_else(String::new, |file| file.path.display().to_string());
    format!("{path}:{}", entry.line)
}

/// The name of a secret's other form: `x-file` for `x`, and `x` for `x-file`.
pub(super) fn other_form(name: &str) -> String {
    name.strip_suffix("-file").map_or_else(|| format!("{name}-file"), str::to_owned)
}

fn partner<'a>(setting: &Setting, settings: &'a [Setting]) -> Option<&'a Setting> {
    let name = other_form(&setting.name);
    settings.iter().find(|other| other.name == name)
}

/// Rejects a secret that is given in both of its forms in the same layer: one would silently have no effect.
fn check_pairs(settings: &[Setting], matches: &ArgMatches) -> Result<(), SettingsError> {
    for setting in settings.iter().filter(|setting| setting.name.ends_with("-file")) {
        let Some(secret) = partner(setting, settings) else { continue };
        let [one, other] = match (secret.source(matches), setting.source(matches)) {
            (Some(ValueSource::CommandLine), Some(ValueSource::CommandLine)) => {
                [secret, setting].map(|setting| format!("--{}", setting.long()))
            }
            (Some(ValueSource::EnvVariable), Some(ValueSource::EnvVariable)) => {
                [secret, setting].map(Setting::variable)
            }
            _ => continue,
        };
        return Err(SettingsError::File(format!("{one} and {other} exclude each other: set only one of them")));
    }
    Ok(())
}

fn with_entries(arguments: &[OsString], entries: &[(&Setting, &FileSetting)], tables: &[EngineTable]) -> Vec<OsString> {
    let flags = entries.iter().flat_map(|(setting, entry)| setting.flags(&entry.value));
    let tables = tables.iter().map(|table| format!("--engine-table={}", table.argument));
    with_flags(arguments, flags.chain(tables))
}

/// The command line with more flags, inserted before `--`, after which nothing is parsed as a flag.
fn with_flags(arguments: &[OsString], flags: impl Iterator<Item = String>) -> Vec<OsString> {
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let added = flags.map(OsString::from);
    arguments[..end].iter().cloned().chain(added).chain(arguments[end..].iter().cloned()).collect()
}

/// Lets a command's flags take negative numbers, so that their parsers can say what is allowed. Otherwise clap calls
/// such a number an unknown flag.
fn taking_negative_numbers(command: Command) -> Command {
    let takes = |arg: Arg| match arg.is_positional() || !arg.get_action().takes_values() {
        true => arg,
        false => arg.allow_negative_numbers(true),
    };
    command.mut_args(takes).mut_subcommands(taking_negative_numbers)
}

/// Applies the settings of the server on the command's data directory. They override the command's own environment,
/// which may belong to another installation; the command's own flags override them.
///
/// # Errors
/// A message for the operator: the settings cannot be read, so the command could change a database that no server uses.
fn with_installation(
    command: Command,
    known: &Command,
    arguments: &[OsString],
) -> Result<(Command, Vec<OsString>, AdoptedSettings), String> {
    let mut arguments = arguments.to_vec();
    let none = AdoptedSettings::default();
    // The final parse comes later and reports its errors.
    let Ok(first) = command.clone().ignore_errors(true).try_get_matches_from(&arguments) else {
        return Ok((command, arguments, none));
    };
    let Some(needs) = Needs::named(&first) else { return Ok((command, arguments, none)) };
    let creates = needs.settings == SettingsFrom::New;
    if !needs.is_beside_server() && !creates {
        return Ok((command, arguments, none));
    }
    let (of_command, matches) = leaf(known, &first);
    let mut data = first.try_get_one::<PathBuf>("data").ok().flatten().cloned().unwrap_or_default();
    if first.value_source("data") == Some(ValueSource::DefaultValue)
        && !data.exists()
        && let Some(of_units) = Installation::data_of_units(known).filter(|data| creates || data.is_dir())
    {
        arguments = with_flags(&arguments, std::iter::once(format!("--data={}", of_units.display())));
        data = of_units;
    }
    if creates {
        return Ok((command, arguments, none));
    }
    let settings: Vec<_> = of_command.get_arguments().filter_map(Setting::of).collect();
    let is_named = |setting: &Setting| setting.is_flag_of(matches);
    let mut installation = match Installation::find(&data, known, needs.is_of_any_owner()) {
        Ok(Some(installation)) => installation,
        Ok(None) => return Ok((command, arguments, none)),
        Err(unread) => {
            let is_database = |setting: &&Setting| ["database", "database-file"].contains(&setting.name.as_str());
            if !needs.database || settings.iter().filter(is_database).any(is_named) {
                return Ok((command, arguments, AdoptedSettings { unread: Some(unread), ..none }));
            }
            let reader = reader_of_servers();
            return Err(format!("{unread}: run this command as {reader}, or name the database with --database"));
        }
    };
    // A file that this command names also counts as it is now.
    if needs.settings == SettingsFrom::NextStart || first.value_source("config") == Some(ValueSource::CommandLine) {
        installation.in_force = None;
    }
    let has_tables = of_command.get_arguments().any(|arg| arg.get_id() == TABLES);
    let tables = installation.tables().into_iter().filter(|_| has_tables);
    let adopted =
        settings.iter().filter(|setting| !is_named(setting) && !partner(setting, &settings).is_some_and(is_named));
    let flags: Vec<_> = adopted
        .filter_map(|setting| Some(setting.flags(&setting.value_of_variable(installation.values(setting)?))))
        .flatten()
        .chain(tables.map(|table| format!("--engine-table={table}")))
        .collect();
    let database = settings.iter().find(|setting| setting.name == "database");
    let other_database = database.is_some_and(|setting| names_another(setting, matches, &installation));
    let of_servers = Installation::variables_of_servers(known);
    let command = without_variables(command, &|variable| of_servers.iter().any(|name| OsStr::new(name) == variable));
    let found = AdoptedSettings {
        origin: Some(installation.origin),
        is_running: installation.is_running,
        other_database,
        is_complete: installation.in_force.is_some(),
        directory: Some(installation.directory),
        ..none
    };
    Ok((command, with_flags(&arguments, flags.into_iter()), found))
}

/// Whether the command's environment has another value for a setting than the server.
fn names_another(setting: &Setting, matches: &ArgMatches, installation: &Installation) -> bool {
    if matches.value_source(&setting.name) != Some(ValueSource::EnvVariable) {
        return false;
    }
    let Some(own) = matches.get_one::<String>(&setting.name) else { return false };
    let here = std::env::current_dir().unwrap_or_default();
    installation.values(setting) != Some(vec![setting.within(&here, own.clone())])
}

/// The config file, without what a running server has taken from it.
///
/// # Errors
/// A message for the operator: the file cannot be used. While a server runs, most commands do without it.
fn file_in_use(
    matches: &ArgMatches,
    command: &Command,
    adopted: &mut AdoptedSettings,
) -> Result<Option<ConfigFile>, String> {
    let is_beside = adopted.is_running || adopted.unread.is_some();
    let needs_none = Needs::named(matches).is_some_and(|it| it.settings == SettingsFrom::Server && !it.database);
    match config_file(matches, command, adopted.directory.as_deref()) {
        Ok(Some(mut file)) if adopted.is_complete => {
            let of_servers = Installation::variables_of_servers(command);
            file.entries.retain(|entry| !of_servers.contains(&variable_of(&entry.name)));
            file.engines.clear();
            Ok(Some(file))
        }
        Ok(file) => Ok(file),
        Err(fault) if adopted.is_complete || (is_beside && needs_none) => {
            adopted.unused_file = Some(fault);
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

/// The config file named by `--config`, or the one in the data directory.
fn config_file(
    matches: &ArgMatches,
    command: &Command,
    directory: Option<&Path>,
) -> Result<Option<ConfigFile>, String> {
    let needs = Needs::named(matches).filter(|needs| needs.settings != SettingsFrom::Environment);
    let Some(needs) = needs else { return Ok(None) };
    let mut settings = Vec::new();
    collect_settings(command, &mut settings);
    match matches.try_get_one::<PathBuf>("config").ok().flatten() {
        Some(named) => ConfigFile::read(named, FileOrigin::Named, &settings, directory),
        None => {
            let origin = FileOrigin::DataDirectory { any_owner: needs.is_of_any_owner() };
            ConfigFile::read(&data_of(matches).join(CONFIG_FILE), origin, &settings, directory)
        }
    }
}

/// All commands' settings, each once.
fn collect_settings(command: &Command, found: &mut Vec<Setting>) {
    for setting in command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Setting::of) {
        if !found.iter().any(|known| known.name == setting.name) {
            found.push(setting);
        }
    }
    for command in command.get_subcommands() {
        collect_settings(command, found);
    }
}

/// Suffixes of variables that Kubernetes and Docker set for a service named like this program.
const OF_ORCHESTRATORS: [&str; 8] =
    ["_PORT", "_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_TCP_ADDR", "_TCP_PORT", "_TCP_PROTO", "_NAME"];

fn unknown_variables(command: &Command) -> Vec<String> {
    fn collect(command: &Command, found: &mut Vec<String>) {
        found.extend(command.get_arguments().filter_map(Setting::of).map(|setting| setting.variable()));
        command.get_subcommands().for_each(|command| collect(command, found));
    }
    let mut known = vec![STARTED_AGAIN.to_owned()];
    collect(command, &mut known);
    let is_other =
        |name: &String| OF_ORCHESTRATORS.iter().any(|end| name.ends_with(end)) || name.contains("_SERVICE_PORT_");
    let unknown = variables_with(PREFIX).into_iter().filter(|name| !known.contains(name) && !is_other(name));
    let message = |name: String| {
        // All of them have the same prefix.
        let ends = known.iter().filter_map(|known| known.strip_prefix(PREFIX));
        match nearest(name.trim_start_matches(PREFIX), ends) {
            Some(end) => format!("{name} is set, but there is no such setting: did you mean {PREFIX}{end}?"),
            None => format!("{name} is set, but there is no such setting"),
        }
    };
    unknown.map(message).collect()
}

pub(super) fn leaf<'a>(command: &'a Command, matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    match matches.subcommand() {
        Some((name, matches)) => {
            command.find_subcommand(name).map_or((command, matches), |command| leaf(command, matches))
        }
        None => (command, matches),
    }
}

/// Who can read a server's environment. In a container without capabilities, root cannot.
pub fn reader_of_servers() -> &'static str {
    if geteuid().is_root() { "the user of that process" } else { "root" }
}

/// The command without some environment variables.
pub(super) fn without_variables(command: Command, unwanted: &dyn Fn(&OsStr) -> bool) -> Command {
    command
        .mut_args(|arg| if arg.get_env().is_some_and(unwanted) { arg.env(None::<&str>) } else { arg })
        .mut_subcommands(|command| without_variables(command, unwanted))
}
