//! Standard process metrics, under Prometheus's usual names.

use prometheus::{Counter, Gauge, IntCounter, IntGauge, Registry};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::{level, registered};
use tintype_system::clock::Timestamp;
use tintype_system::output;

/// Processor time, memory and file descriptors of this process, as the kernel counts them.
#[derive(Debug)]
pub(super) struct ProcessMetrics {
    cpu_seconds: Counter,
    resident_bytes: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
    log_lines_dropped: IntCounter,
}

impl ProcessMetrics {
    pub(super) fn new(registry: &Registry, started: Timestamp) -> Self {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help));
        // The clock and not the kernel says when, because /proc/stat, which has the time of the boot, is hidden from a
        // service under systemd's ProcSubset=pid.
        let start = Gauge::new("process_start_time_seconds", "Time when this process started, in Unix time");
        registered(registry, start).set(started.as_millis() as f64 / 1_000.0);
        let cpu_seconds = Counter::new("process_cpu_seconds_total", "Processor time used, in user and system mode");
        let log_lines_dropped = IntCounter::new(
            "tintype_log_lines_dropped_total",
            "Log lines dropped because standard error was not read in time or could not be written",
        );
        Self {
            log_lines_dropped: registered(registry, log_lines_dropped),
            cpu_seconds: registered(registry, cpu_seconds),
            resident_bytes: gauge("process_resident_memory_bytes", "Resident memory"),
            open_fds: gauge("process_open_fds", "Open file descriptors"),
            max_fds: gauge("process_max_fds", "Limit of open file descriptors"),
        }
    }

    /// Reads the counts. Counts that cannot be read stay as they were.
    pub(super) fn read(&self) {
        self.log_lines_dropped.inc_by(output::dropped().saturating_sub(self.log_lines_dropped.get()));
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
        // Two scrapes at once may each have read; a counter never falls.
        self.cpu_seconds.inc_by((seconds - self.cpu_seconds.get()).max(0.0));
        if let Some(pages) = resident_pages() {
            self.resident_bytes.set(level(pages.saturating_mul(rustix::param::page_size() as u64)));
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            self.open_fds.set(level(open.count() as u64));
        }
        if let Some(max) = getrlimit(Resource::Nofile).current {
            self.max_fds.set(level(max));
        }
    }
}

/// The second field of `/proc/self/statm` (proc_pid_statm(5)).
fn resident_pages() -> Option<u64> {
    std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()
}
