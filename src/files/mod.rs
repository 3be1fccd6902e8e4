//! Result files: PNGs under unguessable names, written once and never changed, in a directory or in an S3 bucket.

mod bucket;
mod disk;
mod lock;
mod name;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload};

use self::bucket::Bucket;
use self::disk::Disk;
use self::name::is_day;
use crate::clock::Timestamp;
use crate::config::{FileBackend, S3Settings};
use crate::domain::model::Id;
use crate::fault::{Effect, Faults, Point};

pub use self::bucket::WRITE_LIMIT;
pub use self::lock::FilesLock;
pub use self::name::FileName;

/// Most names that a listing brings at a time.
const PIECE: usize = 256;

/// Names of files, some at a time; an error ends it.
pub type Pieces = BoxStream<'static, Result<Vec<String>, FilesError>>;

/// The store of result files.
#[derive(Debug)]
pub struct Files {
    place: Place,
    faults: Faults,
    guard: Option<PathBuf>,
}

#[derive(Debug)]
enum Place {
    Disk(Disk),
    Bucket(Bucket),
}

/// A file could not be read or written. For the operator. An error of a bucket is kept as its description only, because
/// the original may hold credentials.
#[derive(Debug, thiserror::Error)]
#[error("files: {0}")]
pub struct FilesError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// What became of a file that was to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// It is there, durably.
    Done,
    /// There is one of that name already, which was left as it is.
    Exists,
}

impl Files {
    /// Files in a directory, which must exist.
    ///
    /// # Errors
    /// [`FilesError`] when it does not.
    pub fn on_disk(directory: &Path) -> Result<Self, FilesError> {
        Ok(Self::at(Place::Disk(Disk::open(directory)?)))
    }

    /// Files in a bucket. Connects to nothing yet: see [`Files::check_access`].
    ///
    /// # Errors
    /// [`FilesError`] for settings that cannot be used.
    pub fn in_bucket(settings: &S3Settings) -> Result<Self, FilesError> {
        Ok(Self::at(Place::Bucket(Bucket::open(settings)?)))
    }

    /// Files in either.
    ///
    /// # Errors
    /// As [`Files::on_disk`] and [`Files::in_bucket`].
    pub fn in_place(place: &FileBackend) -> Result<Self, FilesError> {
        match place {
            FileBackend::Directory(directory) => Self::on_disk(directory),
            FileBackend::Bucket(settings) => Self::in_bucket(settings),
        }
    }

    fn at(place: Place) -> Self {
        Self { place, faults: Faults::default(), guard: None }
    }

    /// The same files, with what is to go wrong.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// The same files, with a lock in the file named: see [`Files::keep_all`] and [`Files::try_removal`].
    #[must_use]
    pub fn guarded_by(self, lock: PathBuf) -> Self {
        Self { guard: Some(lock), ..self }
    }

    /// The same files, where a write is tried for so long before it is given up. On disk this means nothing.
    #[must_use]
    pub fn with_write_limit(mut self, limit: Duration) -> Self {
        if let Place::Bucket(bucket) = &mut self.place {
            bucket.write_limit = limit;
        }
        self
    }

    /// Keeps every process of this machine from removing results until the lock is dropped, for a backup or
    /// an audit. Waits for a removal that is under way.
    ///
    /// # Errors
    /// [`FilesError`] when the lock cannot be had.
    pub fn keep_all(&self) -> Result<FilesLock, FilesError> {
        Ok(FilesLock::share(self.guard.as_deref())?)
    }

    /// The right to remove files, held while that goes on; `None` while somebody needs all of them.
    ///
    /// # Errors
    /// [`FilesError`] when the lock cannot be had.
    pub fn try_removal(&self) -> Result<Option<FilesLock>, FilesError> {
        Ok(FilesLock::try_alone(self.guard.as_deref())?)
    }

    /// The directory that holds the files, if one does.
    pub fn directory(&self) -> Option<&Path> {
        match &self.place {
            Place::Disk(disk) => Some(&disk.directory),
            Place::Bucket(_) => None,
        }
    }

    /// Where the files are, for the operator.
    pub fn describe(&self) -> String {
        match &self.place {
            Place::Disk(disk) => disk.directory.display().to_string(),
            Place::Bucket(bucket) => bucket.to_string(),
        }
    }

    /// Asks the bucket whether it is there and lets this process in. A directory has been opened already.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn check_access(&self) -> Result<(), String> {
        match &self.place {
            Place::Disk(_) => Ok(()),
            Place::Bucket(bucket) => bucket.check_access().await,
        }
    }

    /// Whether links to files can be signed so that they last.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn check_signing(&self) -> Result<(), String> {
        match &self.place {
            Place::Disk(_) => Err("--file-urls signed needs --files s3://BUCKET: a directory signs no links".into()),
            Place::Bucket(bucket) => bucket.check_signing().await,
        }
    }

    /// A link to a file that whoever has it can use for so long, from now. Only buckets make one.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn signed_url(&self, name: &str, valid_for: Duration) -> Result<String, FilesError> {
        match &self.place {
            Place::Disk(_) => Err(FilesError("a directory signs no links".into())),
            Place::Bucket(bucket) => bucket.signed_url(name, valid_for).await,
        }
    }

    /// The name of a file in its store, which in a bucket has the prefix that all of them have.
    pub fn key(&self, name: &str) -> ObjectPath {
        match &self.place {
            Place::Disk(_) => ObjectPath::from(name),
            Place::Bucket(bucket) => bucket.key(name),
        }
    }

    fn objects(&self) -> &dyn ObjectStore {
        match &self.place {
            Place::Disk(disk) => &disk.objects,
            Place::Bucket(bucket) => &bucket.objects,
        }
    }

    /// Writes one result durably and returns its name. Ends within [`WRITE_LIMIT`], whatever a bucket does.
    ///
    /// # Errors
    /// [`FilesError`]; what is then left under some name is an orphan.
    pub async fn write(&self, task_id: Id, index: usize, png: Bytes) -> Result<String, FilesError> {
        self.faults.pass(Point::before(Effect::WriteFile)).await?;
        let name = match &self.place {
            Place::Disk(disk) => disk.write(task_id, index, png).await?,
            Place::Bucket(bucket) => bucket.write(task_id, index, png).await?,
        };
        self.faults.pass(Point::after(Effect::WriteFile)).await?;
        Ok(name)
    }

    /// Creates a file under the name given, unless there is one.
    ///
    /// # Errors
    /// [`FilesError`]; whether the file is there is then unknown.
    pub async fn create(&self, name: FileName<'_>, png: Bytes) -> Result<Creation, FilesError> {
        let created = match &self.place {
            Place::Disk(disk) => {
                let key = self.key(name.as_str());
                disk.objects.put_opts(&key, PutPayload::from(png), PutMode::Create.into()).await.map(drop)
            }
            Place::Bucket(bucket) => bucket.create(name.as_str(), png).await,
        };
        match created {
            Ok(()) => Ok(Creation::Done),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Creation::Exists),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file, or the byte range asked for; `None` when there is no such file.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn open(&self, name: FileName<'_>, range: Option<GetRange>) -> Result<Option<GetResult>, FilesError> {
        let options = GetOptions { range, ..GetOptions::default() };
        match self.objects().get_opts(&self.key(name.as_str()), options).await {
            Ok(found) => Ok(Some(found)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The size of a file in bytes; `None` when there is no such file.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn size(&self, name: FileName<'_>) -> Result<Option<u64>, FilesError> {
        match self.objects().head(&self.key(name.as_str())).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file that no task refers to; a missing one is no error.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn remove(&self, name: &str) -> Result<(), FilesError> {
        self.faults.pass(Point::before(Effect::RemoveFile)).await?;
        self.remove_now(name).await?;
        Ok(self.faults.pass(Point::after(Effect::RemoveFile)).await?)
    }

    async fn remove_now(&self, name: &str) -> Result<(), FilesError> {
        if let Place::Disk(disk) = &self.place
            && name.contains('#')
        {
            return Ok(disk.remove_half_written(name)?);
        }
        match self.objects().delete(&self.key(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The days that have result files, oldest first.
    ///
    /// # Errors
    /// [`FilesError`].
    pub async fn days(&self) -> Result<Vec<String>, FilesError> {
        let prefix = match &self.place {
            Place::Disk(_) => None,
            Place::Bucket(bucket) => bucket.prefix(),
        };
        let listed = self.objects().list_with_delimiter(prefix).await?;
        let names = listed.common_prefixes.iter().filter_map(|path| path.filename());
        Ok(names.filter(|name| is_day(name)).map(str::to_owned).collect())
    }

    /// Files of one day that were written before `cutoff`, with what a write left half done: some hundred names at a
    /// time, listed as they are asked for. Of files that come or go meanwhile each may be among them or not.
    pub fn written_before(&self, day: String, cutoff: Timestamp) -> Pieces {
        match &self.place {
            Place::Disk(disk) => disk.written_before(day, cutoff),
            Place::Bucket(bucket) => bucket.written_before(day, cutoff),
        }
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
