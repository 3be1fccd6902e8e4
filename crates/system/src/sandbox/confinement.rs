//! Confines a decoder process before it reads untrusted bytes.

use std::collections::BTreeMap;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::Confinement;

/// Address space of a decoder process, in bytes: the file, the decoder's allocations and the coefficients of a JPEG.
pub const MEMORY_BYTES: u64 = 768 * 1024 * 1024;
/// CPU time of a decoder process, in seconds.
pub const CPU_SECONDS: u64 = 10;
/// By how much the kernel prefers to end a decoder or an engine, from -1000 to 1000. A service usually has 0.
const OUT_OF_MEMORY_SCORE: i32 = 500;

/// Only standard input, output and error.
const OPEN_FILES: u64 = 3;

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "riscv64")]
const ARCH: TargetArch = TargetArch::riscv64;

/// System calls for memory, for already open pipes, for panicking and for exiting. None of them opens a file, connects,
/// starts a process or sends a signal.
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

/// System calls that rendering processes never need, and that exploited code could use to connect, start programs, or
/// reach into other processes.
const DENIED_TO_ENGINES: &[libc::c_long] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_connect,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_kill,
    libc::SYS_listen,
    libc::SYS_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setns,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Confines this process irrevocably. Exploited code can compute and write an answer, and nothing more. Fails without
/// the resource limits; the system call filter depends on the kernel.
pub(super) fn confine() -> rustix::io::Result<Confinement> {
    // When the server dies, the kernel kills its decoders.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    end_before_service();
    // The kernel kills at the hard limit; at the soft one it only sends SIGXCPU.
    lower(Resource::Cpu, CPU_SECONDS + 1)?;
    let hard = getrlimit(Resource::Cpu).maximum;
    setrlimit(Resource::Cpu, Rlimit { current: hard.map(|hard| hard.min(CPU_SECONDS)), maximum: hard })?;
    for (resource, most) in [
        (Resource::As, MEMORY_BYTES),
        (Resource::Fsize, 0),
        (Resource::Nofile, OPEN_FILES),
        (Resource::Nproc, 0),
        (Resource::Core, 0),
    ] {
        lower(resource, most)?;
    }
    let allowed = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    restrict(allowed, refusal(), SeccompAction::Allow)
}

/// Lets the kernel end this process before the service when memory runs out. Where it cannot, the process still works.
pub fn end_before_service() {
    let path = "/proc/self/oom_score_adj";
    let score = std::fs::read_to_string(path).ok().and_then(|score| score.trim().parse::<i32>().ok());
    if score.is_some_and(|score| score < OUT_OF_MEMORY_SCORE) {
        let _ = std::fs::write(path, OUT_OF_MEMORY_SCORE.to_string());
    }
}

/// Irrevocably confines this process, which renders. It can use this much memory of its own, in bytes; mapped files
/// don't count. Everything that it starts later is confined too. Fails without the limits; the system call filter
/// depends on the kernel.
pub fn confine_engine(memory_bytes: u64, on_gpu: bool) -> rustix::io::Result<Confinement> {
    lower(Resource::Data, memory_bytes)?;
    // A core file would hold prompts and pictures.
    lower(Resource::Core, 0)?;
    restrict(denied_to_engine(on_gpu), SeccompAction::Allow, refusal())
}

/// What a rendering process must not call. CUDA opens a UNIX socket at its start and listens on it, so GPU processes
/// are allowed to; they still cannot accept connections, connect, or send anything.
fn denied_to_engine(on_gpu: bool) -> Calls {
    let mut denied: Calls = DENIED_TO_ENGINES.iter().map(|call| (*call, Vec::new())).collect();
    if on_gpu {
        denied.retain(|call, _| ![libc::SYS_bind, libc::SYS_listen].contains(call));
        let unix = libc::AF_UNIX.unsigned_abs().into();
        let others = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, unix);
        let rule = others.and_then(|others| SeccompRule::new(vec![others]));
        denied.insert(libc::SYS_socket, vec![rule.expect("a condition on the first argument is valid")]);
    }
    denied
}

/// System calls, each with the arguments that it applies to; an empty list means all arguments.
type Calls = BTreeMap<libc::c_long, Vec<SeccompRule>>;

/// Filters system calls: `listed` ones and others.
fn restrict(calls: Calls, others: SeccompAction, listed: SeccompAction) -> rustix::io::Result<Confinement> {
    set_no_new_privs(true)?;
    let filter = SeccompFilter::new(calls, others, listed, ARCH).ok();
    let filter: Option<BpfProgram> = filter.and_then(|filter| filter.try_into().ok());
    let filtered = filter.is_some_and(|filter| seccompiler::apply_filter(&filter).is_ok());
    Ok(if filtered { Confinement::Full } else { Confinement::LimitsOnly })
}

/// Every refused system call fails with EPERM.
fn refusal() -> SeccompAction {
    SeccompAction::Errno(libc::EPERM.unsigned_abs())
}

/// Sets a limit unless a lower one is already in force.
fn lower(resource: Resource, most: u64) -> rustix::io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |there| there.min(most));
    setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::UdpSocket;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::*;

    #[test]
    fn an_engine_on_a_gpu_listens_on_a_unix_socket_but_reaches_nobody() {
        for on_gpu in [false, true] {
            // A filter belongs to a thread and the threads that it starts.
            let confined = std::thread::spawn(move || {
                let address = format!("confinement {}", std::process::id());
                let address = SocketAddr::from_abstract_name(address).expect("an address");
                let confinement = restrict(denied_to_engine(on_gpu), SeccompAction::Allow, refusal()).expect("limits");
                assert_eq!(confinement, Confinement::Full);
                let listener = UnixListener::bind_addr(&address);
                assert_eq!(listener.is_ok(), on_gpu, "{listener:?}");
                let refused = [
                    listener.and_then(|listener| listener.accept()).map(drop),
                    UnixStream::connect_addr(&address).map(drop),
                    UnixStream::pair().map(drop),
                    UdpSocket::bind("127.0.0.1:0").map(drop),
                ];
                for refused in refused {
                    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::PermissionDenied);
                }
            });
            confined.join().expect("it holds");
        }
    }
}
