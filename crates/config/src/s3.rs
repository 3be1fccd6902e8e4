//! An S3-compatible bucket. Credentials and endpoint come from the environment variables that the AWS tools read.

use std::fmt;
use std::path::Path;

use url::Url;

use super::environment::{secret_in, variable};

/// The variables of the AWS tools that are passed on.
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
const SECRET_KEY_FILE: &str = "AWS_SECRET_ACCESS_KEY_FILE";
/// Each of these is the URL of a server.
const ENDPOINTS: [&str; 5] = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
];
/// Each of these gives the location of credentials.
const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
];

/// A bucket and how to reach it.
#[derive(Clone, Default)]
pub struct S3Settings {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of all keys, without leading or trailing slashes.
    pub prefix: Option<String>,
    /// PEM of certificate authorities to trust in addition to the public ones.
    pub authorities: Option<Vec<u8>>,
    /// Names and values of the AWS variables, some of which are secret.
    variables: Vec<(String, String)>,
}

impl fmt::Display for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        self.prefix.as_ref().map_or(Ok(()), |prefix| write!(f, "/{prefix}"))
    }
}

/// Leaves out the variables, some of which are secret.
impl fmt::Debug for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Settings").field(&self.to_string()).finish_non_exhaustive()
    }
}

impl S3Settings {
    /// Parses `s3://BUCKET/PREFIX`. `variables` are the variables of the AWS tools.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn parse(url: &str, variables: Vec<(String, String)>) -> Result<Self, String> {
        let invalid = || format!("--files {url:?} is not s3://BUCKET or s3://BUCKET/PREFIX");
        let rest = url.strip_prefix("s3://").ok_or_else(invalid)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        // Only characters that never need escaping in a URL.
        let plain = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !part.is_empty() && part.bytes().all(allowed) && part.bytes().any(|byte| byte != b'.')
        };
        let prefix = prefix.trim_end_matches('/');
        if !plain(bucket) || !(prefix.is_empty() || prefix.split('/').all(plain)) {
            return Err(invalid());
        }
        if !variables.iter().any(|(name, _)| CREDENTIALS.contains(&name.as_str())) {
            return Err(format!("{url} needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
        }
        for (name, value) in variables.iter().filter(|(name, _)| ENDPOINTS.contains(&name.as_str())) {
            check_endpoint(name, value)?;
        }
        let prefix = (!prefix.is_empty()).then(|| prefix.to_owned());
        Ok(Self { bucket: bucket.to_owned(), prefix, authorities: None, variables })
    }

    /// Parses `s3://BUCKET/PREFIX` and takes the rest from the environment.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(super) fn from_env(url: &str) -> Result<Self, String> {
        let settings = Self::parse(url, aws_variables()?)?;
        Ok(Self { authorities: aws_authorities()?, ..settings })
    }

    /// Names and values of the AWS variables, some of which are secret.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether the URL of the endpoint asks for plain HTTP.
    pub fn plain_http(&self) -> bool {
        let endpoint = |wanted: &str| self.variables().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        let endpoint = endpoint("AWS_ENDPOINT_URL_S3").or_else(|| endpoint("AWS_ENDPOINT_URL"));
        endpoint.is_some_and(|url| url.starts_with("http://"))
    }
}

/// Checks the URL of a server. The library ends the process for one that it cannot read.
fn check_endpoint(variable: &str, text: &str) -> Result<(), String> {
    // A URL may hold a password, so the message does not repeat it.
    let wrong =
        |why: &str| Err(format!("{variable} is not the URL of a server, such as https://s3.example.com: {why}"));
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(url::ParseError::RelativeUrlWithoutBase) => return wrong("it does not start with https:// or http://"),
        Err(error) => return wrong(&error.to_string()),
    };
    let asks = url.query().is_some() || url.fragment().is_some();
    if !["https", "http"].contains(&url.scheme()) || !url.has_host() {
        return wrong("it does not start with https:// or http:// and the name of a host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("it holds a name or a password; the credentials are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    }
    // Stricter than the URLs of browsers, which take white space and forgive missing slashes.
    let read = text.parse::<http::Uri>().ok();
    if asks || read.is_none_or(|uri| uri.host().is_none_or(str::is_empty)) {
        return wrong("it has more than a scheme, a host, a port and a path, or a character that must be escaped");
    }
    Ok(())
}

fn aws_variables() -> Result<Vec<(String, String)>, String> {
    let mut variables = Vec::new();
    for name in AWS_VARIABLES {
        variables.extend(variable(name)?.map(|value| (name.to_owned(), value)));
    }
    if !variables.iter().any(|(name, _)| name == SECRET_KEY) {
        let file = variable(SECRET_KEY_FILE)?;
        let secret = file.map(|file| secret_in(Path::new(&file), SECRET_KEY_FILE)).transpose()?;
        variables.extend(secret.map(|secret| (SECRET_KEY.to_owned(), secret)));
    }
    Ok(variables)
}

fn aws_authorities() -> Result<Option<Vec<u8>>, String> {
    let Some(path) = variable("AWS_CA_BUNDLE")? else { return Ok(None) };
    std::fs::read(&path).map(Some).map_err(|error| format!("cannot read {path} (from AWS_CA_BUNDLE): {error}"))
}
