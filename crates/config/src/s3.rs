//! An S3-compatible bucket. Credentials and endpoint come from the AWS tools' environment variables.

use std::fmt;
use std::path::Path;

use url::Url;

use super::environment::{secret_in, variable};

/// The AWS tools' variables that are passed on.
const AWS_VARIABLES: [&str; 19] = [
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
    "AWS_CHECKSUM_ALGORITHM",
];
const KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";
const SECRET_KEY_FILE: &str = "AWS_SECRET_ACCESS_KEY_FILE";
const RELATIVE_URI: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
const FULL_URI: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
const CONTAINER_TOKEN_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
const METADATA_ENDPOINT: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
const ROLE: &str = "AWS_ROLE_ARN";
const BY_HOST: &str = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST";
const STS_ENDPOINT: &str = "AWS_ENDPOINT_URL_STS";
/// Variables that contain a server's URL.
const ENDPOINTS: [&str; 5] = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", STS_ENDPOINT, FULL_URI, METADATA_ENDPOINT];
/// Sources of credentials in the library's search order, each with the other variable that it needs. Without a role's
/// or container's other variable, the library would silently ask the metadata service.
const CREDENTIALS: [(&str, Option<&str>); 6] = [
    (KEY_ID, Some(SECRET_KEY)),
    (SECRET_KEY, Some(KEY_ID)),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", Some(ROLE)),
    (RELATIVE_URI, None),
    (FULL_URI, Some(CONTAINER_TOKEN_FILE)),
    (METADATA_ENDPOINT, None),
];
/// Each of these becomes part of a header, unescaped.
const IN_HEADERS: [&str; 5] = [KEY_ID, "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SSE_KMS_KEY_ID"];

/// A bucket and how to reach it.
#[derive(Clone, Default)]
pub struct S3Settings {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of all keys, without leading or trailing slashes.
    pub prefix: Option<String>,
    /// PEM of certificate authorities to trust in addition to the public ones.
    pub authorities: Option<Vec<u8>>,
    /// Names and values of the AWS variables. Some are secret.
    variables: Vec<(String, String)>,
}

impl fmt::Display for S3Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        self.prefix.as_ref().map_or(Ok(()), |prefix| write!(f, "/{prefix}"))
    }
}

tintype_domain::opaque_debug!(S3Settings);

impl S3Settings {
    /// Parses `s3://BUCKET/PREFIX`. `variables` are the AWS tools' variables.
    pub fn parse(url: &str, variables: Vec<(String, String)>) -> Result<Self, String> {
        let invalid = || "--files must be s3://BUCKET or s3://BUCKET/PREFIX, of letters, digits, - _ and .".to_owned();
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
        let prefix = (!prefix.is_empty()).then(|| prefix.to_owned());
        let settings = Self { bucket: bucket.to_owned(), prefix, authorities: None, variables: trimmed(variables) };
        settings.variables().try_for_each(|(name, value)| check_value(name, value))?;
        settings.check_credentials()?;
        settings.check_host()?;
        Ok(settings)
    }

    fn check_credentials(&self) -> Result<(), String> {
        let Some((found, needed)) = CREDENTIALS.into_iter().find(|(name, _)| self.variable(name).is_some()) else {
            return Err(format!("{self} needs credentials: set {KEY_ID} and {SECRET_KEY}"));
        };
        match needed {
            Some(needed) if self.variable(needed).is_none() => {
                Err(format!("{found} is set without {needed}: set both or neither"))
            }
            Some(CONTAINER_TOKEN_FILE) => check_token_file(self.variable(CONTAINER_TOKEN_FILE).unwrap_or_default()),
            Some(ROLE) if self.variable(STS_ENDPOINT).is_some_and(|url| !url.starts_with("https://")) => {
                Err(format!("{STS_ENDPOINT} must start with https://, since the token of the role is sent there"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that an endpoint's host contains the bucket's name if no path does.
    fn check_host(&self) -> Result<(), String> {
        let Some(endpoint) = self.endpoint().filter(|_| self.is_by_host()) else { return Ok(()) };
        let (url, bucket) = (Url::parse(endpoint).ok(), self.bucket.to_ascii_lowercase());
        let rest = url.as_ref().and_then(Url::host_str).and_then(|host| host.strip_prefix(&bucket));
        match rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
            true => Ok(()),
            false => Err(format!(
                "{BY_HOST} addresses the bucket by the host in AWS_ENDPOINT_URL, which does not begin with {bucket}: \
                 give a URL such as https://{bucket}.s3.example.com, or unset {BY_HOST}"
            )),
        }
    }

    fn is_by_host(&self) -> bool {
        let by_host = self.variable(BY_HOST).unwrap_or_default().to_ascii_lowercase();
        ["1", "true", "on", "yes", "y"].contains(&by_host.as_str())
    }

    /// What may be wrong with the endpoint of a bucket that cannot be listed. Stores show URLs that name the bucket, R2 in
    /// the path and Spaces in the host, and the path of each request names it again.
    pub fn advice(&self) -> Option<&'static str> {
        let rest = self.endpoint()?.split_once("://")?.1.trim_end_matches('/');
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_named =
            host.starts_with(&format!("{}.", self.bucket)) || path.rsplit('/').next() == Some(self.bucket.as_str());
        (is_named && !self.is_by_host()).then_some("does AWS_ENDPOINT_URL name the bucket? Give the URL of the store")
    }

    /// Parses `s3://BUCKET/PREFIX`, and reads the rest from the environment.
    pub(super) fn from_env(url: &str) -> Result<Self, String> {
        let settings = Self::parse(url, aws_variables()?)?;
        Ok(Self { authorities: aws_authorities()?, ..settings })
    }

    /// Names and values of the AWS variables. Some are secret.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn variable(&self, wanted: &str) -> Option<&str> {
        self.variables().find(|(name, _)| *name == wanted).map(|(_, value)| value)
    }

    fn endpoint(&self) -> Option<&str> {
        self.variable("AWS_ENDPOINT_URL_S3").or_else(|| self.variable("AWS_ENDPOINT_URL"))
    }

    /// Whether the endpoint's URL uses plain HTTP.
    pub fn plain_http(&self) -> bool {
        self.endpoint().is_some_and(|url| url.starts_with("http://"))
    }
}

/// The variables without white space around their values, such as the line break at the end of a file that became a
/// variable. Empty ones count as absent.
fn trimmed(variables: Vec<(String, String)>) -> Vec<(String, String)> {
    let trimmed = variables.into_iter().map(|(name, value)| (name, value.trim().to_owned()));
    trimmed.filter(|(_, value)| !value.is_empty()).collect()
}

/// Checks a variable's value. The library aborts the process for a value that it cannot put into a URL or a header.
fn check_value(name: &str, value: &str) -> Result<(), String> {
    // Values can be secret, so no message repeats them.
    if ENDPOINTS.contains(&name) {
        return check_endpoint(name, value);
    }
    if value.contains(char::is_control) {
        return Err(format!("{name} contains a line break or another control character: remove it"));
    }
    if IN_HEADERS.contains(&name) && !value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("{name} contains a space or a character other than letters, digits and signs of ASCII"));
    }
    let is_part_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.ends_with("_REGION") && !value.bytes().all(is_part_of_host) {
        return Err(format!("{name} is not the name of a region, such as eu-central-1"));
    }
    if name == RELATIVE_URI && !(value.starts_with('/') && value.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(format!("{name} is not the path of a URL, such as /v2/credentials/ID"));
    }
    Ok(())
}

/// Checks the token for the credentials of a container. The library puts the file's whole content into a header, each
/// time that it renews the credentials, and ends the process if it cannot.
fn check_token_file(path: &str) -> Result<(), String> {
    let token = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {path} (from {CONTAINER_TOKEN_FILE}): {error}"))?;
    match token.contains(char::is_control) {
        true => Err(format!(
            "{path} (from {CONTAINER_TOKEN_FILE}) contains a line break or another control character: write the token \
             without one, for example with `printf %s \"$TOKEN\" > {path}`"
        )),
        false => Ok(()),
    }
}

/// Checks a server's URL. The library aborts the process for a URL that it cannot parse.
fn check_endpoint(variable: &str, text: &str) -> Result<(), String> {
    // URLs can contain a password, so the message doesn't repeat it.
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
    // Stricter than browsers, which accept white space and missing slashes.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome for a bucket `pictures` at an endpoint and with credentials, after changing these variables.
    fn parse(changed: &[(&str, &str)]) -> Result<S3Settings, String> {
        let plain =
            [(KEY_ID, "AKIA"), (SECRET_KEY, "secret"), ("AWS_REGION", "here"), ("AWS_ENDPOINT_URL", "http://[::1]:1")];
        let kept = plain.iter().filter(|(name, _)| !changed.iter().any(|(other, _)| name == other));
        let variables = kept.chain(changed).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        S3Settings::parse("s3://pictures/ours", variables.collect())
    }

    fn refusal(changed: &[(&str, &str)]) -> String {
        parse(changed).expect_err(&format!("{changed:?}"))
    }

    #[test]
    fn white_space_around_a_value_does_not_count() {
        for name in [KEY_ID, SECRET_KEY, "AWS_REGION", "AWS_SESSION_TOKEN", "AWS_SSE_KMS_KEY_ID"] {
            let settings = parse(&[(name, " value\r\n")]).expect(name);
            assert_eq!(settings.variable(name), Some("value"));
        }
        let settings =
            parse(&[("AWS_ENDPOINT_URL", "http://[::1]:9000\n"), ("AWS_SESSION_TOKEN", " ")]).expect("a value");
        assert!(settings.plain_http() && settings.variable("AWS_SESSION_TOKEN").is_none());
    }

    #[test]
    fn a_value_that_no_header_can_hold_is_refused_by_its_name() {
        for name in IN_HEADERS.into_iter().chain([SECRET_KEY, "AWS_ROLE_ARN"]) {
            let error = refusal(&[(name, "hid\nden")]);
            assert!(error.starts_with(name) && error.contains("line break") && !error.contains("den"), "{error}");
        }
        for name in IN_HEADERS {
            for value in ["hid den", "hidd\u{e9}n"] {
                let error = refusal(&[(name, value)]);
                assert!(error.starts_with(name) && !error.contains("hid"), "{error}");
            }
        }
        assert!(refusal(&[("AWS_REGION", "eu/central")]).contains("eu-central-1"));
        assert!(refusal(&[(KEY_ID, ""), (SECRET_KEY, ""), (RELATIVE_URI, "v2")]).starts_with(RELATIVE_URI));
    }

    #[test]
    fn credentials_come_in_complete_sets() {
        let none = [(KEY_ID, ""), (SECRET_KEY, "")];
        let with = |more: &[(&'static str, &'static str)]| [&none[..], more].concat();
        assert!(refusal(&none).contains("needs credentials"));
        let metadata = (METADATA_ENDPOINT, "http://169.254.169.254");
        let web = ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token");
        for (set, missing) in [
            (vec![(SECRET_KEY, "")], SECRET_KEY),
            (vec![(KEY_ID, "")], KEY_ID),
            (with(&[web, metadata]), "AWS_ROLE_ARN"),
            (with(&[(FULL_URI, "http://169.254.170.23/v1/credentials"), metadata]), CONTAINER_TOKEN_FILE),
        ] {
            let error = refusal(&set);
            assert!(error.contains(&format!("is set without {missing}")), "{error}");
        }
        for set in [with(&[web, ("AWS_ROLE_ARN", "arn")]), with(&[(RELATIVE_URI, "/v2")]), with(&[metadata]), vec![web]]
        {
            parse(&set).expect("a complete set");
        }
    }

    #[test]
    fn the_token_of_a_container_has_no_line_break() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("token");
        let uri = (FULL_URI, "http://169.254.170.23/v1/credentials");
        let set = [(KEY_ID, ""), (SECRET_KEY, ""), uri, (CONTAINER_TOKEN_FILE, path.to_str().expect("text"))];
        assert!(refusal(&set).contains(CONTAINER_TOKEN_FILE), "a file that is not there");
        std::fs::write(&path, "token\n").expect("a file");
        assert!(refusal(&set).contains("printf %s"));
        std::fs::write(&path, "token").expect("a file");
        parse(&set).expect("a token");
    }

    #[test]
    fn tokens_of_roles_travel_encrypted() {
        let role = [(KEY_ID, ""), (SECRET_KEY, ""), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"), (ROLE, "arn")];
        let with = |url: &'static str| [&role[..], &[(STS_ENDPOINT, url)]].concat();
        assert!(refusal(&with("http://sts.example.com")).contains("must start with https://"));
        parse(&with("https://sts.example.com")).expect("a URL");
        parse(&[(STS_ENDPOINT, "http://sts.example.com")]).expect("no role, so no token is sent there");
    }

    #[test]
    fn a_host_that_should_name_the_bucket_does() {
        let by_host = (BY_HOST, "true");
        for endpoint in ["https://s3.example.com", "https://picturesque.example.com"] {
            let error = refusal(&[by_host, ("AWS_ENDPOINT_URL", endpoint)]);
            assert!(error.contains("https://pictures.s3.example.com"), "{error}");
        }
        parse(&[by_host, ("AWS_ENDPOINT_URL", "https://Pictures.s3.example.com")]).expect("a host with the bucket");
        for (endpoint, is_named) in [
            ("https://pictures.fra1.digitaloceanspaces.com", true),
            ("https://account.r2.cloudflarestorage.com/pictures/", true),
            ("https://project.supabase.co/storage/v1/s3", false),
            ("http://pictures:9000", false),
        ] {
            let settings = parse(&[("AWS_ENDPOINT_URL", endpoint)]).expect(endpoint);
            assert_eq!(settings.advice().is_some(), is_named, "{endpoint}");
        }
        parse(&[by_host, ("AWS_ENDPOINT_URL", "")]).expect("Amazon's host has it");
        parse(&[("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false")]).expect("a path");
    }
}
