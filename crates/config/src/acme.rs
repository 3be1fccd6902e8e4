//! Certificates from an ACME authority.

use std::path::PathBuf;

use clap::Args;

use super::values::{domain, has_credentials};

/// URL of the ACME directory unless `--acme-directory` sets another.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The certificate to obtain from an ACME authority. Using it means agreeing to the authority's terms.
#[derive(Debug, Clone, Args)]
pub struct AcmeSettings {
    /// Get a certificate for these host names by ACME and serve HTTPS; port 443 of each name must reach this server
    #[arg(long, env = "TINTYPE_ACME_DOMAIN", value_name = "NAME", num_args = 1.., value_delimiter = ',', value_parser = domain, conflicts_with = "tls_cert")]
    pub acme_domain: Vec<String>,
    /// Email address at which the certificate authority may contact you
    #[arg(long, env = "TINTYPE_ACME_CONTACT", value_name = "MAIL", requires = "acme_domain")]
    pub acme_contact: Option<String>,
    /// URL of the ACME directory
    #[arg(long, env = "TINTYPE_ACME_DIRECTORY", value_name = "URL", default_value = LETS_ENCRYPT, value_parser = directory)]
    pub acme_directory: String,
    /// PEM file with the certificate authority to trust for a private ACME directory
    #[arg(long, env = "TINTYPE_ACME_CA", value_name = "PATH", requires = "acme_domain")]
    pub acme_ca: Option<PathBuf>,
}

/// Parses the URL of a directory, which is used exactly as written (RFC 8555, 7.1.1). Messages don't repeat it, because
/// it can contain a password.
fn directory(text: &str) -> Result<String, String> {
    let is_web = |url: &url::Url| matches!(url.scheme(), "http" | "https");
    let Some(url) = url::Url::parse(text).ok().filter(is_web) else {
        return Err("it is not a URL such as https://acme.example.com/directory".into());
    };
    if has_credentials(&url) {
        return Err("it holds a user name or a password, which ACME does not use: leave them out".into());
    }
    Ok(text.to_owned())
}
