//! Decodes pictures of strangers in a process of its own, so that a decoder that crashes, swells, hangs or is taken
//! over costs that process and nothing else.
//!
//! The process is this program once more, started for one picture without environment. It confines itself
//! (`confinement.rs`) before it reads the first byte, takes the file on standard input and answers on standard output
//! with a short header and RGB. The answer is believed no further than its size.

mod child;
mod confinement;

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Once;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use tintype_engine::picture::{Picture, PictureError, REFERENCE_SIDE};

pub use child::main;
pub use confinement::{CPU_SECONDS, MEMORY_BYTES};

/// The hidden command that a decoding process is started with.
pub const COMMAND: &str = "decode-picture";
/// This program, even after its file has been replaced by another version.
pub const OWN_PROGRAM: &str = "/proc/self/exe";
/// Longest that one picture may take, waiting for the processor included.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// What an answer begins with: an outcome, how well the process is confined, and width and height in big-endian.
const HEADER_BYTES: usize = 10;
const MAX_ANSWER_BYTES: usize = HEADER_BYTES + 3 * (REFERENCE_SIDE as usize) * (REFERENCE_SIDE as usize);

const PICTURE: u8 = 0;
const UNKNOWN_FORMAT: u8 = 1;
const TOO_LARGE: u8 = 2;
const DAMAGED: u8 = 3;

/// Each may take [`MEMORY_BYTES`] and a whole core, so the server runs few, whatever the number of tasks.
const MAX_DECODERS: usize = 2;
static DECODERS: Semaphore = Semaphore::const_new(MAX_DECODERS);
static LOOSELY_CONFINED: Once = Once::new();

/// Why a picture was not decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The decoder's own judgement.
    #[error("{0}")]
    Picture(#[from] PictureError),
    /// The process ended otherwise than by answering.
    #[error("decoder: {0}")]
    Crashed(ExitStatus),
    /// The process answered something else than a picture of the size it announced.
    #[error("the decoder's answer makes no sense")]
    Garbled,
    /// The process took too long and was killed.
    #[error("the decoder took longer than {} s", .0.as_secs_f64())]
    TimeLimit(Duration),
    /// No process could be started, which is no fault of the picture.
    #[error("no decoder could be started: {0}")]
    NotStarted(io::Error),
}

/// How far a decoding process is kept from the rest of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// Limits, and no system calls but those that computing takes.
    Full,
    /// Limits only: the kernel does not filter system calls.
    LimitsOnly,
}

/// Starts decoding processes.
#[derive(Debug, Clone)]
pub struct Decoder {
    program: PathBuf,
    time_limit: Duration,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(OWN_PROGRAM)
    }
}

impl Decoder {
    /// A decoder whose processes run `program`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), time_limit: TIME_LIMIT }
    }

    /// The same, with another limit of time.
    pub fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// As [`Picture::decode`], elsewhere. Dropping the future kills the process.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub async fn decode(&self, bytes: &[u8]) -> Result<Picture, DecodeError> {
        let (picture, confinement) = self.run(bytes).await?;
        if confinement == Confinement::LimitsOnly {
            LOOSELY_CONFINED.call_once(|| {
                tracing::warn!("the kernel filters no system calls: pictures are decoded under limits only");
            });
        }
        Ok(picture)
    }

    /// Decodes a small picture of our own to see how it is done on this machine.
    ///
    /// # Errors
    /// [`DecodeError`], which is the machine's fault.
    pub async fn probe(&self) -> Result<Confinement, DecodeError> {
        let white = Picture::from_rgb(1, 1, vec![255; 3]).ok_or(DecodeError::Garbled)?;
        let (picture, confinement) = self.run(&white.to_png()).await?;
        if picture == white { Ok(confinement) } else { Err(DecodeError::Garbled) }
    }

    async fn run(&self, bytes: &[u8]) -> Result<(Picture, Confinement), DecodeError> {
        let _turn = DECODERS.acquire().await.expect("the semaphore is never closed");
        let mut child = self.start().map_err(DecodeError::NotStarted)?;
        let conversation = tokio::time::timeout(self.time_limit, converse(&mut child, bytes)).await;
        let answer = match conversation {
            Ok(Ok((status, answer))) if status.success() => return read(&answer),
            Ok(Ok((status, _))) => DecodeError::Crashed(status),
            Ok(Err(error)) => error,
            Err(_) => DecodeError::TimeLimit(self.time_limit),
        };
        // Waited for, so that its turn ends no earlier than the process.
        if let Err(error) = child.kill().await {
            tracing::error!(%error, "a decoding process could not be killed");
        }
        Err(answer)
    }

    fn start(&self) -> io::Result<Child> {
        Command::new(&self.program)
            .arg0("tintype")
            .arg(COMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
    }
}

/// Hands the file over and takes what comes back, in any order, up to the longest answer.
async fn converse(child: &mut Child, bytes: &[u8]) -> Result<(ExitStatus, Vec<u8>), DecodeError> {
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(DecodeError::Garbled);
    };
    let write = async move {
        // A process that stops reading has its reasons, which its end tells better.
        let _ = input.write_all(bytes).await;
        drop(input);
    };
    let read = async move {
        let mut answer = Vec::new();
        let outcome = output.take(MAX_ANSWER_BYTES as u64 + 1).read_to_end(&mut answer).await;
        outcome.map(|_| answer).map_err(|_| DecodeError::Garbled)
    };
    let mut write = std::pin::pin!(write);
    let mut read = std::pin::pin!(read);
    let answer = tokio::select! {
        answer = &mut read => answer?,
        () = &mut write => read.await?,
    };
    if answer.len() > MAX_ANSWER_BYTES {
        return Err(DecodeError::Garbled);
    }
    let status = child.wait().await.map_err(|_| DecodeError::Garbled)?;
    Ok((status, answer))
}

fn read(answer: &[u8]) -> Result<(Picture, Confinement), DecodeError> {
    let (header, rgb) = answer.split_first_chunk::<HEADER_BYTES>().ok_or(DecodeError::Garbled)?;
    let [outcome, confinement, w0, w1, w2, w3, h0, h1, h2, h3] = *header;
    match outcome {
        PICTURE => {}
        UNKNOWN_FORMAT => return Err(PictureError::UnknownFormat.into()),
        TOO_LARGE => return Err(PictureError::TooLarge.into()),
        DAMAGED => return Err(PictureError::Damaged(String::from_utf8_lossy(rgb).into_owned()).into()),
        _ => return Err(DecodeError::Garbled),
    }
    let (width, height) = (u32::from_be_bytes([w0, w1, w2, w3]), u32::from_be_bytes([h0, h1, h2, h3]));
    let sides = 1..=REFERENCE_SIDE;
    if !sides.contains(&width) || !sides.contains(&height) || rgb.len() as u64 != u64::from(width * height) * 3 {
        return Err(DecodeError::Garbled);
    }
    let picture = Picture::from_rgb(width, height, rgb.to_vec()).ok_or(DecodeError::Garbled)?;
    let confinement = if confinement == 1 { Confinement::Full } else { Confinement::LimitsOnly };
    Ok((picture, confinement))
}
