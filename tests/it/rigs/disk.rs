//! A simulated disk that can lose power or fail, mounted in a namespace of its own.
//!
//! Data of a file survives a power cut once the file is synced, and a name once its directory is synced. POSIX promises
//! no more, and most file systems keep more.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackgroundSession, Config, MountOption};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tempfile::TempDir;

use self::kernel::Mounted;
use self::volatile_disk::VolatileDisk;
use crate::rigs::binary::{SMALL, tintype};

mod kernel;
mod volatile_disk;

/// Selects files and directories by name.
pub type Names = fn(&str) -> bool;

#[derive(Debug, Default, Clone, Copy)]
pub struct Faults {
    /// Free pages; no limit if `None`.
    pub free_pages: Option<u64>,
    /// Such a file gets no further page.
    pub full_for: Option<Names>,
    /// Every change is refused.
    pub read_only: bool,
    /// Writing to such a file fails.
    pub fail_write: Option<Names>,
    pub fail_sync: Option<Names>,
    /// Syncing such a file succeeds, and does nothing.
    pub lie_about_sync: Option<Names>,
    /// The disk has no hard links and ignores permissions, as exFAT and NTFS do.
    pub foreign: bool,
    /// Files share no memory between processes, as in mergerfs without a cache.
    pub unmapped: bool,
    /// The power fails after this number of further changes and syncs.
    pub cut_after: Option<u64>,
}

/// The fate of unsynced changes in a power cut.
#[derive(Debug, Clone, Copy)]
pub enum Survivors {
    None,
    /// Some pages, parts of pages, sizes and names survive, chosen by this seed.
    Some(u64),
}

pub struct Disk {
    volatile: Arc<Mutex<VolatileDisk>>,
    mount: Option<BackgroundSession>,
    directory: TempDir,
}

impl Disk {
    pub fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let mut disk = Self { volatile: Arc::new(Mutex::new(VolatileDisk::new())), mount: None, directory };
        disk.mount();
        disk
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A data directory that does not exist yet; nor do its parents.
    pub fn data(&self) -> PathBuf {
        self.path().join("srv/tintype")
    }

    /// `tintype serve` on the disk, without rate limits.
    pub fn serve(&self) -> Command {
        let mut command = tintype();
        command.args(["serve", "--listen", "127.0.0.1:0", "--submit-rate", "0", "--read-rate", "0"]);
        command.args(SMALL).args(["--max-unfinished", "0", "--data"]).arg(self.data()).stderr(Stdio::null());
        command
    }

    fn mount(&mut self) {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("faulty".into())];
        let mount = fuser::spawn_mount(Mounted(self.volatile.clone()), self.path(), &config);
        self.mount = Some(mount.unwrap_or_else(|error| {
            panic!(
                "cannot mount a file system of this test: {error}. It needs the device /dev/fuse, readable and \
                 writable for all users (modprobe fuse; in a container, --device /dev/fuse), and user namespaces"
            )
        }));
    }

    fn is_mounted(&self) -> bool {
        let device = |path: &Path| std::fs::metadata(path).expect("a directory").dev();
        device(self.path()) != device(self.path().parent().expect("a parent"))
    }

    fn volatile(&self) -> MutexGuard<'_, VolatileDisk> {
        self.volatile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, faults: Faults) {
        self.volatile().faults = faults;
    }

    pub fn heal(&self) {
        self.set(Faults::default());
    }

    /// Number of faults that the selected files met.
    pub fn met(&self, chosen: Names) -> usize {
        self.volatile().met.iter().filter(|name| chosen(name)).count()
    }

    /// Number of changes and syncs so far.
    pub fn changes(&self) -> u64 {
        self.volatile().changes
    }

    /// Names of the selected files.
    pub fn names(&self, chosen: Names) -> Vec<String> {
        self.volatile().names(chosen)
    }

    pub fn is_powered(&self) -> bool {
        self.volatile().powered
    }

    /// Turns the power off. From now on nothing is read, written or synced.
    pub fn power_off(&self) {
        self.volatile().powered = false;
    }

    /// Turns the power on again with the data that survived. No process may have files open on the disk.
    pub fn power_on(&mut self, survivors: Survivors) {
        self.power_off();
        let mount = self.mount.take().expect("a mounted disk");
        let unmounted = mount.umount_and_join();
        // The kernel reports requests of a killed process that the unmount interrupted; that isn't a failure.
        let is_over = match &unmounted {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionAborted,
        };
        assert!(is_over && !self.is_mounted(), "a process uses the disk: {unmounted:?}");
        let dice = match survivors {
            Survivors::None => None,
            Survivors::Some(seed) => Some(StdRng::seed_from_u64(seed)),
        };
        self.volatile().cut(dice);
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // If the test failed with files open, the mount ends with the namespace.
        drop(self.mount.take().map(BackgroundSession::umount_and_join));
    }
}

/// Set in the process that may mount file systems.
const INSIDE: &str = "TINTYPE_TEST_MAY_MOUNT";

/// Selects every file.
pub const ALL: Names = |_| true;

/// Runs the test of this name in a process with a mount namespace of its own. Returns true in that process, where the
/// test goes on, and false in this one once that process has succeeded.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this variable is no setting; this process sets it for its child")]
pub fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let this = std::env::current_exe().expect("a path");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]).arg(this).args(["--exact", test, "--nocapture"]);
    let output = command.env(INSIDE, "1").output().expect("unshare, from util-linux, runs");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{test} failed: {said}");
    println!("{said}");
    false
}
