//! Parsers for flag values. Every error is a message for the operator.

use std::net::IpAddr;
use std::time::Duration;

use bytesize::ByteSize;
use ipnet::IpNet;
use tintype_domain::address::is_this_machine;

/// Parses `60` or `60/min`.
pub fn rate(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix("/min").unwrap_or(text);
    number.parse().map_err(|_| format!("{text:?} is not a number of requests per minute, such as 60"))
}

/// Parses `1s`, `10m`, `24h` or `90d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    // The library reads a capital M as months, but most people mean minutes.
    if text.contains('M') {
        return Err("M is not a unit: write 1m for a minute, or 30d for a month".into());
    }
    humantime::parse_duration(text).map_err(|_| format!("{text:?} is not a duration such as 30s, 10m, 24h or 90d"))
}

/// Parses the longest time to wait for something, such as `5s`.
pub fn time_limit(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it leaves no time: give one such as 5s".into()),
        limit => Ok(limit),
    }
}

/// Parses the time for which something is valid, such as `90d`.
pub fn lifetime(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it would expire at once: give a time such as 30d".into()),
        life if life > LONGEST_LIFE => Err("it would last for more than 100 years: leave it out for no end".into()),
        life => Ok(life),
    }
}

/// Parses how long something replaced stays valid, from 0 s.
pub fn overlap(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        overlap if overlap > LONGEST_LIFE => Err("it would last for more than 100 years".into()),
        overlap => Ok(overlap),
    }
}

/// Longest expiry time, about 100 years.
const LONGEST_LIFE: Duration = Duration::from_secs(36_525 * 86_400);

/// Parses a base URL: http or https, without credentials, a query or a fragment. Drops trailing slashes.
///
/// # Errors
/// A message for the operator, which doesn't repeat the URL: it can contain a password.
pub fn base_url(text: &str) -> Result<String, String> {
    let is_base =
        |url: &url::Url| matches!(url.scheme(), "http" | "https") && url.query().is_none() && url.fragment().is_none();
    let Some(url) = url::Url::parse(text).ok().filter(is_base) else {
        return Err("it is not a base URL such as https://images.example.com".into());
    };
    if has_credentials(&url) {
        return Err("it holds a user name or a password, which others would see: leave them out".into());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

pub(super) fn has_credentials(url: &url::Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

/// Parses a whole server's base URL. It has no path, since pages, cookies and redirects begin at the root.
pub fn root_url(text: &str) -> Result<String, String> {
    let url = base_url(text)?;
    match url::Url::parse(&url).map(|parsed| parsed.path().to_owned()) {
        Ok(path) if path != "/" => Err(format!(
            "it has the path {path}, and Tintype is reached at a host name of its own: give it one, such as \
             https://images.example.com"
        )),
        _ => Ok(url),
    }
}

/// Parses the base URL of a trace collector, which is logged.
pub fn collector_url(text: &str) -> Result<String, String> {
    if url::Url::parse(text).as_ref().is_ok_and(has_credentials) {
        return Err("it holds a user name or a password, which would show in logs: set OTEL_EXPORTER_OTLP_HEADERS to authorization=Basic%20... instead".into());
    }
    Ok(without_path(base_url(text)?, &["/v1/traces"]))
}

/// Parses the URL of a server to call, or of its API or one of its pages. Without a scheme it means http on this
/// machine and https elsewhere.
///
/// # Errors
/// A message for the user.
pub fn server_url(text: &str) -> Result<String, String> {
    let url = if text.contains("://") {
        base_url(text)?
    } else {
        let is_local =
            |url: url::Url| is_this_machine(&url) || url.domain().is_some_and(|name| name.ends_with(".localhost"));
        let local = url::Url::parse(&format!("http://{text}")).is_ok_and(is_local);
        base_url(&format!("{}://{text}", if local { "http" } else { "https" }))?
    };
    Ok(without_path(url, &["/api/v1", "/v1", "/mcp", "/studio", "/docs"]))
}

/// A base URL without one of these paths, which are appended later: people copy addresses that include them.
fn without_path(url: String, paths: &[&str]) -> String {
    // A host can have the same name as a path.
    let base = paths.iter().find_map(|path| url.strip_suffix(path).filter(|base| !base.ends_with('/')));
    base.map_or_else(|| url.clone(), str::to_owned)
}

/// Parses `10.0.0.0/8` or a single address.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| format!("{text:?} is not a network such as 10.0.0.0/8"))
}

pub(super) fn domain(text: &str) -> Result<String, String> {
    match url::Host::parse(text.trim()) {
        Ok(url::Host::Domain(name)) => Ok(name),
        _ => Err(format!("{text:?} is not a host name such as images.example.com")),
    }
}

/// Parses `512MiB`, `2GB` or `0`.
pub(super) fn size(text: &str) -> Result<ByteSize, String> {
    text.parse().map_err(|_| format!("{text:?} is not a size such as 512MiB or 2GiB"))
}

#[cfg(test)]
mod tests {
    use super::server_url;

    #[test]
    fn a_server_is_named_by_its_address_or_that_of_its_apis() {
        for (text, url) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("images.example.com/mcp", "https://images.example.com"),
            ("https://images.example.com/api/v1/", "https://images.example.com"),
            ("https://example.com/images/v1", "https://example.com/images"),
            // A container name.
            ("http://studio", "http://studio"),
            ("http://mcp/mcp", "http://mcp"),
            ("http://api/v1", "http://api"),
        ] {
            assert_eq!(server_url(text).as_deref(), Ok(url), "{text}");
        }
    }
}
