//! Downloads one file: resumes it, verifies it, and renames it when complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Response, StatusCode};
use rustix::fs::OFlags;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::hub::{Hub, HubError};
use super::manifest::ModelFile;
use super::selection::RemoteFile;
use tintype_domain::text::hex;

/// Consecutive failures, without [`PROGRESS`] in between, after which a download ends.
const MAX_FAILURES: u32 = 6;
/// Bytes downloaded after which the failure count restarts.
const PROGRESS: u64 = 1 << 20;
/// Bytes that must arrive within the stall limit: a peer that sends less only keeps the connection open.
const LEAST: u64 = 16 << 10;
/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Bytes read and hashed at a time.
const BLOCK: usize = 1 << 20;

/// Receives progress of a long operation.
pub trait ProgressSink {
    /// There are `total` bytes to download, and `done` of them are already there.
    fn begin(&self, total: u64, done: u64);
    /// `bytes` more have arrived; negative if a file is restarted.
    fn advance(&self, bytes: i64);
    /// A line for the operator.
    fn report(&self, line: &str);
}

/// Running checksums of consecutive bytes.
#[derive(Clone)]
struct Checksums {
    sha256: Sha256,
    git: Sha1,
}

impl Checksums {
    /// Starts on a file of `bytes` bytes.
    fn new(bytes: u64) -> Self {
        Self { sha256: Sha256::new(), git: Sha1::new().chain_update(format!("blob {bytes}\0")) }
    }

    /// Hashes more bytes. Git's SHA-1 is only needed for small files, which have no other checksum.
    fn update(&mut self, bytes: &[u8], file: &RemoteFile) {
        self.sha256.update(bytes);
        if file.sha256.is_none() {
            self.git.update(bytes);
        }
    }

    /// The SHA-256, if it matches the file's.
    fn verify(self, file: &RemoteFile) -> Option<String> {
        let sha256 = hex(&self.sha256.finalize());
        let matches = match (&file.sha256, &file.git_sha1) {
            (Some(expected), _) => *expected == sha256,
            (None, Some(expected)) => *expected == hex(&self.git.finalize()),
            (None, None) => false,
        };
        matches.then_some(sha256)
    }
}

struct Part<'a> {
    file: &'a RemoteFile,
    path: PathBuf,
    target: PathBuf,
    open: File,
    written: u64,
    checksums: Checksums,
}

/// The path of an incomplete file.
pub(super) fn part_of(target: &Path) -> PathBuf {
    target.with_added_extension("part")
}

fn read_blocks(open: &mut File, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        match open.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(length) => take(&block[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn checksums(open: &mut File, file: &RemoteFile) -> io::Result<Checksums> {
    let mut checksums = Checksums::new(file.bytes);
    read_blocks(open, |block| checksums.update(block, file))?;
    Ok(checksums)
}

/// A file's SHA-256. Reports the bytes read to `sink`.
///
/// # Errors
/// If it cannot be read.
pub(super) fn sha256(open: &mut File, sink: &dyn ProgressSink) -> io::Result<String> {
    let mut sha256 = Sha256::new();
    read_blocks(open, |block| {
        sha256.update(block);
        sink.advance(i64::try_from(block.len()).unwrap_or(0));
    })?;
    Ok(hex(&sha256.finalize()))
}

/// Downloads a file from `url` into `folder`, unless it is there, and returns it with its SHA-256.
///
/// # Errors
/// A message for the operator. Downloaded bytes are kept, unless they are wrong.
pub(super) async fn fetch(
    hub: &Hub,
    url: &str,
    page: &str,
    file: &RemoteFile,
    folder: &Path,
    sink: &dyn ProgressSink,
) -> Result<ModelFile, String> {
    let target = folder.join(&file.path);
    let whole = |sha256: String| ModelFile { path: file.path.clone(), bytes: file.bytes, sha256: Some(sha256) };
    if let Some(sha256) = there(&target, file).map_err(|error| failed(&target, &error))? {
        return Ok(whole(sha256));
    }
    let mut part =
        Part::open(file, target).await.map_err(|error| failed(&part_of(&folder.join(&file.path)), &error))?;
    let (mut failures, mut began_anew, mut pause) = (0, false, hub.limits.pause);
    loop {
        let before = part.written;
        let trouble = match part.download(hub, url, page, sink).await {
            Ok(()) => match part.finish(sink)? {
                Some(sha256) => return Ok(whole(sha256)),
                None if began_anew => {
                    return Err(format!("{} is not the file that the hub promised: its checksum differs", file.path));
                }
                None => {
                    began_anew = true;
                    HubError::Passing("the checksum differs".into(), None)
                }
            },
            Err(trouble) => trouble,
        };
        let (reason, after) = match trouble {
            HubError::Final(reason) => return Err(reason),
            HubError::Passing(reason, after) => (reason, after),
            HubError::Misfit(reason) => (reason, None),
        };
        if part.written >= before.saturating_add(PROGRESS) {
            (failures, pause) = (0, hub.limits.pause);
        }
        failures += 1;
        if failures >= MAX_FAILURES {
            return Err(format!("{}: {reason}, {MAX_FAILURES} times in a row", file.path));
        }
        sink.report(&format!("{}: {reason}; retrying", file.path));
        tokio::time::sleep(after.unwrap_or(pause)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// The SHA-256 of a file that is already complete and verified. If the hub gave the SHA-256, only the length is
/// compared, because the file got its name after it was verified and synced.
fn there(target: &Path, file: &RemoteFile) -> io::Result<Option<String>> {
    let mut open = match OpenOptions::new().read(true).custom_flags(flags()).open(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        open => open?,
    };
    let metadata = open.metadata()?;
    if !metadata.is_file() || metadata.len() != file.bytes {
        return Ok(None);
    }
    match &file.sha256 {
        Some(sha256) => Ok(Some(sha256.clone())),
        None => Ok(checksums(&mut open, file)?.verify(file)),
    }
}

/// Opens no symbolic links, and doesn't wait for pipes.
fn flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

fn failed(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("the disk is full ({}): make room and run the command again, which continues", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    }
}

impl<'a> Part<'a> {
    /// Opens the partial file, and hashes the bytes that arrived earlier.
    async fn open(file: &'a RemoteFile, target: PathBuf) -> io::Result<Self> {
        let path = part_of(&target);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags());
        let mut open = options.open(&path)?;
        if !open.metadata()?.is_file() {
            return Err(io::Error::other("is not a file"));
        }
        let mut written = open.metadata()?.len();
        if written > file.bytes {
            open.set_len(0)?;
            written = 0;
        }
        // On another thread: hashing gigabytes takes seconds, and this thread must keep handling signals.
        let copy = file.clone();
        let hashing =
            tokio::task::spawn_blocking(move || checksums(&mut open, &copy).map(|checksums| (open, checksums)));
        let (open, checksums) = hashing.await.map_err(io::Error::other)??;
        Ok(Self { file, path, target, open, written, checksums })
    }

    fn clear(&mut self, sink: &dyn ProgressSink) -> Result<(), String> {
        let cleared = self.open.set_len(0).and_then(|()| self.open.seek(SeekFrom::Start(0)));
        cleared.map_err(|error| failed(&self.path, &error))?;
        sink.advance(i64::try_from(self.written).unwrap_or(0).saturating_neg());
        self.written = 0;
        self.checksums = Checksums::new(self.file.bytes);
        Ok(())
    }

    async fn download(&mut self, hub: &Hub, url: &str, page: &str, sink: &dyn ProgressSink) -> Result<(), HubError> {
        if self.written == self.file.bytes {
            return Ok(());
        }
        let asked = hub.file(url, page, &self.file.path, self.written, self.file.bytes).await;
        let mut response = match asked {
            // If a server cannot continue, the next request is for everything.
            Err(trouble @ HubError::Misfit(_)) => {
                self.clear(sink).map_err(HubError::Final)?;
                return Err(trouble);
            }
            asked => asked?,
        };
        if response.status() == StatusCode::OK && self.written > 0 {
            self.clear(sink).map_err(HubError::Final)?;
        }
        while self.window(hub, &mut response, sink).await? {}
        if self.written < self.file.bytes {
            let missing = self.file.bytes - self.written;
            return Err(HubError::Passing(format!("the answer ended {missing} bytes too early"), None));
        }
        Ok(())
    }

    /// Reads for one stall limit, in which some bytes must arrive. Returns whether there may be more.
    async fn window(&mut self, hub: &Hub, response: &mut Response, sink: &dyn ProgressSink) -> Result<bool, HubError> {
        let window = async {
            let mut arrived = 0;
            while arrived < LEAST {
                let Some(chunk) = hub.chunk(response).await? else { return Ok(false) };
                arrived = arrived.saturating_add(chunk.len() as u64);
                self.append(&chunk, sink)?;
            }
            Ok(true)
        };
        let in_time = tokio::time::timeout(hub.limits.stall, window).await;
        in_time.map_err(|_| HubError::Passing("the server sends nearly nothing".into(), None))?
    }

    fn append(&mut self, chunk: &[u8], sink: &dyn ProgressSink) -> Result<(), HubError> {
        if chunk.len() as u64 > self.file.bytes - self.written {
            self.clear(sink).map_err(HubError::Final)?;
            let expected = self.file.bytes;
            return Err(HubError::Passing(
                format!("the server sends more than the {expected} bytes of the file"),
                None,
            ));
        }
        self.open.write_all(chunk).map_err(|error| HubError::Final(failed(&self.path, &error)))?;
        self.checksums.update(chunk, self.file);
        self.written += chunk.len() as u64;
        sink.advance(i64::try_from(chunk.len()).unwrap_or(0));
        Ok(())
    }

    /// Verifies the file and renames it. `None` if its bytes are wrong; they are then deleted.
    fn finish(&mut self, sink: &dyn ProgressSink) -> Result<Option<String>, String> {
        let Some(sha256) = self.checksums.clone().verify(self.file) else {
            return self.clear(sink).map(|()| None);
        };
        // The content must be on the disk before the name says that it is complete.
        let done = self.open.sync_all().and_then(|()| fs::rename(&self.path, &self.target));
        done.map_err(|error| failed(&self.path, &error))?;
        sink.report(&format!("{} is complete", self.file.path));
        Ok(Some(sha256))
    }
}
