//! Pictures that people upload. Everything that can be rejected is rejected before the first byte of a picture is read.
//! Arriving bytes go to an unlinked file, so a crash leaves nothing behind; a confined process decodes them, and only a
//! new PNG without metadata is stored.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tintype_engine::Mask;
use tintype_engine::picture::{Picture, PictureError};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use crate::files::FilesError;
use crate::service::ServiceContext;
use crate::service::rejections::RejectionLimit;
use crate::service::shares::{FairShares, Share};
use tintype_config::{MAX_UPLOAD, MAX_UPLOADS, temporary_directory};
use tintype_domain::model::{CREDITS_PER_IMAGE, Id, Surface};
use tintype_store::{NewUpload, Right, StoreError, Upload, UploadedPicture};
use tintype_system::disk::Disk;
use tintype_system::sandbox::{DecodeError, Decoder};

/// Most senders whose pictures can arrive at this process at a time, for one account and for all. No account has more
/// than half of the slots that the others leave. A sender is an upload, or a call with up to four pictures. A slot is
/// for all of a sender's pictures, so that none waits for a slot while holding another. Each picture can be a file of
/// [`MAX_UPLOAD`] bytes.
pub const MAX_ARRIVING_OF_ACCOUNT: usize = 4;
const MAX_ARRIVING: usize = 16;
/// Uploads that are in memory to be decoded at the same time.
const MAX_DECODING: usize = 2;

/// Takes uploads.
#[derive(Debug)]
pub struct Uploads {
    shared: Arc<ServiceContext>,
    decoder: Decoder,
    /// The directory that holds the bytes while they arrive, and its disk.
    directory: PathBuf,
    disk: Disk,
    arriving: FairShares,
    rejections: RejectionLimit<Id>,
    decoding: Semaphore,
}

/// Reasons to refuse an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has more than [`MAX_UPLOAD`] bytes.
    #[error("the file has more than 20 MiB")]
    TooLarge,
    /// The account has [`MAX_UPLOADS`] uploads, or is disabled.
    #[error("the account has too many uploads")]
    TooMany,
    /// Too many uploads arrive at this moment.
    #[error("too many uploads arrive at this moment")]
    Busy,
    /// Too many uploads of the account were rejected.
    #[error("too many uploads of the account were rejected")]
    TooManyRejected,
    /// The account cannot pay for one image.
    #[error("the account has too few credits")]
    NoCredits,
    /// Less is free on the disk than `--min-free-space`.
    #[error("the disk is nearly full")]
    DiskFull,
    /// The bytes aren't a picture that the decoder supports.
    #[error("the file is not a PNG, JPEG or WebP image, is damaged, or has too many pixels")]
    NotAPicture,
    /// The picture should be a mask, but nothing in it can be transparent.
    #[error("the file has no alpha channel")]
    NoAlpha,
    /// The picture should be a painted mask, but nothing in it is white.
    #[error("the mask changes nothing")]
    EmptyMask,
}

/// An upload that was not taken.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The sender can do something about it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The picture could not be stored.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The bytes could not be kept while they arrived.
    #[error("upload: {0}")]
    ImageBody(#[from] io::Error),
    /// The decoder failed, for a reason other than the picture.
    #[error(transparent)]
    Decoder(DecodeError),
}

impl From<DecodeError> for UploadError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::NotStarted(_) | DecodeError::Killed => Self::Decoder(error),
            DecodeError::Picture(PictureError::NoAlpha) => Refusal::NoAlpha.into(),
            DecodeError::Picture(PictureError::UnknownFormat | PictureError::TooLarge | PictureError::Damaged(_))
            | DecodeError::Crashed(_)
            | DecodeError::Garbled
            | DecodeError::TimeLimit(_) => {
                tracing::info!(%error, "an upload could not be decoded");
                Refusal::NotAPicture.into()
            }
        }
    }
}

/// The slot of a sender with arriving pictures. Dropping it releases the slot.
#[derive(Debug)]
pub struct UploadSlot {
    uploads: Arc<Uploads>,
    account_id: Id,
    right: Right,
    _admitted: Share,
}

/// A picture that is arriving. Dropping it discards it.
#[derive(Debug)]
pub struct UploadBuffer {
    uploads: Arc<Uploads>,
    account_id: Id,
    file: File,
    bytes: u64,
    digest: Sha256,
}

/// An upload that is arriving. Dropping it discards it.
#[derive(Debug)]
pub struct UploadInProgress {
    slot: UploadSlot,
    new: NewUpload,
    buffer: UploadBuffer,
}

impl Uploads {
    /// Takes uploads, which `decoder` decodes.
    pub fn new(shared: Arc<ServiceContext>, decoder: Decoder) -> Arc<Self> {
        let directory = shared.disk.directory().map_or_else(temporary_directory, Path::to_owned);
        let disk = shared.disk.beside(directory.clone());
        let arriving = FairShares::limited(MAX_ARRIVING_OF_ACCOUNT, MAX_ARRIVING);
        let decoding = Semaphore::new(MAX_DECODING);
        let rejections = RejectionLimit::new(shared.clock.clone());
        Arc::new(Self { shared, decoder, directory, disk, arriving, rejections, decoding })
    }

    /// Begins an upload of `announced` bytes, if its sender says how many they are. Nothing of it has been read yet.
    pub async fn begin(
        self: &Arc<Self>,
        new: NewUpload,
        right: Right,
        announced: Option<u64>,
    ) -> Result<UploadInProgress, UploadError> {
        let account_id = new.account_id;
        if announced.is_some_and(|bytes| bytes > MAX_UPLOAD) {
            return Err(Refusal::TooLarge.into());
        }
        self.check_disk()?;
        if self.credits(account_id).await? < CREDITS_PER_IMAGE {
            return Err(Refusal::NoCredits.into());
        }
        self.check_room(account_id).await?;
        let slot = self.arrive(account_id, right)?;
        Ok(UploadInProgress { buffer: slot.buffer()?, slot, new })
    }

    /// The credits of an account.
    pub async fn credits(&self, account_id: Id) -> Result<i64, StoreError> {
        let account = self.shared.store.find_account(account_id.as_str()).await?;
        Ok(account.map_or(0, |account| account.credits))
    }

    /// Checks that the account may have one more upload.
    pub async fn check_room(&self, account_id: Id) -> Result<(), UploadError> {
        let uploads = self.shared.store.count_uploads(account_id).await?;
        if uploads >= MAX_UPLOADS { Err(Refusal::TooMany.into()) } else { Ok(()) }
    }

    /// Takes a slot for a sender of pictures.
    pub fn arrive(self: &Arc<Self>, account_id: Id, right: Right) -> Result<UploadSlot, Refusal> {
        self.check_disk()?;
        if self.rejections.are_too_many(account_id) {
            return Err(Refusal::TooManyRejected);
        }
        let admitted = self.arriving.try_take(Some(account_id)).map_err(|_| Refusal::Busy)?;
        Ok(UploadSlot { uploads: self.clone(), account_id, right, _admitted: admitted })
    }

    async fn remove(self: Arc<Self>, account_id: Id, ids: Vec<Id>) {
        for id in ids {
            if let Err(error) = self.shared.store.remove_upload(account_id, Surface::Api, id, None).await {
                tracing::warn!(upload = %id, %error, "could not remove an upload; the next sweep will");
            }
        }
    }

    fn check_disk(&self) -> Result<(), Refusal> {
        if self.shared.disk.is_low() || self.disk.is_low() { Err(Refusal::DiskFull) } else { Ok(()) }
    }

    /// Stores a decoded picture: first the upload's row, so that a sweep knows the file's owner, then the file, then
    /// its name in the row.
    async fn store(&self, new: NewUpload, right: Right, picture: Picture) -> Result<Upload, UploadError> {
        let NewUpload { account_id, surface, person_id, is_mask } = new;
        let store = self.shared.store.with_right(right);
        let Some(id) = store.begin_upload(new, MAX_UPLOADS).await? else {
            return Err(Refusal::TooMany.into());
        };
        let (width, height) = (picture.width(), picture.height());
        let png = tokio::task::spawn_blocking(move || Bytes::from(picture.to_png())).await;
        let name = self.shared.files.write(id, 0, png.map_err(io::Error::other)?).await?;
        let picture = UploadedPicture { name, width, height };
        if !store.finish_upload(id, picture.clone()).await? {
            // The account was deleted meanwhile; the sweep of orphans removes the file.
            return Err(Refusal::TooMany.into());
        }
        tracing::info!(upload = %id, account = %account_id, surface = surface.as_str(), width, height, "upload stored");
        Ok(Upload { id, account_id, surface, picture, removed_at: None, person_id, is_mask })
    }
}

impl UploadSlot {
    /// Begins a picture.
    pub fn buffer(&self) -> Result<UploadBuffer, UploadError> {
        let file = unlinked_file(&self.uploads.directory)?;
        let (uploads, account_id) = (self.uploads.clone(), self.account_id);
        Ok(UploadBuffer { uploads, account_id, file, bytes: 0, digest: Sha256::new() })
    }

    /// Stores decoded pictures as uploads of the API for one task. Storing one runs to its end once it has begun, even if the
    /// caller drops this future.
    pub async fn store(&self, pictures: Vec<Picture>) -> Result<TaskUploads, UploadError> {
        let mut stored = TaskUploads { uploads: self.uploads.clone(), ids: Vec::new(), account_id: self.account_id };
        for picture in pictures {
            let (uploads, right) = (self.uploads.clone(), self.right);
            let new = NewUpload::of(self.account_id, Surface::Api);
            let storing = async move { uploads.store(new, right, picture).await };
            stored.ids.push(tokio::spawn(storing.in_current_span()).await.map_err(io::Error::other)??.id);
        }
        Ok(stored)
    }
}

impl UploadBuffer {
    /// Adds bytes of the file.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), UploadError> {
        self.bytes += bytes.len() as u64;
        if self.bytes > MAX_UPLOAD {
            self.uploads.rejections.count(self.account_id);
            return Err(Refusal::TooLarge.into());
        }
        self.uploads.check_disk()?;
        self.digest.update(&bytes);
        let mut file = self.file.try_clone()?;
        let written = tokio::task::spawn_blocking(move || file.write_all(&bytes)).await.map_err(io::Error::other)?;
        match written {
            Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                Err(Refusal::DiskFull.into())
            }
            written => Ok(written?),
        }
    }

    /// SHA-256 of the bytes.
    pub fn digest(&self) -> [u8; 32] {
        self.digest.clone().finalize().into()
    }

    /// Decodes the picture.
    pub async fn decode(&self) -> Result<Picture, UploadError> {
        let _decoding = self.uploads.decoding.acquire().await.expect("the semaphore is never closed");
        let bytes = self.bytes().await?;
        self.count_rejection(self.uploads.decoder.decode(&bytes).await)
    }

    /// Decodes the picture as a mask.
    pub async fn decode_mask(&self) -> Result<Mask, UploadError> {
        let _decoding = self.uploads.decoding.acquire().await.expect("the semaphore is never closed");
        let bytes = self.bytes().await?;
        self.count_rejection(self.uploads.decoder.decode_mask(&bytes).await)
    }

    async fn bytes(&self) -> Result<Vec<u8>, UploadError> {
        let mut file = self.file.try_clone()?;
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.take(MAX_UPLOAD).read_to_end(&mut bytes)?;
            io::Result::Ok(bytes)
        });
        Ok(read.await.map_err(io::Error::other)??)
    }

    /// Counts a picture that was rejected.
    fn count_rejection<T>(&self, decoded: Result<T, DecodeError>) -> Result<T, UploadError> {
        let decoded = decoded.map_err(UploadError::from);
        if matches!(decoded, Err(UploadError::Refused(_))) {
            self.uploads.rejections.count(self.account_id);
        }
        decoded
    }
}

impl UploadInProgress {
    /// Adds bytes of the file.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), UploadError> {
        self.buffer.write(bytes).await
    }

    /// Decodes and stores the picture. Storing runs to its end once it has begun, even if the caller drops this future.
    pub async fn finish(self) -> Result<Upload, UploadError> {
        let picture = self.buffer.decode().await?;
        self.store(picture).await
    }

    /// Does the same with a mask for a picture of this size in pixels. The mask is painted white where the picture
    /// changes and black elsewhere; it may have another size.
    pub async fn finish_mask(mut self, (width, height): (u32, u32)) -> Result<Upload, UploadError> {
        let painted = Mask::of(self.buffer.decode().await?);
        let fitted = tokio::task::spawn_blocking(move || painted.stretch(width, height));
        let mask = fitted.await.map_err(io::Error::other)?;
        if mask.keeps_all() {
            return Err(Refusal::EmptyMask.into());
        }
        self.new.is_mask = true;
        self.store(mask.into_picture()).await
    }

    async fn store(self, picture: Picture) -> Result<Upload, UploadError> {
        let (slot, new) = (self.slot, self.new);
        let storing = async move { slot.uploads.store(new, slot.right, picture).await };
        tokio::spawn(storing.in_current_span()).await.map_err(io::Error::other)?
    }
}

/// Uploads of the API for one task. Dropping them removes them, unless the task may be there already.
#[derive(Debug)]
pub struct TaskUploads {
    uploads: Arc<Uploads>,
    account_id: Id,
    ids: Vec<Id>,
}

impl TaskUploads {
    /// The ids, in the order of the pictures. From now on a task may refer to them: if its submit breaks off, the sweep
    /// removes them when the task has ended.
    pub fn take_ids(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.ids)
    }

    /// Removes uploads whose task was submitted or rejected: a submitted task keeps their files.
    pub async fn remove(&self, ids: Vec<Id>) {
        let removing = self.uploads.clone().remove(self.account_id, ids);
        // Runs to its end even if the caller drops this future.
        drop(tokio::spawn(removing.in_current_span()).await);
    }
}

impl Drop for TaskUploads {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        // Without a runtime the process ends, and the sweep removes them.
        if !ids.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(self.uploads.clone().remove(self.account_id, ids).in_current_span());
        }
    }
}

/// A file without a name, so that nothing is left of it when this process ends, however it ends.
fn unlinked_file(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = rustix::fs::OFlags::TMPFILE.bits();
    if let Ok(file) = options.clone().custom_flags(i32::try_from(flags).unwrap_or_default()).open(directory) {
        return Ok(file);
    }
    // Some file systems have no such files.
    let path = directory.join(format!("upload.{:032x}", rand::random::<u128>()));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
