//! A process's engines: tables `[engine.NAME]` in the config file, or a single engine from flags.

use std::path::Path;
use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use url::Url;

use super::engine::{
    DEFAULT_PROGRAM, EngineExtra, EngineSettings, EngineTarget, engine_name, server_url, unknown_engine,
};
use super::layers::Setting;

/// Prefix of flag names, which tables omit.
const PREFIX: &str = "engine-";

/// An engine with its operator-defined name.
#[derive(Debug, Clone)]
pub struct NamedEngine {
    /// The name of its table, or the value of `--engine`.
    pub name: String,
    /// Tasks at a time, if its table limits them.
    pub slots: Option<u16>,
    /// Its settings, including its kind and servers.
    pub settings: EngineSettings,
}

/// The content of a table. In addition to these names it can contain `model` and the names of `--engine-...` flags
/// without the `--engine-` prefix.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Table {
    /// Kind of the engine
    #[arg(long, value_parser = PossibleValuesParser::new(["sketch", "diffusion", "openai", "sd-server", "comfyui"]))]
    kind: String,
    /// Its server, or several
    #[arg(long, value_parser = server_url, value_delimiter = ',')]
    url: Vec<Url>,
    /// Tasks to render at the same time
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    slots: Option<u16>,
    /// Fields of every request to its server, as a table
    #[arg(long, value_name = "JSON")]
    extra: Option<EngineExtra>,
    #[command(flatten)]
    settings: EngineSettings,
}

pub(super) fn table_settings() -> Vec<Setting> {
    let command = Table::command();
    let settings = command.get_arguments().filter_map(|arg| {
        let long = arg.get_long()?;
        let own = ["kind", "url", "slots", "extra", "model"].contains(&long);
        let name = if own { long } else { long.strip_prefix(PREFIX).filter(|_| !arg.is_hide_set())? };
        Some(Setting::named(name, arg))
    });
    settings.collect()
}

/// A table's form on the command line: its name, and flags of [`Table`].
pub(super) fn table_argument(name: &str, flags: Vec<String>) -> String {
    let all: Vec<String> = std::iter::once(name.to_owned()).chain(flags).collect();
    serde_json::to_string(&all).expect("texts are always JSON")
}

/// A table's form on the command line, with paths that do not depend on the process's directory.
pub(super) fn table_within(directory: &Path, argument: &str) -> String {
    // Only this program writes tables.
    let Ok(all) = serde_json::from_str::<Vec<String>>(argument) else { return argument.to_owned() };
    let settings = table_settings();
    let within = |flag: String| {
        let written = flag.strip_prefix("--").and_then(|flag| flag.split_once('='));
        let setting = written.and_then(|(long, _)| settings.iter().find(|setting| setting.long() == long));
        match (written, setting) {
            (Some((long, value)), Some(setting)) => format!("--{long}={}", setting.within(directory, value.to_owned())),
            _ => flag,
        }
    };
    serde_json::to_string(&all.into_iter().map(within).collect::<Vec<_>>()).expect("texts are always JSON")
}

impl FromStr for NamedEngine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all: Vec<String> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let (name, flags) = all.split_first().ok_or("a table without a name")?;
        Self::from_table(name, flags)
    }
}

impl NamedEngine {
    /// The engine of a table, from flags of [`Table`]. The environment doesn't apply to tables.
    pub(super) fn from_table(name: &str, flags: &[String]) -> Result<Self, String> {
        if !flags.iter().any(|flag| flag.starts_with("--kind=")) {
            return Err("kind is missing: set it to sketch, diffusion, openai, sd-server or comfyui".into());
        }
        let command = Table::command().mut_args(|arg| arg.env(None::<&str>));
        let matches = command.try_get_matches_from(flags).map_err(|error| error.to_string())?;
        let table = Table::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let urls: Vec<&str> = table.url.iter().map(Url::as_str).collect();
        let target = if urls.is_empty() { table.kind } else { format!("{}:{}", table.kind, urls.join(",")) };
        let target = match EngineTarget::from_str(&target)? {
            EngineTarget::Named(kind) => return Err(format!("{kind} needs the url of its server")),
            target => target,
        };
        if table.extra.is_some() && !matches!(target, EngineTarget::Servers(..) | EngineTarget::OwnSdServer) {
            return Err("extra is for servers: openai, sd-server and comfyui".into());
        }
        if let Some(name) = table.settings.built_in_only().filter(|_| target != EngineTarget::Diffusion) {
            let name = name.strip_prefix(PREFIX).unwrap_or(name);
            return Err(format!("{name} is for the built-in engine: set kind to diffusion, or leave {name} out"));
        }
        let settings = EngineSettings { engine: Some(target), engine_extra: table.extra, ..table.settings };
        Ok(Self { name: engine_name(name)?, slots: table.slots, settings })
    }
}

impl EngineSettings {
    /// The engines of a process: the one named by `--engine`, or else all tables of the config file, or else the sketch
    /// engine.
    pub fn engines(&self) -> Result<Vec<NamedEngine>, String> {
        match &self.engine {
            Some(target) => Ok(vec![self.engine_named(target)?]),
            None if self.engine_table.is_empty() => Ok(vec![self.engine_named(&EngineTarget::Sketch)?]),
            None => {
                self.refuse_flags()?;
                Ok(self.engine_table.clone())
            }
        }
    }

    /// The engine that these settings belong to, after a table or `--engine` has named it.
    pub fn target(&self) -> EngineTarget {
        self.engine.clone().unwrap_or(EngineTarget::Sketch)
    }

    /// The engine for a target: the table with this name, or an engine of this kind with these settings.
    pub fn engine_named(&self, target: &EngineTarget) -> Result<NamedEngine, String> {
        let name = target.to_string();
        if let Some(table) = self.engine_table.iter().find(|table| table.name == name) {
            self.refuse_flags()?;
            return Ok(table.clone());
        }
        if let EngineTarget::Named(name) = target {
            return Err(unknown_engine(name));
        }
        let settings = Self { engine: Some(target.clone()), engine_table: Vec::new(), ..self.clone() };
        Ok(NamedEngine { name, slots: None, settings })
    }

    /// The first given setting that engines other than the built-in one would silently ignore.
    pub fn built_in_only(&self) -> Option<&'static str> {
        let built_in = ["engine-lora", "engine-embedding", "engine-vae", "engine-prompt"];
        let given = self.given();
        built_in.into_iter().find(|name| given.iter().any(|given| given == name))
    }

    /// Given settings that only the built-in engine uses, if this is another engine. They aren't rejected, because a
    /// variable can be set for all processes before the first model is installed.
    pub fn without_effect(&self) -> Vec<String> {
        let built_in = [
            "engine-memory",
            "engine-device-memory",
            "engine-steps",
            "engine-precision",
            "engine-runtime",
            "engine-batch",
        ];
        let mut given = self.given();
        given.retain(|name| self.target() != EngineTarget::Diffusion && built_in.contains(&name.as_str()));
        given
    }

    /// Rejects settings that would have no effect, because a table has its own.
    fn refuse_flags(&self) -> Result<(), String> {
        match self.given().first() {
            None => Ok(()),
            Some(name) => Err(format!(
                "{name} has no effect on the tables [engine.NAME] of the config file: set {} in the table, or give --engine KIND[:URL]",
                name.strip_prefix(PREFIX).unwrap_or(name)
            )),
        }
    }

    fn given(&self) -> Vec<String> {
        macro_rules! given {
            (options: $($option:ident),+; lists: $($list:ident),+) => {{
                let Self { engine: _, engine_extra: _, engine_table: _, engine_program, $($option,)+ $($list,)+ } = self;
                [
                    $((stringify!($option), $option.is_some()),)+
                    $((stringify!($list), !$list.is_empty()),)+
                    ("engine-program", engine_program.as_os_str() != DEFAULT_PROGRAM),
                ]
            }};
        }
        let all = given!(
            options: engine_profile, model, engine_memory, engine_device_memory, engine_steps, engine_batch,
                engine_precision, engine_runtime, engine_vae, engine_prompt, engine_key, engine_key_file, engine_ca,
                engine_references, engine_workflow, engine_workflow_nodes;
            lists: engine_lora, engine_embedding, engine_sizes, engine_args, engine_devices
        );
        all.into_iter().filter(|(_, given)| *given).map(|(name, _)| name.replace('_', "-")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_a_table_start_in_the_directory_of_the_server() {
        let flags =
            ["--kind=sd-server", "--engine-program=sd-server", "--engine-workflow=w.json", "--engine-ca=/a.pem"];
        let lora = "--engine-lora=one.safetensors:0.5,/two.safetensors";
        let flags = flags.iter().chain([&lora]).map(|&flag| flag.to_owned()).collect();
        let found: Vec<String> =
            serde_json::from_str(&table_within(Path::new("/srv"), &table_argument("gpu", flags))).expect("JSON");
        let expected = [
            "gpu",
            "--kind=sd-server",
            // The system looks for it in PATH.
            "--engine-program=sd-server",
            "--engine-workflow=/srv/w.json",
            "--engine-ca=/a.pem",
            "--engine-lora=/srv/one.safetensors:0.5,/two.safetensors",
        ];
        assert_eq!(found, expected);
    }
}
