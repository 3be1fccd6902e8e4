//! Pictures that people bring. Everything that can be refused is refused before the first byte of a picture is read. The
//! bytes go to an unlinked file as they come, which no crash leaves behind; a confined process decodes them, and what is
//! stored is a PNG of our own without metadata.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tintype_engine::picture::{Picture, PictureError};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use crate::config::{MAX_UPLOAD, MAX_UPLOADS, temporary_directory};
use crate::disk::Disk;
use crate::domain::model::{CREDITS_PER_IMAGE, Id, Surface};
use crate::files::FilesError;
use crate::sandbox::{DecodeError, Decoder};
use crate::service::Shared;
use crate::store::{StoreError, Upload, UploadedPicture};

/// Most uploads of one account that arrive at this process at the same time, and of all accounts. Each may hold a file of
/// [`MAX_UPLOAD`] bytes.
const MAX_ARRIVING_OF_ACCOUNT: usize = 4;
const MAX_ARRIVING: usize = 16;
/// Uploads that are in memory to be decoded at the same time.
const MAX_DECODING: usize = 2;

/// Takes uploads.
#[derive(Debug)]
pub struct Uploads {
    shared: Arc<Shared>,
    decoder: Decoder,
    /// The directory that holds the bytes while they arrive, and its disk.
    directory: PathBuf,
    disk: Disk,
    arriving: Mutex<HashMap<Id, usize>>,
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
    /// The account cannot pay for one image.
    #[error("the account has too few credits")]
    NoCredits,
    /// Less is free on the disk than `--min-free-space`.
    #[error("the disk is nearly full")]
    DiskFull,
    /// The bytes are no picture that the decoder takes.
    #[error("the file is not a PNG, JPEG or WebP image, is damaged, or has too many pixels")]
    NotAPicture,
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
    Arriving(#[from] io::Error),
    /// The decoder failed, for a reason other than the picture.
    #[error(transparent)]
    Decoder(DecodeError),
}

impl From<DecodeError> for UploadError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::NotStarted(_) => Self::Decoder(error),
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

/// An upload whose bytes arrive. Dropping it gives it up.
#[derive(Debug)]
pub struct Incoming {
    uploads: Arc<Uploads>,
    account_id: Id,
    surface: Surface,
    file: File,
    bytes: u64,
}

impl Uploads {
    /// Takes uploads, which `decoder` decodes.
    pub fn new(shared: Arc<Shared>, decoder: Decoder) -> Arc<Self> {
        let directory = shared.disk.directory().map_or_else(temporary_directory, Path::to_owned);
        let disk = shared.disk.beside(directory.clone());
        let (arriving, decoding) = (Mutex::default(), Semaphore::new(MAX_DECODING));
        Arc::new(Self { shared, decoder, directory, disk, arriving, decoding })
    }

    /// Begins an upload of `announced` bytes, if its sender says how many they are. Nothing of it has been read yet.
    ///
    /// # Errors
    /// [`UploadError`].
    pub async fn begin(
        self: &Arc<Self>,
        account_id: Id,
        surface: Surface,
        announced: Option<u64>,
    ) -> Result<Incoming, UploadError> {
        if announced.is_some_and(|bytes| bytes > MAX_UPLOAD) {
            return Err(Refusal::TooLarge.into());
        }
        self.check_disk()?;
        let store = &self.shared.store;
        let account = store.find_account(account_id.as_str()).await?;
        if account.is_none_or(|account| account.credits < CREDITS_PER_IMAGE) {
            return Err(Refusal::NoCredits.into());
        }
        if store.count_uploads(account_id).await? >= MAX_UPLOADS {
            return Err(Refusal::TooMany.into());
        }
        let file = unlinked_file(&self.directory)?;
        self.arrive(account_id)?;
        Ok(Incoming { uploads: self.clone(), account_id, surface, file, bytes: 0 })
    }

    fn arrive(&self, account_id: Id) -> Result<(), Refusal> {
        let mut arriving = self.arriving();
        let of_account = arriving.get(&account_id).copied().unwrap_or_default();
        if of_account >= MAX_ARRIVING_OF_ACCOUNT || arriving.values().sum::<usize>() >= MAX_ARRIVING {
            return Err(Refusal::Busy);
        }
        arriving.insert(account_id, of_account + 1);
        Ok(())
    }

    fn arriving(&self) -> MutexGuard<'_, HashMap<Id, usize>> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_disk(&self) -> Result<(), Refusal> {
        if self.shared.disk.is_low() || self.disk.is_low() { Err(Refusal::DiskFull) } else { Ok(()) }
    }

    /// Stores a decoded picture: the row of the upload first, so that a sweep knows whose the file is, then the file, then
    /// its name in the row.
    async fn store(&self, account_id: Id, surface: Surface, picture: Picture) -> Result<Upload, UploadError> {
        let store = &self.shared.store;
        let Some(id) = store.begin_upload(account_id, surface, MAX_UPLOADS).await? else {
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
        Ok(Upload { id, account_id, surface, picture, removed_at: None })
    }
}

impl Incoming {
    /// Adds bytes of the file.
    ///
    /// # Errors
    /// [`UploadError`].
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), UploadError> {
        self.bytes += bytes.len() as u64;
        if self.bytes > MAX_UPLOAD {
            return Err(Refusal::TooLarge.into());
        }
        self.uploads.check_disk()?;
        let mut file = self.file.try_clone()?;
        let written = tokio::task::spawn_blocking(move || file.write_all(&bytes)).await.map_err(io::Error::other)?;
        match written {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(Refusal::DiskFull.into()),
            written => Ok(written?),
        }
    }

    /// Decodes and stores the picture. Storing runs to its end once it has begun, even if the caller drops this future.
    ///
    /// # Errors
    /// [`UploadError`].
    pub async fn finish(self) -> Result<Upload, UploadError> {
        let uploads = self.uploads.clone();
        let picture = {
            let _decoding = uploads.decoding.acquire().await.expect("the semaphore is never closed");
            let mut file = self.file.try_clone()?;
            let read = tokio::task::spawn_blocking(move || {
                let mut bytes = Vec::new();
                file.rewind()?;
                file.take(MAX_UPLOAD).read_to_end(&mut bytes)?;
                io::Result::Ok(bytes)
            });
            let bytes = read.await.map_err(io::Error::other)??;
            uploads.decoder.decode(&bytes).await?
        };
        let storing = async move { self.uploads.store(self.account_id, self.surface, picture).await };
        tokio::spawn(storing.in_current_span()).await.map_err(io::Error::other)?
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let mut arriving = self.uploads.arriving();
        match arriving.get_mut(&self.account_id) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(arriving.remove(&self.account_id)),
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
