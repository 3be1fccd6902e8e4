//! Debian packages that tests need.

use std::fs::File;
use std::process::{Command, Stdio};

/// Installs the package unless the command exists.
pub fn needs(command: &str, package: &str) {
    let find = format!("command -v {command} >/dev/null");
    install(package, || Command::new("sh").args(["-c", &find]).status().expect("a shell").success());
}

/// Installs a package unless `is_there` finds it.
pub fn install(package: &str, is_there: impl Fn() -> bool) {
    // The check comes after the lock: another process may just have installed it.
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

/// A lock between all processes of the tests, held until it is dropped.
fn lock() -> File {
    let path = std::env::temp_dir().join("tintype-tests-install.lock");
    // Another user may own the file and allow reading only.
    let file = File::open(&path).or_else(|_| File::create(&path)).expect("a lock file");
    file.lock().expect("a lock");
    file
}
