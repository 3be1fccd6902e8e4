//! Makes a server give the memory of ended renders back to the system.
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

/// Starts this program again in the same process, with the allocator set up, if the arguments may be those of a server,
/// unless that has happened already or the allocator is not glibc's. Must run before anything else has started, and
/// before the settings are read, which would be read twice. Returns the error that stopped it.
pub(super) fn set_up(arguments: &[OsString]) -> Option<io::Error> {
    let (name, rest) = arguments.split_first()?;
    let may_serve = rest.iter().any(|word| SERVERS.iter().any(|server| word == server));
    if !may_serve || !cfg!(target_env = "gnu") || tintype_config::was_started_again() {
        return None;
    }
    // The operator may have chosen another threshold. The mark is needed besides, because a program with capabilities of
    // its own never sees the variables of glibc.
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
