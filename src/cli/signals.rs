//! The signals that servers and commands handle.

use std::io::{self, IsTerminal as _};

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

    /// Waits for a signal that ends commands; the exit code that shells report for such an end.
    async fn end(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
            _ = self.hangup.recv() => 129,
        }
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

/// [`Signals::end`] for a command that has not caught signals before.
pub(super) async fn interruption() -> u8 {
    match Signals::catch() {
        Ok(mut signals) => signals.end().await,
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
    let mut signals = Signals::catch()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = CancellationToken::new();
    let token = stopped.clone();
    std::thread::spawn(move || {
        let code = runtime.block_on(async {
            signals.end().await;
            token.cancel();
            signals.end().await
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
    let mut signals = runtime.block_on(async { Signals::catch() })?;
    std::thread::spawn(move || {
        std::process::exit(runtime.block_on(signals.end()).into());
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
