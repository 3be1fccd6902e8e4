//! The set-up that all HTTP clients of the service share. Each client adds its own time limits.

use reqwest::ClientBuilder;
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
/// public certificate authorities and those in `authorities` (PEM).
///
/// # Errors
/// [`SetupError`]: the PEM cannot be read or holds no certificate authority.
pub fn client_builder(authorities: Option<&[u8]>, proxies: Proxies) -> Result<ClientBuilder, SetupError> {
    let roots = trust::roots(authorities).map_err(SetupError::Authorities)?;
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(trust::http_tls(roots)?)
        .http1_only()
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .user_agent(USER_AGENT);
    Ok(match proxies {
        Proxies::None => builder.no_proxy(),
        Proxies::FromEnvironment => builder,
    })
}

/// An error and its causes on one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}
