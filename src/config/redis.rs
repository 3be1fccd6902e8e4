//! The Redis that processes share.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{duration, secret_from_file};

/// Where rate limits are counted for several processes together.
#[derive(Clone, Args)]
pub struct RedisSettings {
    /// Redis that counts rate limits for all processes, as redis://USER:PASSWORD@HOST:PORT/DATABASE, or rediss://
    /// for TLS [default: each process counts alone]
    #[arg(long, env = "TINTYPE_REDIS", hide_env_values = true, value_name = "URL")]
    redis: Option<String>,
    /// Certificate authorities in PEM that its certificate may come from, besides the public ones
    #[arg(long, env = "TINTYPE_REDIS_CA", value_name = "FILE")]
    redis_ca: Option<PathBuf>,
    /// Longest that a request waits for Redis before this process counts alone, up to 10s
    #[arg(long, env = "TINTYPE_REDIS_TIMEOUT", value_name = "DURATION", default_value = "100ms", value_parser = timeout)]
    redis_timeout: Duration,
}

/// A Redis server and whom to trust for it.
#[derive(Clone)]
pub struct RedisServer {
    /// Its URL, which may hold a password.
    pub url: String,
    /// PEM of certificate authorities that are trusted besides the public ones.
    pub authorities: Option<Vec<u8>>,
    /// Longest that a request waits for it.
    pub timeout: Duration,
}

/// Without the URL.
impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings").field("redis_ca", &self.redis_ca).finish_non_exhaustive()
    }
}

/// Without the URL.
impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisServer").finish_non_exhaustive()
    }
}

impl RedisSettings {
    /// The server to count on, if one is given.
    ///
    /// # Errors
    /// A sentence for the operator: a file that cannot be read.
    pub fn server(&self) -> Result<Option<RedisServer>, String> {
        let given = match &self.redis {
            Some(url) => Some(url.clone()),
            None => secret_from_file("TINTYPE_REDIS_FILE")?,
        };
        let Some(url) = given else { return Ok(None) };
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| format!("cannot read --redis-ca {}: {error}", path.display()))
        };
        let authorities = self.redis_ca.as_ref().map(read).transpose()?;
        Ok(Some(RedisServer { url, authorities, timeout: self.redis_timeout }))
    }
}

/// Reads how long a request waits.
fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = duration(text)?;
    match (Duration::from_millis(10)..=Duration::from_secs(10)).contains(&timeout) {
        true => Ok(timeout),
        false => Err("requests wait for Redis for 10ms to 10s".into()),
    }
}
