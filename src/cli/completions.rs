//! Completions for shells, and manual pages, both made from the flags.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use super::printing::print_line;
use super::{Failure, Outcome};

const PROGRAM: &str = "tintype";

#[derive(Debug, Args)]
#[command(after_help = "\
For example: tintype completions bash > /usr/share/bash-completion/completions/tintype, or, for fish, \
tintype completions fish > ~/.config/fish/completions/tintype.fish")]
pub(super) struct CompletionsArgs {
    /// Shell to complete in
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Existing directory for the pages, one for each command
    directory: PathBuf,
}

pub(super) fn print(args: CompletionsArgs, mut command: Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, PROGRAM, &mut script);
    print_line(String::from_utf8(script)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn write_manual(args: ManArgs, command: Command) -> Outcome {
    let ManArgs { directory } = args;
    clap_mangen::generate_to(command, &directory)
        .map_err(|error| Failure(format!("cannot write manual pages in {}: {error}", directory.display())))?;
    Ok(ExitCode::SUCCESS)
}
