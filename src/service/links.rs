//! URLs of result files.

use std::ops::Range;
use std::sync::Arc;

use crate::files::FilesError;
use crate::service::ServiceContext;
use tintype_config::FileLinks;
use tintype_system::clock::Timestamp;

/// Creates the URLs of result files for callers.
#[derive(Debug)]
pub struct Links {
    kind: FileLinks,
    shared: Arc<ServiceContext>,
}

impl Links {
    /// Creates links of this kind.
    ///
    /// # Errors
    /// A message for the operator: the file store cannot sign links, or its signatures expire too early.
    pub async fn open(kind: FileLinks, shared: Arc<ServiceContext>) -> Result<Self, String> {
        if matches!(kind, FileLinks::Signed(_)) {
            shared.files.check_signing().await?;
        }
        Ok(Self { kind, shared })
    }

    /// The URL of a result file. Read [`Links::shown`] first: the URL may be shown during that time.
    pub async fn url(&self, name: &str) -> Result<String, FilesError> {
        match &self.kind {
            FileLinks::Names(base) => Ok(format!("{base}/{name}")),
            FileLinks::Keys(base) => Ok(format!("{base}/{}", self.shared.files.key(name))),
            FileLinks::Signed(links) => self.shared.files.signed_url(name, links.signed_for()).await,
        }
    }

    /// The time during which URLs that are created now may be shown.
    pub fn shown(&self) -> Range<Timestamp> {
        match &self.kind {
            FileLinks::Names(_) | FileLinks::Keys(_) => Timestamp::MIN..Timestamp::MAX,
            FileLinks::Signed(links) => {
                let now = self.shared.clock.now();
                now..now.saturating_add(links.handed_out_for())
            }
        }
    }
}
