//! Other users of the machine cannot read the data, even in a directory that was made before.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Server, json, run};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

fn open(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
}

/// The files and directories below a directory that other users can use.
fn readable(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if mode(&path) & 0o077 != 0 {
            found.push(format!("{} {:o}", path.display(), mode(&path)));
        }
        if path.is_dir() {
            found.extend(readable(&path));
        }
    }
    found
}

#[test]
fn a_directory_that_others_can_read_is_closed_to_them_with_the_database() {
    let folder = TempDir::new().expect("a directory");
    let data = folder.path().join("data");
    fs::create_dir(&data).expect("a directory");
    open(&data, 0o755);
    let server = Server::start(&data, &[]);
    assert_eq!(mode(&data), 0o700);
    assert_eq!(readable(&data), [""; 0]);
    server.stop();
    for file in ["tintype.db", "first-key"] {
        open(&data.join(file), 0o644);
    }
    open(&data, 0o755);
    let said = run(&data, ["doctor", "--json"]).text();
    assert!(said.contains("other users can read") && said.contains("chmod go="), "{said}");
    assert_eq!(mode(&data), 0o755, "doctor changes nothing");
    json(&data, &["account", "list"]);
    assert_eq!((mode(&data), mode(&data.join("tintype.db")), mode(&data.join("first-key"))), (0o700, 0o600, 0o600));
    assert!(!String::from_utf8_lossy(&run(&data, ["doctor", "--json"]).stdout).contains("other users can read"));
}

#[test]
fn a_database_elsewhere_is_closed_and_the_target_of_a_link_is_left_alone() {
    let folder = TempDir::new().expect("a directory");
    let (data, elsewhere) = (folder.path().join("data"), folder.path().join("elsewhere"));
    fs::create_dir(&elsewhere).expect("a directory");
    open(&elsewhere, 0o755);
    let database = elsewhere.join("images.db");
    let url = format!("sqlite:{}", database.display());
    Server::start(&data, &["--database", &url]).stop();
    assert_eq!(mode(&data), 0o700, "a new directory");
    let other = elsewhere.join("other");
    fs::write(&other, "mine").expect("a file");
    open(&other, 0o644);
    open(&database, 0o644);
    std::os::unix::fs::symlink(&other, data.join("acme.json")).expect("a link");
    Server::start(&data, &["--database", &url]).stop();
    assert_eq!((mode(&database), mode(&other), mode(&elsewhere)), (0o600, 0o644, 0o755));
}
