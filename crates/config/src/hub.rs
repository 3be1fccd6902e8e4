//! The hub that models are downloaded from, configured by the variables of Hugging Face's tools.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::environment::{secret_in, variable};
use super::values::duration;

/// URL of the hub of Hugging Face.
pub const HUGGING_FACE: &str = "https://huggingface.co";
const TOKEN: &str = "HF_TOKEN";

/// The hub, and a token for it.
#[derive(Clone, Args)]
pub struct HubSettings {
    /// URL of the hub, or of a mirror of it
    #[arg(long, env = "HF_ENDPOINT", default_value = HUGGING_FACE, value_name = "URL")]
    pub endpoint: String,
    /// File that holds a token of the hub, for models whose licence has to be accepted there; HF_TOKEN may hold the token
    /// itself
    #[arg(long, env = "HF_TOKEN_PATH", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with certificate authorities to trust in addition to the public ones
    #[arg(long, env = "TINTYPE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Longest time without data, and first pause before another try; for tests
    #[arg(long, hide = true, value_parser = duration)]
    pub test_stall: Option<Duration>,
    /// First pause before another try; for tests
    #[arg(long, hide = true, value_parser = duration)]
    pub test_pause: Option<Duration>,
    #[arg(skip)]
    secrets: Option<Secrets>,
}

/// File contents, read while this process is allowed to.
#[derive(Clone)]
struct Secrets {
    token: Option<String>,
    authorities: Option<Vec<u8>>,
}

tintype_domain::opaque_debug!(HubSettings);

impl HubSettings {
    /// Reads the files named by the settings, before root becomes the data's owner.
    pub fn read_secrets(&mut self) -> Result<(), String> {
        let given = self.token_file.as_deref().map(|file| secret_in(file, "--token-file")).transpose()?;
        let token = given.map_or_else(|| variable(TOKEN), |token| Ok(Some(token)))?;
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        // Files of variables for containers keep the quotes around a value.
        let of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if token.as_ref().is_some_and(|token| !token.bytes().all(of_token)) {
            return Err("the token of the hub holds characters that no token has, such as spaces or quotes".into());
        }
        let read =
            |file: &PathBuf| std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()));
        let authorities = self.ca.as_ref().map(read).transpose()?;
        self.secrets = Some(Secrets { token, authorities });
        Ok(())
    }

    /// The token, if there is one.
    pub fn token(&self) -> Option<String> {
        self.secrets.as_ref()?.token.clone()
    }

    /// PEM of certificate authorities to trust in addition to the public ones.
    pub fn authorities(&self) -> Option<&[u8]> {
        self.secrets.as_ref()?.authorities.as_deref()
    }
}
