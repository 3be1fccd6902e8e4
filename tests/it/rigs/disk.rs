//! A disk whose power can be cut and that can fail, mounted where only the test that uses it sees it.
//!
//! What is written to a file lasts once that file is synced, a name in a directory once that directory
//! is: the least that POSIX promises, and less than most file systems keep.

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
use self::platter::Platter;
use crate::rigs::binary::tintype;

mod kernel;
mod platter;

/// Chooses files and directories by their name.
pub type Names = fn(&str) -> bool;

/// What is wrong with the disk, from now on.
#[derive(Debug, Default, Clone, Copy)]
pub struct Faults {
    /// Pages that can still be taken; no limit if `None`.
    pub free_pages: Option<u64>,
    /// Such a file takes no further page.
    pub full_for: Option<Names>,
    /// Every change is refused.
    pub read_only: bool,
    /// Writing to such a file fails.
    pub fail_write: Option<Names>,
    /// Syncing such a file fails.
    pub fail_sync: Option<Names>,
    /// Syncing such a file succeeds, and does nothing.
    pub lie_about_sync: Option<Names>,
    /// The power fails after so many more changes and syncs.
    pub cut_after: Option<u64>,
}

/// What becomes of unsynced changes when the power is cut.
#[derive(Debug, Clone, Copy)]
pub enum Survivors {
    None,
    /// Some pages, parts of pages, sizes and names, chosen by this seed.
    Some(u64),
}

/// A mounted disk.
pub struct Disk {
    platter: Arc<Mutex<Platter>>,
    mount: Option<BackgroundSession>,
    directory: TempDir,
}

impl Disk {
    /// An empty disk.
    pub fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let mut disk = Self { platter: Arc::new(Mutex::new(Platter::new())), mount: None, directory };
        disk.mount();
        disk
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A data directory that does not exist yet, below others that do not.
    pub fn data(&self) -> PathBuf {
        self.path().join("srv/tintype")
    }

    /// `tintype serve` there, for callers in a hurry.
    pub fn serve(&self) -> Command {
        let mut command = tintype();
        command.args(["serve", "--listen", "127.0.0.1:0", "--submit-rate", "0", "--read-rate", "0"]);
        command.args(["--max-unfinished", "0", "--data"]).arg(self.data()).stderr(Stdio::null());
        command
    }

    fn mount(&mut self) {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("faulty".into())];
        let mount = fuser::spawn_mount(Mounted(self.platter.clone()), self.path(), &config);
        self.mount = Some(mount.unwrap_or_else(|error| {
            panic!(
                "cannot mount a file system of this test: {error}. It needs the device /dev/fuse, readable and \
                 writable for everybody (modprobe fuse; in a container, --device /dev/fuse), and user namespaces"
            )
        }));
    }

    fn is_mounted(&self) -> bool {
        let device = |path: &Path| std::fs::metadata(path).expect("a directory").dev();
        device(self.path()) != device(self.path().parent().expect("a parent"))
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is wrong with it.
    pub fn set(&self, faults: Faults) {
        self.platter().faults = faults;
    }

    /// Takes all faults away.
    pub fn heal(&self) {
        self.set(Faults::default());
    }

    /// How often those chosen met a fault.
    pub fn met(&self, chosen: Names) -> usize {
        self.platter().met.iter().filter(|name| chosen(name)).count()
    }

    /// How often something was changed or synced so far.
    pub fn changes(&self) -> u64 {
        self.platter().changes
    }

    /// Names of files, of those chosen.
    pub fn names(&self, chosen: Names) -> Vec<String> {
        self.platter().names(chosen)
    }

    /// Whether it has power.
    pub fn is_powered(&self) -> bool {
        self.platter().powered
    }

    /// Turns the power off: from here on nothing is read, written or synced.
    pub fn power_off(&self) {
        self.platter().powered = false;
    }

    /// Turns the power on again, with what survived. No process may have files open on the disk.
    pub fn power_on(&mut self, survivors: Survivors) {
        self.power_off();
        let mount = self.mount.take().expect("it is mounted");
        let unmounted = mount.umount_and_join();
        // When requests of a killed process are under way, the kernel says of the end that it cut them off.
        let is_over = match &unmounted {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionAborted,
        };
        assert!(is_over && !self.is_mounted(), "somebody uses the disk: {unmounted:?}");
        let dice = match survivors {
            Survivors::None => None,
            Survivors::Some(seed) => Some(StdRng::seed_from_u64(seed)),
        };
        self.platter().cut(dice);
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What is still open, because the test failed, goes with the namespace.
        drop(self.mount.take().map(BackgroundSession::umount_and_join));
    }
}

/// Set in the process that may mount.
const INSIDE: &str = "TINTYPE_TEST_MAY_MOUNT";

/// Chooses everything.
pub const ALL: Names = |_| true;

/// Runs the test of this name in a process of its own that may mount things nobody else sees, whoever
/// runs it. There, returns true, and the test goes on; here, returns false when that has succeeded.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "it is no setting, but a word from this process to itself")]
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
