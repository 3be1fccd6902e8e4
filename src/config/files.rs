//! Where the result files are and how callers reach them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{DataSettings, duration, secret_from_file};

/// The variables of the AWS tools that are honoured.
const AWS_VARIABLES: [&str; 18] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
];
const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";
/// Any of these says where credentials are.
const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
];
/// Links that are signed are signed for this part of their lifetime more, and handed out for as long.
const SIGNED_EARLIER_PART: u32 = 6;
/// The longest lifetime: with what is signed for in addition it makes the 7 days that S3 allows.
const MAX_LIFETIME: Duration = Duration::from_secs(6 * 86_400);
const MIN_LIFETIME: Duration = Duration::from_secs(60);

/// Where the result files are, for commands that touch them.
#[derive(Debug, Clone, Default, Args)]
pub struct FilesSettings {
    /// Store of result files, as file:PATH or s3://BUCKET/PREFIX [default: files in the data directory]
    #[arg(long, env = "TINTYPE_FILES", value_name = "URL")]
    pub files: Option<String>,
}

/// How callers reach the result files.
#[derive(Debug, Clone, Args)]
pub struct FileUrlSettings {
    /// Where callers fetch result files: without the path /files, or where the bucket is public [default: the
    /// public URL]
    #[arg(long, env = "TINTYPE_FILE_URL", value_name = "URL", value_parser = super::base_url)]
    pub file_url: Option<String>,
    /// What the URLs of files in a bucket are
    #[arg(long, env = "TINTYPE_FILE_URLS", value_enum, default_value_t = FileUrls::Public)]
    pub file_urls: FileUrls,
    /// How long a signed URL works at least, up to 6d
    #[arg(long, env = "TINTYPE_FILE_URL_LIFETIME", value_name = "DURATION", default_value = "1h", value_parser = lifetime)]
    pub file_url_lifetime: Duration,
}

/// What the URLs of files in a bucket are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileUrls {
    /// Lasting: of --file-url, or of this service, which fetches from the bucket
    Public,
    /// Signed by the bucket's key, for a time, at every read
    Signed,
}

/// The links to result files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileLinks {
    /// This base and the name of the file.
    Names(String),
    /// This base and the key of the object.
    Keys(String),
    /// Signed by the bucket.
    Signed(SignedLinks),
}

/// How links are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedLinks {
    /// What is left of a link at least when a caller gets it.
    pub lifetime: Duration,
}

impl SignedLinks {
    /// How long a link is handed out after it was signed.
    pub fn handed_out_for(self) -> Duration {
        self.lifetime / SIGNED_EARLIER_PART
    }

    /// How long a link is signed for. The second is for the fraction that a signature leaves out.
    pub fn signed_for(self) -> Duration {
        self.lifetime + self.handed_out_for() + Duration::from_secs(1)
    }
}

impl FileUrlSettings {
    /// The links to files in `files` of a service that callers reach at `public_url`.
    pub fn links(&self, files: &FilesSettings, public_url: &str) -> FileLinks {
        let in_bucket = files.files.as_deref().is_some_and(|url| url.starts_with("s3:"));
        match (&self.file_url, self.file_urls) {
            (_, FileUrls::Signed) => FileLinks::Signed(SignedLinks { lifetime: self.file_url_lifetime }),
            (Some(base), FileUrls::Public) if in_bucket => FileLinks::Keys(base.clone()),
            (Some(base), FileUrls::Public) => FileLinks::Names(format!("{base}/files")),
            (None, FileUrls::Public) => FileLinks::Names(format!("{public_url}/files")),
        }
    }
}

/// Where result files are.
#[derive(Debug, Clone)]
pub enum FilesPlace {
    /// In this directory.
    Directory(PathBuf),
    /// In a bucket.
    Bucket(S3Settings),
}

impl fmt::Display for FilesPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Bucket(settings) => settings.fmt(f),
        }
    }
}

/// A bucket and how to reach it.
#[derive(Clone, Default)]
pub struct S3Settings {
    /// The bucket.
    pub bucket: String,
    /// What all keys begin with, without slashes at its ends.
    pub prefix: Option<String>,
    /// PEM of certificate authorities that are trusted besides the public ones.
    pub authorities: Option<Vec<u8>>,
    /// Names and values of the variables of AWS tools; secrets are among them.
    variables: Vec<(String, String)>,
}

impl fmt::Display for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        self.prefix.as_ref().map_or(Ok(()), |prefix| write!(f, "/{prefix}"))
    }
}

/// Without the variables.
impl fmt::Debug for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Settings").field(&self.to_string()).finish_non_exhaustive()
    }
}

impl S3Settings {
    /// Reads `s3://BUCKET/PREFIX`; `variables` are those of AWS tools.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn parse(url: &str, variables: Vec<(String, String)>) -> Result<Self, String> {
        let invalid = || format!("--files {url:?} is not s3://BUCKET or s3://BUCKET/PREFIX");
        let place = url.strip_prefix("s3://").ok_or_else(invalid)?;
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        // What needs no escaping in any URL.
        let plain = |part: &str| {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !part.is_empty() && part.bytes().all(letter) && part.bytes().any(|byte| byte != b'.')
        };
        let prefix = prefix.trim_end_matches('/');
        if !plain(bucket) || !(prefix.is_empty() || prefix.split('/').all(plain)) {
            return Err(invalid());
        }
        if !variables.iter().any(|(name, _)| CREDENTIALS.contains(&name.as_str())) {
            return Err(format!("{url} needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
        }
        let prefix = (!prefix.is_empty()).then(|| prefix.to_owned());
        Ok(Self { bucket: bucket.to_owned(), prefix, authorities: None, variables })
    }

    /// Names and values of the variables of AWS tools; secrets are among them.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether the endpoint is to be reached without TLS, which its URL says.
    pub fn plain_http(&self) -> bool {
        let endpoint = |wanted: &str| self.variables().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        let endpoint = endpoint("AWS_ENDPOINT_URL_S3").or_else(|| endpoint("AWS_ENDPOINT_URL"));
        endpoint.is_some_and(|url| url.starts_with("http://"))
    }
}

impl DataSettings {
    /// The place of result files that `--files` names, or the directory in the data directory.
    ///
    /// # Errors
    /// A sentence for the operator: a store of another kind, or settings that cannot be read.
    pub fn files_place(&self, files: Option<&str>) -> Result<FilesPlace, String> {
        let Some(url) = files else { return Ok(FilesPlace::Directory(self.data.join("files"))) };
        if url.starts_with("s3:") {
            let mut settings = S3Settings::parse(url, aws_variables()?)?;
            settings.authorities = aws_authorities()?;
            return Ok(FilesPlace::Bucket(settings));
        }
        match url.strip_prefix("file:") {
            Some(path) if !path.is_empty() => Ok(FilesPlace::Directory(PathBuf::from(path))),
            _ => Err("--files must be file:PATH or s3://BUCKET/PREFIX".into()),
        }
    }
}

/// The store of result files that the environment names, for flags that may stand without a value.
///
/// # Errors
/// A sentence for the operator: the variable is no text.
pub fn files_variable() -> Result<Option<String>, String> {
    variable("TINTYPE_FILES")
}

fn aws_variables() -> Result<Vec<(String, String)>, String> {
    let mut variables = Vec::new();
    for name in AWS_VARIABLES {
        variables.extend(variable(name)?.map(|value| (name.to_owned(), value)));
    }
    if !variables.iter().any(|(name, _)| name == SECRET_KEY) {
        variables.extend(secret_from_file("AWS_SECRET_ACCESS_KEY_FILE")?.map(|secret| (SECRET_KEY.to_owned(), secret)));
    }
    Ok(variables)
}

fn aws_authorities() -> Result<Option<Vec<u8>>, String> {
    let Some(path) = variable("AWS_CA_BUNDLE")? else { return Ok(None) };
    std::fs::read(&path).map(Some).map_err(|error| format!("cannot read {path}, which AWS_CA_BUNDLE names: {error}"))
}

/// A variable of the environment; an empty one counts as absent.
#[expect(clippy::disallowed_methods, reason = "config is the one that reads the environment")]
fn variable(name: &str) -> Result<Option<String>, String> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|_| format!("{name} is not UTF-8"))
}

/// Reads the lifetime of a signed URL.
fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = duration(text)?;
    match (MIN_LIFETIME..=MAX_LIFETIME).contains(&lifetime) {
        true => Ok(lifetime),
        false => Err("a signed URL lives from 1m to 6d".into()),
    }
}
