//! Makes a server return the memory of ended renders to the system.
//!
//! The buffers of a picture have several megabytes. glibc maps the first ones and unmaps them when they are freed, but
//! then raises its threshold and keeps later ones: up to a hundred megabytes in one heap for each thread. Only a variable
//! of the environment that the process starts with stops that.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use tintype_config::SERVERS;
use tintype_system::sandbox::OWN_PROGRAM;

/// glibc maps allocations of at least this many bytes, and never raises this number.
const THRESHOLD: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");

/// Re-executes this program in the same process with the allocator set up, if its arguments may be a server's, unless
/// that has already happened or the allocator isn't glibc's. Must run before anything else has started, and before the
/// settings are read, which would be read twice. Returns the error that prevented it.
pub(super) fn set_up(arguments: &[OsString]) -> Option<io::Error> {
    let (name, rest) = arguments.split_first()?;
    let may_serve = rest.iter().any(|word| SERVERS.iter().any(|server| word == server));
    if !may_serve || !cfg!(target_env = "gnu") || tintype_config::was_started_again() {
        return None;
    }
    // The operator may have chosen another threshold. The marker is needed too, because programs with file capabilities
    // never see glibc's variables.
    let threshold = THRESHOLD.0;
    let value = tintype_config::variable_or(threshold, THRESHOLD.1);
    let failed = Command::new(OWN_PROGRAM)
        .arg0(name)
        .args(rest)
        .env(threshold, value)
        .env(tintype_config::STARTED_AGAIN, "1")
        .exec();
    Some(failed)
}
