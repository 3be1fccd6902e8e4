//! Cost of a durable write on the disk that the benchmark uses.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use crate::Outcome;
use crate::generator::{histogram, now};

const WRITES: usize = 300;
const PAGE: [u8; 4096] = [1; 4096];

/// The disk with the databases of the benchmark.
pub struct Disk {
    /// Type of its file system.
    pub file_system: String,
    /// Median time to append and sync a page, in microseconds.
    pub sync_p50_micros: f64,
    /// 99th percentile of the same, in microseconds.
    pub sync_p99_micros: f64,
}

/// Appends to a file in `directory` and syncs it, repeatedly.
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

/// Type of the file system that contains `path`: that of the deepest mount point above it.
fn file_system(path: &Path) -> Outcome<String> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let deepest = mounts.filter(|(point, _)| path.starts_with(point)).max_by_key(|(point, _)| point.len());
    Ok(deepest.map_or("unknown", |(_, kind)| kind).to_owned())
}
