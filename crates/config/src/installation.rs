//! The settings that commands share with the server on their data directory. They come from the running server, or from
//! `/etc/tintype.env`, which the units in `deploy/` read. With its own environment and the config file alone, a command
//! could change a database that no server uses.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Command;
use rustix::process::geteuid;

use tintype_system::data_dir;

use super::commands::SERVERS;
use super::database::DATABASE;
use super::engines::table_within;
use super::environment::adopt;
use super::in_force::SettingsInForce;
use super::layers::{Setting, leaf, other_form, without_variables};

/// The bits of a program that runs as its owner or its group.
const SETUID_OR_SETGID: u32 = 0o6000;
/// The environment file of servers under systemd.
const UNIT_SETTINGS: &str = "/etc/tintype.env";
/// The units' data directory, unless their file names another.
const UNIT_DATA: &str = "/var/lib/tintype";
/// Largest environment or command line, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Settings of a single process, not of the installation.
const OF_PROCESS: [&str; 4] = ["data", "log", "log-format", "shutdown-delay"];
/// Prefix of a server's variables for its bucket.
const OF_BUCKETS: &str = "AWS_";

#[derive(Debug)]
pub(super) struct Installation {
    /// Where these settings come from, such as `the running server's (process 7)`.
    pub(super) origin: String,
    /// Whether these are a process's settings, rather than the units' file.
    pub(super) is_running: bool,
    variables: BTreeMap<String, String>,
    flags: Vec<(String, Vec<String>)>,
    /// The directory that the server resolves relative paths from, also those in its config file.
    pub(super) directory: PathBuf,
    /// All of a running server's settings, including those from its config file. They replace the variables and flags.
    pub(super) in_force: Option<SettingsInForce>,
}

#[derive(Debug)]
struct Server {
    id: u32,
    /// Its directory in /proc. It keeps referring to this process even if another one gets the same id.
    entry: File,
    arguments: Vec<OsString>,
    directory: PathBuf,
}

impl Installation {
    /// The installation with this data directory. `command` is the whole command line, for parsing a server's flags.
    /// `any_owner` means that this process becomes the data's owner before it acts.
    ///
    /// # Errors
    /// A message for the operator: a server has settings, but they cannot be read.
    pub(super) fn find(data: &Path, command: &Command, any_owner: bool) -> Result<Option<Self>, String> {
        let Ok(owned) = fs::metadata(data) else { return Ok(None) };
        let mut trusted = vec![0, geteuid().as_raw()];
        trusted.extend(any_owner.then_some(owned.uid()));
        let same = |path: &Path| fs::metadata(path).is_ok_and(|it| (it.dev(), it.ino()) == (owned.dev(), owned.ino()));
        let mut unread = None;
        let mut flags = Flags { command, alone: None };
        for server in servers(&trusted, &same, &mut flags) {
            match server.installation(&mut flags) {
                Ok(found) if same(&found.data(command)) => {
                    found.adopt();
                    return Ok(Some(found));
                }
                Ok(_) => {}
                Err(_) => unread = unread.or(Some(server.id)),
            }
        }
        match Self::of_units() {
            Ok(Some(units)) if same(&units.data(command)) => {
                units.adopt();
                return Ok(Some(units));
            }
            // The file may name this directory, and another database than the one that a command would create here.
            Err(error) if same(Path::new(UNIT_DATA)) || !data.join(DATABASE).exists() => {
                return Err(format!("cannot read {UNIT_SETTINGS} with the settings of the service: {error}"));
            }
            _ => {}
        }
        // It may be another data directory's server, or one that has just ended. A user who isn't allowed to open the
        // lock cannot open the data either, and gets a message that says so.
        let is_locked =
            || data_dir::is_locked(data).unwrap_or_else(|error| error.kind() != ErrorKind::PermissionDenied);
        match unread.filter(|_| is_locked()) {
            Some(id) => Err(format!("cannot read the environment of the running server (process {id})")),
            None => Ok(None),
        }
    }

    /// The units' data directory, on a machine that has units. It may not exist yet.
    pub(super) fn data_of_units(command: &Command) -> Option<PathBuf> {
        match Self::of_units() {
            Ok(units) => Some(units?.data(command)),
            Err(_) => Some(PathBuf::from(UNIT_DATA)),
        }
    }

    /// The units' settings; `None` if there is no file.
    fn of_units() -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        match File::open(UNIT_SETTINGS) {
            Ok(file) => file.take(MAX_BYTES).read_to_end(&mut bytes)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut variables: BTreeMap<_, _> = variables_in(&String::from_utf8_lossy(&bytes)).into_iter().collect();
        // systemd ignores values in another encoding, but never checks the encoding of comments.
        variables.retain(|_, value| !value.contains(char::REPLACEMENT_CHARACTER));
        variables.entry("TINTYPE_DATA".to_owned()).or_insert_with(|| UNIT_DATA.to_owned());
        let origin = format!("those in {UNIT_SETTINGS}");
        let directory = PathBuf::from("/");
        Ok(Some(Self { origin, is_running: false, variables, flags: Vec::new(), directory, in_force: None }))
    }

    /// All server settings' variables. A command's own values for these don't count if there is an installation.
    pub(super) fn variables_of_servers(command: &Command) -> Vec<String> {
        let commands = SERVERS.iter().filter_map(|name| command.find_subcommand(name));
        let settings = commands.flat_map(Command::get_arguments).filter_map(Setting::of);
        let shared = settings.filter(|setting| !OF_PROCESS.contains(&setting.name.as_str()));
        shared.map(|setting| setting.variable()).collect()
    }

    /// A setting's values from its flag, or else its variable. `None` if the server has neither.
    pub(super) fn values(&self, setting: &Setting) -> Option<Vec<String>> {
        if OF_PROCESS.contains(&setting.name.as_str()) {
            return None;
        }
        self.given(setting)
    }

    /// The running server's `[engine.NAME]` tables in their form on the command line.
    pub(super) fn tables(&self) -> Vec<String> {
        let tables = self.in_force.iter().flat_map(|in_force| &in_force.tables);
        tables.map(|table| table_within(&self.directory, table)).collect()
    }

    fn given(&self, setting: &Setting) -> Option<Vec<String>> {
        let values = match &self.in_force {
            Some(in_force) => in_force.values(&setting.name),
            None => self.by_flag_or_variable(setting),
        };
        Some(values?.into_iter().map(|value| setting.within(&self.directory, value)).collect())
    }

    fn by_flag_or_variable(&self, setting: &Setting) -> Option<Vec<String>> {
        let by_flag = self.flags.iter().find(|(name, _)| *name == setting.name).map(|(_, values)| values.clone());
        let other_form = other_form(&setting.name);
        // A secret in a flag overrides one in the environment, no matter which of the two forms each has.
        let is_outdone = self.flags.iter().any(|(name, _)| *name == other_form);
        let variable = self.variables.get(&setting.variable()).filter(|it| !it.is_empty() && !is_outdone);
        by_flag.or_else(|| Some(vec![variable?.clone()]))
    }

    fn data(&self, command: &Command) -> PathBuf {
        let data = command.get_arguments().filter_map(Setting::of).find(|setting| setting.name == "data");
        let named = data.as_ref().and_then(|setting| self.given(setting)?.pop());
        let by_default = || data.as_ref()?.default().map(|path| self.directory.join(path));
        named.map(PathBuf::from).or_else(by_default).unwrap_or_default()
    }

    /// Makes the bucket's credentials available to this process.
    fn adopt(&self) {
        adopt(self.variables.iter().filter(|(name, _)| name.starts_with(OF_BUCKETS)));
    }
}

impl Server {
    fn installation(&self, flags: &mut Flags<'_>) -> io::Result<Installation> {
        let split = |pair: &OsString| {
            let text = pair.clone().into_string().ok()?;
            text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        let variables = read_list(&self.entry, "environ")?.iter().filter_map(split).collect();
        Ok(Installation {
            origin: format!("the running server's (process {})", self.id),
            is_running: true,
            variables,
            flags: flags.given(&self.arguments),
            directory: self.directory.clone(),
            in_force: SettingsInForce::of_process(&self.entry),
        })
    }

    /// Whether the flags name another data directory, as far as this is known without the environment.
    fn is_elsewhere(&self, same: &dyn Fn(&Path) -> bool, flags: &mut Flags<'_>) -> bool {
        let flags = flags.given(&self.arguments);
        let named = flags.iter().find(|(name, _)| name == "data").and_then(|(_, values)| values.last());
        named.is_some_and(|path| !same(&self.directory.join(path)))
    }
}

/// Trusted users' servers that may run on the data directory, in the order of how many settings they have.
fn servers(trusted: &[u32], same: &dyn Fn(&Path) -> bool, flags: &mut Flags<'_>) -> Vec<Server> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<_> = ids.filter(|id| *id != std::process::id()).filter_map(|id| server(id, trusted)).collect();
    found.retain(|server| !server.is_elsewhere(same, flags));
    let rank = |server: &Server| SERVERS.iter().position(|name| server.arguments.iter().any(|one| one == name));
    found.sort_by_key(|server| (rank(server), server.id));
    found
}

fn server(id: u32, trusted: &[u32]) -> Option<Server> {
    let entry = File::open(format!("/proc/{id}")).ok()?;
    // Anyone can run a program with this name. Only these users' settings count.
    if !trusted.contains(&user_of(&entry)?) {
        return None;
    }
    let arguments = read_list(&entry, "cmdline").ok()?;
    let program = Path::new(arguments.first()?).file_name()?;
    let serves = program == "tintype" && arguments.iter().any(|one| SERVERS.iter().any(|name| one == name));
    let directory = fs::read_link(within(&entry, "cwd")).unwrap_or_default();
    serves.then_some(Server { id, entry, arguments, directory })
}

/// The user who started a process. `None` for a setuid program: another user may have chosen its arguments and its
/// environment, whatever user it runs as.
fn user_of(entry: &File) -> Option<u32> {
    let status = fs::read_to_string(within(entry, "status")).ok()?;
    let ids: Vec<u32> = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))?
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect();
    // Real, effective, saved, and for files. sudo(8) makes all of them root's.
    let is_setuid = fs::metadata(within(entry, "exe")).is_ok_and(|program| program.mode() & SETUID_OR_SETGID != 0);
    let [user, others @ ..] = &ids[..] else { return None };
    (others.len() == 3 && others.iter().all(|id| id == user) && !is_setuid).then_some(*user)
}

fn within(entry: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", entry.as_raw_fd()))
}

/// Reads zero-terminated strings.
fn read_list(entry: &File, name: &str) -> io::Result<Vec<OsString>> {
    let mut bytes = Vec::new();
    File::open(within(entry, name))?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        // The kernel shows nothing about a process that has ended or is just starting its program.
        return Err(ErrorKind::NotFound.into());
    }
    let texts = bytes.split(|byte| *byte == 0).filter(|text| !text.is_empty());
    Ok(texts.map(|text| OsString::from_vec(text.to_vec())).collect())
}

struct Flags<'a> {
    command: &'a Command,
    /// The command without variables, created for the first server: a copy takes as long as a whole start.
    alone: Option<Command>,
}

impl Flags<'_> {
    /// A command line's flags and their values, by setting name.
    fn given(&mut self, arguments: &[OsString]) -> Vec<(String, Vec<String>)> {
        let copy = || without_variables(self.command.clone(), &|_| true).ignore_errors(true);
        let alone = self.alone.get_or_insert_with(copy);
        let Ok(matches) = alone.try_get_matches_from_mut(arguments) else { return Vec::new() };
        let (of_command, matches) = leaf(self.command, &matches);
        let settings = of_command.get_arguments().filter_map(Setting::of);
        settings
            .filter(|setting| setting.is_flag_of(matches))
            .filter_map(|setting| Some((setting.name.clone(), setting.raw(matches)?)))
            .collect()
    }
}

/// The variables in a file for `EnvironmentFile=` of systemd.exec(5): one `NAME=value` per line, in quotes or not.
fn variables_in(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let trimmed = rest.trim_start();
        if trimmed.starts_with(['#', ';']) {
            rest = trimmed.split_once('\n').map_or("", |(_, rest)| rest);
            continue;
        }
        let Some((name, after)) = trimmed.split_once(['=', '\n']) else { break };
        if trimmed.as_bytes().get(name.len()) == Some(&b'\n') {
            rest = after;
            continue;
        }
        let (value, after) = value(after);
        found.push((name.trim().to_owned(), value));
        rest = after;
    }
    found
}

/// The value at the beginning of a text, and the rest after its line.
fn value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut quote = None;
    // Before a value and between quoted parts, white space is ignored and quotes open a part.
    let mut between = true;
    // The value's length without trailing white space.
    let mut end = 0;
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match (letter, quote) {
            ('\n', None) => {
                value.truncate(end);
                return (value, &text[at + 1..]);
            }
            (' ' | '\t' | '\r', None) => {
                if !between {
                    value.push(letter);
                }
                continue;
            }
            ('"' | '\'', None) if between => quote = Some(letter),
            (_, Some(open)) if letter == open => (quote, between) = (None, true),
            ('\\', None | Some('"')) => match letters.next() {
                Some((_, '\n')) | None => {}
                Some((_, escaped)) if quote.is_none() || "\"\\`$".contains(escaped) => value.push(escaped),
                Some((_, other)) => value.extend(['\\', other]),
            },
            _ => {
                between = false;
                value.push(letter);
            }
        }
        end = value.len();
    }
    value.truncate(end);
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_for_systemd_is_read_as_systemd_reads_it() {
        // The rules of `EnvironmentFile=` in systemd.exec(5).
        for (text, expected) in [
            ("A=b\n", &[("A", "b")][..]),
            ("# A=b\n; B=c\n\nC=d", &[("C", "d")]),
            ("A= b c \t\nD=e\r\n", &[("A", "b c"), ("D", "e")]),
            ("A=\"b # c\"\nD='e \\ f'\n", &[("A", "b # c"), ("D", "e \\ f")]),
            ("A=\"b \\\" \\\\ \\$ \\n\"\n", &[("A", "b \" \\ $ \\n")]),
            ("A=b\\\nc\nD=e", &[("A", "bc"), ("D", "e")]),
            ("A=\"b\nc\"\nD=e", &[("A", "b\nc"), ("D", "e")]),
            ("A=b#c\n", &[("A", "b#c")]),
            ("A=b\"c\" 'd'\n", &[("A", "b\"c\" 'd'")]),
            ("A=\"b\" 'c'\n", &[("A", "bc")]),
            ("A=\nnonsense\nB=c", &[("A", ""), ("B", "c")]),
            ("A=postgres://u:p%40ss=w@h/d?x=y&z=1", &[("A", "postgres://u:p%40ss=w@h/d?x=y&z=1")]),
            ("", &[]),
        ] {
            let found = variables_in(text);
            let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
