//! The marker of a store of result files.

use futures::TryStreamExt as _;
use object_store::{GetResult, PutPayload};

use super::FilesError;
use tintype_domain::files_marker::FilesMarker;

/// Name of the object with the marker, beside the directories of the days. No result file has such a name, so the
/// marker is never served, listed or removed.
pub const MARKER: &str = "tintype-marker";
/// Read limit in bytes, above the size of a marker and a line break.
const MAX_BYTES: usize = 64;

pub(super) async fn read(found: GetResult, in_bucket: bool) -> Result<FilesMarker, FilesError> {
    let mut start = Vec::new();
    let mut chunks = found.into_stream();
    while start.len() <= MAX_BYTES
        && let Some(chunk) = chunks.try_next().await?
    {
        start.extend_from_slice(&chunk);
    }
    // A web console answers every request with the same page.
    if in_bucket && start.trim_ascii_start().starts_with(b"<") {
        let message = "the answer is a web page and no marker: is the server at AWS_ENDPOINT_URL an S3 server? Some have \
                        a web console on another port";
        return Err(FilesError(message.into()));
    }
    let marker = str::from_utf8(&start).ok().filter(|text| text.len() <= MAX_BYTES);
    let damaged = || format!("{MARKER} is damaged; if these are the right files, run `tintype files adopt`");
    marker.and_then(|text| text.trim_ascii_end().parse().ok()).ok_or_else(|| FilesError(damaged().into()))
}

pub(super) fn payload(marker: FilesMarker) -> PutPayload {
    PutPayload::from(format!("{marker}\n"))
}
