//! The marker of a store of result files.

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload};

use super::FilesError;
use tintype_domain::files_marker::FilesMarker;

/// Name of the object with the marker, beside the directories of the days. No result file has such a name, so the
/// marker is never served, listed or removed.
pub const MARKER: &str = "tintype-marker";
/// Read limit in bytes, above the size of a marker and a line break.
const MAX_BYTES: u64 = 64;

pub(super) async fn read(objects: &dyn ObjectStore, key: &ObjectPath) -> Result<Option<FilesMarker>, FilesError> {
    let found = match objects.get(key).await {
        Err(Error::NotFound { .. }) => return Ok(None),
        found => found?,
    };
    let bytes = if found.meta.size > MAX_BYTES { Bytes::new() } else { found.bytes().await? };
    let marker = str::from_utf8(&bytes).ok().and_then(|text| text.trim_ascii_end().parse().ok());
    let damaged = || format!("{MARKER} is damaged; if these are the right files, run `tintype files adopt`");
    marker.map(Some).ok_or_else(|| FilesError(damaged().into()))
}

pub(super) async fn write(
    objects: &dyn ObjectStore,
    key: &ObjectPath,
    marker: FilesMarker,
    mode: PutMode,
) -> Result<(), Error> {
    objects.put_opts(key, PutPayload::from(format!("{marker}\n")), mode.into()).await.map(drop)
}
