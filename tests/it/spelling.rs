//! `typos` finds no misspelling in the repository. `typos.toml` excuses what is none.

use std::process::Command;

use crate::rigs::binary::Run as _;
use crate::rigs::packages::{run, typos};
use crate::tidy::root;

#[test]
fn every_file_is_spelled_correctly() {
    let program = typos().join("typos");
    run(Command::new(&program).args(["--format", "brief"]).current_dir(root()));
    let folder = tempfile::TempDir::new().expect("a directory");
    std::fs::write(folder.path().join("letter.md"), ["to rec", "ieve"].concat()).expect("a file");
    let output = Command::new(&program).current_dir(folder.path()).ran();
    assert_eq!(output.status.code(), Some(2), "it finds a mistake: {output:?}");
}
