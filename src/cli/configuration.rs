//! `tintype config` shows the settings.

use clap::{Args, Subcommand};

use super::printing::JsonArgs;
use super::{Outcome, show, table};
use tintype_config::{ClientSettings, ServerSettings, ShownSetting};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Show the settings that a server started here would have, and where each comes from. Takes the flags of `serve`
    /// and `generate`
    Show(Box<ShowArgs>),
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    _server: ServerSettings,
    #[command(flatten)]
    _client: ClientSettings,
    #[command(flatten)]
    json: JsonArgs,
}

pub(super) fn run(command: ConfigCommand, settings: &[ShownSetting]) -> Outcome {
    let ConfigCommand::Show(args) = command;
    show(args.json, &settings, || table(["SETTING", "VALUE", "SOURCE"], settings.iter().map(row)))
}

fn row(setting: &ShownSetting) -> [String; 3] {
    let value = setting.value.as_ref().map_or_else(|| "-".to_owned(), |values| values.join(", "));
    let source = setting.source;
    let origin = setting.origin.as_ref().map_or_else(|| source.to_string(), |origin| format!("{source} {origin}"));
    [setting.name.clone(), value, origin]
}
