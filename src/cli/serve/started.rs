//! Reports that a server is ready: in lines for people, or as one log event, and to systemd.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;

use super::Parts;
use super::banner::{FirstKey, FirstLink, real_images_hint, sign_in_hint};
use super::rendering::Rendering;
use crate::cli::logging::LogFormat;
use crate::cli::{Failure, say, systemd};
use tintype_config::{DataSettings, DatabaseUrl, ServerSettings};
use tintype_store::{Store, postgres};

pub(super) struct Ready<'a> {
    pub(super) parts: &'a Parts,
    pub(super) server: &'a ServerSettings,
    pub(super) data: &'a DataSettings,
    /// URLs, and the paths of sockets.
    pub(super) urls: Vec<String>,
}

/// Whether the first key may be printed.
pub(super) fn shows_secrets(format: LogFormat) -> bool {
    matches!(format, LogFormat::Text) && io::stdout().is_terminal()
}

impl Ready<'_> {
    /// Reports the start, with a new installation's first key, whose API is at `url`.
    pub(super) async fn report(
        &self,
        format: LogFormat,
        store: Arc<Store>,
        url: Option<&str>,
        key: Option<FirstKey>,
    ) -> Result<(), Failure> {
        if matches!(format, LogFormat::Text) {
            self.announce()?;
        }
        let is_known = url.is_some() && key.is_none();
        if let (Some(url), Some(key)) = (url, key) {
            let public = self.server.public_url.as_deref().unwrap_or(url);
            let link = FirstLink::create(&store, &self.data.data, public, shows_secrets(format)).await?;
            match format {
                LogFormat::Text => {
                    key.announce(url);
                    link.announce();
                }
                LogFormat::Json => {
                    key.log();
                    link.log();
                }
            }
        }
        match format {
            LogFormat::Text => say("\nReady."),
            LogFormat::Json => self.log()?,
        }
        if is_known && shows_secrets(format) {
            say(&sign_in_hint(&self.data.data));
        }
        systemd::notify("READY=1");
        Ok(())
    }

    fn database(&self) -> Result<String, Failure> {
        Ok(match self.data.database()? {
            DatabaseUrl::Sqlite(path) => format!("SQLite database {}", path.display()),
            DatabaseUrl::Postgres(url) => postgres::describe(&url)?,
        })
    }

    fn log(&self) -> Result<(), Failure> {
        let engines: Vec<_> = self.parts.rendering.iter().flat_map(Rendering::descriptions).collect();
        let database = self.database()?;
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            addresses = self.urls.join(", "),
            data = %self.data.data.display(),
            database,
            files = self.parts.shared.files.describe(),
            engine = engines.join(", "),
            "started"
        );
        Ok(())
    }

    /// Prints the addresses and locations of this server on standard output.
    fn announce(&self) -> Result<(), Failure> {
        let Self { parts, server, data, urls } = self;
        say(&format!("Tintype {} is running.\n", env!("CARGO_PKG_VERSION")));
        for listening in urls {
            let url = if listening.starts_with("unix:") { listening.clone() } else { format!("{listening}/api/v1") };
            say(&format!("  API     {url}"));
        }
        if let Some(url) = urls.iter().find(|url| !url.starts_with("unix:")) {
            say(&format!("  Studio  {url}/studio"));
            say(&format!("  Docs    {url}/docs/"));
        }
        say(&format!("  Data    {}", data.data.display()));
        if matches!(data.database()?, DatabaseUrl::Postgres(_)) {
            say(&format!("  Tasks   {}", self.database()?));
        }
        if parts.shared.files.directory().is_none() {
            say(&format!("  Files   {}", parts.shared.files.describe()));
        }
        for engine in parts.rendering.iter().flat_map(Rendering::descriptions) {
            say(&format!("  Engine  {engine}"));
        }
        if parts.rendering.is_some()
            && let Some(lines) = real_images_hint(&server.worker.engine, &data.data)
        {
            say(&lines);
        }
        if let Some(redis) = parts.api.as_ref().and_then(|api| api.limits.redis()) {
            say(&format!("  Limits  Redis at {redis}"));
        }
        if server.retention.retention.is_some() {
            say(&format!("  Age     {}", server.retention));
        }
        if let Some(policy) = parts.rendering.as_ref().and_then(|rendering| rendering.policy.describe()) {
            say(&format!("  Policy  {policy}"));
        }
        Ok(())
    }
}
