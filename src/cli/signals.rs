//! The signals that servers and commands handle.

use std::io::{self, IsTerminal as _};

use futures::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::logging::Logging;
use super::systemd;

/// Signals, caught from the creation of this value on.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

enum ServerSignal {
    /// To stop; the name of the signal.
    Stop(&'static str),
    /// To read the log filter again.
    Reload,
}

impl Signals {
    /// From then on, a write beyond the limit on the size of files (`ulimit -f`) fails, and no longer ends the process.
    pub(super) fn catch() -> io::Result<Self> {
        drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> ServerSignal {
        tokio::select! {
            _ = self.terminate.recv() => ServerSignal::Stop("SIGTERM"),
            _ = self.interrupt.recv() => ServerSignal::Stop("SIGINT"),
            // The terminal was closed, or else someone wants the filter to be read again.
            _ = self.hangup.recv() => if io::stdout().is_terminal() { ServerSignal::Stop("SIGHUP") } else { ServerSignal::Reload },
        }
    }

    /// Reads the log filter again until a signal to stop comes. Returns its name.
    pub(super) async fn until_stop(&mut self, logging: &Logging) -> &'static str {
        loop {
            match self.next().await {
                ServerSignal::Reload => reload(logging),
                ServerSignal::Stop(signal) => return signal,
            }
        }
    }

    /// Waits for the next stop signal, while there is nothing to reload yet or any more.
    pub(super) async fn stop(&mut self) -> &'static str {
        loop {
            if let ServerSignal::Stop(signal) = self.next().await {
                return signal;
            }
        }
    }
}

/// The signals that end a command, caught from the creation of this value on. Those that it was started to ignore, as by
/// nohup(1), stay ignored.
struct Interruptions(Vec<(Signal, u8)>);

impl Interruptions {
    fn catch() -> io::Result<Self> {
        let ignored = ignored_signals();
        let kinds = [(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143), (SignalKind::hangup(), 129)];
        let heeded = kinds.into_iter().filter(|(kind, _)| ignored & (1 << (kind.as_raw_value() - 1)) == 0);
        heeded.map(|(kind, code)| Ok((signal(kind)?, code))).collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the next one; the exit code that shells report for such an end.
    async fn next(&mut self) -> u8 {
        let waits = self.0.iter_mut().map(|(signal, code)| {
            Box::pin(async {
                signal.recv().await;
                *code
            })
        });
        let waits: Vec<_> = waits.collect();
        if waits.is_empty() { std::future::pending().await } else { select_all(waits).await.0 }
    }
}

/// The signals that this process ignores: signal N is bit N - 1 (proc_pid_status(5)).
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// Waits for a signal that ends a command; its exit code.
pub(super) async fn interruption() -> u8 {
    match Interruptions::catch() {
        Ok(mut signals) => signals.next().await,
        Err(_) => std::future::pending().await,
    }
}

/// The outcome of `work`, or `message` as an error after an interruption.
pub(super) async fn until_interrupted<T>(
    work: impl Future<Output = Result<T, String>>,
    message: &str,
) -> Result<T, String> {
    tokio::select! {
        outcome = work => outcome,
        _ = interruption() => Err(message.to_owned()),
    }
}

/// A token for a command that undoes what it has begun: the first signal to stop cancels it, the second one ends the
/// process. A thread of its own catches them, because such commands also work without awaiting anything. This needs a
/// runtime.
pub(super) fn catch_stops() -> io::Result<CancellationToken> {
    let mut signals = Interruptions::catch()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = CancellationToken::new();
    let token = stopped.clone();
    std::thread::spawn(move || {
        let code = runtime.block_on(async {
            signals.next().await;
            token.cancel();
            signals.next().await
        });
        std::process::exit(code.into());
    });
    Ok(stopped)
}

/// Has signals end this command as they end any process. Process 1, such as a command in a container without an init,
/// ignores those that it does not catch. A command that `heeds_interrupts` catches them itself.
pub(super) fn end_on_signals_as_init(heeds_interrupts: bool) -> io::Result<()> {
    if std::process::id() != 1 || heeds_interrupts {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Caught before the command begins.
    let mut signals = runtime.block_on(async { Interruptions::catch() })?;
    std::thread::spawn(move || {
        std::process::exit(runtime.block_on(signals.next()).into());
    });
    Ok(())
}

/// Reads the log filter again. One that cannot be used changes nothing. Certificates, the policy and presets are read
/// again when they change.
fn reload(logging: &Logging) {
    systemd::notify_reloading();
    match logging.reload_filter() {
        Ok(()) => tracing::info!("log filter reloaded after SIGHUP"),
        Err(error) => tracing::error!(
            error,
            "could not reload the log filter; keeping the previous one: correct it and send SIGHUP again"
        ),
    }
    systemd::notify("READY=1");
}
