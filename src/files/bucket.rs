//! Result files in an S3 bucket.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::client::{ClientConfigKey, ClientOptions, HttpClient, HttpConnector};
use object_store::list::{PaginatedListOptions, PaginatedListStore as _};
use object_store::path::Path as ObjectPath;
use object_store::signer::Signer as _;
use object_store::{
    Attribute, Attributes, BackoffConfig, Error, ObjectStore as _, PutMode, PutOptions, PutPayload, RetryConfig,
};
use reqwest::Method;

use super::listing;
use super::marker::MARKER;
use super::name::{FileName, is_day};
use super::{FilesError, NAME_BATCH, NameBatches};
use tintype_config::S3Settings;
use tintype_domain::model::Id;
use tintype_outbound::{Proxies, client_builder, trust};
use tintype_system::clock::Timestamp;

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
/// Time limit for listing all days: there are a few thousand.
const LISTING_LIMIT: Duration = Duration::from_secs(5 * 60);
/// Start of the names of all days.
const CENTURY: &str = "20";

/// A bucket, and the prefix of all keys in it.
pub(super) struct Bucket {
    pub(super) objects: AmazonS3,
    pub(super) write_limit: Duration,
    name: String,
    prefix: Option<ObjectPath>,
    advice: Option<&'static str>,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)?;
        self.prefix.as_ref().map_or(Ok(()), |prefix| write!(f, "/{prefix}"))
    }
}

tintype_domain::opaque_debug!(Bucket);

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
        Ok(Self { objects, write_limit: WRITE_LIMIT, name: settings.bucket.clone(), prefix, advice: settings.advice() })
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
                tracing::warn!(error = %last, "could not write a result file to the bucket; retrying");
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

    /// The keys that start with `start`, below the prefix.
    fn starting_with(&self, start: &str) -> String {
        self.prefix.as_ref().map_or_else(|| start.to_owned(), |prefix| format!("{prefix}/{start}"))
    }

    /// The days that have result files, oldest first. Others may keep objects beside ours, under names that the library
    /// cannot read, so only the names of this century are listed.
    pub(super) async fn days(&self) -> Result<Vec<String>, FilesError> {
        let listed = tokio::time::timeout(LISTING_LIMIT, self.list_days()).await;
        listed.unwrap_or_else(|_| Err(FilesError(format!("{self} was not listed within {LISTING_LIMIT:?}").into())))
    }

    async fn list_days(&self) -> Result<Vec<String>, FilesError> {
        let mut days = BTreeSet::new();
        let mut pages = listing::pages(self.objects.clone(), self.starting_with(CENTURY), true);
        while let Some(page) = pages.try_next().await? {
            let names = page.common_prefixes.iter().filter_map(|path| path.filename());
            days.extend(names.filter(|name| is_day(name)).map(str::to_owned));
        }
        Ok(days.into_iter().collect())
    }

    pub(super) fn written_before(&self, day: String, cutoff: Timestamp) -> NameBatches {
        let pages = listing::pages(self.objects.clone(), self.starting_with(&format!("{day}/")), false);
        let objects = pages.map_ok(|page| stream::iter(page.objects.into_iter().map(Ok::<_, Error>))).try_flatten();
        let folder = self.key(&day);
        let old = objects.try_filter_map(move |object| {
            let is_old = Timestamp::from_millis(object.last_modified.timestamp_millis()) < cutoff;
            let ours = object.location.prefix_match(&folder).filter(|_| is_old).map(Iterator::collect::<Vec<_>>);
            let name = match ours.as_deref() {
                Some([name]) => Some(format!("{day}/{}", name.as_ref())),
                _ => None,
            };
            std::future::ready(Ok(name))
        });
        old.try_chunks(NAME_BATCH).map_err(|error| FilesError::from(error.1)).boxed()
    }

    pub(super) async fn check_access(&self) -> Result<(), String> {
        // One page is enough, whatever else is in the bucket.
        let options = PaginatedListOptions { max_keys: Some(1), ..PaginatedListOptions::default() };
        let found = self.objects.list_paginated(Some(&self.starting_with(MARKER)), options).await;
        found.map(drop).map_err(|error| {
            let settings = "see --files, AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
            format!("cannot use {self}: {}; {}", describe(&error), self.advice.unwrap_or(settings))
        })
    }

    /// Whether a listing shows that there is no object with this key. If listing is restricted by prefix, many servers
    /// answer 403 for a missing object.
    pub(super) async fn lacks(&self, key: &ObjectPath) -> bool {
        // Of the keys that start with this one it is the first.
        let options = PaginatedListOptions { max_keys: Some(1), ..PaginatedListOptions::default() };
        let found = self.objects.list_paginated(Some(key.as_ref()), options).await;
        found.is_ok_and(|page| match page.result.objects.first() {
            Some(first) => first.location != *key,
            // A page may be empty and not the last.
            None => page.page_token.is_none(),
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

/// Codes of a server that does not know what a write asks for. These come with the status 400 or 501.
const NOT_SUPPORTED: [&str; 4] = ["NotImplemented", "InvalidArgument", "InvalidRequest", "UnsupportedOperation"];
/// Codes of a server that received other bytes than were sent.
const DAMAGED: [&str; 3] = ["BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"];
/// What the message of a server contains that wants a checksum with each write, in lower case.
const OF_LOCKED_OBJECTS: [&str; 3] = ["content-md5", "checksum", "object lock"];

/// Whether a retry cannot help.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotFound { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
    ) || refused_write(&error.to_string()).is_some()
}

/// What to do about a write that a server, or a proxy before it, will never accept; `None` for other errors. The library
/// keeps no status.
fn refused_write(error: &str) -> Option<&'static str> {
    if !error.starts_with("Generic S3 error: Error performing PUT") {
        return None;
    }
    let [code, message] = ["Code", "Message"].map(|name| element(error, name).unwrap_or_default());
    let message = message.to_ascii_lowercase();
    if error.contains("status code: 413") || code == "EntityTooLarge" {
        return Some(
            "the store, or a proxy before it, limits the size of requests: allow at least 64 MB (nginx: \
             client_max_body_size 64m)",
        );
    }
    if OF_LOCKED_OBJECTS.iter().any(|part| message.contains(part)) && !DAMAGED.contains(&code) {
        return Some(
            "does this bucket have Object Lock? Set AWS_CHECKSUM_ALGORITHM=SHA256, or use a bucket without Object Lock",
        );
    }
    // No result file may be written without the condition: it must not replace another one.
    (error.contains("status code: 501") || NOT_SUPPORTED.contains(&code))
        .then_some("does this store support conditional writes (If-None-Match: *)? Result files need them")
}

fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once('<').map(|(inner, _)| inner)
}

/// Describes an error. Of the response it includes only the code and the message, because the rest may contain the
/// token of the request, as after a signature mismatch.
pub(super) fn describe(error: &Error) -> String {
    let text = error.to_string();
    let before = text.split_once('<').map_or(text.as_str(), |(before, _)| before);
    let whole: &dyn std::error::Error = error;
    let cause = std::iter::successors(whole.source(), |cause| cause.source()).last().map(ToString::to_string);
    // Only the last cause names the address and the reason of a failed connection.
    let cause = cause.as_deref().filter(|cause| !text.contains(cause) && !cause.contains('<'));
    let [code, message] = ["Code", "Message"].map(|name| element(&text, name));
    let advice = match code {
        Some("RequestTimeTooSkewed") => Some("set the clock of this machine"),
        _ => refused_write(&text),
    };
    let parts = [Some(before.trim_end_matches([':', ' '])), code, message, cause, advice];
    let line = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    trust::explain(line, "AWS_CA_BUNDLE")
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
