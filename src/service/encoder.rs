//! Pictures as answers carry them, in base64: encoded once for all callers of a task, with bounds on the encoders and the
//! memory that all accounts share. A picture counts as memory until the last connection has sent its last byte of it.

use std::collections::{HashMap, VecDeque};
use std::io::Cursor;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ImageFormat, ImageReader, ImageResult};
use tokio::sync::OnceCell;

use crate::files::{FileName, FilesError};
use crate::service::ServiceContext;
use crate::service::shares::{Share, Shares};
use tintype_domain::images_api_request::OutputFormat;
use tintype_domain::model::Id;
use tintype_system::locked::Locked as _;

/// Bytes of pictures that connections and the cache hold.
const MEMORY: usize = 256 << 20;
/// Bytes of copies that answers other than OpenAI's hold.
const COPIES: usize = 128 << 20;
/// Bytes of pictures that are kept for the next caller, and of those of one account.
const KEPT: usize = 32 << 20;
const KEPT_OF_ACCOUNT: usize = KEPT / 2;
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Answers whose pictures are encoded at the same time.
const SLOTS: usize = 4;
/// The estimate of a picture in base64 until it is encoded, in bytes.
pub const PICTURE_BYTES: usize = 4 << 20;
/// Longest wait for memory.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// Encodes pictures.
#[derive(Debug)]
pub struct Encoder {
    shared: Arc<ServiceContext>,
    state: Arc<Mutex<EncoderState>>,
    slots: Shares,
    memory: Shares,
    copies: Shares,
    encoded: AtomicU64,
}

type Key = (OutputFormat, Vec<String>);

#[derive(Debug, Default)]
struct EncoderState {
    answers: HashMap<Key, Weak<EncodedAnswer>>,
    /// Oldest first, with the times at which they were last wanted.
    kept: VecDeque<(Duration, Arc<EncodedAnswer>)>,
}

#[derive(Debug)]
struct EncodedAnswer {
    key: Key,
    account_id: Id,
    pictures: OnceCell<Vec<Bytes>>,
    state: Weak<Mutex<EncoderState>>,
}

/// The pictures of an answer. Callers that want the same pictures meanwhile get these.
#[derive(Debug, Clone)]
pub struct Encoded {
    answer: Arc<EncodedAnswer>,
}

/// Pictures could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The answers of this account, or of all, have taken their memory for a long time.
    #[error("too many answers are being received")]
    Crowded,
    /// A file could not be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file is not as we have written it.
    #[error("{0}")]
    Damaged(String),
}

struct Text {
    text: String,
    _room: Arc<Share>,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Encoder {
    /// Encodes result files.
    pub fn new(shared: Arc<ServiceContext>) -> Arc<Self> {
        let (slots, memory, copies) = (Shares::new(SLOTS), Shares::new(MEMORY), Shares::new(COPIES));
        Arc::new(Self { shared, state: Arc::default(), slots, memory, copies, encoded: AtomicU64::new(0) })
    }

    /// Pictures that were encoded so far.
    pub fn encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    /// The memory of pictures, in bytes.
    pub fn memory(&self) -> &Shares {
        &self.memory
    }

    /// The memory of copies, in bytes.
    pub fn copies(&self) -> &Shares {
        &self.copies
    }

    /// The encoders, each of which works on one answer at a time.
    pub fn slots(&self) -> &Shares {
        &self.slots
    }

    /// The pictures in these files of an account. They are encoded once for callers that want them at the same time.
    pub async fn pictures(
        &self,
        account_id: Id,
        format: OutputFormat,
        names: &[String],
    ) -> Result<Encoded, EncodeError> {
        let answer = self.answer(account_id, (format, names.to_vec()));
        answer.pictures.get_or_try_init(|| self.encode(account_id, format, names)).await?;
        self.keep(answer.clone());
        Ok(Encoded { answer })
    }

    /// Memory for copies of pictures in the answer to an account.
    ///
    /// # Errors
    /// [`EncodeError::Crowded`].
    pub async fn room_for_copies(&self, account_id: Id, bytes: usize) -> Result<Share, EncodeError> {
        room(&self.copies, account_id, bytes).await
    }

    fn answer(&self, account_id: Id, key: Key) -> Arc<EncodedAnswer> {
        let mut state = self.state.locked();
        if let Some(answer) = state.answers.get(&key).and_then(Weak::upgrade) {
            return answer;
        }
        let (pictures, weak) = (OnceCell::new(), Arc::downgrade(&self.state));
        let answer = Arc::new(EncodedAnswer { key: key.clone(), account_id, pictures, state: weak });
        state.answers.insert(key, Arc::downgrade(&answer));
        answer
    }

    async fn encode(&self, account_id: Id, format: OutputFormat, names: &[String]) -> Result<Vec<Bytes>, EncodeError> {
        let estimate = names.len() * PICTURE_BYTES;
        if !self.memory.is_free(account_id, estimate) {
            self.forget();
        }
        let mut room = room(&self.memory, account_id, estimate).await?;
        // Before the files are read, so that no more than a few are in memory.
        let _slot = self.slots.take(account_id, 1).await;
        let mut texts = Vec::with_capacity(names.len());
        for name in names {
            let name = FileName::parse(name).ok_or_else(|| damaged("a result file has a malformed name"))?;
            let png = self.shared.files.read(name).await?.ok_or_else(|| damaged("a result file is missing"))?;
            self.encoded.fetch_add(1, Ordering::Relaxed);
            // One at a time: for a caller who hangs up, no further ones are encoded.
            let encoded = tokio::task::spawn_blocking(move || in_base64(format, &png)).await.map_err(damaged)?;
            texts.push(encoded.map_err(damaged)?);
        }
        room.correct(texts.iter().map(String::len).sum());
        let room = Arc::new(room);
        Ok(texts.into_iter().map(|text| Bytes::from_owner(Text { text, _room: room.clone() })).collect())
    }

    /// Keeps pictures for the next caller, unless someone waits for memory.
    fn keep(&self, answer: Arc<EncodedAnswer>) {
        let now = self.shared.clock.elapsed();
        let awaited = self.memory.is_awaited();
        let mut state = self.state.locked();
        let mut all = std::mem::take(&mut state.kept);
        all.retain(|(_, kept)| !Arc::ptr_eq(kept, &answer));
        let account_id = answer.account_id;
        all.push_back((now, answer));
        let (mut left, mut left_of_account) = (KEPT, KEPT_OF_ACCOUNT);
        let mut unwanted = Vec::new();
        for (since, kept) in all.into_iter().rev() {
            let bytes = kept.bytes();
            let of_account = if kept.account_id == account_id { bytes } else { 0 };
            let is_old = now.saturating_sub(since) > KEPT_FOR;
            if awaited || is_old || bytes > left || of_account > left_of_account {
                unwanted.push(kept);
                continue;
            }
            left -= bytes;
            left_of_account -= of_account;
            state.kept.push_front((since, kept));
        }
        // Their end takes the lock.
        drop(state);
        drop(unwanted);
    }

    /// Forgets what is kept, because someone needs its memory.
    fn forget(&self) {
        let all = std::mem::take(&mut self.state.locked().kept);
        drop(all);
    }
}

impl Encoded {
    /// The pictures in base64, in their order.
    pub fn pictures(&self) -> &[Bytes] {
        self.answer.pictures.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.answer.bytes()
    }
}

impl EncodedAnswer {
    fn bytes(&self) -> usize {
        self.pictures.get().map_or(0, |pictures| pictures.iter().map(Bytes::len).sum())
    }
}

impl Drop for EncodedAnswer {
    fn drop(&mut self) {
        let Some(state) = self.state.upgrade() else { return };
        let mut state = state.locked();
        // Another caller may have started the same answer again.
        if state.answers.get(&self.key).is_some_and(|answer| answer.strong_count() == 0) {
            state.answers.remove(&self.key);
        }
    }
}

async fn room(shares: &Shares, account_id: Id, bytes: usize) -> Result<Share, EncodeError> {
    tokio::time::timeout(MAX_WAIT, shares.take(account_id, bytes)).await.map_err(|_| EncodeError::Crowded)
}

fn damaged(cause: impl ToString) -> EncodeError {
    EncodeError::Damaged(cause.to_string())
}

/// One of our own PNGs, in base64.
///
/// # Errors
/// The PNG is damaged.
pub fn in_base64(format: OutputFormat, png: &[u8]) -> ImageResult<String> {
    Ok(match format {
        OutputFormat::Png => BASE64_STANDARD.encode(png),
        OutputFormat::Jpeg(_) | OutputFormat::Webp => BASE64_STANDARD.encode(transcoded(format, png)?),
    })
}

fn transcoded(format: OutputFormat, png: &[u8]) -> ImageResult<Vec<u8>> {
    let picture = ImageReader::with_format(Cursor::new(png), ImageFormat::Png).decode()?.into_rgb8();
    let mut out = Vec::new();
    match format {
        // The encoder counts from 1.
        OutputFormat::Jpeg(quality) => {
            picture.write_with_encoder(JpegEncoder::new_with_quality(&mut out, quality.max(1)))?
        }
        OutputFormat::Webp | OutputFormat::Png => picture.write_with_encoder(WebPEncoder::new_lossless(&mut out))?,
    }
    Ok(out)
}
