//! ONNX Runtime as an optional runtime: a shared library, extracted from the wheel on PyPI.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;
use zip::ZipArchive;

use super::download::{ProgressSink, fetch};
use super::hub::Hub;
use super::pull::{lock, sync};
use super::selection::RemoteFile;
use tintype_config::architecture;
use tintype_system::clock::Clock;
use tintype_system::data_dir;
use tintype_system::disk::Disk;

/// The folder for all libraries in the data directory.
const LIBRARIES: &str = "libraries";
/// PyPI's file store.
pub const STORE: &str = "https://files.pythonhosted.org";
const WHEEL: &str = "wheel.zip";
/// Prefix of the libraries' names in a wheel. Other files are for Python.
const LIBRARY: &str = "onnxruntime/capi/lib";
/// Its licence, and its components' licences.
const NOTICES: [&str; 2] = ["onnxruntime/LICENSE", "onnxruntime/ThirdPartyNotices.txt"];
/// Most files in a wheel.
const MAX_ENTRIES: usize = 10_000;
/// Most bytes of libraries per byte of the wheel.
const MAX_RATIO: u64 = 10;

static CATALOGUE: LazyLock<Catalogue> =
    LazyLock::new(|| toml::from_str(include_str!("library.toml")).expect("a test reads the catalogue"));

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    version: String,
    build: Vec<Build>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Build {
    machine: String,
    device: String,
    path: String,
    bytes: u64,
    sha256: String,
}

/// The device that a build is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The processor.
    Processor,
    /// An NVIDIA GPU, whose CUDA libraries must already be on the machine.
    Cuda,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Processor => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// The ONNX Runtime version to download.
pub fn version() -> &'static str {
    &CATALOGUE.version
}

fn folder(data_dir: &Path, target: Target) -> PathBuf {
    data_dir.join(LIBRARIES).join(format!("onnxruntime-{}-{}", version(), target.name()))
}

/// The installed ONNX Runtime library, preferring the one for a GPU.
pub fn installed(data_dir: &Path) -> Option<PathBuf> {
    [Target::Cuda, Target::Processor].into_iter().find_map(|target| installed_for(data_dir, target))
}

/// The installed ONNX Runtime library for a device.
pub fn installed_for(data_dir: &Path, target: Target) -> Option<PathBuf> {
    let library = folder(data_dir, target).join(format!("libonnxruntime.so.{}", version()));
    library.is_file().then_some(library)
}

fn build(target: Target) -> Result<&'static Build, String> {
    let machine = architecture();
    let found = CATALOGUE.build.iter().find(|build| build.machine == machine && build.device == target.name());
    found.ok_or_else(|| format!("there is no ONNX Runtime for {} on {machine}", target.name()))
}

/// Downloads, verifies and unpacks the library, unless it is there. Returns its path.
///
/// # Errors
/// A message for the operator. The downloaded part of the wheel is kept.
pub async fn install(hub: &Hub, data_dir: &Path, target: Target, sink: &dyn ProgressSink) -> Result<PathBuf, String> {
    if let Some(library) = installed_for(data_dir, target) {
        return Ok(library);
    }
    let build = build(target)?;
    let target_folder = folder(data_dir, target);
    let name = target_folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let staging = target_folder.with_file_name(format!(".{name}.part"));
    let _lock = lock(&staging, &name)?;
    let free = Disk::new(vec![staging.clone()], None, Clock::system()).free();
    let needed = build.bytes.saturating_mul(MAX_RATIO / 2);
    if let Some(free) = free.filter(|free| *free < needed) {
        let (needed, free) = (bytesize::ByteSize(needed), bytesize::ByteSize(free));
        return Err(format!("{needed} of free disk are needed at {}, and {free} are free", staging.display()));
    }
    let wheel =
        RemoteFile { path: WHEEL.into(), bytes: build.bytes, sha256: Some(build.sha256.clone()), git_sha1: None };
    sink.begin(build.bytes, 0);
    let url = format!("{}/{}", hub.endpoint(), build.path);
    fetch(hub, &url, hub.endpoint(), &wheel, &staging, sink).await?;
    let failed = |error: io::Error| format!("cannot install {}: {error}", target_folder.display());
    unpack(&staging.join(WHEEL), &staging, build.bytes.saturating_mul(MAX_RATIO))?;
    fs::remove_file(staging.join(WHEEL)).map_err(failed)?;
    sync(&staging).map_err(failed)?;
    fs::rename(&staging, &target_folder).map_err(failed)?;
    File::open(data_dir::directory_of(&target_folder)).and_then(|folder| folder.sync_all()).map_err(failed)?;
    installed_for(data_dir, target).ok_or_else(|| format!("the wheel holds no libonnxruntime.so.{}", version()))
}

/// Extracts the libraries and notices from a wheel, up to `max_bytes`.
fn unpack(wheel: &Path, into: &Path, max_bytes: u64) -> Result<(), String> {
    let damaged = |error: &dyn std::fmt::Display| format!("{} is damaged: {error}", wheel.display());
    let file = File::open(wheel).map_err(|error| damaged(&error))?;
    let mut archive = ZipArchive::new(file).map_err(|error| damaged(&error))?;
    if archive.len() > MAX_ENTRIES {
        return Err(damaged(&format!("it has {} files", archive.len())));
    }
    let mut left = max_bytes;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| damaged(&error))?;
        let name = entry.name().map_err(|error| damaged(&error))?.into_owned();
        let Some(name) = wanted(&name) else { continue };
        let path = into.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(format!("{}: {error}", path.display())),
            _ => {}
        }
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path);
        let mut to = opened.map_err(|error| format!("{}: {error}", path.display()))?;
        let copied = io::copy(&mut io::Read::take(&mut entry, left.saturating_add(1)), &mut to);
        let copied = copied.map_err(|error| damaged(&error))?;
        left = left.checked_sub(copied).ok_or_else(|| damaged(&"its libraries are too large"))?;
        to.sync_all().map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// The name for a wheel's file, if it should be kept.
fn wanted(entry: &str) -> Option<&str> {
    let name = entry.rsplit_once('/')?.1;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
    let is_library = entry.strip_prefix(LIBRARY).is_some_and(|rest| !rest.contains('/') && rest.contains(".so"));
    (name.bytes().all(plain) && (is_library || NOTICES.contains(&entry))).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    fn wheel(folder: &Path, entries: &[(&str, &[u8])]) -> PathBuf {
        let path = folder.join(WHEEL);
        let mut writer = ZipWriter::new(File::create(&path).expect("a file"));
        for (name, content) in entries {
            writer.start_file(*name, SimpleFileOptions::default()).expect("an entry");
            writer.write_all(content).expect("written");
        }
        writer.finish().expect("an archive");
        path
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).expect("a folder");
        let mut names: Vec<_> =
            names.map(|entry| entry.expect("one").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    #[test]
    fn the_catalogue_has_a_build_for_this_machine() {
        for target in [Target::Processor, Target::Cuda] {
            let build = build(target).expect("a build");
            assert!(crate::models::manifest::is_sha256(&build.sha256) && build.path.contains(version()), "{build:?}");
        }
    }

    #[test]
    fn libraries_and_licences_are_taken_out_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let wheel = wheel(
            folder.path(),
            &[
                ("onnxruntime/capi/libonnxruntime.so.1.31.1", b"library"),
                ("onnxruntime/capi/libonnxruntime_providers_shared.so", b"shared"),
                ("onnxruntime/LICENSE", b"MIT"),
                ("onnxruntime/capi/onnxruntime_pybind11_state.cpython-312-x86_64-linux-gnu.so", b"python"),
                ("onnxruntime/__init__.py", b"import os"),
                ("../../libevil.so", b"evil"),
                ("onnxruntime/capi/lib/../../../evil.so", b"evil"),
                ("/onnxruntime/capi/libevil.so", b"evil"),
                ("onnxruntime/capi/lib\\..\\evil.so", b"evil"),
            ],
        );
        unpack(&wheel, folder.path(), 1_000).expect("a wheel");
        let expected = ["LICENSE", "libonnxruntime.so.1.31.1", "libonnxruntime_providers_shared.so", WHEEL];
        assert_eq!(names(folder.path()), expected);
        assert_eq!(fs::read(folder.path().join(expected[1])).expect("a file"), b"library");
    }

    #[test]
    fn a_wheel_that_grows_without_end_or_is_cut_short_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let zeros = vec![0; 1 << 20];
        let wheel = wheel(folder.path(), &[("onnxruntime/capi/libonnxruntime.so", &zeros)]);
        assert!(unpack(&wheel, folder.path(), 1_000).is_err());
        unpack(&wheel, folder.path(), 1 << 20).expect("room for all of it");
        let bytes = fs::read(&wheel).expect("a file");
        for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&wheel, &bytes[..cut]).expect("written");
            assert!(unpack(&wheel, folder.path(), 1 << 20).is_err(), "{cut}");
        }
    }
}
