//! The `tintype` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    tintype::cli::main()
}
