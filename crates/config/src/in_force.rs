//! The settings that a server started with. Its config file may have changed since, so commands beside it take the
//! settings from here.
//!
//! They are in a file in memory that the server keeps open. Only who can read the server's environment finds it, in
//! /proc; it disappears with the process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;

use clap::{ArgMatches, Command};
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::layers::{Setting, TABLES};

/// The file's name.
const NAME: &str = "tintype-settings";
/// Largest file, in bytes.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// A server's settings: all that are not defaults, from whichever layer.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct SettingsInForce {
    /// Values as written, by setting name.
    settings: BTreeMap<String, Vec<String>>,
    /// The `[engine.NAME]` tables in their form on the command line.
    pub(super) tables: Vec<String>,
}

// Some are secrets.
tintype_domain::opaque_debug!(SettingsInForce);

/// Shows the settings to commands until it is dropped.
#[derive(Debug)]
pub struct PublishedSettings(#[expect(dead_code, reason = "it is read through /proc")] File);

impl SettingsInForce {
    pub(super) fn of(command: &Command, matches: &ArgMatches) -> Self {
        let explicit = command.get_arguments().filter_map(Setting::of).filter(|setting| setting.is_explicit(matches));
        let tables = matches.try_get_raw(TABLES).ok().flatten().into_iter().flatten();
        Self {
            settings: explicit.filter_map(|setting| Some((setting.name.clone(), setting.raw(matches)?))).collect(),
            tables: tables.filter_map(|table| table.to_str().map(str::to_owned)).collect(),
        }
    }

    /// These settings with the addresses that the server listens on.
    #[must_use]
    pub fn listening_on(&self, addresses: Vec<String>) -> Self {
        let mut settings = self.clone();
        settings.settings.insert("listen".to_owned(), addresses);
        settings
    }

    /// Shows the settings to the commands of this user and of root.
    ///
    /// # Errors
    /// The system refuses a file in memory.
    pub fn show(&self) -> io::Result<PublishedSettings> {
        // Some machines refuse a file that could be executed. Kernels before 6.3 do not know the flag.
        let file = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL).or_else(|error| match error {
            Errno::INVAL => memfd_create(NAME, MemfdFlags::CLOEXEC),
            error => Err(error),
        })?;
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(PublishedSettings(file))
    }

    /// The settings of another process, by its directory in /proc. `None` if it shows none or is just starting.
    pub(super) fn of_process(entry: &File) -> Option<Self> {
        let opened = fs::read_dir(format!("/proc/self/fd/{}/fd", entry.as_raw_fd())).ok()?.flatten();
        let is_it =
            |target: &str| target.strip_prefix("/memfd:").is_some_and(|name| name.split(' ').next() == Some(NAME));
        let read = |path| {
            let mut bytes = Vec::new();
            File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
            serde_json::from_slice(&bytes).ok()
        };
        let mut found = opened
            .map(|opened| opened.path())
            .filter(|path| fs::read_link(path).is_ok_and(|target| target.to_str().is_some_and(is_it)));
        found.find_map(read)
    }

    pub(super) fn values(&self, name: &str) -> Option<Vec<String>> {
        self.settings.get(name).cloned()
    }
}
