//! The help of commands. The global options show where they matter: in the help of the program and of its servers.

use clap::{Arg, Command};
use tintype_config::SERVERS;

const POINTER: &str = "Global options, such as --data and --config: `tintype help`";

/// The command line. Commands other than servers take the global options without showing them in their help.
pub(super) fn without_global_options(command: Command) -> Command {
    let global = command.get_arguments().filter(|arg| arg.is_global_set()).cloned();
    let hidden: Vec<_> = global.map(|arg| arg.hide_short_help(true).hide_long_help(true)).collect();
    command.mut_subcommands(|inner| if SERVERS.contains(&inner.get_name()) { inner } else { hiding(inner, &hidden) })
}

/// Hides a command's global options by giving it its own, hidden copies: Clap only adds the visible ones where there
/// are none.
fn hiding(command: Command, hidden: &[Arg]) -> Command {
    let after = match command.get_after_help() {
        Some(text) => format!("{text}\n\n{POINTER}"),
        None => POINTER.to_owned(),
    };
    command.args(hidden).after_help(after).mut_subcommands(|inner| hiding(inner, hidden))
}
