//! The client: the server to call, and the key.

use std::path::PathBuf;

use clap::Args;

use super::environment::secret_in;
use super::values::server_url;
use tintype_domain::key::KeySecret;

const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The server that a client calls, and the key that it sends.
#[derive(Debug, Clone, Args)]
pub struct ClientSettings {
    /// URL of the server, such as `https://images.example.com` or `127.0.0.1:8080`
    #[arg(long, env = "TINTYPE_URL", default_value = DEFAULT_URL, value_name = "URL", value_parser = server_url)]
    pub url: String,
    /// API key
    #[arg(long, env = "TINTYPE_KEY", hide_env_values = true, value_name = "KEY")]
    key: Option<Hidden>,
    /// File that holds the API key
    #[arg(long, env = "TINTYPE_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// PEM file with certificate authorities to trust in addition to the public ones
    #[arg(long, env = "TINTYPE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Allow sending the key over plain HTTP to another machine
    #[arg(long)]
    pub insecure: bool,
}

#[derive(Clone)]
struct Hidden(String);

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text)
    }
}

tintype_domain::opaque_debug!(Hidden);

impl ClientSettings {
    /// The API key, if there is one.
    ///
    /// # Errors
    /// A message for the user: its file cannot be read.
    pub fn key(&self) -> Result<Option<String>, String> {
        match (&self.key, self.key_file.as_deref()) {
            (Some(Hidden(key)), _) => Ok(Some(key.clone())),
            (None, Some(file)) if KeySecret::find_shape(&file.to_string_lossy()).is_some() => {
                Err("--key-file names a file that holds the key; the key itself belongs in TINTYPE_KEY".into())
            }
            (None, file) => file.map(|file| secret_in(file, "--key-file")).transpose(),
        }
    }
}
