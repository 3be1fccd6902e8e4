//! The Redis server that counts rate limits for all processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::environment::{authorities_in, secret_in};
use super::values::duration;

/// The settings for a Redis server that counts shared rate limits.
#[derive(Clone, Args)]
pub struct RedisSettings {
    /// Redis that counts rate limits for all processes, as redis://USER:PASSWORD@HOST:PORT/DATABASE, or rediss://
    /// for TLS [default: each process counts on its own]
    #[arg(long, env = "TINTYPE_REDIS", hide_env_values = true, value_name = "URL")]
    redis: Option<String>,
    /// File that holds the URL of --redis
    #[arg(long, env = "TINTYPE_REDIS_FILE", value_name = "FILE")]
    redis_file: Option<PathBuf>,
    /// PEM file with certificate authorities to trust for Redis, in addition to the public ones
    #[arg(long, env = "TINTYPE_REDIS_CA", value_name = "FILE")]
    redis_ca: Option<PathBuf>,
    /// Longest time a request waits for Redis before this process counts on its own, at most 10s
    #[arg(long, env = "TINTYPE_REDIS_TIMEOUT", value_name = "DURATION", default_value = "100ms", value_parser = timeout)]
    redis_timeout: Duration,
}

/// A Redis server and the certificate authorities to trust for it.
#[derive(Clone)]
pub struct RedisServer {
    /// Its URL, which may contain a password.
    pub url: String,
    /// PEM of certificate authorities to trust in addition to the public ones.
    pub authorities: Option<Vec<u8>>,
    /// The longest that a request waits for it.
    pub timeout: Duration,
}

tintype_domain::opaque_debug!(RedisSettings);
tintype_domain::opaque_debug!(RedisServer);

impl RedisSettings {
    /// The server to use, if there is one.
    pub fn server(&self) -> Result<Option<RedisServer>, String> {
        let given = match &self.redis {
            Some(url) => Some(url.clone()),
            None => self.redis_file.as_deref().map(|file| secret_in(file, "--redis-file")).transpose()?,
        };
        let Some(url) = given else { return Ok(None) };
        let authorities = authorities_in(self.redis_ca.as_deref(), "--redis-ca")?;
        Ok(Some(RedisServer { url, authorities, timeout: self.redis_timeout }))
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = duration(text)?;
    match (Duration::from_millis(10)..=Duration::from_secs(10)).contains(&timeout) {
        true => Ok(timeout),
        false => Err("the Redis timeout must be between 10ms and 10s".into()),
    }
}
