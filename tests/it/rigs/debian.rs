//! What tests need beside Debian's base system.

use std::fs::File;
use std::process::{Command, Stdio};

/// Makes sure of a command, which a package of Debian brings.
pub fn needs(command: &str, package: &str) {
    let find = format!("command -v {command} >/dev/null");
    install(package, || Command::new("sh").args(["-c", &find]).status().expect("a shell").success());
}

/// Installs a package of Debian unless `is_there` says that it is.
pub fn install(package: &str, is_there: impl Fn() -> bool) {
    // What is being installed, by whichever process, is there before it can be used.
    let _one_at_a_time = lock();
    if is_there() {
        return;
    }
    eprintln!("installing Debian's package {package}");
    let apt_get = "apt-get -o DPkg::Lock::Timeout=600";
    let install = format!("{apt_get} update -qq && {apt_get} install -qqy --no-install-recommends {package}");
    let mut command = Command::new("sh");
    command.args(["-c", &install]).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    let installed = command.status().expect("a shell");
    assert!(installed.success() && is_there(), "this test needs {package}: install Debian's package {package}");
}

/// A lock that every process of these tests knows, held until it is dropped.
fn lock() -> File {
    let path = std::env::temp_dir().join("tintype-tests-install.lock");
    // Whoever made it may have been somebody else, who lets it be read.
    let file = File::open(&path).or_else(|_| File::create(&path)).expect("a lock file");
    file.lock().expect("a lock");
    file
}
