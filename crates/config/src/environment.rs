//! Access to environment variables other than those that clap reads for flags.

#![expect(clippy::disallowed_methods, reason = "config is the only module that reads the environment")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Reads an environment variable; an empty one counts as absent.
///
/// # Errors
/// A message for the operator: the value is not UTF-8.
pub(super) fn variable(name: &str) -> Result<Option<String>, String> {
    if let Some(value) = ADOPTED.get().and_then(|adopted| adopted.get(name)) {
        return Ok(Some(value.clone()));
    }
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|_| format!("{name} is not valid UTF-8"))
}

/// Environment variables of the server whose data this command works on. They override the command's own.
static ADOPTED: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Makes a server's variables available to [`variable`]. Only the first call has an effect.
pub(super) fn adopt<'a>(variables: impl Iterator<Item = (&'a String, &'a String)>) {
    let set = variables.filter(|(_, value)| !value.is_empty());
    ADOPTED.get_or_init(|| set.map(|(name, value)| (name.clone(), value.clone())).collect());
}

/// Reads a secret from a file named by `setting`, without a byte order mark or trailing newline added by an editor.
pub fn secret_in(path: &Path, setting: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {} (from {setting}): {error}", path.display()))?;
    Ok(text.trim_start_matches('\u{feff}').trim_end_matches(['\r', '\n']).to_owned())
}

/// PEM certificate authorities from the file named by `setting`, if there is one.
pub(super) fn authorities_in(file: Option<&Path>, setting: &str) -> Result<Option<Vec<u8>>, String> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|error| format!("cannot read {setting} {}: {error}", path.display()));
    file.map(read).transpose()
}

/// Whether an environment variable is empty, which counts as absent. Compose and unit files that pass a variable
/// through set it to the empty string if it isn't set outside.
pub(super) fn is_empty_variable(name: &OsStr) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}

/// Checks the variables with this prefix.
///
/// # Errors
/// A message for the operator: a value ends with a line break, as in secrets written by `echo`, or is surrounded by
/// spaces or quotes, as left by `docker run --env-file`. A path would then name another file.
pub(super) fn check_variables(prefix: &str) -> Result<(), String> {
    let fault = |name: String| match std::env::var_os(&name)?.as_encoded_bytes() {
        [.., b'\n' | b'\r'] => Some(format!("{name} ends with a line break: remove it")),
        [b' ' | b'\t', ..] | [.., b' ' | b'\t'] => Some(format!("{name} begins or ends with white space: remove it")),
        [b'"', .., b'"'] | [b'\'', .., b'\''] => Some(format!("{name} has quotes around its value: remove them")),
        _ => None,
    };
    // Harmless in shell syntax.
    let counts = |name: &String| name != "TINTYPE_ENGINE_ARGS";
    variables_with(prefix).into_iter().filter(counts).find_map(fault).map_or(Ok(()), Err)
}

/// The names of all variables with this prefix.
pub(super) fn variables_with(prefix: &str) -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().filter(|_| !value.is_empty()));
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Prefixes of variables that rendering programs may need. Others aren't passed on, because they can contain secrets.
const OF_ENGINES: [&str; 24] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_",
    "TZ",
    "TMPDIR",
    "XDG_",
    "LD_LIBRARY_PATH",
    "CUDA",
    "NVIDIA_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "AMD_",
    "GPU_",
    "GGML_",
    "OMP_",
    "VK_",
    "MESA_",
    "SYCL_",
    "ONEAPI_",
    "ZE",
    "SD_",
];

/// The environment of a rendering program.
pub fn environment_of_engine() -> Vec<(OsString, OsString)> {
    let needed = |name: &OsStr| OF_ENGINES.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()));
    std::env::vars_os().filter(|(name, _)| needed(name)).collect()
}

/// The processor architecture that this program was built for, such as `x86_64`.
pub fn architecture() -> &'static str {
    std::env::consts::ARCH
}

/// The command to run this program again: its name if it is in the search path, otherwise its path.
pub fn program() -> PathBuf {
    let Ok(path) = std::env::current_exe() else { return PathBuf::from("tintype") };
    let name = path.file_name().map(PathBuf::from).unwrap_or_default();
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search).map(|folder| folder.join(&name)).find(|file| file.is_file());
    let is_this = found.is_some_and(|found| found.canonicalize().ok() == path.canonicalize().ok());
    if is_this { name } else { path }
}

/// A protocol for images in terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Graphics {
    /// The kitty protocol.
    Kitty,
    /// The iTerm2 protocol.
    Iterm,
}

/// This process's terminal graphics protocol, from variables set by terminals. Multiplexers don't pass images on.
pub fn terminal_graphics() -> Option<Graphics> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (term, program) = (variable("TERM"), variable("TERM_PROGRAM"));
    if !variable("TMUX").is_empty() || term.starts_with("screen") || term.starts_with("tmux") {
        return None;
    }
    let kitty = term == "xterm-kitty" || term == "xterm-ghostty" || program == "ghostty";
    let iterm = ["iTerm.app", "WezTerm"].contains(&program.as_str()) || variable("LC_TERMINAL") == "iTerm2";
    if kitty { Some(Graphics::Kitty) } else { iterm.then_some(Graphics::Iterm) }
}

/// Whether this process's terminal, if any, should show colours (<https://no-color.org>).
pub fn terminal_has_colours() -> bool {
    let variable = |name: &str| std::env::var_os(name).unwrap_or_default();
    variable("NO_COLOR").is_empty() && variable("TERM") != "dumb"
}

/// The socket for reporting this process's state to systemd.
pub fn notify_socket() -> Option<PathBuf> {
    std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// How long systemd waits for a sign of life before it restarts this process.
pub fn watchdog_interval() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>());
    // Variables for another process, such as a shell that started this one, don't count.
    let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == Ok(u64::from(std::process::id())));
    number("WATCHDOG_USEC").and_then(Result::ok).filter(|micros| ours && *micros > 0).map(Duration::from_micros)
}

/// The directory for temporary files.
pub fn temporary_directory() -> PathBuf {
    std::env::temp_dir()
}

/// The arguments of this process, starting with its name.
pub fn arguments() -> Vec<OsString> {
    std::env::args_os().collect()
}

/// Marks a process that has re-executed its own program.
pub const STARTED_AGAIN: &str = "TINTYPE_STARTED_AGAIN";

/// Whether this process has re-executed its own program.
pub fn was_started_again() -> bool {
    std::env::var_os(STARTED_AGAIN).is_some()
}

/// The value of a variable that other software uses, or a default.
pub fn variable_or(name: &str, default: &str) -> OsString {
    std::env::var_os(name).unwrap_or_else(|| default.into())
}
