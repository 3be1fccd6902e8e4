//! Keeps a rendering child process running: starts it, waits until it is ready, monitors it, and restarts it if it has
//! ended or hangs. A child listens on a local port, or communicates over its standard input and output.
//!
//! The child dies with this process (`launch.rs`). Whatever happens to it costs only the render in progress.

mod launch;
mod output;

use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use tintype_engine::EngineError;

use self::output::Output;
pub(super) use launch::spawn;
pub use launch::{COMMAND, main};

/// A child that doesn't answer this long after its start is restarted: large models take minutes to load.
const START_LIMIT: Duration = Duration::from_secs(15 * 60);
const ASK_WHILE_RUNNING: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Consecutive failed probes after which the child counts as hung, and successful ones after which it counts as
/// healthy.
const PATIENCE: u32 = 3;
/// Time for a child with closed connections to end, and for reading its remaining output.
const LAST_MOMENT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A rendering program.
#[async_trait]
pub trait Program: Send + Sync + 'static {
    /// A connection to a running child.
    type Link: Clone + Send + Sync + 'static;

    /// Prepares the start of a child.
    fn next(&self) -> Result<Next<Self::Link>, String>;

    /// Waits until the child has started, and has it render something small, so that no task waits for the program's
    /// one-time work.
    ///
    /// # Errors
    /// The reason why the child cannot render.
    async fn begin(&self, link: &Self::Link) -> Result<(), EngineError>;

    /// Whether the child answers, once it has started.
    ///
    /// # Errors
    /// The reason why it doesn't.
    async fn ask(&self, link: &Self::Link) -> Result<(), EngineError>;

    /// Advice for the operator about a child that failed for this reason.
    fn advice(&self, _why: &str) -> Option<String> {
        None
    }
}

/// Makes the connection to a newly started child. Doesn't block.
type Connect<L> = Box<dyn FnOnce(&mut Child) -> Result<L, String> + Send>;

/// A child about to be started.
pub struct Next<L> {
    /// The program's arguments.
    pub arguments: Vec<OsString>,
    /// Makes the connection to the child.
    pub link: Connect<L>,
}

impl<L> fmt::Debug for Next<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

/// How a child is started.
#[derive(Debug, Clone)]
pub struct Start {
    /// This program, which becomes the child (`launch.rs`).
    pub launcher: PathBuf,
    /// The child's program.
    pub program: PathBuf,
    /// The program's name in the log: its path, or this program's command for the child.
    pub name: String,
    /// All of its environment variables.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether it has standard input. Otherwise that is empty.
    pub has_input: bool,
}

/// A child that answers.
#[derive(Debug, Clone)]
pub struct Running<L> {
    /// The connection to it.
    pub link: L,
    /// The id of its process.
    pub process: u32,
    /// How many children preceded it.
    pub number: u64,
    /// The current picture's steps done and total steps.
    pub steps: Steps,
}

/// Steps done and total steps of the picture that a child is rendering, as they change.
pub type Steps = watch::Receiver<Option<(u32, u32)>>;

#[derive(Debug, Clone)]
enum ChildState<L> {
    /// The first child is starting.
    Starting,
    /// A child is being started in place of a healthy one.
    Restarting,
    Running(Running<L>),
    /// A child has ended and the reason is being determined, or it is being killed.
    Ending,
    Down(String),
}

/// Keeps a child running. Dropping the supervisor kills the child.
#[derive(Debug)]
pub struct Supervisor<L> {
    state: watch::Sender<ChildState<L>>,
    replacements: mpsc::UnboundedSender<(u64, End)>,
    _life: AbortOnDropHandle<()>,
}

impl<L: Clone + Send + Sync + 'static> Supervisor<L> {
    /// Starts a child. Must be called in a runtime.
    pub fn new<P: Program<Link = L>>(program: P, start: Start) -> Self {
        let state = watch::Sender::new(ChildState::Starting);
        let (replacements, requests) = mpsc::unbounded_channel();
        let keeper = Keeper { program: Arc::new(program), start, report: state.clone(), requests, number: 0 };
        Self { state, replacements, _life: AbortOnDropHandle::new(tokio::spawn(keeper.keep())) }
    }

    /// The child that is answering now.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if there is none.
    pub fn running(&self) -> Result<Running<L>, EngineError> {
        match &*self.state.borrow() {
            ChildState::Running(running) => Ok(running.clone()),
            ChildState::Starting | ChildState::Restarting => {
                Err(EngineError::NotAvailable("its process is starting".into()))
            }
            ChildState::Ending => Err(EngineError::NotAvailable("its process has ended".into())),
            ChildState::Down(why) => Err(EngineError::NotAvailable(why.clone())),
        }
    }

    /// Waits until the first child answers or has failed.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] if it has failed.
    pub async fn started(&self) -> Result<Running<L>, EngineError> {
        let mut state = self.state.subscribe();
        // The sender lives as long as this supervisor.
        let is_going =
            |state: &ChildState<L>| matches!(state, ChildState::Starting | ChildState::Restarting | ChildState::Ending);
        let _ = state.wait_for(|state| !is_going(state)).await;
        self.running()
    }

    /// Whether a child is being started after [`Supervisor::restart`].
    pub fn is_restarting(&self) -> bool {
        matches!(&*self.state.borrow(), ChildState::Restarting)
    }

    /// Waits a moment for the reason why the child with this number ended.
    pub async fn end_of(&self, number: u64) -> Option<String> {
        let mut state = self.state.subscribe();
        let has_gone = |state: &ChildState<L>| match state {
            ChildState::Starting | ChildState::Restarting | ChildState::Ending => false,
            ChildState::Running(running) => running.number != number,
            ChildState::Down(_) => true,
        };
        let state = tokio::time::timeout(LAST_MOMENT * 3, state.wait_for(has_gone)).await.ok()?.ok()?;
        if let ChildState::Down(why) = &*state { Some(why.clone()) } else { None }
    }

    /// Kills a child by its number and immediately starts another one. Does nothing if it has ended.
    pub fn replace(&self, number: u64, why: &str) {
        self.end(number, ChildState::Ending, End::Replaced(why.to_owned()));
    }

    /// Replaces a healthy child after its current work.
    pub fn restart(&self, number: u64) {
        self.end(number, ChildState::Restarting, End::Restarted);
    }

    fn end(&self, number: u64, then: ChildState<L>, end: End) {
        // The keeper learns of it later. Until then a child that is about to be killed must not get work.
        self.state.send_if_modified(|state| {
            let runs = matches!(state, ChildState::Running(running) if running.number == number);
            if runs {
                *state = then;
            }
            runs
        });
        // The receiver lives as long as `_life`.
        let _ = self.replacements.send((number, end));
    }
}

#[derive(Debug)]
enum End {
    /// A restart was requested.
    Restarted,
    /// A replacement was requested, for this reason.
    Replaced(String),
    /// It ended or failed by itself.
    Failed(String),
}

struct Keeper<P: Program> {
    program: Arc<P>,
    start: Start,
    report: watch::Sender<ChildState<P::Link>>,
    requests: mpsc::UnboundedReceiver<(u64, End)>,
    number: u64,
}

impl<P: Program> Keeper<P> {
    async fn keep(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            self.number += 1;
            let output = Output::default();
            let end = self.one_child(&output).await;
            if output.is_healthy() {
                pause = FIRST_PAUSE;
            }
            let engine = &self.start.name;
            let why = match end {
                End::Restarted => {
                    self.report.send_replace(ChildState::Restarting);
                    continue;
                }
                End::Replaced(why) => {
                    tracing::warn!(engine, cause = why, "killed the engine process; restarting it");
                    self.report.send_replace(ChildState::Down(why));
                    continue;
                }
                End::Failed(why) => why,
            };
            self.report.send_replace(ChildState::Down(why.clone()));
            let seconds = pause.as_secs();
            tracing::error!(engine, cause = why, "the engine process failed; restarting it in {seconds} s");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A child's life, from start to end.
    async fn one_child(&mut self, output: &Output) -> End {
        let next = match self.program.next() {
            Ok(next) => next,
            Err(why) => return End::Failed(why),
        };
        let mut child = match launch::spawn(&self.start, &next.arguments).await {
            Ok(child) => Group::new(child),
            Err(error) => return End::Failed(format!("cannot start {}: {error}", self.start.name)),
        };
        let link = match (next.link)(&mut child.child) {
            Ok(link) => link,
            Err(why) => return End::Failed(why),
        };
        let process = child.child.id().unwrap_or_default();
        tracing::info!(engine = self.start.name, process, "started the engine process");
        let reading = output.read(&self.start.name, &mut child.child);
        let failed = tokio::select! {
            end = self.watch(link, process, output) => match end {
                End::Failed(why) => why,
                end => {
                    child.kill().await;
                    return end;
                }
            },
            _ = child.child.wait() => String::new(),
        };
        self.report.send_replace(ChildState::Ending);
        // A child that has just ended may first have been found silent.
        let why = match tokio::time::timeout(LAST_MOMENT, child.child.wait()).await {
            // It ended because its input was closed.
            Ok(Ok(status)) if status.success() && !failed.is_empty() => failed,
            // On other paths, only the parent kills it.
            Ok(Ok(status)) if status.signal() == Some(Signal::KILL.as_raw()) => format!(
                "the engine process was killed ({status}): if the kernel log says that memory ran out, use a smaller model"
            ),
            Ok(Ok(status)) => format!("the engine process exited ({status})"),
            Ok(Err(error)) => format!("the engine process exited ({error})"),
            Err(_) => failed,
        };
        child.kill().await;
        // Its last output explains its end. A process that it left behind may hold the pipe open.
        drop(tokio::time::timeout(LAST_MOMENT, reading).await);
        let why = why + &output.last_words();
        let advice = self.program.advice(&why);
        End::Failed(advice.map_or(why.clone(), |advice| format!("{why}: {advice}")))
    }

    /// Waits until the child is ready, then until it stops answering or must be replaced. Doesn't notice its end.
    async fn watch(&mut self, link: P::Link, process: u32, output: &Output) -> End {
        match tokio::time::timeout(START_LIMIT, self.program.begin(&link)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return End::Failed(format!("the engine could not render a first picture: {error}")),
            Err(_) => return End::Failed(format!("the engine was not ready after {} s", START_LIMIT.as_secs())),
        }
        output.set_ready();
        tracing::info!(engine = self.start.name, "the engine process is ready");
        let running = Running { link: link.clone(), process, number: self.number, steps: output.steps() };
        self.report.send_replace(ChildState::Running(running));
        let (mut unanswered, mut answered) = (0, 0);
        loop {
            let request = tokio::time::timeout(ASK_WHILE_RUNNING, self.requests.recv()).await;
            match request {
                Ok(Some((number, end))) if number == self.number => return end,
                // This is about a child that has already ended.
                Ok(_) => continue,
                Err(_) => {}
            }
            match self.ask(&link).await {
                Ok(()) => (unanswered, answered) = (0, answered + 1),
                Err(_) => unanswered += 1,
            }
            if answered == PATIENCE {
                output.set_healthy();
            }
            if unanswered == PATIENCE {
                return End::Failed("the engine process does not respond".into());
            }
        }
    }

    async fn ask(&self, link: &P::Link) -> Result<(), EngineError> {
        answer(self.program.ask(link)).await
    }
}

/// A child and the processes that it started. Dropping the group ends them.
struct Group {
    child: Child,
    id: Option<Pid>,
}

impl Group {
    fn new(child: Child) -> Self {
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Self { child, id }
    }

    async fn kill(&mut self) {
        self.signal();
        if let Err(error) = self.child.wait().await {
            tracing::error!(%error, "could not wait for the engine process to exit");
        }
    }

    fn signal(&mut self) {
        if let Some(group) = self.id.take() {
            // They may all have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal();
    }
}

/// Gives a child a moment to answer.
///
/// # Errors
/// The request's error, or [`EngineError::NotAvailable`] without an answer.
pub async fn answer(request: impl Future<Output = Result<(), EngineError>>) -> Result<(), EngineError> {
    let answer = tokio::time::timeout(ANSWER_LIMIT, request).await;
    answer.unwrap_or_else(|_| Err(EngineError::NotAvailable("no answer".into())))
}

/// A free local port. If another program takes it before the child does, the child ends and is started on another port.
pub fn free_port() -> Result<u16, String> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|error| format!("no port of this machine is free: {error}"))
}

impl<P: Program> fmt::Debug for Keeper<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("start", &self.start).finish_non_exhaustive()
    }
}
