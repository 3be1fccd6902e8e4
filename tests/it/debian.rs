//! What tests need beside Debian's base system.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Makes sure of a command, which a package of Debian brings.
pub fn needs(command: &str, package: &str) {
    let find = format!("command -v {command} >/dev/null");
    install(package, || Command::new("sh").args(["-c", &find]).status().expect("a shell").success());
}

/// Installs a package of Debian unless `is_there` says that it is.
pub fn install(package: &str, is_there: impl Fn() -> bool) {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_there() {
        return;
    }
    eprintln!("installing Debian's package {package}");
    let install = format!("apt-get update -qq && apt-get install -qqy --no-install-recommends {package}");
    // Some tests run this program once more, which may miss something at the same time.
    let lock = std::env::temp_dir().join("tintype-tests-install.lock");
    let mut command = Command::new("flock");
    command.arg(lock).args(["sh", "-c", &install]).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    let installed = command.status().expect("flock, from util-linux, runs");
    assert!(installed.success() && is_there(), "this test needs {package}: install Debian's package {package}");
}
