//! Programs from the registries of npm and PyPI: generators of clients, their compilers, OpenAI's clients, and checkers of
//! the OpenAPI document, of pages and of spelling. `tests/it/clients/` locks their versions and hashes. They are installed once, below
//! `target/`.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::rigs::binary::Ran as _;
use crate::rigs::debian;
use crate::tidy::root;

/// The folder with `node_modules`.
pub fn npm() -> PathBuf {
    let locked = [include_str!("../clients/package.json"), include_str!("../clients/package-lock.json")];
    install("npm", &locked, |folder| {
        debian::needs("node", "nodejs");
        debian::needs("npm", "npm");
        let version = run(Command::new("node").arg("--version"));
        let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok());
        assert!(major >= Some(18), "these tests need Node.js 18 or later, and `node` in the search path is {version}");
        for name in ["package.json", "package-lock.json"] {
            std::fs::copy(root().join("tests/it/clients").join(name), folder.join(name)).expect("a file");
        }
        // No package runs a program of its own while it is installed.
        let flags = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
        // These would leave packages out, or change what Node.js does.
        let mut npm = Command::new("npm");
        npm.env_remove("NODE_ENV").env_remove("NODE_OPTIONS");
        run(npm.args(flags).current_dir(folder));
    })
}

/// A script of the folder `tests/it/clients` for Node.js, and the folder that it runs in with those that it imports.
pub fn javascript(name: &str, imported: &[&str]) -> (Command, TempDir) {
    let folder = TempDir::new().expect("a directory");
    std::os::unix::fs::symlink(npm().join("node_modules"), folder.path().join("node_modules")).expect("a link");
    for script in imported.iter().chain([&name]) {
        std::fs::copy(root().join("tests/it/clients").join(script), folder.path().join(script)).expect("a copy");
    }
    let mut program = Command::new("node");
    program.arg(folder.path().join(name));
    (program, folder)
}

pub fn python() -> PathBuf {
    environment("python", include_str!("../clients/requirements.txt"), "requirements.txt")
}

/// The folder with the spelling checker.
pub fn typos() -> PathBuf {
    environment("typos", include_str!("../clients/typos.txt"), "typos.txt")
}

fn environment(name: &str, locked: &str, file: &str) -> PathBuf {
    let environment = install(name, &[locked], |folder| {
        debian::install("python3-venv", || {
            python3().args(["-c", "import ensurepip"]).output().is_ok_and(|output| output.status.success())
        });
        run(python3().args(["-m", "venv"]).arg(folder));
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.env_remove("PYTHONHOME").env_remove("PYTHONPATH").env_remove("PIP_USER");
        // Python compiles what it imports, which is less than half.
        pip.args(["install", "--no-compile", "--quiet", "--only-binary=:all:", "--require-hashes", "--requirement"]);
        run(pip.arg(root().join("tests/it/clients").join(file)));
    });
    environment.join("bin")
}

/// Debian's Python, also where another one comes first in the search path. Its settings for other programs do not count.
fn python3() -> Command {
    let debians = Path::new("/usr/bin/python3");
    let mut command = Command::new(if debians.exists() { debians } else { Path::new("python3") });
    for variable in ["PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PIP_REQUIRE_VIRTUALENV", "PIP_USER"] {
        command.env_remove(variable);
    }
    command
}

/// A folder that `fill` has filled, in this run or an earlier one, for the files of locks given.
fn install(name: &str, locked: &[&str], fill: impl FnOnce(&Path)) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    locked.hash(&mut hasher);
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = parent.join(format!("{name}-{:016x}", hasher.finish()));
    let lock = File::create(parent.join(format!("{name}.lock"))).expect("a lock file");
    lock.lock().expect("a lock");
    let complete = folder.join("complete");
    if !complete.exists() {
        eprintln!("installing packages of {name} into {}", folder.display());
        // An installation that broke off has left parts.
        if folder.exists() {
            std::fs::remove_dir_all(&folder).expect("a folder of this test");
        }
        std::fs::create_dir_all(&folder).expect("a folder");
        fill(&folder);
        std::fs::write(&complete, "").expect("a file");
    }
    folder
}

/// Runs a command that succeeds, and returns its output.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = output.text();
    assert!(output.status.success(), "{command:?}: {said}{}", output.errors());
    said
}
