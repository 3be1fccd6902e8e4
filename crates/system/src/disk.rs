//! Free space on the disks that hold the data. While it is low, the service accepts no tasks, so that it can finish
//! the tasks that it has accepted.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use bytesize::ByteSize;
use rustix::fs::statvfs;

use crate::clock::Clock;
use crate::locked::Locked as _;

const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Free space required by default.
const MIN_FREE: ByteSize = ByteSize::mib(64);
/// On a small disk the default is this fraction of its size instead.
const MIN_FREE_FRACTION: u64 = 20;

/// The file systems that hold the data.
#[derive(Debug)]
pub struct Disk {
    directories: Vec<PathBuf>,
    min_free: Option<ByteSize>,
    clock: Clock,
    last_check: Mutex<Check>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Check {
    at: Option<Duration>,
    low: bool,
}

/// Space on one file system, in bytes.
#[derive(Debug, Clone, Copy)]
struct Space {
    free: u64,
    total: u64,
}

impl Disk {
    /// Watches these directories' file systems. `None` for `min_free` means the default.
    pub fn new(directories: Vec<PathBuf>, min_free: Option<ByteSize>, clock: Clock) -> Self {
        Self { directories, min_free, clock, last_check: Mutex::default() }
    }

    /// The first of the directories.
    pub fn directory(&self) -> Option<&Path> {
        self.directories.first().map(PathBuf::as_path)
    }

    /// The file system of another directory, with the same floor.
    pub fn beside(&self, directory: PathBuf) -> Self {
        Self::new(vec![directory], self.min_free, self.clock.clone())
    }

    /// Whether there is too little free space to accept tasks.
    pub fn is_low(&self) -> bool {
        let now = self.clock.elapsed();
        let mut last = self.last_check.locked();
        if last.at.is_none_or(|at| now.saturating_sub(at) >= CHECK_EVERY) {
            let low = self.spaces().any(|space| space.free < self.floor(space));
            if low != last.low {
                let free = ByteSize(self.free().unwrap_or(0));
                match low {
                    true => {
                        tracing::error!(%free, "the disk is nearly full and no tasks are accepted: free some space")
                    }
                    false => tracing::info!(%free, "the disk has free space again and tasks are accepted"),
                }
            }
            *last = Check { at: Some(now), low };
        }
        last.low
    }

    /// Free space in bytes on the fullest of the file systems; `None` if it is unknown.
    pub fn free(&self) -> Option<u64> {
        self.spaces().map(|space| space.free).min()
    }

    /// Free bytes on the fullest of the file systems, and how many the service keeps free; `None` if that is unknown.
    pub fn free_and_floor(&self) -> Option<(u64, u64)> {
        self.spaces().map(|space| (space.free, self.floor(space))).min()
    }

    fn floor(&self, space: Space) -> u64 {
        self.min_free.unwrap_or(MIN_FREE.min(ByteSize(space.total / MIN_FREE_FRACTION))).as_u64()
    }

    /// Skips a file system that cannot be queried: if it is full, writes to it fail.
    fn spaces(&self) -> impl Iterator<Item = Space> {
        let systems = self.directories.iter().filter_map(|directory| statvfs(directory).ok());
        systems.map(|system| Space {
            free: system.f_bavail.saturating_mul(system.f_frsize),
            total: system.f_blocks.saturating_mul(system.f_frsize),
        })
    }
}
