//! Room on the disks that hold the data. While little is left no task is taken on, so that those taken
//! before can be finished.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytesize::ByteSize;
use rustix::fs::statvfs;

use crate::clock::Clock;

/// How long a look at the disks holds good.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What must be free unless the operator says otherwise...
const MIN_FREE: ByteSize = ByteSize::mib(64);
/// ...but of a small disk no more than one part in so many.
const MIN_FREE_PART: u64 = 20;

/// The disks under the data.
#[derive(Debug)]
pub struct Disk {
    directories: Vec<PathBuf>,
    min_free: Option<ByteSize>,
    clock: Clock,
    last: Mutex<Look>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Look {
    at: Option<Duration>,
    low: bool,
}

/// How much there is on a disk, in bytes.
#[derive(Debug, Clone, Copy)]
struct Room {
    free: u64,
    total: u64,
}

impl Disk {
    /// The disks under these directories, of which `min_free` bytes must be free, or as many as is sane.
    pub fn new(directories: Vec<PathBuf>, min_free: Option<ByteSize>, clock: Clock) -> Self {
        Self { directories, min_free, clock, last: Mutex::default() }
    }

    /// Whether too little is free to take on more.
    pub fn is_low(&self) -> bool {
        let now = self.clock.elapsed();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.at.is_none_or(|at| now.saturating_sub(at) >= LOOK_EVERY) {
            let low = self.rooms().any(|room| room.free < self.floor(room));
            if low != last.low {
                let free = ByteSize(self.free().unwrap_or(0));
                match low {
                    true => tracing::error!(%free, "the disk is nearly full: no tasks are accepted"),
                    false => tracing::info!(%free, "the disk has room again: tasks are accepted"),
                }
            }
            *last = Look { at: Some(now), low };
        }
        last.low
    }

    /// What is free for the data, in bytes: the least of all disks; `None` when that is unknown.
    pub fn free(&self) -> Option<u64> {
        self.rooms().map(|room| room.free).min()
    }

    fn floor(&self, room: Room) -> u64 {
        self.min_free.unwrap_or(MIN_FREE.min(ByteSize(room.total / MIN_FREE_PART))).as_u64()
    }

    /// A disk that cannot be looked at may be as full as it likes: writes will tell.
    fn rooms(&self) -> impl Iterator<Item = Room> {
        let systems = self.directories.iter().filter_map(|directory| statvfs(directory).ok());
        systems.map(|system| Room {
            free: system.f_bavail.saturating_mul(system.f_frsize),
            total: system.f_blocks.saturating_mul(system.f_frsize),
        })
    }
}
