//! What durability costs on the disk under the benchmark.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use crate::Outcome;
use crate::generator::{histogram, now};

const WRITES: usize = 300;
const PAGE: [u8; 4096] = [1; 4096];

/// The disk that the databases of the benchmark are on.
pub struct Disk {
    /// The kind of its file system.
    pub file_system: String,
    /// Median time of a page appended and synced, in microseconds.
    pub sync_p50_micros: f64,
    /// The same, of the slowest hundredth.
    pub sync_p99_micros: f64,
}

/// Appends to a file there and syncs it, over and over.
pub fn measure(directory: &Path) -> Outcome<Disk> {
    let path = directory.join("sync");
    let mut file = File::create(&path)?;
    let mut latencies = histogram();
    for _ in 0..WRITES {
        let started = now();
        file.write_all(&PAGE)?;
        file.sync_data()?;
        latencies.saturating_record(started.elapsed().as_nanos() as u64);
    }
    fs::remove_file(&path)?;
    Ok(Disk {
        file_system: file_system(&directory.canonicalize()?)?,
        sync_p50_micros: latencies.value_at_quantile(0.5) as f64 / 1e3,
        sync_p99_micros: latencies.value_at_quantile(0.99) as f64 / 1e3,
    })
}

/// The kind of file system that the deepest mount above `path` has.
fn file_system(path: &Path) -> Outcome<String> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let deepest = mounts.filter(|(point, _)| path.starts_with(point)).max_by_key(|(point, _)| point.len());
    Ok(deepest.map_or("unknown", |(_, kind)| kind).to_owned())
}
