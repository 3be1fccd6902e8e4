//! Starts the child: this program, which asks the kernel to end it together with its parent and then becomes the
//! engine's program.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, Stdio};
use std::sync::{LazyLock, mpsc};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Start;
use tintype_system::sandbox::end_before_service;

/// The hidden command that becomes the engine's program. Its arguments are the parent's process id, the program, and
/// the program's arguments.
pub const COMMAND: &str = "become-engine";
const CANNOT_START: u8 = 127;

/// A child to start, the runtime to start it in, and where to return it.
type Order = (Command, Handle, oneshot::Sender<io::Result<Child>>);

/// The kernel ends a child when the thread that started it ends, so a single thread starts all children and never ends.
static STARTER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
    let (orders, received) = mpsc::channel::<Order>();
    let start_all = move || {
        for (mut command, runtime, answer) in received {
            let _runtime = runtime.enter();
            // If it is no longer wanted, the child is killed when dropped.
            let _ = answer.send(command.spawn());
        }
    };
    if let Err(error) = std::thread::Builder::new().name("engine-starter".into()).spawn(start_all) {
        tracing::error!(%error, "could not start the thread that supervises engine processes");
    }
    orders
});

/// Starts a child in its own process group.
///
/// # Errors
/// The launcher failed to start. If the program itself fails to start, the child ends.
pub(crate) async fn spawn(start: &Start, arguments: &[OsString]) -> io::Result<Child> {
    let mut command = Command::new(&start.launcher);
    command
        .arg0("tintype")
        .arg(COMMAND)
        .arg(std::process::id().to_string())
        .arg(&start.program)
        .args(arguments)
        .env_clear()
        .envs(start.environment.iter().map(|(name, value)| (name, value)))
        .stdin(if start.has_input { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let (answer, child) = oneshot::channel();
    let gone = || io::Error::other("the thread that starts processes has ended");
    STARTER.send((command, Handle::current(), answer)).map_err(|_| gone())?;
    child.await.map_err(|_| gone())?
}

/// Becomes the engine's program. Runs before this program opens or starts anything else, and only returns on failure.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [parent, program, arguments @ ..] = arguments else { return ExitCode::from(CANNOT_START) };
    let prepared = set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from);
    // A parent that ended before the kernel was asked sends no signal.
    let is_child = getppid().is_some_and(|pid| parent == pid.as_raw_nonzero().to_string().as_str());
    end_before_service();
    let error = match prepared {
        Ok(()) if is_child => std::process::Command::new(program).args(arguments).exec(),
        Ok(()) => return ExitCode::from(CANNOT_START),
        Err(error) => error,
    };
    // The parent reads this. Without standard error it is lost.
    let _ = writeln!(io::stderr(), "cannot start {}: {error}", program.display());
    ExitCode::from(CANNOT_START)
}
