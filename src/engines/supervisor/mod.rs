//! Keeps a child process that renders running: starts it on a port of this machine, waits until it answers, warms it up,
//! watches it, and starts it again when it has ended or hangs.
//!
//! The child dies with this process (`launch.rs`). Whatever happens to it costs the render that it worked on and nothing
//! else.

mod launch;
mod output;

use std::ffi::OsString;
use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
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
pub use launch::{COMMAND, main};

/// A child that does not answer this long after its start is started again: large models load for minutes.
const START_LIMIT: Duration = Duration::from_secs(15 * 60);
const ASK_WHILE_STARTING: Duration = Duration::from_millis(250);
const ASK_WHILE_RUNNING: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// So many unanswered questions in a row make a child that hangs, and so many answered ones a healthy child.
const PATIENCE: u32 = 3;
/// Time for a child that has closed its connections to end, and for its output to be read.
const LAST_MOMENT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A program that serves an engine's protocol.
#[async_trait]
pub trait Program: Send + Sync + 'static {
    /// A connection to one running child.
    type Link: Clone + Send + Sync + 'static;

    /// The arguments that make the program listen on this port of this machine, and nowhere else.
    fn arguments(&self, port: u16) -> Vec<OsString>;

    /// A link to the child on this port. Does not connect.
    ///
    /// # Errors
    /// A sentence for the operator.
    fn link(&self, port: u16) -> Result<Self::Link, String>;

    /// Whether the child answers.
    ///
    /// # Errors
    /// The reason why not.
    async fn ask(&self, link: &Self::Link) -> Result<(), EngineError>;

    /// Renders something small, so that no task waits for what the program does only once.
    ///
    /// # Errors
    /// The reason why the child cannot render.
    async fn warm_up(&self, link: &Self::Link) -> Result<(), EngineError>;
}

/// How a child is started.
#[derive(Debug, Clone)]
pub struct Start {
    /// This program, which becomes the child (`launch.rs`).
    pub launcher: PathBuf,
    /// The program of the child.
    pub program: PathBuf,
    /// Variables of its environment, all of them.
    pub environment: Vec<(OsString, OsString)>,
}

/// A child that answers.
#[derive(Debug, Clone)]
pub struct Running<L> {
    /// The connection to it.
    pub link: L,
    /// How many children came before it.
    pub number: u64,
    /// Steps done and all steps of the picture that it paints.
    pub steps: Steps,
}

/// Steps done and all steps of the picture that a child paints, as they change.
pub type Steps = watch::Receiver<Option<(u32, u32)>>;

#[derive(Debug, Clone)]
enum State<L> {
    Running(Running<L>),
    /// The reason why no child answers.
    Down(String),
}

/// Keeps one child running. Dropping the supervisor kills the child.
#[derive(Debug)]
pub struct Supervisor<L> {
    state: watch::Receiver<State<L>>,
    replacements: mpsc::UnboundedSender<(u64, String)>,
    _life: AbortOnDropHandle<()>,
}

impl<L: Clone + Send + Sync + 'static> Supervisor<L> {
    /// Starts a child, in a runtime.
    pub fn new<P: Program<Link = L>>(program: P, start: Start) -> Self {
        let (report, state) = watch::channel(State::Down("its process is starting".into()));
        let (replacements, requests) = mpsc::unbounded_channel();
        let keeper = Keeper { program: Arc::new(program), start, report, requests, number: 0, name: String::new() };
        Self { state, replacements, _life: AbortOnDropHandle::new(tokio::spawn(keeper.keep())) }
    }

    /// The child that answers now.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`] while there is none.
    pub fn running(&self) -> Result<Running<L>, EngineError> {
        match &*self.state.borrow() {
            State::Running(running) => Ok(running.clone()),
            State::Down(why) => Err(EngineError::NotAvailable(why.clone())),
        }
    }

    /// Kills a child by its number and starts another one at once. Does nothing if it has gone.
    pub fn replace(&self, number: u64, why: &str) {
        // The receiver lives as long as `_life`.
        let _ = self.replacements.send((number, why.to_owned()));
    }
}

/// The end of a child.
enum End {
    /// It was to be replaced.
    Replaced(String),
    /// It ended or failed by itself.
    Failed(String),
}

struct Keeper<P: Program> {
    program: Arc<P>,
    start: Start,
    report: watch::Sender<State<P::Link>>,
    requests: mpsc::UnboundedReceiver<(u64, String)>,
    number: u64,
    /// The program for the log.
    name: String,
}

impl<P: Program> Keeper<P> {
    async fn keep(mut self) {
        self.name = self.start.program.display().to_string();
        let mut pause = FIRST_PAUSE;
        loop {
            self.number += 1;
            let output = Output::default();
            let end = self.one_child(&output).await;
            let (End::Replaced(why) | End::Failed(why)) = &end;
            self.report.send_replace(State::Down(why.clone()));
            if output.is_healthy() {
                pause = FIRST_PAUSE;
            }
            let engine = &self.name;
            if let End::Replaced(why) = end {
                tracing::warn!(engine, cause = why, "killed the engine's process; starting it again");
                continue;
            }
            let seconds = pause.as_secs();
            tracing::error!(engine, cause = why, "the engine's process failed; it is started again in {seconds} s");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The life of one child, from its start to its end.
    async fn one_child(&mut self, output: &Output) -> End {
        let port = match free_port() {
            Ok(port) => port,
            Err(error) => return End::Failed(format!("no port of this machine is free: {error}")),
        };
        let arguments = self.program.arguments(port);
        let mut child = match launch::spawn(&self.start, &arguments).await {
            Ok(child) => Group::new(child),
            Err(error) => return End::Failed(format!("cannot start {}: {error}", self.name)),
        };
        let process = child.child.id().unwrap_or_default();
        tracing::info!(engine = self.name, process, port, "started the engine's process");
        let reading = output.read(&self.name, &mut child.child);
        let failed = tokio::select! {
            end = self.watch(port, output) => match end {
                End::Replaced(why) => {
                    child.kill().await;
                    return End::Replaced(why);
                }
                End::Failed(why) => why,
            },
            _ = child.child.wait() => String::new(),
        };
        self.report.send_replace(State::Down("its process has ended".into()));
        // A child that has just ended may have been found silent first.
        let why = match tokio::time::timeout(LAST_MOMENT, child.child.wait()).await {
            Ok(Ok(status)) => format!("the engine's process ended ({status})"),
            Ok(Err(error)) => format!("the engine's process ended ({error})"),
            Err(_) => failed,
        };
        child.kill().await;
        // Its last words explain its end. A process that it left behind may hold the pipe.
        drop(tokio::time::timeout(LAST_MOMENT, reading).await);
        End::Failed(why + &output.last_words())
    }

    /// Waits until the child answers, and then until it no longer does or is to be replaced. Does not notice its end.
    async fn watch(&mut self, port: u16, output: &Output) -> End {
        let link = match self.program.link(port) {
            Ok(link) => link,
            Err(why) => return End::Failed(why),
        };
        let begin = async {
            while self.ask(&link).await.is_err() {
                tokio::time::sleep(ASK_WHILE_STARTING).await;
            }
            self.program.warm_up(&link).await
        };
        match tokio::time::timeout(START_LIMIT, begin).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return End::Failed(format!("the engine could not render a first picture: {error}")),
            Err(_) => return End::Failed(format!("the engine was not ready after {} s", START_LIMIT.as_secs())),
        }
        output.set_ready();
        tracing::info!(engine = self.name, port, "the engine's process is ready");
        let running = Running { link: link.clone(), number: self.number, steps: output.steps() };
        self.report.send_replace(State::Running(running));
        let (mut unanswered, mut answered) = (0, 0);
        loop {
            let request = tokio::time::timeout(ASK_WHILE_RUNNING, self.requests.recv()).await;
            match request {
                Ok(Some((number, why))) if number == self.number => return End::Replaced(why),
                // About a child that has gone.
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
                return End::Failed("the engine's process does not answer".into());
            }
        }
    }

    async fn ask(&self, link: &P::Link) -> Result<(), EngineError> {
        let asked = tokio::time::timeout(ANSWER_LIMIT, self.program.ask(link)).await;
        asked.unwrap_or_else(|_| Err(EngineError::NotAvailable("no answer".into())))
    }
}

/// A child and the processes that it started. They end when it is dropped.
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
            tracing::error!(%error, "could not wait for the end of the engine's process");
        }
    }

    fn signal(&mut self) {
        if let Some(group) = self.id.take() {
            // All of them may have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal();
    }
}

/// A port of this machine on which nothing listens. Another program may take it before the child does; the child then
/// ends and is started on another port.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl<P: Program> fmt::Debug for Keeper<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("start", &self.start).finish_non_exhaustive()
    }
}
