//! The set-up that all HTTP clients of the service share. Each client adds its own time limits.

use std::time::Duration;

use reqwest::ClientBuilder;
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use reqwest::redirect::Policy;
use tokio_rustls::rustls;

use super::trust;

const USER_AGENT: &str = concat!("tintype/", env!("CARGO_PKG_VERSION"));

/// The proxies that a client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxies {
    /// None: the client reaches its host directly or not at all.
    None,
    /// The proxies that `HTTPS_PROXY` and the related variables name.
    FromEnvironment,
}

/// An HTTP client cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The certificate authorities cannot be used.
    #[error("{0}")]
    Authorities(String),
    /// The TLS library refused the configuration.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The HTTP library refused the configuration.
    #[error("HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// A builder of HTTP/1.1 clients that follow no redirects and never repeat a request by themselves. They trust the
/// public certificate authorities and the certificates in `authorities` (PEM). Like browsers, they skip header lines
/// that are invalid: old web servers and firewalls before newer ones send some.
///
/// # Errors
/// [`SetupError`]: the PEM cannot be read or holds no certificate.
pub fn client_builder(authorities: Option<&[u8]>, proxies: Proxies) -> Result<ClientBuilder, SetupError> {
    let trusted = trust::public_and(authorities).map_err(SetupError::Authorities)?;
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(trust::http_tls(trusted)?)
        .http1_only()
        .http1_allow_spaces_after_header_name_in_responses(true)
        .http1_ignore_invalid_headers_in_responses(true)
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .user_agent(USER_AGENT);
    Ok(match proxies {
        Proxies::None => builder.no_proxy(),
        Proxies::FromEnvironment => builder,
    })
}

/// The wait that an answer asks for by `Retry-After`: seconds, or a date of HTTP. A date is taken by the clock that set the
/// `Date` of the answer, because the clocks of two machines differ. Hugging Face sends `RateLimit` instead, with what
/// remains (`r`) and the seconds until it is reset (`t`).
pub fn asked_wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let Some(asked) = text(RETRY_AFTER) else {
        let mut fields = text(HeaderName::from_static("ratelimit"))?.split(';').map(str::trim);
        let is_used_up = fields.clone().any(|field| field == "r=0");
        let seconds = fields.find_map(|field| field.strip_prefix("t="))?.parse().ok();
        return seconds.filter(|_| is_used_up).map(Duration::from_secs);
    };
    if let Ok(seconds) = asked.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let time = |text: &str| httpdate::parse_http_date(text).ok();
    Some(time(asked)?.duration_since(time(text(DATE)?)?).unwrap_or_default())
}

/// An error and its causes on one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_asked_for_in_seconds_or_by_a_date() {
        let now = "Thu, 26 Nov 2026 00:00:00 GMT";
        for (asked, date, seconds) in [
            ("3", None, Some(3.0)),
            (" 0 ", None, Some(0.0)),
            ("1.5", None, Some(1.5)),
            ("Thu, 26 Nov 2026 00:00:04 GMT", Some(now), Some(4.0)),
            ("Wed, 25 Nov 2026 00:00:04 GMT", Some(now), Some(0.0)),
            ("Thursday, 26-Nov-26 00:00:04 GMT", Some(now), Some(4.0)),
            ("Thu Nov 26 00:00:04 2026", Some(now), Some(4.0)),
            ("Thu, 26 Nov 2026 00:00:04 +0100", Some(now), None),
            ("Thu, 26 Nov 2026 00:00:04 GMT", None, None),
            ("", None, None),
            ("2026-11-26", Some(now), None),
            ("-1", None, None),
            ("NaN", None, None),
            ("soon", Some(now), None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, asked.parse().expect("a value"));
            if let Some(date) = date {
                headers.insert(DATE, date.parse().expect("a value"));
            }
            assert_eq!(asked_wait(&headers).map(|wait| wait.as_secs_f64()), seconds, "{asked}");
        }
        for (limit, seconds) in [
            ("\"api\";r=0;t=55", Some(55)),
            ("\"resolvers\"; r=0; t=2", Some(2)),
            ("\"api\";r=7;t=55", None),
            ("\"api\";r=0", None),
            ("limit=10, remaining=0, reset=5", None),
        ] {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static("ratelimit"), limit.parse().expect("a value"))]);
            assert_eq!(asked_wait(&headers), seconds.map(Duration::from_secs), "{limit}");
        }
    }
}
