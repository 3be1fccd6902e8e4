//! Access to environment variables beyond those that clap reads for flags.

use std::path::PathBuf;

/// Reads an environment variable; an empty one counts as absent.
///
/// # Errors
/// A sentence for the operator: the value is not UTF-8.
#[expect(clippy::disallowed_methods, reason = "config is the only module that reads the environment")]
pub(super) fn variable(name: &str) -> Result<Option<String>, String> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|_| format!("{name} is not valid UTF-8"))
}

/// Reads a secret from the file that an environment variable names, without the trailing newline that editors add.
///
/// # Errors
/// A sentence for the operator: the file cannot be read.
#[expect(clippy::disallowed_methods, reason = "config is the only module that reads the environment")]
pub fn secret_from_file(variable: &str) -> Result<Option<String>, String> {
    let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) else { return Ok(None) };
    let path = PathBuf::from(path);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {} (from {variable}): {error}", path.display()))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// Makes an empty environment variable count as absent. Compose files and unit files that pass a variable through set
/// it to the empty string when it is not set outside.
#[expect(clippy::disallowed_methods, reason = "config is the only module that reads the environment")]
pub fn ignore_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command
        .mut_args(|arg| if arg.get_env().is_some_and(is_empty) { arg.env(None::<&str>) } else { arg })
        .mut_subcommands(ignore_empty_variables)
}
