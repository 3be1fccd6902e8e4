//! Decodes untrusted pictures in a child process, so that a decoder that crashes, hangs, runs out of memory or is
//! exploited costs that process and nothing else.
//!
//! The child runs this program with an empty environment and decodes one picture. It confines itself
//! (`confinement.rs`) before it reads the first byte, reads the file from standard input and writes a short header and
//! RGB bytes to standard output. The parent trusts nothing in the output and checks that the size matches the header.

mod child;
mod confinement;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use rustix::pipe::fcntl_setpipe_size;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use crate::locked::Locked as _;
use tintype_engine::Mask;
use tintype_engine::picture::{Picture, PictureError, REFERENCE_SIDE, RESULT_SIDE};

pub use child::main;
pub use confinement::{CPU_SECONDS, MEMORY_BYTES, confine_engine, end_before_service};

/// The hidden command that starts a decoder process.
pub const COMMAND: &str = "decode-picture";
/// This program, even after an upgrade has replaced its file.
pub const OWN_PROGRAM: &str = "/proc/self/exe";
/// Time limit for one picture, including time spent waiting for the CPU.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Length of the header: outcome, confinement, then width and height in big-endian.
const HEADER_BYTES: usize = 10;

const PICTURE: u8 = 0;
const UNKNOWN_FORMAT: u8 = 1;
const TOO_LARGE: u8 = 2;
const DAMAGED: u8 = 3;
const NO_ALPHA: u8 = 4;

/// Time between a picture and the start of the process for another one.
const REFILL_AFTER: Duration = Duration::from_millis(200);

/// The argument after the side of a picture that is a mask.
pub const AS_MASK: &str = "--mask";

/// Bytes that a pipe to or from a process holds: what Linux lets every user ask for.
const PIPE_BYTES: usize = 1 << 20;

/// Each process may take [`MEMORY_BYTES`] and a whole core, so the server runs few, however many tasks there are. These
/// are for images of callers.
static DECODERS: Semaphore = Semaphore::const_new(2);
/// For results, which do not wait behind images of callers that are slow on purpose.
static RESULT_DECODERS: Semaphore = Semaphore::const_new(MAX_RESULT_DECODERS);
const MAX_RESULT_DECODERS: usize = 1;
static WARN_ABOUT_CONFINEMENT: Once = Once::new();

/// Failure to decode a picture.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The decoder rejected the picture.
    #[error("{0}")]
    Picture(#[from] PictureError),
    /// The process ended without an answer.
    #[error("decoder: {0}")]
    Crashed(ExitStatus),
    /// Someone killed the process, most likely the kernel for want of memory. A decoder that takes too much itself ends
    /// in other ways.
    #[error("the decoder was killed: the machine or its container may have too little memory")]
    Killed,
    /// The answer is not a picture of the size in its header.
    #[error("the decoder sent an invalid answer")]
    Garbled,
    /// The process exceeded its time limit and was killed.
    #[error("the decoder took longer than {} s", .0.as_secs_f64())]
    TimeLimit(Duration),
    /// The process could not be started, for reasons unrelated to the picture.
    #[error("the decoder could not be started, which needs /proc and /dev/null: {0}")]
    NotStarted(io::Error),
}

/// How a decoder process is isolated from the rest of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// Resource limits, and a filter that allows only the system calls that decoding needs.
    Full,
    /// Resource limits only, because the kernel has no system call filter.
    LimitsOnly,
}

/// Starts decoder processes.
#[derive(Debug, Clone)]
pub struct Decoder {
    program: PathBuf,
    time_limit: Duration,
    /// Processes that wait for the result of an engine.
    ready: Option<Arc<Mutex<Vec<Child>>>>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(OWN_PROGRAM)
    }
}

impl Decoder {
    /// Creates a decoder whose processes run `program`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), time_limit: TIME_LIMIT, ready: None }
    }

    /// Keeps processes ready after the first [`Decoder::decode_result`], so that the next result need not wait until one has
    /// started and confined itself. Each still decodes one picture and ends. They end with the last clone of this decoder.
    pub fn keeping_ready(self) -> Self {
        Self { ready: Some(Arc::default()), ..self }
    }

    /// The program that the processes run: this one.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Replaces the time limit.
    pub fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// Runs [`Picture::decode`] in a decoder process. Dropping the future kills the process.
    pub async fn decode(&self, bytes: &[u8]) -> Result<Picture, DecodeError> {
        self.decode_within(bytes, REFERENCE_SIDE).await
    }

    /// Decodes a picture that an engine returned, which is scaled down to [`RESULT_SIDE`] pixels per side at most.
    pub async fn decode_result(&self, bytes: &[u8]) -> Result<Picture, DecodeError> {
        self.decode_within(bytes, RESULT_SIDE).await
    }

    /// Runs [`Mask::decode_within`] in a decoder process, at the scale of [`Decoder::decode`].
    pub async fn decode_mask(&self, bytes: &[u8]) -> Result<Mask, DecodeError> {
        Ok(Mask::of(self.decode_as(bytes, REFERENCE_SIDE, true).await?))
    }

    async fn decode_within(&self, bytes: &[u8], side: u32) -> Result<Picture, DecodeError> {
        self.decode_as(bytes, side, false).await
    }

    async fn decode_as(&self, bytes: &[u8], side: u32, is_mask: bool) -> Result<Picture, DecodeError> {
        let (picture, confinement) = self.run(bytes, side, is_mask).await?;
        if confinement == Confinement::LimitsOnly {
            WARN_ABOUT_CONFINEMENT.call_once(|| {
                tracing::warn!("seccomp is not available: pictures are decoded under resource limits only");
            });
        }
        Ok(picture)
    }

    /// Decodes a small known picture to find out how decoder processes are confined on this machine.
    ///
    /// # Errors
    /// [`DecodeError`]; its cause is this machine, not the picture.
    pub async fn probe(&self) -> Result<Confinement, DecodeError> {
        let white = Picture::from_rgb(1, 1, vec![255; 3]).ok_or(DecodeError::Garbled)?;
        let (picture, confinement) = self.run(&white.to_png(), REFERENCE_SIDE, false).await?;
        if picture == white { Ok(confinement) } else { Err(DecodeError::Garbled) }
    }

    async fn run(&self, bytes: &[u8], side: u32, is_mask: bool) -> Result<(Picture, Confinement), DecodeError> {
        let is_result = side == RESULT_SIDE && !is_mask;
        let permits = if is_result { &RESULT_DECODERS } else { &DECODERS };
        let _permit = permits.acquire().await.expect("the semaphore is never closed");
        let ready = self.ready.as_ref().filter(|_| is_result);
        let mut child = match ready.and_then(take_ready) {
            Some(child) => child,
            None => self.start(side, is_mask).map_err(DecodeError::NotStarted)?,
        };
        let exchanged = tokio::time::timeout(self.time_limit, exchange(&mut child, bytes, side)).await;
        if let Some(ready) = ready {
            self.refill(ready.clone());
        }
        let error = match exchanged {
            Ok(Ok((status, answer))) if status.success() => return answer.picture(side),
            Ok(Ok((status, _))) if status.signal() == Some(Signal::KILL.as_raw()) => DecodeError::Killed,
            Ok(Ok((status, _))) => DecodeError::Crashed(status),
            Ok(Err(error)) => error,
            Err(_) => DecodeError::TimeLimit(self.time_limit),
        };
        // Wait for the process to end, so that the permit is released no earlier.
        if let Err(error) = child.kill().await {
            tracing::error!(%error, "could not kill a decoder process; it ends when it exceeds its CPU limit");
        }
        Err(error)
    }

    /// Starts missing processes, once the current picture has probably been encoded and stored: starting them takes a
    /// few milliseconds of a core.
    fn refill(&self, ready: Arc<Mutex<Vec<Child>>>) {
        let decoder = Self { ready: None, ..self.clone() };
        tokio::spawn(async move {
            tokio::time::sleep(REFILL_AFTER).await;
            let mut ready = ready.locked();
            while ready.len() < MAX_RESULT_DECODERS {
                match decoder.start(RESULT_SIDE, false) {
                    Ok(child) => ready.push(child),
                    // The next picture starts its own process, and reports why that fails.
                    Err(_) => return,
                }
            }
        });
    }

    fn start(&self, side: u32, is_mask: bool) -> io::Result<Child> {
        let child = Command::new(&self.program)
            .arg0("tintype")
            .arg(COMMAND)
            .arg(side.to_string())
            .args(is_mask.then_some(AS_MASK))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        // With the usual 64 KiB both sides would wait for each other dozens of times. A machine may allow no more.
        for pipe in
            [child.stdin.as_ref().map(AsFd::as_fd), child.stdout.as_ref().map(AsFd::as_fd)].into_iter().flatten()
        {
            let _ = fcntl_setpipe_size(pipe, PIPE_BYTES);
        }
        Ok(child)
    }
}

/// A process that waits for a picture. One that the machine has killed meanwhile is left out.
fn take_ready(ready: &Arc<Mutex<Vec<Child>>>) -> Option<Child> {
    let mut ready = ready.locked();
    while let Some(mut child) = ready.pop() {
        if matches!(child.try_wait(), Ok(None)) {
            return Some(child);
        }
    }
    None
}

#[derive(Debug, Default)]
struct Answer {
    header: Vec<u8>,
    rest: Vec<u8>,
}

/// Writes the file and reads the answer concurrently, up to the longest valid answer.
async fn exchange(child: &mut Child, bytes: &[u8], side: u32) -> Result<(ExitStatus, Answer), DecodeError> {
    let max_bytes = 3 * (side as usize) * (side as usize);
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(DecodeError::Garbled);
    };
    let write = async move {
        // If the process stops reading, its exit status explains more than the write error.
        let _ = input.write_all(bytes).await;
        drop(input);
    };
    let read = async move {
        let mut answer = Answer::default();
        let mut header = (&mut output).take(HEADER_BYTES as u64);
        header.read_to_end(&mut answer.header).await.map_err(|_| DecodeError::Garbled)?;
        // One byte more shows an answer that is too long.
        answer.rest.reserve_exact(answer.announced().min(max_bytes) + 1);
        let rest = output.take(max_bytes as u64 + 1).read_to_end(&mut answer.rest).await;
        rest.map(|_| answer).map_err(|_| DecodeError::Garbled)
    };
    let mut write = std::pin::pin!(write);
    let mut read = std::pin::pin!(read);
    let answer = tokio::select! {
        answer = &mut read => answer?,
        () = &mut write => read.await?,
    };
    if answer.rest.len() > max_bytes {
        return Err(DecodeError::Garbled);
    }
    let status = child.wait().await.map_err(|_| DecodeError::Garbled)?;
    Ok((status, answer))
}

impl Answer {
    /// The outcome, the confinement, the width and the height.
    fn fields(&self) -> Option<(u8, Confinement, u32, u32)> {
        let [outcome, confinement, w0, w1, w2, w3, h0, h1, h2, h3] = *self.header.first_chunk::<HEADER_BYTES>()?;
        let confinement = if confinement == 1 { Confinement::Full } else { Confinement::LimitsOnly };
        let (width, height) = (u32::from_be_bytes([w0, w1, w2, w3]), u32::from_be_bytes([h0, h1, h2, h3]));
        Some((outcome, confinement, width, height))
    }

    /// Bytes of the picture that the header announces, which may be wrong.
    fn announced(&self) -> usize {
        self.fields().map_or(0, |(_, _, width, height)| {
            [height as usize, 3].into_iter().fold(width as usize, usize::saturating_mul)
        })
    }

    fn picture(self, side: u32) -> Result<(Picture, Confinement), DecodeError> {
        let (outcome, confinement, width, height) = self.fields().ok_or(DecodeError::Garbled)?;
        match outcome {
            PICTURE => {}
            UNKNOWN_FORMAT => return Err(PictureError::UnknownFormat.into()),
            TOO_LARGE => return Err(PictureError::TooLarge.into()),
            NO_ALPHA => return Err(PictureError::NoAlpha.into()),
            DAMAGED => {
                return Err(PictureError::Damaged(String::from_utf8_lossy(&self.rest).into_owned()).into());
            }
            _ => return Err(DecodeError::Garbled),
        }
        let sides = 1..=side;
        if !sides.contains(&width) || !sides.contains(&height) || self.rest.len() != self.announced() {
            return Err(DecodeError::Garbled);
        }
        let picture = Picture::from_rgb(width, height, self.rest).ok_or(DecodeError::Garbled)?;
        Ok((picture, confinement))
    }
}
