//! What each command needs: settings, a user, a database. This is the only list of commands by what they need.

use clap::ArgMatches;
use rustix::process::geteuid;
use tintype_system::owner::RootRight;

/// The commands that run a server, in the order of how many settings they have.
pub const SERVERS: [&str; 3] = ["serve", "api", "worker"];

/// What a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Where its settings come from.
    pub(super) settings: SettingsFrom,
    /// The right that root keeps when it becomes the data's owner, before the command acts. `None` if root stays root;
    /// then the settings must not come from another user.
    pub as_owner: Option<RootRight>,
    /// Whether it can't work without a database.
    pub database: bool,
    /// Whether it handles the signals that end commands, such as Ctrl-C.
    pub heeds_interrupts: bool,
}

/// Where a command's settings come from, unless its flags set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingsFrom {
    /// Its environment: it needs neither data nor a server.
    Environment,
    /// Its environment and the config file: it runs a server, or talks to one elsewhere.
    Own,
    /// The same, but its data directory may be the units': it creates an installation.
    New,
    /// The server on its data directory.
    Server,
    /// The same, but from the config file as it is now: it shows or tries what a next start would use.
    NextStart,
}

impl Needs {
    /// What a command needs, by its name and its subcommand's. `None` if there is no such command.
    fn of(command: &str, subcommand: Option<&str>) -> Option<Self> {
        use RootRight::{LowPorts, Nothing, ReadSource, WriteDestination};
        let (settings, as_owner, database) = match (command, subcommand) {
            ("serve" | "api" | "worker", _) => (SettingsFrom::Own, Some(LowPorts), true),
            ("restore", _) => (SettingsFrom::New, Some(ReadSource), true),
            ("migrate", _) => (SettingsFrom::Own, Some(Nothing), true),
            ("backup", _) => (SettingsFrom::Server, Some(WriteDestination), true),
            ("account" | "person" | "key" | "credits" | "usage" | "webhook" | "task" | "queue" | "files", _) => {
                (SettingsFrom::Server, Some(Nothing), true)
            }
            // The doctor reports what it couldn't read.
            ("doctor" | "health" | "model", _) | ("engine", Some("library")) => {
                (SettingsFrom::Server, Some(Nothing), false)
            }
            ("preset", _) => (SettingsFrom::NextStart, Some(Nothing), false),
            ("config", _) => (SettingsFrom::Own, Some(Nothing), false),
            ("engine" | "policy", _) => (SettingsFrom::NextStart, None, false),
            ("generate" | "get" | "mcp", _) => (SettingsFrom::Own, None, false),
            ("version" | "openapi" | "completions" | "man" | "decode-picture", _) => {
                (SettingsFrom::Environment, None, false)
            }
            _ => return None,
        };
        let heeds_interrupts = matches!(
            (command, subcommand),
            ("generate" | "get" | "backup" | "restore" | "migrate", _)
                | ("model", Some("pull" | "remove"))
                | ("engine", Some("library"))
        );
        Some(Self { settings, as_owner, database, heeds_interrupts })
    }

    /// Whether the command runs a server.
    pub fn is_server(&self) -> bool {
        self.as_owner == Some(RootRight::LowPorts)
    }

    /// Whether its settings come from the server on its data directory.
    pub(super) fn is_beside_server(&self) -> bool {
        matches!(self.settings, SettingsFrom::Server | SettingsFrom::NextStart)
    }

    /// Whether another user's settings count, because root becomes the data's owner before the command acts.
    pub(super) fn is_of_any_owner(&self) -> bool {
        self.as_owner.is_some() && geteuid().is_root()
    }

    pub(super) fn named(matches: &ArgMatches) -> Option<Self> {
        let (name, of_command) = matches.subcommand()?;
        Self::of(name, of_command.subcommand_name())
    }
}
