//! Result files: immutable PNGs with unguessable names, in a directory or in an S3 bucket.

mod bucket;
mod directory;
mod listing;
mod lock;
mod marker;
mod name;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload};

use self::bucket::Bucket;
use self::directory::Directory;
use self::name::is_day;
use tintype_config::{FileBackend, S3Settings};
use tintype_domain::files_marker::FilesMarker;
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;
use tintype_system::fault::{Effect, Faults, Point};
use tintype_system::locked::Locked as _;

pub use self::bucket::WRITE_LIMIT;
pub use self::lock::FilesLock;
pub use self::marker::MARKER;
pub use self::name::{AnyName, FileName};

/// The first bytes of every PNG.
pub const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Most names in one batch of a listing.
const NAME_BATCH: usize = 256;

/// A listing of file names in batches, which ends after an error.
pub type NameBatches = BoxStream<'static, Result<Vec<String>, FilesError>>;

/// The result files.
#[derive(Debug)]
pub struct Files {
    backend: Backend,
    faults: Faults,
    guard: Option<PathBuf>,
    /// Why files cannot be written, if they cannot.
    write_fault: Mutex<Option<WriteFault>>,
    /// Whether a marker was found.
    is_marked: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
enum WriteFault {
    /// The last write, of this many bytes for this task, failed.
    Write(Id, usize),
    /// The directory is not there, or its permissions forbid it.
    Directory,
}

#[derive(Debug)]
enum Backend {
    Directory(Directory),
    Bucket(Bucket),
}

/// A file could not be read or written. For the operator. An error of a bucket is kept as its description only, because
/// the original may hold credentials.
#[derive(Debug, thiserror::Error)]
#[error("files: {0}")]
pub struct FilesError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Outcome of creating a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// The file was created durably.
    Done,
    /// A file of that name already exists and was left unchanged.
    Exists,
}

/// What is wrong with a store that ignores the condition of a write.
pub const REPLACES: &str = "the store replaced a file that exists: use one that obeys If-None-Match: * (on Ceph: turn \
                            versioning off)";

impl Files {
    /// Opens result files in a directory, which must exist.
    pub fn on_disk(directory: &Path) -> Result<Self, FilesError> {
        Ok(Self::new(Backend::Directory(Directory::open(directory)?)))
    }

    /// Opens result files in a bucket without connecting to it; see [`Files::check_access`].
    ///
    /// # Errors
    /// [`FilesError`]: the settings are invalid.
    pub fn in_bucket(settings: &S3Settings) -> Result<Self, FilesError> {
        Ok(Self::new(Backend::Bucket(Bucket::open(settings)?)))
    }

    /// Opens result files in a directory or in a bucket.
    pub fn on_backend(backend: &FileBackend) -> Result<Self, FilesError> {
        match backend {
            FileBackend::Directory(directory) => Self::on_disk(directory),
            FileBackend::Bucket(settings) => Self::in_bucket(settings),
        }
    }

    fn new(backend: Backend) -> Self {
        Self {
            backend,
            faults: Faults::default(),
            guard: None,
            write_fault: Mutex::default(),
            is_marked: AtomicBool::default(),
        }
    }

    /// Sets the faults to inject.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Sets the lock file for [`Files::keep_all`] and [`Files::try_removal`].
    #[must_use]
    pub fn guarded_by(self, lock: PathBuf) -> Self {
        Self { guard: Some(lock), ..self }
    }

    /// Sets the time limit for writes to a bucket. It has no effect on a directory.
    #[must_use]
    pub fn with_write_limit(mut self, limit: Duration) -> Self {
        if let Backend::Bucket(bucket) = &mut self.backend {
            bucket.write_limit = limit;
        }
        self
    }

    /// Prevents all processes of this machine from removing results until the lock is dropped, for a backup or an
    /// audit. Waits for a removal in progress.
    pub fn keep_all(&self) -> Result<FilesLock, FilesError> {
        Ok(FilesLock::share(self.guard.as_deref())?)
    }

    /// Locks the files for a removal; `None` while a backup or an audit reads them.
    pub fn try_removal(&self) -> Result<Option<FilesLock>, FilesError> {
        Ok(FilesLock::try_exclusive(self.guard.as_deref())?)
    }

    /// The directory of the files, unless they are in a bucket.
    pub fn directory(&self) -> Option<&Path> {
        match &self.backend {
            Backend::Directory(directory) => Some(&directory.path),
            Backend::Bucket(_) => None,
        }
    }

    /// Location of the files, for the operator.
    pub fn describe(&self) -> String {
        match &self.backend {
            Backend::Directory(directory) => directory.path.display().to_string(),
            Backend::Bucket(bucket) => bucket.to_string(),
        }
    }

    /// Checks that the bucket exists and that this process has access. A directory is always accessible once opened.
    pub async fn check_access(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Directory(_) => Ok(()),
            Backend::Bucket(bucket) => bucket.check_access().await,
        }
    }

    /// Checks that links to files can be signed and stay valid for their whole lifetime.
    pub async fn check_signing(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Directory(_) => {
                Err("--file-urls signed needs --files s3://BUCKET: a directory signs no links".into())
            }
            Backend::Bucket(bucket) => bucket.check_signing().await,
        }
    }

    /// Signs a link to a file that is valid for `valid_for` from now. Only buckets support this.
    pub async fn signed_url(&self, name: &str, valid_for: Duration) -> Result<String, FilesError> {
        match &self.backend {
            Backend::Directory(_) => Err(FilesError("a directory signs no links".into())),
            Backend::Bucket(bucket) => bucket.signed_url(name, valid_for).await,
        }
    }

    /// Key of a file in the object store; in a bucket it starts with the common prefix.
    pub fn key(&self, name: &str) -> ObjectPath {
        match &self.backend {
            Backend::Directory(_) => ObjectPath::from(name),
            Backend::Bucket(bucket) => bucket.key(name),
        }
    }

    fn objects(&self) -> &dyn ObjectStore {
        match &self.backend {
            Backend::Directory(directory) => &directory.objects,
            Backend::Bucket(bucket) => &bucket.objects,
        }
    }

    /// Writes one result durably and returns its name. Returns within [`WRITE_LIMIT`] even if a bucket does not
    /// respond.
    ///
    /// # Errors
    /// [`FilesError`]; if the file was written nevertheless, it is an orphan.
    pub async fn write(&self, task_id: Id, index: usize, png: Bytes) -> Result<String, FilesError> {
        let bytes = png.len();
        let (write_fault, written) = match self.write_now(task_id, index, png).await {
            // Below the mount point of a lost file system a write succeeds too.
            Ok(name) => (WriteFault::Directory, self.check_there().await.map(|()| name)),
            Err(error) => (WriteFault::Write(task_id, bytes), Err(error)),
        };
        match &written {
            Ok(_) => self.note(None, ""),
            Err(error) => self.note(Some(write_fault), &error.to_string()),
        }
        written
    }

    /// Whether the last write succeeded and, at the last [`Files::try_again`], a directory was there and could be written
    /// to.
    pub fn are_writable(&self) -> bool {
        self.write_fault.locked().is_none()
    }

    /// Checks that a directory is still there, with the marker that it had. The mount point of a file system that was
    /// lost has none. A bucket is not asked.
    ///
    /// # Errors
    /// [`FilesError`]: the marker is not there, or the file system does not answer.
    pub async fn check_there(&self) -> Result<(), FilesError> {
        match &self.backend {
            Backend::Directory(directory) if self.is_marked.load(Ordering::Relaxed) => directory.check_marker().await,
            _ => Ok(()),
        }
    }

    /// Tries again a write that failed, and checks that a directory may be written to on this day.
    pub async fn try_again(&self, today: Timestamp) {
        if let Err(error) = self.check_there().await {
            return self.note(Some(WriteFault::Directory), &error.to_string());
        }
        let write_fault = *self.write_fault.locked();
        match (&self.backend, write_fault) {
            (_, Some(WriteFault::Write(task_id, bytes))) => {
                if let Ok(name) = self.write(task_id, 0, Bytes::from(vec![0; bytes])).await
                    && let Err(error) = self.remove(&name).await
                {
                    tracing::warn!(name, %error, "could not remove a file written as a test; the sweep for orphans will");
                }
            }
            (Backend::Directory(directory), _) => {
                let denied = directory.check_day(today).err();
                self.note(denied.as_ref().map(|_| WriteFault::Directory), &denied.unwrap_or_default());
            }
            (Backend::Bucket(_), _) => {}
        }
    }

    /// Notes whether files can be written, and logs when that changes.
    fn note(&self, write_fault: Option<WriteFault>, error: &str) {
        let files = self.describe();
        let advice = match &self.backend {
            Backend::Directory(_) => "check owner, permissions and disk",
            Backend::Bucket(_) => "check that the bucket answers, its keys and its policy",
        };
        match (write_fault, std::mem::replace(&mut *self.write_fault.locked(), write_fault)) {
            (Some(_), None) => tracing::error!(
                files,
                error,
                "result files cannot be written, so no task is claimed until they can: {advice}"
            ),
            (None, Some(_)) => tracing::info!(files, "result files can be written again"),
            _ => {}
        }
    }

    async fn write_now(&self, task_id: Id, index: usize, png: Bytes) -> Result<String, FilesError> {
        self.faults.pass(Point::before(Effect::WriteFile)).await?;
        let name = match &self.backend {
            Backend::Directory(directory) => directory.write(task_id, index, png).await?,
            Backend::Bucket(bucket) => bucket.write(task_id, index, png).await?,
        };
        self.faults.pass(Point::after(Effect::WriteFile)).await?;
        Ok(name)
    }

    /// Creates a file with this name unless it exists.
    ///
    /// # Errors
    /// [`FilesError`]; it is then unknown whether the file exists.
    pub async fn create(&self, name: FileName<'_>, png: Bytes) -> Result<Creation, FilesError> {
        let created = match &self.backend {
            Backend::Directory(directory) => directory.create(&self.key(name.as_str()), png.into()).await,
            Backend::Bucket(bucket) => bucket.create(name.as_str(), png).await,
        };
        creation(created)
    }

    /// Opens a file or a byte range of it; `None` if the file does not exist.
    pub async fn open(&self, name: FileName<'_>, range: Option<GetRange>) -> Result<Option<GetResult>, FilesError> {
        let (key, options) = (self.key(name.as_str()), GetOptions { range, ..GetOptions::default() });
        self.if_there(&key, self.objects().get_opts(&key, options).await).await
    }

    /// What was found at a key; `None` if nothing is there.
    async fn if_there<T>(&self, key: &ObjectPath, found: object_store::Result<T>) -> Result<Option<T>, FilesError> {
        match (found, &self.backend) {
            (Ok(found), _) => Ok(Some(found)),
            (Err(object_store::Error::NotFound { .. }), _) => Ok(None),
            (Err(object_store::Error::PermissionDenied { .. }), Backend::Bucket(bucket)) if bucket.lacks(key).await => {
                Ok(None)
            }
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Size of a file in bytes; `None` if it does not exist.
    pub async fn size(&self, name: FileName<'_>) -> Result<Option<u64>, FilesError> {
        let key = self.key(name.as_str());
        let found = self.if_there(&key, self.objects().head(&key).await).await?;
        Ok(found.map(|meta| meta.size))
    }

    /// The whole content of a file; `None` if it does not exist.
    pub async fn read(&self, name: FileName<'_>) -> Result<Option<Bytes>, FilesError> {
        self.read_key(&self.key(name.as_str())).await
    }

    /// The thumbnail of a picture, if there is one.
    pub async fn thumbnail(&self, name: FileName<'_>) -> Result<Option<Bytes>, FilesError> {
        self.read_key(&self.key(&name.thumbnail())).await
    }

    /// Keeps the thumbnail of a picture. A crash may lose it.
    pub async fn keep_thumbnail(&self, name: FileName<'_>, webp: Bytes) -> Result<(), FilesError> {
        Ok(self.objects().put(&self.key(&name.thumbnail()), PutPayload::from(webp)).await.map(drop)?)
    }

    async fn read_key(&self, key: &ObjectPath) -> Result<Option<Bytes>, FilesError> {
        match self.if_there(key, self.objects().get(key).await).await? {
            Some(found) => Ok(Some(found.bytes().await?)),
            None => Ok(None),
        }
    }

    /// Removes a file that no task refers to, with its thumbnail. A missing file is not an error.
    pub async fn remove(&self, name: &str) -> Result<(), FilesError> {
        self.faults.pass(Point::before(Effect::RemoveFile)).await?;
        if let Some(picture) = FileName::parse(name) {
            self.remove_now(&picture.thumbnail()).await?;
        }
        self.remove_now(name).await?;
        Ok(self.faults.pass(Point::after(Effect::RemoveFile)).await?)
    }

    async fn remove_now(&self, name: &str) -> Result<(), FilesError> {
        if let Backend::Directory(directory) = &self.backend
            && name.contains('#')
        {
            return Ok(directory.remove_temporary(name)?);
        }
        match self.objects().delete(&self.key(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The marker of this store; `None` when it has none.
    ///
    /// # Errors
    /// [`FilesError`], also for a damaged marker.
    pub async fn marker(&self) -> Result<Option<FilesMarker>, FilesError> {
        let key = self.key(MARKER);
        match self.if_there(&key, self.objects().get(&key).await).await? {
            Some(found) => {
                let marker = marker::read(found, self.directory().is_none()).await?;
                self.is_marked.store(true, Ordering::Relaxed);
                Ok(Some(marker))
            }
            None => Ok(None),
        }
    }

    /// Gives this store a marker, durably, unless it has one.
    ///
    /// # Errors
    /// [`FilesError`]; it is then unknown whether the store has a marker. Also when the store replaces files that exist.
    pub async fn create_marker(&self, marker: FilesMarker) -> Result<Creation, FilesError> {
        let (key, marker) = (self.key(MARKER), marker::payload(marker));
        let create = async || {
            creation(match &self.backend {
                Backend::Directory(directory) => directory.create(&key, marker.clone()).await,
                Backend::Bucket(_) => {
                    self.objects().put_opts(&key, marker.clone(), PutMode::Create.into()).await.map(drop)
                }
            })
        };
        let created = create().await?;
        // Some stores ignore the condition without a word.
        if created == Creation::Done && self.directory().is_none() && create().await? == Creation::Done {
            // The next start would take it for a sign that all is well.
            self.objects().delete(&key).await?;
            return Err(FilesError(REPLACES.into()));
        }
        Ok(created)
    }

    /// Replaces the marker of this store durably.
    ///
    /// # Errors
    /// [`FilesError`]; it is then unknown which marker the store has.
    pub async fn replace_marker(&self, marker: FilesMarker) -> Result<(), FilesError> {
        Ok(self.objects().put(&self.key(MARKER), marker::payload(marker)).await.map(drop)?)
    }

    /// The days that have result files, oldest first.
    pub async fn days(&self) -> Result<Vec<String>, FilesError> {
        let listed = match &self.backend {
            Backend::Bucket(bucket) => return bucket.days().await,
            Backend::Directory(directory) => directory.objects.list_with_delimiter(None).await?,
        };
        let names = listed.common_prefixes.iter().filter_map(|path| path.filename());
        Ok(names.filter(|name| is_day(name)).map(str::to_owned).collect())
    }

    /// Lists the files of one day that were written before `cutoff`, including temporary files of interrupted writes.
    /// The listing is lazy, and it may or may not include files that are created or removed meanwhile.
    pub fn written_before(&self, day: String, cutoff: Timestamp) -> NameBatches {
        match &self.backend {
            Backend::Directory(directory) => directory.written_before(day, cutoff),
            Backend::Bucket(bucket) => bucket.written_before(day, cutoff),
        }
    }
}

/// The outcome of creating a file that may exist.
fn creation(created: object_store::Result<()>) -> Result<Creation, FilesError> {
    match created {
        Ok(()) => Ok(Creation::Done),
        Err(object_store::Error::AlreadyExists { .. }) => Ok(Creation::Exists),
        Err(error) => Err(error.into()),
    }
}

impl From<object_store::Error> for FilesError {
    fn from(error: object_store::Error) -> Self {
        Self(bucket::describe(&error).into())
    }
}

impl From<std::io::Error> for FilesError {
    fn from(error: std::io::Error) -> Self {
        Self(error.into())
    }
}
