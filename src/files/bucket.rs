//! Result files in an S3 bucket.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::client::{ClientConfigKey, ClientOptions, HttpClient, HttpConnector};
use object_store::path::Path as ObjectPath;
use object_store::signer::Signer as _;
use object_store::{
    Attribute, Attributes, BackoffConfig, Error, ObjectStore as _, PutMode, PutOptions, PutPayload, RetryConfig,
};
use reqwest::Method;

use super::name::FileName;
use super::{FilesError, NAME_BATCH, NameBatches};
use crate::clock::Timestamp;
use crate::config::S3Settings;
use crate::domain::model::Id;
use crate::outbound::{Proxies, client_builder};

/// Time limit for a write with all its retries. It is longer than a minute, because repeating a render costs more than
/// waiting for the bucket.
pub const WRITE_LIMIT: Duration = Duration::from_secs(75);
/// Pause before the first retry of a write; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Longest wait for a connection, and for the next byte of a response.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const READ_LIMIT: Duration = Duration::from_secs(20);
/// Retries of the S3 library within one attempt.
const MAX_RETRIES: usize = 2;
const RETRY_LIMIT: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// A bucket, and the prefix of all keys in it.
pub(super) struct Bucket {
    pub(super) objects: AmazonS3,
    pub(super) write_limit: Duration,
    name: String,
    prefix: Option<ObjectPath>,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)?;
        self.prefix.as_ref().map_or(Ok(()), |prefix| write!(f, "/{prefix}"))
    }
}

/// Leaves out the client, which contains the credentials.
impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bucket").field(&self.to_string()).finish_non_exhaustive()
    }
}

impl Bucket {
    pub(super) fn open(settings: &S3Settings) -> Result<Self, FilesError> {
        let mut builder = AmazonS3Builder::new();
        for (name, value) in settings.variables() {
            let key = match name {
                // The AWS tools read this variable, the library does not.
                "AWS_EC2_METADATA_SERVICE_ENDPOINT" => AmazonS3ConfigKey::MetadataEndpoint,
                _ => name.to_ascii_lowercase().parse()?,
            };
            builder = builder.with_config(key, value);
        }
        let retry = RetryConfig {
            max_retries: MAX_RETRIES,
            retry_timeout: RETRY_LIMIT,
            backoff: BackoffConfig { max_backoff: MAX_BACKOFF, ..BackoffConfig::default() },
        };
        let objects = builder
            .with_bucket_name(&settings.bucket)
            .with_allow_http(settings.plain_http())
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // The service removes one file at a time, and not every store supports the removal of many.
            .with_disable_bulk_delete(true)
            .with_retry(retry)
            .with_http_connector(Connector { authorities: settings.authorities.clone() })
            .build()?;
        let prefix = settings.prefix.as_deref().map(ObjectPath::from);
        Ok(Self { objects, write_limit: WRITE_LIMIT, name: settings.bucket.clone(), prefix })
    }

    pub(super) fn prefix(&self) -> Option<&ObjectPath> {
        self.prefix.as_ref()
    }

    pub(super) fn key(&self, name: &str) -> ObjectPath {
        match &self.prefix {
            Some(prefix) => ObjectPath::from(format!("{prefix}/{name}")),
            None => ObjectPath::from(name),
        }
    }

    /// Writes a file under a new name; retries while the bucket is unreachable.
    pub(super) async fn write(&self, task_id: Id, index: usize, png: Bytes) -> Result<String, FilesError> {
        let mut last = FilesError(format!("{self} did not respond within {:?}", self.write_limit).into());
        let trying = async {
            let mut pause = FIRST_PAUSE;
            loop {
                // A new name for each attempt, because a write whose response was lost may have succeeded.
                let name = FileName::random(task_id, index);
                match self.create(&name, png.clone()).await {
                    Ok(()) => return Ok(name),
                    Err(error) if is_final(&error) => return Err(error.into()),
                    Err(error) => last = error.into(),
                }
                tracing::warn!(error = %last, "could not write a result file to the bucket; trying again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        };
        match tokio::time::timeout(self.write_limit, trying).await {
            Ok(outcome) => outcome,
            Err(_) => Err(last),
        }
    }

    pub(super) async fn create(&self, name: &str, png: Bytes) -> Result<(), Error> {
        let attributes = Attributes::from_iter([
            (Attribute::ContentType, "image/png"),
            (Attribute::CacheControl, "public, max-age=31536000, immutable"),
        ]);
        let options = PutOptions { mode: PutMode::Create, attributes, ..PutOptions::default() };
        self.objects.put_opts(&self.key(name), PutPayload::from(png), options).await.map(drop)
    }

    pub(super) fn written_before(&self, day: String, cutoff: Timestamp) -> NameBatches {
        let old = self.objects.list(Some(&self.key(&day))).try_filter_map(move |object| {
            let is_old = Timestamp::from_millis(object.last_modified.timestamp_millis()) < cutoff;
            let name = object.location.filename().filter(|_| is_old).map(|name| format!("{day}/{name}"));
            std::future::ready(Ok(name))
        });
        old.try_chunks(NAME_BATCH).map_err(|error| FilesError::from(error.1)).boxed()
    }

    pub(super) async fn check_access(&self) -> Result<(), String> {
        let found = self.objects.list(self.prefix()).try_next().await;
        found.map(drop).map_err(|error| {
            let settings = "AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
            format!("cannot use {self}: {}; see --files, {settings}", describe(&error))
        })
    }

    pub(super) async fn check_signing(&self) -> Result<(), String> {
        let credential = self.objects.credentials().get_credential().await;
        let credential = credential.map_err(|error| format!("cannot use {self}: {}", describe(&error)))?;
        match credential.token {
            None => Ok(()),
            Some(_) => Err("--file-urls signed needs a permanent access key: links signed with temporary \
                            credentials, such as AWS_SESSION_TOKEN, expire with them"
                .into()),
        }
    }

    pub(super) async fn signed_url(&self, name: &str, valid_for: Duration) -> Result<String, FilesError> {
        Ok(self.objects.signed_url(Method::GET, &self.key(name), valid_for).await?.into())
    }
}

/// Whether a retry cannot help.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotFound { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
    )
}

/// Describes an error. Of the response it includes only the code and the message, because the rest may contain the
/// token of the request, as after a signature mismatch.
pub(super) fn describe(error: &Error) -> String {
    let text = error.to_string();
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once('<').map(|(inner, _)| inner)
    };
    let before = text.split_once('<').map_or(text.as_str(), |(before, _)| before);
    let whole: &dyn std::error::Error = error;
    let cause = std::iter::successors(whole.source(), |cause| cause.source()).last().map(ToString::to_string);
    // Only the last cause names the address and the reason of a failed connection.
    let cause = cause.as_deref().filter(|cause| !text.contains(cause) && !cause.contains('<'));
    let parts = [Some(before.trim_end_matches([':', ' '])), element("Code"), element("Message"), cause];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
}

/// Builds the HTTP clients of the S3 library with the shared set-up of the service.
#[derive(Debug)]
struct Connector {
    authorities: Option<Vec<u8>>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |source| Error::Generic { store: "S3", source };
        let plain = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let builder =
            client_builder(self.authorities.as_deref(), Proxies::None).map_err(|error| failed(error.into()))?;
        let client = builder
            .https_only(!plain)
            .connect_timeout(CONNECT_LIMIT)
            // No limit for a whole body: a slow caller may take long to download a file through this service.
            .read_timeout(READ_LIMIT)
            .build();
        client.map(HttpClient::new).map_err(|error| failed(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_code_and_message_and_nothing_else_of_an_answer() {
        let body = "Server returned 403: <?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code>\
                    <Message>The signature is wrong.</Message><CanonicalRequest>x-amz-security-token:SECRET\
                    </CanonicalRequest></Error>";
        let error = Error::Generic { store: "S3", source: body.into() };
        let text = describe(&error);
        assert!(text.contains("SignatureDoesNotMatch: The signature is wrong."), "{text}");
        assert!(!text.contains("SECRET") && !text.contains('<'), "{text}");
    }

    #[test]
    fn an_error_without_a_body_is_left_as_it_is() {
        let error = Error::Generic { store: "S3", source: "no route to host".into() };
        assert!(describe(&error).ends_with("no route to host"));
    }
}
