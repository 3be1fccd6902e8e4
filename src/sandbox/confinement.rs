//! What a decoding process takes from itself before it meets a stranger's bytes.

use std::collections::BTreeMap;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::Confinement;

/// Address space of a decoding process, in bytes: the file, what the decoder allocates, and room for JPEG's coefficients.
pub const MEMORY_BYTES: u64 = 768 * 1024 * 1024;
/// Processor time of a decoding process, in seconds.
pub const CPU_SECONDS: u64 = 10;

/// Standard input, output and error, and no more.
const OPEN_FILES: u64 = 3;

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "riscv64")]
const ARCH: TargetArch = TargetArch::riscv64;

/// All that computing takes: memory, the pipes that are open already, panicking, ending. No call here opens, connects,
/// starts or signals anything.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Confines this process, for good. The limits must hold; the filter depends on the kernel.
pub(super) fn confine() -> rustix::io::Result<Confinement> {
    // A server that dies takes its decoders along.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    for (resource, most) in [
        (Resource::As, MEMORY_BYTES),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Fsize, 0),
        (Resource::Nofile, OPEN_FILES),
        (Resource::Nproc, 0),
        (Resource::Core, 0),
    ] {
        lower(resource, most)?;
    }
    set_no_new_privs(true)?;
    let filtered = filter().is_some_and(|filter| seccompiler::apply_filter(&filter).is_ok());
    Ok(if filtered { Confinement::Full } else { Confinement::LimitsOnly })
}

/// Sets a limit, or leaves a lower one that is there.
fn lower(resource: Resource, most: u64) -> rustix::io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |there| there.min(most));
    setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
}

/// Answers every other call with "not permitted": code that has been taken over can compute and write its answer.
fn filter() -> Option<BpfProgram> {
    let allowed: BTreeMap<_, _> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let refusal = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(allowed, refusal, SeccompAction::Allow, ARCH).ok()?;
    filter.try_into().ok()
}
