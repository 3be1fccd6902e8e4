//! Other users of the machine cannot read the data, even in a directory that was made before.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, Server, json, refused, run, tintype};
use crate::rigs::postgres::cluster;

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

#[test]
fn a_directory_that_all_users_share_is_refused_and_left_alone() {
    let folder = TempDir::new().expect("a directory");
    let data = folder.path().join("data");
    fs::create_dir_all(data.join("letters")).expect("a directory");
    for more in [None, Some("tintype-of-eve")] {
        more.map(|name| fs::write(data.join(name), "hers")).transpose().expect("a file");
        open(&data, 0o1777);
        for command in [&["account", "create", "ada"][..], &["serve", "--listen", "127.0.0.1:0"]] {
            let said = refused(&data, command);
            assert!(said.contains("all users share") && said.contains("--data"), "{said}");
        }
        let found = fs::metadata(&data).expect("a directory").permissions().mode() & 0o7777;
        assert_eq!((found, data.join("tintype.db").exists()), (0o1777, false));
    }
    // Another one is closed to others.
    open(&data, 0o755);
    json(&data, &["account", "create", "ada"]);
    assert_eq!(mode(&data), 0o700);
    // Even with data of Tintype, a common directory stays one.
    open(&data, 0o1777);
    json(&data, &["account", "list"]);
    assert_eq!((mode(&data), mode(&data.join("tintype.db"))), (0o777, 0o600));
}

#[test]
fn an_audit_and_a_backup_need_no_data_directory_and_leave_another_one_alone() {
    let folder = TempDir::new().expect("a directory");
    let (place, files) = (folder.path().join("place"), folder.path().join("files"));
    for directory in [&place, &files] {
        fs::create_dir(directory).expect("a directory");
    }
    open(&place, 0o755);
    let (url, at) = (cluster().url(folder.path()), format!("file:{}", files.display()));
    let audit = |directory: &Path| {
        let mut audit = tintype();
        audit.args(["credits", "audit", &format!("--files={at}"), "--database", &url]).current_dir(directory);
        audit
    };
    assert!(audit(folder.path()).ran().succeeded().contains("all files exist"));
    fs::write(place.join("letter.txt"), "mine").expect("a file");
    assert!(audit(folder.path()).arg("--data").arg(&place).ran().succeeded().contains("all files exist"));
    assert_eq!((mode(&place), fs::read_dir(&place).expect("a directory").count()), (0o755, 1));

    let data = folder.path().join("data");
    json(&data, &["account", "create", "ada"]);
    let database = format!("sqlite:{}", data.join("tintype.db").display());
    let mut backup = tintype();
    backup.args(["backup", "copy", "--files", &at, "--database", &database]).current_dir(folder.path());
    backup.ran().succeeded();
    assert!(!folder.path().join("tintype-data").exists());
}
