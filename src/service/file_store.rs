//! Checks that the store of result files belongs to the database.
//!
//! The database and the store contain the same random marker. Without this check, an API and a worker with different
//! local directories would complete tasks whose URLs get 404.

use crate::files::{Creation, Files};
use tintype_domain::files_marker::FilesMarker;
use tintype_store::Store;

/// Makes sure, before anything is served, that `files` belongs to the database. A database without a marker, because it
/// is new or of an earlier release, adopts the marker of `files`.
pub async fn open(store: &Store, files: &Files) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let known = match store.files_marker().await.map_err(|error| text(&error))? {
        Some(known) => known,
        None => {
            // The database comes second: a process that dies in between leaves a marker in `files`, which the next start
            // adopts.
            let marker = find_or_create(files).await?;
            store.claim_files(marker).await.map_err(|error| text(&error))?
        }
    };
    compare(known, files).await
}

/// Makes `files` the store of the database, with a new marker, so that no process starts again with another copy of the
/// files.
///
/// # Errors
/// A message for the operator. Repeating it is safe.
pub async fn adopt(store: &Store, files: &Files) -> Result<FilesMarker, String> {
    let marker = FilesMarker::random();
    files.replace_marker(marker).await.map_err(|error| cannot_mark(files, &error))?;
    store.adopt_files(marker).await.map_err(|error| error.to_string())?;
    Ok(marker)
}

async fn find_or_create(files: &Files) -> Result<FilesMarker, String> {
    let find = async || files.marker().await.map_err(|error| cannot_mark(files, &error));
    if let Some(found) = find().await? {
        return Ok(found);
    }
    let new = FilesMarker::random();
    match files.create_marker(new).await.map_err(|error| cannot_mark(files, &error))? {
        Creation::Done => Ok(new),
        // Another process has created the marker in between.
        Creation::Exists => {
            find().await?.ok_or_else(|| cannot_mark(files, &"another process removed the marker; start again"))
        }
    }
}

/// Checks, without changing anything, that `files` is the store with this marker.
pub async fn compare(known: FilesMarker, files: &Files) -> Result<(), String> {
    let fault = match files.marker().await {
        Ok(Some(found)) if found == known => return Ok(()),
        Ok(Some(found)) => format!("has the marker {found} of another store"),
        Ok(None) => "has no marker".into(),
        Err(error) => return Err(format!("cannot read the marker in {}: {error}", files.describe())),
    };
    Err(format!(
        "{} is not the store of result files that the database uses, whose marker is {known}: it {fault}. Give --files \
         the location of that store, the same in every process. If you have moved the files, run `tintype files adopt` \
         with their new location as --files",
        files.describe()
    ))
}

fn cannot_mark(files: &Files, error: &dyn std::fmt::Display) -> String {
    format!("cannot mark {} as the store of result files of this database: {error}", files.describe())
}
