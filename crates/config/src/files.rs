//! Result files: where they are stored, and which URLs callers get.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::database::DataSettings;
use super::s3::S3Settings;
use super::timing::REMOVED_FILES_GRACE;
use super::values::{base_url, duration};

/// Callers get the same signed link for this fraction of its lifetime. The signature is valid that much longer.
const REUSE_FRACTION: u32 = 6;
/// Longest lifetime. Including the time for which a link is reused, it stays within the 7 days that S3 allows.
const MAX_LIFETIME: Duration = Duration::from_secs(6 * 86_400);
const MIN_LIFETIME: Duration = Duration::from_secs(60);

/// Location of the result files, for commands that use them.
#[derive(Debug, Clone, Default, Args)]
pub struct FilesSettings {
    /// Location of the result files, as file:PATH or s3://BUCKET/PREFIX [default: files in the data directory]
    #[arg(long, env = "TINTYPE_FILES", value_name = "URL")]
    pub files: Option<String>,
}

/// The URLs of result files.
#[derive(Debug, Clone, Args)]
pub struct FileUrlSettings {
    /// Base URL of the result files: this service's, without /files, or a public bucket's [default: the public URL]
    #[arg(long, env = "TINTYPE_FILE_URL", value_name = "URL", value_parser = base_url)]
    pub file_url: Option<String>,
    /// Kind of URL that callers get for files in a bucket
    #[arg(long, env = "TINTYPE_FILE_URLS", value_enum, default_value_t = FileUrls::Public)]
    pub file_urls: FileUrls,
    /// Minimum time for which a signed URL stays valid, at most 6d
    #[arg(long, env = "TINTYPE_FILE_URL_LIFETIME", value_name = "DURATION", default_value = "1h", value_parser = lifetime)]
    pub file_url_lifetime: Duration,
}

/// Kind of URL for files in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileUrls {
    /// Permanent, under --file-url; without it, this service fetches each file from the bucket
    Public,
    /// Signed with the key of the bucket and valid for a limited time; renewed each time the task is read
    Signed,
}

/// The kinds of links to result files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileLinks {
    /// This base URL and the file name.
    Names(String),
    /// This base URL and the object key.
    Keys(String),
    /// Signed with the bucket's key.
    Signed(SignedLinks),
}

/// Lifetimes of signed links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedLinks {
    /// How long a link stays valid at least after a caller receives it.
    pub lifetime: Duration,
}

impl SignedLinks {
    /// How long callers get the same link after it was signed.
    pub fn handed_out_for(self) -> Duration {
        self.lifetime / REUSE_FRACTION
    }

    /// How long a signature is valid. The extra second makes up for the fraction that the signature's time truncates.
    pub fn signed_for(self) -> Duration {
        self.lifetime + self.handed_out_for() + Duration::from_secs(1)
    }
}

impl FileUrlSettings {
    /// How long a removed task's files are still served, for callers who read the task just before.
    pub fn removed_files_grace(&self) -> Duration {
        match self.file_urls {
            FileUrls::Signed => REMOVED_FILES_GRACE.max(self.file_url_lifetime),
            FileUrls::Public => REMOVED_FILES_GRACE,
        }
    }

    /// The kind of links to `files`, for a service with this public URL.
    pub fn links(&self, files: &FilesSettings, public_url: &str) -> Result<FileLinks, String> {
        let in_bucket = files.files.as_deref().is_some_and(|url| url.starts_with("s3:"));
        Ok(match (&self.file_url, self.file_urls) {
            (Some(_), FileUrls::Signed) => {
                return Err(
                    "--file-url cannot be used with --file-urls signed, whose links lead to the endpoint of the \
                            bucket (AWS_ENDPOINT_URL): remove one of them"
                        .into(),
                );
            }
            (None, FileUrls::Signed) => FileLinks::Signed(SignedLinks { lifetime: self.file_url_lifetime }),
            (Some(base), FileUrls::Public) if in_bucket => FileLinks::Keys(base.clone()),
            (Some(base), FileUrls::Public) => FileLinks::Names(format!("{base}/files")),
            (None, FileUrls::Public) => FileLinks::Names(format!("{public_url}/files")),
        })
    }
}

/// Where result files are stored.
#[derive(Debug, Clone)]
pub enum FileBackend {
    /// A directory.
    Directory(PathBuf),
    /// A bucket.
    Bucket(S3Settings),
}

impl fmt::Display for FileBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Bucket(settings) => settings.fmt(f),
        }
    }
}

impl DataSettings {
    /// The backend named by `files` (the value of `--files`), or the directory inside the data directory.
    ///
    /// # Errors
    /// A message for the operator: an unknown kind of backend, or settings that cannot be read.
    pub fn file_backend(&self, files: Option<&str>) -> Result<FileBackend, String> {
        let Some(url) = files else { return Ok(FileBackend::Directory(self.data.join("files"))) };
        if url.starts_with("s3:") {
            return S3Settings::from_env(url).map(FileBackend::Bucket);
        }
        match url.strip_prefix("file:") {
            Some(path) if !path.is_empty() => Ok(FileBackend::Directory(PathBuf::from(path))),
            _ => Err("--files must be file:PATH or s3://BUCKET/PREFIX".into()),
        }
    }
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = duration(text)?;
    match (MIN_LIFETIME..=MAX_LIFETIME).contains(&lifetime) {
        true => Ok(lifetime),
        false => Err("the lifetime of a signed URL must be between 1m and 6d".into()),
    }
}
