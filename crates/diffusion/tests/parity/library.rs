//! The library of ONNX Runtime, as PyPI publishes it: the version and the checksums that `crates/engines/src/models/library.toml` pins.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared library, fetched once into `target/tmp/`.
pub fn library() -> PathBuf {
    let pinned = include_str!("../../../engines/src/models/library.toml");
    let values = |key: &str| {
        let lines = pinned.lines().filter_map(|line| line.split_once(" = "));
        let found = lines.filter(|(name, _)| *name == key).map(|(_, value)| value.trim_matches('"').to_owned());
        found.collect::<Vec<_>>()
    };
    let version = &values("version")[0];
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = parent.join(format!("onnxruntime-{version}"));
    let library = folder.join(format!("onnxruntime/capi/libonnxruntime.so.{version}"));
    let lock = File::create(parent.join("onnxruntime.lock")).expect("a lock file");
    lock.lock().expect("a lock");
    if !library.exists() {
        eprintln!("fetching ONNX Runtime {version} into {}", folder.display());
        // A download that broke off has left parts.
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).expect("a folder");
        let hashes: String = values("sha256").iter().map(|hash| format!(" --hash=sha256:{hash}")).collect();
        fs::write(folder.join("requirements.txt"), format!("onnxruntime=={version}{hashes}\n")).expect("a file");
        let platform = format!("--platform=manylinux_2_28_{}", std::env::consts::ARCH);
        let python = r#"python3 -c "import ensurepip" 2>/dev/null ||
            { apt-get -o DPkg::Lock::Timeout=600 update -qq &&
              apt-get -o DPkg::Lock::Timeout=600 install -qqy --no-install-recommends python3-venv; }
            python3 -m venv venv
            venv/bin/pip download --quiet --no-deps --only-binary=:all: --require-hashes --python-version=3.12 "$0" \
              --requirement requirements.txt
            venv/bin/python -m zipfile --extract *.whl .
            rm -r venv *.whl"#;
        let output = Command::new("sh").args(["-e", "-c", python, &platform]).current_dir(&folder).output();
        let output = output.expect("a shell");
        assert!(output.status.success(), "this test needs ONNX Runtime: {}", String::from_utf8_lossy(&output.stderr));
    }
    library
}
