//! The tiny models in `parity/`, which most tests share.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity").join(name)
}

/// A copy of a folder, to be changed.
pub fn copy(folder: &Path) -> TempDir {
    let copied = TempDir::new().expect("a folder");
    copy_to(folder, copied.path());
    copied
}

pub fn copy_to(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let from = entry.expect("an entry").path();
        let to = to.join(from.file_name().expect("a name"));
        if from.is_dir() { copy_to(&from, &to) } else { fs::copy(&from, &to).map(drop).expect("a copy") }
    }
}
