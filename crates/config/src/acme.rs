//! Certificates from an ACME authority.

use std::path::PathBuf;

use clap::Args;

use super::values::{base_url, domain};

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

/// Parses the URL of a directory, whose slash at the end counts.
fn directory(text: &str) -> Result<String, String> {
    base_url(text)?;
    url::Url::parse(text).map(String::from).map_err(|error| error.to_string())
}
