//! The output of a command, and how the command ends if that cannot be written.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::Args;
use serde::Serialize;

use super::{Failure, Outcome, complain, terminal};
use tintype_system::output;

/// Why output of this command is missing.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Whether a command prints JSON.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl std::ops::Not for JsonArgs {
    type Output = bool;

    fn not(self) -> bool {
        !self.json
    }
}

/// Prints `thing` as JSON, or else the text that `text` returns.
pub(super) fn show(json: JsonArgs, thing: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
    print_line(&shown(json, thing, text)?);
    Ok(ExitCode::SUCCESS)
}

/// Prints `thing` like [`show`]; the command fails unless `ok`.
pub(super) fn show_verdict(ok: bool, json: JsonArgs, thing: &impl Serialize, text: impl FnOnce() -> String) -> Outcome {
    show(json, thing, text)?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a secret that cannot be printed again, or fails with the message `unprinted`: the caller undoes or repeats what
/// created the secret. In text output, it is on its own line before the note: a reader such as `head -1` may be gone by
/// then.
pub(super) fn show_once(
    json: JsonArgs,
    thing: &impl Serialize,
    (secret, note): (&str, &str),
    unprinted: &str,
) -> Outcome {
    output::print_secret(&shown(json, thing, || secret.to_owned())?)
        .map_err(|error| Failure(format!("{unprinted}: {error}")))?;
    if !json {
        drop(output::print(&terminal::visible(&format!("\n{note}"))));
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(
    JsonArgs { json }: JsonArgs,
    thing: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<String, Failure> {
    Ok(match json {
        true => terminal::visible_json(&serde_json::to_string_pretty(thing)?),
        false => terminal::visible(&text()),
    })
}

/// Ends a command whose arguments contradict each other, like a bad value does.
pub(super) fn misused(message: &str) -> Outcome {
    complain(&format!("error: {message}\n\nFor more information, try '--help'."));
    Ok(ExitCode::from(2))
}

pub(super) fn say(text: &str) {
    print_line(&terminal::visible(text));
}

/// Prints a line. If that fails, the command continues and [`exit_code`] reports it.
pub(super) fn print_line(text: &str) {
    if let Err(error) = output::print(text) {
        drop(UNPRINTED.set(error));
    }
}

/// The exit code of a command that would end with `code`. If its output could not be written, it failed. A reader that
/// is gone, as after `| head`, needs no message.
pub(super) fn exit_code(code: ExitCode) -> ExitCode {
    let Some(error) = UNPRINTED.get() else { return code };
    if error.kind() != ErrorKind::BrokenPipe {
        complain(&format!("tintype: cannot write standard output: {error}"));
    }
    if code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
}

/// A path, or a name, as a word of a shell.
pub(super) fn quoted(word: impl AsRef<Path>) -> String {
    let text = word.as_ref().to_string_lossy();
    let plain = |char: char| char.is_ascii_alphanumeric() || "/._-+".contains(char);
    if text.chars().all(plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
