//! This machine's processor and memory.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::system::{Sysinfo, sysinfo};

/// The fraction of memory that a child can use for itself. The rest is for the service and the weights, which are
/// mapped files.
const CHILD_SHARE: f64 = 0.8;
/// The limit if the machine's memory is unknown, in bytes.
const UNKNOWN_MEMORY: u64 = 8 << 30;
/// Time limit for a program that reports on this machine.
const PROGRAM_LIMIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Most bytes read from its output.
const MAX_PRINTED: u64 = 4096;

/// A child's default memory limit, in bytes.
pub(super) fn memory_limit() -> u64 {
    // A systemd unit can hide everything in /proc except processes.
    let Sysinfo { totalram, mem_unit, .. } = sysinfo();
    let machine = totalram.checked_mul(u64::from(mem_unit)).filter(|bytes| *bytes > 0);
    let known = machine.into_iter().chain(group_limits()).min();
    known.map_or(UNKNOWN_MEMORY, |bytes| (bytes as f64 * CHILD_SHARE) as u64)
}

/// Memory of this machine's smallest NVIDIA GPU in bytes, if its driver reports it: the child could get any GPU.
pub(super) fn device_memory() -> Option<u64> {
    static MEMORY: OnceLock<Option<u64>> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        smallest(&printed("nvidia-smi", &["--query-gpu=memory.total", "--format=csv,noheader,nounits"])?)
    })
}

/// The smallest number in a list of mebibytes, in bytes. Ignores GPUs without their own memory.
fn smallest(lines: &str) -> Option<u64> {
    lines.lines().filter_map(|line| line.trim().parse::<u64>().ok()?.checked_mul(1 << 20)).min()
}

/// A program's output within [`PROGRAM_LIMIT`]. With a hung driver it would never end.
fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut looks = PROGRAM_LIMIT.as_millis() / LOOK_EVERY.as_millis();
    while child.try_wait().ok()?.is_none() {
        if looks == 0 {
            tracing::warn!(
                program,
                "could not read the memory of the GPUs in time: set --engine-device-memory if the models need a limit"
            );
            drop(child.kill());
            drop(child.wait());
            return None;
        }
        looks -= 1;
        std::thread::sleep(LOOK_EVERY);
    }
    let mut text = String::new();
    child.stdout?.take(MAX_PRINTED).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The limits of this process's control group and its ancestors, in cgroup versions 1 and 2. A group without a limit
/// has "max" or a number beyond any machine's memory.
fn group_limits() -> Vec<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_limits_in(Path::new("/sys/fs/cgroup"), &groups)
}

fn group_limits_in(root: &Path, groups: &str) -> Vec<u64> {
    let limits = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(":/")?;
        let (folder, name) = match controllers {
            "" => ("", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => ("memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        let limit = |group: &Path| {
            let path = root.join(folder).join(group).join(name);
            std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
        };
        Some(Path::new(group).ancestors().filter_map(limit).collect::<Vec<_>>())
    };
    groups.lines().filter_map(limits).flatten().collect()
}

/// A line such as `VmHWM:  1024 kB`, in bytes.
pub(crate) fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The processor, its threads, and the instructions that matter for a model's speed.
pub(super) fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name: String = name.map_or("unknown processor", |(_, name)| name.trim()).chars().take(80).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let plural = if threads == 1 { "thread" } else { "threads" };
    std::iter::once(format!("{name}, {threads} {plural}"))
        .chain(instructions().into_iter().map(str::to_owned))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(target_arch = "x86_64")]
fn instructions() -> Vec<&'static str> {
    let known = [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("AVX-VNNI", is_x86_feature_detected!("avxvnni")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
        ("AVX-512 VNNI", is_x86_feature_detected!("avx512vnni")),
    ];
    known.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

#[cfg(target_arch = "aarch64")]
fn instructions() -> Vec<&'static str> {
    let known = [
        ("NEON", std::arch::is_aarch64_feature_detected!("neon")),
        ("dot product", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("I8MM", std::arch::is_aarch64_feature_detected!("i8mm")),
    ];
    known.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instructions() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_kibibytes_is_a_number_of_bytes() {
        let text = "VmPeak:\t  99 kB\nVmHWM:\t  1024 kB\nVmData: 18446744073709551615 kB\nThreads: 2\n";
        assert_eq!(kib(text, "VmHWM:"), Some(1 << 20));
        assert_eq!([kib(text, "VmData:"), kib(text, "Threads:"), kib(text, "RssAnon:")], [None; 3]);
    }

    #[test]
    fn limits_of_control_groups_of_both_versions_count() {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in [
            ("a/memory.max", "max\n"),
            ("a/b/memory.max", "1000\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/c/memory.limit_in_bytes", "500\n"),
            ("cpu/memory.limit_in_bytes", "7\n"),
        ] {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
        let limits = |groups| group_limits_in(root.path(), groups);
        assert_eq!(limits("0::/a/b\n"), [1000]);
        assert_eq!(limits("5:memory:/c/gone\n4:cpu,cpuacct:/\n0::/a\n"), [500, 9_223_372_036_854_771_712]);
        assert!(limits("").is_empty());
    }

    #[test]
    fn the_smallest_gpu_counts() {
        // As printed by nvidia-smi: two GPUs, one that shares the machine's memory, and none.
        assert_eq!(smallest("81559\n24576\n"), Some(24_576 << 20));
        assert_eq!([smallest("[N/A]\n"), smallest(""), smallest("No devices were found\n")], [None; 3]);
    }

    #[test]
    fn a_program_prints_in_time_or_not_at_all() {
        assert_eq!(printed("echo", &["81559"]).as_deref(), Some("81559\n"));
        assert_eq!(printed("there-is-no-such-program", &[]), None);
    }

    #[test]
    fn this_machine_has_a_processor_and_memory() {
        assert!(processor().contains("thread"));
        assert!(memory_limit() > 0);
    }
}
